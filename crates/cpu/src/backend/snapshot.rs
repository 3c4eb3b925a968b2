//! Copies of a slot, out and in.

use std::ops::Range;

use super::slots::{Kv, KvStore, LayerState, Slots, StateSizes};
use crate::arch::{LANES, Pool};
use crate::ops::attention::Cell;

/// Values that one task copies.
const COPIED_AT_ONCE: usize = 1 << 16;

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
    /// Copies out of a slot; `from` and the slot's length are multiples of sixteen. All threads take part: a long prompt's
    /// rows are many megabytes, whose pages the system has to give first, and the next round waits for them.
    pub(super) fn save(pool: &Pool, slots: &mut Slots, slot: usize, from: usize) -> Snapshot {
        let (rows, sizes) = (from..slots.taken[slot], slots.sizes);
        let save = |layer: &mut LayerState| match layer {
            LayerState::Attention(KvStore::Bf16(kv)) => {
                LayerCopy::Bf16(KvCopy::save(pool, kv, &sizes, slot, &rows))
            }
            LayerState::Attention(KvStore::F32(kv)) => {
                LayerCopy::F32(KvCopy::save(pool, kv, &sizes, slot, &rows))
            }
            LayerState::Delta(state) => LayerCopy::Delta {
                states: copied(pool, state.slot_states(&sizes, slot)),
                inputs: copied(pool, state.slot_inputs(&sizes, slot)),
            },
        };
        let layers = slots.layers.iter_mut().map(save).collect();
        Snapshot { rows, layers }
    }

    /// Copies into a slot: the KV rows, and the states too, which those of a later snapshot replace.
    pub(super) fn load(&self, pool: &Pool, slots: &mut Slots, slot: usize) {
        let sizes = slots.sizes;
        for (saved, layer) in self.layers.iter().zip(&mut slots.layers) {
            match (saved, layer) {
                (LayerCopy::Bf16(saved), LayerState::Attention(KvStore::Bf16(kv))) => {
                    saved.load(pool, kv, &sizes, slot, &self.rows);
                }
                (LayerCopy::F32(saved), LayerState::Attention(KvStore::F32(kv))) => {
                    saved.load(pool, kv, &sizes, slot, &self.rows);
                }
                (LayerCopy::Delta { states, inputs }, LayerState::Delta(state)) => {
                    copy(pool, states, state.slot_states(&sizes, slot));
                    copy(pool, inputs, state.slot_inputs(&sizes, slot));
                }
                _ => panic!("the snapshot is of another backend"),
            }
        }
        slots.taken[slot] = self.rows.end;
    }

    /// Bytes that a snapshot of so many rows takes.
    pub(super) fn bytes_of(slots: &Slots, rows: usize) -> usize {
        let sizes = &slots.sizes;
        let kv = sizes.kv_heads * rows * (sizes.dim + sizes.dim_padded);
        let states = sizes.value_heads * sizes.state + sizes.conv_blocks * sizes.conv_state;
        let layer = |layer: &LayerState| match layer {
            LayerState::Attention(KvStore::Bf16(_)) => size_of::<u16>() * kv,
            LayerState::Attention(KvStore::F32(_)) => size_of::<f32>() * kv,
            LayerState::Delta(_) => size_of::<f32>() * states,
        };
        slots.layers.iter().map(layer).sum()
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

impl<T: Cell + Default> KvCopy<T> {
    fn save(
        pool: &Pool,
        kv: &Kv<T>,
        sizes: &StateSizes,
        slot: usize,
        rows: &Range<usize>,
    ) -> KvCopy<T> {
        let heads = sizes.kv_heads * rows.len();
        let mut all = KvCopy {
            keys: vec![T::default(); heads * sizes.dim],
            values: vec![T::default(); heads * sizes.dim_padded],
        };
        let (mut keys_to, mut values_to) = (&mut all.keys[..], &mut all.values[..]);
        for (keys, values) in places(sizes, slot, rows) {
            let (now, later) = keys_to.split_at_mut(keys.len());
            copy(pool, &kv.keys[keys], now);
            keys_to = later;
            let (now, later) = values_to.split_at_mut(values.len());
            copy(pool, &kv.values[values], now);
            values_to = later;
        }
        all
    }

    fn load(
        &self,
        pool: &Pool,
        kv: &mut Kv<T>,
        sizes: &StateSizes,
        slot: usize,
        rows: &Range<usize>,
    ) {
        let (mut keys_from, mut values_from) = (&self.keys[..], &self.values[..]);
        for (keys, values) in places(sizes, slot, rows) {
            let (now, later) = keys_from.split_at(keys.len());
            copy(pool, now, &mut kv.keys[keys]);
            keys_from = later;
            let (now, later) = values_from.split_at(values.len());
            copy(pool, now, &mut kv.values[values]);
            values_from = later;
        }
    }
}

/// A copy of values.
fn copied<T: Cell + Default>(pool: &Pool, from: &[T]) -> Vec<T> {
    let mut to = vec![T::default(); from.len()];
    copy(pool, from, &mut to);
    to
}

/// Copies values; the lengths are equal.
fn copy<T: Cell>(pool: &Pool, from: &[T], to: &mut [T]) {
    assert_eq!(from.len(), to.len(), "a copy of equal lengths");
    pool.chunks(to, COPIED_AT_ONCE, |index, to| {
        to.copy_from_slice(&from[index * COPIED_AT_ONCE..][..to.len()]);
    });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_several_tasks_is_whole() {
        let pool = Pool::new(3).unwrap();
        for len in [
            0,
            1,
            COPIED_AT_ONCE,
            COPIED_AT_ONCE + 1,
            3 * COPIED_AT_ONCE - 1,
        ] {
            // A period that no task's share is a multiple of.
            let from: Vec<u16> = (0..len).map(|i| (i % 65_521) as u16).collect();
            assert_eq!(copied(&pool, &from), from, "{len}");
        }
    }
}
