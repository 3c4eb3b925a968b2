//! What is written down of a generated text, in the log and in the figures: counts and times, none of its words.

use std::time::{Duration, Instant};

use crate::chat::form::Usage;
use crate::chat::teller::End;
use crate::metrics::{Metrics, Text};
use crate::request_id::RequestId;

/// Written down when it is dropped, so that a text whose client left is there, too.
#[derive(Debug)]
pub(crate) struct Journal {
    id: RequestId,
    metrics: Metrics,
    started: Instant,
    first_token: Option<Duration>,
    usage: Usage,
    outcome: &'static str,
}

impl Journal {
    pub(crate) fn new(id: RequestId, metrics: Metrics, prompt_tokens: usize) -> Journal {
        Journal {
            id,
            metrics,
            started: Instant::now(),
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
