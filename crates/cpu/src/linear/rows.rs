//! Activation rows as the left operand of a product: where they stand, or packed anew.

use std::ops::Range;

use super::{Activations, LinearRight, Pairs};
use crate::arch::{Isa, Left, TILE_ROWS, kernel, with_scratch};
use crate::ops::lanes::map;

/// In which order a product takes the terms of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Both at once, by the hardware's bf16 dot product.
    Dots,
    /// Odd term first.
    OddFirst,
    /// Even term first.
    Rising,
}

impl Order {
    pub(super) fn of(isa: Isa, activations: Activations) -> Order {
        match activations {
            Activations::Bf16 if isa.has_dots() => Order::Dots,
            Activations::Bf16 => Order::OddFirst,
            Activations::F32 => Order::Rising,
        }
    }

    pub(super) fn right(self, pairs: Pairs<'_>) -> LinearRight<'_> {
        match self {
            Order::Dots => LinearRight::Dots(pairs),
            Order::OddFirst => LinearRight::OddFirst(pairs),
            Order::Rising => LinearRight::Rising(pairs),
        }
    }
}

/// A stretch of some activation rows.
#[derive(Clone)]
pub(super) struct Rows<'a> {
    /// `[count, width]`.
    pub(super) x: &'a [f32],
    pub(super) count: usize,
    pub(super) width: usize,
    /// The terms; begins at an even one.
    pub(super) range: Range<usize>,
}

/// Rows up to which packing them in groups costs more than it saves.
const FEW_ROWS: usize = 12;

/// Values between packed rows of pairs: rows a power of two apart would share few places of a cache.
const PAIRS_APART: usize = 16;

impl<'a> Rows<'a> {
    /// Whether they are taken row by row rather than in groups.
    pub(super) fn are_few(&self) -> bool {
        self.count <= FEW_ROWS
    }

    /// Values that [`Rows::left`] needs to pack `terms` terms.
    pub(super) fn packed_len(&self, order: Order, terms: usize) -> usize {
        match order {
            _ if self.are_few() => self.count * terms,
            Order::Dots => self.count * (terms / 2 + PAIRS_APART),
            Order::OddFirst | Order::Rising => self.count.next_multiple_of(TILE_ROWS) * terms,
        }
    }

    /// The rows as a left operand of whole pairs, a missing last term being zero.
    pub(super) fn left<'b>(&self, isa: Isa, order: Order, packed: &'b mut [f32]) -> Left<'b>
    where
        'a: 'b,
    {
        if order == Order::Rising && self.are_few() && self.range.len().is_multiple_of(2) {
            return Left::strided(&self.x[self.range.start..], self.count, self.width, 1);
        }
        let terms = self.range.len().next_multiple_of(2);
        let steps = if order == Order::Dots {
            terms / 2
        } else {
            terms
        };
        if self.are_few() || order == Order::Dots {
            // Half as many values as terms: interleaving them in groups costs more than reading six rows side by side.
            let stride = steps + if self.are_few() { 0 } else { PAIRS_APART };
            for (row, out) in packed.chunks_mut(stride).take(self.count).enumerate() {
                self.pack(isa, order, row, &mut out[..steps]);
            }
            return Left::strided(packed, self.count, stride, 1);
        }
        with_scratch(TILE_ROWS * steps, |group| {
            for (index, out) in packed.chunks_exact_mut(steps * TILE_ROWS).enumerate() {
                let rows =
                    (index * TILE_ROWS).min(self.count)..((index + 1) * TILE_ROWS).min(self.count);
                // Rows past the last are packed too, and give sums that are dropped.
                group.fill(0.0);
                for (row, out) in rows.zip(group.chunks_exact_mut(steps)) {
                    self.pack(isa, order, row, out);
                }
                interleave(group, steps, out);
            }
        });
        Left::grouped(packed, self.count, steps)
    }

    /// One row's terms in the order in which they are added.
    fn pack(&self, isa: Isa, order: Order, row: usize, out: &mut [f32]) {
        let terms = &self.x[row * self.width..][self.range.clone()];
        match order {
            Order::Rising => {
                out[..terms.len()].copy_from_slice(terms);
                out[terms.len()..].fill(0.0);
            }
            Order::OddFirst => {
                round_terms(isa, terms, LEAST, &mut out[..terms.len()]);
                out[terms.len()..].fill(0.0);
                out.as_chunks_mut::<2>()
                    .0
                    .iter_mut()
                    .for_each(|pair| pair.swap(0, 1));
            }
            Order::Dots => with_scratch(2 * out.len(), |rounded| {
                round_terms(isa, terms, LEAST, &mut rounded[..terms.len()]);
                rounded[terms.len()..].fill(0.0);
                join_pairs(isa, rounded, out);
            }),
        }
    }
}

/// Six rows of `steps` values as `[steps][6]`.
fn interleave(rows: &[f32], steps: usize, out: &mut [f32]) {
    let mut rest = rows;
    let rows: [&[f32]; TILE_ROWS] = std::array::from_fn(|_| {
        let (row, after) = rest.split_at(steps);
        rest = after;
        row
    });
    for (k, out) in out.as_chunks_mut::<TILE_ROWS>().0.iter_mut().enumerate() {
        *out = rows.map(|row| row[k]);
    }
}

/// 2⁻⁶²: smaller activations are taken for zero in the bf16 form.
const LEAST: f32 = f32::from_bits((127 - 62) << 23);

kernel! {
    /// Joins the upper halves of each two values, the even one below.
    fn join_pairs<'a>(_s, rounded: &'a [f32], out: &'a mut [f32]) {
        for (out, [even, odd]) in out.iter_mut().zip(rounded.as_chunks::<2>().0) {
            *out = f32::from_bits(even.to_bits() >> 16 | odd.to_bits());
        }
    }
}

kernel! {
    /// Rounds terms to bf16; those below `least` to zero.
    pub(super) fn round_terms<'a>(s, x: &'a [f32], least: f32, out: &'a mut [f32]) {
        map(s, x, out, #[inline(always)] |x| {
            let rounded = s.round_bf16(x);
            let size = s.max(rounded, s.neg(rounded));
            s.if_less(size, s.splat(least), s.splat(0.0), rounded)
        });
    }
}
