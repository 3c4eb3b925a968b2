//! A pool of threads that stays: tasks are numbered, and each number runs once on some thread.
//!
//! Two callers can be at work at one time, each in a lane of its own: rounds in front, and beside them the head, which
//! gets the threads that the front leaves free. A thread that helps beside goes to the front, after the task in its
//! hands, as soon as a job is there. So a round waits for no job of the head, and the head's own thread for no round.
//!
//! Why `unsafe`: the threads outlive the closure they run, so its lifetime must be hidden from them. What the safe side
//! guarantees: [`Pool::run`] returns only after every thread that saw the closure has let go of it, also when a task
//! panics; [`Pool::split`] takes each part once.
//!
//! Which thread runs a task is left to chance; tasks write to places of their own, so no result depends on it.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::hint::spin_loop;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};

use super::isa::Isa;
use super::split::Split;

/// Turns of the waiting loop before a thread sleeps: some ten microseconds, more than the pause between two kernels.
const SPINS: u32 = 1 << 9;

/// Threads that run the numbered tasks of a caller, the caller among them. Clones share the threads.
#[derive(Clone)]
pub struct Pool {
    crew: Arc<Crew>,
    lane: Lane,
}

/// Where a caller's jobs stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Served first.
    Front,
    /// Served by threads that the front does not need.
    Beside,
}

/// The threads and what they share; they end with it.
struct Crew {
    shared: Arc<Shared>,
    /// Of each lane: held by the caller whose tasks run.
    turns: [Mutex<()>; LANES],
    workers: Vec<JoinHandle<()>>,
    isa: Isa,
}

struct Shared {
    state: Mutex<State>,
    /// Number of jobs so far; what a thread watches before it sleeps.
    jobs: AtomicU64,
    /// Whether a job is open in front; what a thread watches that helps beside.
    front: AtomicBool,
    /// A job came, or the pool closes.
    wake: Condvar,
    /// The last thread has left a job.
    left: Condvar,
}

struct State {
    /// Of each lane: the job that threads may enter.
    open: [Option<Entry>; LANES],
    /// Of each lane: threads inside that job.
    inside: [usize; LANES],
    sleepers: usize,
    closing: bool,
}

/// A job on its caller's stack, its lifetime hidden.
#[derive(Clone, Copy)]
struct Entry {
    job: *const Job<'static>,
    /// Number of the job, from 1.
    number: u64,
}

// SAFETY: a `Job` is `Sync` (atomics, a mutex, a `Sync` closure); `run` keeps it alive while a thread is inside.
unsafe impl Send for Entry {}

struct Job<'a> {
    next: AtomicUsize,
    tasks: usize,
    task: &'a (dyn Fn(usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What a thread has seen.
#[derive(Default)]
struct Seen {
    /// Number of jobs when it last looked.
    jobs: u64,
    /// Of each lane: the last job that it saw the end of, so that it does not enter it again.
    done: [u64; LANES],
}

thread_local! {
    /// Whether this thread is inside a task.
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

impl Lane {
    /// In the order in which threads serve them.
    const ALL: [Lane; LANES] = [Lane::Front, Lane::Beside];
}

impl Pool {
    /// A pool of `threads` threads (at least one), the caller of each job among them, on the path [`Isa::detect`] finds.
    ///
    /// # Errors
    /// What the system says if it gives no thread.
    pub fn new(threads: usize) -> io::Result<Pool> {
        Pool::with_isa(threads, Isa::detect())
    }

    /// As [`Pool::new`], on a chosen path.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_isa(threads: usize, isa: Isa) -> io::Result<Pool> {
        let state = State {
            open: [None; LANES],
            inside: [0; LANES],
            sleepers: 0,
            closing: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            jobs: AtomicU64::new(0),
            front: AtomicBool::new(false),
            wake: Condvar::new(),
            left: Condvar::new(),
        });
        let mut crew = Crew {
            shared,
            turns: Default::default(),
            workers: Vec::new(),
            isa,
        };
        for index in 1..threads {
            let shared = Arc::clone(&crew.shared);
            let builder = thread::Builder::new().name(format!("cpu-{index}"));
            crew.workers.push(builder.spawn(move || shared.work())?);
        }
        Ok(Pool {
            crew: Arc::new(crew),
            lane: Lane::Front,
        })
    }

    /// The same threads, for work that must hold up no job of this pool: they help it when they have nothing else to do.
    #[must_use]
    pub fn beside(&self) -> Pool {
        Pool {
            crew: Arc::clone(&self.crew),
            lane: Lane::Beside,
        }
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.crew.workers.len() + 1
    }

    /// The instructions that kernels of this pool run on.
    pub fn isa(&self) -> Isa {
        self.crew.isa
    }

    /// Runs `task(0)` to `task(tasks − 1)`, each once, and returns when all have. Inside a task, the tasks run one after
    /// another on the same thread. Callers on several threads take turns; of a pool that [`Pool::beside`] gave, those
    /// who find another at work run their tasks themselves.
    ///
    /// # Panics
    /// With the first panic of a task, after the others have ended.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.crew.workers.is_empty() || BUSY.get() {
            return (0..tasks).for_each(task);
        }
        let turn = &self.crew.turns[self.lane as usize];
        let turn = match self.lane {
            Lane::Front => lock(turn),
            Lane::Beside => match turn.try_lock() {
                Ok(turn) => turn,
                Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
                Err(TryLockError::WouldBlock) => return (0..tasks).for_each(task),
            },
        };
        let job = Job {
            next: AtomicUsize::new(0),
            tasks,
            task: &task,
            panic: Mutex::new(None),
        };
        self.crew.shared.open(self.lane, (&raw const job).cast());
        job.work(|| false);
        self.crew.shared.close(self.lane);
        drop(turn);
        if let Some(payload) = lock(&job.panic).take() {
            resume_unwind(payload);
        }
    }

    /// Runs `task(index, part)` for every part of a buffer.
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub(crate) fn split<S: Split>(&self, buffer: &S, task: impl Fn(usize, S::Part) + Sync) {
        self.run(buffer.parts(), |index| {
            // SAFETY: `run` gives each index below `parts` once.
            let part = unsafe { buffer.part(index) };
            task(index, part);
        });
    }

    /// Cuts `buffer` into chunks of `chunk` values (the last may be shorter) and runs `task(index, chunk)` for each.
    ///
    /// # Panics
    /// As [`Pool::run`], and if `chunk` is 0.
    pub fn chunks<T: Send>(
        &self,
        buffer: &mut [T],
        chunk: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        self.split(&super::Chunks::new(buffer, chunk), task);
    }
}

impl Shared {
    /// Lets the threads into a job.
    fn open(&self, lane: Lane, job: *const Job<'static>) {
        let mut state = lock(&self.state);
        // Only watched as hints; the state behind the lock decides.
        let number = self.jobs.fetch_add(1, Ordering::Release) + 1;
        if lane == Lane::Front {
            self.front.store(true, Ordering::Relaxed);
        }
        state.open[lane as usize] = Some(Entry { job, number });
        if state.sleepers > 0 {
            self.wake.notify_all();
        }
    }

    /// Lets no further thread into a job and waits until the last has left.
    fn close(&self, lane: Lane) {
        let mut state = lock(&self.state);
        state.open[lane as usize] = None;
        if lane == Lane::Front {
            self.front.store(false, Ordering::Relaxed);
        }
        let mut spins = 0;
        while state.inside[lane as usize] > 0 {
            if spins < SPINS {
                drop(state);
                spin_loop();
                spins += 1;
                state = lock(&self.state);
            } else {
                state = self
                    .left
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The life of a thread: waits for a job that it can help with, enters it, leaves it.
    fn work(&self) {
        let mut seen = Seen::default();
        while let Some((lane, entry)) = self.enter(&mut seen) {
            let called = || lane == Lane::Beside && self.front.load(Ordering::Relaxed);
            // SAFETY: `enter` counted this thread as inside, and `run` keeps the job alive until the count, which `leave`
            // lowers, is zero.
            let ended = unsafe { &*entry.job }.work(called);
            if ended {
                seen.done[lane as usize] = entry.number;
            }
            self.leave(lane);
        }
    }

    /// Waits for a job and enters it; none when the pool closes.
    fn enter(&self, seen: &mut Seen) -> Option<(Lane, Entry)> {
        let mut state = lock(&self.state);
        loop {
            if state.closing {
                return None;
            }
            seen.jobs = self.jobs.load(Ordering::Acquire);
            for lane in Lane::ALL {
                // A job that this thread saw the end of has no task left to take.
                let entry = state.open[lane as usize];
                if let Some(entry) = entry.filter(|entry| entry.number != seen.done[lane as usize])
                {
                    state.inside[lane as usize] += 1;
                    return Some((lane, entry));
                }
            }
            drop(state);
            self.watch(seen.jobs);
            state = lock(&self.state);
            if !state.closing && self.jobs.load(Ordering::Acquire) == seen.jobs {
                state.sleepers += 1;
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.sleepers -= 1;
            }
        }
    }

    /// Spins for a short while, or until there is another job.
    fn watch(&self, jobs: u64) {
        for _ in 0..SPINS {
            if self.jobs.load(Ordering::Acquire) != jobs {
                return;
            }
            spin_loop();
        }
    }

    fn leave(&self, lane: Lane) {
        let mut state = lock(&self.state);
        state.inside[lane as usize] -= 1;
        if state.inside[lane as usize] == 0 {
            // Callers of both lanes may wait for it.
            self.left.notify_all();
        }
    }
}

impl Job<'_> {
    /// Takes tasks until none is left, or until `called` away; whether none is left. Keeps the first panic.
    fn work(&self, called: impl Fn() -> bool) -> bool {
        while !called() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.tasks {
                return true;
            }
            BUSY.set(true);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(index))) {
                lock(&self.panic).get_or_insert(payload);
            }
            BUSY.set(false);
        }
        false
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        lock(&self.shared.state).closing = true;
        self.shared.jobs.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so it ends without one.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads())
            .field("isa", &self.isa())
            .field("lane", &self.lane)
            .finish()
    }
}

/// Locks; a panic of another holder leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const LANES: usize = 2;

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 7, 1000] {
                let mut counts = vec![0u8; tasks];
                for _ in 0..3 {
                    pool.chunks(&mut counts, 1, |_, count| count[0] += 1);
                }
                assert_eq!(counts, vec![3; tasks], "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        let ended = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(20, |i| {
                assert!(i != 7, "task seven");
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }));
        let payload = result.unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"task seven"));
        assert_eq!(ended.load(Ordering::Relaxed), 19);
        pool.run(5, |_| {
            ended.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ended.load(Ordering::Relaxed), 24);
    }

    #[test]
    fn callers_on_several_threads_and_tasks_inside_tasks_end() {
        let pool = Pool::new(3).unwrap();
        let beside = pool.beside();
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let work = |pool: &Pool, count: &AtomicUsize| {
            for _ in 0..200 {
                pool.run(4, |_| {
                    pool.run(3, |_| _ = count.fetch_add(1, Ordering::Relaxed))
                });
            }
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| work(&pool, &counts[0]));
                scope.spawn(|| work(&beside, &counts[1]));
            }
        });
        for count in counts {
            assert_eq!(count.into_inner(), 3 * 200 * 4 * 3);
        }
    }

    #[test]
    fn a_job_in_front_waits_for_none_beside() {
        let pool = Pool::new(2).unwrap();
        let beside = pool.beside();
        let (entered, in_front) = (Barrier::new(3), AtomicUsize::new(0));
        let all_ran = || in_front.load(Ordering::Acquire) == 30;
        thread::scope(|scope| {
            // Both threads are in tasks beside, and stay there until the jobs in front have run.
            scope.spawn(|| {
                beside.run(2, |_| {
                    entered.wait();
                    assert!(wait_for(all_ran), "the front waits");
                });
            });
            entered.wait();
            for _ in 0..10 {
                pool.run(3, |_| _ = in_front.fetch_add(1, Ordering::AcqRel));
            }
        });
    }

    #[test]
    fn a_thread_that_helps_beside_comes_to_the_front() {
        let pool = Pool::new(2).unwrap();
        let beside = pool.beside();
        let (entered, in_front) = (Barrier::new(3), AtomicUsize::new(0));
        let both_in_front = || in_front.load(Ordering::Acquire) == 2;
        thread::scope(|scope| {
            scope.spawn(|| {
                beside.run(100, |task| {
                    if task < 2 {
                        entered.wait();
                    }
                    match thread::current().name() {
                        // The helper's task ends once there is a job in front.
                        Some("cpu-1") => {
                            _ = wait_for(|| pool.crew.shared.front.load(Ordering::Relaxed))
                        }
                        // So that there are tasks left beside when it does.
                        _ => _ = wait_for(both_in_front),
                    }
                });
            });
            entered.wait();
            pool.run(2, |_| {
                in_front.fetch_add(1, Ordering::AcqRel);
                assert!(wait_for(both_in_front), "one thread is alone in front");
            });
        });
    }

    /// Whether something comes true; gives up after a time that no working pool needs.
    fn wait_for(what: impl Fn() -> bool) -> bool {
        let started = Instant::now();
        while !what() && started.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        what()
    }
}
