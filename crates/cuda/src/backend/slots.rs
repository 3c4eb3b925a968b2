//! What the model is thinking: each slot's recurrent states, convolution inputs and KV cache, reserved at the start.
//!
//! Value rows of a slot from its end on are zero, since the attention gives the keys that a row may not see the weight 0.

use descant_model::Capacity;
use descant_release::{LayerKind, ModelConfig};

use crate::driver::{Arena, Block, Gpu};
use crate::error::CudaError;
use crate::launch::{AttentionShape, Cache, DeltaSizes};

use super::weights::{attention_width, delta_width};

/// The states of all slots.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Rows each slot has taken.
    pub(crate) taken: Vec<usize>,
    /// Rows each slot may have written since its reset, also in a round that failed.
    pub(crate) touched: Vec<usize>,
    pub(crate) layers: Vec<LayerState>,
    pub(crate) shape: AttentionShape,
    pub(crate) sizes: DeltaSizes,
}

/// The states of one layer, all slots.
#[derive(Debug)]
pub(crate) enum LayerState {
    Attention(Cache),
    Delta {
        /// `[slots, value_heads, V, K]`
        states: Block<f32>,
        /// `[slots, 3, channels]`
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
        let mut kv = Arena::new(gpu, "the KV cache", Slots::kv_bytes(config, capacity))?;
        let mut states = Arena::new(
            gpu,
            "the recurrent states",
            Slots::state_bytes(config, capacity),
        )?;
        let layer = |kind: &LayerKind| match kind {
            LayerKind::FullAttention => LayerState::Attention(Cache {
                keys: kv.take(slots * counts.keys),
                values: kv.take(slots * counts.keys),
            }),
            LayerKind::LinearAttention => LayerState::Delta {
                states: states.take(slots * counts.state),
                inputs: states.take(slots * counts.inputs),
            },
        };
        let layers = config.layers.iter().map(layer).collect();
        let (attention, linear) = (&config.attention, &config.linear);
        let int = |x: usize| i32::try_from(x).expect("sizes of a layer are below 2^31");
        Ok(Slots {
            taken: vec![0; slots],
            touched: vec![0; slots],
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

    /// Bytes of the recurrent states and convolution inputs of all slots.
    pub(crate) fn state_bytes(config: &ModelConfig, capacity: Capacity) -> usize {
        let counts = counts(config, capacity.positions);
        let one = Arena::bytes_for::<f32>(capacity.slots * counts.state)
            + Arena::bytes_for::<u16>(capacity.slots * counts.inputs);
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
                    gpu.fill(&of_slot(states, self.taken.len(), slot), 0)?;
                    gpu.fill(&of_slot(inputs, self.taken.len(), slot), 0)?;
                }
            }
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
        let whole = of_slot(cache, self.taken.len(), slot);
        let block = whole.part(rows.start * dim..whole.len());
        (block, (kv_heads, rows.len() * dim, positions * dim))
    }
}

/// One slot's part of what all slots have.
pub(crate) fn of_slot<T: crate::driver::Plain>(
    block: &Block<T>,
    slots: usize,
    slot: usize,
) -> Block<T> {
    let len = block.len() / slots;
    block.part(slot * len..(slot + 1) * len)
}

fn count(config: &ModelConfig, kind: LayerKind) -> usize {
    config.layers.iter().filter(|layer| **layer == kind).count()
}
