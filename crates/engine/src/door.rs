//! The door: one permit a job bounds all that is inside, so the lines behind it need no bound of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::EngineError;

/// Counts the jobs inside.
#[derive(Debug)]
pub(crate) struct Door {
    /// Most jobs inside.
    jobs_max: usize,
    jobs: AtomicUsize,
    closed: AtomicBool,
    retry_after_ms: AtomicU64,
    refused_busy: AtomicU64,
    refused_closing: AtomicU64,
}

/// A place inside. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Door>);

impl Door {
    /// An open door to so many places.
    pub(crate) fn new(jobs_max: usize) -> Arc<Door> {
        Arc::new(Door {
            jobs_max,
            jobs: AtomicUsize::new(0),
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
        let one_more = |jobs| (jobs < self.jobs_max).then_some(jobs + 1);
        let entered = self
            .jobs
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
        if entered.is_err() {
            self.refused_busy.fetch_add(1, Ordering::Relaxed);
            return Err(self.busy());
        }
        Ok(Permit(Arc::clone(self)))
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

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.jobs.fetch_sub(1, Ordering::AcqRel);
    }
}

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
