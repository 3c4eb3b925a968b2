//! Elementwise operations on rows: residual sums, SwiGLU, the output gate of attention, rounding.
//!
//! Shapes: `[rows, width]` f32, parts of wider rows where said. No sums. In bf16 each operation's result is rounded, and so
//! is the activation inside SwiGLU and the gate.
//! Cost: bound by memory.

use super::Precision;
use super::lanes::{map, map2, round_if, update};
use super::math::{sigmoid, silu, softplus};
use crate::arch::{Pool, kernel};

/// Values of a task.
const TASK: usize = 1 << 14;

/// `x += y`.
pub(crate) fn add(pool: &Pool, precision: Precision, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len(), "rows of equal width");
    pool.chunks(x, TASK, |task, x| {
        let y = &y[task * TASK..][..x.len()];
        add_row(pool.isa(), x, y, precision.is_bf16());
    });
}

/// `out = silu(gate) · up`, where a row of `wide` is gate and up side by side.
pub(crate) fn swiglu(
    pool: &Pool,
    precision: Precision,
    wide: &[f32],
    width: usize,
    out: &mut [f32],
) {
    pool.chunks(out, width, |row, out| {
        let (gate, up) = wide[2 * width * row..][..2 * width].split_at(width);
        swiglu_row(pool.isa(), gate, up, precision.is_bf16(), out);
    });
}

/// `x *= sigmoid(gate)`, one row.
pub(crate) fn open_gate(pool: &Pool, precision: Precision, x: &mut [f32], gate: &[f32]) {
    gate_row(pool.isa(), x, gate, precision.is_bf16());
}

/// The delta rule's inputs of one row: `beta = sigmoid(b)`, `decay = −e^(A_log) · softplus(a + dt_bias)`, a value head each.
/// In place: `b` becomes beta and `a` the decay.
pub(crate) fn delta_inputs(
    pool: &Pool,
    precision: Precision,
    (b, a): (&mut [f32], &mut [f32]),
    rates: &[f32],
    biases: &[f32],
) {
    delta_row(pool.isa(), b, a, rates, biases, precision.is_bf16());
}

/// Rounds values to bf16.
pub(crate) fn round(pool: &Pool, x: &mut [f32]) {
    pool.chunks(x, TASK, |_, x| round_row(pool.isa(), x));
}

kernel! {
    fn add_row<'a>(s, x: &'a mut [f32], y: &'a [f32], bf16: bool) {
        update(s, x, y, #[inline(always)] |x, y| round_if(s, bf16, s.add(x, y)));
    }
}

kernel! {
    fn swiglu_row<'a>(s, gate: &'a [f32], up: &'a [f32], bf16: bool, out: &'a mut [f32]) {
        map2(s, gate, up, out, #[inline(always)] |gate, up| {
            round_if(s, bf16, s.mul(round_if(s, bf16, silu(s, gate)), up))
        });
    }
}

kernel! {
    fn gate_row<'a>(s, x: &'a mut [f32], gate: &'a [f32], bf16: bool) {
        update(s, x, gate, #[inline(always)] |x, gate| {
            round_if(s, bf16, s.mul(x, round_if(s, bf16, sigmoid(s, gate))))
        });
    }
}

kernel! {
    fn delta_row<'a>(
        s,
        b: &'a mut [f32],
        a: &'a mut [f32],
        rates: &'a [f32],
        biases: &'a [f32],
        bf16: bool,
    ) {
        update(s, b, rates, #[inline(always)] |b, _| round_if(s, bf16, sigmoid(s, b)));
        update(s, a, biases, #[inline(always)] |a, bias| softplus(s, s.add(a, bias)));
        update(s, a, rates, #[inline(always)] |a, rate| s.mul(rate, a));
    }
}

kernel! {
    /// Rounds values to bf16.
    pub(crate) fn round_row<'a>(s, x: &'a mut [f32]) {
        let (whole, rest) = x.as_chunks_mut::<{ crate::arch::LANES }>();
        for x in whole {
            let rounded = s.round_bf16(s.load(x));
            s.store(x, rounded);
        }
        for x in rest {
            *x = super::lanes::round_one(true, *x);
        }
    }
}

kernel! {
    /// `out = e^x`, value by value.
    pub(crate) fn exp_row<'a>(s, x: &'a [f32], out: &'a mut [f32]) {
        map(s, x, out, #[inline(always)] |x| super::math::exp(s, x));
    }
}
