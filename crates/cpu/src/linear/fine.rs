//! The finer product: for the few rows of a head that decide its logits.
//!
//! Sum order: chains of 64 fused multiply-adds in f32, each from zero; the chains' sums and the bias are added in f64,
//! first to last, and rounded to f32 once.
//! Error: a chain of 4096 terms rounds so often that a logit of the head moves by 1.9e-6; chains of 64 move it by 2e-7
//! (simulated at the published widths against f64).
//! Cost: as the plain product, and an f64 addition for every 64 terms.

use super::{Activations, Linear, Order, Rows, columns_of_a_task, rows_of_a_task};
use crate::arch::{Isa, LANES, Pool, Tile, Tiles, with_scratch};

/// Terms of a chain.
const CHAIN: usize = 64;

impl Linear {
    /// As [`Linear::forward_f32`], with a finer sum.
    ///
    /// # Panics
    /// If `x` is not `[rows, K]` or `out` is not `[rows, N]`.
    pub(crate) fn forward_fine(&self, pool: &Pool, x: &[f32], rows: usize, out: &mut [f32]) {
        assert_eq!(x.len(), rows * self.inputs, "x is [rows, K]");
        assert_eq!(out.len(), rows * self.outputs, "out is [rows, N]");
        if rows == 0 || self.outputs == 0 {
            return;
        }
        let columns = columns_of_a_task(pool.threads(), rows, self.outputs);
        let tiles = Tiles::even(out, self.outputs, rows_of_a_task(rows), columns);
        pool.split(&tiles, |_, mut tile| {
            let x = &x[tile.rows().start * self.inputs..tile.rows().end * self.inputs];
            self.fine_tile(pool.isa(), x, &mut tile);
        });
    }

    /// Fills a tile; until the end it holds the sums of the chain at hand.
    fn fine_tile(&self, isa: Isa, x: &[f32], tile: &mut Tile<'_>) {
        let (rows, columns) = (tile.rows(), tile.columns());
        let whole = Rows { x, count: rows.len(), width: self.inputs, range: 0..0, continues: false };
        let packed_len = whole.packed_len(CHAIN);
        let mut sums = vec![0.0; rows.len() * columns.len()];
        with_scratch(packed_len + CHAIN * LANES, |scratch| {
            let (packed, widened) = scratch.split_at_mut(packed_len);
            for start in (0..self.inputs).step_by(CHAIN) {
                let range = start..(start + CHAIN).min(self.inputs);
                let chain = Rows { range, ..whole.clone() };
                let packed = &mut packed[..chain.packed_len(chain.range.len().next_multiple_of(2))];
                self.stretch(isa, Activations::F32, &chain, (packed, &mut *widened), tile);
                for (row, sums) in rows.clone().zip(sums.chunks_exact_mut(columns.len())) {
                    sums.iter_mut().zip(tile.row(row)).for_each(|(sum, chain)| *sum += f64::from(*chain));
                }
            }
        });
        for (row, sums) in rows.zip(sums.chunks_exact_mut(columns.len())) {
            if let Some(bias) = &self.bias {
                sums.iter_mut().zip(&bias[columns.clone()]).for_each(|(sum, bias)| *sum += f64::from(*bias));
            }
            tile.row(row).iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use descant_release::{Dtype, Tensor};

    use super::*;

    /// Values that are bf16, of both signs and many sizes.
    fn values(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            half::bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_f32()
        };
        (0..count).map(|_| next()).collect()
    }

    fn linear(pool: &Pool, outputs: usize, inputs: usize) -> (Linear, Vec<f32>) {
        let weights = values(outputs * inputs, 7);
        let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let shape = [outputs, inputs];
        let tensor = Tensor { name: "w", dtype: Dtype::F32, shape: &shape, bytes: &bytes };
        (Linear::pack(pool, &[tensor]).unwrap(), weights)
    }

    #[test]
    fn it_is_nearer_to_the_true_sum_than_one_chain() {
        let pool = Pool::new(2).unwrap();
        for (outputs, inputs, rows) in [(33, 4096, 5), (64, 1000, 20), (3, 7, 1), (16, 129, 250)] {
            let (linear, weights) = linear(&pool, outputs, inputs);
            let x = values(rows * inputs, 11);
            let (mut fine, mut plain) = (vec![f32::NAN; rows * outputs], vec![f32::NAN; rows * outputs]);
            linear.forward_fine(&pool, &x, rows, &mut fine);
            linear.forward_f32(&pool, &x, rows, &mut plain);
            let (mut fine_error, mut plain_error) = (0.0_f64, 0.0_f64);
            for (i, (fine, plain)) in fine.iter().zip(&plain).enumerate() {
                let row = &x[i / outputs * inputs..][..inputs];
                let column = &weights[i % outputs * inputs..][..inputs];
                let products = row.iter().zip(column).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let (wanted, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                // 64 roundings of 2^-24 of a part of the absolute sum, and the last one.
                assert!((f64::from(*fine) - wanted).abs() <= size * 64.0 * 2.0_f64.powi(-24), "{i}: {fine}, {wanted}");
                fine_error += (f64::from(*fine) - wanted).powi(2);
                plain_error += (f64::from(*plain) - wanted).powi(2);
            }
            assert!(fine_error <= plain_error, "{inputs} terms: {fine_error:e} and {plain_error:e}");
            assert!(inputs < 4096 || fine_error * 9.0 < plain_error, "{fine_error:e} and {plain_error:e}");
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_company_and_on_any_path() {
        let one = Pool::new(1).unwrap();
        let (linear, _) = linear(&one, 70, 200);
        let x = values(300 * 200, 3);
        let mut wanted = vec![f32::NAN; 300 * 70];
        for (x, out) in x.chunks_exact(200).zip(wanted.chunks_exact_mut(70)) {
            linear.forward_fine(&one, x, 1, out);
        }
        for isa in Isa::all() {
            for (threads, rows) in [(1, 300), (2, 13), (3, 300), (4, 7)] {
                let pool = Pool::with_isa(threads, isa).unwrap();
                let mut out = vec![f32::NAN; rows * 70];
                linear.forward_fine(&pool, &x[..rows * 200], rows, &mut out);
                let same = out.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{} on {threads} threads, {rows} rows", isa.name());
            }
        }
    }
}
