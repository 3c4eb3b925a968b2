//! The head's side of a decision: hidden rows go out to its threads beside the next round, logits come back.
//!
//! A decision's [`HeadRun`] is in one place at a time: at home with the engine, or away in a [`HeadTask`]. So its rows
//! are taken in order however many threads there are.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use descant_decision::{Encoded, Logits};
use descant_model::{Defect, Head, HeadRun, KeptRows, SavedMemory};

use crate::cache::Node;
use crate::job::{Event, Flags, JobId};

/// Runs tasks of the head somewhere and sends what comes back to the engine as [`Event::HeadDone`].
pub(crate) trait Jury: Send {
    /// Takes a task; never waits.
    fn submit(&mut self, task: HeadTask);

    /// Bytes that the head's copy of so many memory rows takes.
    fn memory_bytes(&self, rows: usize) -> usize;
}

/// A decision in the head, or about to enter it.
pub(crate) enum Seat {
    /// Not begun.
    New(Arc<Encoded>),
    /// Begun.
    Taken(Box<dyn HeadRun>),
}

/// What the head is to do for one decision.
#[derive(Debug)]
pub(crate) struct HeadTask {
    pub(crate) job: JobId,
    pub(crate) flags: Arc<Flags>,
    pub(crate) seat: Seat,
    pub(crate) pieces: Vec<HeadPiece>,
    /// Whether these are the last rows, so that the logits are due.
    pub(crate) finish: bool,
}

/// Rows for the head, in order.
#[derive(Debug)]
pub(crate) enum HeadPiece {
    /// New hidden rows.
    Absorb {
        /// Position of the first row.
        start: usize,
        /// The rows.
        hidden: HiddenPiece,
        /// Memory rows to copy out afterwards, for the state cache.
        copy: Option<Range<usize>>,
        /// The rows' place in the bounded buffer.
        place: RowsPlace,
    },
    /// Memory rows of an earlier decision.
    Preload(Arc<Node>),
}

/// New hidden rows, wherever they are.
#[derive(Debug)]
pub(crate) enum HiddenPiece {
    /// `[n, hidden]`
    Host(Vec<f32>),
    /// Kept by the backend for a head on its device.
    Kept(KeptRows),
}

/// What the head gives back for a task.
pub(crate) struct HeadOut {
    pub(crate) job: JobId,
    /// Memory rows that were asked for, in order; none where there was no room for them.
    pub(crate) copies: Vec<Option<SavedMemory>>,
    pub(crate) outcome: HeadOutcome,
    /// Time that it took.
    pub(crate) took: Duration,
}

/// How a task of the head ended.
pub(crate) enum HeadOutcome {
    /// The logits.
    Done(Logits),
    /// The head or the weights failed.
    Failed(Defect),
    /// Nobody waits for it any more.
    Gone,
    /// More rows are due.
    Home(Box<dyn HeadRun>),
}

/// A bounded number of hidden rows, on their way to the head or in it.
#[derive(Clone, Debug)]
pub(crate) struct RowsBuffer {
    max: usize,
    taken: Arc<AtomicUsize>,
}

/// Rows of a [`RowsBuffer`]. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct RowsPlace {
    rows: usize,
    taken: Arc<AtomicUsize>,
}

/// Threads that run the head.
pub(crate) struct HeadThreads {
    head: Arc<dyn Head>,
    /// `None` once the threads are to end.
    tasks: Option<mpsc::Sender<HeadTask>>,
    threads: Vec<JoinHandle<()>>,
}

impl HeadTask {
    /// Does what the task says. A panic of the head becomes a defect.
    pub(crate) fn run(self, head: &dyn Head) -> HeadOut {
        let started = Instant::now();
        let job = self.job;
        let mut copies = Vec::new();
        let outcome = catch_unwind(AssertUnwindSafe(|| self.work(head, &mut copies)));
        let outcome = match outcome {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(defect)) => HeadOutcome::Failed(defect),
            Err(panic) => HeadOutcome::Failed(panicked("the head", &*panic)),
        };
        HeadOut {
            job,
            copies,
            outcome,
            took: started.elapsed(),
        }
    }

    fn work(
        self,
        head: &dyn Head,
        copies: &mut Vec<Option<SavedMemory>>,
    ) -> Result<HeadOutcome, Defect> {
        let mut run = match self.seat {
            Seat::New(encoded) => head.begin(encoded),
            Seat::Taken(run) => run,
        };
        for piece in self.pieces {
            if self.flags.gone() {
                return Ok(HeadOutcome::Gone);
            }
            match piece {
                HeadPiece::Absorb {
                    start,
                    hidden,
                    copy,
                    place,
                } => {
                    match hidden {
                        HiddenPiece::Host(rows) => run.absorb(start, &rows)?,
                        HiddenPiece::Kept(rows) => run.absorb_kept(start, rows)?,
                    }
                    drop(place);
                    copies.extend(copy.map(|rows| run.memory(rows)));
                }
                HeadPiece::Preload(node) => run.preload(node.memory()),
            }
        }
        if self.finish {
            run.finish().map(HeadOutcome::Done)
        } else {
            Ok(HeadOutcome::Home(run))
        }
    }
}

impl RowsBuffer {
    /// Room for `max` rows.
    pub(crate) fn new(max: usize) -> RowsBuffer {
        RowsBuffer {
            max,
            taken: Arc::default(),
        }
    }

    /// Rows that can be taken now.
    pub(crate) fn free(&self) -> usize {
        self.max.saturating_sub(self.taken.load(Ordering::Acquire))
    }

    /// Takes rows.
    pub(crate) fn take(&self, rows: usize) -> RowsPlace {
        self.taken.fetch_add(rows, Ordering::AcqRel);
        RowsPlace {
            rows,
            taken: Arc::clone(&self.taken),
        }
    }
}

impl Drop for RowsPlace {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.rows, Ordering::AcqRel);
    }
}

impl HeadThreads {
    /// Starts the threads; what they finish goes to `inbox`.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(
        head: &Arc<dyn Head>,
        count: usize,
        inbox: &mpsc::Sender<Event>,
    ) -> std::io::Result<HeadThreads> {
        let (tasks, line) = mpsc::channel::<HeadTask>();
        let line = Arc::new(Mutex::new(line));
        let spawn = |index| {
            let (head, line, inbox) = (Arc::clone(head), Arc::clone(&line), inbox.clone());
            thread::Builder::new()
                .name(format!("head-{index}"))
                .spawn(move || work_off(&*head, &line, &inbox))
        };
        Ok(HeadThreads {
            head: Arc::clone(head),
            tasks: Some(tasks),
            threads: (0..count).map(spawn).collect::<Result<_, _>>()?,
        })
    }
}

impl Jury for HeadThreads {
    fn submit(&mut self, task: HeadTask) {
        let tasks = self
            .tasks
            .as_ref()
            .expect("the sender lives as long as self");
        // The threads end only when the sender does.
        let _ = tasks.send(task);
    }

    fn memory_bytes(&self, rows: usize) -> usize {
        self.head.memory_bytes(rows)
    }
}

impl Drop for HeadThreads {
    fn drop(&mut self) {
        self.tasks = None;
        for thread in self.threads.drain(..) {
            // A thread catches the head's panics and has none of its own.
            let _ = thread.join();
        }
    }
}

/// Takes tasks from the shared line until nobody can add one.
fn work_off(head: &dyn Head, line: &Mutex<mpsc::Receiver<HeadTask>>, inbox: &mpsc::Sender<Event>) {
    loop {
        let task = line.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        // An engine that is gone needs no results.
        let _ = inbox.send(Event::HeadDone(task.run(head)));
    }
}

/// A panic as a defect, with its message.
pub(crate) fn panicked(who: &str, panic: &(dyn std::any::Any + Send)) -> Defect {
    let message = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    Defect::Device {
        message: format!("{who} panicked: {message}"),
    }
}

impl fmt::Debug for HeadThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeadThreads")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Seat::New(_) => "New",
            Seat::Taken(_) => "Taken",
        })
    }
}

impl fmt::Debug for HeadOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeadOut")
            .field("job", &self.job)
            .field("outcome", &self.outcome)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HeadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadOutcome::Done(logits) => f.debug_tuple("Done").field(logits).finish(),
            HeadOutcome::Failed(defect) => f.debug_tuple("Failed").field(defect).finish(),
            HeadOutcome::Gone => f.write_str("Gone"),
            HeadOutcome::Home(_) => f.write_str("Home"),
        }
    }
}
