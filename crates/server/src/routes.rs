//! The routes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use axum::routing::{MethodRouter, get, post};
use descant_decision::Value;
use descant_decision::json::{Object, to_json};

use crate::chat;
use crate::decisions;
use crate::error::{Refusal, Refused};
use crate::hall::{self, Hall, json};
use crate::models;
use crate::openapi;
use crate::page;
use crate::systemone::parse;
use crate::wire;
use crate::workers_ai;

/// Paths on which System One is spoken: its own, Fireworks's, OpenRouter's, Venice's.
const SYSTEM_ONE: [&str; 4] = [
    "/v1/systemone",
    "/inference/v1/systemone",
    "/api/alpha/decisions",
    "/api/v1/decisions",
];
/// Paths on which decisions of any shape are taken.
const DECISIONS: [&str; 2] = ["/v1/decisions", "/inference/v1/decisions"];
/// Whether requests would be taken up, under all names in use.
const READY: [&str; 6] = [
    "/health",
    "/health/ready",
    "/healthz",
    "/ping",
    "/ready",
    "/readyz",
];
/// Whether the process is alive, be the model loaded or not.
const LIVE: [&str; 2] = ["/health/live", "/livez"];
const METRICS: &str = "/metrics";
const OPENAPI: &str = "/openapi.json";

/// The router.
pub(crate) fn routes(hall: &Arc<Hall>) -> Router {
    let asked = |method| methods(method, "OPTIONS, POST");
    let read = |method| methods(method, "GET, HEAD, OPTIONS");
    let mut router = Router::new()
        .route("/v1/models", read(get(list_models)))
        .route("/v1/models/{*name}", read(get(show_model)))
        .route(METRICS, read(get(metrics)))
        .route(OPENAPI, read(get(openapi::openapi)))
        .route(
            "/client/v4/accounts/{account}/ai/run/{*model}",
            asked(post(workers_ai)),
        );
    for path in SYSTEM_ONE {
        router = router.route(path, asked(post(systemone)));
    }
    for path in DECISIONS {
        router = router.route(path, asked(post(decide)));
    }
    for path in READY {
        router = router.route(path, read(get(ready)));
    }
    for path in LIVE {
        router = router.route(path, read(get(live)));
    }
    for file in page::FILES {
        router = router.route(file.path, read(get(move || async move { file.response() })));
    }
    router = router.merge(chat::routes());
    router.fallback(nothing_here).with_state(Arc::clone(hall))
}

/// Whether a path needs no key: what probes and scrapers ask, and the page, which holds nothing of anybody's.
pub(crate) fn is_open(path: &str) -> bool {
    path == METRICS
        || path == OPENAPI
        || READY.contains(&path)
        || LIVE.contains(&path)
        || page::FILES.iter().any(|file| file.path == path)
}

/// The name of a path in the figures: one of a closed set.
pub(crate) fn label(path: &str) -> &'static str {
    let known = SYSTEM_ONE
        .iter()
        .chain(&DECISIONS)
        .chain(&READY)
        .chain(&LIVE);
    let known = known.chain(&[
        METRICS,
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
        "/v1/tokenize",
        "/v1/detokenize",
        OPENAPI,
    ]);
    match known.copied().find(|known| *known == path) {
        Some(known) => known,
        None if path.starts_with("/client/v4/") => "/client/v4",
        None if path.starts_with("/v1/models/") => "/v1/models/",
        None if page::FILES.iter().any(|file| file.path == path) => "/",
        None => "other",
    }
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

#[utoipa::path(
    get,
    path = "/health",
    operation_id = "health",
    description = "Whether requests are taken up.",
    responses(
        (status = 200, description = "They are.", body = wire::HealthReply),
        (status = 503, description = "They are not.", body = wire::HealthReply),
    )
)]
pub(crate) async fn ready(State(hall): State<Arc<Hall>>) -> Response<Body> {
    let body = Object::new();
    let (status, body) = match hall.state() {
        hall::State::Closing => (503, body.with("status", "closing")),
        hall::State::Failing => (503, body.with("status", "failing")),
        hall::State::Loading(share) => (
            503,
            body.with("status", "loading")
                .with("loaded", Value::float((share * 1000.0).floor() / 1000.0)),
        ),
        hall::State::Ready => (200, body.with("status", "ok")),
        hall::State::Stopped => (503, body.with("status", "stopped")),
    };
    let status = StatusCode::from_u16(status).expect("both are status codes");
    json(status, to_json(&body.into()))
}

/// A process whose engine has stopped cannot come back by itself; all else can.
#[utoipa::path(
    get,
    path = "/livez",
    operation_id = "livez",
    description = "Whether the process can still come to take up requests.",
    responses(
        (status = 200, description = "It can.", body = wire::HealthReply),
        (status = 503, description = "It cannot.", body = wire::HealthReply),
    )
)]
pub(crate) async fn live(State(hall): State<Arc<Hall>>) -> Response<Body> {
    let (status, word) = match hall.state() {
        hall::State::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "stopped"),
        _ => (StatusCode::OK, "ok"),
    };
    json(status, to_json(&Object::new().with("status", word).into()))
}

#[utoipa::path(
    get,
    path = "/metrics",
    operation_id = "metrics",
    description = "Figures for Prometheus.",
    responses((status = 200, description = "The figures.", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(hall): State<Arc<Hall>>) -> Response<Body> {
    let mut response = Response::new(Body::from(hall.figures()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[utoipa::path(
    get,
    path = "/v1/models",
    operation_id = "models",
    description = "What is served.",
    responses(
        (status = 200, description = "The names of the model.", body = wire::ModelList),
    )
)]
pub(crate) async fn list_models(State(hall): State<Arc<Hall>>) -> Result<Response<Body>, Refused> {
    let listed = models::list(hall.setup()?, &hall.front.limits);
    Ok(json(StatusCode::OK, to_json(&listed)))
}

#[utoipa::path(
    get,
    path = "/v1/models/{name}",
    operation_id = "model",
    description = "One name of the model.",
    params(("name" = String, Path, description = "The name; it may hold slashes.", example = "clef")),
    responses(
        (status = 200, description = "The model.", body = wire::ModelEntry),
    )
)]
pub(crate) async fn show_model(
    State(hall): State<Arc<Hall>>,
    Path(name): Path<String>,
) -> Result<Response<Body>, Refused> {
    let setup = hall.setup()?;
    match setup.desk.names().asked(Some(&name)) {
        Some(_) => {
            let entry = models::entry(&name, setup, &hall.front.limits);
            Ok(json(StatusCode::OK, to_json(&entry.into())))
        }
        None => Err(Refused::UnknownModelPath { name }),
    }
}

#[utoipa::path(
    post,
    path = "/v1/systemone",
    operation_id = "systemone",
    description = "A decision.",
    request_body = wire::SystemOneRequest,
    responses(
        (status = 200, description = "The answers.", body = wire::SystemOneReply),
    )
)]
pub(crate) async fn systemone(
    State(hall): State<Arc<Hall>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    let time = hall.time(&headers)?;
    hall.decider()?;
    let read = hall.read(&headers, body, |setup, form| {
        let body = parse(form.request)?;
        Ok(setup.desk.read_value(&body, &form.parts)?)
    });
    let asking = read.await?;
    let outcome = hall.decide(&asking, &headers, time).await?;
    let reply = asking.reply(&outcome.logits)?;
    Ok(hall.dispatch(&asking, &outcome, &reply)?)
}

#[utoipa::path(
    post,
    path = "/v1/decisions",
    operation_id = "decisions",
    description = "A decision in OpenAI's shape. Bodies of SGLang's and System One's shape are taken, too.",
    request_body = wire::AnyDecisionsRequest,
    responses(
        (status = 200, description = "The answers.", body = wire::AnyDecisionsReply),
    )
)]
pub(crate) async fn decide(
    State(hall): State<Arc<Hall>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    let time = hall.time(&headers)?;
    hall.decider()?;
    let read = hall.read(&headers, body, |setup, form| {
        let body = parse(form.request)?;
        decisions::read(&setup.desk, &body, &form.parts)
    });
    let deciding = read.await?;
    let told = |refused: Refused| refused.told_to(deciding.family());
    let asking = &deciding.asking;
    let outcome = hall.decide(asking, &headers, time).await.map_err(told)?;
    let answers = asking.answers(&outcome.logits).map_err(told)?;
    let reply = deciding.reply(&answers, outcome.cached_rows);
    hall.dispatch(asking, &outcome, &reply).map_err(told)
}

#[utoipa::path(
    post,
    path = "/client/v4/accounts/{account}/ai/run/{model}",
    operation_id = "workers_ai",
    description = "A decision in Workers AI's envelope.",
    params(
        ("account" = String, Path, description = "Any account.", example = "local"),
        ("model" = String, Path, description = "A name of the model, such as @cf/cloudflare/clef-flash.", example = "clef"),
    ),
    request_body = wire::SystemOneRequest,
    responses(
        (status = 200, description = "The answers.", body = wire::Envelope),
    )
)]
pub(crate) async fn workers_ai(
    State(hall): State<Arc<Hall>>,
    Path((_account, model)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    if hall.setup()?.desk.names().asked(Some(&model)).is_none() {
        return Err(Refused::UnknownModelPath { name: model }.into());
    }
    let time = hall.time(&headers)?;
    hall.decider()?;
    let read = hall.read(&headers, body, |setup, form| {
        let body = parse(form.request)?;
        Ok(setup.desk.read_value(&body, &form.parts)?)
    });
    let asking = read.await?;
    let outcome = hall.decide(&asking, &headers, time).await?;
    let reply = workers_ai::envelope(asking.reply(&outcome.logits)?);
    Ok(hall.dispatch(&asking, &outcome, &reply)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_a_closed_set() {
        for (path, wanted) in [
            ("/v1/systemone", "/v1/systemone"),
            ("/v1/models/a/b", "/v1/models/"),
            ("/client/v4/accounts/x/ai/run/y", "/client/v4"),
            ("/page.js", "/"),
            ("/v1/systemone/", "other"),
            ("/etc/passwd", "other"),
        ] {
            assert_eq!(label(path), wanted, "{path}");
        }
    }

    #[test]
    fn only_probes_figures_and_the_page_are_open() {
        for path in ["/", "/page.css", "/health", "/livez", "/metrics"] {
            assert!(is_open(path), "{path}");
        }
        for path in [
            "/v1/systemone",
            "/v1/models",
            "/v1/decisions",
            "/metrics/",
            "/health/x",
            "",
        ] {
            assert!(!is_open(path), "{path}");
        }
    }
}
