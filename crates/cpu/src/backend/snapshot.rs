//! Copies of a slot, out and in.

use std::ops::Range;

use super::slots::{Kv, KvStore, LayerState, Slots, StateSizes};
use crate::arch::LANES;
use crate::ops::attention::Cell;

/// A slot's states after `rows.end`, and its KV rows of `rows`.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) rows: Range<usize>,
    layers: Vec<LayerCopy>,
}

#[derive(Debug)]
enum LayerCopy {
    Bf16(KvCopy<u16>),
    Delta { states: Vec<f32>, inputs: Vec<f32> },
    F32(KvCopy<f32>),
}

/// KV rows, head after head, as the cache has them.
#[derive(Debug)]
struct KvCopy<T> {
    keys: Vec<T>,
    values: Vec<T>,
}

impl Snapshot {
    /// Copies out of a slot; `from` and the slot's length are multiples of sixteen.
    pub(super) fn save(slots: &mut Slots, slot: usize, from: usize) -> Snapshot {
        let (rows, sizes) = (from..slots.taken[slot], slots.sizes);
        let copy = |layer: &mut LayerState| match layer {
            LayerState::Attention(KvStore::Bf16(kv)) => {
                LayerCopy::Bf16(KvCopy::save(kv, &sizes, slot, &rows))
            }
            LayerState::Attention(KvStore::F32(kv)) => {
                LayerCopy::F32(KvCopy::save(kv, &sizes, slot, &rows))
            }
            LayerState::Delta(state) => LayerCopy::Delta {
                states: state.slot_states(&sizes, slot).to_vec(),
                inputs: state.slot_inputs(&sizes, slot).to_vec(),
            },
        };
        let layers = slots.layers.iter_mut().map(copy).collect();
        Snapshot { rows, layers }
    }

    /// Copies into a slot: the KV rows, and the states too, which those of a later snapshot replace.
    pub(super) fn load(&self, slots: &mut Slots, slot: usize) {
        let sizes = slots.sizes;
        for (copy, layer) in self.layers.iter().zip(&mut slots.layers) {
            match (copy, layer) {
                (LayerCopy::Bf16(copy), LayerState::Attention(KvStore::Bf16(kv))) => {
                    copy.load(kv, &sizes, slot, &self.rows);
                }
                (LayerCopy::F32(copy), LayerState::Attention(KvStore::F32(kv))) => {
                    copy.load(kv, &sizes, slot, &self.rows);
                }
                (LayerCopy::Delta { states, inputs }, LayerState::Delta(state)) => {
                    state.slot_states(&sizes, slot).copy_from_slice(states);
                    state.slot_inputs(&sizes, slot).copy_from_slice(inputs);
                }
                _ => panic!("the snapshot is of another backend"),
            }
        }
        slots.taken[slot] = self.rows.end;
    }

    /// Bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        let layer = |copy: &LayerCopy| match copy {
            LayerCopy::Bf16(copy) => 2 * (copy.keys.len() + copy.values.len()),
            LayerCopy::Delta { states, inputs } => 4 * (states.len() + inputs.len()),
            LayerCopy::F32(copy) => 4 * (copy.keys.len() + copy.values.len()),
        };
        self.layers.iter().map(layer).sum()
    }
}

impl<T: Cell> KvCopy<T> {
    fn save(kv: &Kv<T>, sizes: &StateSizes, slot: usize, rows: &Range<usize>) -> KvCopy<T> {
        let mut copy = KvCopy {
            keys: Vec::new(),
            values: Vec::new(),
        };
        for (keys, values) in places(sizes, slot, rows) {
            copy.keys.extend_from_slice(&kv.keys[keys]);
            copy.values.extend_from_slice(&kv.values[values]);
        }
        copy
    }

    fn load(&self, kv: &mut Kv<T>, sizes: &StateSizes, slot: usize, rows: &Range<usize>) {
        let (mut keys_from, mut values_from) = (&self.keys[..], &self.values[..]);
        for (keys, values) in places(sizes, slot, rows) {
            let (now, later) = keys_from.split_at(keys.len());
            kv.keys[keys].copy_from_slice(now);
            keys_from = later;
            let (now, later) = values_from.split_at(values.len());
            kv.values[values].copy_from_slice(now);
            values_from = later;
        }
    }
}

/// Where each head's keys and values of some rows stand. Panels of sixteen keys are whole.
fn places(
    sizes: &StateSizes,
    slot: usize,
    rows: &Range<usize>,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    assert!(
        rows.start.is_multiple_of(LANES) && rows.end.is_multiple_of(LANES),
        "a panel of keys is cut"
    );
    let (sizes, rows) = (*sizes, rows.clone());
    (slot * sizes.kv_heads..(slot + 1) * sizes.kv_heads).map(move |head| {
        let (keys, values) = (head * sizes.keys, head * sizes.values);
        (
            keys + rows.start * sizes.dim..keys + rows.end * sizes.dim,
            values + rows.start * sizes.dim_padded..values + rows.end * sizes.dim_padded,
        )
    })
}
