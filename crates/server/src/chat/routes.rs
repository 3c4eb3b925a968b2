//! The routes of OpenAI's family.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use descant_decision::Value;
use descant_decision::json::to_json;

use crate::chat::desk::{ChatDesk, Reading, refused};
use crate::chat::form::{Form, Letterhead};
use crate::chat::generation::{Events, Generation};
use crate::chat::journal::Journal;
use crate::chat::teller::Teller;
use crate::chat::tokens;
use crate::error::{Refusal, Refused};
use crate::hall::{Hall, Setup, json};
use crate::names::Names;
use crate::request_id::RequestId;
use crate::routes::methods;
use crate::wire;

/// Reads a body of one route.
type Read<T> = fn(&ChatDesk, &Names, &[u8]) -> Result<T, Refused>;

pub(crate) fn routes() -> Router<Arc<Hall>> {
    let asked = |method| methods(method, "OPTIONS, POST");
    let mut router = Router::new()
        .route("/v1/chat/completions", asked(post(chat)))
        .route("/v1/completions", asked(post(completions)));
    for path in ["/tokenize", "/v1/tokenize"] {
        router = router.route(path, asked(post(tokenize)));
    }
    for path in ["/detokenize", "/v1/detokenize"] {
        router = router.route(path, asked(post(detokenize)));
    }
    router
}

#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    operation_id = "chat",
    description = "Continues a conversation.",
    request_body = wire::ChatRequest,
    responses((status = 200, description = "What the model said, whole or as server-sent events.", content(
        (wire::ChatReply = "application/json"),
        (String = "text/event-stream"),
    )))
)]
pub(crate) async fn chat(
    State(hall): State<Arc<Hall>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    generate(hall, id, &headers, body, ChatDesk::read_chat).await
}

#[utoipa::path(
    post,
    path = "/v1/completions",
    operation_id = "completions",
    description = "Continues a text.",
    request_body = wire::CompletionRequest,
    responses((status = 200, description = "How it goes on, whole or as server-sent events.", content(
        (wire::CompletionReply = "application/json"),
        (String = "text/event-stream"),
    )))
)]
pub(crate) async fn completions(
    State(hall): State<Arc<Hall>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    generate(hall, id, &headers, body, ChatDesk::read_completion).await
}

#[utoipa::path(
    post,
    path = "/tokenize",
    operation_id = "tokenize",
    description = "Makes tokens of a text or a conversation.",
    request_body = wire::TokenizeRequest,
    responses((status = 200, description = "The tokens.", body = wire::TokenizeReply))
)]
pub(crate) async fn tokenize(
    State(hall): State<Arc<Hall>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    count(&hall, &headers, body, tokens::tokenize).await
}

#[utoipa::path(
    post,
    path = "/detokenize",
    operation_id = "detokenize",
    description = "Makes a text of tokens.",
    request_body = wire::DetokenizeRequest,
    responses((status = 200, description = "The text.", body = wire::DetokenizeReply))
)]
pub(crate) async fn detokenize(
    State(hall): State<Arc<Hall>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response<Body>, Refusal> {
    count(&hall, &headers, body, tokens::detokenize).await
}

async fn generate(
    hall: Arc<Hall>,
    id: RequestId,
    headers: &HeaderMap,
    body: Body,
    read: Read<Reading>,
) -> Result<Response<Body>, Refusal> {
    let time = hall.time(headers)?;
    let reading = read_body(&hall, headers, body, read).await?;
    let setup = hall.setup()?;
    let desk = chat_desk(setup)?;
    let Reading {
        form,
        model,
        prompt,
        terms,
        constraint,
    } = reading;
    let letterhead = Letterhead {
        form,
        id: reply_id(form),
        created: now(),
        model,
        vocabulary: desk.vocabulary(),
        top: terms.sampling.logprobs,
        tells_usage: terms.streams && terms.tells_usage,
    };
    let options = desk.options(&terms, constraint, time.job()?);
    let journal = Journal::new(id, hall.metrics.clone(), prompt.len());
    let engine = &setup.engine;
    // Whoever drops the stream, because the client has left, cancels the job.
    let stream = engine.generate(prompt, options).map_err(refused)?;
    let teller = Teller::new(
        desk.vocabulary(),
        terms.stops,
        terms.tools,
        terms.sampling.logprobs.is_some(),
    );
    let mut generation = Generation::new(time.watch(engine, stream), teller, journal);
    if !terms.streams {
        let reply = generation.whole(&letterhead).await?;
        return Ok(json(StatusCode::OK, to_json(&reply)));
    }
    let first = generation.next().await?;
    Ok(event_stream(Events::new(generation, letterhead, &first)))
}

async fn count(
    hall: &Arc<Hall>,
    headers: &HeaderMap,
    body: Body,
    read: Read<Value>,
) -> Result<Response<Body>, Refusal> {
    let reply = read_body(hall, headers, body, read).await?;
    Ok(json(StatusCode::OK, to_json(&reply)))
}

async fn read_body<T: Send + 'static>(
    hall: &Arc<Hall>,
    headers: &HeaderMap,
    body: Body,
    read: Read<T>,
) -> Result<T, Refusal> {
    chat_desk(hall.setup()?)?;
    let read = hall.read(headers, body, move |setup, form| {
        Ok(read(chat_desk(setup)?, setup.desk.names(), form.request)?)
    });
    read.await
}

fn chat_desk(setup: &Setup) -> Result<&ChatDesk, Refused> {
    let desk = setup.chat.as_ref();
    desk.map_err(|missing| Refused::NoChat {
        missing: missing.clone(),
    })
}

fn event_stream(events: Events) -> Response<Body> {
    let mut response = Response::new(Body::new(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// A name for a reply that no other reply has.
fn reply_id(form: Form) -> String {
    let fresh = RequestId::fresh().to_string();
    let digits = fresh.trim_start_matches("req_");
    match form {
        Form::Chat => format!("chatcmpl-{digits}"),
        Form::Completion => format!("cmpl-{digits}"),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
