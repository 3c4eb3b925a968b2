//! A pool of threads that stays: tasks are numbered, and each number runs once on some thread.
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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::isa::Isa;
use super::split::Split;

/// Turns of the waiting loop before a thread sleeps: some ten microseconds, more than the pause between two kernels.
const SPINS: u32 = 1 << 9;

/// Threads that run the numbered tasks of one caller at a time, the caller among them.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the caller whose tasks run.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    isa: Isa,
}

struct Shared {
    state: Mutex<State>,
    /// Number of jobs so far; what a thread watches before it sleeps.
    jobs: AtomicU64,
    /// A job came, or the pool closes.
    wake: Condvar,
    /// The last thread has left the job.
    left: Condvar,
}

struct State {
    /// The job that threads may enter.
    open: Option<Entry>,
    /// Threads inside it.
    inside: usize,
    sleepers: usize,
    closing: bool,
}

/// A job on its caller's stack, its lifetime hidden.
#[derive(Clone, Copy)]
struct Entry(*const Job<'static>);

// SAFETY: a `Job` is `Sync` (atomics, a mutex, a `Sync` closure); `run` keeps it alive while a thread is inside.
unsafe impl Send for Entry {}

struct Job<'a> {
    next: AtomicUsize,
    tasks: usize,
    task: &'a (dyn Fn(usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

thread_local! {
    /// Whether this thread is inside a task.
    static BUSY: Cell<bool> = const { Cell::new(false) };
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
            open: None,
            inside: 0,
            sleepers: 0,
            closing: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            jobs: AtomicU64::new(0),
            wake: Condvar::new(),
            left: Condvar::new(),
        });
        let mut pool = Pool {
            shared,
            turn: Mutex::new(()),
            workers: Vec::new(),
            isa,
        };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("cpu-{index}"));
            pool.workers.push(builder.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instructions that kernels of this pool run on.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `task(0)` to `task(tasks − 1)`, each once, and returns when all have. Callers on several threads take turns.
    /// Inside a task, the tasks run one after another on the same thread.
    ///
    /// # Panics
    /// With the first panic of a task, after the others have ended.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() || BUSY.get() {
            return (0..tasks).for_each(task);
        }
        let turn = lock(&self.turn);
        let job = Job {
            next: AtomicUsize::new(0),
            tasks,
            task: &task,
            panic: Mutex::new(None),
        };
        let entry = Entry((&raw const job).cast());
        self.shared.open(entry);
        job.work();
        self.shared.close();
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
    fn open(&self, entry: Entry) {
        let mut state = lock(&self.state);
        state.open = Some(entry);
        // Only watched as a hint; the state behind the lock decides.
        self.jobs.fetch_add(1, Ordering::Release);
        if state.sleepers > 0 {
            self.wake.notify_all();
        }
    }

    /// Lets no further thread into the job and waits until the last has left.
    fn close(&self) {
        let mut state = lock(&self.state);
        state.open = None;
        let mut spins = 0;
        while state.inside > 0 {
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

    /// The life of a thread: waits for a job it has not seen, enters it, leaves it.
    fn work(&self) {
        let mut seen = 0;
        while let Some(entry) = self.enter(&mut seen) {
            // SAFETY: `enter` counted this thread as inside, and `run` keeps the job alive until the count, which `leave`
            // lowers, is zero.
            unsafe { &*entry.0 }.work();
            self.leave();
        }
    }

    /// Waits for the next job and enters it; none when the pool closes.
    fn enter(&self, seen: &mut u64) -> Option<Entry> {
        loop {
            self.watch(*seen);
            let mut state = lock(&self.state);
            if state.closing {
                return None;
            }
            let jobs = self.jobs.load(Ordering::Acquire);
            if jobs == *seen {
                state.sleepers += 1;
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.sleepers -= 1;
                continue;
            }
            *seen = jobs;
            // A job that closed before this thread came leaves nothing to enter.
            if let Some(entry) = state.open {
                state.inside += 1;
                return Some(entry);
            }
        }
    }

    /// Spins for a short while, or until there is a job after `seen`.
    fn watch(&self, seen: u64) {
        for _ in 0..SPINS {
            if self.jobs.load(Ordering::Acquire) != seen {
                return;
            }
            spin_loop();
        }
    }

    fn leave(&self) {
        let mut state = lock(&self.state);
        state.inside -= 1;
        if state.inside == 0 {
            self.left.notify_one();
        }
    }
}

impl Job<'_> {
    /// Takes tasks until none is left; keeps the first panic.
    fn work(&self) {
        BUSY.set(true);
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.tasks {
                break;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(index))) {
                lock(&self.panic).get_or_insert(payload);
            }
        }
        BUSY.set(false);
    }
}

impl Drop for Pool {
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
            .field("isa", &self.isa)
            .finish_non_exhaustive()
    }
}

/// Locks; a panic of another holder leaves nothing half done here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
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
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(4, |_| {
                            pool.run(3, |_| _ = count.fetch_add(1, Ordering::Relaxed))
                        });
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 4 * 50 * 4 * 3);
    }
}
