//! The engine's state and its steps, without a thread of its own: events are noted, a step plans and runs one round.
//!
//! ```text
//! Queued ──slot──► Prompt ──last row──► Jury (a decision; its slot is free) ──logits──► answered
//!                     │                 Stream (chat) ──stop, length──► answered
//!                     └──last row (hidden rows)──► answered
//! ```
//! A job leaves the map of jobs exactly once, and with it go its slot, its place at the door, its head buffers and its
//! hold on the cache: each is a guard that it owns.

mod round;
#[cfg(test)]
mod simulation;
mod verdict;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use descant_model::{Backend, CHUNK_ROWS, Defect, Saved};

use crate::cache::{Cache, Lane, Node, Reserved};
use crate::clock::Clock;
use crate::door::Door;
use crate::job::{Event, Job, JobId, Work};
use crate::jury::{HeadPiece, Jury, RowsBuffer, Seat, panicked};
use crate::plan::{self, ChatShare, Limits, PromptView, SeatKind, Seats, Snapshot, WaitView};
use crate::slots::{OwnedSlot, Slots};
use crate::stats::{Board, Health, Stats};
use crate::{EngineError, Settings};

/// Everything that the engine's thread owns.
pub(crate) struct Machine {
    backend: Box<dyn Backend>,
    jury: Option<Box<dyn Jury>>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    door: Arc<Door>,
    board: Board,
    slots: Slots,
    /// All jobs inside, oldest first.
    jobs: BTreeMap<JobId, Entry>,
    /// Jobs whose decision is with the head just now, those that have ended meanwhile among them.
    away: BTreeSet<JobId>,
    cache: Cache,
    head_rows: RowsBuffer,
    chat_share: ChatShare,
    /// Rows of snapshots that were copied out of slots and into them since the last round was planned. That takes time, as
    /// running rows does; so where streams run and it is more than a piece, the next round is theirs alone.
    copied_rows: usize,
    /// Rounds that failed since the last that did not.
    failures: u32,
    /// When what is still here is refused; `None` while the engine is open.
    closing: Option<Duration>,
    /// Room for the next-token logits of a round, `[rows, vocab]`.
    logits: Vec<f32>,
    stats: Stats,
}

/// What a step came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The engine is closing and holds nothing any more.
    Closed,
    /// There is nothing to run until an event or the given time.
    Idle(Option<Duration>),
    /// A round ran.
    Ran,
}

/// A job inside.
struct Entry {
    job: Job,
    /// Prompt rows that the engine had run when it arrived.
    arrived_rows: u64,
    /// When it got its slot; its arrival until then.
    admitted: Duration,
    cached_rows: usize,
    /// Time of the longest round with rows of its prompt.
    round_longest: Duration,
    /// Lane and hash of the prefix that its snapshot will cover; `None` if it will leave none.
    prefix: Option<(Lane, u64)>,
    /// The job whose snapshot it waited for; it waits for one job only.
    waited_for: Option<JobId>,
    state: State,
    /// A decision's side in the head; others have none.
    head: Option<HeadSide>,
}

enum State {
    Queued,
    Prompt(Prompt),
    Stream(Stream),
    Jury,
}

/// A prompt that has a slot and rows left.
struct Prompt {
    slot: OwnedSlot,
    /// Rows run or restored.
    done: usize,
    /// Positions at which snapshots are due, ascending.
    cuts: VecDeque<usize>,
    /// Where the next snapshot of this prompt begins.
    saved_rows: usize,
    /// The last snapshot of a chat prompt that the cache holds; a decision's is with its [`HeadSide`].
    node: Option<Arc<Node>>,
    rounds_waited: u32,
}

/// A chat stream that gives tokens.
struct Stream {
    slot: OwnedSlot,
    /// Rows that the slot has taken.
    rows: usize,
    /// The token to run next.
    next: u32,
}

/// What is left of a job that ended: enough to answer.
struct Left {
    work: Work,
    /// Time since a decision's last row was run.
    head_time: Duration,
    cached_rows: usize,
    queue_time: Duration,
    engine_time: Duration,
    round_longest: Duration,
}

/// What the engine keeps of a decision's way through the head.
struct HeadSide {
    /// The decision's state in the head; away while a task runs.
    seat: Option<Seat>,
    pending: Vec<HeadPiece>,
    /// Whether `pending` ends with the last row.
    complete: bool,
    /// When it came to that.
    since: Duration,
    /// The backend's copies whose memory rows are still to come from the head.
    copies: VecDeque<(Saved, Reserved)>,
    /// The last snapshot that the cache holds of this prompt.
    node: Option<Arc<Node>>,
}

/// What a machine is made of.
pub(crate) struct Parts {
    pub(crate) backend: Box<dyn Backend>,
    /// Where decisions go; `None` for a release without a head.
    pub(crate) jury: Option<Box<dyn Jury>>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Settings that fit the backend.
    pub(crate) settings: Settings,
    pub(crate) door: Arc<Door>,
    pub(crate) board: Board,
}

impl Machine {
    /// An idle machine.
    pub(crate) fn new(parts: Parts) -> Machine {
        let Parts {
            backend,
            jury,
            clock,
            settings,
            door,
            board,
        } = parts;
        let mut machine = Machine {
            slots: Slots::new(backend.capacity().slots),
            cache: Cache::new(settings.cache_bytes, settings.cache_rows_min),
            head_rows: RowsBuffer::new(settings.head_rows_max()),
            chat_share: ChatShare::new(settings.chat_share),
            copied_rows: 0,
            jobs: BTreeMap::new(),
            away: BTreeSet::new(),
            failures: 0,
            closing: None,
            logits: Vec::new(),
            stats: Stats::default(),
            backend,
            jury,
            clock,
            settings,
            door,
            board,
        };
        machine.publish();
        machine
    }

    /// Notes an event.
    pub(crate) fn note(&mut self, event: Event) {
        match event {
            Event::Arrived(job) => self.arrive(*job),
            Event::Cancelled(id) => self.refuse(id, EngineError::Cancelled),
            Event::Closing(until) => self.close(until),
            Event::HeadDone(out) => self.hear(out),
            Event::Tick => {}
        }
    }

    /// Lets go of what is due to go, gives out slots, then plans and runs one round.
    pub(crate) fn step(&mut self) -> Step {
        let now = self.clock.now();
        self.expire(now);
        self.sweep();
        self.admit(now);
        self.end_waits(now);
        let round = plan::plan(&self.snapshot());
        self.copied_rows = 0;
        let step = if !round.is_empty() {
            self.run(&round);
            self.sweep();
            Step::Ran
        } else if self.closing.is_some() && self.jobs.is_empty() {
            Step::Closed
        } else {
            Step::Idle(self.next_instant())
        };
        self.publish();
        step
    }

    /// The door that it tells how long the line is.
    pub(crate) fn door(&self) -> Arc<Door> {
        Arc::clone(&self.door)
    }

    /// Where it shows its figures.
    pub(crate) fn board(&self) -> Board {
        self.board.clone()
    }

    /// How long it is until a time.
    pub(crate) fn until(&self, time: Option<Duration>) -> Option<Duration> {
        time.map(|time| time.saturating_sub(self.clock.now()))
    }

    fn arrive(&mut self, job: Job) {
        self.stats.arrived += 1;
        if self.closing.is_some() {
            self.stats.refused_closing += 1;
            job.work.refuse(EngineError::Closing);
            return;
        }
        let mut entry = Entry {
            arrived_rows: self.stats.prefill_rows,
            admitted: job.arrived,
            cached_rows: 0,
            round_longest: Duration::ZERO,
            prefix: None,
            waited_for: None,
            state: State::Queued,
            head: None,
            job,
        };
        if let Some((lane, rows)) = entry.lookup()
            && self.cache.is_worth(rows)
        {
            let hash = self.cache.prefix_hash(entry.job.work.prompt(), rows);
            entry.prefix = hash.map(|hash| (lane, hash));
        }
        self.jobs.insert(entry.job.id, entry);
    }

    /// Refuses what has no slot yet, now, and what is still here then, at `until`.
    fn close(&mut self, until: Duration) {
        self.closing = Some(until);
        for id in self.ids(|entry| matches!(entry.state, State::Queued)) {
            self.refuse(id, EngineError::Closing);
        }
    }

    /// Ends a job without an answer.
    fn refuse(&mut self, id: JobId, error: EngineError) {
        let Some(left) = self.leave(id) else {
            return;
        };
        let count = match &error {
            EngineError::Busy { .. } => &mut self.stats.refused_busy,
            EngineError::Cancelled => &mut self.stats.cancelled,
            EngineError::Closing => &mut self.stats.refused_closing,
            EngineError::Deadline => &mut self.stats.refused_deadline,
            _ => &mut self.stats.defects,
        };
        *count += 1;
        left.work.refuse(error);
    }

    /// Takes a job out. What it owns is dropped here, before its client hears of it, so that a client who asks again at
    /// once finds room.
    fn leave(&mut self, id: JobId) -> Option<Left> {
        let entry = self.jobs.remove(&id)?;
        entry.job.flags.leave();
        Some(Left {
            queue_time: entry.admitted.saturating_sub(entry.job.arrived),
            engine_time: self.clock.now().saturating_sub(entry.admitted),
            cached_rows: entry.cached_rows,
            round_longest: entry.round_longest,
            head_time: entry.head.map_or(Duration::ZERO, |head| {
                self.clock.now().saturating_sub(head.since)
            }),
            work: entry.job.work,
        })
    }

    /// Refuses jobs whose time is up.
    fn expire(&mut self, now: Duration) {
        let closed = self.closing.is_some_and(|until| now >= until);
        for id in self.ids(|_| closed) {
            self.refuse(id, EngineError::Closing);
        }
        for id in self.ids(|entry| entry.job.deadline.is_some_and(|deadline| now >= deadline)) {
            self.refuse(id, EngineError::Deadline);
        }
    }

    /// Refuses jobs that wait too long for a slot. Those that got one at last stay, however long a round kept them.
    fn end_waits(&mut self, now: Duration) {
        let wait_max = self.settings.wait_max;
        for id in self.ids(|entry| entry.wait_end(wait_max).is_some_and(|end| now >= end)) {
            self.refuse(id, self.door.busy());
        }
    }

    /// The next time at which a job is to be refused.
    fn next_instant(&self) -> Option<Duration> {
        let wait_max = self.settings.wait_max;
        let ends = self
            .jobs
            .values()
            .flat_map(|entry| [entry.job.deadline, entry.wait_end(wait_max)]);
        ends.chain([self.closing]).flatten().min()
    }

    fn ids(&self, choose: impl Fn(&Entry) -> bool) -> Vec<JobId> {
        let chosen = self.jobs.iter().filter(|(_, entry)| choose(entry));
        chosen.map(|(id, _)| *id).collect()
    }

    /// Empties the slots that were given back.
    fn sweep(&mut self) {
        let backend = &mut self.backend;
        self.slots.sweep(|slot| backend.reset(slot));
    }

    /// Gives slots to waiting jobs.
    fn admit(&mut self, now: Duration) {
        let waiting = self.waiting(now);
        if waiting.is_empty() {
            return;
        }
        for id in plan::admit(&waiting, self.seats()) {
            // The others come after the streams' next tokens.
            if self.has_copied_much() && self.streams().next().is_some() {
                break;
            }
            // One of those that were just given a slot may be its forerunner.
            if self.forerunner(id).is_none() {
                self.start(id, now);
            }
        }
    }

    /// Whether snapshots were copied that take as long as a piece.
    fn has_copied_much(&self) -> bool {
        self.copied_rows > self.settings.piece_rows
    }

    /// The job whose snapshot a waiting job had better wait for: it runs the same prefix and is ahead. A job waits for
    /// the first such job only, so that a snapshot that is not kept in the end delays nobody twice.
    fn forerunner(&mut self, id: JobId) -> Option<JobId> {
        let entry = &self.jobs[&id];
        let prefix = entry.prefix?;
        let ahead =
            |(_, other): &(&JobId, &Entry)| other.prefix == Some(prefix) && other.owes_snapshot();
        let waited_for = match entry.waited_for {
            Some(first) => self.jobs.get_key_value(&first).filter(ahead),
            None => self.jobs.iter().find(ahead),
        };
        let waited_for = waited_for.map(|(id, _)| *id);
        if let Some(first) = waited_for {
            self.jobs
                .get_mut(&id)
                .expect("it was there above")
                .waited_for = Some(first);
        }
        waited_for
    }

    fn waiting(&mut self, now: Duration) -> Vec<WaitView> {
        let mut queued = self.ids(|entry| matches!(entry.state, State::Queued));
        queued.retain(|id| self.forerunner(*id).is_none());
        let view = |entry: &Entry| WaitView {
            job: entry.job.id,
            seat: entry.seat_kind(),
            rows: entry.job.work.prompt().len(),
            arrived_rows: entry.arrived_rows,
            waited: now.saturating_sub(entry.job.arrived),
        };
        queued.iter().map(|id| view(&self.jobs[id])).collect()
    }

    fn seats(&self) -> Seats {
        let held = |kind: fn(&Entry) -> bool| {
            let entries = self.jobs.values();
            entries
                .filter(|entry| entry.has_slot() && kind(entry))
                .count()
        };
        let (count, piece_rows) = (self.slots.count(), self.settings.piece_rows);
        let chat = held(|entry| entry.seat_kind() == SeatKind::Chat);
        let others = held(|entry| entry.seat_kind() != SeatKind::Chat);
        let long = self.jobs.values().filter(|entry| {
            let rows = entry.job.work.prompt().len();
            entry.has_slot() && entry.seat_kind() != SeatKind::Chat && rows > piece_rows
        });
        let others_max = count - self.settings.chat_slots;
        let in_head = self
            .jobs
            .values()
            .filter(|entry| entry.head.is_some())
            .count();
        // One that was given up holds its memory until the head lets go of it.
        let left = self.away.iter().filter(|id| !self.jobs.contains_key(id));
        let in_head = in_head + left.count();
        Seats {
            slots: self.slots.free(),
            chat: (count - self.settings.decision_slots).saturating_sub(chat),
            others: others_max.saturating_sub(others),
            long: others_max.max(2).saturating_sub(1 + long.count()),
            head: self.settings.head_runs_max(count).saturating_sub(in_head),
            long_rows: piece_rows,
            patience: self.settings.wait_max.map(|wait_max| wait_max / 2),
        }
    }

    /// Gives a waiting job its slot, filled as far as the state cache can.
    fn start(&mut self, id: JobId, now: Duration) {
        let Some(slot) = self.slots.take() else {
            return;
        };
        let entry = self
            .jobs
            .get_mut(&id)
            .expect("only waiting jobs are admitted");
        entry.admitted = now;
        entry.job.flags.start();
        let lookup = entry.lookup();
        let prompt = entry.job.work.prompt();
        let mut found = match lookup {
            Some((lane, rows_max)) => self.cache.find(lane, prompt, rows_max),
            None => crate::cache::Found::default(),
        };
        let rows = found.node.as_ref().map_or(0, |node| node.rows().end);
        self.copied_rows += rows;
        if let Some(node) = &found.node
            && let Err(defect) = restore(&mut *self.backend, &slot, node)
        {
            // The slot is undefined now; a cold run gives the same answer.
            self.backend.reset(slot.slot());
            found.node = None;
            self.fail(&defect);
        }
        let entry = self.jobs.get_mut(&id).expect("it was there above");
        let done = found.node.as_ref().map_or(0, |node| node.rows().end);
        if lookup.is_some() && self.cache.is_on() {
            let hit = if done > 0 {
                &mut self.stats.cache_hits
            } else {
                &mut self.stats.cache_misses
            };
            *hit += 1;
        }
        self.stats.cached_rows += done as u64;
        let last_cut = lookup.map(|(_, rows_max)| rows_max);
        let mut cuts: VecDeque<usize> = [found.branch, last_cut].into_iter().flatten().collect();
        cuts.retain(|rows| *rows > done && self.cache.is_worth(*rows));
        if cuts.len() == 2 && cuts[0] == cuts[1] {
            cuts.pop_front();
        }
        entry.cached_rows = done;
        entry.job.flags.note_cached(done);
        if let Work::Decide(decide) = &entry.job.work {
            let chain = found.node.as_ref().map(Node::chain).unwrap_or_default();
            entry.head = Some(HeadSide {
                seat: Some(Seat::New(Arc::clone(&decide.encoded))),
                pending: chain.into_iter().map(HeadPiece::Preload).collect(),
                complete: false,
                since: Duration::ZERO,
                copies: VecDeque::new(),
                node: found.node.clone(),
            });
        }
        entry.state = State::Prompt(Prompt {
            slot,
            done,
            cuts,
            saved_rows: done,
            node: found.node,
            rounds_waited: 0,
        });
    }

    /// Chat streams with a next token to run, oldest first.
    fn streams(&self) -> impl Iterator<Item = JobId> {
        let streams = self
            .jobs
            .iter()
            .filter(|(_, entry)| matches!(entry.state, State::Stream(_)));
        streams.map(|(id, _)| *id)
    }

    fn snapshot(&self) -> Snapshot {
        let streams = self.streams().collect();
        let prompts = self.jobs.values().filter_map(Entry::prompt_view);
        Snapshot {
            limits: Limits {
                rows_max: self.settings.rows_max,
                piece_rows: self.settings.piece_rows,
                rounds_between_pieces_max: self.settings.rounds_between_pieces_max,
                marks_max: self.backend.marks_max(),
                rows_step: self.backend.rows_step().max(1),
            },
            streams,
            prompts: prompts.collect(),
            chat_owed: self.chat_share.is_owed() || self.has_copied_much(),
            head_rows_free: self.head_rows.free(),
        }
    }

    /// Notes that the device failed.
    fn fail(&mut self, _: &Defect) {
        self.failures = self.failures.saturating_add(1);
        self.stats.rounds_failed += 1;
    }

    /// Shows the figures to the other threads and tells the door how long the line is.
    fn publish(&mut self) {
        let count = |choose: fn(&State) -> bool| {
            self.jobs
                .values()
                .filter(|entry| choose(&entry.state))
                .count()
        };
        let stats = &mut self.stats;
        stats.queued = count(|state| matches!(state, State::Queued));
        stats.prompts = count(|state| matches!(state, State::Prompt(_)));
        stats.streams = count(|state| matches!(state, State::Stream(_)));
        stats.in_head = count(|state| matches!(state, State::Jury));
        stats.slots = self.slots.count();
        stats.slots_free = self.slots.free();
        stats.cache_entries = self.cache.entries();
        stats.cache_bytes = self.cache.bytes();
        stats.cache_evictions = self.cache.evictions();
        stats.health = match self.failures {
            failures if failures >= self.settings.failures_max.max(1) => Health::Failing,
            _ => Health::Good,
        };
        self.board.publish(stats);
        self.door.expect_room_in(self.backlog_ms());
    }

    /// What the prompt rows inside will take at the speed of the rounds so far, in milliseconds.
    fn backlog_ms(&self) -> u64 {
        let left = |entry: &Entry| match &entry.state {
            State::Queued => entry.job.work.prompt().len(),
            State::Prompt(prompt) => entry.job.work.prompt().len() - prompt.done,
            State::Stream(_) | State::Jury => 0,
        };
        let rows: usize = self.jobs.values().map(left).sum();
        let run = self.stats.prefill_rows.max(1) as f64;
        (rows as f64 / run * self.stats.round_time.as_secs_f64() * 1e3) as u64
    }
}

impl Entry {
    fn has_slot(&self) -> bool {
        matches!(self.state, State::Prompt(_) | State::Stream(_))
    }

    /// Whether a snapshot of its prompt is still to come.
    fn owes_snapshot(&self) -> bool {
        let cuts = match &self.state {
            State::Prompt(prompt) => prompt.cuts.len(),
            State::Queued | State::Stream(_) | State::Jury => 0,
        };
        cuts > 0
            || self
                .head
                .as_ref()
                .is_some_and(|head| !head.copies.is_empty())
    }

    fn seat_kind(&self) -> SeatKind {
        match self.job.work {
            Work::Chat(_) => SeatKind::Chat,
            Work::Decide(_) => SeatKind::Decision,
            Work::Hidden(_) => SeatKind::Hidden,
        }
    }

    /// When its wait for a slot becomes too long.
    fn wait_end(&self, wait_max: Option<Duration>) -> Option<Duration> {
        match self.state {
            State::Queued => wait_max.map(|wait_max| self.job.arrived + wait_max),
            _ => None,
        }
    }

    /// Where the state cache keeps its like, and the greatest position at which a snapshot can serve it. A row must
    /// stay to be run, since the last one gives the next token or is read by the head; and the head needs the hidden
    /// rows from the schema on.
    fn lookup(&self) -> Option<(Lane, usize)> {
        let (lane, rows_max) = match &self.job.work {
            Work::Chat(chat) => (Lane::Chat, chat.prompt.len() - 1),
            Work::Decide(decide) => {
                let encoded = &decide.encoded;
                (
                    Lane::Decision,
                    encoded.schema_start.min(encoded.ids.len() - 1),
                )
            }
            // Its client wants every row.
            Work::Hidden(_) => return None,
        };
        Some((lane, rows_max / CHUNK_ROWS * CHUNK_ROWS))
    }

    /// The prompt as the planner sees it; `None` if it has no rows to run now.
    fn prompt_view(&self) -> Option<PromptView> {
        let State::Prompt(prompt) = &self.state else {
            return None;
        };
        let piece_rows = match &self.job.work {
            Work::Hidden(hidden) if hidden.reply.unread() >= HIDDEN_PIECES_AHEAD => return None,
            Work::Hidden(hidden) => hidden.piece_rows,
            Work::Chat(_) | Work::Decide(_) => usize::MAX,
        };
        Some(PromptView {
            job: self.job.id,
            done: prompt.done,
            rows: self.job.work.prompt().len(),
            cuts: prompt.cuts.iter().copied().collect(),
            saved_rows: prompt.saved_rows,
            piece_rows,
            for_chat: matches!(self.job.work, Work::Chat(_)),
            for_head: self.head.is_some(),
            arrived_rows: self.arrived_rows,
            rounds_waited: prompt.rounds_waited,
        })
    }
}

/// Fills an empty slot from the chain of snapshots that ends with `node`.
fn restore(backend: &mut dyn Backend, slot: &OwnedSlot, node: &Arc<Node>) -> Result<(), Defect> {
    let chain = node.chain();
    let saved: Vec<&Saved> = chain.iter().map(|node| node.saved()).collect();
    guard(BACKEND, || backend.load(slot.slot(), &saved))
}

/// Turns a panic of the backend or of a grammar into a defect. Neither shares anything with the engine that a panic
/// could leave half changed: a backend's slots are emptied after a defect, a grammar goes with its job.
fn guard<T>(who: &str, call: impl FnOnce() -> Result<T, Defect>) -> Result<T, Defect> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(panicked(who, &*panic)))
}

/// Who panicked, in messages.
const BACKEND: &str = "the backend";

/// Pieces of hidden rows that may wait for their reader.
const HIDDEN_PIECES_AHEAD: usize = 2;

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("slots", &self.slots)
            .field("jobs", &self.jobs.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
