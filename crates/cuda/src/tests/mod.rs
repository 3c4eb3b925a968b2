//! The kernels against plain f64, and the backend against the reference's rows and itself; on a device.
//!
//! Without a device each says so in one line and passes: what needs none is tested where it stands.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(
    clippy::too_many_lines,
    reason = "a part of a round is set up in one place, as the backend does"
)]

mod attention;
mod delta;
mod head;
mod model;
mod products;
mod rows;
mod sampling;
mod staging;

use crate::driver::{Arena, Block, Gpu, Plain};
use crate::launch::Kernels;

/// A device with its kernels.
pub(crate) struct Device {
    pub(crate) gpu: Gpu,
    pub(crate) kernels: Kernels,
}

/// Device 0, or one line that says why there is none.
pub(crate) fn device(portable: bool) -> Option<Device> {
    let open = || {
        let gpu = Gpu::open(0)?;
        let kernels = Kernels::load(&gpu, portable)?;
        Ok::<_, crate::CudaError>(Device { gpu, kernels })
    };
    match open() {
        Ok(device) => Some(device),
        Err(error) => {
            println!("skipped: {error}");
            assert!(
                std::env::var_os("DESCANT_NEED_CUDA").is_none(),
                "DESCANT_NEED_CUDA is set, but {error}"
            );
            None
        }
    }
}

impl Device {
    /// A block with values.
    pub(crate) fn with<T: Plain>(&self, values: &[T]) -> Block<T> {
        let block = Arena::new(&self.gpu, "a test", Arena::bytes_for::<T>(values.len()))
            .unwrap()
            .take(values.len());
        self.gpu.upload(&block, values).unwrap();
        block
    }

    /// A block whose every byte is set: NaN as bf16 or f32.
    pub(crate) fn poisoned<T: Plain>(&self, len: usize) -> Block<T> {
        let block = Arena::new(&self.gpu, "a test", Arena::bytes_for::<T>(len))
            .unwrap()
            .take(len);
        self.gpu.fill(&block, 0xFF).unwrap();
        block
    }

    pub(crate) fn read<T: Plain>(&self, block: &Block<T>) -> Vec<T> {
        let mut out = vec![T::default(); block.len()];
        self.gpu.download(block, &mut out).unwrap();
        out
    }

    pub(crate) fn read_bf16(&self, block: &Block<u16>) -> Vec<f32> {
        self.read(block).into_iter().map(widen).collect()
    }
}

/// Seeded numbers between −1 and 1 (xorshift64*), as bf16 has them.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn unit(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        (bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn bf16(&mut self, len: usize, scale: f32) -> Vec<u16> {
        (0..len).map(|_| narrow(self.unit() * scale)).collect()
    }

    pub(crate) fn f32(&mut self, len: usize, scale: f32, base: f32) -> Vec<f32> {
        (0..len).map(|_| base + self.unit() * scale).collect()
    }
}

pub(crate) fn narrow(x: f32) -> u16 {
    half::bf16::from_f32(x).to_bits()
}

pub(crate) fn widen(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub(crate) fn wide(bits: &[u16]) -> Vec<f64> {
    bits.iter().map(|bits| f64::from(widen(*bits))).collect()
}

/// `‖found − wanted‖ / ‖wanted‖` and the largest difference; printed, and compared with a limit. NaN never passes.
#[track_caller]
pub(crate) fn close(what: &str, found: &[f32], wanted: &[f64], limit: f64) {
    assert_eq!(
        found.len(),
        wanted.len(),
        "{what}: another number of values"
    );
    let (mut difference, mut size, mut worst, mut at) = (0.0, 0.0, 0.0_f64, 0);
    for (index, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let d = (f64::from(*found) - wanted).abs();
        if d.is_nan() || d > worst {
            (worst, at) = (d, index);
        }
        difference += d * d;
        size += wanted * wanted;
    }
    let relative = (difference / size).sqrt();
    println!(
        "{what}: relative {relative:.2e} (limit {limit:.0e}), largest {worst:.2e} at {at}: {:.5} for {:.5}",
        found[at], wanted[at]
    );
    assert!(
        relative <= limit,
        "{what}: relative {relative:.3e} > {limit:.1e}"
    );
}

/// Rounding to bf16 alone is 2^-9 at most, 1.7e-3 of the root of the mean square.
pub(crate) const ROUNDED: f64 = 2.5e-3;
