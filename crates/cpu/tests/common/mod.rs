//! What several test files share: seeded numbers and tensors, and pools for every path.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part"
)]

use descant_cpu::{Isa, Pool};
use descant_release::{Dtype, Tensor};

/// Seeded numbers (xorshift64*).
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Seeded {
        Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Between −1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn units(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.unit()).collect()
    }
}

/// The nearest bf16, ties to even, as an f32.
pub fn bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// A tensor of its own bytes.
pub struct Owned {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Owned {
    /// Values, which must be bf16, as BF16.
    pub fn bf16(shape: &[usize], values: &[f32]) -> Owned {
        let bytes = values
            .iter()
            .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
            .collect();
        Owned {
            dtype: Dtype::BF16,
            shape: shape.to_vec(),
            bytes,
        }
    }

    /// Values, which must be f16, as F16.
    pub fn f16(shape: &[usize], values: &[f32]) -> Owned {
        let bytes = values
            .iter()
            .flat_map(|x| half::f16::from_f32(*x).to_le_bytes())
            .collect();
        Owned {
            dtype: Dtype::F16,
            shape: shape.to_vec(),
            bytes,
        }
    }

    /// Values as F32.
    pub fn f32(shape: &[usize], values: &[f32]) -> Owned {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Owned {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes,
        }
    }

    pub fn tensor(&self) -> Tensor<'_> {
        Tensor {
            name: "weights",
            dtype: self.dtype,
            shape: &self.shape,
            bytes: &self.bytes,
        }
    }
}

/// A pool for each path of this machine, with `threads` threads.
pub fn pools(threads: usize) -> Vec<Pool> {
    Isa::all()
        .into_iter()
        .map(|isa| Pool::with_isa(threads, isa).unwrap())
        .collect()
}

/// Checks that two buffers hold the same bits.
pub fn assert_same_bits(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(
            found.to_bits(),
            wanted.to_bits(),
            "{what}: value {i} is {found:e}, not {wanted:e}"
        );
    }
}
