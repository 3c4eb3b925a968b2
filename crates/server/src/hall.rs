//! What the routes share, and the way of a decision from its body to its answer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use descant_decision::Logits;
use descant_decision::json::to_json;
use descant_engine::{Decided, EngineError, Handle, Health, Ticket};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::auth::Keys;
use crate::body::Door;
use crate::chat::ChatDesk;
use crate::cors::Origins;
use crate::courtesy::make_way_for_connections;
use crate::error::{Refusal, Refused};
use crate::limits::Limits;
use crate::metrics::{Metrics, Now, Tokens};
use crate::models::Card;
use crate::multipart::Form;
use crate::patience::Time;
use crate::receipt::{Provenance, Receipt};
use crate::spans::{Trace, Traces};
use crate::systemone::{Asking, Desk, Reply};

/// Longest wait for a thread that reads bodies; with the engine's own wait it stays below the ten seconds after which
/// the official clients give up and send the request again.
const READ_WAIT_MAX: Duration = Duration::from_secs(5);
/// Prompts of one request that are with the engine at one time, so that a request of many takes no more places than
/// several requests do.
const PROMPTS_TOGETHER: usize = 8;

/// What stands before the model: it is there while the model is loaded.
#[derive(Debug, Default)]
pub struct Front {
    /// Bounds of the front door.
    pub limits: Limits,
    /// Bodies that are parsed and tokenised at one time, each on a thread of its own.
    pub readers: usize,
    /// The keys of those who may ask; `None` lets everybody ask.
    pub keys: Option<Arc<Keys>>,
    /// Whose pages may ask.
    pub origins: Origins,
    /// How much of the model is loaded.
    pub progress: Progress,
    /// Who is told of requests; `None` tells nobody.
    pub traces: Option<Traces>,
}

/// What a server serves.
#[derive(Debug)]
pub struct Setup {
    /// How requests are read and replies are written.
    pub desk: Desk,
    /// The engine that decides.
    pub engine: Handle,
    /// What a listing says about the model.
    pub card: Card,
    /// Where answers come from.
    pub provenance: Provenance,
    /// Why the model answers no decisions, if it does not.
    pub no_head: Option<String>,
    /// How conversations and texts are read, or why they are not.
    pub chat: Result<ChatDesk, String>,
}

/// Tells how much of the model is loaded, from 0 to 1.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn() -> f64 + Send + Sync>);

/// What the routes share.
#[derive(Debug)]
pub(crate) struct Hall {
    pub(crate) front: Front,
    /// Nothing while the model is loaded.
    setup: OnceLock<Setup>,
    door: Door,
    readers: Arc<Semaphore>,
    closing: AtomicBool,
    pub(crate) metrics: Metrics,
}

/// What came of a decision.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// For each of [`Asking::prompts`].
    pub(crate) logits: Vec<Logits>,
    /// Rows of the prompts that came from the state cache.
    pub(crate) cached_rows: usize,
    /// Time of the first prompt in line.
    queue_time: Duration,
    /// Time of all prompts at work, added up.
    engine_time: Duration,
    /// The longest round with rows of any of the prompts.
    round_longest: Duration,
    receipt: Option<Receipt>,
    /// When the last of the prompts was decided.
    decided: Instant,
}

/// What a reply tells the log about its decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decision {
    pub(crate) input_tokens: usize,
    pub(crate) truncated_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) queued: Duration,
    pub(crate) computed: Duration,
}

/// How the server is, in one word and a status.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Closing,
    Failing,
    /// The share of the model that is loaded.
    Loading(f64),
    Ready,
    Stopped,
}

impl Progress {
    /// Progress as a function tells it, from 0 to 1.
    pub fn new(tell: impl Fn() -> f64 + Send + Sync + 'static) -> Progress {
        Progress(Arc::new(tell))
    }

    fn share(&self) -> f64 {
        let share = (self.0)();
        if share.is_finite() {
            share.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

/// None until all is loaded.
impl Default for Progress {
    fn default() -> Progress {
        Progress::new(|| 0.0)
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Progress").field(&self.share()).finish()
    }
}

impl Hall {
    pub(crate) fn new(front: Front) -> Hall {
        Hall {
            door: Door::new(front.limits),
            readers: Arc::new(Semaphore::new(front.readers.max(1))),
            closing: AtomicBool::new(false),
            setup: OnceLock::new(),
            metrics: Metrics::default(),
            front,
        }
    }

    /// Serves a model from now on; a second one is not taken.
    pub(crate) fn open(&self, setup: Setup) {
        let _ = self.setup.set(setup);
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// The model.
    ///
    /// # Errors
    /// [`Refused::Loading`].
    pub(crate) fn setup(&self) -> Result<&Setup, Refused> {
        self.setup.get().ok_or_else(|| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share from 0 to 1"
            )]
            let percent = (100.0 * self.front.progress.share()) as u8;
            Refused::Loading {
                percent: Some(percent),
            }
        })
    }

    pub(crate) fn state(&self) -> State {
        let closing = self.closing.load(Ordering::Relaxed);
        match self.setup.get().map(|setup| setup.engine.stats().health) {
            Some(Health::Failing) => State::Failing,
            Some(Health::Stopped) => State::Stopped,
            _ if closing => State::Closing,
            Some(Health::Good) => State::Ready,
            None => State::Loading(self.front.progress.share()),
        }
    }

    /// The page of figures.
    pub(crate) fn figures(&self) -> String {
        let setup = self.setup.get();
        let stats = setup.map(|setup| setup.engine.stats());
        self.metrics.page(&Now {
            backend: setup.map_or("", |setup| setup.provenance.backend()),
            stats: stats.as_ref(),
            ready: self.state() == State::Ready,
            loaded: setup.map_or_else(|| self.front.progress.share(), |_| 1.0),
            spans: self.front.traces.as_ref().map(Traces::counts),
        })
    }

    /// The time of a request that starts now.
    ///
    /// # Errors
    /// A client's limit that is none.
    pub(crate) fn time(&self, headers: &HeaderMap) -> Result<Time, Refused> {
        Time::of(headers, &self.front.limits)
    }

    /// The model, if it answers decisions.
    ///
    /// # Errors
    /// [`Refused::Loading`], [`Refused::NoHead`].
    pub(crate) fn decider(&self) -> Result<&Setup, Refused> {
        let setup = self.setup()?;
        match &setup.no_head {
            Some(missing) => Err(Refused::NoHead {
                missing: missing.clone(),
            }),
            None => Ok(setup),
        }
    }

    /// Takes a body in and reads it, on a thread that may take its time.
    ///
    /// # Errors
    /// A body that does not arrive or cannot be read, a server that is loading or busy, or what `read` says.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        headers: &HeaderMap,
        body: Body,
        read: impl FnOnce(&Setup, &Form<'_>) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (trace, begun) = (Trace::current(), Instant::now());
        let held = self.door.read(headers, body).await?;
        let bytes = held.sent_bytes();
        trace.stage(
            "read",
            begun,
            Instant::now(),
            &[("descant.body.bytes", bytes)],
        );
        let busy = Refused::Busy {
            retry_after_ms: 1000,
        };
        let reader = timeout(READ_WAIT_MAX, Arc::clone(&self.readers).acquire_owned()).await;
        let reader = reader
            .map_err(|_| busy)?
            .expect("the readers are never closed");
        let hall = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            make_way_for_connections();
            // Held until the work is done, even if nobody waits for it any more.
            let _reader = reader;
            let begun = Instant::now();
            let held = held.decoded()?;
            let read = read(hall.setup()?, &held.form()?);
            trace.stage("encode", begun, Instant::now(), &[]);
            read
        });
        read.await.unwrap_or_else(|error| {
            let message = format!("a body could not be read: {error}");
            Err(Refused::Defect { message }.into())
        })
    }

    /// Decides a request. Whoever drops this future, because the client has left, cancels the work.
    ///
    /// # Errors
    /// What the engine says.
    pub(crate) async fn decide(
        &self,
        asking: &Asking,
        headers: &HeaderMap,
        time: Time,
    ) -> Result<Outcome, Refused> {
        let setup = self.setup()?;
        let mut decided = all_decided(&setup.engine, asking, time).await?;
        let ended = Instant::now();
        let tokens = Tokens {
            read: asking.input_tokens(),
            truncated: asking.truncated_tokens(),
        };
        self.metrics.decided(asking.record(), tokens, &decided);
        let logits: Vec<Logits> = decided
            .iter_mut()
            .map(|decided| std::mem::take(&mut decided.logits))
            .collect();
        let receipt = match wants_receipt(headers) {
            true => Some(receipt(setup, asking, &logits).await?),
            false => None,
        };
        Ok(Outcome {
            logits,
            cached_rows: decided.iter().map(|decided| decided.cached_rows).sum(),
            queue_time: decided
                .first()
                .map_or(Duration::ZERO, |first| first.queue_time),
            engine_time: decided.iter().map(|decided| decided.engine_time).sum(),
            round_longest: decided
                .iter()
                .map(|decided| decided.round_longest)
                .max()
                .unwrap_or_default(),
            receipt,
            decided: ended,
        })
    }

    /// A reply to a decision.
    pub(crate) fn dispatch(
        &self,
        asking: &Asking,
        outcome: &Outcome,
        reply: &Reply,
    ) -> Result<Response<Body>, Refused> {
        let mode = self.setup()?.desk.reading().name();
        let mut response = json(StatusCode::OK, reply.compact());
        let headers = response.headers_mut();
        let mut note = |name, value| headers.insert(HeaderName::from_static(name), value);
        note("x-clef-mode", HeaderValue::from_static(mode));
        note("x-clef-queue-ms", milliseconds(outcome.queue_time));
        note("x-clef-engine-ms", milliseconds(outcome.engine_time));
        note("x-clef-round-ms", milliseconds(outcome.round_longest));
        note(
            "x-clef-cached-tokens",
            HeaderValue::from(outcome.cached_rows),
        );
        if asking.truncated_tokens() > 0 {
            let truncated = HeaderValue::from(asking.truncated_tokens());
            note("x-clef-truncated-tokens", truncated);
        }
        if let Some(receipt) = &outcome.receipt {
            let text = to_json(&receipt.to_value());
            let value = HeaderValue::try_from(text).expect("a receipt is ASCII");
            note("x-descant-receipt", value);
        }
        let trace = Trace::current();
        trace.stage("answer", outcome.decided, Instant::now(), &[]);
        trace.count(&[
            ("descant.questions", asking.record().questions().len()),
            ("descant.prompts", asking.prompts().len()),
            ("descant.input_tokens", asking.input_tokens()),
            ("descant.cached_tokens", outcome.cached_rows),
            ("descant.truncated_tokens", asking.truncated_tokens()),
        ]);
        response.extensions_mut().insert(Decision {
            input_tokens: asking.input_tokens(),
            truncated_tokens: asking.truncated_tokens(),
            cached_tokens: outcome.cached_rows,
            queued: outcome.queue_time,
            computed: outcome.engine_time,
        });
        Ok(response)
    }
}

/// Asks the engine for the logits of every prompt of a request, several at a time, in order.
async fn all_decided(
    engine: &Handle,
    asking: &Asking,
    time: Time,
) -> Result<Vec<Decided>, Refused> {
    let mut line = Line {
        engine,
        waiting: VecDeque::new(),
        decided: Vec::with_capacity(asking.prompts().len()),
        time,
    };
    for prompt in asking.prompts() {
        loop {
            if line.waiting.len() == PROMPTS_TOGETHER {
                line.answer().await?;
            }
            let arrived = Instant::now();
            match engine.decide(Arc::clone(prompt), &line.time.job()?) {
                Ok(ticket) => break line.waiting.push_back((arrived, ticket)),
                // The places are taken by this request's own prompts, or will be had once one of them is answered.
                Err(EngineError::Busy { .. }) if !line.waiting.is_empty() => line.answer().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }
    while !line.waiting.is_empty() {
        line.answer().await?;
    }
    Ok(line.decided)
}

/// The prompts of a request that are with the engine.
struct Line<'a> {
    engine: &'a Handle,
    /// Each with the time at which it was handed in.
    waiting: VecDeque<(Instant, Ticket<Decided>)>,
    decided: Vec<Decided>,
    time: Time,
}

impl Line<'_> {
    /// Waits for the oldest prompt's answer.
    async fn answer(&mut self) -> Result<(), Refused> {
        if let Some((arrived, ticket)) = self.waiting.pop_front() {
            let decided = self.time.answer(self.engine, ticket).await?;
            tell(arrived, &decided);
            self.decided.push(decided);
            // The engine has begun with the request; what is left of it waits for its own prompts.
            self.time = self.time.begun();
        }
        Ok(())
    }
}

/// Tells of a prompt's way through the engine, which began when it was handed in.
fn tell(arrived: Instant, decided: &Decided) {
    let trace = Trace::current();
    let admitted = arrived + decided.queue_time;
    let run = admitted + decided.engine_time.saturating_sub(decided.head_time);
    trace.stage("queue", arrived, admitted, &[]);
    let cached = [("descant.cached_tokens", decided.cached_rows)];
    trace.stage("rounds", admitted, run, &cached);
    trace.stage("head", run, run + decided.head_time, &[]);
}

/// Whether a request asks for a receipt.
fn wants_receipt(headers: &HeaderMap) -> bool {
    headers
        .get("x-descant-receipt")
        .is_some_and(|value| !matches!(value.as_bytes(), b"" | b"0" | b"false"))
}

async fn receipt(setup: &Setup, asking: &Asking, logits: &[Logits]) -> Result<Receipt, Refused> {
    let (provenance, mode) = (setup.provenance.clone(), setup.desk.reading().name());
    let (prompts, logits) = (asking.prompts().to_vec(), logits.to_vec());
    let made = move || {
        make_way_for_connections();
        provenance.receipt(mode, &prompts, &logits)
    };
    let made = tokio::task::spawn_blocking(made).await;
    let made = made.unwrap_or_else(|error| Err(error.to_string()));
    made.map_err(|error| Refused::Defect {
        message: format!("no receipt can be made: {error}"),
    })
}

/// A reply of JSON text.
pub(crate) fn json(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A time in milliseconds with three decimal places.
fn milliseconds(time: Duration) -> HeaderValue {
    let text = format!("{:.3}", time.as_secs_f64() * 1e3);
    HeaderValue::try_from(text).expect("digits are header text")
}
