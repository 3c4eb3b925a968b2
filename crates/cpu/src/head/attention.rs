//! Multi-head attention from a few queries over many keys, which come block by block: softmax and mix in one pass.
//!
//! Shapes: queries and result `[Q, W]` f64; keys and values side by side, `[keys, 2 W]` f32; a head is W / heads wide.
//! Precision: scores and the mix of 64 keys in f32 chains; the sums over blocks of 64 keys in f64.
//! Sum order: scores along the head; keys in blocks of 64 in their own order, from the first; each block's sums rescaled
//! by the change of the maximum and added to those before. Threads share out heads and queries, never keys.
//! Source: Vaswani and others 2017; Milakov and Gimelshein 2018 for the softmax in one pass. torch's `MultiheadAttention`
//! without a mask, scale 1 / sqrt(head width).
//! Cost: 4 · Q · W · keys operations, and an exponential for every query, key and head.

use crate::Pool;
use crate::arch::{Isa, LANES, Left, Right, kernel, matmul, with_scratch};
use crate::ops::math::exp;

/// Keys of a block.
pub(super) const KEYS: usize = 64;
/// Queries of a task.
const QUERIES: usize = 64;

/// Values that must stand behind the last key and value: vectors of a narrow head reach beyond it.
pub(super) const SPARE: usize = LANES;

/// Queries on their way over the keys.
#[derive(Debug)]
pub(super) struct Attention {
    width: usize,
    head_width: usize,
    queries: usize,
    parts: Vec<Part>,
}

/// One head of some queries.
#[derive(Debug)]
struct Part {
    /// First column of the head.
    column: usize,
    /// First query.
    start: usize,
    count: usize,
    /// The scaled queries side by side, `[head width, padded]`; padding is zero.
    queries: Vec<f32>,
    /// Greatest score so far, `[padded]`.
    max: Vec<f32>,
    /// `Σ e^(score − max)`, `[padded]`.
    sums: Vec<f64>,
    /// `Σ e^(score − max) value`, `[count, head width]`.
    mixed: Vec<f64>,
}

impl Attention {
    /// Takes projected queries, `[Q, W]`.
    pub(super) fn new(heads: usize, width: usize, queries: &[f64]) -> Attention {
        let head_width = width / heads;
        let count = queries.len() / width;
        let starts = (0..count).step_by(QUERIES);
        let places =
            starts.flat_map(|start| (0..heads).map(move |head| (start, head * head_width)));
        let parts = places.map(|(start, column)| {
            let count = QUERIES.min(count - start);
            let rows = queries[start * width..(start + count) * width].chunks_exact(width);
            Part::new(column, start, head_width, rows)
        });
        Attention {
            width,
            head_width,
            queries: count,
            parts: parts.collect(),
        }
    }

    /// Goes over the next keys and values: `keys` rows of 2 W values, and [`SPARE`] values behind them. All calls but the
    /// last bring a multiple of [`KEYS`] keys.
    ///
    /// # Panics
    /// If there are fewer values.
    pub(super) fn absorb(&mut self, pool: &Pool, keys: usize, keys_values: &[f32]) {
        let (width, head_width) = (self.width, self.head_width);
        let needed = keys * 2 * width + SPARE;
        assert!(
            keys_values.len() >= needed,
            "{needed} values, spare ones included"
        );
        pool.chunks(&mut self.parts, 1, |_, part| {
            for start in (0..keys).step_by(KEYS) {
                let block = Block {
                    keys: KEYS.min(keys - start),
                    stride: 2 * width,
                    keys_at: &keys_values[start * 2 * width + part[0].column..],
                    values_at: &keys_values[start * 2 * width + width + part[0].column..],
                };
                part[0].absorb(pool.isa(), head_width, &block);
            }
        });
    }

    /// The mixed values of all heads side by side, `[Q, W]`.
    pub(super) fn finish(self) -> Vec<f64> {
        let mut out = vec![0.0; self.queries * self.width];
        for part in self.parts {
            for (query, mixed) in part.mixed.chunks_exact(self.head_width).enumerate() {
                let at = (part.start + query) * self.width + part.column;
                for (out, mixed) in out[at..].iter_mut().zip(mixed) {
                    *out = mixed / part.sums[query];
                }
            }
        }
        out
    }
}

/// At most [`KEYS`] keys and values of one head; rows are `stride` apart.
struct Block<'a> {
    keys: usize,
    stride: usize,
    keys_at: &'a [f32],
    values_at: &'a [f32],
}

impl Part {
    /// Takes the head at `column` out of query rows.
    fn new(
        column: usize,
        start: usize,
        head_width: usize,
        rows: std::slice::ChunksExact<'_, f64>,
    ) -> Part {
        let count = rows.len();
        let padded = count.next_multiple_of(LANES);
        let scale = 1.0 / (head_width as f64).sqrt();
        let mut queries = vec![0.0; head_width * padded];
        for (query, row) in rows.enumerate() {
            for (dim, x) in row[column..column + head_width].iter().enumerate() {
                queries[dim * padded + query] = (x * scale) as f32;
            }
        }
        Part {
            column,
            start,
            count,
            queries,
            max: vec![f32::NEG_INFINITY; padded],
            sums: vec![0.0; padded],
            mixed: vec![0.0; count * head_width],
        }
    }

    fn absorb(&mut self, isa: Isa, head_width: usize, block: &Block<'_>) {
        let padded = self.max.len();
        with_scratch(
            block.keys * padded + 2 * padded + self.count * head_width,
            |scratch| {
                let (scores, rest) = scratch.split_at_mut(block.keys * padded);
                let (fades, rest) = rest.split_at_mut(padded);
                let (sums, mixed) = rest.split_at_mut(padded);
                let left = Left::strided(block.keys_at, block.keys, block.stride, 1);
                let right = Right {
                    data: &self.queries,
                    k_stride: padded,
                    panel_stride: LANES,
                };
                matmul(
                    isa,
                    head_width,
                    left,
                    right,
                    (&mut *scores, padded, padded),
                    false,
                );
                weigh(isa, &mut *scores, &mut self.max, &mut *fades, &mut *sums);
                let left = Left::strided(scores, self.count, 1, padded);
                let right = Right {
                    data: block.values_at,
                    k_stride: block.stride,
                    panel_stride: LANES,
                };
                matmul(
                    isa,
                    block.keys,
                    left,
                    right,
                    (&mut *mixed, head_width, head_width),
                    false,
                );
                self.add(head_width, fades, sums, mixed);
            },
        );
    }

    /// Adds the sums of a block to those before it, which fade by the change of the maximum.
    fn add(&mut self, head_width: usize, fades: &[f32], sums: &[f32], mixed: &[f32]) {
        for ((sum, fade), more) in self.sums.iter_mut().zip(fades).zip(sums) {
            *sum = *sum * f64::from(*fade) + f64::from(*more);
        }
        let rows = self
            .mixed
            .chunks_exact_mut(head_width)
            .zip(mixed.chunks_exact(head_width));
        for ((row, more), fade) in rows.zip(fades) {
            let fade = f64::from(*fade);
            row.iter_mut()
                .zip(more)
                .for_each(|(x, more)| *x = *x * fade + f64::from(*more));
        }
    }
}

kernel! {
    /// Turns scores, `[keys, padded]`, into weights `e^(score − max)`, where `max`, `[padded]`, is the greatest score of
    /// each query up to here. `fades`, `[padded]`, is what weights under the maximum before must be multiplied by, `sums`,
    /// `[padded]`, the sum of the new weights.
    fn weigh<'a>(s, scores: &'a mut [f32], max: &'a mut [f32], fades: &'a mut [f32], sums: &'a mut [f32]) {
        let padded = max.len();
        for at in (0..padded).step_by(LANES) {
            let before = s.load(&max[at..]);
            let mut greatest = before;
            for row in scores.chunks_exact(padded) {
                greatest = s.max(s.load(&row[at..]), greatest);
            }
            s.store(&mut max[at..], greatest);
            s.store(&mut fades[at..], exp(s, s.sub(before, greatest)));
            let mut sum = s.splat(0.0);
            for row in scores.chunks_exact_mut(padded) {
                let weight = exp(s, s.sub(s.load(&row[at..]), greatest));
                s.store(&mut row[at..], weight);
                sum = s.add(sum, weight);
            }
            s.store(&mut sums[at..], sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values in (−1, 1).
    fn values(count: usize) -> Vec<f32> {
        (0..count as u32)
            .map(|i| (i.wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }

    fn attend(
        isa: Isa,
        threads: usize,
        heads: usize,
        width: usize,
        queries: &[f64],
        keys_values: &[f32],
    ) -> Vec<f64> {
        let pool = Pool::with_isa(threads, isa).unwrap();
        let mut attention = Attention::new(heads, width, queries);
        for block in keys_values.chunks(2 * width * KEYS * 2) {
            attention.absorb(
                &pool,
                block.len() / (2 * width),
                &[block, &[f32::NAN; SPARE]].concat(),
            );
        }
        attention.finish()
    }

    #[test]
    fn it_follows_the_formula_on_every_path() {
        for (heads, width, queries, keys) in [
            (1, 4, 1, 1),
            (3, 24, 5, 63),
            (2, 32, 17, 64),
            (5, 20, 70, 300),
        ] {
            let q: Vec<f64> = values(queries * width)
                .iter()
                .map(|x| f64::from(*x) * 8.0)
                .collect();
            let kv = values(keys * 2 * width);
            let found = attend(Isa::detect(), 2, heads, width, &q, &kv);
            let d = width / heads;
            for (i, found) in found.iter().enumerate() {
                let (query, column) = (i / width, i % width / d * d);
                let score = |kv: &[f32]| {
                    let q = &q[query * width + column..][..d];
                    q.iter()
                        .zip(&kv[column..])
                        .map(|(q, k)| q * f64::from(*k))
                        .sum::<f64>()
                        / (d as f64).sqrt()
                };
                let weights: Vec<f64> = kv
                    .chunks_exact(2 * width)
                    .map(|kv| score(kv).exp())
                    .collect();
                let mixed = weights
                    .iter()
                    .zip(kv.chunks_exact(2 * width))
                    .map(|(w, kv)| w * f64::from(kv[width + i % width]));
                let wanted = mixed.sum::<f64>() / weights.iter().sum::<f64>();
                // Scores of up to 20 round by 2^-24 a term, weights with them; values lie within one.
                assert!(
                    (found - wanted).abs() < 3e-6,
                    "{heads} {width} {queries} {keys}, {i}: {found}, {wanted}"
                );
            }
            for isa in Isa::all() {
                for threads in [1, 3] {
                    let other = attend(isa, threads, heads, width, &q, &kv);
                    let same = found
                        .iter()
                        .zip(&other)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        same,
                        "{} on {threads} threads: {heads} {width} {queries} {keys}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn a_growing_maximum_lets_earlier_keys_fade() {
        // Scores rise from 0 to 300: only the last keys count.
        let keys = 200;
        let kv: Vec<f32> = (0..keys)
            .flat_map(|key| [1.5 * key as f32, 0.0, key as f32, 1.0])
            .collect();
        let found = attend(
            Isa::detect(),
            1,
            1,
            2,
            &[std::f64::consts::SQRT_2, 0.0],
            &kv,
        );
        let weights: Vec<f64> = (0..keys)
            .map(|key| (1.5 * f64::from(key - keys + 1)).exp())
            .collect();
        let sum: f64 = weights.iter().sum();
        let wanted = weights
            .iter()
            .enumerate()
            .map(|(key, w)| w * key as f64)
            .sum::<f64>()
            / sum;
        // A score of 300 rounds by 300 · 2^-24.
        assert!(
            (found[0] - wanted).abs() < 1e-3,
            "{found:?}, wanted {wanted}"
        );
        assert!((found[1] - 1.0).abs() < 1e-6, "{found:?}");
    }
}
