//! Device memory for copies that come and go: one allocation in pages of equal size, so that whatever comes back fits whatever
//! comes next.
//!
//! Pages are taken and given back by any thread. Whoever has pages waits for what reads and writes them before giving them back,
//! so the next may use them at once, on any stream.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Arena, Block, Gpu};
use crate::error::CudaError;

/// Bytes of a page: small against a snapshot of a published model (50 MB and more), large enough for one block of threads to be
/// busy with.
pub(crate) const PAGE: usize = 256 << 10;

/// The memory.
pub(crate) struct Shelf {
    memory: Block<u8>,
    /// Numbers of the pages that nobody has.
    free: Mutex<Vec<usize>>,
}

/// Pages that are somebody's. Dropping them gives them back.
pub(crate) struct Pages {
    shelf: Arc<Shelf>,
    numbers: Vec<usize>,
}

impl Shelf {
    /// Reserves as many whole pages as `bytes` hold.
    ///
    /// # Errors
    /// [`CudaError::Memory`].
    pub(crate) fn new(gpu: &Gpu, what: &'static str, bytes: usize) -> Result<Shelf, CudaError> {
        let pages = bytes / PAGE;
        let mut arena = Arena::new(gpu, what, Shelf::bytes(bytes))?;
        Ok(Shelf {
            memory: arena.take(pages * PAGE),
            // The last is taken first.
            free: Mutex::new((0..pages).rev().collect()),
        })
    }

    /// Bytes that are reserved where `bytes` are asked for.
    pub(crate) fn bytes(bytes: usize) -> usize {
        Arena::bytes_for::<u8>(bytes / PAGE * PAGE)
    }

    /// Takes pages for `bytes`; `None` if there are not so many.
    pub(crate) fn take(self: &Arc<Shelf>, bytes: usize) -> Option<Pages> {
        let count = bytes.div_ceil(PAGE);
        let mut free = self.free();
        let kept = free.len().checked_sub(count)?;
        Some(Pages {
            shelf: Arc::clone(self),
            numbers: free.split_off(kept),
        })
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    /// The pages' memory, in order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block<u8>> {
        let block = |number: &usize| self.shelf.memory.part(number * PAGE..(number + 1) * PAGE);
        self.numbers.iter().map(block)
    }

    /// Bytes that they hold.
    pub(crate) fn bytes(&self) -> usize {
        self.numbers.len() * PAGE
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.shelf.free().append(&mut self.numbers);
    }
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf")
            .field("free", &self.free().len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
