//! Loops over slices, sixteen values at a time, the last few in part of a vector.
//!
//! What is done to a vector comes as a closure, which must be `#[inline(always)]`: a closure that is called would be compiled
//! without the vector instructions.

use crate::arch::{LANES, Simd};

/// `out[i] = f(x[i])`.
#[inline(always)]
pub(crate) fn map<S: Simd>(s: S, x: &[f32], out: &mut [f32], f: impl Fn(S::F) -> S::F) {
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (x, out) in x.iter().zip(out) {
        s.store(out, f(s.load(x)));
    }
    if !out_rest.is_empty() {
        s.store_part(out_rest, f(s.load_part(x_rest, 0.0)));
    }
}

/// `out[i] = f(x[i], y[i])`.
#[inline(always)]
pub(super) fn map2<S: Simd>(
    s: S,
    x: &[f32],
    y: &[f32],
    out: &mut [f32],
    f: impl Fn(S::F, S::F) -> S::F,
) {
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for ((x, y), out) in x.iter().zip(y).zip(out) {
        s.store(out, f(s.load(x), s.load(y)));
    }
    if !out_rest.is_empty() {
        s.store_part(
            out_rest,
            f(s.load_part(x_rest, 0.0), s.load_part(y_rest, 0.0)),
        );
    }
}

/// `x[i] = f(x[i], y[i])`.
#[inline(always)]
pub(super) fn update<S: Simd>(s: S, x: &mut [f32], y: &[f32], f: impl Fn(S::F, S::F) -> S::F) {
    let (x, x_rest) = x.as_chunks_mut::<LANES>();
    let (y, y_rest) = y.as_chunks::<LANES>();
    for (x, y) in x.iter_mut().zip(y) {
        let value = f(s.load(x), s.load(y));
        s.store(x, value);
    }
    if !x_rest.is_empty() {
        let value = f(s.load_part(x_rest, 0.0), s.load_part(y_rest, 0.0));
        s.store_part(x_rest, value);
    }
}

/// `Σ f(x[i])`: sixteen lane sums along the slice, then the lanes pairwise. `f(0)` must be 0.
#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, x: &[f32], f: impl Fn(S::F) -> S::F) -> f32 {
    let (x, rest) = x.as_chunks::<LANES>();
    let mut sums = s.splat(0.0);
    for x in x {
        sums = s.add(sums, f(s.load(x)));
    }
    if !rest.is_empty() {
        sums = s.add(sums, f(s.load_part(rest, 0.0)));
    }
    s.sum(sums)
}

/// `Σ x[i]²`: sixteen lane sums by multiply-add along the slice, then the lanes pairwise.
#[inline(always)]
pub(super) fn square_sum<S: Simd>(s: S, x: &[f32]) -> f32 {
    let (x, rest) = x.as_chunks::<LANES>();
    let mut sums = s.splat(0.0);
    for x in x {
        let x = s.load(x);
        sums = s.fma(x, x, sums);
    }
    if !rest.is_empty() {
        let x = s.load_part(rest, 0.0);
        sums = s.fma(x, x, sums);
    }
    s.sum(sums)
}

/// Rounds to bf16 if asked to.
#[inline(always)]
pub(super) fn round_if<S: Simd>(s: S, bf16: bool, x: S::F) -> S::F {
    if bf16 { s.round_bf16(x) } else { x }
}

/// Rounds one value to bf16 if asked to.
#[inline(always)]
pub(super) fn round_one(bf16: bool, x: f32) -> f32 {
    if bf16 {
        half::bf16::from_f32(x).to_f32()
    } else {
        x
    }
}
