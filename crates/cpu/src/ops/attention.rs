//! Causal attention of grouped query heads over a stream's keys and values, by blocks of keys.
//!
//! Shapes: queries `[rows, heads · D]` f32; keys `[positions / 16][D][16]`, values `[positions][Dp]`, f32 or bf16, Dp being D
//! rounded up to sixteen; out `[rows, heads · D]`.
//! Sum order: a score is one chain over D. Keys go in blocks of 64 from the stream's first position, in order, whatever
//! the query; a block's exponentials are summed in sixteen lanes, then pairwise; weighted values are one chain over the
//! keys, rescaled where a block raises the row's maximum. A row sees its own keys alone, so neither the rows beside it nor
//! the cut of the prompt touches its bits. Computes in f32; in bf16 the output is rounded.
//! Source: Milakov and Gimelshein 2018 for the running maximum; the reference's `scaled_dot_product_attention`.
//! Cost: 4 · D operations for each pair of query and key; the keys and values of a block stay in the second-level cache.

use super::Precision;
use super::lanes::round_if;
use super::math::exp;
use crate::arch::{Isa, LANES, Left, Plain, Right, Tile, kernel, matmul, with_scratch};

/// Keys of a block.
pub(crate) const KEY_BLOCK: usize = 64;
/// Query rows of a task.
pub(crate) const QUERY_BLOCK: usize = 16;

/// A number of the KV cache.
pub(crate) trait Cell: Plain {
    /// From a value that the precision rounded.
    fn from_f32(x: f32) -> Self;

    /// The values as f32: where they stand, or in `buffer`.
    fn widen<'a>(cells: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];
}

impl Cell for f32 {
    fn from_f32(x: f32) -> f32 {
        x
    }

    fn widen<'a>(cells: &'a [f32], _: &'a mut [f32]) -> &'a [f32] {
        cells
    }
}

/// Bits of a bf16.
impl Cell for u16 {
    fn from_f32(x: f32) -> u16 {
        half::bf16::from_f32(x).to_bits()
    }

    fn widen<'a>(cells: &'a [u16], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..cells.len()];
        for (cell, x) in cells.iter().zip(&mut *buffer) {
            *x = f32::from_bits(u32::from(*cell) << 16);
        }
        buffer
    }
}

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub(crate) struct HeadShape {
    /// Width of a head, D.
    pub(crate) dim: usize,
    /// Query heads that share a key head.
    pub(crate) group: usize,
    /// `1 / √D`.
    pub(crate) scale: f32,
}

impl HeadShape {
    /// D rounded up to whole vectors.
    pub(crate) fn padded(&self) -> usize {
        self.dim.next_multiple_of(LANES)
    }
}

/// Keys and values of one stream and key head.
#[derive(Clone, Copy)]
pub(crate) struct Cache<'a, T> {
    /// `[positions / 16][D][16]`.
    pub(crate) keys: &'a [T],
    /// `[positions][Dp]`.
    pub(crate) values: &'a [T],
}

/// Writes one position's key and value.
pub(crate) fn write_position<T: Cell>(
    shape: HeadShape,
    (keys, values): (&mut [T], &mut [T]),
    position: usize,
    (key, value): (&[f32], &[f32]),
) {
    let panel = &mut keys[position / LANES * shape.dim * LANES..][..shape.dim * LANES];
    for (d, x) in key.iter().enumerate() {
        panel[d * LANES + position % LANES] = T::from_f32(*x);
    }
    let row = &mut values[position * shape.padded()..][..shape.padded()];
    for (out, x) in row.iter_mut().zip(value) {
        *out = T::from_f32(*x);
    }
}

/// Memory of a task, in parts of a scratch buffer.
struct Work<'a> {
    /// `[rows, D]`, a row for each query and head of the group.
    queries: &'a mut [f32],
    /// `[rows, 64]`: scores, then their exponentials.
    scores: &'a mut [f32],
    /// `[rows, Dp]`: weighted values so far.
    sums: &'a mut [f32],
    /// `[rows]`: maximum and sum of exponentials so far.
    running: &'a mut [f32],
    /// A block's keys, then values, as f32.
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

/// Attends with the queries of `out`'s rows and columns, the first of which stands at `position`.
///
/// # Panics
/// If the cache does not reach the last row's position.
pub(crate) fn attend<T: Cell>(
    isa: Isa,
    precision: Precision,
    shape: HeadShape,
    queries: (&[f32], usize),
    (cache, position): (Cache<'_, T>, usize),
    out: &mut Tile<'_>,
) {
    let rows = out.rows().len() * shape.group;
    let block = KEY_BLOCK * shape.padded();
    let sizes = [
        rows * shape.dim,
        rows * KEY_BLOCK,
        rows * shape.padded(),
        2 * rows,
        block,
        block,
    ];
    with_scratch(sizes.iter().sum(), |scratch| {
        let mut rest = scratch;
        let [queries_part, scores, sums, running, keys, values] = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        let mut work = Work {
            queries: queries_part,
            scores,
            sums,
            running,
            keys,
            values,
        };
        work.begin(shape, queries, out);
        let end = position + out.rows().len();
        for first in (0..end).step_by(KEY_BLOCK) {
            work.block(isa, shape, cache, (first, position, end));
        }
        work.finish(isa, precision, shape, out);
    });
}

impl Work<'_> {
    /// Gathers the queries and empties the sums.
    fn begin(&mut self, shape: HeadShape, (queries, width): (&[f32], usize), out: &Tile<'_>) {
        let rows = out.rows();
        let columns = out.columns();
        for (row, to) in rows.zip(self.queries.chunks_exact_mut(columns.len())) {
            to.copy_from_slice(&queries[row * width..][columns.clone()]);
        }
        self.sums.fill(0.0);
        for running in self.running.chunks_exact_mut(2) {
            running.copy_from_slice(&[f32::NEG_INFINITY, 0.0]);
        }
        debug_assert_eq!(self.sums.len() / shape.padded(), self.running.len() / 2);
    }

    /// Takes the keys from `first` on, for queries at the positions `position..end`.
    fn block<T: Cell>(
        &mut self,
        isa: Isa,
        shape: HeadShape,
        cache: Cache<'_, T>,
        (first, position, end): (usize, usize, usize),
    ) {
        let (dim, padded) = (shape.dim, shape.padded());
        let count = (end - first).min(KEY_BLOCK);
        let panels = count.div_ceil(LANES);
        let rows = self.running.len() / 2;
        let keys = T::widen(
            &cache.keys[first * dim..][..panels * LANES * dim],
            self.keys,
        );
        let right = Right {
            data: keys,
            k_stride: LANES,
            panel_stride: dim * LANES,
        };
        let left = Left::strided(self.queries, rows, dim, 1);
        matmul(
            isa,
            dim,
            left,
            right,
            (self.scores, KEY_BLOCK, panels * LANES),
            false,
        );

        // Keys that a row may see: those up to its own position.
        let visible = |row: usize| {
            (position + row / shape.group + 1)
                .saturating_sub(first)
                .min(KEY_BLOCK)
        };
        let parts = self
            .scores
            .chunks_exact_mut(KEY_BLOCK)
            .zip(self.sums.chunks_exact_mut(padded));
        for (row, ((scores, sums), running)) in
            parts.zip(self.running.chunks_exact_mut(2)).enumerate()
        {
            if visible(row) > 0 {
                weigh(isa, &mut scores[..visible(row)], shape.scale, running, sums);
            }
        }

        let values = T::widen(
            &cache.values[first * padded..][..count * padded],
            self.values,
        );
        let right = Right {
            data: values,
            k_stride: padded,
            panel_stride: LANES,
        };
        if visible(0) == KEY_BLOCK {
            let left = Left::strided(self.scores, rows, KEY_BLOCK, 1);
            return matmul(
                isa,
                KEY_BLOCK,
                left,
                right,
                (self.sums, padded, padded),
                true,
            );
        }
        // At the end of the row's own keys each row has its own number of terms.
        let parts = self
            .scores
            .chunks_exact(KEY_BLOCK)
            .zip(self.sums.chunks_exact_mut(padded));
        for (row, (scores, sums)) in parts.enumerate() {
            if visible(row) > 0 {
                let left = Left::strided(scores, 1, KEY_BLOCK, 1);
                matmul(isa, visible(row), left, right, (sums, padded, padded), true);
            }
        }
    }

    /// Divides by the sums of exponentials.
    fn finish(&self, isa: Isa, precision: Precision, shape: HeadShape, out: &mut Tile<'_>) {
        let mut parts = self
            .sums
            .chunks_exact(shape.padded())
            .zip(self.running.chunks_exact(2));
        for row in out.rows() {
            for head in out.row(row).chunks_exact_mut(shape.dim) {
                let (sums, running) = parts.next().expect("a row for each query and head");
                divide(
                    isa,
                    &sums[..shape.dim],
                    running[1],
                    precision.is_bf16(),
                    head,
                );
            }
        }
    }
}

kernel! {
    /// Turns a block's scores into weights under the running maximum (`running[0]`), adds them to the running sum
    /// (`running[1]`), and rescales what was summed so far.
    fn weigh<'a>(s, scores: &'a mut [f32], scale: f32, running: &'a mut [f32], sums: &'a mut [f32]) {
        let scale = s.splat(scale);
        let mut most = s.splat(running[0]);
        for scores in scores.chunks(LANES) {
            most = s.max(s.mul(load(s, scores, f32::NEG_INFINITY), scale), most);
        }
        let most = s.largest(most);
        let mut sum = s.splat(0.0);
        for scores in scores.chunks_mut(LANES) {
            let weights = exp(s, s.sub(s.mul(load(s, scores, f32::NEG_INFINITY), scale), s.splat(most)));
            sum = s.add(sum, weights);
            if scores.len() == LANES { s.store(scores, weights) } else { s.store_part(scores, weights) }
        }
        let shrink = s.to_array(exp(s, s.splat(running[0] - most)))[0];
        running.copy_from_slice(&[most, running[1].mul_add(shrink, s.sum(sum))]);
        let shrink = s.splat(shrink);
        for sums in sums.as_chunks_mut::<LANES>().0 {
            let shrunk = s.mul(s.load(sums), shrink);
            s.store(sums, shrunk);
        }
    }
}

/// Up to sixteen values.
#[inline(always)]
fn load<S: crate::arch::Simd>(s: S, x: &[f32], fill: f32) -> S::F {
    if x.len() == LANES {
        s.load(x)
    } else {
        s.load_part(x, fill)
    }
}

kernel! {
    fn divide<'a>(s, sums: &'a [f32], by: f32, bf16: bool, out: &'a mut [f32]) {
        let by = s.splat(by);
        super::lanes::map(s, sums, out, #[inline(always)] |x| round_if(s, bf16, s.div(x, by)));
    }
}
