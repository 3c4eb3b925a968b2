//! The gated delta rule by its plain recurrence, and the convolution before it.
//!
//! Source: Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks".

use super::ops::{l2_normalise, silu};

/// What one value head reads at one row.
#[derive(Clone, Copy, Debug)]
pub struct DeltaStep<'a> {
    /// Query, `[K]`, not normalised.
    pub q: &'a [f64],
    /// Key, `[K]`, not normalised.
    pub k: &'a [f64],
    /// Value, `[V]`.
    pub v: &'a [f64],
    /// How much of the state stays: `e^g`, g ≤ 0.
    pub g: f64,
    /// How much of the value's error is written, 0 to 1.
    pub beta: f64,
}

/// Moves the state `S`, `[K, V]`, on by one row and reads it: `S ← e^g S; S ← S + k ⊗ β (v − Sᵀk); o = Sᵀq`. Query and
/// key are first brought to length one, the query also divided by √K. Gives `[V]`.
pub fn delta_rule(state: &mut [f64], step: DeltaStep<'_>) -> Vec<f64> {
    let values = step.v.len();
    let k = l2_normalise(step.k);
    let root = (step.q.len() as f64).sqrt();
    let q: Vec<f64> = l2_normalise(step.q).iter().map(|q| q / root).collect();

    let decay = step.g.exp();
    state.iter_mut().for_each(|s| *s *= decay);
    let held = read(state, &k, values);
    let delta: Vec<f64> = step
        .v
        .iter()
        .zip(&held)
        .map(|(v, held)| step.beta * (v - held))
        .collect();
    for (row, k) in state.chunks_exact_mut(values).zip(&k) {
        row.iter_mut()
            .zip(&delta)
            .for_each(|(s, delta)| *s += k * delta);
    }
    read(state, &q, values)
}

/// `Sᵀ x`, `[V]`.
fn read(state: &[f64], x: &[f64], values: usize) -> Vec<f64> {
    let mut out = vec![0.0; values];
    for (row, x) in state.chunks_exact(values).zip(x) {
        out.iter_mut().zip(row).for_each(|(out, s)| *out += s * x);
    }
    out
}

/// The causal convolution of every channel with its own taps, then SiLU: the last tap is at the row itself, and before
/// the first row there is nothing. `x` is `[T, channels]`, `taps` is `[channels, kernel]`; gives `[T, channels]`.
pub fn convolve(x: &[f64], taps: &[f64], channels: usize) -> Vec<f64> {
    let kernel = taps.len() / channels;
    let at = |row: usize, channel: usize| {
        let tap = |back: usize| {
            x[(row - back) * channels + channel] * taps[channel * kernel + kernel - 1 - back]
        };
        silu((0..kernel.min(row + 1)).map(tap).sum())
    };
    (0..x.len() / channels)
        .flat_map(|row| (0..channels).map(move |channel| at(row, channel)))
        .collect()
}
