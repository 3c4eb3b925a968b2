//! Regions of device memory copied out to pages of a shelf and back: what snapshots of slots and of the head's memory rows have in
//! common.

use std::sync::Arc;

use crate::driver::{Arena, Block, Gpu, PAGE, Pages, Shelf};
use crate::error::CudaError;
use crate::launch::CopyKernel;

/// A run of bytes somewhere in device memory.
pub(crate) type Region = Block<u8>;

/// Bytes that a thread moves at a time; regions begin at multiples of it and are multiples of it.
const GROUP: usize = 16;

/// Copies between regions and pages, one at a time, on one stream.
///
/// A copy has ended when its call returns. So pages that are dropped are read and written by nobody any more, and whoever takes
/// them next, on whatever stream, may write them at once.
#[derive(Debug)]
pub(crate) struct Paging {
    shelf: Arc<Shelf>,
    /// From, to, groups of 16 bytes, unused; of each piece.
    list: Block<[u64; 4]>,
    kernel: CopyKernel,
}

impl Paging {
    /// Copies to and from `shelf` of at most so many pieces each.
    pub(crate) fn new(gpu: &Gpu, shelf: Arc<Shelf>, pieces: usize) -> Result<Paging, CudaError> {
        let mut arena = Arena::new(gpu, "lists of a snapshot", Paging::list_bytes(pieces))?;
        Ok(Paging {
            shelf,
            list: arena.take(pieces),
            kernel: CopyKernel::load(gpu)?,
        })
    }

    /// Bytes of the list of so many pieces.
    pub(crate) fn list_bytes(pieces: usize) -> usize {
        Arena::bytes_for::<[u64; 4]>(pieces)
    }

    /// Pieces at most of so many regions that have so many bytes together: each is cut where a page ends.
    pub(crate) fn pieces_max(regions: usize, bytes: usize) -> usize {
        bytes.div_ceil(PAGE) + regions
    }

    /// Bytes of the pages for regions of so many bytes together.
    pub(crate) fn bytes_of(bytes: usize) -> usize {
        bytes.next_multiple_of(PAGE)
    }

    /// Whether there are pages for so many bytes now.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.shelf.take(bytes).is_some()
    }

    /// Where its pages are.
    pub(crate) fn shelf(&self) -> Arc<Shelf> {
        Arc::clone(&self.shelf)
    }

    /// Copies regions to pages, one behind the other; `None` if there is no room.
    pub(crate) fn save(&self, gpu: &Gpu, regions: &[Region]) -> Result<Option<Pages>, CudaError> {
        let bytes = regions.iter().map(Block::len).sum();
        let Some(pages) = self.shelf.take(bytes) else {
            return Ok(None);
        };
        self.copy(gpu, &pieces(regions, &pages))?;
        Ok(Some(pages))
    }

    /// Copies regions back that lie one behind the other at the beginning of pages.
    pub(crate) fn load(
        &self,
        gpu: &Gpu,
        regions: &[Region],
        pages: &Pages,
    ) -> Result<(), CudaError> {
        let mut pieces = pieces(regions, pages);
        for piece in &mut pieces {
            piece.reverse();
        }
        self.copy(gpu, &pieces)
    }

    fn copy(&self, gpu: &Gpu, pieces: &[[Region; 2]]) -> Result<(), CudaError> {
        let list: Vec<[u64; 4]> = pieces.iter().map(entry).collect();
        if list.is_empty() {
            return Ok(());
        }
        let block = self.list.part(0..list.len());
        gpu.upload(&block, &list)?;
        self.kernel.run(gpu, pieces, &block)?;
        gpu.wait()
    }
}

/// A piece as the kernel's list has it.
fn entry([from, to]: &[Region; 2]) -> [u64; 4] {
    [from.address(), to.address(), (from.len() / GROUP) as u64, 0]
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
fn pieces(regions: &[Region], pages: &Pages) -> Vec<[Region; 2]> {
    let pages: Vec<Region> = pages.blocks().collect();
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
        let kernel = CopyKernel::load(&device.gpu).unwrap();
        kernel.run(&device.gpu, &back, &block).unwrap();
        assert_eq!(device.read(&again), all);
    }
}
