//! The bounds on what a client may make the server hold, and for how long.

use std::time::Duration;

/// Bounds of the front door. Each has one default, below, and a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest body, both as sent and decoded, in bytes.
    pub body_bytes_max: usize,
    /// All bodies held at one time, in bytes. A body that finds no room is refused as busy.
    pub bodies_bytes_max: usize,
    /// Open connections. Further ones wait in the system's own line.
    pub connections_max: usize,
    /// Streams of one HTTP/2 connection at one time.
    pub streams_max: u32,
    /// How long a request's head may take.
    pub header_wait_max: Duration,
    /// How long a request's body may take.
    pub body_wait_max: Duration,
    /// How long a request may wait for its turn, counted from its arrival; none for as long as it takes.
    pub queue_wait_max: Option<Duration>,
    /// How long a request may take, counted likewise; none for as long as it needs.
    pub request_time_max: Option<Duration>,
    /// How long a connection may stay open with no request on it.
    pub idle_max: Duration,
    /// How long the requests at hand may take once the server is told to stop.
    pub stop_wait_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            body_bytes_max: 32 << 20,
            bodies_bytes_max: 256 << 20,
            connections_max: 1024,
            streams_max: 64,
            header_wait_max: Duration::from_secs(20),
            body_wait_max: Duration::from_secs(60),
            queue_wait_max: Some(Duration::from_secs(8)),
            request_time_max: None,
            idle_max: Duration::from_secs(120),
            stop_wait_max: Duration::from_secs(30),
        }
    }
}
