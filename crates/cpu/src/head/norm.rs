//! LayerNorm: `y = (x − mean) / sqrt(variance + 1e-5) · w + b`, row by row.
//!
//! Shapes: `x`, `y` `[rows, width]`, f32 for the many rows of a prompt, f64 for the few of a schema; `w`, `b` `[width]` f32.
//! Computes in f64.
//! Sum order: eight lane sums along the row, then the lanes first to last; the same for any number of rows or threads.
//! Source: Ba, Kiros and Hinton 2016; torch's `LayerNorm`, whose variance is over n, not n − 1.
//! Cost: three passes over a row in the first-level cache; bound by memory.

use descant_model::HeadWeights;
use descant_release::LoadError;

use crate::Pool;

/// The weights of a LayerNorm.
#[derive(Debug)]
pub(super) struct LayerNorm {
    /// `[width]`
    weight: Vec<f32>,
    /// `[width]`
    bias: Vec<f32>,
}

/// What the LayerNorm adds to the variance.
const EPS: f64 = 1e-5;
/// Rows of a task.
const TASK_ROWS: usize = 16;

impl LayerNorm {
    pub(super) fn load(weights: &dyn HeadWeights, at: &str) -> Result<LayerNorm, LoadError> {
        Ok(LayerNorm {
            weight: weights.tensor(&format!("{at}.weight"))?.to_f32()?,
            bias: weights.tensor(&format!("{at}.bias"))?.to_f32()?,
        })
    }

    /// Normalises rows into `out`, rounded to f32.
    ///
    /// # Panics
    /// If `x` is not whole rows or `out` has another length.
    pub(super) fn rows_into(&self, pool: &Pool, x: &[f32], out: &mut [f32]) {
        let width = self.weight.len();
        assert!(
            x.len() == out.len() && x.len().is_multiple_of(width),
            "rows of another width"
        );
        pool.chunks(out, TASK_ROWS * width, |task, out| {
            let x = &x[task * TASK_ROWS * width..][..out.len()];
            for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
                let normed = self.row(x);
                out.iter_mut()
                    .zip(normed)
                    .for_each(|(out, y)| *out = y as f32);
            }
        });
    }

    /// Normalises a few rows, `[n, width]`.
    pub(super) fn rows(&self, x: &[f64]) -> Vec<f64> {
        x.chunks_exact(self.weight.len())
            .flat_map(|row| self.row(row))
            .collect()
    }

    fn row<T: Copy + Into<f64>>(&self, x: &[T]) -> impl Iterator<Item = f64> {
        let n = x.len() as f64;
        let mean = lane_sum(x, |x| x) / n;
        let variance = lane_sum(x, |x| (x - mean) * (x - mean)) / n;
        let scale = 1.0 / (variance + EPS).sqrt();
        let affine = self.weight.iter().zip(&self.bias);
        x.iter().zip(affine).map(move |(x, (weight, bias))| {
            ((*x).into() - mean) * scale * f64::from(*weight) + f64::from(*bias)
        })
    }
}

/// `Σ f(xᵢ)` in eight lanes.
fn lane_sum<T: Copy + Into<f64>>(x: &[T], f: impl Fn(f64) -> f64) -> f64 {
    let (groups, rest) = x.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for group in groups {
        for (lane, x) in lanes.iter_mut().zip(group) {
            *lane += f((*x).into());
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f((*x).into());
    }
    lanes.iter().sum()
}
