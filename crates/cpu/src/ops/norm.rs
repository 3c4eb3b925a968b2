//! Normalisation of rows: `y = x / sqrt(mean(x²) + eps) · w`, and the delta net's form with a gate.
//!
//! Shapes: `x`, `y` `[rows, width]` f32; `w` `[width]` f32, the block norms' already as `1 + w`. Computes in f32; in bf16
//! the outputs are rounded (of the gated form also the normalised row and its product with `w`).
//! Sum order: sixteen lane sums along the row, then the lanes pairwise; the same for any number of rows or threads.
//! Source: Zhang and Sennrich 2019; the reference's `RMSNorm` and `RMSNormGated`, which gates after the norm.
//! Cost: two passes over a row in the first-level cache; bound by memory.

use super::lanes::{map2, round_if, square_sum, update};
use super::math::silu;
use super::{Precision, lanes::round_one};
use crate::arch::{Pool, kernel};

/// Rows of a task.
const TASK_ROWS: usize = 4;

/// A root-mean-square norm.
#[derive(Debug)]
pub(crate) struct RmsNorm {
    /// `[width]`, what a normalised row is multiplied by.
    pub(crate) weight: Vec<f32>,
    pub(crate) eps: f32,
}

impl RmsNorm {
    /// Normalises rows into `out`; both are `[rows, width]`.
    pub(crate) fn rows(&self, pool: &Pool, precision: Precision, x: &[f32], out: &mut [f32]) {
        let width = self.weight.len();
        pool.chunks(out, TASK_ROWS * width, |task, out| {
            let x = &x[task * TASK_ROWS * width..][..out.len()];
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                self.row(pool, precision, x, out);
            }
        });
    }

    /// Normalises one row.
    pub(crate) fn row(&self, pool: &Pool, precision: Precision, x: &[f32], out: &mut [f32]) {
        rms_row(
            pool.isa(),
            x,
            &self.weight,
            self.eps,
            precision.is_bf16(),
            out,
        );
    }

    /// Normalises one row and multiplies it by `silu(z)`.
    pub(crate) fn gated_row(&self, pool: &Pool, precision: Precision, x: &mut [f32], z: &[f32]) {
        gated_row(
            pool.isa(),
            x,
            &self.weight,
            z,
            self.eps,
            precision.is_bf16(),
        );
    }
}

/// Divides a row by its length: `x / sqrt(Σ x² + 1e-6)`, then times `scale`. In bf16 each step but the scale is rounded, as
/// in the reference, which normalises before it widens.
pub(crate) fn l2_normalise(
    pool: &Pool,
    precision: Precision,
    x: &[f32],
    scale: f32,
    out: &mut [f32],
) {
    if precision.is_bf16() {
        l2_row_bf16(pool.isa(), x, scale, out);
    } else {
        l2_row(pool.isa(), x, scale, out);
    }
}

/// What the length of a query or key is kept from zero by.
const LENGTH_EPS: f32 = 1e-6;

kernel! {
    fn rms_row<'a>(s, x: &'a [f32], weight: &'a [f32], eps: f32, bf16: bool, out: &'a mut [f32]) {
        let scale = s.splat(1.0 / (square_sum(s, x) / x.len() as f32 + eps).sqrt());
        map2(s, x, weight, out, #[inline(always)] |x, weight| round_if(s, bf16, s.mul(s.mul(x, scale), weight)));
    }
}

kernel! {
    fn gated_row<'a>(s, x: &'a mut [f32], weight: &'a [f32], z: &'a [f32], eps: f32, bf16: bool) {
        let scale = s.splat(1.0 / (square_sum(s, x) / x.len() as f32 + eps).sqrt());
        update(s, x, weight, #[inline(always)] |x, weight| {
            round_if(s, bf16, s.mul(round_if(s, bf16, s.mul(x, scale)), weight))
        });
        update(s, x, z, #[inline(always)] |x, z| round_if(s, bf16, s.mul(x, silu(s, z))));
    }
}

kernel! {
    fn l2_row<'a>(s, x: &'a [f32], scale: f32, out: &'a mut [f32]) {
        let length = (square_sum(s, x) + LENGTH_EPS).sqrt();
        let (inverse, scale) = (s.splat(1.0 / length), s.splat(scale));
        super::lanes::map(s, x, out, #[inline(always)] |x| s.mul(s.mul(x, inverse), scale));
    }
}

kernel! {
    fn l2_row_bf16<'a>(s, x: &'a [f32], scale: f32, out: &'a mut [f32]) {
        let squares = round_one(true, super::lanes::sum(s, x, #[inline(always)] |x| s.round_bf16(s.mul(x, x))));
        let length = round_one(true, squares + LENGTH_EPS).sqrt();
        let (inverse, scale) = (s.splat(round_one(true, 1.0 / length)), s.splat(scale));
        super::lanes::map(s, x, out, #[inline(always)] |x| s.mul(s.round_bf16(s.mul(x, inverse)), scale));
    }
}
