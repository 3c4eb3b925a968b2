//! What a client holds while the engine works for it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use descant_decision::Logits;
use descant_model::Defect;

use crate::door::Place;
use crate::job::{Event, Flags, JobId};
use crate::pipe::Receiver;
use crate::{EngineError, Token};

/// An answered decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided {
    /// The logits of each question, in request order.
    pub logits: Logits,
    /// The part of the engine's time after the prompt's last row was run.
    pub head_time: Duration,
    /// Rows of the prompt that came from the state cache.
    pub cached_rows: usize,
    /// Time between arrival and slot.
    pub queue_time: Duration,
    /// Time between slot and answer.
    pub engine_time: Duration,
    /// Time of the longest round with rows of its prompt.
    pub round_longest: Duration,
}

/// What a chat stream gives: tokens, then one end.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamItem {
    /// The stream is complete; nothing follows.
    Finished(Finished),
    /// The next token.
    Token(Token),
}

/// How a chat stream ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that came from the state cache.
    pub cached_tokens: usize,
    /// Tokens chosen, a stop token among them.
    pub completion_tokens: usize,
    /// Time between arrival and slot.
    pub queue_time: Duration,
    /// Time between slot and end.
    pub engine_time: Duration,
}

/// Why a chat stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It has as many tokens as were asked for, or as a slot holds.
    Length,
    /// The model chose one of the stop tokens, which is not among the stream's tokens.
    Stop {
        /// Which one.
        id: u32,
    },
}

/// Hidden rows of a piece of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct HiddenRows {
    /// Position of the first row in the prompt.
    pub start: usize,
    /// The rows after the final norm, `[n, hidden]` f32.
    pub rows: Vec<f32>,
}

/// The promise of one answer. It can be waited for on a thread or as a future; dropping it cancels the job at the next
/// round.
#[derive(Debug)]
pub struct Ticket<T> {
    answer: Receiver<Result<T, EngineError>>,
    leash: Leash,
}

/// The tokens of a chat stream as they come. Dropping it cancels the stream at the next round.
#[derive(Debug)]
pub struct TokenStream {
    items: Receiver<Result<StreamItem, EngineError>>,
    ended: bool,
    leash: Leash,
}

/// The hidden rows of a prompt, piece by piece in order. The engine runs at most two pieces ahead of the reader.
/// Dropping it cancels the job at the next round.
#[derive(Debug)]
pub struct HiddenStream {
    pieces: Receiver<Result<HiddenRows, EngineError>>,
    /// Values still to come; 0 after an error too.
    values_left: usize,
    leash: Leash,
}

/// A client's hold on its job: letting go cancels it.
#[derive(Debug)]
pub(crate) struct Leash {
    pub(crate) id: JobId,
    pub(crate) flags: Arc<Flags>,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) place: Arc<Place>,
}

impl<T> Ticket<T> {
    pub(crate) fn new(answer: Receiver<Result<T, EngineError>>, leash: Leash) -> Ticket<T> {
        Ticket { answer, leash }
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub fn wait(self) -> Result<T, EngineError> {
        self.answer.wait().unwrap_or_else(|| Err(stopped()))
    }

    /// Whether the job still waits for a slot. A caller that is tired of waiting for a round to end can drop the
    /// ticket and call the engine busy.
    pub fn is_queued(&self) -> bool {
        !self.leash.flags.started()
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, EngineError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.answer.poll(context);
        answer.map(|answer| answer.unwrap_or_else(|| Err(stopped())))
    }
}

impl TokenStream {
    pub(crate) fn new(
        items: Receiver<Result<StreamItem, EngineError>>,
        leash: Leash,
    ) -> TokenStream {
        TokenStream {
            items,
            ended: false,
            leash,
        }
    }

    /// The next item; `None` after the end or an error.
    pub async fn next(&mut self) -> Option<Result<StreamItem, EngineError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// The next item if it is there; `None` after the end or an error.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<StreamItem, EngineError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.items.poll(context).map(|item| Some(self.note(item)))
    }

    /// Waits for the next item; `None` after the end or an error.
    pub fn wait_next(&mut self) -> Option<Result<StreamItem, EngineError>> {
        if self.ended {
            return None;
        }
        let item = self.items.wait();
        Some(self.note(item))
    }

    /// Whether the job still waits for a slot.
    pub fn is_queued(&self) -> bool {
        !self.leash.flags.started()
    }

    /// Tokens of the prompt that came from the state cache; known once a token is there.
    pub fn cached_tokens(&self) -> usize {
        self.leash.flags.cached_rows()
    }

    fn note(
        &mut self,
        item: Option<Result<StreamItem, EngineError>>,
    ) -> Result<StreamItem, EngineError> {
        let item = item.unwrap_or_else(|| Err(stopped()));
        self.ended = !matches!(item, Ok(StreamItem::Token(_)));
        item
    }
}

impl HiddenStream {
    pub(crate) fn new(
        pieces: Receiver<Result<HiddenRows, EngineError>>,
        values: usize,
        leash: Leash,
    ) -> HiddenStream {
        HiddenStream {
            pieces,
            values_left: values,
            leash,
        }
    }

    /// Waits for the next piece; `None` after the last row or an error.
    pub fn wait_next(&mut self) -> Option<Result<HiddenRows, EngineError>> {
        if self.values_left == 0 {
            return None;
        }
        let piece = self.pieces.wait();
        Some(self.note(piece))
    }

    /// The next piece if it is there; `None` after the last row or an error.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<HiddenRows, EngineError>>> {
        if self.values_left == 0 {
            return Poll::Ready(None);
        }
        self.pieces
            .poll(context)
            .map(|piece| Some(self.note(piece)))
    }

    fn note(
        &mut self,
        piece: Option<Result<HiddenRows, EngineError>>,
    ) -> Result<HiddenRows, EngineError> {
        let piece = piece.unwrap_or_else(|| Err(stopped()));
        self.values_left = match &piece {
            Ok(piece) => self.values_left - piece.rows.len(),
            Err(_) => 0,
        };
        self.leash.nudge();
        piece
    }
}

impl Leash {
    /// Tells the engine that the client took something.
    fn nudge(&self) {
        // An engine that is gone needs no telling.
        let _ = self.inbox.send(Event::Tick);
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.flags.leave();
        self.place.give_up();
        // An engine that is gone has no job to cancel; one that answered it ignores the event.
        let _ = self.inbox.send(Event::Cancelled(self.id));
    }
}

/// The engine's thread ended without an answer, which only a fault of ours can bring about.
fn stopped() -> EngineError {
    EngineError::Defect(Defect::Device {
        message: "the engine's thread ended before it answered".into(),
    })
}
