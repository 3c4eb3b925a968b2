//! The door: one permit a job bounds all that is inside, so the lines behind it need no bound of their own.
//!
//! A job whose client has left stays inside until the engine's next step, which a round may keep waiting. Others need not
//! wait for that: its place is given to one more job at once. So there are at most twice as many jobs inside as places, all but
//! the places' number of them on their way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::EngineError;

/// Counts the jobs inside.
#[derive(Debug)]
pub(crate) struct Door {
    /// Most jobs inside.
    jobs_max: usize,
    jobs: AtomicUsize,
    /// Those of them whose client has left.
    leaving: AtomicUsize,
    closed: AtomicBool,
    retry_after_ms: AtomicU64,
    refused_busy: AtomicU64,
    refused_closing: AtomicU64,
}

/// A place inside. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Place>);

/// A place as the client knows it.
#[derive(Debug)]
pub(crate) struct Place {
    door: Arc<Door>,
    /// [`HELD`], [`LEAVING`] or [`FREED`].
    state: AtomicU8,
}

impl Door {
    /// An open door to so many places.
    pub(crate) fn new(jobs_max: usize) -> Arc<Door> {
        Arc::new(Door {
            jobs_max,
            jobs: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            retry_after_ms: AtomicU64::new(RETRY_AFTER_MS_MIN),
            refused_busy: AtomicU64::new(0),
            refused_closing: AtomicU64::new(0),
        })
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`EngineError::Busy`] if all are taken, [`EngineError::Closing`] if the door is closed.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Permit, EngineError> {
        if self.closed.load(Ordering::Acquire) {
            self.refused_closing.fetch_add(1, Ordering::Relaxed);
            return Err(EngineError::Closing);
        }
        let leaving = self.leaving.load(Ordering::Acquire).min(self.jobs_max);
        let one_more = |jobs| (jobs < self.jobs_max + leaving).then_some(jobs + 1);
        let entered = self
            .jobs
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        if entered.is_err() {
            self.refused_busy.fetch_add(1, Ordering::Relaxed);
            return Err(self.busy());
        }
        Ok(Permit(Arc::new(Place {
            door: Arc::clone(self),
            state: AtomicU8::new(HELD),
        })))
    }

    /// The refusal of a job that finds no place now.
    pub(crate) fn busy(&self) -> EngineError {
        EngineError::Busy {
            retry_after_ms: self.retry_after_ms.load(Ordering::Relaxed),
        }
    }

    /// Lets nobody in from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Sets the hint of the refusals from now on, within sensible bounds.
    pub(crate) fn expect_room_in(&self, ms: u64) {
        let ms = ms.clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX);
        self.retry_after_ms.store(ms, Ordering::Relaxed);
    }

    /// Jobs inside.
    #[cfg(test)]
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.load(Ordering::Acquire)
    }

    /// Jobs refused here: all places taken, door closed.
    pub(crate) fn refused(&self) -> (u64, u64) {
        let busy = self.refused_busy.load(Ordering::Relaxed);
        (busy, self.refused_closing.load(Ordering::Relaxed))
    }
}

impl Permit {
    /// The place, for the client to give up.
    pub(crate) fn place(&self) -> Arc<Place> {
        Arc::clone(&self.0)
    }
}

impl Place {
    /// Lets another job in though this one is still inside; its client has left.
    pub(crate) fn give_up(&self) {
        let leaves =
            self.state
                .compare_exchange(HELD, LEAVING, Ordering::AcqRel, Ordering::Acquire);
        if leaves.is_ok() {
            self.door.leaving.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Place { door, state } = &*self.0;
        door.jobs.fetch_sub(1, Ordering::AcqRel);
        if state.swap(FREED, Ordering::AcqRel) == LEAVING {
            door.leaving.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The client waits.
const HELD: u8 = 0;
/// The client has left, the job is still inside.
const LEAVING: u8 = 1;
/// The job has left.
const FREED: u8 = 2;

/// Bounds of the hint. Clients' own first retry comes after half a second or so; official ones do not wait for more
/// than a minute, nor does anybody like to.
const RETRY_AFTER_MS_MIN: u64 = 250;
const RETRY_AFTER_MS_MAX: u64 = 30_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_frees_its_place() {
        let door = Door::new(2);
        let first = door.enter().unwrap();
        let second = door.enter().unwrap();
        let retry_after_ms = RETRY_AFTER_MS_MIN;
        assert_eq!(
            door.enter().unwrap_err(),
            EngineError::Busy { retry_after_ms }
        );
        drop(first);
        let third = door.enter().unwrap();
        assert_eq!(door.jobs(), 2);
        drop((second, third));
        assert_eq!(door.jobs(), 0);
        assert_eq!(door.refused(), (1, 0));
    }

    #[test]
    fn a_place_given_up_lets_one_more_in() {
        let door = Door::new(2);
        let held = [door.enter().unwrap(), door.enter().unwrap()];
        held[0].place().give_up();
        held[0].place().give_up();
        let third = door.enter().unwrap();
        assert!(door.enter().is_err(), "one place was given up, once");
        // Whoever leaves when the job has left already changes nothing.
        let place = third.place();
        drop(third);
        place.give_up();
        let third = door.enter().unwrap();
        assert!(door.enter().is_err());
        drop(held);
        let fourth = door.enter().unwrap();
        assert!(door.enter().is_err(), "two are inside");
        drop((third, fourth));
        assert_eq!(door.jobs(), 0);
    }

    #[test]
    fn those_who_leave_do_not_pile_up() {
        let door = Door::new(2);
        let mut inside = Vec::new();
        while let Ok(permit) = door.enter() {
            permit.place().give_up();
            inside.push(permit);
        }
        assert_eq!(inside.len(), 4);
        drop(inside);
        let again = [door.enter().unwrap(), door.enter().unwrap()];
        assert!(door.enter().is_err());
        drop(again);
    }

    #[test]
    fn a_closed_door_lets_nobody_in() {
        let door = Door::new(2);
        door.close();
        assert_eq!(door.enter().unwrap_err(), EngineError::Closing);
        assert_eq!(door.refused(), (0, 1));
    }

    #[test]
    fn the_hint_is_bounded() {
        let door = Door::new(0);
        for (ms, hint) in [(0, 250), (700, 700), (u64::MAX, 30_000)] {
            door.expect_room_in(ms);
            let busy = EngineError::Busy {
                retry_after_ms: hint,
            };
            assert_eq!(door.enter().unwrap_err(), busy);
        }
    }
}
