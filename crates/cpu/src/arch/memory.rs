//! Memory blocks: one large zeroed allocation, cut into parts.
//!
//! Why `unsafe`: weights of many gigabytes must lie at cache-line borders in one allocation whose failure is an error
//! rather than an abort, and the parts must outlive the arena that cut them. What the safe side guarantees: an arena
//! hands out each byte at most once, so two blocks never overlap; fresh memory is zero, which is a value of every
//! [`Plain`] type; the allocation lives as long as any block of it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use descant_release::LoadError;

/// Parts begin at cache lines.
const ALIGN: usize = 64;
/// Large allocations begin at huge pages, so that the system may use these.
const HUGE: usize = 2 << 20;

/// Numbers for which all-zero bytes are a value.
pub trait Plain: Copy + Send + Sync + 'static + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

impl Plain for f32 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl sealed::Sealed for f32 {}
impl sealed::Sealed for u16 {}
impl sealed::Sealed for u32 {}

/// One zeroed allocation.
struct Allocation {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation belongs to no thread; what is in it is reached through blocks alone, which do not overlap.
unsafe impl Send for Allocation {}
// SAFETY: as for `Send`; an `&Allocation` gives access to no byte.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `at` came from `alloc_zeroed` with this layout, and this is the last owner.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

/// A zeroed allocation from which blocks are cut, first to last.
pub struct Arena {
    allocation: Arc<Allocation>,
    /// Bytes from the allocation's begin to the first aligned place.
    offset: usize,
    used: usize,
    bytes: usize,
}

impl Arena {
    /// Allocates. The system gives the pages when they are first written.
    ///
    /// # Errors
    /// [`LoadError::Memory`], with `what`, if the system refuses.
    pub fn new(what: &str, bytes: usize) -> Result<Arena, LoadError> {
        let refused = || LoadError::Memory {
            what: what.to_owned(),
            bytes,
        };
        let align = if bytes >= HUGE { HUGE } else { ALIGN };
        // Sixteen is what the system allocator aligns to by itself; asking for more would make it write the zeros.
        let size = bytes.checked_add(align).ok_or_else(refused)?;
        let layout = Layout::from_size_align(size, 16).map_err(|_| refused())?;
        // SAFETY: the layout's size is at least `ALIGN`, so not zero.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        let offset = at.as_ptr().align_offset(align);
        Ok(Arena {
            allocation: Arc::new(Allocation { at, layout }),
            offset,
            used: 0,
            bytes,
        })
    }

    /// Bytes that a block of `len` numbers takes.
    pub fn bytes_for<T: Plain>(len: usize) -> usize {
        len.saturating_mul(size_of::<T>()).saturating_add(ALIGN - 1) / ALIGN * ALIGN
    }

    /// Cuts the next block, of `len` zeros.
    ///
    /// # Panics
    /// If the rest of the arena is smaller than [`Arena::bytes_for`] of it.
    pub fn take<T: Plain>(&mut self, len: usize) -> Block<T> {
        let bytes = Arena::bytes_for::<T>(len);
        assert!(
            bytes <= self.bytes - self.used,
            "the arena was made for fewer blocks"
        );
        // SAFETY: `offset + used + bytes` is at most the layout's size: `offset` is below the alignment that was added to
        // `self.bytes`, and `used + bytes` at most `self.bytes` by the line above.
        let at = unsafe { self.allocation.at.add(self.offset + self.used) };
        self.used += bytes;
        Block {
            at: at.cast(),
            len,
            allocation: Arc::clone(&self.allocation),
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("bytes", &self.bytes)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

/// Numbers in an arena: a boxed slice that begins at a cache line.
pub struct Block<T> {
    /// Aligned to 64; `len` values from here belong to this block alone.
    at: NonNull<T>,
    len: usize,
    #[expect(dead_code, reason = "keeps the memory alive")]
    allocation: Arc<Allocation>,
}

// SAFETY: a block owns its numbers alone, like a boxed slice of them, and `Plain` types are `Send`.
unsafe impl<T: Plain> Send for Block<T> {}
// SAFETY: an `&Block` gives shared slices alone, and `Plain` types are `Sync`.
unsafe impl<T: Plain> Sync for Block<T> {}

impl<T: Plain> Block<T> {
    /// A block in an arena of its own, of `len` zeros.
    ///
    /// # Errors
    /// As [`Arena::new`].
    pub fn zeroed(what: &str, len: usize) -> Result<Block<T>, LoadError> {
        Ok(Arena::new(what, Arena::bytes_for::<T>(len))?.take(len))
    }
}

impl<T: Plain> Deref for Block<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `at` is aligned and the `len` values from it lie in the living allocation, were zeroed, and belong to
        // this block alone (see `Arena::take`).
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; `&mut self` is the only way to them meanwhile.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> fmt::Debug for Block<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_zeroed_and_apart() {
        let mut arena = Arena::new("test", 3 * 64).unwrap();
        let (mut a, mut b) = (arena.take::<f32>(3), arena.take::<u16>(40));
        drop(arena);
        assert_eq!(
            (a.as_ptr().addr() % ALIGN, b.as_ptr().addr() % ALIGN),
            (0, 0)
        );
        assert_eq!((&a[..], &b[..]), (&[0.0; 3][..], &[0; 40][..]));
        a.fill(1.0);
        b.fill(7);
        assert_eq!((&a[..], &b[..]), (&[1.0; 3][..], &[7; 40][..]));
    }

    #[test]
    #[should_panic(expected = "fewer blocks")]
    fn an_arena_gives_no_more_than_it_has() {
        Arena::new("test", 64).unwrap().take::<u32>(17);
    }

    #[test]
    fn too_much_memory_is_an_error() {
        for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
            let error = Arena::new("the moon", bytes).unwrap_err();
            assert!(
                matches!(&error, LoadError::Memory { what, bytes: b } if what == "the moon" && *b == bytes)
            );
        }
    }
}
