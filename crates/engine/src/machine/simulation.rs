//! The machine in a simulated world: a list of operations, drawn at random from fixed seeds, gives arrivals, departures,
//! failures, the head's progress and the passing of time. After each step rows, slots and places are counted; in the
//! end every client has one answer, and it is the one of a lone run or a refusal that something in the world explains.

mod choices;

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::task::{Context, Poll, Waker};

use descant_decision::{Encoded, Logits};
use descant_model::{Capacity, Choice, Head, Pass, Segment, Slot};
use descant_release::ModelConfig;
use descant_testkit::fake::{
    Call, FakeBackend, FakeHead, HIDDEN, Mishap, Script, VOCAB, fake_record,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::engine::{Assembly, Handle, assemble};
use crate::jury::{HeadOut, HeadPiece, HeadTask, HiddenPiece};
use crate::sampling::Sampler;
use crate::ticket::{Decided, HiddenStream, StreamItem, Ticket, TokenStream};
use crate::{GenerateOptions, JobOptions, Sampling};

const CAPACITY: Capacity = Capacity {
    slots: 4,
    positions: 1024,
    rows: 256,
};

/// Something that happens.
#[derive(Clone, Debug)]
enum Op {
    /// A decision arrives. Prompts of one family share their tokens as far as both go, up to the state's end.
    Decide {
        family: u32,
        state_rows: usize,
        schema_rows: usize,
        timeout_ms: Option<u64>,
    },
    /// A chat prompt arrives.
    Chat {
        family: u32,
        rows: usize,
        tokens: usize,
        timeout_ms: Option<u64>,
    },
    /// Somebody asks for hidden rows.
    Hidden { rows: usize, piece_chunks: usize },
    /// A client goes away.
    Leave(usize),
    /// The engine is told to stop; what has a slot may go on for a while.
    Close { grace_ms: u64 },
    /// The backend fails or panics soon.
    BackendMishap(usize, Mishap),
    /// The head fails or panics soon.
    HeadMishap(usize, Mishap),
    /// The head works off so many tasks.
    Head(usize),
    /// Time passes.
    Pass { ms: u64 },
    /// The engine takes so many steps.
    Steps(usize),
}

/// What a backend says of itself.
#[derive(Clone, Copy, Debug)]
struct Device {
    marks_max: usize,
    rows_step: usize,
}

/// As the CPU's.
const PLAIN: Device = Device {
    marks_max: 0,
    rows_step: 1,
};

/// A clock that stands still until told.
#[derive(Debug, Default)]
struct SimulatedClock(AtomicU64);

impl SimulatedClock {
    fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

/// A backend whose rounds take time: a little each, and some for every row. Every third snapshot finds no room in it.
struct TimedBackend {
    inner: FakeBackend,
    clock: Arc<SimulatedClock>,
    snapshots: usize,
}

impl TimedBackend {
    fn round_time(rows: usize) -> Duration {
        Duration::from_micros(500 + 20 * rows as u64)
    }
}

impl Backend for TimedBackend {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn marks_max(&self) -> usize {
        self.inner.marks_max()
    }

    fn rows_step(&self) -> usize {
        self.inner.rows_step()
    }

    fn reset(&mut self, slot: Slot) {
        self.inner.reset(slot);
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        let rows = round.iter().map(|segment| segment.tokens.len()).sum();
        self.clock.pass(Self::round_time(rows));
        self.inner.run(round)
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        self.inner.hidden(rows, out)
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        self.inner.logits(rows, out)
    }

    fn sample(
        &mut self,
        rows: &[usize],
        choices: &[Choice<'_>],
    ) -> Result<Option<Vec<Option<u32>>>, Defect> {
        self.inner.sample(rows, choices)
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        self.inner.saved_bytes(rows)
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        self.snapshots += 1;
        if self.snapshots.is_multiple_of(3) {
            return Ok(None);
        }
        self.inner.save(slot, rows)
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        self.inner.load(slot, saved)
    }
}

/// A head's thread that works when told.
#[derive(Clone)]
struct SimulatedJury {
    tasks: Arc<Mutex<VecDeque<HeadTask>>>,
    head: FakeHead,
}

impl Jury for SimulatedJury {
    fn submit(&mut self, task: HeadTask) {
        self.tasks.lock().unwrap().push_back(task);
    }

    fn memory_bytes(&self, rows: usize) -> usize {
        self.head.memory_bytes(rows)
    }
}

/// A client and what it asked for.
enum Client {
    Decide(Ticket<Decided>, Encoded),
    Chat(TokenStream, Asked),
    Hidden(HiddenStream, Vec<u32>, Vec<f32>),
}

struct Asked {
    prompt: Vec<u32>,
    tokens: usize,
    seed: u64,
    got: Vec<u32>,
}

struct World {
    machine: Machine,
    handle: Handle,
    events: mpsc::Receiver<Event>,
    clock: Arc<SimulatedClock>,
    jury: SimulatedJury,
    head: FakeHead,
    backend_script: Script,
    /// Rows of each snapshot copied since the last round.
    copies: Cell<Vec<usize>>,
    head_script: Script,
    mishaps: usize,
    timeouts: usize,
    closing: bool,
    clients: Vec<Client>,
    answers: usize,
    seeds: u64,
}

/// What a step is compared with.
struct Before {
    now: Duration,
    /// The oldest prompt that could run, and the rounds that it has waited.
    oldest: Option<(JobId, u32)>,
    /// Older jobs without a slot.
    queued: usize,
    /// Older ones with a slot, which the head has no room for, and the rows of each that were run.
    held_back: Vec<(JobId, usize)>,
}

impl World {
    fn new(settings: &Settings, device: Device) -> World {
        let (backend_script, head_script) = (Script::default(), Script::default());
        let clock = Arc::new(SimulatedClock::default());
        let backend = TimedBackend {
            inner: FakeBackend::new(CAPACITY, backend_script.clone())
                .with_marks(device.marks_max)
                .with_rows_step(device.rows_step),
            clock: Arc::clone(&clock),
            snapshots: 0,
        };
        head_script.refuse_memory_each(4);
        let head = FakeHead::new(head_script.clone());
        let jury = SimulatedJury {
            tasks: Arc::default(),
            head: head.clone(),
        };
        let shared_clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let Assembly {
            handle,
            events,
            settings,
        } = assemble(&backend, true, settings, Arc::clone(&shared_clock)).unwrap();
        let (door, board) = handle.front();
        let machine = Machine::new(Parts {
            backend: Box::new(backend),
            jury: Some(Box::new(jury.clone())),
            clock: shared_clock,
            settings,
            door,
            board,
        });
        World {
            machine,
            handle,
            events,
            clock,
            jury,
            head,
            backend_script,
            copies: Cell::default(),
            head_script,
            mishaps: 0,
            timeouts: 0,
            closing: false,
            clients: Vec::new(),
            answers: 0,
            seeds: 0,
        }
    }

    fn act(&mut self, op: &Op) {
        match op {
            Op::Decide {
                family,
                state_rows,
                schema_rows,
                timeout_ms,
            } => {
                self.seeds += 1;
                let mut ids = tokens(*state_rows, *family);
                // Few schemas, so that whole records come again.
                ids.extend(tokens(*schema_rows, 1000 + self.seeds as u32 % 3));
                let record = fake_record(ids, *state_rows);
                let options = self.options(*timeout_ms);
                if let Ok(ticket) = self.handle.decide(Arc::new(record.clone()), &options) {
                    self.clients.push(Client::Decide(ticket, record));
                }
            }
            Op::Chat {
                family,
                rows,
                tokens: count,
                timeout_ms,
            } => self.chat(tokens(*rows, *family), *count, *timeout_ms),
            Op::Hidden { rows, piece_chunks } => {
                let ids = tokens(*rows, 7);
                let (piece, options) = (piece_chunks * CHUNK_ROWS, JobOptions::default());
                if let Ok(stream) = self.handle.hidden(ids.clone(), piece, &options) {
                    self.clients.push(Client::Hidden(stream, ids, Vec::new()));
                }
            }
            Op::Leave(index) => {
                if !self.clients.is_empty() {
                    let index = index % self.clients.len();
                    drop(self.clients.remove(index));
                }
            }
            Op::Close { grace_ms } => {
                self.closing = true;
                self.handle.front().0.close();
                let until = self.clock.now() + Duration::from_millis(*grace_ms);
                self.machine.note(Event::Closing(until));
            }
            Op::BackendMishap(after, mishap) => {
                self.mishaps += 1;
                let fates = (0..*after).map(|_| None).chain([Some(*mishap)]);
                self.backend_script.befall(fates);
            }
            Op::HeadMishap(after, mishap) => {
                self.mishaps += 1;
                let fates = (0..*after).map(|_| None).chain([Some(*mishap)]);
                self.head_script.befall(fates);
            }
            Op::Head(tasks) => self.work_in_head(*tasks),
            Op::Pass { ms } => self.clock.pass(Duration::from_millis(*ms)),
            Op::Steps(count) => {
                for _ in 0..*count {
                    self.step();
                }
            }
        }
    }

    fn chat(&mut self, prompt: Vec<u32>, tokens: usize, timeout_ms: Option<u64>) {
        self.seeds += 1;
        let asked = Asked {
            prompt,
            tokens,
            seed: self.seeds,
            got: Vec::new(),
        };
        let options = GenerateOptions {
            sampling: asked.sampling(),
            tokens_max: Some(tokens),
            job: self.options(timeout_ms),
            ..GenerateOptions::default()
        };
        if let Ok(stream) = self.handle.generate(asked.prompt.clone(), options) {
            self.clients.push(Client::Chat(stream, asked));
        }
    }

    fn options(&mut self, timeout_ms: Option<u64>) -> JobOptions {
        self.timeouts += usize::from(timeout_ms.is_some());
        JobOptions {
            timeout: timeout_ms.map(Duration::from_millis),
        }
    }

    fn work_in_head(&mut self, tasks: usize) {
        // As threads side by side do it: all of them work before the engine hears of any.
        let tasks: Vec<HeadTask> = {
            let mut line = self.jury.tasks.lock().unwrap();
            let count = tasks.min(line.len());
            line.drain(..count).collect()
        };
        let outs: Vec<HeadOut> = tasks.into_iter().map(|task| task.run(&self.head)).collect();
        self.check_copies();
        for out in outs {
            self.machine.note(Event::HeadDone(out));
        }
    }

    fn step(&mut self) -> Step {
        while let Ok(event) = self.events.try_recv() {
            self.machine.note(event);
        }
        let before = self.before();
        let step = self.machine.step();
        self.check_rounds();
        self.check(&before);
        self.read();
        step
    }

    /// The oldest prompt that could run now.
    fn before(&self) -> Before {
        let room = self.machine.head_rows.free();
        let views = self.machine.jobs.values().filter_map(Entry::prompt_view);
        let fits = |view: &PromptView| (view.rows - view.done).min(CHUNK_ROWS) <= room;
        let mut runnable = views.filter(|view| !view.for_head || fits(view));
        let oldest = runnable.next().map(|view| (view.job, view.rounds_waited));
        Before {
            now: self.clock.now(),
            oldest,
            queued: oldest.map_or(0, |(job, _)| self.queued_before(job)),
            held_back: oldest.map_or_else(Vec::new, |(job, _)| self.prompts_before(job)),
        }
    }

    /// Older prompts with a slot, and how many rows of each were run.
    fn prompts_before(&self, job: JobId) -> Vec<(JobId, usize)> {
        let older = self.machine.jobs.range(..job);
        let views = older.filter_map(|(_, entry)| entry.prompt_view());
        views.map(|view| (view.job, view.done)).collect()
    }

    /// Waiting jobs older than this one.
    fn queued_before(&self, job: JobId) -> usize {
        let older = self.machine.jobs.range(..job);
        older
            .filter(|(_, entry)| matches!(entry.state, State::Queued))
            .count()
    }

    /// Checks the rounds run since the last look.
    fn check_rounds(&self) {
        let settings = &self.machine.settings;
        // Rows of the snapshots that were copied since the last round, by the copy.
        let mut copies = self.copies.take();
        for call in self.backend_script.take_calls() {
            match &call {
                Call::Load(_, rows) => copies.push(*rows),
                Call::Save(_, rows) => copies.push(rows.len()),
                _ => {}
            }
            let Call::Run(segments) = call else { continue };
            let prompt_rows = |(_, _, rows, pass): &(Slot, usize, usize, Pass)| match pass {
                Pass::Prefill => *rows,
                Pass::Decode => 0,
            };
            let rows: usize = segments.iter().map(|(_, _, rows, _)| rows).sum();
            let prefill: usize = segments.iter().map(prompt_rows).sum();
            assert!(rows <= settings.rows_max);
            let greatest = segments.iter().map(prompt_rows).max();
            assert!(greatest <= Some(settings.piece_rows));
            if prefill < rows {
                assert!(
                    prefill <= settings.piece_rows,
                    "a chat token waits for more than a piece"
                );
                let (step, piece) = (self.machine.backend.rows_step(), settings.piece_rows);
                let most = (piece / step * step).max(CHUNK_ROWS + rows - prefill);
                assert!(
                    step == 1 || piece < step || prefill == 0 || rows <= most,
                    "tokens begin a step of their own"
                );
                let copied: usize = copies.iter().sum();
                let longest = copies.iter().max().copied().unwrap_or(0);
                assert!(
                    copied - longest <= settings.piece_rows,
                    "a chat token waits for several long snapshots: {copies:?}"
                );
                assert!(
                    copied <= settings.piece_rows || prefill == 0,
                    "a chat token waits for snapshots {copies:?} and {prefill} rows"
                );
            }
            copies.clear();
        }
        self.copies.set(copies);
    }

    fn check(&self, before: &Before) {
        let machine = &self.machine;
        let with_slot = machine
            .jobs
            .values()
            .filter(|entry| entry.has_slot())
            .count();
        assert_eq!(
            machine.slots.free() + with_slot,
            CAPACITY.slots,
            "a slot is lost"
        );
        assert_eq!(
            self.handle.front().0.jobs(),
            machine.jobs.len(),
            "a place is lost"
        );

        let stats = &machine.stats;
        let refused = stats.refused_busy + stats.refused_closing + stats.refused_deadline;
        let left = stats.answered + refused + stats.cancelled + stats.defects;
        assert_eq!(
            stats.arrived,
            left + machine.jobs.len() as u64,
            "a job is lost"
        );

        assert!(machine.cache.bytes() <= machine.settings.cache_bytes);
        self.check_copies();
        let heads = || {
            machine
                .jobs
                .values()
                .filter_map(|entry| entry.head.as_ref())
        };
        let waiting: usize = heads().map(|head| head.copies.len()).sum();
        assert_eq!(
            self.backend_script.copies(),
            machine.cache.entries() + waiting
        );
        let tasks = self.jury.tasks.lock().unwrap();
        for (id, entry) in &machine.jobs {
            let Some(head) = &entry.head else { continue };
            let away = tasks.iter().filter(|task| task.job == *id);
            let pieces = away.flat_map(|task| &task.pieces).chain(&head.pending);
            let is_copied = |piece: &&HeadPiece| matches!(piece, HeadPiece::Absorb { copy, .. } if copy.is_some());
            assert_eq!(
                head.copies.len(),
                pieces.filter(is_copied).count(),
                "a copy waits for memory rows that do not come"
            );
        }
        drop(tasks);
        let runs = self.head_script.head_runs();
        assert!(runs <= heads().count() + self.jury.tasks.lock().unwrap().len());
        let most = machine.settings.head_runs_max(machine.slots.count());
        assert!(
            runs <= most,
            "{runs} decisions in a head with room for {most}"
        );

        self.check_rows();
        self.check_left(before);
        self.check_oldest(before);
    }

    /// A device keeps the backend's copies and the head's in as much room as the cache has, those on their way into it too.
    fn check_copies(&self) {
        let bytes = self.backend_script.copied_bytes() + self.head_script.copied_bytes();
        let room = self.machine.settings.cache_bytes;
        assert!(bytes <= room, "copies of {bytes} bytes in {room}");
    }

    /// Every hidden row in the head's buffer belongs to a piece that waits for the head.
    fn check_rows(&self) {
        let rows = |piece: &HeadPiece| match piece {
            HeadPiece::Absorb { hidden, .. } => match hidden {
                HiddenPiece::Host(rows) => rows.len() / HIDDEN,
                HiddenPiece::Kept(rows) => rows.rows,
            },
            HeadPiece::Preload(_) => 0,
        };
        let tasks = self.jury.tasks.lock().unwrap();
        let away: usize = tasks.iter().flat_map(|task| &task.pieces).map(rows).sum();
        let heads = self
            .machine
            .jobs
            .values()
            .filter_map(|entry| entry.head.as_ref());
        let home: usize = heads.flat_map(|head| &head.pending).map(rows).sum();
        let most = self.machine.settings.head_rows_max();
        assert_eq!(
            self.machine.head_rows.free(),
            most.saturating_sub(home + away),
            "hidden rows are lost"
        );
    }

    /// Nobody is still there who went away or whose time was up when the step began.
    fn check_left(&self, before: &Before) {
        for (id, entry) in &self.machine.jobs {
            assert!(!entry.job.flags.gone(), "{id:?} has no client any more");
            let over = |time: Option<Duration>| time.is_some_and(|time| before.now >= time);
            assert!(!over(entry.job.deadline), "{id:?} is past its deadline");
            assert!(
                !over(self.machine.closing),
                "{id:?} is there after the end of the engine's time"
            );
        }
    }

    /// The oldest prompt moves when its piece is due, unless an older job got its slot in this step, or an older prompt that
    /// the head had no room for got it.
    fn check_oldest(&self, before: &Before) {
        let machine = &self.machine;
        let Some((oldest, waited)) = before.oldest else {
            return;
        };
        let due = waited + 1 >= machine.settings.rounds_between_pieces_max;
        if !due
            || self.queued_before(oldest) != before.queued
            || self.prompts_before(oldest) != before.held_back
        {
            return;
        }
        if let Some(entry) = machine.jobs.get(&oldest)
            && let State::Prompt(prompt) = &entry.state
        {
            // A round without prompt rows does not count.
            let moved = prompt.rounds_waited == 0 || prompt.rounds_waited == waited;
            assert!(
                moved,
                "{oldest:?} waits for {} rounds",
                prompt.rounds_waited
            );
        }
    }

    /// Lets every client take what is there.
    fn read(&mut self) {
        let mut index = 0;
        while index < self.clients.len() {
            match self.clients[index].read() {
                None => index += 1,
                Some(outcome) => {
                    let client = self.clients.remove(index);
                    self.answers += 1;
                    self.judge(&client, &outcome);
                }
            }
        }
    }

    /// Compares an answer with the lone run's, or finds the reason of a refusal.
    fn judge(&self, client: &Client, outcome: &Result<Option<Logits>, EngineError>) {
        match outcome {
            Ok(logits) => match client {
                Client::Decide(_, record) => assert_eq!(logits.as_ref(), Some(&alone(record))),
                Client::Chat(_, asked) => assert_eq!(asked.got, asked.alone()),
                Client::Hidden(_, ids, rows) => assert_eq!(*rows, lone_rows(ids)),
            },
            Err(EngineError::Closing) => assert!(self.closing),
            Err(EngineError::Deadline) => assert!(self.timeouts > 0),
            // Any other panic is a rule of the backend or the head that was broken.
            Err(EngineError::Defect(defect)) => {
                assert!(
                    self.mishaps > 0 && defect.to_string().contains("told to"),
                    "{defect}"
                );
            }
            Err(EngineError::Busy { .. }) => {
                assert!(Some(self.clock.now()) >= self.machine.settings.wait_max);
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Lets everything go well until nothing is left to do.
    fn come_to_rest(&mut self) {
        self.backend_script.clear_mishaps();
        self.head_script.clear_mishaps();
        for _ in 0..100_000 {
            let step = self.step();
            let idle = self.jury.tasks.lock().unwrap().is_empty();
            if step != Step::Ran && idle && self.clients.is_empty() {
                break;
            }
            if let Step::Idle(until) = step {
                assert!(!idle || until.is_some(), "stuck with {:?}", self.machine);
                if idle && let Some(until) = until {
                    self.clock.pass(until.saturating_sub(self.clock.now()));
                }
            }
            self.work_in_head(1);
        }
        // Cancels of clients that have their answer.
        self.step();
        assert!(
            self.clients.is_empty(),
            "{} clients have no answer",
            self.clients.len()
        );
        assert!(self.machine.jobs.is_empty());
        assert_eq!(self.machine.slots.free(), CAPACITY.slots);
        assert_eq!(self.head_script.head_runs(), 0);
        assert_eq!(
            self.machine.head_rows.free(),
            self.machine.settings.head_rows_max()
        );
        self.machine.note(Event::Closing(self.clock.now()));
        assert_eq!(self.machine.step(), Step::Closed);
    }
}

impl Client {
    /// Takes what is there; the outcome once it is known. Fails if more follows it.
    fn read(&mut self) -> Option<Result<Option<Logits>, EngineError>> {
        let context = &mut Context::from_waker(Waker::noop());
        match self {
            Client::Decide(ticket, _) => {
                let Poll::Ready(answer) = Pin::new(&mut *ticket).poll(context) else {
                    return None;
                };
                let second = Pin::new(ticket).poll(context);
                assert!(
                    matches!(second, Poll::Ready(Err(_))),
                    "two answers, or one to come"
                );
                Some(answer.map(|decided| Some(decided.logits)))
            }
            Client::Chat(stream, asked) => loop {
                match stream.poll_next(context) {
                    Poll::Pending => return None,
                    Poll::Ready(Some(Ok(StreamItem::Token(token)))) => asked.got.push(token.id),
                    Poll::Ready(Some(Ok(StreamItem::Finished(_)))) => return Some(Ok(None)),
                    Poll::Ready(Some(Err(error))) => return Some(Err(error)),
                    Poll::Ready(None) => panic!("the stream ended without an end"),
                }
            },
            Client::Hidden(stream, _, got) => loop {
                match stream.poll_next(context) {
                    Poll::Pending => return None,
                    Poll::Ready(Some(Ok(piece))) => got.extend(piece.rows),
                    Poll::Ready(Some(Err(error))) => return Some(Err(error)),
                    Poll::Ready(None) => return Some(Ok(None)),
                }
            },
        }
    }
}

impl Asked {
    fn sampling(&self) -> Sampling {
        Sampling {
            seed: self.seed,
            // So that the backend chooses for some, and others read their logits.
            logprobs: self.seed.is_multiple_of(2).then_some(0),
            ..Sampling::default()
        }
    }

    /// The tokens that the prompt gives on a backend of its own.
    fn alone(&self) -> Vec<u32> {
        let mut backend = lone_backend();
        let mut sampler = Sampler::new(self.sampling(), None);
        let mut next = self.prompt.clone();
        let mut start = 0;
        let mut ids = Vec::new();
        loop {
            let pass = if start == 0 {
                Pass::Prefill
            } else {
                Pass::Decode
            };
            run(&mut backend, start, &next, pass);
            let mut logits = vec![0.0; VOCAB];
            backend.logits(&[next.len() - 1], &mut logits).unwrap();
            start += next.len();
            ids.push(sampler.next(&mut logits).unwrap().id);
            if ids.len() == self.tokens {
                return ids;
            }
            next = ids[ids.len() - 1..].to_vec();
        }
    }
}

/// The logits of a record on a backend of its own.
fn alone(record: &Encoded) -> Logits {
    let mut head = FakeHead::new(Script::default()).begin(Arc::new(record.clone()));
    head.absorb(0, &lone_rows(&record.ids)).unwrap();
    head.finish().unwrap()
}

/// The hidden rows of a prompt on a backend of its own.
fn lone_rows(ids: &[u32]) -> Vec<f32> {
    let mut backend = lone_backend();
    run(&mut backend, 0, ids, Pass::Prefill);
    let mut rows = vec![0.0; ids.len() * HIDDEN];
    backend.hidden(0..ids.len(), &mut rows).unwrap();
    rows
}

fn lone_backend() -> FakeBackend {
    let capacity = Capacity {
        slots: 1,
        rows: CAPACITY.positions,
        ..CAPACITY
    };
    FakeBackend::new(capacity, Script::default())
}

fn run(backend: &mut FakeBackend, start: usize, tokens: &[u32], pass: Pass) {
    let segment = Segment {
        slot: Slot(0),
        start,
        tokens,
        pass,
        mark: None,
    };
    backend.run(&[segment]).unwrap();
}

fn tokens(count: usize, family: u32) -> Vec<u32> {
    let token = |index: u32| (index * index * 13 + index * 7 + family * 31) % VOCAB as u32;
    (0..count as u32).map(token).collect()
}

fn mishap() -> impl Strategy<Value = Mishap> {
    prop_oneof![Just(Mishap::Fail), Just(Mishap::Panic)]
}

fn op() -> impl Strategy<Value = Op> {
    let rows = || prop_oneof![3 => 1..200usize, 1 => 1..900usize];
    let timeout_ms = || prop_oneof![4 => Just(None), 1 => (0..300u64).prop_map(Some)];
    let decide = (0..4u32, rows(), 4..100usize, timeout_ms());
    let chat = (0..4u32, rows(), 1..12usize, timeout_ms());
    prop_oneof![
        8 => decide.prop_map(|(family, state_rows, schema_rows, timeout_ms)| Op::Decide {
            family, state_rows, schema_rows, timeout_ms,
        }),
        5 => chat.prop_map(|(family, rows, tokens, timeout_ms)| Op::Chat {
            family, rows, tokens, timeout_ms,
        }),
        1 => (rows(), 1..4usize).prop_map(|(rows, piece_chunks)| Op::Hidden {
            rows, piece_chunks,
        }),
        3 => any::<usize>().prop_map(Op::Leave),
        1 => (0..40u64).prop_map(|grace_ms| Op::Close { grace_ms }),
        1 => (0..4usize, mishap()).prop_map(|(after, mishap)| Op::BackendMishap(after, mishap)),
        1 => (0..4usize, mishap()).prop_map(|(after, mishap)| Op::HeadMishap(after, mishap)),
        8 => (1..6usize).prop_map(Op::Head),
        2 => (0..2000u64).prop_map(|ms| Op::Pass { ms }),
        16 => (1..6usize).prop_map(Op::Steps),
    ]
}

fn device() -> impl Strategy<Value = Device> {
    let rows_step = prop_oneof![Just(1usize), Just(CHUNK_ROWS), Just(2 * CHUNK_ROWS)];
    (0..3usize, rows_step).prop_map(|(marks_max, rows_step)| Device {
        marks_max,
        rows_step,
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    let cache_bytes = prop_oneof![Just(0), 3_000..12_000usize, Just(1 << 20)];
    let numbers = (1..5usize, 80..300usize, 1..5u32, 0..3usize);
    (numbers, cache_bytes, 0.0..0.8f64).prop_map(|(numbers, cache_bytes, chat_share)| {
        let (piece_chunks, rows_max, rounds_between_pieces_max, reserve) = numbers;
        Settings {
            rows_max,
            piece_rows: piece_chunks * CHUNK_ROWS,
            chat_slots: reserve,
            decision_slots: reserve.min(1),
            chat_share,
            rounds_between_pieces_max,
            queue_max: 20,
            cache_bytes,
            ..Settings::default()
        }
    })
}

/// Fixed seeds, so that a run says the same each time; failures shrink to few operations.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 2500,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(3),
        max_shrink_iters: 4096,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_client_gets_one_answer_and_nothing_is_lost(
        settings in settings(),
        device in device(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(&settings, device);
        for op in &ops {
            world.act(op);
        }
        world.come_to_rest();
    }
}

/// A world in which every client waits as long as it must.
fn patient_world(chat_share: f64, piece_chunks: usize, device: Device) -> World {
    let settings = Settings {
        piece_rows: piece_chunks * CHUNK_ROWS,
        chat_share,
        wait_max: None,
        ..Settings::default()
    };
    World::new(&settings, device)
}

/// Rows of prompts and of chat in a round.
fn rows_of(segments: &[(Slot, usize, usize, Pass)]) -> (usize, usize) {
    let count = |wanted: Pass| {
        let rows = segments.iter().filter(|(.., pass)| *pass == wanted);
        rows.map(|(_, _, rows, _)| rows).sum()
    };
    (count(Pass::Prefill), count(Pass::Decode))
}

/// Decisions that are given up while the head has them hold their memory there until it lets go of them, so they still count.
#[test]
fn decisions_given_up_in_the_head_count_until_it_lets_go() {
    let mut world = patient_world(0.0, 4, PLAIN);
    let most = world.machine.settings.head_runs_max(CAPACITY.slots);
    let decide = |family| Op::Decide {
        family,
        state_rows: 12,
        schema_rows: 8,
        timeout_ms: None,
    };
    // The head stands still.
    let tasks = |world: &mut World| {
        world.act(&Op::Steps(4 * most));
        world.jury.tasks.lock().unwrap().len()
    };
    (0..most as u32 + 3).for_each(|family| world.act(&decide(family)));
    assert_eq!(tasks(&mut world), most);
    world.clients.clear();
    (50..50 + most as u32).for_each(|family| world.act(&decide(family)));
    assert_eq!(tasks(&mut world), most, "nobody else has room");
    world.act(&Op::Head(1));
    assert_eq!(tasks(&mut world), most, "one has gone, one came");
    world.come_to_rest();
}

#[test]
fn long_decisions_leave_a_slot_to_short_ones_and_one_to_chat() {
    let mut world = patient_world(0.25, 1, PLAIN);
    for _ in 0..6 {
        world.act(&long_job(0, 900));
    }
    world.step();
    let with_slot = |world: &World| {
        let jobs = world.machine.jobs.iter();
        let held = jobs.filter(|(_, entry)| entry.has_slot());
        held.map(|(id, _)| id.0).collect::<Vec<_>>()
    };
    // The others have the same state and wait for the first one's snapshot.
    world.step();
    for family in 0..4 {
        world.act(&Op::Decide {
            family,
            state_rows: 800,
            schema_rows: 10,
            timeout_ms: None,
        });
    }
    world.step();
    assert_eq!(with_slot(&world).len(), 2, "four slots, two of them kept");
    let short = Op::Decide {
        family: 9,
        state_rows: 20,
        schema_rows: 10,
        timeout_ms: None,
    };
    world.act(&short);
    world.chat(tokens(30, 8), 4, None);
    world.step();
    let held = with_slot(&world);
    // The short decision may be through its one piece by now, and in the head.
    let in_head = world.machine.jobs[&JobId(10)].head.is_some();
    assert!(held.contains(&10) || in_head, "{held:?}");
    assert!(held.contains(&11), "{held:?}");
    world.come_to_rest();
}

#[test]
fn long_states_come_from_the_cache_one_at_a_time_between_tokens() {
    let mut world = patient_world(0.0, 1, PLAIN);
    let decide = Op::Decide {
        family: 5,
        state_rows: 700,
        schema_rows: 8,
        timeout_ms: None,
    };
    world.act(&decide);
    while !world.clients.is_empty() {
        world.step();
        world.work_in_head(1);
    }
    world.chat(tokens(30, 8), 200, None);
    while world.machine.stats.streams == 0 {
        world.step();
    }
    world.act(&decide);
    world.act(&decide);
    // Each step also checks that its round has no prompt rows beside the stream's token.
    let hits = world.machine.stats.cache_hits;
    for more in 1..=2 {
        world.step();
        assert_eq!(world.machine.stats.cache_hits, hits + more);
    }
    world.come_to_rest();
}

/// A backend that keeps states aside at marks runs a prompt that fits in a piece in one round, and what it kept serves the next; a
/// chat prompt's too, whose stream has ended with that round.
#[test]
fn a_snapshot_needs_no_round_of_its_own_where_there_are_marks() {
    let chat = || Op::Chat {
        family: 3,
        rows: 200,
        tokens: 1,
        timeout_ms: None,
    };
    let decide = || Op::Decide {
        family: 4,
        state_rows: 200,
        schema_rows: 9,
        timeout_ms: None,
    };
    for op in [chat(), decide()] {
        for (marks_max, rounds) in [(0, 2), (1, 1)] {
            let device = Device { marks_max, ..PLAIN };
            let mut world = patient_world(0.0, 4, device);
            for (rounds, hits) in [(rounds, 0), (1, 1)] {
                world.act(&op);
                let before = world.machine.stats.rounds;
                while !world.clients.is_empty() {
                    world.step();
                    world.work_in_head(1);
                }
                assert_eq!(world.machine.stats.rounds - before, rounds, "{op:?}");
                assert_eq!(world.machine.stats.cache_hits, hits, "{op:?}");
            }
            assert_eq!(world.machine.stats.cached_rows, 192, "{op:?}");
            world.come_to_rest();
        }
    }
}

/// A running stream's token does not wait for the copy of a decision's state, wherever in the piece that is due.
#[test]
fn tokens_are_given_before_a_decisions_state_is_copied() {
    for marks_max in [0, 1] {
        let mut world = patient_world(0.0, 4, Device { marks_max, ..PLAIN });
        world.chat(tokens(30, 8), 200, None);
        while world.machine.stats.streams == 0 {
            world.step();
        }
        world.act(&Op::Decide {
            family: 4,
            state_rows: 200,
            schema_rows: 9,
            timeout_ms: None,
        });
        while let Ok(event) = world.events.try_recv() {
            world.machine.note(event);
        }
        world.backend_script.take_calls();
        world.machine.step();
        let rows = if marks_max > 0 { 209 } else { 192 };
        let calls = world.backend_script.take_calls();
        assert!(
            matches!(
                &calls[..],
                [Call::Run(segments), Call::Tokens, Call::Save(_, saved), ..]
                    if rows_of(segments) == (rows, 1) && *saved == (0..192)
            ),
            "{calls:?}"
        );
        world.come_to_rest();
    }
}

/// What a kind of job is asked for, alone.
fn long_job(kind: u8, rows: usize) -> Op {
    match kind {
        0 => Op::Decide {
            family: 77,
            state_rows: rows - 10,
            schema_rows: 10,
            timeout_ms: None,
        },
        1 => Op::Chat {
            family: 77,
            rows,
            tokens: 1,
            timeout_ms: None,
        },
        _ => Op::Hidden {
            rows,
            piece_chunks: 4,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..config() })]

    /// While chat streams run and prompts never cease, rounds of chat alone take the share of the time that is chat's:
    /// no less than what the last round with prompt rows left owing, no more than a round too many for each such round and for
    /// each snapshot that was copied.
    #[test]
    fn chat_keeps_its_share_and_prompts_keep_theirs(
        share in 0.0..0.8f64,
        streams in 1..4usize,
        piece_chunks in 1..4usize,
        device in device(),
        rows in proptest::collection::vec(20..700usize, 1..12),
    ) {
        let mut world = patient_world(share, piece_chunks, device);
        for seed in 0..streams {
            world.chat(tokens(10, seed as u32), 600, None);
        }
        while world.machine.stats.streams < streams {
            world.step();
        }
        world.backend_script.take_calls();
        let (mut alone, mut mixed) = (Duration::ZERO, Duration::ZERO);
        let (mut longest_alone, mut longest_mixed, mut mixed_rounds) = (Duration::ZERO, Duration::ZERO, 0);
        let mut copies = 0;
        for step in 0..250 {
            while world.machine.stats.queued < 2 {
                let rows = rows[step % rows.len()];
                world.act(&Op::Decide { family: step as u32, state_rows: rows, schema_rows: 8, timeout_ms: None });
                while let Ok(event) = world.events.try_recv() {
                    world.machine.note(event);
                }
                world.machine.publish();
            }
            world.machine.step();
            world.work_in_head(20);
            for call in world.backend_script.take_calls() {
                copies += u32::from(matches!(call, Call::Save(..) | Call::Load(..)));
                let Call::Run(segments) = call else { continue };
                let (prompt, chat) = rows_of(&segments);
                prop_assert_eq!(chat, streams, "every stream gets its token");
                let took = TimedBackend::round_time(prompt + chat);
                if prompt == 0 {
                    alone += took;
                    longest_alone = longest_alone.max(took);
                } else {
                    mixed += took;
                    longest_mixed = longest_mixed.max(took);
                    mixed_rounds += 1;
                }
            }
        }
        // Microseconds are rounded down when the clock passes.
        let due = mixed.mul_f64(share / (1.0 - share));
        let owing = longest_mixed.mul_f64(share / (1.0 - share)) + Duration::from_micros(1);
        prop_assert!(alone + owing >= due, "{alone:?} of {due:?}");
        let more = longest_alone * (mixed_rounds + copies + 1);
        prop_assert!(alone <= due + more, "{alone:?}, due {due:?} and {more:?}");
        prop_assert!(mixed_rounds > 0);
        world.come_to_rest();
    }

    /// A long job among short ones without end is done after a bounded number of rows of others: those that were there
    /// before it, and as many again as it has itself, with what fills its rounds up.
    #[test]
    fn nobody_starves_behind_short_jobs_without_end(
        kind in 0..3u8,
        rows in 300..1000usize,
        short_rows in proptest::collection::vec(5..60usize, 1..8),
        piece_chunks in 1..4usize,
        ahead in 0..6usize,
        device in device(),
    ) {
        let mut world = patient_world(0.25, piece_chunks, device);
        let short = |step: usize| Op::Decide {
            family: step as u32,
            state_rows: short_rows[step % short_rows.len()],
            schema_rows: 8,
            timeout_ms: None,
        };
        for step in 0..ahead {
            world.act(&short(step));
        }
        world.act(&long_job(kind, rows));
        let long = JobId(ahead as u64);
        let mut others = 0;
        let mut done = false;
        for step in ahead..4000 {
            // Always more short ones than there are slots.
            for more in 0..6usize.saturating_sub(world.machine.stats.queued) {
                world.act(&short(step * 6 + more));
            }
            let before = world.machine.stats.prefill_rows;
            while let Ok(event) = world.events.try_recv() {
                world.machine.note(event);
            }
            world.machine.step();
            world.backend_script.take_calls();
            world.work_in_head(20);
            world.read();
            others += world.machine.stats.prefill_rows - before;
            done = !world.machine.jobs.contains_key(&long);
            if done {
                break;
            }
        }
        let bound = (3 * rows + (ahead + CAPACITY.slots) * 70 + 4 * CAPACITY.rows) as u64;
        prop_assert!(done, "{rows} rows are not done after {others} rows");
        prop_assert!(others <= bound, "{rows} rows were done after {others}, more than {bound}");
        world.come_to_rest();
    }

    /// A client that leaves takes its rows with it before the next round, and its neighbour answers as alone.
    #[test]
    fn a_cancelled_prompt_has_no_row_in_the_next_round(
        kind in 0..3u8,
        rows in 600..1000usize,
        piece_chunks in 1..3usize,
        rounds in 1..4usize,
        neighbour_rows in 100..900usize,
        device in device(),
    ) {
        let mut world = patient_world(0.25, piece_chunks, device);
        world.act(&long_job(kind, rows));
        world.act(&Op::Decide { family: 3, state_rows: neighbour_rows, schema_rows: 9, timeout_ms: None });
        for _ in 0..rounds {
            world.step();
        }
        let entry = &world.machine.jobs[&JobId(0)];
        let State::Prompt(prompt) = &entry.state else {
            panic!("the prompt is longer than {rounds} pieces");
        };
        let slot = prompt.slot.slot();
        prop_assert!(prompt.done > 0, "it has begun");
        world.backend_script.take_calls();
        drop(world.clients.remove(0));
        while let Ok(event) = world.events.try_recv() {
            world.machine.note(event);
        }
        world.machine.step();
        let calls = world.backend_script.take_calls();
        prop_assert!(calls.contains(&Call::Reset(slot)), "its slot is emptied");
        for call in calls {
            let Call::Run(segments) = call else { continue };
            prop_assert!(segments.iter().all(|(used, ..)| *used != slot));
        }
        prop_assert!(!world.machine.jobs.contains_key(&JobId(0)));
        let held = world.machine.jobs.values().filter(|entry| entry.has_slot()).count();
        prop_assert_eq!(world.machine.slots.free() + held, CAPACITY.slots);
        // It judges the neighbour's answer against the lone run.
        world.come_to_rest();
        prop_assert_eq!(world.answers, 1);
    }
}
