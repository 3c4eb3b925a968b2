//! Time as the engine sees it: what has passed since it started.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Tells the time since the engine's start. Tests bring one that stands still until told.
pub(crate) trait Clock: Debug + Send + Sync {
    /// Time since the engine's start; never goes back.
    fn now(&self) -> Duration;
}

/// The machine's own monotonic clock.
#[derive(Debug)]
pub(crate) struct SystemClock(Instant);

impl SystemClock {
    /// A clock that starts now.
    pub(crate) fn start() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}
