//! What the model is thinking: each slot's recurrent states, convolution states and KV cache, reserved at the start.

use descant_model::Capacity;
use descant_release::{LayerKind, LoadError, ModelConfig};

use crate::arch::{Arena, Block, LANES, Plain, Pool};
use crate::ops::Precision;
use crate::ops::attention::{Cell, KEY_BLOCK};
use crate::ops::conv::CONV_CHANNELS;
use crate::ops::delta::DeltaShape;

/// The states of all slots.
#[derive(Debug)]
pub(super) struct Slots {
    /// Rows each slot has taken.
    pub(super) taken: Vec<usize>,
    pub(super) layers: Vec<LayerState>,
    pub(super) sizes: StateSizes,
}

/// The states of one layer, all slots.
#[derive(Debug)]
pub(super) enum LayerState {
    Attention(KvStore),
    Delta(DeltaState),
}

/// Keys and values in f32 or bf16.
#[derive(Debug)]
pub(super) enum KvStore {
    Bf16(Kv<u16>),
    F32(Kv<f32>),
}

/// Keys and values of one layer, all slots.
#[derive(Debug)]
pub(super) struct Kv<T> {
    /// `[slots][kv_heads][positions / 16][D][16]`
    pub(super) keys: Block<T>,
    /// `[slots][kv_heads][positions][Dp]`
    pub(super) values: Block<T>,
}

/// Recurrent and convolution states of one layer, all slots.
#[derive(Debug)]
pub(super) struct DeltaState {
    /// `[slots][value_heads][K][Vp]`
    pub(super) states: Block<f32>,
    /// `[slots][blocks][kernel − 1][CONV_CHANNELS]`
    pub(super) inputs: Block<f32>,
}

/// Numbers of one slot in one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateSizes {
    pub(super) kv_heads: usize,
    /// Keys of a head.
    pub(super) keys: usize,
    /// Values of a head.
    pub(super) values: usize,
    /// Keys of a position, and values of one.
    pub(super) dim: usize,
    pub(super) dim_padded: usize,
    pub(super) value_heads: usize,
    /// State of a value head.
    pub(super) state: usize,
    /// Convolution blocks, and the state of one; at least 1.
    pub(super) conv_blocks: usize,
    pub(super) conv_state: usize,
}

impl StateSizes {
    pub(super) fn new(config: &ModelConfig, positions: usize) -> StateSizes {
        let positions = positions.next_multiple_of(KEY_BLOCK);
        let (attention, linear) = (&config.attention, &config.linear);
        let dim_padded = attention.head_dim.next_multiple_of(LANES);
        StateSizes {
            kv_heads: attention.kv_heads,
            keys: positions * attention.head_dim,
            values: positions * dim_padded,
            dim: attention.head_dim,
            dim_padded,
            value_heads: linear.value_heads,
            state: DeltaShape {
                key: linear.key_dim,
                value: linear.value_dim,
            }
            .state(),
            conv_blocks: linear.conv_channels().div_ceil(CONV_CHANNELS),
            conv_state: (linear.conv_kernel.saturating_sub(1) * CONV_CHANNELS).max(1),
        }
    }

    /// Bytes of the KV cache of all slots.
    pub(super) fn kv_bytes(
        &self,
        config: &ModelConfig,
        precision: Precision,
        slots: usize,
    ) -> usize {
        let heads = slots * self.kv_heads;
        let one = |numbers: usize| match precision {
            Precision::Bf16 => Arena::bytes_for::<u16>(heads * numbers),
            Precision::F32 => Arena::bytes_for::<f32>(heads * numbers),
        };
        count(config, LayerKind::FullAttention) * (one(self.keys) + one(self.values))
    }

    /// Bytes of the recurrent and convolution states of all slots.
    pub(super) fn state_bytes(&self, config: &ModelConfig, slots: usize) -> usize {
        let states = Arena::bytes_for::<f32>(slots * self.value_heads * self.state);
        let inputs = Arena::bytes_for::<f32>(slots * self.conv_blocks * self.conv_state);
        count(config, LayerKind::LinearAttention) * (states + inputs)
    }
}

fn count(config: &ModelConfig, kind: LayerKind) -> usize {
    config.layers.iter().filter(|layer| **layer == kind).count()
}

impl Slots {
    /// Allocates the states of all slots and touches them.
    ///
    /// # Errors
    /// [`LoadError::Memory`] if there is no memory.
    pub(super) fn new(
        config: &ModelConfig,
        precision: Precision,
        capacity: Capacity,
        pool: &Pool,
    ) -> Result<Slots, LoadError> {
        let sizes = StateSizes::new(config, capacity.positions);
        let slots = capacity.slots;
        let mut kv = Arena::new("KV cache", sizes.kv_bytes(config, precision, slots))?;
        let mut states = Arena::new("recurrent states", sizes.state_bytes(config, slots))?;
        let layer = |kind: &LayerKind| match (kind, precision) {
            (LayerKind::FullAttention, Precision::Bf16) => {
                LayerState::Attention(KvStore::Bf16(Kv::take(&mut kv, &sizes, slots, pool)))
            }
            (LayerKind::FullAttention, Precision::F32) => {
                LayerState::Attention(KvStore::F32(Kv::take(&mut kv, &sizes, slots, pool)))
            }
            (LayerKind::LinearAttention, _) => LayerState::Delta(DeltaState {
                states: touched(&mut states, slots * sizes.value_heads * sizes.state, pool),
                inputs: touched(
                    &mut states,
                    slots * sizes.conv_blocks * sizes.conv_state,
                    pool,
                ),
            }),
        };
        let layers = config.layers.iter().map(layer).collect();
        Ok(Slots {
            taken: vec![0; slots],
            layers,
            sizes,
        })
    }

    /// Empties a slot. Its keys and values stay, and are never read before they are written anew.
    pub(super) fn reset(&mut self, slot: usize) {
        self.taken[slot] = 0;
        let sizes = self.sizes;
        for layer in &mut self.layers {
            if let LayerState::Delta(state) = layer {
                state.slot_states(&sizes, slot).fill(0.0);
                state.slot_inputs(&sizes, slot).fill(0.0);
            }
        }
    }
}

impl DeltaState {
    /// One slot's recurrent states.
    pub(super) fn slot_states(&mut self, sizes: &StateSizes, slot: usize) -> &mut [f32] {
        let len = sizes.value_heads * sizes.state;
        &mut self.states[slot * len..][..len]
    }

    /// One slot's convolution inputs.
    pub(super) fn slot_inputs(&mut self, sizes: &StateSizes, slot: usize) -> &mut [f32] {
        let len = sizes.conv_blocks * sizes.conv_state;
        &mut self.inputs[slot * len..][..len]
    }
}

impl<T: Cell + Default> Kv<T> {
    fn take(arena: &mut Arena, sizes: &StateSizes, slots: usize, pool: &Pool) -> Kv<T> {
        let heads = slots * sizes.kv_heads;
        Kv {
            keys: touched(arena, heads * sizes.keys, pool),
            values: touched(arena, heads * sizes.values, pool),
        }
    }
}

/// A block whose pages the system has given.
pub(super) fn touched<T: Plain + Default>(arena: &mut Arena, len: usize, pool: &Pool) -> Block<T> {
    let mut block = arena.take(len);
    pool.chunks(&mut block[..], 1 << 20, |_, part| part.fill(T::default()));
    block
}
