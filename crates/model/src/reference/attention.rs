//! Softmax attention over earlier rows, with rotary positions and an output gate.

use descant_release::AttentionConfig;

use super::ops::{dot, rms_norm, sigmoid, softmax};

/// What the attention of one layer knows besides its projections.
#[derive(Debug)]
pub struct CausalAttention<'a> {
    /// Its sizes.
    pub config: &'a AttentionConfig,
    /// Weight of the norm of each query head, `[D]`.
    pub q_norm: &'a [f64],
    /// Weight of the norm of each key head, `[D]`.
    pub k_norm: &'a [f64],
    /// Epsilon of both norms.
    pub eps: f64,
}

impl CausalAttention<'_> {
    /// Attends from every row to itself and the rows before it; position i is row i.
    ///
    /// `queries_and_gates` is `[T, heads, 2, D]`, `keys` and `values` are `[T, kv_heads, D]`; gives the gated heads,
    /// `[T, heads, D]`.
    pub fn run(&self, queries_and_gates: &[f64], keys: &[f64], values: &[f64]) -> Vec<f64> {
        let AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            ..
        } = *self.config;
        let rows = queries_and_gates.len() / (heads * 2 * head_dim);
        let keys: Vec<Vec<f64>> = keys
            .chunks_exact(head_dim)
            .enumerate()
            .map(|(index, key)| self.turned(key, self.k_norm, index / kv_heads))
            .collect();
        let values: Vec<&[f64]> = values.chunks_exact(head_dim).collect();
        let mut out = Vec::with_capacity(rows * heads * head_dim);
        for (index, pair) in queries_and_gates.chunks_exact(2 * head_dim).enumerate() {
            let (row, head) = (index / heads, index % heads);
            let (query, gate) = pair.split_at(head_dim);
            let query = self.turned(query, self.q_norm, row);
            let kv_head = head / (heads / kv_heads);
            let place = |key_row: usize| key_row * kv_heads + kv_head;

            let score = |key_row| dot(&query, &keys[place(key_row)]) / (head_dim as f64).sqrt();
            let mut weights: Vec<f64> = (0..=row).map(score).collect();
            softmax(&mut weights);
            for (dim, gate) in gate.iter().enumerate() {
                let mixed: f64 = weights
                    .iter()
                    .enumerate()
                    .map(|(key_row, w)| w * values[place(key_row)][dim])
                    .sum();
                out.push(mixed * sigmoid(*gate));
            }
        }
        out
    }

    /// A query or key head, `[D]`, normalised and turned to its position.
    fn turned(&self, head: &[f64], norm: &[f64], position: usize) -> Vec<f64> {
        let mut head = rms_norm(head, norm, self.eps);
        let angles = rotary_angles(self.config, [position; 3]);
        rotate(&mut head[..self.config.rotary_dims], &angles);
        head
    }
}

/// The angles of a position, `[rotary_dims / 2]`; `position` has a time, a height and a width, which are equal in
/// text. Frequency j turns by the height where `j % 3 == 1` and `j < 3 · section[1]`, by the width where `j % 3 == 2`
/// and `j < 3 · section[2]`, else by the time.
///
/// Frequencies and angles are f32, as in the reference: at position 16,383 an f64 angle lies 2e-4 away.
pub fn rotary_angles(config: &AttentionConfig, position: [usize; 3]) -> Vec<f64> {
    let [_, height, width] = config.mrope_section;
    let angle = |j: usize| {
        let exponent = (2 * j) as f32 / config.rotary_dims as f32;
        let frequency = 1.0 / (config.rope_theta.powf(f64::from(exponent)) as f32);
        let axis = match j % 3 {
            1 if j < 3 * height => 1,
            2 if j < 3 * width => 2,
            _ => 0,
        };
        f64::from(frequency * position[axis] as f32)
    };
    (0..config.rotary_dims / 2).map(angle).collect()
}

/// Turns pairs (i, i + n) of `x`, `[2n]`, by `angles`, `[n]`.
pub fn rotate(x: &mut [f64], angles: &[f64]) {
    let (first, second) = x.split_at_mut(angles.len());
    for ((a, b), angle) in first.iter_mut().zip(second).zip(angles) {
        let (sin, cos) = angle.sin_cos();
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}
