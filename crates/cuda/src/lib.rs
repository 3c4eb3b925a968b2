//! A backend and a head on CUDA.
//!
//! The driver's library is opened at run time, so the crate builds, and is linted, on machines without it; what is missing is
//! said by a [`CudaError`]. Kernels are compiled beforehand (`tools/cuda/build.sh`, `fatbin/`) and are part of the program.
//!
//! ```text
//! kernels/*.cu   what runs on the device; each opens with its shapes, its order of addition and its memory
//! driver/        devices, memory, copies, launches; `unsafe`      launch/   a typed function for each kernel; `unsafe`
//! backend/       a `Backend`: weights, slots, rounds, snapshots   head/     a `Head`, on a stream of its own
//! paging         copies of states, out to pages of device memory and back
//! bench          times of products, copies and parts of a round
//! ```
//!
//! Activations are bf16, rounded wherever the release's bf16 run rounds; sums are f32. A row's bits depend on its own stream
//! alone: no sum is split by the number of rows, no kernel adds with atomics, chunks and blocks of keys count from the
//! stream's first row, and which kernel a row takes depends on the model and on whether the row is decoded, never on what
//! else is in the round. (Matrix products choose their tile by the number of rows; all tiles give the same bits.)
#![deny(unsafe_code)]

mod backend;
mod bench;
#[allow(unsafe_code, reason = "the driver is a C library")]
mod driver;
mod error;
mod head;
#[allow(unsafe_code, reason = "launches hand untyped pointers to kernels")]
mod launch;
mod paging;
#[cfg(test)]
mod tests;

pub use backend::{CudaBackend, MemoryItem, Options, memory};
pub use bench::{Ceilings, PartTime};
pub use error::CudaError;
pub use head::{CudaHead, HeadOptions, head_memory};

/// Free memory of a device, in bytes.
///
/// # Errors
/// A [`CudaError`] if there is no such device.
pub fn free_bytes(ordinal: usize) -> Result<u64, CudaError> {
    Ok(driver::Gpu::open(ordinal)?.free_bytes()? as u64)
}

/// Whether the driver's library is there and has a device.
pub fn is_present() -> bool {
    driver::device_count().is_ok_and(|count| count > 0)
}
