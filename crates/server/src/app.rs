//! The server apart from its connections, and what every reply has in common: a request id, a log line, its place in the
//! figures, and that no panic gets further than its request.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, Method, Request, Response};
use axum::response::IntoResponse;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use crate::error::{Family, Refusal, Refused};
use crate::hall::{Decision, Front, Hall, Setup};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::panic;
use crate::request_id::RequestId;
use crate::routes;
use crate::spans::Trace;

/// The server apart from its connections: requests in, replies out.
pub struct App {
    hall: Arc<Hall>,
    routes: TowerToHyperService<Router>,
}

impl App {
    /// A server that is loading its model: it answers probes, and tells all others to come back.
    pub fn new(front: Front) -> App {
        let hall = Arc::new(Hall::new(front));
        let routes = TowerToHyperService::new(routes::routes(&hall));
        App { hall, routes }
    }

    /// Serves a model from now on.
    pub fn open(&self, setup: Setup) {
        self.hall.open(setup);
    }

    /// Answers one request. Always answers, and never with a panic.
    pub async fn answer(&self, mut request: Request<Body>) -> Response<Body> {
        let started = Instant::now();
        let at_hand = self.metrics().request();
        let id = RequestId::from_headers(request.headers());
        let line = LogLine::of(&request, &id);
        request.extensions_mut().insert(id.clone());
        let family = Family::of_path(request.uri().path());
        let route = routes::label(request.uri().path());
        let trace = self.begin_trace(&request, route);
        let method = known(request.method());
        let grant = self.hall.front.origins.grant(&request);
        let mut response = match self.admit(&request) {
            Ok(()) => trace.clone().within(self.routed(request)).await,
            Err(refused) => refused.into_response(),
        };
        let refusal = response.extensions_mut().remove::<Refusal>();
        if let Some(Refusal {
            refused,
            family: own,
        }) = &refusal
        {
            response = refused.response(own.unwrap_or(family), &id);
        }
        let refused = refusal.as_ref().map(|refusal| &refusal.refused);
        let headers = response.headers_mut();
        let mut note = |name| headers.insert(HeaderName::from_static(name), id.header());
        note("x-request-id");
        note("x-typesafe-request-id");
        if family == Family::Cloudflare {
            note("cf-ai-req-id");
        }
        if let Some(grant) = grant {
            grant.put(headers);
        }
        let took = started.elapsed();
        drop(at_hand);
        let status = response.status().as_u16();
        self.metrics().replied(route, status, refused, took);
        trace.replied(method, route, status, refused.map(Refused::code));
        line.write(&response, refused, took, trace.id().as_deref());
        response
    }

    /// Begins a trace of a request to anything but what probes and scrapers ask for again and again.
    fn begin_trace(&self, request: &Request<Body>, route: &'static str) -> Trace {
        match &self.hall.front.traces {
            Some(traces) if !routes::is_open(request.uri().path()) => {
                let name = format!("{} {route}", known(request.method()));
                traces.begin(name, request.headers())
            }
            _ => Trace::default(),
        }
    }

    async fn routed(&self, request: Request<Body>) -> Response<Body> {
        match panic::catch(self.routes.call(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(message) => {
                let message = format!("a request panicked: {message}");
                Refused::Defect { message }.into_response()
            }
        }
    }

    /// Lets in whoever has a key, if keys are asked for. A browser that asks beforehand has none to show yet.
    fn admit(&self, request: &Request<Body>) -> Result<(), Refused> {
        match &self.hall.front.keys {
            Some(keys)
                if request.method() != Method::OPTIONS
                    && !routes::is_open(request.uri().path()) =>
            {
                keys.check(request.headers())
            }
            _ => Ok(()),
        }
    }

    /// Tells health checks that the server is about to stop.
    pub(crate) fn close(&self) {
        self.hall.close();
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.hall.front.limits
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.hall.metrics
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("hall", &self.hall)
            .finish_non_exhaustive()
    }
}

/// A method as traces name it: one of a closed set.
fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "POST" => "POST",
        _ => "_OTHER",
    }
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

    fn write(
        &self,
        response: &Response<Body>,
        refused: Option<&Refused>,
        took: Duration,
        trace: Option<&str>,
    ) {
        let LogLine { id, method, path } = self;
        let status = response.status().as_u16();
        let took_ms = took.as_secs_f64() * 1e3;
        match (refused, response.extensions().get::<Decision>()) {
            (Some(Refused::Defect { message }), _) => {
                tracing::error!(%id, trace, method, path, status, took_ms, message, "failed");
            }
            (Some(refused), _) => {
                tracing::info!(%id, trace, method, path, status, took_ms, code = refused.code(), "refused");
            }
            (None, Some(decision)) => tracing::info!(
                %id, trace, method, path, status, took_ms,
                queue_ms = decision.queued.as_secs_f64() * 1e3,
                engine_ms = decision.computed.as_secs_f64() * 1e3,
                input_tokens = decision.input_tokens,
                truncated_tokens = decision.truncated_tokens,
                cached_tokens = decision.cached_tokens,
                "decided"
            ),
            (None, None) => tracing::debug!(%id, trace, method, path, status, took_ms, "answered"),
        }
    }
}
