//! What the engine has done so far and what it holds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::times::Times;

/// Whether rounds succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// The last rounds failed, as many as [`Settings::failures_max`](crate::Settings::failures_max) says or more.
    Failing,
    /// Rounds succeed.
    #[default]
    Good,
    /// The engine's thread has ended.
    Stopped,
}

/// Counters since the start, and what is held at the moment of the last round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Whether rounds succeed.
    pub health: Health,
    /// Jobs that wait for a slot.
    pub queued: usize,
    /// Jobs whose prompt is being run.
    pub prompts: usize,
    /// Chat streams that give tokens.
    pub streams: usize,
    /// Decisions whose rows are all with the head.
    pub in_head: usize,
    /// Slots that nobody has.
    pub slots_free: usize,
    /// Slots in all.
    pub slots: usize,
    /// Rounds run, failed ones too.
    pub rounds: u64,
    /// Rounds that the device failed.
    pub rounds_failed: u64,
    /// Time spent in rounds.
    pub round_time: Duration,
    /// The same, round by round.
    pub round_times: Times,
    /// Time that the head's threads worked, added up.
    pub head_time: Duration,
    /// The same, turn by turn: a decision has a turn whenever rows of it are there.
    pub head_times: Times,
    /// Prompt rows run.
    pub prefill_rows: u64,
    /// Chat rows run, a token each.
    pub decode_rows: u64,
    /// Prompt rows that came from the state cache.
    pub cached_rows: u64,
    /// Prompts that found a prefix in the state cache.
    pub cache_hits: u64,
    /// Prompts that found none though the cache is on.
    pub cache_misses: u64,
    /// Snapshots held.
    pub cache_entries: usize,
    /// Memory of the snapshots held, in bytes.
    pub cache_bytes: usize,
    /// Snapshots dropped to make room.
    pub cache_evictions: u64,
    /// Jobs taken in.
    pub arrived: u64,
    /// Jobs answered in full.
    pub answered: u64,
    /// Jobs refused at the door or after their longest wait.
    pub refused_busy: u64,
    /// Jobs refused because the engine was closing.
    pub refused_closing: u64,
    /// Jobs whose time limit passed.
    pub refused_deadline: u64,
    /// Jobs whose client went away.
    pub cancelled: u64,
    /// Jobs that the device or the weights failed.
    pub defects: u64,
}

/// The last published state, for readers on other threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board(Arc<Mutex<Stats>>);

impl Board {
    /// Shows new figures.
    pub(crate) fn publish(&self, stats: &Stats) {
        self.change(|shown| shown.clone_from(stats));
    }

    /// Shows that the thread has ended.
    pub(crate) fn stop(&self) {
        self.change(|shown| shown.health = Health::Stopped);
    }

    /// The figures shown last.
    pub(crate) fn read(&self) -> Stats {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn change(&self, change: impl FnOnce(&mut Stats)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
