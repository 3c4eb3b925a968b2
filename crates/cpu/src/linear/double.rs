//! The product in f64: for the few rows of a head that decide its logits.
//!
//! Shapes: `x` `[rows, K]` f64; result `[rows, N]` f64.
//! Sum order: one chain of multiplications and additions along k in f64, each rounded, then the bias.
//! Why: one f32 chain of 4096 terms rounds so often that a logit of the head moves by 2e-6.
//! Cost: 2 · rows · N · K operations, vectors of half the width; a weight is read once for all rows.

use super::{Linear, Weights};
use crate::arch::{LANES, Pool, kernel};

/// Terms whose weights, widened to f64, fit the first-level cache.
const STRETCH: usize = 128;

/// One panel of weights: sixteen outputs.
#[derive(Clone, Copy)]
enum Panel<'a> {
    /// `[K / 2, rounded up][16]` pairs of bf16
    Pairs(&'a [u32]),
    /// `[K][16]`
    Floats(&'a [f32]),
}

impl Linear {
    /// `x · Wᵀ + bias` in f64.
    ///
    /// # Panics
    /// If `x` is not `[rows, K]`.
    pub(crate) fn forward_f64(&self, pool: &Pool, x: &[f64], rows: usize) -> Vec<f64> {
        assert_eq!(x.len(), rows * self.inputs, "x is [rows, K]");
        let mut out = vec![0.0; rows * self.outputs];
        if out.is_empty() {
            return out;
        }
        let mut sums = vec![0.0; self.outputs.div_ceil(LANES) * rows * LANES];
        pool.chunks(&mut sums, rows * LANES, |panel, sums| {
            add_panel(pool.isa(), x, self.inputs, self.panel(panel), sums);
        });
        for (panel, sums) in sums.chunks_exact(rows * LANES).enumerate() {
            let columns = panel * LANES..(panel * LANES + LANES).min(self.outputs);
            for (out, sums) in out
                .chunks_exact_mut(self.outputs)
                .zip(sums.chunks_exact(LANES))
            {
                let out = &mut out[columns.clone()];
                out.copy_from_slice(&sums[..out.len()]);
                if let Some(bias) = &self.bias {
                    let bias = &bias[columns.clone()];
                    out.iter_mut()
                        .zip(bias)
                        .for_each(|(out, bias)| *out += f64::from(*bias));
                }
            }
        }
        out
    }

    fn panel(&self, index: usize) -> Panel<'_> {
        match &self.weights {
            Weights::Pairs(pairs) => {
                let len = self.inputs.div_ceil(2) * LANES;
                Panel::Pairs(&pairs[index * len..][..len])
            }
            Weights::Floats(floats) => {
                let len = self.inputs * LANES;
                Panel::Floats(&floats[index * len..][..len])
            }
        }
    }
}

kernel! {
    /// Adds a panel's products with all rows of `x`, `[rows, inputs]`, to `sums`, `[rows, 16]`.
    fn add_panel<'a>(_s, x: &'a [f64], inputs: usize, panel: Panel<'a>, sums: &'a mut [f64]) {
        let mut weights = [[0.0; LANES]; STRETCH];
        for start in (0..inputs).step_by(STRETCH) {
            let count = STRETCH.min(inputs - start);
            widen(panel, start, &mut weights[..count]);
            let mut rows = x.chunks_exact(inputs).map(|row| &row[start..start + count]);
            let (pairs, rest) = sums.as_chunks_mut::<{ 2 * LANES }>();
            for pair in pairs {
                let (Some(first), Some(second)) = (rows.next(), rows.next()) else { return };
                add_two(&weights[..count], first, second, pair);
            }
            if let (Some(row), Ok(sums)) = (rows.next(), rest.try_into()) {
                add_one(&weights[..count], row, sums);
            }
        }
    }
}

/// The weights of some terms of a panel; `start` is even.
#[inline(always)]
fn widen(panel: Panel<'_>, start: usize, weights: &mut [[f64; LANES]]) {
    match panel {
        Panel::Pairs(pairs) => {
            let pairs = pairs[start / 2 * LANES..].as_chunks::<LANES>().0;
            for (weights, pairs) in weights.chunks_mut(2).zip(pairs) {
                for (lane, pair) in pairs.iter().enumerate() {
                    weights[0][lane] = f64::from(f32::from_bits(pair << 16));
                }
                if let Some(odd) = weights.get_mut(1) {
                    for (lane, pair) in pairs.iter().enumerate() {
                        odd[lane] = f64::from(f32::from_bits(pair & 0xffff_0000));
                    }
                }
            }
        }
        Panel::Floats(floats) => {
            let floats = floats[start * LANES..].as_chunks::<LANES>().0;
            for (weights, floats) in weights.iter_mut().zip(floats) {
                *weights = floats.map(f64::from);
            }
        }
    }
}

/// Adds the terms of two rows; their sixteen sums each stay in registers.
#[inline(always)]
fn add_two(weights: &[[f64; LANES]], first: &[f64], second: &[f64], sums: &mut [f64; 2 * LANES]) {
    let mut a: [f64; LANES] = sums[..LANES].try_into().expect("sixteen were taken");
    let mut b: [f64; LANES] = sums[LANES..].try_into().expect("sixteen are left");
    for ((weights, x), y) in weights.iter().zip(first).zip(second) {
        for lane in 0..LANES {
            a[lane] += x * weights[lane];
            b[lane] += y * weights[lane];
        }
    }
    sums[..LANES].copy_from_slice(&a);
    sums[LANES..].copy_from_slice(&b);
}

/// Adds the terms of one row.
#[inline(always)]
fn add_one(weights: &[[f64; LANES]], x: &[f64], sums: &mut [f64; LANES]) {
    let mut a = *sums;
    for (weights, x) in weights.iter().zip(x) {
        for lane in 0..LANES {
            a[lane] += x * weights[lane];
        }
    }
    *sums = a;
}

#[cfg(test)]
mod tests {
    use descant_release::{Dtype, Tensor};

    use super::*;
    use crate::Isa;

    /// Values of both signs; bf16 ones if `short`.
    fn values(count: usize, seed: u32, short: bool) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            if short {
                half::bf16::from_f32(x).to_f32()
            } else {
                x
            }
        };
        (0..count).map(|_| next()).collect()
    }

    fn tensor<'a>(shape: &'a [usize], bytes: &'a [u8]) -> Tensor<'a> {
        Tensor {
            name: "w",
            dtype: Dtype::F32,
            shape,
            bytes,
        }
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn it_is_the_formula_in_f64() {
        let pool = Pool::new(2).unwrap();
        for (outputs, inputs, rows) in [
            (33, 4096, 5),
            (64, 1000, 20),
            (3, 7, 1),
            (16, 129, 250),
            (1, 1, 2),
        ] {
            for short in [true, false] {
                let weights = values(outputs * inputs, 7, short);
                let (weight_bytes, bias) = (bytes(&weights), values(outputs, 5, false));
                let bias_bytes = bytes(&bias);
                let shapes = ([outputs, inputs], [outputs]);
                let bias_tensor = tensor(&shapes.1, &bias_bytes);
                let linear = Linear::pack_with_bias(
                    &pool,
                    &[tensor(&shapes.0, &weight_bytes)],
                    &bias_tensor,
                )
                .unwrap();
                let x: Vec<f64> = values(rows * inputs, 11, false)
                    .into_iter()
                    .map(|x| f64::from(x) / 3.0)
                    .collect();
                for (i, found) in linear.forward_f64(&pool, &x, rows).into_iter().enumerate() {
                    let row = &x[i / outputs * inputs..][..inputs];
                    let column = &weights[i % outputs * inputs..][..inputs];
                    let sum: f64 = row.iter().zip(column).map(|(x, w)| x * f64::from(*w)).sum();
                    let wanted = sum + f64::from(bias[i % outputs]);
                    assert!(
                        (found - wanted).abs() < 1e-12,
                        "{outputs} {inputs} {rows}, {i}: {found}, {wanted}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_company_and_on_any_path() {
        let one = Pool::with_isa(1, Isa::named("portable").unwrap()).unwrap();
        let weight_bytes = bytes(&values(70 * 200, 3, true));
        let linear = Linear::pack(&one, &[tensor(&[70, 200], &weight_bytes)]).unwrap();
        let x: Vec<f64> = values(301 * 200, 3, false)
            .into_iter()
            .map(|x| f64::from(x) / 3.0)
            .collect();
        let alone = |x| linear.forward_f64(&one, x, 1);
        let wanted: Vec<f64> = x.chunks_exact(200).flat_map(alone).collect();
        for isa in Isa::all() {
            for (threads, rows) in [(1, 301), (2, 13), (3, 300), (4, 7)] {
                let pool = Pool::with_isa(threads, isa).unwrap();
                let out = linear.forward_f64(&pool, &x[..rows * 200], rows);
                let same = out
                    .iter()
                    .zip(&wanted)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{} on {threads} threads, {rows} rows", isa.name());
            }
        }
    }
}
