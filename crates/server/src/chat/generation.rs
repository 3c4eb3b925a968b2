//! A text as it is generated: tokens in, what there is to tell out, whole or as a stream of events.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::HttpBody;
use descant_decision::Value;
use descant_decision::json::{Object, to_json};
use descant_engine::{EngineError, StreamItem};
use hyper::body::{Bytes, Frame};

use crate::chat::desk::refused;
use crate::chat::form::Letterhead;
use crate::chat::journal::Journal;
use crate::chat::teller::{Teller, Told};
use crate::error::Refused;
use crate::patience::PatientStream;

/// A text in the making.
#[derive(Debug)]
pub(crate) struct Generation {
    /// `None` once it ended; dropping it lets go of its slot.
    stream: Option<PatientStream>,
    teller: Teller,
    journal: Journal,
}

/// A text as server-sent events: the body of a reply.
pub(crate) struct Events {
    generation: Generation,
    letterhead: Letterhead,
    /// Tools that were called so far.
    calls: usize,
    /// Events that wait to be sent.
    ready: VecDeque<Bytes>,
}

impl Generation {
    pub(crate) fn new(stream: PatientStream, teller: Teller, journal: Journal) -> Generation {
        Generation {
            stream: Some(stream),
            teller,
            journal,
        }
    }

    /// Waits for the next token and tells of it.
    ///
    /// # Errors
    /// Why there is none. The text is over then.
    pub(crate) async fn next(&mut self) -> Result<Told, Refused> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Told, Refused>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Err(refused(EngineError::Cancelled)));
        };
        let Poll::Ready(item) = stream.poll_next(context) else {
            return Poll::Pending;
        };
        let cached = stream.cached_tokens();
        Poll::Ready(self.take(item.unwrap_or(Err(EngineError::Cancelled)), cached))
    }

    fn take(
        &mut self,
        item: Result<StreamItem, EngineError>,
        cached: usize,
    ) -> Result<Told, Refused> {
        let told = match item {
            Ok(StreamItem::Token(token)) => self.teller.token(token),
            Ok(StreamItem::Finished(finished)) => {
                self.journal.queued(finished.queue_time);
                self.teller.end(finished.reason)
            }
            Err(error) => {
                self.stream = None;
                let refused = refused(error);
                self.journal.failed(refused.code());
                return Err(refused);
            }
        };
        self.journal.count(cached, self.teller.count());
        if let Some(end) = told.end {
            self.stream = None;
            self.journal.ended(end);
        }
        Ok(told)
    }

    /// The whole text as a reply.
    ///
    /// # Errors
    /// Why it has no end.
    pub(crate) async fn whole(mut self, letterhead: &Letterhead) -> Result<Value, Refused> {
        let mut all = Told::default();
        while all.end.is_none() {
            all.append(self.next().await?);
        }
        Ok(letterhead.whole(&all, self.journal.usage()))
    }
}

impl Events {
    /// A stream whose first token is there, so that whatever could be refused would have been.
    pub(crate) fn new(generation: Generation, letterhead: Letterhead, first: &Told) -> Events {
        let mut events = Events {
            generation,
            letterhead,
            calls: 0,
            ready: VecDeque::new(),
        };
        if let Some(opening) = events.letterhead.opening() {
            events.say(&opening);
        }
        events.tell(first);
        events
    }

    fn tell(&mut self, told: &Told) {
        if !told.is_news() {
            return;
        }
        for part in self.letterhead.parts(told, self.calls) {
            self.say(&part);
        }
        self.calls += told.calls.len();
        if told.end.is_some() {
            if self.letterhead.tells_usage {
                let usage = self.letterhead.usage_part(self.generation.journal.usage());
                self.say(&usage);
            }
            self.ready.push_back(DONE);
        }
    }

    /// A stream that fails says so in its last event: its status was sent long ago.
    fn fail(&mut self, refused: &Refused) {
        self.say(&Object::new().with("error", refused.error_object()).into());
        self.ready.push_back(DONE);
    }

    fn say(&mut self, value: &Value) {
        let event = format!("data: {}\n\n", to_json(value));
        self.ready.push_back(event.into());
    }
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let events = self.get_mut();
        loop {
            if let Some(event) = events.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(event))));
            }
            if events.generation.stream.is_none() {
                return Poll::Ready(None);
            }
            match events.generation.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(told)) => events.tell(&told),
                Poll::Ready(Err(refused)) => events.fail(&refused),
            }
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// The last event of every stream.
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");
