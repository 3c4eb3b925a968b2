//! The head's forward pass, once memory and spans are complete.
//!
//! Letters: T rows, H hidden, W width; q, c, x, g are rows of H, r, b, s, f rows of W.
//! Precision: the few rows that decide a logit (options, questions) are f64, products included: f32 chains of 1024 and 4096
//! terms would move a logit by 2e-6. The many memory rows are f32, and so are their products; what these round averages
//! out over the rows.

use descant_decision::{Encoded, Logits};
use descant_release::HeadConfig;

use super::attention::{Attention, KEYS, SPARE};
use super::gelu::gelu_all;
use super::norm::LayerNorm;
use super::weights::{FeedForward, Projections, Weights};
use crate::{Linear, Pool};

/// Memory rows whose keys and values are computed together; whole blocks of keys.
const MEMORY_ROWS: usize = 15 * KEYS;

/// What the forward pass reads.
#[derive(Debug)]
pub(super) struct Inputs {
    /// q_k, `[questions, H]`
    pub(super) questions: Vec<f64>,
    /// c_o, `[options, H]`
    pub(super) contexts: Vec<f64>,
    /// x_o, `[options, H]`
    pub(super) lexical: Vec<f64>,
    /// g, `[H]`
    pub(super) last: Vec<f64>,
    /// mem, `[T, W]`
    pub(super) memory: Vec<f32>,
}

/// A head at work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forward<'a> {
    pub(super) config: &'a HeadConfig,
    pub(super) weights: &'a Weights,
    pub(super) pool: &'a Pool,
}

impl Forward<'_> {
    /// The logits of a record.
    pub(super) fn logits(self, encoded: &Encoded, inputs: &Inputs) -> Logits {
        let questions = encoded.questions.iter();
        let counts: Vec<usize> = questions
            .clone()
            .map(|question| question.options.len())
            .collect();
        let kinds: Vec<usize> = questions.map(|question| question.kind as usize).collect();
        let r = self.route(&counts, inputs);
        let f = self.decide(&counts, &kinds, inputs, &r);
        self.score(&counts, inputs, &r, &f)
    }

    /// r of every option, `[options, W]`: `P_context c + P_lexical x + P_option_question q`, then the evidence layers.
    fn route(self, counts: &[usize], inputs: &Inputs) -> Vec<f64> {
        let (weights, width) = (self.weights, self.config.width);
        let mut r = self.linear(&weights.option_context, &inputs.contexts);
        add(
            &mut r,
            &self.linear(&weights.option_lexical, &inputs.lexical),
        );
        let questions = self.linear(&weights.option_question, &inputs.questions);
        for (options, question) in
            groups_mut(&mut r, counts, width).zip(questions.chunks_exact(width))
        {
            options
                .chunks_exact_mut(width)
                .for_each(|r| add(r, question));
        }
        for layer in &weights.evidence {
            let queries = layer.query_norm.rows(&r);
            let norm = Some(&layer.memory_norm);
            add(
                &mut r,
                &self.read(&layer.attention, &queries, &inputs.memory, norm),
            );
            let normed = layer.feedforward_norm.rows(&r);
            add(&mut r, &self.feedforward(&layer.feedforward, &normed));
        }
        r
    }

    /// f of every question, `[questions, W]`: `b + norm(s) + P_global g + type`, then the decoder layers.
    fn decide(self, counts: &[usize], kinds: &[usize], inputs: &Inputs, r: &[f64]) -> Vec<f64> {
        let (weights, width) = (self.weights, self.config.width);
        let mut f = self.linear(&weights.question, &inputs.questions);
        let summaries: Vec<f64> = f
            .chunks_exact(width)
            .zip(groups(r, counts, width))
            .flat_map(|(b, options)| summary(b, options))
            .collect();
        add(&mut f, &weights.summary_norm.rows(&summaries));
        let global = self.linear(&weights.global, &inputs.last);
        for (f, kind) in f.chunks_exact_mut(width).zip(kinds) {
            add(f, &global);
            add(f, &weights.types[kind * width..][..width]);
        }
        for layer in &weights.decoder {
            let normed = layer.norm1.rows(&f);
            add(&mut f, &self.converse(&layer.self_attention, &normed));
            let normed = layer.norm2.rows(&f);
            add(
                &mut f,
                &self.read(&layer.cross_attention, &normed, &inputs.memory, None),
            );
            let normed = layer.norm3.rows(&f);
            add(&mut f, &self.feedforward(&layer.feedforward, &normed));
        }
        weights.field_norm.rows(&f)
    }

    /// `prior + sigmoid(gate) · (scale · cos(f, o') + scorer([f, o', f∘o', |f−o'|]))` of every option.
    fn score(self, counts: &[usize], inputs: &Inputs, r: &[f64], f: &[f64]) -> Logits {
        let (weights, width, hidden) = (self.weights, self.config.width, self.config.hidden);
        let options = weights.option_norm.rows(r);
        let features: Vec<f64> = groups(&options, counts, width)
            .zip(f.chunks_exact(width))
            .flat_map(|(options, f)| options.chunks_exact(width).flat_map(|o| features(f, o)))
            .collect();
        let residuals = self.feedforward(&weights.scorer, &features);

        let mut logits = Vec::new();
        let of_question = groups(&options, counts, width)
            .zip(groups(&inputs.lexical, counts, hidden))
            .zip(groups(&residuals, counts, 1));
        let fields = f
            .chunks_exact(width)
            .zip(inputs.questions.chunks_exact(hidden));
        for (((options, lexical), residuals), (f, question)) in of_question.zip(fields) {
            let anchor = anchor(question, &inputs.last);
            let pairs = options
                .chunks_exact(width)
                .zip(lexical.chunks_exact(hidden));
            let logit = |((option, lexical), residual): ((&[f64], &[f64]), &f64)| {
                let prior = weights.prior_scale * dot(&unit(lexical), &anchor);
                let joint = weights.joint_scale * cosine(f, option) + residual;
                (prior + weights.gate * joint) as f32
            };
            logits.push(pairs.zip(residuals).map(logit).collect());
        }
        logits
    }

    /// Attention of queries, `[n, W]`, over the memory, block by block, so that keys and values of a block alone exist.
    fn read(
        self,
        attention: &Projections,
        queries: &[f64],
        memory: &[f32],
        norm: Option<&LayerNorm>,
    ) -> Vec<f64> {
        let width = self.config.width;
        let queries = self.linear(&attention.query, queries);
        let mut state = Attention::new(self.config.heads, width, &queries);
        let (mut normed, mut keys_values) = (Vec::new(), Vec::new());
        for block in memory.chunks(MEMORY_ROWS * width) {
            let (rows, values) = (block.len() / width, 2 * block.len());
            let block = match norm {
                None => block,
                Some(norm) => {
                    normed.resize(block.len(), 0.0);
                    norm.rows_into(self.pool, block, &mut normed);
                    &normed
                }
            };
            keys_values.resize(values + SPARE, 0.0);
            let out = &mut keys_values[..values];
            attention.memory.forward_f32(self.pool, block, rows, out);
            state.absorb(self.pool, rows, &keys_values);
        }
        self.linear(&attention.out, &state.finish())
    }

    /// Attention of rows, `[n, W]`, over one another.
    fn converse(self, attention: &Projections, rows: &[f64]) -> Vec<f64> {
        let queries = self.linear(&attention.query, rows);
        let mut state = Attention::new(self.config.heads, self.config.width, &queries);
        let keys_values = self.linear(&attention.memory, rows);
        let spare = std::iter::repeat_n(0.0, SPARE);
        let keys_values: Vec<f32> = keys_values.iter().map(|x| *x as f32).chain(spare).collect();
        state.absorb(self.pool, rows.len() / self.config.width, &keys_values);
        self.linear(&attention.out, &state.finish())
    }

    fn feedforward(self, layer: &FeedForward, rows: &[f64]) -> Vec<f64> {
        let mut inner = self.linear(&layer.first, rows);
        gelu_all(self.pool, &mut inner);
        self.linear(&layer.second, &inner)
    }

    /// A linear map of a few rows, in f64.
    fn linear(self, linear: &Linear, x: &[f64]) -> Vec<f64> {
        linear.forward_f64(self.pool, x, x.len() / linear.inputs())
    }
}

/// The direction `(q + g) / max(‖q + g‖, 1e-12)`, `[H]`.
fn anchor(question: &[f64], last: &[f64]) -> Vec<f64> {
    let sum: Vec<f64> = question.iter().zip(last).map(|(q, g)| q + g).collect();
    unit(&sum)
}

/// `x / max(‖x‖, 1e-12)`.
fn unit(x: &[f64]) -> Vec<f64> {
    let length = norm(x).max(UNIT_EPS);
    x.iter().map(|x| x / length).collect()
}

/// `s = Σ_o softmax_o(r_o · b / √W) r_o`, `[W]`.
fn summary(b: &[f64], options: &[f64]) -> Vec<f64> {
    let root = (b.len() as f64).sqrt();
    let scores = options.chunks_exact(b.len()).map(|r| dot(r, b) / root);
    let scores: Vec<f64> = scores.collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut s = vec![0.0; b.len()];
    for (weight, r) in weights.iter().zip(options.chunks_exact(b.len())) {
        s.iter_mut()
            .zip(r)
            .for_each(|(s, r)| *s += weight / total * r);
    }
    s
}

/// `[f, o, f∘o, |f−o|]`, `[4 W]`.
fn features(f: &[f64], o: &[f64]) -> Vec<f64> {
    let product = f.iter().zip(o).map(|(f, o)| f * o);
    let distance = f.iter().zip(o).map(|(f, o)| (f - o).abs());
    let both = f.iter().chain(o).copied();
    both.chain(product).chain(distance).collect()
}

/// `a · b / (max(‖a‖, 1e-8) · max(‖b‖, 1e-8))`.
fn cosine(a: &[f64], b: &[f64]) -> f64 {
    dot(a, b) / (norm(a).max(COSINE_EPS) * norm(b).max(COSINE_EPS))
}

fn norm(x: &[f64]) -> f64 {
    dot(x, x).sqrt()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `x += y`.
fn add<T: Copy + Into<f64>>(x: &mut [f64], y: &[T]) {
    assert_eq!(x.len(), y.len(), "rows of two widths");
    x.iter_mut().zip(y).for_each(|(x, y)| *x += (*y).into());
}

/// Rows of all options, cut into those of each question.
fn groups<'a>(
    mut rows: &'a [f64],
    counts: &'a [usize],
    width: usize,
) -> impl Iterator<Item = &'a [f64]> {
    counts.iter().map(move |count| {
        rows.split_off(..count * width)
            .expect("a row for each option")
    })
}

/// As [`groups`].
fn groups_mut<'a>(
    mut rows: &'a mut [f64],
    counts: &'a [usize],
    width: usize,
) -> impl Iterator<Item = &'a mut [f64]> {
    counts.iter().map(move |count| {
        rows.split_off_mut(..count * width)
            .expect("a row for each option")
    })
}

/// torch's `normalize`.
const UNIT_EPS: f64 = 1e-12;
/// torch's `cosine_similarity`, for each length.
const COSINE_EPS: f64 = 1e-8;
