//! Weights on their way to the device: read from the file's pages into pinned memory by several threads, and copied from
//! there while the next piece is read.
//!
//! A copy from pageable memory would go through the driver's own staging, on one thread that also waits for the disk.
//!
//! `unsafe` is needed because a copy from pinned memory goes on after its call has returned. What the safe side guarantees: a
//! [`Buffer`] is written only after the copy that read it last has ended, which its mark tells; it is freed only after the
//! stream has ended.

use std::thread;

use cudarc::driver::{result, sys};

use super::{Block, Gpu, Mark, Pinned, empty_copy, failed};
use crate::error::CudaError;

/// Bytes of a piece.
const PIECE: usize = 32 << 20;
/// Threads that read a piece: more than a disk needs, since each waits for its own pages.
const READERS: usize = 8;
/// Fewer bytes are read by one thread.
const SHARE_MIN: usize = 256 << 10;

/// Two pinned buffers, used in turns.
pub(crate) struct Staging<'a> {
    gpu: &'a Gpu,
    buffers: [Buffer; 2],
    next: usize,
}

/// Pinned memory for a piece.
struct Buffer {
    bytes: Pinned<u8>,
    /// Reached once the device has read what was written last.
    read: Option<Mark>,
}

impl Buffer {
    fn new(gpu: &Gpu) -> Result<Buffer, CudaError> {
        Ok(Buffer {
            bytes: Pinned::new(gpu, PIECE)?,
            read: None,
        })
    }
}

impl<'a> Staging<'a> {
    /// Reserves the buffers.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(gpu: &'a Gpu) -> Result<Staging<'a>, CudaError> {
        Ok(Staging {
            gpu,
            buffers: [Buffer::new(gpu)?, Buffer::new(gpu)?],
            next: 0,
        })
    }

    /// Copies the bytes of bf16 values to the device, without gaps. They are read before the call returns.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn upload(&mut self, to: &Block<u16>, from: &[u8]) -> Result<(), CudaError> {
        assert_eq!(to.bytes(), from.len(), "a copy of equal lengths");
        let mut address = to.address();
        for piece in from.chunks(PIECE) {
            let gpu = self.gpu;
            let (bytes, read) = self.filled(piece)?;
            // SAFETY: the pieces lie one behind the other in `to`, which the assert says is as long as all of them; the mark
            // below guards the buffer until the copy has ended.
            unsafe { result::memcpy_htod_async(address, bytes, gpu.stream) }
                .map_err(|error| failed("a copy to the device", error))?;
            *read = Some(gpu.mark()?);
            address += piece.len() as u64;
        }
        Ok(())
    }

    /// Copies bytes to the device in lines of `width` bytes, `pitch` bytes apart there and without gaps here. They are read
    /// before the call returns.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// If a line would lie outside the block or is longer than a piece.
    pub(crate) fn upload_lines(
        &mut self,
        to: &Block<u16>,
        from: &[u8],
        width: usize,
        pitch: usize,
    ) -> Result<(), CudaError> {
        assert!(
            (1..=PIECE).contains(&width) && from.len().is_multiple_of(width) && width <= pitch,
            "whole lines that do not overlap"
        );
        let lines = from.len() / width;
        assert!(
            lines == 0 || (lines - 1) * pitch + width <= to.bytes(),
            "lines past the block's end"
        );
        let mut address = to.address();
        for piece in from.chunks(PIECE / width * width) {
            let gpu = self.gpu;
            let (bytes, read) = self.filled(piece)?;
            let lines = piece.len() / width;
            let copy = sys::CUDA_MEMCPY2D {
                srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
                srcHost: bytes.as_ptr().cast(),
                srcPitch: width,
                dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
                dstDevice: address,
                dstPitch: pitch,
                WidthInBytes: width,
                Height: lines,
                ..empty_copy()
            };
            // SAFETY: the asserts put every line inside `to`, and the lines of a piece are the buffer's bytes; the mark below
            // guards the buffer until the copy has ended.
            unsafe { gpu.copy_lines(&copy) }?;
            *read = Some(gpu.mark()?);
            address += (lines * pitch) as u64;
        }
        Ok(())
    }

    /// The next buffer with a piece written to it, and the place for the mark of its copy.
    fn filled(&mut self, piece: &[u8]) -> Result<(&[u8], &mut Option<Mark>), CudaError> {
        let Buffer { bytes, read } = &mut self.buffers[self.next];
        self.next = 1 - self.next;
        if let Some(read) = read.take() {
            read.wait()?;
        }
        let to = bytes.values(piece.len());
        let share = piece.len().div_ceil(READERS).max(SHARE_MIN);
        thread::scope(|scope| {
            let mut pairs = to.chunks_mut(share).zip(piece.chunks(share));
            let last = pairs.next_back();
            for (to, from) in pairs {
                scope.spawn(|| to.copy_from_slice(from));
            }
            if let Some((to, from)) = last {
                to.copy_from_slice(from);
            }
        });
        Ok((to, read))
    }
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        // So that no copy reads the buffers any more; one that failed has ended as well.
        let _ = self.gpu.wait();
    }
}
