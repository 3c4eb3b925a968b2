//! How long a request may take: its place in line, and all of it.
//!
//! The engine looks at the clock between rounds; a round of a large model may take long. So the server looks as well,
//! and lets go of the job, which frees what it holds at the next round.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::HeaderMap;
use descant_engine::{EngineError, Handle, JobOptions, StreamItem, Ticket, TokenStream};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::Refused;
use crate::limits::Limits;

/// The time that a request has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    started: Instant,
    /// All of it.
    allowed: Option<Duration>,
    /// The part of it before the engine starts.
    queue_max: Option<Duration>,
}

/// A request's watch over its job.
#[derive(Debug)]
pub(crate) struct Patience {
    engine: Handle,
    deadline: Option<Pin<Box<Sleep>>>,
    /// `None` once the job has its slot.
    queue_end: Option<Pin<Box<Sleep>>>,
}

/// A chat stream and the time that it has.
#[derive(Debug)]
pub(crate) struct PatientStream {
    stream: TokenStream,
    patience: Patience,
}

/// A client's own limit, in milliseconds.
const TIMEOUT_HEADER: &str = "x-descant-timeout-ms";
/// The longest limit that a client may name: a day.
const TIMEOUT_MS_MAX: u64 = 86_400_000;

impl Time {
    /// The time of a request that starts now. A client may shorten what the server allows.
    ///
    /// # Errors
    /// [`Refused::Header`] if the client's limit is none.
    pub(crate) fn of(headers: &HeaderMap, limits: &Limits) -> Result<Time, Refused> {
        let own = match headers.get(TIMEOUT_HEADER) {
            None => None,
            Some(value) => {
                let ms = value
                    .to_str()
                    .ok()
                    .and_then(|text| text.trim().parse::<u64>().ok());
                let ms = ms.filter(|ms| (1..=TIMEOUT_MS_MAX).contains(ms));
                Some(Duration::from_millis(ms.ok_or(Refused::Header {
                    name: TIMEOUT_HEADER,
                    wanted: "a whole number of milliseconds, from 1 to 86400000",
                })?))
            }
        };
        Ok(Time {
            started: Instant::now(),
            allowed: [own, limits.request_time_max].into_iter().flatten().min(),
            queue_max: limits.queue_wait_max,
        })
    }

    /// What the engine is told.
    ///
    /// # Errors
    /// [`Refused::Deadline`] if the time is up already.
    pub(crate) fn job(&self) -> Result<JobOptions, Refused> {
        let left = |allowed: Duration| allowed.checked_sub(self.started.elapsed());
        let timeout = match self.allowed {
            None => None,
            Some(allowed) => Some(left(allowed).ok_or(Refused::Deadline)?),
        };
        Ok(JobOptions { timeout })
    }

    /// This time without the limit to the wait in line: for what a request asks for once the engine has begun with it.
    pub(crate) fn begun(self) -> Time {
        Time {
            queue_max: None,
            ..self
        }
    }

    fn patience(&self, engine: &Handle) -> Patience {
        let end = |time: Duration| Box::pin(sleep_until(self.started + time));
        Patience {
            engine: engine.clone(),
            deadline: self.allowed.map(end),
            queue_end: self.queue_max.map(end),
        }
    }

    /// The answer of a ticket, if it comes in time.
    ///
    /// # Errors
    /// What the engine says, [`EngineError::Busy`] after the longest wait in line, [`EngineError::Deadline`].
    pub(crate) async fn answer<T>(
        &self,
        engine: &Handle,
        mut ticket: Ticket<T>,
    ) -> Result<T, EngineError> {
        let mut patience = self.patience(engine);
        poll_fn(|context| {
            if let Poll::Ready(answer) = Pin::new(&mut ticket).poll(context) {
                return Poll::Ready(answer);
            }
            let is_queued = ticket.is_queued();
            patience.poll(context, is_queued).map(Err)
        })
        .await
    }

    /// A stream that ends when its time is up.
    pub(crate) fn watch(&self, engine: &Handle, stream: TokenStream) -> PatientStream {
        PatientStream {
            stream,
            patience: self.patience(engine),
        }
    }
}

impl Patience {
    /// Ready when the time is up.
    fn poll(&mut self, context: &mut Context<'_>, is_queued: bool) -> Poll<EngineError> {
        if !is_queued {
            self.queue_end = None;
        }
        let over = |sleep: &mut Option<Pin<Box<Sleep>>>, context: &mut Context<'_>| {
            let sleep = sleep.as_mut();
            sleep.is_some_and(|sleep| sleep.as_mut().poll(context).is_ready())
        };
        if over(&mut self.deadline, context) {
            return Poll::Ready(EngineError::Deadline);
        }
        if over(&mut self.queue_end, context) {
            return Poll::Ready(self.engine.busy());
        }
        Poll::Pending
    }
}

impl PatientStream {
    /// The next item if it is there; `None` after the end or an error of the engine's.
    pub(crate) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<StreamItem, EngineError>>> {
        if let Poll::Ready(item) = self.stream.poll_next(context) {
            return Poll::Ready(item);
        }
        let is_queued = self.stream.is_queued();
        self.patience
            .poll(context, is_queued)
            .map(|error| Some(Err(error)))
    }

    /// Tokens of the prompt that came from the state cache; known once a token is there.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.stream.cached_tokens()
    }
}
