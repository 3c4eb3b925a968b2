//! A backend and a head that hash instead of computing, for tests of whoever drives them.
//!
//! A hidden row is a hash of every (token, position, pass) that the slot has taken, so a lost, doubled, misrouted or
//! stale row changes every number behind it. A decision's logits are a hash of its memory rows, of the hidden rows of its
//! spans and of the last row. Both check the rules that their traits state and panic if one is broken, write down every
//! call, and fail when told to.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use descant_decision::{Encoded, EncodedOption, EncodedQuestion, Kind, Logits};
use descant_model::{
    Adjustment, Backend, CHUNK_ROWS, Capacity, Choice, Defect, Head, HeadRun, Pass, Saved,
    SavedMemory, Segment, Slot,
};
use descant_release::{AttentionConfig, LayerKind, LinearConfig, ModelConfig};

/// Width of a hidden row.
pub const HIDDEN: usize = 4;
/// Width of a memory row of the head.
pub const WIDTH: usize = 2;
/// Tokens of the vocabulary.
pub const VOCAB: usize = 97;

/// A call that a [`FakeBackend`] got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Backend::load`] into a slot, up to a position.
    Load(Slot, usize),
    /// [`Backend::reset`].
    Reset(Slot),
    /// [`Backend::run`]: slot, start, number of rows and pass of each segment.
    Run(Vec<(Slot, usize, usize, Pass)>),
    /// [`Backend::logits`] or [`Backend::sample`].
    Tokens,
    /// [`Backend::save`]: slot and the positions whose KV rows were copied, at the slot's end or at a mark.
    Save(Slot, Range<usize>),
}

/// What a [`FakeBackend`] was asked of a round's rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// [`Backend::logits`] of rows.
    Logits(Vec<usize>),
    /// [`Backend::sample`]: of each row what its choice adjusts.
    Sample(Vec<(usize, Vec<Adjustment>)>),
}

/// What a [`FakeBackend`] or a [`FakeHead`] is told to do, and what it did. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Script(Arc<Mutex<ScriptState>>);

#[derive(Debug, Default)]
struct ScriptState {
    calls: Vec<Call>,
    asked: Vec<Asked>,
    /// What every choice comes to.
    fixed_token: Option<u32>,
    /// What befalls the next calls, first to last.
    mishaps: VecDeque<Option<Mishap>>,
    /// Decisions begun and not yet dropped.
    head_runs: usize,
    /// Copies made by `save` or `memory` and not yet dropped, and their bytes.
    copies: usize,
    copied_bytes: usize,
    /// Of how many copies of memory rows the last finds no room; 0 if all do.
    memory_refused_each: usize,
    /// Copies of memory rows asked for.
    memories: usize,
}

/// What can befall a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It gives [`fake_defect`].
    Fail,
    /// It panics.
    Panic,
}

/// The defect of a call that was told to fail.
pub fn fake_defect() -> Defect {
    Defect::Device {
        message: "told to fail".into(),
    }
}

impl Script {
    /// Lets the calls to come meet the given fates, one each, before all goes well again. They count
    /// [`Backend::run`], [`Backend::load`] and [`Backend::save`], or [`HeadRun::absorb`] and [`HeadRun::finish`].
    pub fn befall(&self, mishaps: impl IntoIterator<Item = Option<Mishap>>) {
        self.with(|state| state.mishaps.extend(mishaps));
    }

    /// Lets all calls to come go well.
    pub fn clear_mishaps(&self) {
        self.with(|state| state.mishaps.clear());
    }

    /// The calls so far; they are forgotten here.
    pub fn take_calls(&self) -> Vec<Call> {
        self.with(|state| std::mem::take(&mut state.calls))
    }

    /// What was asked of rounds so far; it is forgotten here.
    pub fn take_asked(&self) -> Vec<Asked> {
        self.with(|state| std::mem::take(&mut state.asked))
    }

    /// Lets every [`Backend::sample`] to come choose this token, whatever the logits: a client who gets it got the
    /// backend's choice.
    pub fn fix_token(&self, id: u32) {
        self.with(|state| state.fixed_token = Some(id));
    }

    /// Decisions begun and not yet dropped.
    pub fn head_runs(&self) -> usize {
        self.with(|state| state.head_runs)
    }

    /// Copies made by [`Backend::save`] or [`HeadRun::memory`] and not yet dropped.
    pub fn copies(&self) -> usize {
        self.with(|state| state.copies)
    }

    /// Bytes of these copies.
    pub fn copied_bytes(&self) -> usize {
        self.with(|state| state.copied_bytes)
    }

    /// Lets every so many-th copy of memory rows find no room.
    pub fn refuse_memory_each(&self, count: usize) {
        self.with(|state| state.memory_refused_each = count);
    }

    /// Whether a copy of memory rows finds room.
    fn has_memory_room(&self) -> bool {
        self.with(|state| {
            state.memories += 1;
            state.memory_refused_each == 0
                || !state.memories.is_multiple_of(state.memory_refused_each)
        })
    }

    fn note(&self, call: Call) {
        self.with(|state| state.calls.push(call));
    }

    /// Meets the next fate.
    fn risk(&self) -> Result<(), Defect> {
        match self.with(|state| state.mishaps.pop_front()).flatten() {
            None => Ok(()),
            Some(Mishap::Fail) => Err(fake_defect()),
            Some(Mishap::Panic) => panic!("told to panic"),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut ScriptState) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A [`Backend`] that hashes.
#[derive(Debug)]
pub struct FakeBackend {
    config: ModelConfig,
    capacity: Capacity,
    slots: Vec<Stream>,
    /// Most marks of a round.
    marks_max: usize,
    rows_step: usize,
    /// Slot, rows and hash of each mark of the last round.
    marks: Vec<(Slot, usize, u64)>,
    /// Hidden rows of the last round; empty after a failed one.
    round: Vec<[f32; HIDDEN]>,
    script: Script,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stream {
    /// So many rows with this hash; whether prefill alone computed them.
    At {
        rows: usize,
        hash: u64,
        prefilled: bool,
    },
    /// A round failed: only a reset helps.
    Undefined,
}

impl Stream {
    const EMPTY: Stream = Stream::At {
        rows: 0,
        hash: SEED,
        prefilled: true,
    };
}

/// What [`FakeBackend::save`] copies: the hash after the rows, and that before them, which stands for the KV rows.
struct States {
    before: u64,
    after: u64,
}

/// A copy that is counted while it lives.
struct Copy<T> {
    of: T,
    bytes: usize,
    script: Script,
}

impl<T> Copy<T> {
    fn new(of: T, bytes: usize, script: &Script) -> Copy<T> {
        script.with(|state| {
            state.copies += 1;
            state.copied_bytes += bytes;
        });
        Copy {
            of,
            bytes,
            script: script.clone(),
        }
    }
}

impl<T> Drop for Copy<T> {
    fn drop(&mut self) {
        self.script.with(|state| {
            state.copies -= 1;
            state.copied_bytes -= self.bytes;
        });
    }
}

impl FakeBackend {
    /// A backend with empty slots, without marks.
    pub fn new(capacity: Capacity, script: Script) -> FakeBackend {
        FakeBackend {
            marks_max: 0,
            marks: Vec::new(),
            rows_step: 1,
            config: fake_config(capacity.positions),
            slots: vec![Stream::EMPTY; capacity.slots],
            round: Vec::new(),
            capacity,
            script,
        }
    }

    /// The same with so many marks a round.
    pub fn with_marks(self, marks_max: usize) -> FakeBackend {
        FakeBackend { marks_max, ..self }
    }

    /// The same with another [`Backend::rows_step`].
    pub fn with_rows_step(self, rows_step: usize) -> FakeBackend {
        FakeBackend { rows_step, ..self }
    }

    /// Moves a slot on by a segment's rows and writes them down.
    fn advance(&mut self, segment: &Segment<'_>) {
        let Stream::At {
            mut rows,
            mut hash,
            prefilled,
        } = self.slots[segment.slot.0]
        else {
            panic!("{:?} was not reset after a failed round", segment.slot);
        };
        assert_eq!(segment.start, rows, "{:?} stands elsewhere", segment.slot);
        for token in segment.tokens {
            assert!((*token as usize) < VOCAB, "token {token} is none");
            // Decode and prefill round differently on a real device.
            let pass = u64::from(segment.pass == Pass::Decode);
            hash = mix(hash, &[u64::from(*token), rows as u64, pass]);
            rows += 1;
            self.round.push(floats(hash));
            if segment.mark == Some(rows) {
                self.marks.push((segment.slot, rows, hash));
            }
        }
        assert!(
            rows <= self.capacity.positions,
            "{:?} is full",
            segment.slot
        );
        self.slots[segment.slot.0] = Stream::At {
            rows,
            hash,
            prefilled: prefilled && segment.pass == Pass::Prefill,
        };
    }

    fn fill_logits(&self, rows: &[usize], out: &mut [f32]) {
        assert_eq!(out.len(), rows.len() * VOCAB);
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(VOCAB)) {
            let hash = fold(SEED, &self.round[*row]);
            for (id, logit) in (0u64..).zip(out) {
                *logit = 4.0 * float(mix(hash, &[id]));
            }
        }
    }

    fn check(&self, round: &[Segment<'_>]) {
        let rows: usize = round.iter().map(|segment| segment.tokens.len()).sum();
        assert!(
            rows > 0 && rows <= self.capacity.rows,
            "a round of {rows} rows"
        );
        for (index, segment) in round.iter().enumerate() {
            let slot = segment.slot;
            assert!(
                round[..index].iter().all(|other| other.slot != slot),
                "{slot:?} twice"
            );
            assert!(!segment.tokens.is_empty(), "{slot:?} without rows");
            match segment.pass {
                Pass::Decode => assert_eq!(segment.tokens.len(), 1, "{slot:?} decodes"),
                Pass::Prefill => assert!(segment.start.is_multiple_of(CHUNK_ROWS), "{slot:?}"),
            }
            let inside = segment.start + 1..segment.start + segment.tokens.len();
            assert!(
                segment
                    .mark
                    .is_none_or(|mark| inside.contains(&mark) && mark.is_multiple_of(CHUNK_ROWS)),
                "{slot:?} has a mark at {:?}",
                segment.mark
            );
        }
        let marks = round.iter().filter(|segment| segment.mark.is_some());
        assert!(marks.count() <= self.marks_max, "too many marks");
    }
}

impl Backend for FakeBackend {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn marks_max(&self) -> usize {
        self.marks_max
    }

    fn rows_step(&self) -> usize {
        self.rows_step
    }

    fn reset(&mut self, slot: Slot) {
        self.script.note(Call::Reset(slot));
        self.marks.retain(|(marked, ..)| *marked != slot);
        self.slots[slot.0] = Stream::EMPTY;
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        self.check(round);
        let lines = round.iter().map(|segment| {
            let rows = segment.tokens.len();
            (segment.slot, segment.start, rows, segment.pass)
        });
        self.script.note(Call::Run(lines.collect()));
        self.round.clear();
        self.marks.clear();
        for segment in round {
            self.advance(segment);
        }
        // From here on the slots are undefined unless the round is a success.
        let ran: Vec<Stream> = round
            .iter()
            .map(|segment| std::mem::replace(&mut self.slots[segment.slot.0], Stream::Undefined))
            .collect();
        if let Err(defect) = self.script.risk() {
            self.round.clear();
            self.marks.clear();
            return Err(defect);
        }
        for (segment, stream) in round.iter().zip(ran) {
            self.slots[segment.slot.0] = stream;
        }
        Ok(())
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        assert_eq!(out.len(), rows.len() * HIDDEN);
        out.copy_from_slice(self.round[rows].as_flattened());
        Ok(())
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        self.script.note(Call::Tokens);
        self.script
            .with(|state| state.asked.push(Asked::Logits(rows.to_vec())));
        self.fill_logits(rows, out);
        Ok(())
    }

    fn sample(
        &mut self,
        rows: &[usize],
        choices: &[Choice<'_>],
    ) -> Result<Option<Vec<Option<u32>>>, Defect> {
        assert_eq!(rows.len(), choices.len(), "a choice for each row");
        self.script.note(Call::Tokens);
        let adjustments = choices.iter().map(|choice| choice.adjustments.to_vec());
        let asked = rows.iter().copied().zip(adjustments).collect();
        let fixed = self.script.with(|state| {
            state.asked.push(Asked::Sample(asked));
            state.fixed_token
        });
        let vocab = self.config.vocab;
        let mut logits = vec![0.0; rows.len() * vocab];
        self.fill_logits(rows, &mut logits);
        let rows = logits.chunks_exact_mut(vocab).zip(choices);
        let choose = |(logits, choice): (&mut [f32], &Choice<'_>)| {
            let rising = choice
                .adjustments
                .windows(2)
                .all(|pair| pair[0].id < pair[1].id);
            assert!(rising, "ids ascend, each once");
            choice.adjust(logits);
            fixed.or_else(|| choice.choose(logits))
        };
        Ok(Some(rows.map(choose).collect()))
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        // As with a real device: states of a fixed size, and KV rows.
        1000 + 16 * rows
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        let Stream::At {
            rows: taken,
            hash,
            prefilled,
        } = self.slots[slot.0]
        else {
            panic!("{slot:?} was not reset after a failed round");
        };
        assert!(prefilled, "{slot:?} holds decoded rows");
        assert!(
            rows.end.is_multiple_of(CHUNK_ROWS) && rows.start < rows.end,
            "{slot:?}: {rows:?}"
        );
        let marked = self
            .marks
            .iter()
            .find(|(of, at, _)| (*of, *at) == (slot, rows.end));
        let after = match marked {
            Some((.., hash)) => *hash,
            None => {
                assert_eq!(taken, rows.end, "{slot:?} does not stand there");
                hash
            }
        };
        self.script.note(Call::Save(slot, rows.clone()));
        self.script.risk()?;
        let (bytes, states) = (
            self.saved_bytes(rows.len()),
            States {
                before: rows.start as u64,
                after,
            },
        );
        Ok(Some(Saved {
            rows,
            bytes,
            data: Box::new(Copy::new(states, bytes, &self.script)),
        }))
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        assert_eq!(
            self.slots[slot.0],
            Stream::EMPTY,
            "{slot:?} was not emptied"
        );
        let mut rows = 0;
        let mut hash = SEED;
        for saved in saved {
            let copy: &Copy<States> = saved.data.downcast_ref().expect("a copy of this backend");
            assert_eq!((saved.rows.start, copy.of.before), (rows, rows as u64));
            rows = saved.rows.end;
            hash = copy.of.after;
        }
        self.script.note(Call::Load(slot, rows));
        self.slots[slot.0] = Stream::Undefined;
        self.script.risk()?;
        self.slots[slot.0] = Stream::At {
            rows,
            hash,
            prefilled: true,
        };
        Ok(())
    }
}

/// A [`Head`] that hashes.
#[derive(Clone, Debug)]
pub struct FakeHead {
    script: Script,
}

/// A decision in a [`FakeHead`].
struct FakeRun {
    encoded: Arc<Encoded>,
    memory: Vec<f32>,
    rows: usize,
    /// Hash of the hidden rows of the spans and of the last row.
    spans: u64,
    script: Script,
}

impl FakeHead {
    /// A head.
    pub fn new(script: Script) -> FakeHead {
        FakeHead { script }
    }
}

impl Head for FakeHead {
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun> {
        self.script.with(|state| state.head_runs += 1);
        Box::new(FakeRun {
            encoded,
            memory: Vec::new(),
            rows: 0,
            spans: SEED,
            script: self.script.clone(),
        })
    }

    fn memory_bytes(&self, rows: usize) -> usize {
        memory_bytes(rows)
    }
}

/// Bytes of a copy of so many memory rows.
fn memory_bytes(rows: usize) -> usize {
    size_of::<f32>() * WIDTH * rows
}

impl FakeRun {
    /// Whether a row's hidden row itself is needed.
    fn needs(&self, row: usize) -> bool {
        let in_span = |question: &EncodedQuestion| {
            let mut options = question.options.iter();
            question.span.contains(&row) || options.any(|option| option.span.contains(&row))
        };
        row + 1 == self.encoded.ids.len() || self.encoded.questions.iter().any(in_span)
    }
}

impl HeadRun for FakeRun {
    fn absorb(&mut self, start: usize, hidden: &[f32]) -> Result<(), Defect> {
        assert_eq!(start, self.rows, "rows out of order");
        assert!(!hidden.is_empty() && hidden.len().is_multiple_of(HIDDEN));
        self.script.risk()?;
        for row in hidden.chunks_exact(HIDDEN) {
            self.memory.extend(&floats(fold(SEED, row))[..WIDTH]);
            if self.needs(self.rows) {
                self.spans = fold(mix(self.spans, &[self.rows as u64]), row);
            }
            self.rows += 1;
        }
        assert!(
            self.rows <= self.encoded.ids.len(),
            "more rows than the prompt has"
        );
        Ok(())
    }

    fn memory(&self, rows: Range<usize>) -> Option<SavedMemory> {
        if !self.script.has_memory_room() {
            return None;
        }
        let values = self.memory[rows.start * WIDTH..rows.end * WIDTH].to_vec();
        let bytes = memory_bytes(rows.len());
        Some(SavedMemory {
            rows,
            bytes,
            data: Box::new(Copy::new(values, bytes, &self.script)),
        })
    }

    fn preload(&mut self, memory: &SavedMemory) {
        let rows = memory.rows.clone();
        assert_eq!(rows.start, self.rows, "rows out of order");
        for row in rows.clone() {
            assert!(!self.needs(row), "row {row} is needed itself");
        }
        let copy = memory.data.downcast_ref::<Copy<Vec<f32>>>();
        self.memory
            .extend(&copy.expect("memory rows of another head").of);
        self.rows = rows.end;
    }

    fn finish(self: Box<Self>) -> Result<Logits, Defect> {
        assert_eq!(self.rows, self.encoded.ids.len(), "rows are missing");
        self.script.risk()?;
        let hash = fold(self.spans, &self.memory);
        let options = self
            .encoded
            .questions
            .iter()
            .map(|question| question.options.len());
        let logits = options.enumerate().map(|(question, options)| {
            let logit = |option| float(mix(hash, &[question as u64, option as u64]));
            (0..options).map(logit).collect()
        });
        Ok(logits.collect())
    }
}

impl Drop for FakeRun {
    fn drop(&mut self) {
        self.script.with(|state| state.head_runs -= 1);
    }
}

impl fmt::Debug for FakeRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeRun")
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

/// A record with these tokens and one yes-or-no question behind row `schema_start`; at least 4 rows must follow it.
pub fn fake_record(ids: Vec<u32>, schema_start: usize) -> Encoded {
    let option = |id: &str, row| EncodedOption {
        id: id.into(),
        span: row..row + 1,
    };
    assert!(schema_start + 4 <= ids.len(), "no room for the question");
    let first = schema_start;
    Encoded {
        ids,
        questions: vec![EncodedQuestion {
            id: "q".into(),
            kind: Kind::Noul,
            span: first..first + 1,
            options: vec![option("true", first + 1), option("false", first + 2)],
        }],
        truncated: 0,
        schema_start,
    }
}

/// The config of a fake model; no size but `hidden`, `vocab` and `positions_max` means anything.
fn fake_config(positions: usize) -> ModelConfig {
    ModelConfig {
        hidden: HIDDEN,
        intermediate: 1,
        vocab: VOCAB,
        layers: vec![LayerKind::LinearAttention],
        attention: AttentionConfig {
            heads: 1,
            kv_heads: 1,
            head_dim: 2,
            rotary_dims: 2,
            rope_theta: 1e7,
            mrope_section: [1, 0, 0],
        },
        linear: LinearConfig {
            key_heads: 1,
            value_heads: 1,
            key_dim: 1,
            value_dim: 1,
            conv_kernel: 4,
        },
        norm_eps: 1e-6,
        tied: false,
        positions_max: positions,
        eos: vec![0],
    }
}

/// Start of every hash.
const SEED: u64 = 0x243f_6a88_85a3_08d3;

/// Mixes words into a hash; the finaliser of SplitMix64 after each.
fn mix(mut hash: u64, words: &[u64]) -> u64 {
    for word in words {
        hash = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^= hash >> 31;
    }
    hash
}

/// Mixes the bits of numbers into a hash.
fn fold(hash: u64, row: &[f32]) -> u64 {
    row.iter()
        .fold(hash, |hash, value| mix(hash, &[u64::from(value.to_bits())]))
}

/// A number in `[-1, 1)` of a hash's upper 24 bits.
fn float(hash: u64) -> f32 {
    (hash >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// A hidden row of a hash.
fn floats(hash: u64) -> [f32; HIDDEN] {
    std::array::from_fn(|index| float(mix(hash, &[index as u64])))
}
