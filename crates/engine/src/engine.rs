//! Starting and stopping the engine's thread, and the handle that all others use.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use descant_decision::Encoded;
use descant_model::{Backend, CHUNK_ROWS, Capacity, Head};
use descant_release::ModelConfig;

use crate::clock::{Clock, SystemClock};
use crate::door::Door;
use crate::job::{Chat, Decide, Event, Flags, Hidden, Job, JobId, Work};
use crate::jury::{HeadThreads, Jury};
use crate::machine::{Machine, Parts, Step};
use crate::pipe::pipe;
use crate::sampling::Sampler;
use crate::stats::{Board, Stats};
use crate::ticket::{Decided, HiddenStream, Leash, Ticket, TokenStream};
use crate::{Constraint, EngineError, Sampling, Settings, SettingsError};

/// The engine: one thread that owns the backend and everything that runs on it.
///
/// Dropping it refuses what it holds and waits for the thread.
#[derive(Debug)]
pub struct Engine {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// A way to the engine for any thread; clones share it.
#[derive(Clone, Debug)]
pub struct Handle {
    inbox: mpsc::Sender<Event>,
    shared: Arc<Shared>,
}

/// What all handles share.
#[derive(Debug)]
struct Shared {
    door: Arc<Door>,
    board: Board,
    clock: Arc<dyn Clock>,
    config: ModelConfig,
    capacity: Capacity,
    has_head: bool,
    next_id: AtomicU64,
}

/// What holds for any job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobOptions {
    /// Time that the job may take, from now on; `None` for as long as it needs.
    pub timeout: Option<Duration>,
}

/// What is asked of a chat stream.
#[derive(Default)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Most tokens to give; `None` for as many as a slot holds. A number beyond that is cut to it; 0 counts as 1.
    pub tokens_max: Option<usize>,
    /// Tokens that end the stream.
    pub stop_ids: Vec<u32>,
    /// A grammar that the tokens follow.
    pub constraint: Option<Box<dyn Constraint>>,
    /// What holds for any job.
    pub job: JobOptions,
}

/// The engine cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A setting cannot be.
    Settings(SettingsError),
    /// The system gives no thread.
    Thread(io::Error),
}

/// What stands between clients and a machine.
pub(crate) struct Assembly {
    pub(crate) handle: Handle,
    /// What the handles send.
    pub(crate) events: mpsc::Receiver<Event>,
    /// Settings that fit the backend.
    pub(crate) settings: Settings,
}

/// Makes the handle to a machine that is yet to be made.
pub(crate) fn assemble(
    backend: &dyn Backend,
    has_head: bool,
    settings: &Settings,
    clock: Arc<dyn Clock>,
) -> Result<Assembly, StartError> {
    let capacity = backend.capacity();
    let settings = settings.fit(capacity).map_err(StartError::Settings)?;
    let (inbox, events) = mpsc::channel();
    let shared = Arc::new(Shared {
        // A job has a slot, is in the head, or waits.
        door: Door::new(settings.head_runs_max(capacity.slots) + settings.queue_max),
        board: Board::default(),
        clock,
        config: backend.config().clone(),
        capacity,
        has_head,
        next_id: AtomicU64::new(0),
    });
    Ok(Assembly {
        handle: Handle { inbox, shared },
        events,
        settings,
    })
}

impl Engine {
    /// Starts the engine on a backend, with a head if the release has one.
    ///
    /// # Errors
    /// If a setting is outside its range or the system gives no thread.
    pub fn start(
        backend: Box<dyn Backend>,
        head: Option<Arc<dyn Head>>,
        settings: &Settings,
    ) -> Result<Engine, StartError> {
        let assembly = assemble(
            &*backend,
            head.is_some(),
            settings,
            Arc::new(SystemClock::start()),
        )?;
        let Assembly {
            handle,
            events,
            settings,
        } = assembly;
        let threads = |head| HeadThreads::start(&head, settings.head_threads, &handle.inbox);
        let jury = head.map(threads).transpose().map_err(StartError::Thread)?;
        let (door, board) = handle.front();
        let machine = Machine::new(Parts {
            backend,
            jury: jury.map(|jury| Box::new(jury) as Box<dyn Jury>),
            clock: Arc::clone(&handle.shared.clock),
            settings,
            door,
            board,
        });
        let thread = thread::Builder::new()
            .name("engine".into())
            .spawn(move || serve(machine, &events));
        Ok(Engine {
            handle,
            thread: Some(thread.map_err(StartError::Thread)?),
        })
    }

    /// A handle to it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Takes nothing new in, refuses what has no slot, lets the others finish within `grace`, and waits for the thread.
    pub fn shutdown(mut self, grace: Duration) {
        self.stop(grace);
    }

    fn stop(&mut self, grace: Duration) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let shared = &self.handle.shared;
        shared.door.close();
        // A thread that is gone needs no telling, and one that panicked has told its clients.
        let _ = self
            .handle
            .inbox
            .send(Event::Closing(shared.clock.now() + grace));
        let _ = thread.join();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl Handle {
    /// Asks for the logits of a record.
    ///
    /// # Errors
    /// At once: [`EngineError::NoHead`], [`EngineError::EmptyPrompt`], [`EngineError::TooLong`],
    /// [`EngineError::TokenId`], [`EngineError::Busy`], [`EngineError::Closing`]. Whatever happens later is the
    /// ticket's answer.
    pub fn decide(
        &self,
        encoded: Arc<Encoded>,
        options: &JobOptions,
    ) -> Result<Ticket<Decided>, EngineError> {
        if !self.shared.has_head {
            return Err(EngineError::NoHead);
        }
        self.check(&encoded.ids)?;
        let (reply, answer) = pipe();
        let leash = self.send(Work::Decide(Decide { encoded, reply }), options)?;
        Ok(Ticket::new(answer, leash))
    }

    /// Asks for tokens after a prompt.
    ///
    /// # Errors
    /// At once, as [`Handle::decide`], and [`EngineError::Sampling`].
    pub fn generate(
        &self,
        prompt: Vec<u32>,
        options: GenerateOptions,
    ) -> Result<TokenStream, EngineError> {
        self.check(&prompt)?;
        options.sampling.check()?;
        // The last token that is given is never run.
        let tokens_max = self.shared.capacity.positions - prompt.len() + 1;
        let (reply, items) = pipe();
        let chat = Chat {
            prompt,
            sampler: Sampler::new(options.sampling, options.constraint),
            tokens_max: options
                .tokens_max
                .unwrap_or(tokens_max)
                .clamp(1, tokens_max),
            stop_ids: options.stop_ids,
            generated: 0,
            reply,
        };
        Ok(TokenStream::new(
            items,
            self.send(Work::Chat(chat), &options.job)?,
        ))
    }

    /// Asks for the hidden rows of a prompt, `piece_rows` rows at a time or as many as a round takes.
    ///
    /// # Errors
    /// At once, as [`Handle::decide`], and [`EngineError::PieceRows`] if `piece_rows` is no positive multiple of
    /// [`CHUNK_ROWS`].
    pub fn hidden(
        &self,
        ids: Vec<u32>,
        piece_rows: usize,
        options: &JobOptions,
    ) -> Result<HiddenStream, EngineError> {
        self.check(&ids)?;
        if piece_rows == 0 || !piece_rows.is_multiple_of(CHUNK_ROWS) {
            return Err(EngineError::PieceRows { found: piece_rows });
        }
        let values = ids.len() * self.shared.config.hidden;
        let (reply, pieces) = pipe();
        let leash = self.send(
            Work::Hidden(Hidden {
                ids,
                piece_rows,
                reply,
            }),
            options,
        )?;
        Ok(HiddenStream::new(pieces, values, leash))
    }

    /// The counters, as of the last round.
    pub fn stats(&self) -> Stats {
        let mut stats = self.shared.board.read();
        let (busy, closing) = self.shared.door.refused();
        stats.refused_busy += busy;
        stats.refused_closing += closing;
        stats
    }

    /// The refusal of a job that a caller has waited for long enough: [`EngineError::Busy`] with a hint when to ask
    /// again.
    pub fn busy(&self) -> EngineError {
        self.shared.door.busy()
    }

    /// The model.
    pub fn config(&self) -> &ModelConfig {
        &self.shared.config
    }

    /// What the backend reserved; a prompt has at most [`Capacity::positions`] rows.
    pub fn capacity(&self) -> Capacity {
        self.shared.capacity
    }

    /// Its door and the board with its figures.
    pub(crate) fn front(&self) -> (Arc<Door>, Board) {
        (Arc::clone(&self.shared.door), self.shared.board.clone())
    }

    /// Whether decisions can be asked for.
    pub fn has_head(&self) -> bool {
        self.shared.has_head
    }

    fn check(&self, prompt: &[u32]) -> Result<(), EngineError> {
        let (needed, allowed) = (prompt.len(), self.shared.capacity.positions);
        if needed == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if needed > allowed {
            return Err(EngineError::TooLong { needed, allowed });
        }
        let vocab = self.shared.config.vocab;
        match prompt.iter().position(|id| *id as usize >= vocab) {
            Some(index) => Err(EngineError::TokenId {
                index,
                id: prompt[index],
                vocab,
            }),
            None => Ok(()),
        }
    }

    /// Takes a place at the door and sends a job in.
    fn send(&self, work: Work, options: &JobOptions) -> Result<Leash, EngineError> {
        let permit = self.shared.door.enter()?;
        let arrived = self.shared.clock.now();
        let flags = Arc::new(Flags::default());
        let leash = Leash {
            id: JobId(self.shared.next_id.fetch_add(1, Ordering::Relaxed)),
            flags: Arc::clone(&flags),
            inbox: self.inbox.clone(),
            place: permit.place(),
        };
        let job = Job {
            id: leash.id,
            arrived,
            deadline: options
                .timeout
                .map(|timeout| arrived.saturating_add(timeout)),
            flags,
            work,
            permit,
        };
        let sent = self.inbox.send(Event::Arrived(Box::new(job)));
        sent.map(|()| leash).map_err(|_| EngineError::Closing)
    }
}

/// The engine's thread: notes what happened, then steps, until the machine is closed.
fn serve(mut machine: Machine, events: &mpsc::Receiver<Event>) {
    let _close = CloseOnExit {
        door: machine.door(),
        board: machine.board(),
    };
    loop {
        while let Ok(event) = events.try_recv() {
            machine.note(event);
        }
        match machine.step() {
            Step::Closed => return,
            Step::Ran => {}
            Step::Idle(until) => {
                if let Some(event) = wait(events, machine.until(until)) {
                    machine.note(event);
                }
            }
        }
    }
}

/// Waits for an event, at most so long.
fn wait(events: &mpsc::Receiver<Event>, at_most: Option<Duration>) -> Option<Event> {
    match at_most {
        Some(at_most) => events.recv_timeout(at_most).ok(),
        None => events.recv().ok(),
    }
}

/// Closes the door however the thread ends, so that nobody waits before it.
struct CloseOnExit {
    door: Arc<Door>,
    board: Board,
}

impl Drop for CloseOnExit {
    fn drop(&mut self) {
        self.door.close();
        self.board.stop();
    }
}

impl fmt::Debug for GenerateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateOptions")
            .field("sampling", &self.sampling)
            .field("tokens_max", &self.tokens_max)
            .field("stop_ids", &self.stop_ids)
            .field("job", &self.job)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Settings(error) => error.fmt(f),
            StartError::Thread(error) => write!(f, "the engine's threads cannot start: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StartError::Settings(error) => Some(error),
            StartError::Thread(error) => Some(error),
        }
    }
}
