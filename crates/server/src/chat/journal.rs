//! What is written down of a generated text, in the log and in the figures: counts and times, none of its words.

use std::time::{Duration, Instant};

use crate::chat::form::Usage;
use crate::chat::teller::End;
use crate::metrics::{Metrics, Text};
use crate::request_id::RequestId;
use crate::spans::Trace;

/// Written down when it is dropped, so that a text whose client left is there, too.
#[derive(Debug)]
pub(crate) struct Journal {
    id: RequestId,
    metrics: Metrics,
    trace: Trace,
    started: Instant,
    /// Time in line; known at the end.
    queued: Option<Duration>,
    first_token: Option<Duration>,
    usage: Usage,
    outcome: &'static str,
}

impl Journal {
    pub(crate) fn new(id: RequestId, metrics: Metrics, prompt_tokens: usize) -> Journal {
        Journal {
            id,
            metrics,
            trace: Trace::current(),
            started: Instant::now(),
            queued: None,
            first_token: None,
            usage: Usage {
                prompt: prompt_tokens,
                ..Usage::default()
            },
            outcome: "cancelled",
        }
    }

    /// Notes how far the text is.
    pub(crate) fn count(&mut self, cached: usize, completion: usize) {
        if completion > 0 && self.first_token.is_none() {
            self.first_token = Some(self.started.elapsed());
        }
        self.usage.cached = cached;
        self.usage.completion = completion;
    }

    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    pub(crate) fn ended(&mut self, end: End) {
        self.outcome = end.name();
    }

    pub(crate) fn queued(&mut self, time: Duration) {
        self.queued = Some(time);
    }

    /// Tells of the text's stages.
    fn tell(&self) {
        let now = Instant::now();
        let admitted = self.started + self.queued.unwrap_or_default();
        let first = self.first_token.map_or(now, |time| self.started + time);
        if self.queued.is_some() {
            self.trace.stage("queue", self.started, admitted, &[]);
        }
        let cached = [("descant.cached_tokens", self.usage.cached)];
        self.trace.stage("prompt", admitted, first, &cached);
        if self.first_token.is_some() {
            self.trace.stage("generate", first, now, &[]);
        }
        self.trace.count(&[
            ("descant.input_tokens", self.usage.prompt),
            ("descant.cached_tokens", self.usage.cached),
            ("descant.output_tokens", self.usage.completion),
        ]);
    }

    pub(crate) fn failed(&mut self, code: &'static str) {
        self.outcome = code;
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let Usage {
            prompt,
            cached,
            completion,
        } = self.usage;
        self.tell();
        self.metrics.told(&Text {
            outcome: self.outcome,
            prompt,
            cached,
            tokens: completion,
            first_token: self.first_token,
        });
        tracing::info!(
            id = %self.id,
            prompt_tokens = prompt,
            cached_tokens = cached,
            completion_tokens = completion,
            took_ms = self.started.elapsed().as_secs_f64() * 1e3,
            outcome = self.outcome,
            "generated"
        );
    }
}
