//! The head's passes, queued on its stream: rows taken in piece by piece, and the finish once they are complete.
//!
//! A finish is a list of phases over the few options and questions, which one kernel goes through, with attention over the
//! memory's rows, another, wherever queries attend it. So it is one launch and two more for each layer, unless there are more
//! queries than the workspace has room for together (`Work::queries_at_once`): then two more for each further part of them.
//!
//! Letters: T rows, H hidden, W width; q, c, x, g are rows of H, r, b, s, f rows of W.
//!
//! Attention over the memory is restructured: a head's score of a query and a row m is `q · (W_k m + b_k)`, which is
//! `(W_kᵀ q) · m` and a constant that the softmax does not see; what it mixes is `W_v (Σ p m) + b_v`. So keys and values of
//! rows are never made, and a decision with few queries takes a fraction of the work.

use std::ops::Range;

use super::room::{OPTIONS, Place, ROWS, Work};
use super::weights::{Attention, FeedForward, Linear, Norm, Weights};
use crate::bench::{Part, Profile};
use crate::driver::{Block, Gpu};
use crate::error::CudaError;
use crate::launch::{HeadKernels, HeadMap, HeadSizes, Mix, Phases, Rows, SplitProduct};

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
                out: &work.memory,
                out_pitch: pitch,
                scale: projection.scale / factor,
                m: count,
                n: width,
                k: hidden_pitch,
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
        self.finish(schema, lexical).run()
    }

    /// Launches of a record's finish.
    pub(super) fn launches(&self, schema: &Schema, lexical: &Lexical<'_>) -> usize {
        let launches = |step: &Step<'_>| match step {
            Step::Phases(_) | Step::Attend(..) => 1,
            Step::Upload(_) => 0,
        };
        let finish = self.finish(schema, lexical);
        finish.steps.iter().map(launches).sum()
    }

    /// What a record's finish queues.
    fn finish<'b>(&self, schema: &Schema, lexical: &Lexical<'b>) -> Finish<'b>
    where
        Self: 'b,
    {
        let mut finish = Finish {
            forward: *self,
            phases: Phases::new(self.sizes, &self.work.splits, self.kernels.group_keys()),
            names: Vec::new(),
            steps: Vec::new(),
            queued: 0,
        };
        finish.route(schema, lexical);
        finish.decide(schema);
        finish.score(schema);
        finish.end_launch();
        finish
    }

    /// Notes a part of the pass.
    fn note(&self, name: &'static str, flop: f64, bytes: f64) -> Result<(), CudaError> {
        match self.profile {
            Some(profile) => profile.note(self.gpu, Part { name, flop, bytes }),
            None => Ok(()),
        }
    }
}

/// A finish in the making.
struct Finish<'a> {
    forward: Forward<'a>,
    phases: Phases<'a>,
    /// Of each phase, the part of the pass that it is.
    names: Vec<&'static str>,
    steps: Vec<Step<'a>>,
    /// Phases that are in a step.
    queued: usize,
}

/// What is queued at one time.
enum Step<'a> {
    /// One launch.
    Phases(Range<usize>),
    /// Attention over the memory, which is normed or not: one launch.
    Attend(Mix<'a>, bool),
    /// Means of some options' rows of the output embedding, from the host.
    Upload(&'a [f64]),
}

impl<'a> Finish<'a> {
    /// r of every option: `P_context c + P_lexical x + P_option_question q`, then the evidence layers; and the priors. P_global g
    /// as well.
    fn route(&mut self, schema: &Schema, lexical: &Lexical<'a>) {
        let (work, weights, place) = (self.forward.work, self.forward.weights, self.forward.place);
        let HeadSizes {
            pitch,
            hidden_pitch,
            ..
        } = self.forward.sizes;
        let (questions, options) = (schema.questions.len(), schema.question_of.len());
        let sums = |spans: Range<usize>| {
            let values = spans.start * hidden_pitch..spans.end * hidden_pitch;
            place.sums.part(values)
        };
        let contexts = sums(questions..questions + options);
        let last = sums(questions + options..questions + options + 1);
        let r = &work.options;
        self.phases.means(&place.sums, &schema.span_rows);
        for first in (0..options).step_by(OPTIONS) {
            let end = options.min(first + OPTIONS);
            let x = work.lexical.part(0..(end - first) * hidden_pitch);
            match lexical {
                Lexical::Table { table, ids, starts } => {
                    let starts = starts.part(first..end + 1);
                    self.phases.lexical(table, [ids, &starts], &x);
                    self.end_stage("head: options");
                }
                Lexical::Means(means) => {
                    self.end_stage("head: options");
                    self.end_launch();
                    let means = &means[first * hidden_pitch..end * hidden_pitch];
                    self.steps.push(Step::Upload(means));
                }
            }
            let part = r.part(first * pitch..end * pitch);
            let x_rows = (&x, hidden_pitch);
            self.linear(&weights.option_lexical, x_rows, &part, end - first);
            self.phases.prior(
                [&x, &place.sums, &last],
                &schema.question_of.part(first..end),
                &work.priors.part(first..end),
                weights.prior_scale,
            );
            self.end_stage("head: options");
        }
        let contexts = (&contexts, hidden_pitch);
        self.add_linear(&weights.option_context, contexts, r, options);
        let last = (&last, hidden_pitch);
        self.linear(&weights.global, last, &work.global, 1);
        self.end_stage("head: options");
        let of_questions = (&place.sums, hidden_pitch);
        self.phases.linear(HeadMap {
            x_rows: Some(&schema.question_of),
            add: Some(r),
            ..self.map(&weights.option_question, of_questions, r, options)
        });
        self.linear(&weights.question, of_questions, &work.fields, questions);
        self.end_stage("head: options");
        for layer in &weights.evidence {
            let norm = Some(&layer.memory_norm);
            self.read(&layer.attention, norm, schema.rows, r, options);
            self.feedforward(&layer.feedforward, r, options);
        }
    }

    /// f of every question: `b + norm(s) + P_global g + type`, where b = P_question q lies there, then the decoder layers.
    fn decide(&mut self, schema: &Schema) {
        let (work, weights) = (self.forward.work, self.forward.weights);
        let pitch = self.forward.sizes.pitch;
        let (f, questions) = (&work.fields, schema.questions.len());
        let [norm_weight, norm_bias] = weights.summary_norm.both();
        self.phases.summary(
            (&work.options, &schema.questions),
            [norm_weight, norm_bias, &weights.types],
            &work.global,
            &work.weights,
            f,
        );
        self.end_stage("head: questions");
        for layer in &weights.decoder {
            let all = &layer.self_attention.all;
            self.phases.linear(HeadMap {
                out_pitch: 3 * pitch,
                ..self.map(all, (f, pitch), &work.conversed, questions)
            });
            self.end_stage("head: questions");
            self.phases
                .converse(&work.conversed, &work.attended, questions);
            self.end_stage("head: questions");
            let attended = (&work.attended, pitch);
            self.add_linear(&layer.self_attention.out, attended, f, questions);
            self.end_stage("head: questions");
            self.read(&layer.cross_attention, None, schema.rows, f, questions);
            self.feedforward(&layer.feedforward, f, questions);
        }
    }

    /// The logits of every option.
    fn score(&mut self, schema: &Schema) {
        let (work, weights) = (self.forward.work, self.forward.weights);
        let pitch = self.forward.sizes.pitch;
        let options = schema.question_of.len();
        let [first_map, second_map] = &weights.scorer;
        let bias = second_map.bias.as_ref().expect("it was loaded with one");
        for first in (0..options).step_by(OPTIONS) {
            let end = options.min(first + OPTIONS);
            let count = end - first;
            let features = work.features.part(0..count * 4 * pitch);
            self.phases.features(
                [&work.options.part(first * pitch..end * pitch), &work.fields],
                &schema.question_of.part(first..end),
                [weights.option_norm.both(), weights.field_norm.both()],
                [&features, &work.cosines],
            );
            self.end_stage("head: scores");
            self.phases.linear(HeadMap {
                gelu: true,
                out_pitch: work.inner_pitch,
                ..self.map(first_map, (&features, 4 * pitch), &work.inner, count)
            });
            self.end_stage("head: scores");
            self.phases.logits(
                (&work.inner, work.inner_pitch),
                (&second_map.weight, bias, second_map.inputs),
                [&work.priors.part(first..end), &work.cosines],
                &work.logits.part(first..end),
                [weights.gate, weights.joint_scale],
            );
            self.end_stage("head: scores");
        }
    }

    /// Attention of `to`, normed, over the memory, which is normed or not; added to it.
    fn read(
        &mut self,
        attention: &Attention,
        norm: Option<&Norm>,
        rows: usize,
        to: &Block<f64>,
        count: usize,
    ) {
        let (work, place) = (self.forward.work, self.forward.place);
        let HeadSizes { pitch, heads, .. } = self.forward.sizes;
        self.linear(&attention.query, (to, pitch), &work.queries, count);
        self.end_stage("head: queries of attention");
        let norms = norm.map(Norm::both);
        let at_once = work.queries_at_once(self.forward.sizes, rows, count);
        for first in (0..count).step_by(at_once) {
            let some = (count - first).min(at_once);
            let part = first * pitch..(first + some) * pitch;
            let mix = Mix {
                expanded: &work.expanded,
                scales: &work.pair_scales,
                weights: &work.pair_weights,
                marks: &work.marks,
                sums: &work.mark_sums,
                partial: &work.partial,
                mixed: &work.mixed,
                memory: &place.memory,
                forms: &place.forms,
                rows,
                count: some,
            };
            let queries = work.queries.part(part.clone());
            let weight = norms.map(|[weight, _]| weight);
            self.phases
                .expand(&queries, &attention.key.weight, weight, &mix);
            self.end_stage("head: queries of attention");
            self.end_launch();
            self.steps.push(Step::Attend(mix, norm.is_some()));
            self.phases.combine(&mix, norms);
            self.end_stage("head: values of attention");
            self.phases.linear(HeadMap {
                x_group: pitch,
                groups: heads,
                ..self.map(
                    &attention.value,
                    (&work.mixed, heads * pitch),
                    &work.attended.part(part),
                    some,
                )
            });
            self.end_stage("head: values of attention");
        }
        self.add_linear(&attention.out, (&work.attended, pitch), to, count);
        self.end_stage("head: values of attention");
    }

    /// Linear, GELU, linear of `to`, normed; added to it.
    fn feedforward(&mut self, layer: &FeedForward, to: &Block<f64>, count: usize) {
        let (work, pitch) = (self.forward.work, self.forward.sizes.pitch);
        for first in (0..count).step_by(OPTIONS) {
            let end = count.min(first + OPTIONS);
            let part = to.part(first * pitch..end * pitch);
            self.phases.linear(HeadMap {
                gelu: true,
                out_pitch: work.inner_pitch,
                ..self.map(&layer.first, (&part, pitch), &work.inner, end - first)
            });
            self.end_stage("head: feed-forward");
            let inner = (&work.inner, work.inner_pitch);
            self.add_linear(&layer.second, inner, &part, end - first);
            self.end_stage("head: feed-forward");
        }
    }

    /// `out = linear(x)`, rows of `out` lie at the pitch of W.
    fn linear(&mut self, linear: &Linear, x: (&Block<f64>, usize), out: &Block<f64>, rows: usize) {
        self.phases.linear(self.map(linear, x, out, rows));
    }

    /// `out += linear(x)`.
    fn add_linear(
        &mut self,
        linear: &Linear,
        x: (&Block<f64>, usize),
        out: &Block<f64>,
        rows: usize,
    ) {
        self.phases.linear(HeadMap {
            add: Some(out),
            ..self.map(linear, x, out, rows)
        });
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
            norm: linear.norm.as_ref().map(|norm| (&norm.weight, &norm.sums)),
            bias: linear.bias.as_ref(),
            add: None,
            out,
            out_pitch: self.forward.sizes.pitch,
            rows,
            inputs: linear.inputs,
            outputs: linear.outputs,
            groups: 1,
            gelu: false,
        }
    }

    /// Ends a stage, whose phases are all a part of the pass.
    fn end_stage(&mut self, name: &'static str) {
        self.phases.end_stage();
        self.names.resize(self.phases.list().len(), name);
    }

    /// Ends a launch; nothing if there is none in the making.
    fn end_launch(&mut self) {
        let end = self.phases.list().len();
        if self.queued < end {
            self.steps.push(Step::Phases(self.queued..end));
        }
        self.queued = end;
    }

    /// Queues everything.
    fn run(self) -> Result<(), CudaError> {
        let Forward {
            gpu,
            kernels,
            sizes,
            work,
            profile,
            ..
        } = self.forward;
        let phases = work.phases.part(0..self.phases.list().len());
        gpu.upload(&phases, self.phases.list())?;
        let launch = |range| kernels.finish(gpu, &phases, range, &work.gate);
        for step in &self.steps {
            match step {
                // To be measured, each stage is a launch.
                Step::Phases(range) if profile.is_some() => {
                    let mut first = range.start;
                    for index in range.clone() {
                        if self.phases.ends_stage(index) {
                            launch(first..index + 1)?;
                            self.forward.note(self.names[index], 0.0, 0.0)?;
                            first = index + 1;
                        }
                    }
                }
                Step::Phases(range) => launch(range.clone())?,
                // The same for the steps of attention, which are weights and sums in turns.
                Step::Attend(mix, is_normed) if profile.is_some() || kernels.steps_apart() => {
                    let steps = kernels.steps(mix);
                    let work_of_all = (mix.count * sizes.heads * mix.rows * sizes.width) as f64;
                    let flop = 12.0 * work_of_all / steps as f64;
                    for step in 0..steps {
                        kernels.attend(gpu, (mix, *is_normed), step..step + 1, &work.gate)?;
                        let name = match step % 2 {
                            0 => "head: weights of memory rows",
                            _ => "head: weighted memory rows",
                        };
                        self.forward.note(name, flop, 0.0)?;
                    }
                }
                Step::Attend(mix, is_normed) => {
                    let all = 0..kernels.steps(mix);
                    kernels.attend(gpu, (mix, *is_normed), all, &work.gate)?;
                }
                Step::Upload(means) => gpu.upload(&work.lexical.part(0..means.len()), means)?,
            }
        }
        Ok(())
    }
}
