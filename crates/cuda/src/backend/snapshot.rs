//! Copies of a slot, out to other device memory and back.

use std::ops::Range;
use std::sync::Arc;

use descant_model::Capacity;
use descant_release::ModelConfig;

use super::slots::{LayerState, Slots, of_slot};
use crate::driver::{Arena, Block, Gpu, PAGE, Pages, Shelf};
use crate::error::CudaError;
use crate::launch::RowKernels;

/// Where snapshots are kept, and the list of what is copied.
#[derive(Debug)]
pub(crate) struct Snapshots {
    shelf: Arc<Shelf>,
    /// From, to, groups of 16 bytes, unused; of each piece.
    pieces: Block<[u64; 4]>,
}

/// A slot's states after `rows.end`, and its KV rows of `rows`: regions one behind the other in pages, KV rows first.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rows: Range<usize>,
    pages: Pages,
}

/// A run of bytes in a slot.
type Region = Block<u8>;

/// Bytes that a thread moves at a time; regions are multiples of it.
const GROUP: usize = 16;

impl Snapshots {
    /// Reserves room for `bytes` of snapshots.
    pub(crate) fn new(
        gpu: &Gpu,
        config: &ModelConfig,
        capacity: Capacity,
        bytes: usize,
    ) -> Result<Snapshots, CudaError> {
        let mut arena = Arena::new(
            gpu,
            "lists of a snapshot",
            Arena::bytes_for::<[u64; 4]>(Snapshots::pieces_max(config, capacity)),
        )?;
        Ok(Snapshots {
            shelf: Arc::new(Shelf::new(gpu, "snapshots", bytes)?),
            pieces: arena.take(Snapshots::pieces_max(config, capacity)),
        })
    }

    /// Bytes that are reserved for `bytes` of snapshots.
    pub(crate) fn bytes(config: &ModelConfig, capacity: Capacity, bytes: usize) -> usize {
        Shelf::bytes(bytes) + Arena::bytes_for::<[u64; 4]>(Snapshots::pieces_max(config, capacity))
    }

    /// Pieces of a snapshot of a full slot: its regions, each cut at pages.
    fn pieces_max(config: &ModelConfig, capacity: Capacity) -> usize {
        let one = Capacity {
            slots: 1,
            ..capacity
        };
        let bytes = Slots::kv_bytes(config, one) + Slots::state_bytes(config, one);
        let regions = config.layers.len() * 2 * config.attention.kv_heads.max(1);
        bytes.div_ceil(PAGE) + regions
    }

    /// Bytes of the pages that a snapshot of so many rows takes.
    pub(crate) fn bytes_of(slots: &Slots, rows: usize) -> usize {
        let bytes: usize = slots
            .layers
            .iter()
            .map(|layer| layer_bytes(slots, layer, rows))
            .sum();
        bytes.next_multiple_of(PAGE)
    }

    /// Copies out of a slot; `None` if there is no room.
    pub(crate) fn save(
        &self,
        (gpu, kernels): (&Gpu, &RowKernels),
        slots: &Slots,
        slot: usize,
        from: usize,
    ) -> Result<Option<Snapshot>, CudaError> {
        let rows = from..slots.taken[slot];
        let Some(pages) = self.shelf.take(Snapshots::bytes_of(slots, rows.len())) else {
            return Ok(None);
        };
        let [kv, states] = regions(slots, slot, &rows);
        let pieces = pieces(kv.iter().chain(&states), &pages, |region, page| {
            [region, page]
        });
        self.copy((gpu, kernels), &pieces)?;
        Ok(Some(Snapshot { rows, pages }))
    }

    /// Copies a chain of snapshots, one behind the other from position 0 on, into a slot: KV rows of all, states of the last.
    pub(crate) fn load(
        &self,
        (gpu, kernels): (&Gpu, &RowKernels),
        slots: &mut Slots,
        slot: usize,
        chain: &[&Snapshot],
    ) -> Result<(), CudaError> {
        for (index, snapshot) in chain.iter().enumerate() {
            slots.touched[slot] = slots.touched[slot].max(snapshot.rows.end);
            let [kv, mut states] = regions(slots, slot, &snapshot.rows);
            if index + 1 < chain.len() {
                states.clear();
            }
            let pages = &snapshot.pages;
            let pieces = pieces(kv.iter().chain(&states), pages, |region, page| {
                [page, region]
            });
            self.copy((gpu, kernels), &pieces)?;
            slots.taken[slot] = snapshot.rows.end;
        }
        Ok(())
    }

    fn copy(
        &self,
        (gpu, kernels): (&Gpu, &RowKernels),
        pieces: &[[Block<u8>; 2]],
    ) -> Result<(), CudaError> {
        let list: Vec<[u64; 4]> = pieces.iter().map(entry).collect();
        if list.is_empty() {
            return Ok(());
        }
        let block = self.pieces.part(0..list.len());
        gpu.upload(&block, &list)?;
        kernels.copy_pieces(gpu, pieces, &block)
    }
}

impl Snapshot {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.bytes()
    }
}

/// A piece as the kernel's list has it.
fn entry([from, to]: &[Block<u8>; 2]) -> [u64; 4] {
    [from.address(), to.address(), (from.len() / GROUP) as u64, 0]
}

/// A slot's KV rows, layer by layer and head by head, and its states, layer by layer.
fn regions(slots: &Slots, slot: usize, rows: &Range<usize>) -> [Vec<Region>; 2] {
    let (mut kv, mut states_and_inputs) = (Vec::new(), Vec::new());
    let of = slots.taken.len();
    for layer in &slots.layers {
        match layer {
            LayerState::Attention(cache) => {
                for cache in [&cache.keys, &cache.values] {
                    let (block, (heads, width, pitch)) = slots.lines(cache, slot, rows.clone());
                    let line =
                        |head: usize| block.part(head * pitch..head * pitch + width).as_bytes();
                    kv.extend((0..heads).map(line));
                }
            }
            LayerState::Delta { states, inputs } => {
                states_and_inputs.push(of_slot(states, of, slot).as_bytes());
                states_and_inputs.push(of_slot(inputs, of, slot).as_bytes());
            }
        }
    }
    kv.retain(|region| region.len() > 0);
    [kv, states_and_inputs]
}

fn layer_bytes(slots: &Slots, layer: &LayerState, rows: usize) -> usize {
    match layer {
        LayerState::Attention(cache) => {
            let (_, (heads, width, _)) = slots.lines(&cache.keys, 0, 0..rows);
            2 * heads * width * size_of::<u16>()
        }
        LayerState::Delta { states, inputs } => {
            let of = slots.taken.len();
            of_slot(states, of, 0).bytes() + of_slot(inputs, of, 0).bytes()
        }
    }
}

/// Regions one behind the other in pages, cut where a page ends; each piece as `pair` has it from a part of a region and its
/// place in a page.
fn pieces<'a>(
    regions: impl Iterator<Item = &'a Region>,
    pages: &Pages,
    pair: impl Fn(Block<u8>, Block<u8>) -> [Block<u8>; 2],
) -> Vec<[Block<u8>; 2]> {
    let mut pages = pages.blocks();
    let mut page = pages.next();
    let mut used = 0;
    let mut pieces = Vec::new();
    for region in regions {
        assert!(region.len().is_multiple_of(GROUP), "whole groups of bytes");
        let mut done = 0;
        while done < region.len() {
            if used == PAGE {
                (page, used) = (pages.next(), 0);
            }
            let there = page.as_ref().expect("pages were taken for all regions");
            let bytes = (region.len() - done).min(PAGE - used);
            pieces.push(pair(
                region.part(done..done + bytes),
                there.part(used..used + bytes),
            ));
            (done, used) = (done + bytes, used + bytes);
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::device;

    #[test]
    fn regions_longer_than_pages_come_back_whole() {
        let Some(device) = device(false) else { return };
        let lengths = [48, 3 * PAGE + 4096, PAGE - 48 - 4096, 16, 2 * PAGE];
        let all: Vec<u8> = (0..lengths.iter().sum::<usize>())
            .map(|i| (i * 7 + i / 251) as u8)
            .collect();
        let shelf = Arc::new(Shelf::new(&device.gpu, "a test", 9 * PAGE).unwrap());
        // So that the pages are not one behind the other.
        let [first, second, third] = [(); 3].map(|()| shelf.take(PAGE).unwrap());
        drop(second);
        drop((first, third));
        let pages = shelf.take(all.len()).unwrap();
        let from = device.with(&all);
        let regions = |block: &Block<u8>| {
            let mut at = 0;
            lengths.map(|len| {
                at += len;
                block.part(at - len..at)
            })
        };
        let copy = |pieces: &[[Block<u8>; 2]]| {
            for [from, to] in pieces {
                device.gpu.copy(from, to).unwrap();
            }
        };
        let there = pieces(regions(&from).iter(), &pages, |region, page| [region, page]);
        assert!(there.len() > lengths.len());
        copy(&there);
        let to = device.poisoned(all.len());
        copy(&pieces(regions(&to).iter(), &pages, |region, page| {
            [page, region]
        }));
        assert_eq!(device.read(&to), all);
        assert!(shelf.take(3 * PAGE).is_none());
        drop(pages);
        assert!(shelf.take(9 * PAGE).is_some());

        // The same by the kernel, from a list.
        let again = device.poisoned(all.len());
        let back: Vec<[Block<u8>; 2]> = regions(&from)
            .into_iter()
            .zip(regions(&again))
            .map(|(from, to)| [from, to])
            .collect();
        let entries: Vec<[u64; 4]> = back.iter().map(entry).collect();
        let block = device.with(&entries);
        let kernels = &device.kernels.rows;
        kernels.copy_pieces(&device.gpu, &back, &block).unwrap();
        assert_eq!(device.read(&again), all);
    }
}
