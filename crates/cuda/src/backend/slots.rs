//! What the model is thinking: each slot's recurrent states, convolution inputs and KV cache, reserved at the start.
//!
//! States and inputs have more places than slots: behind those of the slots are those for the states at marks of a round.
//!
//! Value rows of a slot from its end on are zero, since the attention gives the keys that a row may not see the weight 0.

use descant_model::Capacity;
use descant_release::{LayerKind, ModelConfig};

use crate::driver::{Arena, Block, Gpu, Plain};
use crate::error::CudaError;
use crate::launch::{AttentionShape, Cache, DeltaSizes};

use super::weights::{attention_width, delta_width};

/// Most segments of a round that have a mark. Few, since a place of Clef-Flash takes 50 MB and the copies behind a round are
/// bounded anyway.
const MARKS_MAX: usize = 4;

/// How many segments of a round may have a mark.
pub(crate) fn marks_max(capacity: Capacity) -> usize {
    MARKS_MAX.min(capacity.slots)
}

/// The states of all slots.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Rows each slot has taken.
    pub(crate) taken: Vec<usize>,
    /// Rows each slot may have written since its reset, also in a round that failed.
    pub(crate) touched: Vec<usize>,
    /// The marks of the last round, as far as their slots were not emptied since: slot and position of each place behind the slots.
    pub(crate) marks: Vec<Option<(usize, usize)>>,
    /// Places of recurrent states.
    places: usize,
    pub(crate) layers: Vec<LayerState>,
    pub(crate) shape: AttentionShape,
    pub(crate) sizes: DeltaSizes,
}

/// The states of one layer, all slots.
#[derive(Debug)]
pub(crate) enum LayerState {
    Attention(Cache),
    Delta {
        /// `[places, value_heads, V, K]`
        states: Block<f32>,
        /// `[places, 3, channels]`
        inputs: Block<u16>,
    },
}

/// Values of one slot in one layer: of keys, of the recurrent state, of the inputs.
struct Counts {
    keys: usize,
    state: usize,
    inputs: usize,
}

fn counts(config: &ModelConfig, positions: usize) -> Counts {
    let (attention, linear) = (&config.attention, &config.linear);
    Counts {
        keys: attention.kv_heads * positions * attention.head_dim,
        state: linear.value_heads * linear.value_dim * linear.key_dim,
        inputs: 3 * linear.conv_channels(),
    }
}

impl Slots {
    pub(crate) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        capacity: Capacity,
    ) -> Result<Slots, CudaError> {
        let (slots, counts) = (capacity.slots, counts(config, capacity.positions));
        let places = Slots::places(capacity);
        let mut kv = Arena::new(gpu, "the KV cache", Slots::kv_bytes(config, capacity))?;
        let mut states = Arena::new(
            gpu,
            "the recurrent states",
            Slots::state_bytes(config, places),
        )?;
        let layer = |kind: &LayerKind| match kind {
            LayerKind::FullAttention => LayerState::Attention(Cache {
                keys: kv.take(slots * counts.keys),
                values: kv.take(slots * counts.keys),
            }),
            LayerKind::LinearAttention => LayerState::Delta {
                states: states.take(places * counts.state),
                inputs: states.take(places * counts.inputs),
            },
        };
        let layers = config.layers.iter().map(layer).collect();
        let (attention, linear) = (&config.attention, &config.linear);
        let int = |x: usize| i32::try_from(x).expect("sizes of a layer are below 2^31");
        Ok(Slots {
            taken: vec![0; slots],
            touched: vec![0; slots],
            marks: Vec::new(),
            places,
            layers,
            shape: AttentionShape {
                heads: attention.heads,
                kv_heads: attention.kv_heads,
                dim: attention.head_dim,
                half: attention.rotary_dims / 2,
                positions: capacity.positions,
                slots,
                wide: attention_width(attention),
            },
            sizes: DeltaSizes {
                key_heads: int(linear.key_heads),
                value_heads: int(linear.value_heads),
                key: int(linear.key_dim),
                value: int(linear.value_dim),
                channels: int(linear.conv_channels()),
                wide: int(delta_width(linear)),
            },
        })
    }

    /// Bytes of the KV cache of all slots.
    pub(crate) fn kv_bytes(config: &ModelConfig, capacity: Capacity) -> usize {
        let keys = counts(config, capacity.positions).keys;
        count(config, LayerKind::FullAttention) * 2 * Arena::bytes_for::<u16>(capacity.slots * keys)
    }

    /// Places of recurrent states and convolution inputs: of all slots, and for marks.
    pub(crate) fn places(capacity: Capacity) -> usize {
        capacity.slots + marks_max(capacity)
    }

    /// Bytes of so many places.
    pub(crate) fn state_bytes(config: &ModelConfig, places: usize) -> usize {
        let counts = counts(config, 0);
        let one = Arena::bytes_for::<f32>(places * counts.state)
            + Arena::bytes_for::<u16>(places * counts.inputs);
        count(config, LayerKind::LinearAttention) * one
    }

    /// Empties a slot: zero states, and zero values wherever it may have written.
    pub(crate) fn reset(&mut self, gpu: &Gpu, slot: usize) -> Result<(), CudaError> {
        let written = self.touched[slot];
        for layer in &self.layers {
            match layer {
                LayerState::Attention(cache) => {
                    let (values, lines) = self.lines(&cache.values, slot, 0..written);
                    gpu.zero_lines(&values, lines)?;
                }
                LayerState::Delta { states, inputs } => {
                    gpu.fill(&self.at_place(states, slot), 0)?;
                    gpu.fill(&self.at_place(inputs, slot), 0)?;
                }
            }
        }
        for mark in &mut self.marks {
            mark.take_if(|(marked, _)| *marked == slot);
        }
        (self.taken[slot], self.touched[slot]) = (0, 0);
        Ok(())
    }

    /// Where rows of a slot stand in a layer's keys or values: a block, and lines in it (their number, width and distance).
    pub(crate) fn lines(
        &self,
        cache: &Block<u16>,
        slot: usize,
        rows: std::ops::Range<usize>,
    ) -> (Block<u16>, (usize, usize, usize)) {
        let AttentionShape {
            kv_heads,
            dim,
            positions,
            ..
        } = self.shape;
        let whole = part(cache, self.taken.len(), slot);
        let block = whole.part(rows.start * dim..whole.len());
        (block, (kv_heads, rows.len() * dim, positions * dim))
    }

    /// A place's part of the states or inputs of a layer.
    pub(crate) fn at_place<T: Plain>(&self, block: &Block<T>, place: usize) -> Block<T> {
        part(block, self.places, place)
    }

    /// Where the states of a slot after so many rows are: in the slot, or at a mark of the last round.
    pub(crate) fn place(&self, slot: usize, rows: usize) -> Option<usize> {
        if self.taken[slot] == rows {
            return Some(slot);
        }
        let mut marks = self.marks.iter();
        let mark = marks.position(|mark| *mark == Some((slot, rows)))?;
        Some(self.taken.len() + mark)
    }
}

/// One part of so many equal ones.
fn part<T: Plain>(block: &Block<T>, parts: usize, index: usize) -> Block<T> {
    let len = block.len() / parts;
    block.part(index * len..(index + 1) * len)
}

fn count(config: &ModelConfig, kind: LayerKind) -> usize {
    config.layers.iter().filter(|layer| **layer == kind).count()
}
