//! What the engine is asked for, on its way from the door to the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use descant_decision::Encoded;

use crate::door::Permit;
use crate::pipe::Sender;
use crate::sampling::Sampler;
use crate::ticket::{Decided, HiddenRows, StreamItem};
use crate::{EngineError, jury};

/// A job's number. Later jobs have greater ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct JobId(pub(crate) u64);

/// What can happen to the engine. It notes an event and never acts inside it; the next step does.
#[derive(Debug)]
pub(crate) enum Event {
    /// A job came through the door.
    Arrived(Box<Job>),
    /// A job's client went away.
    Cancelled(JobId),
    /// Nothing new is taken in; what was admitted may run until the given time.
    Closing(Duration),
    /// The head gave back what it was given.
    HeadDone(jury::HeadOut),
    /// Time passed, or a client took rows: look again.
    Tick,
}

/// A job and its place at the door.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    /// When it arrived, counted from the engine's start.
    pub(crate) arrived: Duration,
    /// When its time limit passes, counted likewise.
    pub(crate) deadline: Option<Duration>,
    pub(crate) flags: Arc<Flags>,
    pub(crate) work: Work,
    /// Frees the place at the door when the job ends, however it ends.
    #[expect(dead_code, reason = "it is held for its drop")]
    pub(crate) permit: Permit,
}

/// What other threads see of a job, or tell it.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    started: AtomicBool,
    gone: AtomicBool,
    cached_rows: AtomicUsize,
}

/// What a job asks for.
#[derive(Debug)]
pub(crate) enum Work {
    Chat(Chat),
    Decide(Decide),
    Hidden(Hidden),
}

/// Tokens after a prompt.
#[derive(Debug)]
pub(crate) struct Chat {
    pub(crate) prompt: Vec<u32>,
    pub(crate) sampler: Sampler,
    /// Most tokens to give; at least 1.
    pub(crate) tokens_max: usize,
    pub(crate) stop_ids: Vec<u32>,
    /// Tokens chosen so far.
    pub(crate) generated: usize,
    pub(crate) reply: Sender<Result<StreamItem, EngineError>>,
}

/// The logits of a record.
#[derive(Debug)]
pub(crate) struct Decide {
    pub(crate) encoded: Arc<Encoded>,
    pub(crate) reply: Sender<Result<Decided, EngineError>>,
}

/// The hidden rows of a prompt.
#[derive(Debug)]
pub(crate) struct Hidden {
    pub(crate) ids: Vec<u32>,
    /// Most rows of one round; a multiple of a chunk.
    pub(crate) piece_rows: usize,
    pub(crate) reply: Sender<Result<HiddenRows, EngineError>>,
}

impl Flags {
    /// Says that the job got a slot.
    pub(crate) fn start(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Whether the job got a slot.
    pub(crate) fn started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Says how many rows of the prompt came from the state cache.
    pub(crate) fn note_cached(&self, rows: usize) {
        self.cached_rows.store(rows, Ordering::Release);
    }

    /// Rows of the prompt that came from the state cache; 0 until the job got its slot.
    pub(crate) fn cached_rows(&self) -> usize {
        self.cached_rows.load(Ordering::Acquire)
    }

    /// Says that nobody waits for the job any more.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether nobody waits for the job any more.
    pub(crate) fn gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

impl Work {
    /// The tokens of the prompt.
    pub(crate) fn prompt(&self) -> &[u32] {
        match self {
            Work::Chat(chat) => &chat.prompt,
            Work::Decide(decide) => &decide.encoded.ids,
            Work::Hidden(hidden) => &hidden.ids,
        }
    }

    /// Tells the client why there is no answer.
    pub(crate) fn refuse(&self, error: EngineError) {
        match self {
            Work::Chat(chat) => chat.reply.send(Err(error)),
            Work::Decide(decide) => decide.reply.send(Err(error)),
            Work::Hidden(hidden) => hidden.reply.send(Err(error)),
        }
    }
}
