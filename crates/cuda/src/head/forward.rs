//! The head's passes, queued on its stream: rows taken in piece by piece, and the forward pass once they are complete.
//!
//! Letters: T rows, H hidden, W width; q, c, x, g are rows of H, r, b, s, f rows of W.
//!
//! Attention over the memory is restructured: a head's score of a query and a row m is `q · (W_k m + b_k)`, which is
//! `(W_kᵀ q) · m` and a constant that the softmax does not see; what it mixes is `W_v (Σ p m) + b_v`. So keys and values of
//! rows are never made, and a decision with few queries takes a fraction of the work.

use super::room::{OPTIONS, Place, RESIDUAL_PITCH, ROWS, Work};
use super::weights::{Attention, FeedForward, Linear, Norm, Weights};
use crate::bench::{Part, Profile};
use crate::driver::{Block, Gpu};
use crate::error::CudaError;
use crate::launch::{HeadKernels, HeadMap, HeadSizes, Mix, PAIR_QUERIES, Rows, SplitProduct};

/// What a pass needs.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) kernels: &'a HeadKernels,
    pub(super) sizes: HeadSizes,
    pub(super) weights: &'a Weights,
    pub(super) work: &'a Work,
    pub(super) place: &'a Place,
    /// Notes the parts of the pass, if it is to be measured.
    pub(super) profile: Option<&'a Profile>,
}

/// A record as lists on the device.
#[derive(Debug)]
pub(super) struct Schema {
    /// First option, options, kind, unused of each question.
    pub(super) questions: Block<[i32; 4]>,
    /// The question of each option.
    pub(super) question_of: Block<i32>,
    /// Rows of each span: questions, options, the last row.
    pub(super) span_rows: Block<i32>,
    /// Rows of the prompt.
    pub(super) rows: usize,
}

/// Where the mean rows of the output embedding come from.
pub(super) enum Lexical<'a> {
    /// A table on the device, `[vocab, H]` bf16; the tokens of all options' spans, and where each option's begin.
    Table {
        table: &'a Block<u16>,
        ids: Block<i32>,
        starts: Block<i32>,
    },
    /// Means that the host made, `[options, hidden pitch]`.
    Means(&'a [f64]),
}

impl Forward<'_> {
    /// Takes hidden rows, the first of which is the prompt's row `start`: their memory rows, and their share of the spans
    /// in `parts` (span, first row, row after the last, unused; rows counted within these).
    pub(super) fn absorb(
        &self,
        start: usize,
        rows: Rows<'_>,
        count: usize,
        parts: &[[i32; 4]],
    ) -> Result<(), CudaError> {
        let (gpu, kernels, work) = (self.gpu, self.kernels, self.work);
        let HeadSizes {
            width,
            pitch,
            hidden,
            hidden_pitch,
            ..
        } = self.sizes;
        assert!(count <= ROWS, "a piece at a time");
        let norm = self.weights.hidden_norm.both();
        let stats = work.stats.part(0..count);
        let factor = self.weights.hidden_factor;
        kernels.norm(gpu, rows, norm, &work.normed, (factor, &stats))?;
        self.note("head: hidden norm", 0.0, (count * hidden * 6) as f64)?;
        if !parts.is_empty() {
            let list = work.span_parts.part(0..parts.len());
            gpu.upload(&list, parts)?;
            kernels.spans(gpu, (rows, &stats), norm, &list, &self.place.sums)?;
            self.note("head: spans", 0.0, 0.0)?;
        }
        let projection = &self.weights.memory;
        kernels.product(
            gpu,
            SplitProduct {
                a: &work.normed,
                a_pitch: hidden_pitch,
                b: &projection.high,
                b_low: projection.low.as_ref(),
                b_pitch: hidden_pitch,
                across: false,
                out: &work.memory,
                out_pitch: pitch,
                scale: projection.scale / factor,
                m: count,
                n: width,
                k: hidden_pitch,
                k_split: hidden_pitch.next_multiple_of(64),
            },
        )?;
        self.note(
            "head: memory projection",
            (4 * count * hidden * width) as f64,
            0.0,
        )?;
        let range = start * pitch..(start + count) * pitch;
        let forms = self.place.forms.part(start..start + count);
        kernels.memory(
            gpu,
            &work.memory,
            &self.place.memory.part(range),
            &forms,
            count,
        )?;
        self.note("head: memory norm", 0.0, (count * width * 8) as f64)
    }

    /// The logits of a record, in order, in `work.logits`.
    pub(super) fn logits(&self, schema: &Schema, lexical: &Lexical<'_>) -> Result<(), CudaError> {
        self.kernels
            .means(self.gpu, &self.place.sums, &schema.span_rows)?;
        self.route(schema, lexical)?;
        self.decide(schema)?;
        self.score(schema)
    }

    /// r of every option: `P_context c + P_lexical x + P_option_question q`, then the evidence layers; and the priors.
    fn route(&self, schema: &Schema, lexical: &Lexical<'_>) -> Result<(), CudaError> {
        let (gpu, kernels, work, weights) = (self.gpu, self.kernels, self.work, self.weights);
        let HeadSizes {
            pitch,
            hidden_pitch,
            ..
        } = self.sizes;
        let (questions, options) = (schema.questions.len(), schema.question_of.len());
        let contexts = self
            .place
            .sums
            .part(questions * hidden_pitch..(questions + options) * hidden_pitch);
        let last = self
            .place
            .sums
            .part((questions + options) * hidden_pitch..(questions + options + 1) * hidden_pitch);
        for first in (0..options).step_by(OPTIONS) {
            let end = options.min(first + OPTIONS);
            let x = work.lexical.part(0..(end - first) * hidden_pitch);
            match lexical {
                Lexical::Table { table, ids, starts } => {
                    kernels.lexical(gpu, table, [ids, &starts.part(first..end + 1)], &x)?;
                }
                Lexical::Means(means) => {
                    gpu.upload(&x, &means[first * hidden_pitch..end * hidden_pitch])?;
                }
            }
            kernels.prior(
                gpu,
                [&x, &self.place.sums, &last],
                &schema.question_of.part(first..end),
                &work.priors.part(first..end),
                weights.prior_scale,
            )?;
            let r = work.options.part(first * pitch..end * pitch);
            self.linear(&weights.option_lexical, (&x, hidden_pitch), &r, end - first)?;
        }
        let r = &work.options;
        self.add_linear(
            &weights.option_context,
            (&contexts, hidden_pitch),
            r,
            options,
        )?;
        self.launch(HeadMap {
            x_rows: Some(&schema.question_of),
            add: Some(r),
            ..self.map(
                &weights.option_question,
                (&self.place.sums, hidden_pitch),
                r,
                options,
            )
        })?;
        self.note("head: options", 0.0, 0.0)?;
        for layer in &weights.evidence {
            self.norm(&layer.query_norm, r, options)?;
            self.read(
                &layer.attention,
                Some(&layer.memory_norm),
                schema.rows,
                r,
                options,
            )?;
            self.norm(&layer.feedforward_norm, r, options)?;
            self.feedforward(&layer.feedforward, r, options)?;
        }
        Ok(())
    }

    /// f of every question: `b + norm(s) + P_global g + type`, then the decoder layers, and the field norm into `work.rows`.
    fn decide(&self, schema: &Schema) -> Result<(), CudaError> {
        let (gpu, kernels, work, weights) = (self.gpu, self.kernels, self.work, self.weights);
        let HeadSizes {
            pitch,
            hidden_pitch,
            ..
        } = self.sizes;
        let (questions, options) = (schema.questions.len(), schema.question_of.len());
        let f = &work.fields;
        self.linear(
            &weights.question,
            (&self.place.sums, hidden_pitch),
            f,
            questions,
        )?;
        let [norm_weight, norm_bias] = weights.summary_norm.both();
        kernels.summary(
            gpu,
            (&work.options, &schema.questions),
            [norm_weight, norm_bias, &weights.types],
            &work.weights,
            f,
        )?;
        let last = questions + options;
        let g = self
            .place
            .sums
            .part(last * hidden_pitch..(last + 1) * hidden_pitch);
        // One row that serves all.
        self.add_linear(&weights.global, (&g, 0), f, questions)?;
        self.note("head: questions", 0.0, 0.0)?;
        for layer in &weights.decoder {
            self.norm(&layer.norm1, f, questions)?;
            self.launch(HeadMap {
                out_pitch: 3 * pitch,
                ..self.map(
                    &layer.self_attention.all,
                    (&work.rows, pitch),
                    &work.conversed,
                    questions,
                )
            })?;
            kernels.converse(gpu, &work.conversed, &work.attended, questions)?;
            self.add_linear(
                &layer.self_attention.out,
                (&work.attended, pitch),
                f,
                questions,
            )?;
            self.note("head: questions", 0.0, 0.0)?;
            self.norm(&layer.norm2, f, questions)?;
            self.read(&layer.cross_attention, None, schema.rows, f, questions)?;
            self.norm(&layer.norm3, f, questions)?;
            self.feedforward(&layer.feedforward, f, questions)?;
        }
        Ok(())
    }

    /// The logits of every option.
    fn score(&self, schema: &Schema) -> Result<(), CudaError> {
        let (gpu, kernels, work, weights) = (self.gpu, self.kernels, self.work, self.weights);
        let HeadSizes { width, pitch, .. } = self.sizes;
        let (questions, options) = (schema.questions.len(), schema.question_of.len());
        // The questions' rows are wanted normed once more, then no more.
        kernels.layer_norm(
            gpu,
            &work.fields,
            weights.field_norm.both(),
            &work.fields,
            questions,
        )?;
        self.norm(&weights.option_norm, &work.options, options)?;
        for first in (0..options).step_by(OPTIONS) {
            let end = options.min(first + OPTIONS);
            let count = end - first;
            let features = work.features.part(0..count * 4 * pitch);
            kernels.features(
                gpu,
                [&work.rows.part(first * pitch..end * pitch), &work.fields],
                &schema.question_of.part(first..end),
                [&features, &work.cosines],
            )?;
            let inner = &work.inner;
            self.launch(HeadMap {
                gelu: true,
                out_pitch: work.inner_pitch,
                ..self.map(&weights.scorer.first, (&features, 4 * pitch), inner, count)
            })?;
            assert_eq!(
                weights.scorer.first.outputs, width,
                "the scorer's inner width"
            );
            self.launch(HeadMap {
                out_pitch: RESIDUAL_PITCH,
                ..self.map(
                    &weights.scorer.second,
                    (inner, work.inner_pitch),
                    &work.residuals,
                    count,
                )
            })?;
            kernels.logits(
                gpu,
                [
                    &work.priors.part(first..end),
                    &work.cosines,
                    &work.residuals,
                ],
                RESIDUAL_PITCH,
                &work.logits.part(first..end),
                [weights.gate, weights.joint_scale],
            )?;
        }
        self.note("head: scores", 0.0, 0.0)
    }

    /// Attention of normed queries, in `work.rows`, over the memory; added to `to`.
    fn read(
        &self,
        attention: &Attention,
        norm: Option<&Norm>,
        rows: usize,
        to: &Block<f64>,
        count: usize,
    ) -> Result<(), CudaError> {
        let (gpu, kernels, work) = (self.gpu, self.kernels, self.work);
        let HeadSizes {
            width,
            pitch,
            heads,
            ..
        } = self.sizes;
        self.linear(&attention.query, (&work.rows, pitch), &work.queries, count)?;
        for first in (0..count).step_by(PAIR_QUERIES) {
            let some = (count - first).min(PAIR_QUERIES);
            let part = first * pitch..(first + some) * pitch;
            let mix = Mix {
                expanded: &work.expanded,
                scales: &work.pair_scales,
                scores: &work.scores,
                weights: &work.pair_weights,
                results: &work.results,
                partial: &work.partial,
                mixed: &work.mixed,
                memory: &self.place.memory,
                forms: &self.place.forms,
                rows,
                count: some,
            };
            let queries = (&work.queries.part(part.clone()), pitch);
            let norms = norm.map(Norm::both);
            let weight = norms.map(|[weight, _]| weight);
            let work_of_rows = 6.0 * (some * heads * rows * width) as f64;
            kernels.expand(gpu, queries, &attention.key.weight, weight, &mix)?;
            self.note("head: queries of attention", 0.0, 0.0)?;
            kernels.scores(gpu, &mix)?;
            self.note("head: scores of memory rows", work_of_rows, 0.0)?;
            kernels.soften(gpu, &mix, norm.is_some())?;
            self.note("head: softmax", 0.0, 0.0)?;
            kernels.weigh(gpu, &mix)?;
            self.note("head: weighted memory rows", work_of_rows, 0.0)?;
            kernels.combine(gpu, &mix, norms)?;
            self.launch(HeadMap {
                x_group: pitch,
                groups: heads,
                ..self.map(
                    &attention.value,
                    (&work.mixed, heads * pitch),
                    &work.attended.part(part),
                    some,
                )
            })?;
        }
        self.add_linear(&attention.out, (&work.attended, pitch), to, count)?;
        self.note("head: values of attention", 0.0, 0.0)
    }

    /// Linear, GELU, linear of normed rows, in `work.rows`; added to `to`.
    fn feedforward(
        &self,
        layer: &FeedForward,
        to: &Block<f64>,
        count: usize,
    ) -> Result<(), CudaError> {
        let (work, pitch) = (self.work, self.sizes.pitch);
        for first in (0..count).step_by(OPTIONS) {
            let end = count.min(first + OPTIONS);
            let part = first * pitch..end * pitch;
            let normed = work.rows.part(part.clone());
            self.launch(HeadMap {
                gelu: true,
                out_pitch: work.inner_pitch,
                ..self.map(&layer.first, (&normed, pitch), &work.inner, end - first)
            })?;
            let inner = (&work.inner, work.inner_pitch);
            self.add_linear(&layer.second, inner, &to.part(part), end - first)?;
        }
        self.note("head: feed-forward", 0.0, 0.0)
    }

    /// Norms rows, `[count, pitch]`, into `work.rows`.
    fn norm(&self, norm: &Norm, x: &Block<f64>, count: usize) -> Result<(), CudaError> {
        self.kernels
            .layer_norm(self.gpu, x, norm.both(), &self.work.rows, count)
    }

    /// `out = linear(x)`, rows of `out` lie at the pitch of W.
    fn linear(
        &self,
        linear: &Linear,
        x: (&Block<f64>, usize),
        out: &Block<f64>,
        rows: usize,
    ) -> Result<(), CudaError> {
        self.launch(self.map(linear, x, out, rows))
    }

    /// `out += linear(x)`.
    fn add_linear(
        &self,
        linear: &Linear,
        x: (&Block<f64>, usize),
        out: &Block<f64>,
        rows: usize,
    ) -> Result<(), CudaError> {
        let map = HeadMap {
            add: Some(out),
            ..self.map(linear, x, out, rows)
        };
        self.launch(map)
    }

    fn launch(&self, map: HeadMap<'_>) -> Result<(), CudaError> {
        self.kernels.linear(self.gpu, map, &self.work.splits)
    }

    fn map<'b>(
        &self,
        linear: &'b Linear,
        (x, x_pitch): (&'b Block<f64>, usize),
        out: &'b Block<f64>,
        rows: usize,
    ) -> HeadMap<'b> {
        HeadMap {
            x,
            x_rows: None,
            x_pitch,
            x_group: 0,
            weight: &linear.weight,
            bias: linear.bias.as_ref(),
            add: None,
            out,
            out_pitch: self.sizes.pitch,
            rows,
            inputs: linear.inputs,
            outputs: linear.outputs,
            groups: 1,
            gelu: false,
        }
    }

    /// Notes a part of the pass.
    fn note(&self, name: &'static str, flop: f64, bytes: f64) -> Result<(), CudaError> {
        match self.profile {
            Some(profile) => profile.note(self.gpu, Part { name, flop, bytes }),
            None => Ok(()),
        }
    }
}
