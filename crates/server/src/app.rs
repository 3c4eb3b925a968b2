//! The routes, and what every reply has in common: a request id, JSON, a log line, and that no panic gets further than
//! its request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use axum::routing::{MethodRouter, get, post};
use descant_decision::json::{Object, to_json};
use descant_engine::{Decided, Handle, Health};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::body::{Door, Held};
use crate::chat::{self, ChatDesk};
use crate::error::Refused;
use crate::limits::Limits;
use crate::models::{self, Card};
use crate::panic;
use crate::patience::Time;
use crate::request_id::RequestId;
use crate::systemone::{Asking, Desk};

/// Longest wait for a thread that reads bodies; with the engine's own wait it stays below the ten seconds after which
/// the official clients give up and send the request again.
const READ_WAIT_MAX: Duration = Duration::from_secs(5);

/// What a server serves.
#[derive(Debug)]
pub struct Setup {
    /// How requests are read and replies are written.
    pub desk: Desk,
    /// The engine that decides.
    pub engine: Handle,
    /// What a listing says about the model.
    pub card: Card,
    /// Bounds of the front door.
    pub limits: Limits,
    /// Bodies that are parsed and tokenised at one time, each on a thread of its own.
    pub readers: usize,
    /// Why the model answers no decisions, if it does not.
    pub no_head: Option<String>,
    /// How conversations and texts are read, or why they are not.
    pub chat: Result<ChatDesk, String>,
}

/// The server apart from its connections: requests in, replies out.
pub struct App {
    hall: Arc<Hall>,
    routes: TowerToHyperService<Router>,
}

/// What the routes share.
#[derive(Debug)]
pub(crate) struct Hall {
    pub(crate) setup: Setup,
    pub(crate) door: Door,
    readers: Arc<Semaphore>,
    closing: AtomicBool,
}

impl App {
    /// Builds the routes.
    pub fn new(setup: Setup) -> App {
        let door = Door::new(setup.limits);
        let readers = Arc::new(Semaphore::new(setup.readers));
        let closing = AtomicBool::new(false);
        let hall = Arc::new(Hall {
            setup,
            door,
            readers,
            closing,
        });
        let routes = TowerToHyperService::new(routes(&hall));
        App { hall, routes }
    }

    /// Answers one request. Always answers, and never with a panic.
    pub async fn answer(&self, mut request: Request<Body>) -> Response<Body> {
        let started = Instant::now();
        let id = RequestId::from_headers(request.headers());
        let line = LogLine::of(&request, &id);
        request.extensions_mut().insert(id.clone());
        let mut response = match panic::catch(self.routes.call(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(message) => axum::response::IntoResponse::into_response(Refused::Defect {
                message: format!("a request panicked: {message}"),
            }),
        };
        let refused = response.extensions_mut().remove::<Refused>();
        if let Some(refused) = &refused {
            response = refused.response(&id);
        }
        let headers = response.headers_mut();
        headers.insert(HeaderName::from_static("x-request-id"), id.header());
        headers.insert(
            HeaderName::from_static("x-typesafe-request-id"),
            id.header(),
        );
        line.write(&response, refused.as_ref(), started.elapsed());
        response
    }

    /// Tells health checks that the server is about to stop.
    pub(crate) fn close(&self) {
        self.hall.closing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.hall.setup.limits
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("hall", &self.hall)
            .finish_non_exhaustive()
    }
}

fn routes(hall: &Arc<Hall>) -> Router {
    let asked = |method| methods(method, "OPTIONS, POST");
    let read = |method| methods(method, "GET, HEAD, OPTIONS");
    let mut router = Router::new()
        .route("/v1/systemone", asked(post(systemone)))
        .route("/v1/models", read(get(list_models)))
        .route("/v1/models/{*name}", read(get(show_model)));
    for path in ["/health", "/healthz", "/ready", "/ping"] {
        router = router.route(path, read(get(health)));
    }
    router = router.merge(chat::routes());
    router.fallback(nothing_here).with_state(Arc::clone(hall))
}

/// A path's methods, with an answer for `OPTIONS` and for all others.
pub(crate) fn methods(
    method: MethodRouter<Arc<Hall>>,
    allowed: &'static str,
) -> MethodRouter<Arc<Hall>> {
    method
        .options(move || async move {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static(allowed));
            response
        })
        .fallback(move || async move { Refused::Method { allowed } })
}

async fn nothing_here(uri: Uri) -> Refused {
    Refused::Route {
        path: uri.path().to_owned(),
    }
}

async fn health(State(hall): State<Arc<Hall>>) -> Response<Body> {
    let closing = hall.closing.load(Ordering::Relaxed);
    let (status, word) = match hall.setup.engine.stats().health {
        Health::Failing => (StatusCode::SERVICE_UNAVAILABLE, "failing"),
        Health::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "stopped"),
        Health::Good if closing => (StatusCode::SERVICE_UNAVAILABLE, "closing"),
        Health::Good => (StatusCode::OK, "ok"),
    };
    json(status, to_json(&Object::new().with("status", word).into()))
}

async fn list_models(State(hall): State<Arc<Hall>>) -> Response<Body> {
    let setup = &hall.setup;
    json(
        StatusCode::OK,
        to_json(&models::list(setup.desk.names(), &setup.card)),
    )
}

async fn show_model(
    State(hall): State<Arc<Hall>>,
    Path(name): Path<String>,
) -> Result<Response<Body>, Refused> {
    let setup = &hall.setup;
    match setup.desk.names().asked(Some(&name)) {
        Some(_) => Ok(json(
            StatusCode::OK,
            to_json(&models::entry(&name, &setup.card).into()),
        )),
        None => Err(Refused::UnknownModelPath { name }),
    }
}

async fn systemone(
    State(hall): State<Arc<Hall>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refused> {
    if let Some(missing) = &hall.setup.no_head {
        return Err(Refused::NoHead {
            missing: missing.clone(),
        });
    }
    let time = hall.time(&headers)?;
    let held = hall.door.read(&headers, body).await?;
    let asking = hall
        .read(held, |hall, body| hall.setup.desk.read(body))
        .await?;
    let engine = &hall.setup.engine;
    // Whoever drops this future, because the client has left, drops the ticket, which cancels the job.
    let ticket = engine.decide(asking.encoded(), &time.job()?)?;
    let decided = time.answer(engine, ticket).await?;
    let reply = asking.reply(&decided.logits)?;
    Ok(hall.dispatch(&asking, &decided, reply.compact()))
}

impl Hall {
    /// The time of a request that starts now.
    pub(crate) fn time(&self, headers: &HeaderMap) -> Result<Time, Refused> {
        Time::of(headers, &self.setup.limits)
    }

    /// Decodes, parses and encodes a body, on a thread that may take its time.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        held: Held,
        read: impl FnOnce(&Hall, &[u8]) -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        let busy = Refused::Busy {
            retry_after_ms: 1000,
        };
        let reader = timeout(READ_WAIT_MAX, Arc::clone(&self.readers).acquire_owned()).await;
        let reader = reader
            .map_err(|_| busy)?
            .expect("the readers are never closed");
        let hall = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            // Held until the work is done, even if nobody waits for it any more.
            let _reader = reader;
            read(&hall, held.decoded()?.bytes())
        });
        read.await.unwrap_or_else(|error| {
            Err(Refused::Defect {
                message: format!("a body could not be read: {error}"),
            })
        })
    }

    fn dispatch(&self, asking: &Asking, decided: &Decided, body: String) -> Response<Body> {
        let mut response = json(StatusCode::OK, body);
        let headers = response.headers_mut();
        let mut note = |name, value| headers.insert(HeaderName::from_static(name), value);
        note("x-clef-mode", HeaderValue::from_static("joint"));
        note("x-clef-queue-ms", milliseconds(decided.queue_time));
        note("x-clef-engine-ms", milliseconds(decided.engine_time));
        note(
            "x-clef-cached-tokens",
            HeaderValue::from(decided.cached_rows),
        );
        if asking.truncated_tokens() > 0 {
            note(
                "x-clef-truncated-tokens",
                HeaderValue::from(asking.truncated_tokens()),
            );
        }
        response.extensions_mut().insert(Decision {
            input_tokens: asking.input_tokens(),
            truncated_tokens: asking.truncated_tokens(),
            queued: decided.queue_time,
            computed: decided.engine_time,
        });
        response
    }
}

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

/// What a reply tells the log about its decision.
#[derive(Clone, Copy, Debug)]
struct Decision {
    input_tokens: usize,
    truncated_tokens: usize,
    queued: Duration,
    computed: Duration,
}

/// A request's line in the log: what was asked for and how it went, none of the client's text but the path.
struct LogLine {
    id: RequestId,
    method: String,
    path: String,
}

impl LogLine {
    fn of(request: &Request<Body>, id: &RequestId) -> LogLine {
        let path = descant_decision::printable(request.uri().path());
        LogLine {
            id: id.clone(),
            method: request.method().to_string(),
            path,
        }
    }

    fn write(&self, response: &Response<Body>, refused: Option<&Refused>, took: Duration) {
        let LogLine { id, method, path } = self;
        let status = response.status().as_u16();
        let took_ms = took.as_secs_f64() * 1e3;
        match (refused, response.extensions().get::<Decision>()) {
            (Some(Refused::Defect { message }), _) => {
                tracing::error!(%id, method, path, status, took_ms, message, "failed");
            }
            (Some(refused), _) => {
                tracing::info!(%id, method, path, status, took_ms, code = refused.code(), "refused");
            }
            (None, Some(decision)) => tracing::info!(
                %id, method, path, status, took_ms,
                queue_ms = decision.queued.as_secs_f64() * 1e3,
                engine_ms = decision.computed.as_secs_f64() * 1e3,
                input_tokens = decision.input_tokens,
                truncated_tokens = decision.truncated_tokens,
                "decided"
            ),
            (None, None) => tracing::debug!(%id, method, path, status, took_ms, "answered"),
        }
    }
}
