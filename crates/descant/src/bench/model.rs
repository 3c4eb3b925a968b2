//! `descant bench model`: how fast a backbone and its head run on a GPU, beside the ceilings of the same run.
//!
//! A floor is the larger of a part's operations at the rate of the largest product and its bytes at the rate of a copy, both
//! measured first.

use std::fmt::Write;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use descant_cuda::{Ceilings, CudaBackend, CudaError, CudaHead, HeadOptions, Options, PartTime};
use descant_decision::{Encoded, EncodedOption, EncodedQuestion, Kind};
use descant_model::{
    Backend, CHUNK_ROWS, Capacity, Choice, Defect, Head, HeadWeights, Pass, Segment, Slot,
};
use descant_release::{LayerKind, ModelConfig};

use crate::args::BenchModel;
use crate::backend::reads_own_rows;
use crate::dummy::Dummy;
use crate::failure::Failure;
use crate::load;
use crate::output::Output;

/// Rows that streams have taken before their next tokens are timed.
const CONTEXT: usize = 1024;
/// Steps that are timed for each number of streams.
const STEPS: usize = 32;
/// What the choices of tokens that are timed ask for.
const DRAWN: Choice<'_> = Choice {
    temperature: 1.0,
    top_k: 0,
    top_p: 0.95,
    min_p: 0.0,
    number: 0.625,
    adjustments: &[],
};
const GREEDY: Choice<'_> = Choice {
    temperature: 0.0,
    ..DRAWN
};
/// Tokens of the prompts that are run eight a round, and their number.
const SHORT: usize = 512;
const SHORT_PROMPTS: usize = 8;

pub(super) fn run(args: &BenchModel) -> Result<(), Failure> {
    let mut machine = Machine::load(args)?;
    let mut output = Output::open();
    output.line(&machine.title)?;
    let ceilings = machine.backend.ceilings()?;
    output.line(&format!(
        "ceilings of this run: product of 8192 x 8192 x 8192 {:.0} TFLOP/s, copy {:.2} TB/s",
        ceilings.product_tflops, ceilings.copy_tbps
    ))?;
    output.line(&machine.prefills(args, ceilings)?)?;
    output.line(&machine.short_prompts(args)?)?;
    output.line(&machine.decodes(args)?)?;
    for &length in &args.lengths {
        output.line(&machine.parts(length, ceilings)?)?;
    }
    for &streams in &args.streams {
        output.line(&machine.step_parts(streams, ceilings)?)?;
    }
    let Some(head) = machine.head.take() else {
        return Ok(());
    };
    for &length in &args.lengths {
        if length >= SCHEMA_ROWS {
            output.line(&machine.decisions(&head, length, args.runs)?)?;
        }
    }
    if let Some(&longest) = args
        .lengths
        .iter()
        .max()
        .filter(|rows| **rows >= SCHEMA_ROWS)
    {
        output.line(&machine.head_parts(&head, longest, ceilings)?)?;
    }
    // What these take is a matter of the shape, not of a release.
    if args.dummy_weights.is_some() {
        output.line(&machine.finishes(&head)?)?;
    }
    Ok(())
}

/// A model on a device.
struct Machine {
    backend: CudaBackend,
    /// The head beside it, if the release has one.
    head: Option<CudaHead>,
    title: String,
}

impl Machine {
    fn load(args: &BenchModel) -> Result<Machine, Failure> {
        let longest = args.lengths.iter().copied().max().unwrap_or(0);
        let streams = args.streams.iter().copied().max().unwrap_or(0);
        let slots = streams.max(SHORT_PROMPTS);
        let positions = longest
            .max(CONTEXT + 4 * STEPS)
            .next_multiple_of(CHUNK_ROWS);
        let rows = args
            .max_rows
            .next_multiple_of(CHUNK_ROWS)
            .max(SHORT * SHORT_PROMPTS);
        let capacity = Capacity {
            slots,
            positions,
            rows,
        };
        let options = Options {
            ordinal: args.cuda,
            capacity,
            snapshot_bytes: 0,
            portable: false,
        };
        let start = Instant::now();
        let head_options = HeadOptions {
            ordinal: args.cuda,
            positions,
            runs: 1,
            staged_rows: positions,
            spans: HeadOptions::spans_of(positions),
            portable: false,
        };
        let (backend, head, what) = match &args.dummy_weights {
            Some(shape) => {
                let dummy = Dummy::of(shape)?;
                let (backend, head) = dummy.load(options, head_options)?;
                (backend, Some(head), dummy.label())
            }
            None => stored(args, options, head_options)?,
        };
        let title = format!(
            "{}: {what}, ready in {:.1} s",
            backend.device_name(),
            start.elapsed().as_secs_f64()
        );
        Ok(Machine {
            backend,
            head,
            title,
        })
    }

    /// Runs a prompt from an empty slot, in pieces, and waits for its last row.
    fn prompt(&mut self, slot: Slot, tokens: &[u32]) -> Result<(), Failure> {
        self.backend.reset(slot);
        let piece = self.piece();
        for (index, tokens) in tokens.chunks(piece).enumerate() {
            self.backend
                .run(&[prefill(slot, index * piece, tokens)])
                .map_err(device)?;
        }
        let last = (tokens.len() - 1) % piece;
        let mut row = vec![0.0; self.backend.config().hidden];
        self.backend
            .hidden(last..last + 1, &mut row)
            .map_err(device)
    }

    fn piece(&self) -> usize {
        self.backend.capacity().rows / CHUNK_ROWS * CHUNK_ROWS
    }

    fn tokens(&self, count: usize) -> Vec<u32> {
        let vocab = self.backend.config().vocab as u64;
        // Knuth's multiplier over the index: any ids will do.
        let token = |index: usize| {
            ((index as u64 + 1).wrapping_mul(6_364_136_223_846_793_005) >> 33) % vocab
        };
        (0..count)
            .map(|index| u32::try_from(token(index)).expect("below the vocabulary"))
            .collect()
    }

    fn prefills(&mut self, args: &BenchModel, ceilings: Ceilings) -> Result<String, Failure> {
        let mut text = format!(
            "{:<10}{:>12}{:>22}{:>12}{:>8}",
            "prompt", "median ms", "(min-max, n)", "floor ms", "share"
        );
        for &length in &args.lengths {
            let tokens = self.tokens(length);
            let times = timed(args.runs, || self.prompt(Slot(0), &tokens))?;
            let floor = floor_ms(self.backend.config(), length, ceilings);
            let _ = write!(
                text,
                "\n{length:<10}{:>12.2}{:>22}{floor:>12.2}{:>7.0}%",
                times.median,
                times.range(),
                100.0 * floor / times.median
            );
        }
        Ok(text)
    }

    fn short_prompts(&mut self, args: &BenchModel) -> Result<String, Failure> {
        let tokens = self.tokens(SHORT);
        let times = timed(args.runs, || {
            (0..SHORT_PROMPTS).for_each(|slot| self.backend.reset(Slot(slot)));
            let round: Vec<Segment<'_>> = (0..SHORT_PROMPTS)
                .map(|slot| prefill(Slot(slot), 0, &tokens))
                .collect();
            self.backend.run(&round).map_err(device)?;
            let mut row = vec![0.0; self.backend.config().hidden];
            self.backend.hidden(0..1, &mut row).map_err(device)
        })?;
        Ok(format!(
            "{SHORT_PROMPTS} prompts of {SHORT} in a round: {:.2} ms {}, {:.1} prompts a second",
            times.median,
            times.range(),
            SHORT_PROMPTS as f64 * 1e3 / times.median
        ))
    }

    fn decodes(&mut self, args: &BenchModel) -> Result<String, Failure> {
        let tokens = self.tokens(CONTEXT);
        let mut text = format!(
            "{:<10}{:>12}{:>22}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "streams",
            "step ms",
            "(min-max, n)",
            "tokens/s",
            "greedy ms",
            "tokens/s",
            "drawn ms",
            "tokens/s",
            "greedy us",
            "drawn us"
        );
        for &streams in &args.streams {
            for slot in 0..streams {
                self.prompt(Slot(slot), &tokens)?;
            }
            let (vocab, rows): (usize, Vec<usize>) =
                (self.backend.config().vocab, (0..streams).collect());
            let (mut logits, mut at) = (vec![0.0; streams * vocab], CONTEXT);
            let mut step = |machine: &mut Machine| {
                let round: Vec<Segment<'_>> =
                    (0..streams).map(|slot| decode(slot, at, &tokens)).collect();
                at += 1;
                machine.backend.run(&round).map_err(device)
            };
            let read = timed(STEPS, || {
                step(self)?;
                self.backend.logits(&rows, &mut logits).map_err(device)
            })?;
            let mut chosen = Vec::new();
            for choice in [GREEDY, DRAWN] {
                let choices = vec![choice; streams];
                let whole = timed(STEPS, || {
                    step(self)?;
                    self.backend.sample(&rows, &choices).map_err(device)?;
                    Ok(())
                })?;
                let alone = timed_by(STEPS, || Ok(self.backend.time_choices(&rows, &choices)?))?;
                chosen.push((whole, alone));
            }
            let [(greedy, greedy_alone), (drawn, drawn_alone)] = &chosen[..] else {
                unreachable!("two choices");
            };
            let rate = |times: &Times| streams as f64 * 1e3 / times.median;
            let _ = write!(
                text,
                "\n{streams:<10}{:>12.2}{:>22}{:>12.0}{:>12.2}{:>12.0}{:>12.2}{:>12.0}{:>12.0}{:>12.0}",
                read.median,
                read.range(),
                rate(&read),
                greedy.median,
                rate(greedy),
                drawn.median,
                rate(drawn),
                1e3 * greedy_alone.median,
                1e3 * drawn_alone.median
            );
        }
        text.push_str(&format!(
            "\n(after {CONTEXT} rows; with the logits of every stream copied to the host; with greedy tokens chosen on the device; \
             with tokens drawn there, temperature 1, top_p 0.95; last what the choice alone takes, after the logits)"
        ));
        Ok(text)
    }

    /// The parts of a prompt, each with its floor.
    fn parts(&mut self, length: usize, ceilings: Ceilings) -> Result<String, Failure> {
        let (tokens, piece) = (self.tokens(length), self.piece());
        self.backend.reset(Slot(0));
        let mut parts: Vec<PartTime> = Vec::new();
        for (index, tokens) in tokens.chunks(piece).enumerate() {
            for part in self
                .backend
                .run_in_parts(&[prefill(Slot(0), index * piece, tokens)])?
            {
                match parts.iter_mut().find(|other| other.name == part.name) {
                    Some(sum) => {
                        (sum.count, sum.ms) = (sum.count + part.count, sum.ms + part.ms);
                        (sum.flop, sum.bytes) = (sum.flop + part.flop, sum.bytes + part.bytes);
                    }
                    None => parts.push(part),
                }
            }
        }
        Ok(table(
            &format!("parts of a prompt of {length}"),
            parts,
            ceilings,
        ))
    }

    /// Whole decisions, the head beside the rounds as in a server, and what the head takes on its own.
    fn decisions(
        &mut self,
        head: &CudaHead,
        length: usize,
        runs: usize,
    ) -> Result<String, Failure> {
        let encoded = Arc::new(record(&self.tokens(length), SCHEMA));
        let (mut after, hidden) = (Vec::new(), self.hidden_rows(length));
        let times = timed(runs, || {
            after.push(self.decide(head, &encoded)?);
            Ok(())
        })?;
        let alone = timed_by(runs, || head.run_timed(&encoded, &hidden).map_err(device))?;
        after.sort_by(f64::total_cmp);
        Ok(format!(
            "decision of {length} rows, {} questions of {} options: {:.2} ms {}, {:.2} ms of it after the last \
             round was queued and its rows were taken; the head alone {:.2} ms {} on the device",
            SCHEMA.questions,
            SCHEMA.options,
            times.median,
            times.range(),
            after[after.len() / 2],
            alone.median,
            alone.range()
        ))
    }

    /// Runs a decision; gives the milliseconds that the head's last pass took.
    fn decide(&mut self, head: &CudaHead, encoded: &Arc<Encoded>) -> Result<f64, Failure> {
        self.backend.reset(Slot(0));
        let (piece, mut run) = (self.piece(), head.begin(Arc::clone(encoded)));
        let (rows, pieces) = mpsc::channel();
        thread::scope(|scope| {
            let jury = scope.spawn(move || {
                for (start, kept) in pieces {
                    run.absorb_kept(start, kept)?;
                }
                let started = Instant::now();
                run.finish()?;
                Ok::<_, Defect>(started.elapsed().as_secs_f64() * 1e3)
            });
            for (index, tokens) in encoded.ids.chunks(piece).enumerate() {
                let start = index * piece;
                self.backend.run(&[prefill(Slot(0), start, tokens)])?;
                let kept = self.backend.keep_hidden(0..tokens.len())?;
                let kept = kept.expect("the head has room for all rows");
                // A head that failed says why when it is joined.
                let _ = rows.send((start, kept));
            }
            drop(rows);
            jury.join().expect("the head does not panic")
        })
        .map_err(device)
    }

    /// The parts of the head, each with its floor.
    fn head_parts(
        &self,
        head: &CudaHead,
        length: usize,
        ceilings: Ceilings,
    ) -> Result<String, Failure> {
        let encoded = Arc::new(record(&self.tokens(length), SCHEMA));
        let parts = head.run_in_parts(&encoded, &self.hidden_rows(length));
        Ok(table(
            &format!("parts of the head of {length} rows"),
            parts.map_err(device)?,
            ceilings,
        ))
    }

    /// Finishes of the head, by length and schema; one of them beside products on the backbone's stream as well.
    fn finishes(&self, head: &CudaHead) -> Result<String, Failure> {
        let mut text = format!(
            "{:<20}{:>10}{:>22}{:>10}{:>12}{:>22}",
            "finish of the head",
            "rows",
            "questions x options",
            "launches",
            "median ms",
            "(min-max, n)"
        );
        let mut add =
            |rows: usize, schema: Schema, launches: usize, times: &Times, company: &str| {
                let _ = write!(
                    text,
                    "\n{:<20}{rows:>10}{:>22}{launches:>10}{:>12.3}{:>22}{company}",
                    "",
                    format!("{} x {}", schema.questions, schema.options),
                    times.median,
                    times.range()
                );
            };
        let positions = self.backend.capacity().positions;
        for rows in FINISHED_ROWS {
            for schema in FINISHED {
                let spans = schema.questions * (schema.options + 1) + 1;
                if rows > positions || spans > HeadOptions::spans_of(positions) {
                    continue;
                }
                let encoded = Arc::new(record(&self.tokens(rows), schema));
                let hidden = self.hidden_rows(rows);
                let finishes = || {
                    timed_by(FINISHES, || {
                        head.time_finish(&encoded, &hidden).map_err(device)
                    })
                };
                let launches = head.launches(&encoded).map_err(device)?;
                add(rows, schema, launches, &finishes()?, "");
                if (rows, schema) == IN_COMPANY {
                    let times = self.backend.beside_products(finishes)??;
                    add(rows, schema, launches, &times, " beside products");
                }
            }
        }
        text.push_str(
            "\n(by the clock, from when the last rows were taken in until the logits are on the host; products of 4096 x 4096 x 4096, \
             queued all the time on the backbone's stream)",
        );
        Ok(text)
    }

    /// Any hidden rows, as bf16 bits: between -2 and 2.
    fn hidden_rows(&self, length: usize) -> Vec<u16> {
        let values = length * self.backend.config().hidden;
        let bits = |index: usize| {
            let hash = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            // A sign, an exponent of 0 or 1 below the bias, seven bits of the mantissa.
            let hash = hash as u16;
            (hash & 0x8000) | 0x3f00 | (hash & 0x00ff)
        };
        (0..values).map(bits).collect()
    }

    /// The parts of a step of some streams, without their logits.
    fn step_parts(&mut self, streams: usize, ceilings: Ceilings) -> Result<String, Failure> {
        let tokens = self.tokens(CONTEXT);
        for slot in 0..streams {
            self.prompt(Slot(slot), &tokens)?;
        }
        let round: Vec<Segment<'_>> = (0..streams)
            .map(|slot| decode(slot, CONTEXT, &tokens))
            .collect();
        let parts = self.backend.run_in_parts(&round)?;
        Ok(table(
            &format!("parts of a step of {streams}"),
            parts,
            ceilings,
        ))
    }
}

/// A backend, the head beside it if there is one, and what they are.
type Beside = (CudaBackend, Option<CudaHead>, String);

/// A release's weights.
fn stored(
    args: &BenchModel,
    options: Options,
    head_options: HeadOptions,
) -> Result<Beside, Failure> {
    let place = load::place(args.model.model.as_deref())?;
    let release = Arc::new(place.release(args.model.clef.clef.as_deref())?);
    let mut backend = CudaBackend::load(&release, options)?;
    let head = match release.head() {
        None => None,
        Some(config) => {
            let source = Arc::clone(&release) as Arc<dyn HeadWeights>;
            let own = reads_own_rows(&release)?;
            let head = CudaHead::load_beside(&mut backend, config, source, head_options, own);
            Some(head?)
        }
    };
    Ok((backend, head, place.to_string()))
}

/// Parts with their floors, the longest first.
fn table(title: &str, mut parts: Vec<PartTime>, ceilings: Ceilings) -> String {
    parts.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    let all: f64 = parts.iter().map(|part| part.ms).sum();
    let mut text = format!(
        "{title:<34}{:>7}{:>10}{:>8}{:>10}{:>10}{:>9}",
        "times", "ms", "share", "floor ms", "reached", "TFLOP/s"
    );
    for part in &parts {
        let by_work = part.flop / ceilings.product_tflops;
        let floor = by_work.max(part.bytes / ceilings.copy_tbps) / 1e9;
        let _ = write!(
            text,
            "\n{:<34}{:>7}{:>10.2}{:>7.1}%{floor:>10.2}{:>9.0}%{:>9.0}",
            part.name,
            part.count,
            part.ms,
            100.0 * part.ms / all,
            100.0 * floor / part.ms,
            part.flop / part.ms / 1e9
        );
    }
    let _ = write!(
        text,
        "\n{:<34}{:>7}{all:>10.2}",
        "all parts, timed one by one", ""
    );
    text
}

/// Questions of a record that is timed, options of each, and rows of the spans of either.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Schema {
    questions: usize,
    options: usize,
    span: usize,
}

impl Schema {
    const fn of(questions: usize, options: usize, span: usize) -> Schema {
        Schema {
            questions,
            options,
            span,
        }
    }

    /// Rows that it takes.
    const fn rows(self) -> usize {
        self.questions * (self.options + 1) * self.span + 2
    }
}

/// That of the decisions that are timed.
const SCHEMA: Schema = Schema::of(8, 4, 12);
const SCHEMA_ROWS: usize = SCHEMA.rows();
/// What is asked in the finishes that are timed, after how many rows, how often, and which of them beside other work.
const FINISHED: [Schema; 3] = [
    Schema::of(1, 2, 3),
    Schema::of(8, 4, 3),
    Schema::of(64, 4, 3),
];
const FINISHED_ROWS: [usize; 2] = [1024, 16_384];
const FINISHES: usize = 9;
const IN_COMPANY: (usize, Schema) = (FINISHED_ROWS[1], FINISHED[1]);

/// A record whose schema stands at its end.
fn record(tokens: &[u32], schema: Schema) -> Encoded {
    let Schema {
        questions,
        options,
        span,
    } = schema;
    let start = tokens.len() - schema.rows() + 1;
    let span = |index: usize| start + index * span..start + (index + 1) * span;
    let question = |question: usize| EncodedQuestion {
        id: format!("q{question}"),
        kind: Kind::Choice,
        span: span(question * (options + 1)),
        options: (1..=options)
            .map(|option| EncodedOption {
                id: option.to_string(),
                span: span(question * (options + 1) + option),
            })
            .collect(),
    };
    Encoded {
        ids: tokens.to_vec(),
        questions: (0..questions).map(question).collect(),
        truncated: 0,
        schema_start: start,
    }
}

fn decode(slot: usize, at: usize, tokens: &[u32]) -> Segment<'_> {
    Segment {
        slot: Slot(slot),
        start: at,
        tokens: &tokens[slot..=slot],
        pass: Pass::Decode,
        mark: None,
    }
}

fn prefill(slot: Slot, start: usize, tokens: &[u32]) -> Segment<'_> {
    Segment {
        slot,
        start,
        tokens,
        pass: Pass::Prefill,
        mark: None,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn device(defect: descant_model::Defect) -> Failure {
    Failure::Cuda(CudaError::Driver {
        what: "a round",
        message: defect.to_string(),
    })
}

/// Times of some runs, in milliseconds.
struct Times {
    median: f64,
    min: f64,
    max: f64,
    runs: usize,
}

impl Times {
    fn range(&self) -> String {
        format!("({:.2}-{:.2}, {})", self.min, self.max, self.runs)
    }
}

/// Times runs by the clock, after two that are not counted.
fn timed(runs: usize, mut run: impl FnMut() -> Result<(), Failure>) -> Result<Times, Failure> {
    timed_by(runs, || {
        let start = Instant::now();
        run()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    })
}

/// The same of runs that tell their own milliseconds.
fn timed_by(runs: usize, mut run: impl FnMut() -> Result<f64, Failure>) -> Result<Times, Failure> {
    run()?;
    run()?;
    let mut times = Vec::with_capacity(runs);
    for _ in 0..runs {
        times.push(run()?);
    }
    times.sort_by(f64::total_cmp);
    Ok(Times {
        median: times[runs / 2],
        min: times[0],
        max: times[runs - 1],
        runs,
    })
}

/// The least time that a prompt can take: its operations at the rate of the largest product, or its weights' bytes at that of a
/// copy.
fn floor_ms(config: &ModelConfig, length: usize, ceilings: Ceilings) -> f64 {
    let (attention, linear) = (&config.attention, &config.linear);
    let (queries, keys) = (
        attention.heads * attention.head_dim,
        attention.kv_heads * attention.head_dim,
    );
    let values = linear.value_heads * linear.value_dim;
    let (mut weights, mut flop) = (0.0, 0.0);
    for kind in &config.layers {
        let mixer = match kind {
            LayerKind::FullAttention => 3 * queries + 2 * keys,
            LayerKind::LinearAttention => {
                linear.conv_channels() + 2 * values + 2 * linear.value_heads
            }
        };
        weights += (config.hidden * (mixer + 3 * config.intermediate)) as f64;
        let rows = length as f64;
        flop += match kind {
            LayerKind::FullAttention => 2.0 * queries as f64 * rows * rows,
            // Keys and queries with keys and with the state, values with both squares, the state's update: of 64 rows.
            LayerKind::LinearAttention => {
                let head = 4 * 64 * linear.key_dim
                    + 4 * 64 * linear.value_dim
                    + 6 * linear.key_dim * linear.value_dim;
                rows * (linear.value_heads * head) as f64
            }
        };
    }
    flop += 2.0 * weights * length as f64;
    (flop / ceilings.product_tflops).max(2.0 * weights / ceilings.copy_tbps) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published numbers: linear maps of 13.84 and 48.70 GFLOP a token.
    #[test]
    fn shapes_are_the_published_ones() {
        let ceilings = Ceilings {
            product_tflops: 1.0,
            copy_tbps: 1e9,
        };
        for (name, gflop) in [("clef-flash", 13.84), ("clef", 48.70)] {
            let found = floor_ms(&Dummy::of(name).unwrap().outline().config, 64, ceilings) / 64.0;
            // The mixers add a little to the linear maps.
            assert!(
                found > gflop && found < gflop * 1.02,
                "{name}: {found} GFLOP a token"
            );
        }
    }
}
