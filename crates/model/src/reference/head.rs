//! The joint schema head.
//!
//! LayerNorms, multi-head attention with packed input projections, and the pre-norm decoder layer are torch's; the rest
//! is `JointSchemaHead` of the release's module.

use descant_decision::{Encoded, Span};
use descant_release::{HeadConfig, LoadError};

use super::ops::{Matrix, add, cosine, dot, gelu, layer_norm, mean_rows, sigmoid, softmax, unit};
use crate::HeadWeights;

/// A head, whose weights are read while it runs.
#[derive(Debug)]
pub struct Head<'a> {
    config: &'a HeadConfig,
    weights: &'a dyn HeadWeights,
}

/// What the spans of a record say: rows of H values, from the normalised hidden rows and the output embedding.
struct Spans {
    /// q_k of each question, `[questions, H]`
    questions: Vec<f64>,
    /// c_o of each option of all questions, `[options, H]`
    contexts: Vec<f64>,
    /// x_o of each option, `[options, H]`
    lexical: Vec<f64>,
    /// g, `[H]`
    last: Vec<f64>,
}

impl<'a> Head<'a> {
    /// A head of these sizes and weights.
    pub fn new(config: &'a HeadConfig, weights: &'a dyn HeadWeights) -> Head<'a> {
        Head { config, weights }
    }

    /// The logits of every question of a record whose hidden rows are `hidden`, `[T, H]`.
    ///
    /// # Errors
    /// [`LoadError::TensorMissing`] and [`LoadError::Memory`].
    pub fn logits(&self, encoded: &Encoded, hidden: &[f64]) -> Result<Vec<Vec<f64>>, LoadError> {
        let n = self.norm_rows("hidden_norm", hidden)?;
        let mem = self.linear("memory_projection", &n)?;
        let spans = self.spans(encoded, &n)?;
        let options = self.route(encoded, &spans, &mem)?;
        let fields = self.decide(encoded, &spans, &options, &mem)?;
        self.score(encoded, &spans, &options, &fields)
    }

    fn spans(&self, encoded: &Encoded, n: &[f64]) -> Result<Spans, LoadError> {
        let width = self.config.hidden;
        let mean = |span: &Span| mean_rows(&n[span.start * width..span.end * width], width);
        let mut lexical = Vec::new();
        for (_, span) in option_spans(encoded) {
            lexical.extend(self.lexical(&encoded.ids[span.clone()])?);
        }
        Ok(Spans {
            questions: encoded
                .questions
                .iter()
                .flat_map(|question| mean(&question.span))
                .collect(),
            contexts: option_spans(encoded)
                .flat_map(|(_, span)| mean(span))
                .collect(),
            lexical,
            last: n[n.len() - width..].to_vec(),
        })
    }

    /// The mean of the output embedding's rows of some tokens, `[H]`.
    fn lexical(&self, ids: &[u32]) -> Result<Vec<f64>, LoadError> {
        let embedding = self.weights.lexical_embedding()?;
        let mut row = vec![0.0; self.config.hidden];
        let mut rows = Vec::new();
        for &id in ids {
            embedding.copy_rows_f32_into(id as usize..id as usize + 1, &mut row);
            rows.extend(row.iter().map(|&x| f64::from(x)));
        }
        Ok(mean_rows(&rows, self.config.hidden))
    }

    /// r of every option of all questions, `[options, W]`, after the evidence layers.
    fn route(&self, encoded: &Encoded, spans: &Spans, mem: &[f64]) -> Result<Vec<f64>, LoadError> {
        let width = self.config.width;
        let mut r = self.linear("option_context_projection", &spans.contexts)?;
        add(
            &mut r,
            &self.linear("option_lexical_projection", &spans.lexical)?,
        );
        let questions = self.linear("option_question_projection", &spans.questions)?;
        for (r, (question, _)) in r.chunks_exact_mut(width).zip(option_spans(encoded)) {
            add(r, &questions[question * width..][..width]);
        }
        for layer in 0..self.config.routing_layers {
            let at = format!("evidence_layers.{layer}");
            let queries = self.norm_rows(&format!("{at}.query_norm"), &r)?;
            let memory = self.norm_rows(&format!("{at}.memory_norm"), mem)?;
            add(
                &mut r,
                &self.attention(&format!("{at}.attention"), &queries, &memory)?,
            );
            let normed = self.norm_rows(&format!("{at}.feedforward_norm"), &r)?;
            add(
                &mut r,
                &self.feedforward(
                    [
                        &format!("{at}.feedforward.0"),
                        &format!("{at}.feedforward.3"),
                    ],
                    &normed,
                )?,
            );
        }
        Ok(r)
    }

    /// f of every question, `[questions, W]`, after the decoder layers and the field norm.
    fn decide(
        &self,
        encoded: &Encoded,
        spans: &Spans,
        options: &[f64],
        mem: &[f64],
    ) -> Result<Vec<f64>, LoadError> {
        let width = self.config.width;
        let mut f = self.linear("question_projection", &spans.questions)?;
        let global = self.linear("global_projection", &spans.last)?;
        let types = self.matrix("type_embedding.weight")?;
        for ((f, question), options) in f
            .chunks_exact_mut(width)
            .zip(&encoded.questions)
            .zip(per_question(encoded, options, width))
        {
            let summary = self.norm_rows("option_summary_norm", &summarise(f, options))?;
            let kind = types.part(question.kind as usize, 1).to_f64();
            add(f, &summary);
            add(f, &global);
            add(f, &kind);
        }
        for layer in 0..self.config.layers {
            let at = format!("layers.{layer}");
            let normed = self.norm_rows(&format!("{at}.norm1"), &f)?;
            add(
                &mut f,
                &self.attention(&format!("{at}.self_attn"), &normed, &normed)?,
            );
            let normed = self.norm_rows(&format!("{at}.norm2"), &f)?;
            add(
                &mut f,
                &self.attention(&format!("{at}.multihead_attn"), &normed, mem)?,
            );
            let normed = self.norm_rows(&format!("{at}.norm3"), &f)?;
            add(
                &mut f,
                &self.feedforward(
                    [&format!("{at}.linear1"), &format!("{at}.linear2")],
                    &normed,
                )?,
            );
        }
        self.norm_rows("field_norm", &f)
    }

    fn score(
        &self,
        encoded: &Encoded,
        spans: &Spans,
        options: &[f64],
        fields: &[f64],
    ) -> Result<Vec<Vec<f64>>, LoadError> {
        let (width, hidden) = (self.config.width, self.config.hidden);
        let prior_scale = self.scale("prior_logit_scale")?;
        let joint_scale = self.scale("joint_logit_scale")?;
        let gate = sigmoid(self.scalar("residual_gate")?);
        let options = self.norm_rows("option_norm", options)?;
        let mut logits = Vec::new();
        for (index, (options, lexical)) in per_question(encoded, &options, width)
            .zip(per_question(encoded, &spans.lexical, hidden))
            .enumerate()
        {
            let field = &fields[index * width..][..width];
            let mut anchor = spans.questions[index * hidden..][..hidden].to_vec();
            add(&mut anchor, &spans.last);
            let anchor = unit(&anchor);
            let mut of_question = Vec::new();
            for (option, lexical) in options
                .chunks_exact(width)
                .zip(lexical.chunks_exact(hidden))
            {
                let prior = prior_scale * dot(&unit(lexical), &anchor);
                let residual = self.feedforward(
                    ["residual_scorer.0", "residual_scorer.3"],
                    &features(field, option),
                )?;
                of_question
                    .push(prior + gate * (joint_scale * cosine(field, option) + residual[0]));
            }
            logits.push(of_question);
        }
        Ok(logits)
    }

    /// torch's multi-head attention from `queries`, `[n, W]`, to `memory`, `[T, W]`, without a mask.
    fn attention(&self, at: &str, queries: &[f64], memory: &[f64]) -> Result<Vec<f64>, LoadError> {
        let width = self.config.width;
        let weight = self.matrix(&format!("{at}.in_proj_weight"))?;
        let bias = self.matrix(&format!("{at}.in_proj_bias"))?.to_f64();
        let project = |part: usize, x: &[f64]| {
            let mut y = weight.part(part * width, width).apply_rows(x);
            y.chunks_exact_mut(width)
                .for_each(|row| add(row, &bias[part * width..][..width]));
            y
        };
        let (q, k, v) = (project(0, queries), project(1, memory), project(2, memory));
        let head_width = width / self.config.heads;
        let mut mixed = vec![0.0; q.len()];
        for (index, out) in mixed.chunks_exact_mut(head_width).enumerate() {
            let q = &q[index * head_width..][..head_width];
            let column = index % self.config.heads * head_width;
            let head_of = |row: &'_ [f64]| row[column..column + head_width].to_vec();
            let score = |k: &[f64]| dot(q, &head_of(k)) / (head_width as f64).sqrt();
            let mut weights: Vec<f64> = k.chunks_exact(width).map(score).collect();
            softmax(&mut weights);
            for (weight, v) in weights.iter().zip(v.chunks_exact(width)) {
                let weighted: Vec<f64> = head_of(v).iter().map(|v| weight * v).collect();
                add(out, &weighted);
            }
        }
        self.linear(&format!("{at}.out_proj"), &mixed)
    }

    /// Linear, GELU, linear.
    fn feedforward(&self, [first, second]: [&str; 2], x: &[f64]) -> Result<Vec<f64>, LoadError> {
        let inner: Vec<f64> = self.linear(first, x)?.into_iter().map(gelu).collect();
        self.linear(second, &inner)
    }

    /// A linear map of rows, with its bias if it has one.
    fn linear(&self, at: &str, x: &[f64]) -> Result<Vec<f64>, LoadError> {
        let mut y = self.matrix(&format!("{at}.weight"))?.apply_rows(x);
        // The six projections, which the head's config does not name, are those without a bias.
        if !at.ends_with("_projection") {
            let bias = self.matrix(&format!("{at}.bias"))?.to_f64();
            y.chunks_exact_mut(bias.len())
                .for_each(|row| add(row, &bias));
        }
        Ok(y)
    }

    fn norm_rows(&self, at: &str, x: &[f64]) -> Result<Vec<f64>, LoadError> {
        let weight = self.matrix(&format!("{at}.weight"))?.to_f64();
        let bias = self.matrix(&format!("{at}.bias"))?.to_f64();
        Ok(x.chunks_exact(weight.len())
            .flat_map(|row| layer_norm(row, &weight, &bias))
            .collect())
    }

    /// `exp(min(s, ln 100))`.
    fn scale(&self, name: &str) -> Result<f64, LoadError> {
        Ok(self.scalar(name)?.min(100.0_f64.ln()).exp())
    }

    fn scalar(&self, name: &str) -> Result<f64, LoadError> {
        Ok(self.matrix(name)?.to_f64()[0])
    }

    fn matrix(&self, name: &str) -> Result<Matrix, LoadError> {
        Matrix::from_tensor(self.weights.tensor(name)?)
    }
}

/// Every option's question and span, in order.
fn option_spans(encoded: &Encoded) -> impl Iterator<Item = (usize, &Span)> {
    encoded
        .questions
        .iter()
        .enumerate()
        .flat_map(|(index, question)| {
            question
                .options
                .iter()
                .map(move |option| (index, &option.span))
        })
}

/// Rows of all options, cut into those of each question.
fn per_question<'a>(
    encoded: &'a Encoded,
    rows: &'a [f64],
    width: usize,
) -> impl Iterator<Item = &'a [f64]> {
    encoded.questions.iter().scan(rows, move |rest, question| {
        let (of_question, after) = rest.split_at(question.options.len() * width);
        *rest = after;
        Some(of_question)
    })
}

/// `s = Σ_o softmax_o(r_o · b / √W) r_o`, `[W]`.
fn summarise(b: &[f64], options: &[f64]) -> Vec<f64> {
    let width = b.len();
    let mut weights: Vec<f64> = options
        .chunks_exact(width)
        .map(|r| dot(r, b) / (width as f64).sqrt())
        .collect();
    softmax(&mut weights);
    let mut s = vec![0.0; width];
    for (weight, r) in weights.iter().zip(options.chunks_exact(width)) {
        s.iter_mut().zip(r).for_each(|(s, r)| *s += weight * r);
    }
    s
}

/// `[f, o, f∘o, |f−o|]`, `[4 W]`.
fn features(f: &[f64], o: &[f64]) -> Vec<f64> {
    let product = f.iter().zip(o).map(|(f, o)| f * o);
    let distance = f.iter().zip(o).map(|(f, o)| (f - o).abs());
    f.iter()
        .chain(o)
        .copied()
        .chain(product)
        .chain(distance)
        .collect()
}
