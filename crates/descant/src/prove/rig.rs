//! Between an engine and its device: writes down what runs beside what, and holds the engine still at the end of a round
//! while a scene is set.
//!
//! The device outlives its engines, so that a model is loaded once for many of them. Nothing here touches a number.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use descant_model::{Backend, Capacity, Choice, Defect, KeptRows, Pass, Saved, Segment, Slot};
use descant_release::ModelConfig;
use ring::digest::{Context, SHA256};

/// A device and the log of its rounds. Clones share both.
#[derive(Clone)]
pub(crate) struct Rig(Arc<Shared>);

struct Shared {
    config: ModelConfig,
    capacity: Capacity,
    device: Mutex<Box<dyn Backend>>,
    watch: Mutex<Watch>,
    changed: Condvar,
}

/// SHA-256 of a row of next-token logits, by their bits.
pub(crate) type RowDigest = [u8; 32];

/// What happened to a slot between two resets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stay {
    /// Rows that came from a snapshot.
    pub(crate) loaded: usize,
    /// Tokens of the prompt that were run.
    pub(crate) prompt: Vec<u32>,
    /// Pieces in which they were run.
    pub(crate) pieces: usize,
    /// Tokens that were decoded.
    pub(crate) decoded: usize,
    /// Rounds in which other streams had rows too.
    pub(crate) shared: usize,
    /// Of these, rounds in which this one's prompt ran beside a chat stream's token.
    pub(crate) beside_chat: usize,
    /// Most streams of a round of its own, itself among them.
    pub(crate) peak: usize,
    /// Each row of next-token logits that was computed for it.
    pub(crate) logits: Vec<RowDigest>,
}

/// The last round.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastRound {
    /// Whose rows they are, in order.
    rows: Vec<(Slot, Range<usize>)>,
    /// Chat streams in it.
    pub(crate) decoding: usize,
}

#[derive(Default)]
struct Watch {
    /// Rounds that may still end before the engine is held; `None` while it runs freely.
    permits: Option<usize>,
    held: bool,
    open: Vec<Stay>,
    closed: Vec<Stay>,
    last: LastRound,
}

/// Lets the engine run freely again when dropped, however a scene ends.
pub(crate) struct Hold<'a>(&'a Rig);

/// The engine did not come to the end of a round in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stuck;

impl Stay {
    fn ran(&self) -> bool {
        self.pieces + self.decoded > 0
    }

    /// Whether it ran a prompt from where its snapshot ended to its last row.
    pub(crate) fn completed(&self, prompt: &[u32]) -> bool {
        prompt.get(self.loaded..) == Some(&self.prompt[..])
    }

    /// Whether it began a prompt and left in the middle of it.
    pub(crate) fn broke_off(&self, prompt: &[u32]) -> bool {
        let rest = prompt.get(self.loaded..).unwrap_or_default();
        self.pieces > 0 && self.prompt.len() < rest.len() && rest.starts_with(&self.prompt)
    }
}

impl Rig {
    pub(crate) fn new(device: Box<dyn Backend>) -> Rig {
        let (config, capacity) = (device.config().clone(), device.capacity());
        let watch = Watch {
            open: vec![Stay::default(); capacity.slots],
            ..Watch::default()
        };
        Rig(Arc::new(Shared {
            config,
            capacity,
            device: Mutex::new(device),
            watch: Mutex::new(watch),
            changed: Condvar::new(),
        }))
    }

    /// The device as a backend of a new engine, all its slots empty.
    pub(crate) fn backend(&self) -> Box<dyn Backend> {
        let mut backend = Box::new(Watched(self.clone()));
        for slot in 0..self.0.capacity.slots {
            backend.reset(Slot(slot));
        }
        self.forget();
        backend
    }

    /// What the device reserved.
    pub(crate) fn capacity(&self) -> Capacity {
        self.0.capacity
    }

    /// Does something with the device itself, between engines.
    pub(crate) fn with_device<T>(&self, act: impl FnOnce(&mut dyn Backend) -> T) -> T {
        act(&mut **lock(&self.0.device))
    }

    /// Holds the engine at the end of its next round.
    pub(crate) fn hold(&self) -> Hold<'_> {
        self.change(|watch| watch.permits = Some(0));
        Hold(self)
    }

    /// Forgets what happened so far.
    pub(crate) fn forget(&self) {
        self.change(|watch| {
            watch.open.fill(Stay::default());
            watch.closed.clear();
        });
    }

    /// All stays in which something ran, those that ended first.
    pub(crate) fn stays(&self) -> Vec<Stay> {
        let watch = lock(&self.0.watch);
        let all = watch.closed.iter().chain(&watch.open);
        all.filter(|stay| stay.ran()).cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut Watch)) {
        change(&mut lock(&self.0.watch));
        self.0.changed.notify_all();
    }

    /// Holds the engine at the end of a round if it has no permit left.
    fn end_round(&self) {
        let mut watch = lock(&self.0.watch);
        while watch.permits == Some(0) {
            watch.held = true;
            self.0.changed.notify_all();
            watch = self
                .0
                .changed
                .wait(watch)
                .unwrap_or_else(PoisonError::into_inner);
        }
        watch.held = false;
        watch.permits = watch.permits.map(|permits| permits - 1);
    }

    fn write_down(&self, round: &[Segment<'_>]) {
        let streams = round.len();
        let decoding = round
            .iter()
            .filter(|segment| segment.pass == Pass::Decode)
            .count();
        let mut watch = lock(&self.0.watch);
        let (mut rows, mut first) = (Vec::with_capacity(streams), 0);
        for segment in round {
            let end = first + segment.tokens.len();
            rows.push((segment.slot, first..end));
            first = end;
            let stay = &mut watch.open[segment.slot.0];
            stay.peak = stay.peak.max(streams);
            stay.shared += usize::from(streams > 1);
            match segment.pass {
                Pass::Decode => stay.decoded += 1,
                Pass::Prefill => {
                    stay.pieces += 1;
                    stay.prompt.extend(segment.tokens);
                    stay.beside_chat += usize::from(decoding > 0);
                }
            }
        }
        watch.last = LastRound { rows, decoding };
    }

    /// Notes rows of next-token logits, `[rows, vocab]`, for whose they are.
    fn write_down_logits(&self, rows: &[usize], logits: &[f32]) {
        let vocab = self.0.config.vocab;
        let mut watch = lock(&self.0.watch);
        for (row, logits) in rows.iter().zip(logits.chunks_exact(vocab)) {
            let mut owners = watch.last.rows.iter();
            let owner = owners.find(|(_, rows)| rows.contains(row));
            if let Some((slot, _)) = owner.cloned() {
                watch.open[slot.0].logits.push(digest(logits));
            }
        }
    }

    /// Begins a new stay in a slot.
    fn turn_over(&self, slot: Slot, loaded: usize) {
        self.change(|watch| {
            let stay = Stay {
                loaded,
                ..Stay::default()
            };
            let ended = std::mem::replace(&mut watch.open[slot.0], stay);
            watch.closed.extend(ended.ran().then_some(ended));
        });
    }
}

impl Hold<'_> {
    /// Waits until the engine stands at the end of a round; what the round was.
    pub(crate) fn reached(&self) -> Result<LastRound, Stuck> {
        let shared = &self.0.0;
        let started = Instant::now();
        let mut watch = lock(&shared.watch);
        while !watch.held {
            let left = ROUND_WAIT_MAX.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(Stuck);
            }
            watch = shared
                .changed
                .wait_timeout(watch, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Ok(watch.last.clone())
    }

    /// Lets the engine go on to the end of the next round; what that round was.
    pub(crate) fn one_round(&self) -> Result<LastRound, Stuck> {
        self.0.change(|watch| {
            watch.permits = Some(1);
            watch.held = false;
        });
        self.reached()
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.change(|watch| watch.permits = None);
    }
}

/// Longest time until an engine that has work comes to the end of a round.
const ROUND_WAIT_MAX: Duration = Duration::from_secs(1800);

/// The device as an engine sees it.
struct Watched(Rig);

impl Backend for Watched {
    fn config(&self) -> &ModelConfig {
        &self.0.0.config
    }

    fn capacity(&self) -> Capacity {
        self.0.0.capacity
    }

    fn reset(&mut self, slot: Slot) {
        self.0.turn_over(slot, 0);
        lock(&self.0.0.device).reset(slot);
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        let done = lock(&self.0.0.device).run(round);
        self.0.write_down(round);
        self.0.end_round();
        done
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        lock(&self.0.0.device).hidden(rows, out)
    }

    fn marks_max(&self) -> usize {
        lock(&self.0.0.device).marks_max()
    }

    fn rows_step(&self) -> usize {
        lock(&self.0.0.device).rows_step()
    }

    fn keep_hidden(&self, rows: Range<usize>) -> Result<Option<KeptRows>, Defect> {
        lock(&self.0.0.device).keep_hidden(rows)
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        lock(&self.0.0.device).logits(rows, out)?;
        self.0.write_down_logits(rows, out);
        Ok(())
    }

    /// What the device chooses goes to the chat, which is compared by its tokens; the logits that it chose from are read all
    /// the same, and compared as those of any chat.
    fn sample(
        &mut self,
        rows: &[usize],
        choices: &[Choice<'_>],
    ) -> Result<Option<Vec<Option<u32>>>, Defect> {
        let mut device = lock(&self.0.0.device);
        let chosen = device.sample(rows, choices)?;
        if chosen.is_some() {
            let mut logits = vec![0.0; rows.len() * self.0.0.config.vocab];
            device.logits(rows, &mut logits)?;
            self.0.write_down_logits(rows, &logits);
        }
        Ok(chosen)
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        lock(&self.0.0.device).saved_bytes(rows)
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        lock(&self.0.0.device).save(slot, rows)
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        let loaded = saved.last().map_or(0, |saved| saved.rows.end);
        self.0.turn_over(slot, loaded);
        lock(&self.0.0.device).load(slot, saved)
    }
}

fn digest(row: &[f32]) -> RowDigest {
    let mut context = Context::new(&SHA256);
    for value in row {
        context.update(&value.to_bits().to_le_bytes());
    }
    let digest = context.finish();
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// A panic elsewhere leaves a log that is wrong at worst, and the run is over then.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
