//! The gated delta rule: a recurrent state of keys and values, by chunks of 64 rows or row by row.
//!
//! Row by row, with `d = e^decay`: `S ← d S; S ← S + k ⊗ (β (v − Sᵀ k)); o = Sᵀ q`. By chunks the same is re-associated: with
//! c the running sum of decays in the chunk and `E[i][j] = e^(c[i] − c[j])` for j ≤ i,
//! `T = (I + tril(β K Kᵀ ∘ E, −1))⁻¹`, `U = T β V − T (β e^c K) S`, `o = (e^c Q) S + (Q Kᵀ ∘ E) U`,
//! `S ← e^(c[last]) S + (e^(c[last] − c) K)ᵀ U`.
//!
//! Shapes: q, k `[K]`, v, o `[V]`, S `[K][Vp]` f32 (Vp is V rounded up to sixteen), a value head each; f32 whatever the
//! precision, but for what comes in and `o`, which is rounded in bf16.
//! Sum order: every product is one chain of multiply-adds; the running sum of decays is taken in f64, in order. Chunks
//! count from the stream's first row; the last may be short, which leaves out rows and changes none.
//! Source: Yang et al. 2024 (gated DeltaNet); the reference's `torch_chunk_gated_delta_rule` and
//! `torch_recurrent_gated_delta_rule`.
//! Cost: about 12 · 64 · K · V operations a chunk of a head.

use descant_model::CHUNK_ROWS;

use super::gate::exp_row;
use crate::arch::{Isa, LANES, Left, Right, Simd, kernel, matmul, with_scratch};

/// Sizes of a head.
#[derive(Clone, Copy)]
pub(crate) struct DeltaShape {
    /// Width of keys and queries, K.
    pub(crate) key: usize,
    /// Width of values, V.
    pub(crate) value: usize,
}

impl DeltaShape {
    /// V rounded up to whole vectors.
    pub(crate) fn value_padded(&self) -> usize {
        self.value.next_multiple_of(LANES)
    }

    /// Values of a head's state.
    pub(crate) fn state(&self) -> usize {
        self.key * self.value_padded()
    }

    fn key_padded(&self) -> usize {
        self.key.next_multiple_of(LANES)
    }
}

/// One row's inputs of a head.
#[derive(Clone, Copy)]
pub(crate) struct DeltaRow<'a> {
    /// `[K]`, of length 1, times `1 / √K`.
    pub(crate) query: &'a [f32],
    /// `[K]`, of length 1.
    pub(crate) key: &'a [f32],
    /// `[V]`.
    pub(crate) value: &'a [f32],
    /// What the state is multiplied by is `e^decay`.
    pub(crate) decay: f32,
    /// How much of the difference is written.
    pub(crate) beta: f32,
}

/// Moves a state on by one row; `out` is `[V]`.
pub(crate) fn step(
    isa: Isa,
    shape: DeltaShape,
    state: &mut [f32],
    row: DeltaRow<'_>,
    out: &mut [f32],
) {
    let mut value = row.value;
    for (panel, out) in out.chunks_mut(LANES).enumerate() {
        let (now, later) = value.split_at(out.len());
        value = later;
        let state = &mut state[panel * LANES..];
        step_lanes(
            isa,
            shape.value_padded(),
            state,
            DeltaRow { value: now, ..row },
            out,
        );
    }
}

/// A chunk's rows, `n` of them, gathered by the caller and worked on here.
pub(crate) struct Chunk<'a> {
    shape: DeltaShape,
    rows: usize,
    /// `[64, K]`: queries, later times `e^c`.
    queries: &'a mut [f32],
    /// `[64, K]`.
    keys: &'a mut [f32],
    /// `[64, Vp]`: values, later U.
    values: &'a mut [f32],
    /// `[64]`: decays, later their running sums c.
    decays: &'a mut [f32],
    /// `[64]`.
    betas: &'a mut [f32],
    /// `[K, 64]`: keys, columns and rows exchanged.
    keys_across: &'a mut [f32],
    /// `[64, Kp]`: `β e^c K`.
    decayed_keys: &'a mut [f32],
    /// `[64, Kp]`: `−T (β e^c K)`.
    written: &'a mut [f32],
    /// `[64, 64]`: T, later `Q Kᵀ ∘ E`.
    square: &'a mut [f32],
    /// `[64, 64]`: E.
    fading: &'a mut [f32],
    /// `[64, Vp]`: `β V`, later the outputs.
    outs: &'a mut [f32],
}

/// Runs `task` on an empty chunk's memory.
pub(crate) fn with_chunk(shape: DeltaShape, task: impl FnOnce(&mut Chunk<'_>)) {
    const N: usize = CHUNK_ROWS;
    let (key, key_padded, value) = (shape.key, shape.key_padded(), shape.value_padded());
    let sizes = [
        N * key,
        N * key,
        N * value,
        N,
        N,
        key * N,
        N * key_padded,
        N * key_padded,
        N * N,
        N * N,
        N * value,
    ];
    with_scratch(sizes.iter().sum(), |scratch| {
        let mut rest = scratch;
        let [
            queries,
            keys,
            values,
            decays,
            betas,
            keys_across,
            decayed_keys,
            written,
            square,
            fading,
            outs,
        ] = sizes.map(|size| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(size);
            rest = after;
            part
        });
        task(&mut Chunk {
            shape,
            rows: 0,
            queries,
            keys,
            values,
            decays,
            betas,
            keys_across,
            decayed_keys,
            written,
            square,
            fading,
            outs,
        });
    });
}

/// Places of one row in a chunk: query, key, value.
pub(crate) type Places<'a> = (&'a mut [f32], &'a mut [f32], &'a mut [f32]);

impl Chunk<'_> {
    /// Empties the chunk.
    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        // Lanes past K and V stay zero; a short chunk's missing rows are never a term of a sum.
        self.values.fill(0.0);
        self.decayed_keys.fill(0.0);
        self.keys_across.fill(0.0);
        self.outs.fill(0.0);
    }

    /// Adds a row, and gives the places for its query, key and value.
    pub(crate) fn push(&mut self, decay: f32, beta: f32) -> Places<'_> {
        let (row, shape) = (self.rows, self.shape);
        self.rows += 1;
        self.decays[row] = decay;
        self.betas[row] = beta;
        (
            &mut self.queries[row * shape.key..][..shape.key],
            &mut self.keys[row * shape.key..][..shape.key],
            &mut self.values[row * shape.value_padded()..][..shape.value],
        )
    }

    /// Moves the state on by the chunk's rows and gives each row's output, `[V]`, to `out`.
    pub(crate) fn run(&mut self, isa: Isa, state: &mut [f32], mut out: impl FnMut(usize, &[f32])) {
        self.fade(isa);
        self.solve(isa);
        self.write(isa, state);
        self.read(isa, state);
        self.keep(isa, state);
        for (row, values) in self
            .outs
            .chunks_exact(self.shape.value_padded())
            .take(self.rows)
            .enumerate()
        {
            out(row, &values[..self.shape.value]);
        }
    }

    /// c and E.
    fn fade(&mut self, isa: Isa) {
        let mut sum = 0.0;
        for decay in &mut self.decays[..self.rows] {
            sum += f64::from(*decay);
            *decay = sum as f32;
        }
        let mut differences = [0.0; CHUNK_ROWS];
        for (i, fading) in self
            .fading
            .chunks_exact_mut(CHUNK_ROWS)
            .take(self.rows)
            .enumerate()
        {
            for (j, difference) in differences[..=i].iter_mut().enumerate() {
                *difference = self.decays[i] - self.decays[j];
            }
            exp_row(isa, &differences[..=i], &mut fading[..=i]);
            fading[i + 1..].fill(0.0);
        }
    }

    /// T, by forward substitution, row after row.
    fn solve(&mut self, isa: Isa) {
        let (n, key) = (self.rows, self.shape.key);
        for (row, keys) in self.keys.chunks_exact(key).take(n).enumerate() {
            for (k, x) in keys.iter().enumerate() {
                self.keys_across[k * CHUNK_ROWS + row] = *x;
            }
        }
        let across = Right {
            data: self.keys_across,
            k_stride: CHUNK_ROWS,
            panel_stride: LANES,
        };
        matmul(
            isa,
            key,
            Left::strided(self.keys, n, key, 1),
            across,
            (self.square, CHUNK_ROWS, CHUNK_ROWS),
            false,
        );
        for i in 0..n {
            let (above, row) = self.square.split_at_mut(i * CHUNK_ROWS);
            let row = &mut row[..CHUNK_ROWS];
            for (j, x) in row[..i].iter_mut().enumerate() {
                *x = -(*x * self.betas[i] * self.fading[i * CHUNK_ROWS + j]);
            }
            row[i..].fill(0.0);
            if i > 0 {
                let mut direct = [0.0; CHUNK_ROWS];
                direct.copy_from_slice(row);
                // The rows above are still without their ones on the diagonal: these are the direct terms, which the row
                // holds already.
                let right = Right {
                    data: above,
                    k_stride: CHUNK_ROWS,
                    panel_stride: LANES,
                };
                matmul(
                    isa,
                    i,
                    Left::strided(&direct, 1, CHUNK_ROWS, 1),
                    right,
                    (row, CHUNK_ROWS, CHUNK_ROWS),
                    true,
                );
            }
        }
        for i in 0..n {
            self.square[i * CHUNK_ROWS + i] = 1.0;
        }
    }

    /// U, in the place of the values.
    fn write(&mut self, isa: Isa, state: &[f32]) {
        let (n, shape) = (self.rows, self.shape);
        let (key, key_padded, value) = (shape.key, shape.key_padded(), shape.value_padded());
        let mut faded = [0.0; CHUNK_ROWS];
        exp_row(isa, &self.decays[..n], &mut faded[..n]);
        for (row, faded) in faded[..n].iter().enumerate() {
            let beta = self.betas[row];
            let (values, outs) = (
                &self.values[row * value..][..value],
                &mut self.outs[row * value..][..value],
            );
            outs.iter_mut()
                .zip(values)
                .for_each(|(out, value)| *out = value * beta);
            let (keys, decayed) = (
                &self.keys[row * key..][..key],
                &mut self.decayed_keys[row * key_padded..][..key],
            );
            decayed
                .iter_mut()
                .zip(keys)
                .for_each(|(out, key)| *out = key * beta * faded);
        }
        let square = Left::strided(self.square, n, CHUNK_ROWS, 1);
        let right = Right {
            data: self.outs,
            k_stride: value,
            panel_stride: LANES,
        };
        matmul(isa, n, square, right, (self.values, value, value), false);
        let right = Right {
            data: self.decayed_keys,
            k_stride: key_padded,
            panel_stride: LANES,
        };
        matmul(
            isa,
            n,
            square,
            right,
            (self.written, key_padded, key_padded),
            false,
        );
        self.written[..n * key_padded]
            .iter_mut()
            .for_each(|x| *x = -*x);
        let right = Right {
            data: state,
            k_stride: value,
            panel_stride: LANES,
        };
        matmul(
            isa,
            key,
            Left::strided(self.written, n, key_padded, 1),
            right,
            (self.values, value, value),
            true,
        );
    }

    /// The outputs.
    fn read(&mut self, isa: Isa, state: &[f32]) {
        let (n, shape) = (self.rows, self.shape);
        let (key, value) = (shape.key, shape.value_padded());
        let across = Right {
            data: self.keys_across,
            k_stride: CHUNK_ROWS,
            panel_stride: LANES,
        };
        matmul(
            isa,
            key,
            Left::strided(self.queries, n, key, 1),
            across,
            (self.square, CHUNK_ROWS, CHUNK_ROWS),
            false,
        );
        for (x, fading) in self.square[..n * CHUNK_ROWS].iter_mut().zip(&*self.fading) {
            *x *= fading;
        }
        let mut faded = [0.0; CHUNK_ROWS];
        exp_row(isa, &self.decays[..n], &mut faded[..n]);
        for (queries, faded) in self.queries.chunks_exact_mut(key).zip(&faded[..n]) {
            queries.iter_mut().for_each(|x| *x *= faded);
        }
        let right = Right {
            data: state,
            k_stride: value,
            panel_stride: LANES,
        };
        matmul(
            isa,
            key,
            Left::strided(self.queries, n, key, 1),
            right,
            (self.outs, value, value),
            false,
        );
        let right = Right {
            data: self.values,
            k_stride: value,
            panel_stride: LANES,
        };
        matmul(
            isa,
            n,
            Left::strided(self.square, n, CHUNK_ROWS, 1),
            right,
            (self.outs, value, value),
            true,
        );
    }

    /// The state after the chunk.
    fn keep(&mut self, isa: Isa, state: &mut [f32]) {
        let (n, shape) = (self.rows, self.shape);
        let (key, value) = (shape.key, shape.value_padded());
        let last = self.decays[n - 1];
        let mut left = [0.0; CHUNK_ROWS + 1];
        for (left, decay) in left.iter_mut().zip(&self.decays[..n]) {
            *left = last - decay;
        }
        left[n] = last;
        let mut faded = [0.0; CHUNK_ROWS + 1];
        exp_row(isa, &left[..=n], &mut faded[..=n]);
        for (keys, faded) in self.keys.chunks_exact_mut(key).zip(&faded[..n]) {
            keys.iter_mut().for_each(|x| *x *= faded);
        }
        state.iter_mut().for_each(|x| *x *= faded[n]);
        let right = Right {
            data: self.values,
            k_stride: value,
            panel_stride: LANES,
        };
        matmul(
            isa,
            n,
            Left::strided(self.keys, key, 1, key),
            right,
            (state, value, value),
            true,
        );
    }
}

kernel! {
    /// One step of up to sixteen of a head's values, whose state columns begin at `state[0]`.
    fn step_lanes<'a>(s, stride: usize, state: &'a mut [f32], row: DeltaRow<'a>, out: &'a mut [f32]) {
        let fade = exp_of(s, row.decay);
        let mut known = s.splat(0.0);
        for (k, key) in row.key.iter().enumerate() {
            let place = &mut state[k * stride..][..LANES];
            let faded = s.mul(s.load(place), fade);
            s.store(place, faded);
            known = s.fma(faded, s.splat(*key), known);
        }
        let difference = s.mul(s.sub(s.load_part(row.value, 0.0), known), s.splat(row.beta));
        let mut sum = s.splat(0.0);
        for ((k, key), query) in row.key.iter().enumerate().zip(row.query) {
            let place = &mut state[k * stride..][..LANES];
            let written = s.fma(s.splat(*key), difference, s.load(place));
            s.store(place, written);
            sum = s.fma(written, s.splat(*query), sum);
        }
        s.store_part(out, sum);
    }
}

/// `e^x` in all lanes.
#[inline(always)]
fn exp_of<S: Simd>(s: S, x: f32) -> S::F {
    super::math::exp(s, s.splat(x))
}
