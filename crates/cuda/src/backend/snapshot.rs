//! Copies of a slot, out to other device memory and back.

use std::ops::Range;
use std::sync::Arc;

use descant_model::{CHUNK_ROWS, Capacity};
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
        let pieces = pieces(&regions(slots, slot, &rows).concat(), &pages);
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
            let mut pieces = pieces(&[kv, states].concat(), &snapshot.pages);
            for piece in &mut pieces {
                piece.reverse();
            }
            self.copy((gpu, kernels), &pieces)?;
            slots.taken[slot] = snapshot.rows.end;
        }
        Ok(())
    }

    /// Whether a snapshot of an empty slot's first chunk comes back bit for bit, with bytes of all kinds in it. The device is asked
    /// once, when it is loaded, since answers depend on it and few kinds of devices were at hand for tests. The slot is left
    /// with rows to reset. With no room for a snapshot there is nothing to ask.
    pub(crate) fn are_exact(
        &self,
        on: (&Gpu, &RowKernels),
        slots: &mut Slots,
        slot: usize,
    ) -> Result<bool, CudaError> {
        let gpu = on.0;
        let rows = 0..CHUNK_ROWS;
        if self
            .shelf
            .take(Snapshots::bytes_of(slots, rows.len()))
            .is_none()
        {
            return Ok(true);
        }
        let all = regions(slots, slot, &rows).concat();
        let bytes = |region: usize, len: usize| -> Vec<u8> {
            // A period that divides no page.
            let byte = |index: usize| (index % 251 + 31 * region) as u8;
            (0..len).map(byte).collect()
        };
        for (index, region) in all.iter().enumerate() {
            gpu.upload(region, &bytes(index, region.len()))?;
        }
        slots.touched[slot] = rows.end;
        slots.taken[slot] = rows.end;
        let saved = self.save(on, slots, slot, 0)?;
        let saved = saved.expect("there was room for it");
        slots.taken[slot] = 0;
        for region in &all {
            gpu.fill(region, 0xFF)?;
        }
        self.load(on, slots, slot, &[&saved])?;
        for (index, region) in all.iter().enumerate() {
            let mut found = vec![0; region.len()];
            gpu.download(region, &mut found)?;
            if found != bytes(index, region.len()) {
                return Ok(false);
            }
        }
        Ok(true)
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

/// A part of a region and its place in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    region: usize,
    /// First byte in the region.
    done: usize,
    page: usize,
    /// First byte in the page.
    used: usize,
    bytes: usize,
}

/// Lays regions of these lengths one behind the other in pages, cut where a page ends.
fn cuts(lengths: impl Iterator<Item = usize>) -> Vec<Cut> {
    let (mut page, mut used) = (0, 0);
    let mut cuts = Vec::new();
    for (region, length) in lengths.enumerate() {
        assert!(length.is_multiple_of(GROUP), "whole groups of bytes");
        let mut done = 0;
        while done < length {
            if used == PAGE {
                (page, used) = (page + 1, 0);
            }
            let bytes = (length - done).min(PAGE - used);
            cuts.push(Cut {
                region,
                done,
                page,
                used,
                bytes,
            });
            (done, used) = (done + bytes, used + bytes);
        }
    }
    cuts
}

/// Parts of regions and of pages that belong together.
fn pieces(regions: &[Region], pages: &Pages) -> Vec<[Block<u8>; 2]> {
    let pages: Vec<Block<u8>> = pages.blocks().collect();
    let piece = |cut: Cut| {
        let Cut {
            region,
            done,
            page,
            used,
            bytes,
        } = cut;
        [
            regions[region].part(done..done + bytes),
            pages[page].part(used..used + bytes),
        ]
    };
    let lengths = regions.iter().map(Block::len);
    cuts(lengths).into_iter().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::device;

    #[test]
    fn regions_fill_pages_without_gaps() {
        let lengths = [48, 3 * PAGE + 4096, PAGE - 48 - 4096, 16, 2 * PAGE, 0, 32];
        let found = cuts(lengths.into_iter());
        // Every byte of every region, in order, in the next place of a page.
        let (mut region, mut done, mut place) = (0, 0, 0);
        for cut in &found {
            while done == lengths[region] {
                (region, done) = (region + 1, 0);
            }
            assert_eq!((cut.region, cut.done), (region, done));
            assert_eq!((cut.page, cut.used), (place / PAGE, place % PAGE));
            assert!(cut.bytes > 0 && cut.used + cut.bytes <= PAGE);
            assert!(cut.done + cut.bytes <= lengths[region]);
            (done, place) = (done + cut.bytes, place + cut.bytes);
        }
        assert_eq!(place, lengths.iter().sum::<usize>());
        // By hand: a region that begins in one page and goes through three more.
        let cut = |done, page, used, bytes| Cut {
            region: 1,
            done,
            page,
            used,
            bytes,
        };
        assert_eq!(
            found[1..5],
            [
                cut(0, 0, 48, PAGE - 48),
                cut(PAGE - 48, 1, 0, PAGE),
                cut(2 * PAGE - 48, 2, 0, PAGE),
                cut(3 * PAGE - 48, 3, 0, 4096 + 48),
            ]
        );
    }

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
        let there = pieces(&regions(&from), &pages);
        assert!(there.len() > lengths.len());
        copy(&there);
        let to = device.poisoned(all.len());
        let mut back = pieces(&regions(&to), &pages);
        back.iter_mut().for_each(|piece| piece.reverse());
        copy(&back);
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
