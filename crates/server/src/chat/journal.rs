//! A generated text's line in the log: counts and times, none of its words.

use std::time::Instant;

use crate::chat::form::Usage;
use crate::chat::teller::End;
use crate::request_id::RequestId;

/// Writes the line when it is dropped, so that a text whose client left has one too.
#[derive(Debug)]
pub(crate) struct Journal {
    id: RequestId,
    started: Instant,
    pub(crate) usage: Usage,
    outcome: &'static str,
}

impl Journal {
    pub(crate) fn new(id: RequestId, prompt_tokens: usize) -> Journal {
        Journal {
            id,
            started: Instant::now(),
            usage: Usage {
                prompt: prompt_tokens,
                ..Usage::default()
            },
            outcome: "cancelled",
        }
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
