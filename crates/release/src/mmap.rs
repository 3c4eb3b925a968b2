//! A read-only map of a weight file; the one file of this crate with `unsafe`.
//!
//! Why: a release is up to 55 GB. A map lets the loader copy each tensor straight into its packed place, and lets
//! single rows of the output embedding be read later, without a second copy of the file in memory.
//!
//! What the safe side guarantees: only bytes leave this file (`&[u8]`, for which every bit pattern is a value), all
//! extents were checked against the mapped length, and nothing here writes.
//!
//! What it cannot guarantee: another process that shortens the file while it is mapped ends this one with SIGBUS. The
//! Hub cache never rewrites a file in place, and neither does [`crate::hub`].
//!
//! Tested through the reader: `tests/safetensors.rs` maps valid, damaged, sparse and unmappable files.
#![allow(unsafe_code, reason = "a file map has no safe form")]

use std::fs::File;
use std::io;
use std::ops::Deref;

use memmap2::{Mmap, UncheckedAdvice};

/// The bytes of a file, mapped read-only.
#[derive(Debug)]
pub(crate) struct FileMap(Mmap);

impl FileMap {
    /// Maps a whole file.
    ///
    /// # Errors
    /// What the system says; an empty file cannot be mapped on every system, so callers refuse it before.
    pub(crate) fn new(file: &File) -> io::Result<FileMap> {
        // SAFETY: the map is read-only and only bytes are read from it; no code of this program writes to or shortens
        // a file that it has opened as weights (see the file's opening words for other programs).
        let map = unsafe { Mmap::map(file)? };
        Ok(FileMap(map))
    }

    /// Tells the system that the mapped pages are not needed in memory now. The next read brings them back from the
    /// file, with the same content. Where the system refuses, nothing changes.
    pub(crate) fn discard(&self) {
        // SAFETY: the map is shared and read-only, so no page is dirty and dropping one loses nothing: a later read
        // maps it again from the file.
        let _ = unsafe { self.0.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
