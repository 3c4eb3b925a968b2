//! The OpenAPI document, made from the types in [`crate::wire`] and the notes at the handlers.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use utoipa::OpenApi;

use crate::hall::json;
use crate::routes;

/// What is served on which path.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "descant",
        description = "Typed questions about a state, answered with a probability for every allowed option.",
    ),
    paths(
        routes::systemone,
        routes::decide,
        routes::workers_ai,
        routes::list_models,
        routes::show_model,
        routes::ready,
        routes::live,
        routes::metrics,
    )
)]
struct Document;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let document = Document::openapi();
    document
        .to_json()
        .expect("a document of plain types is JSON")
});

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> Response<Body> {
    json(StatusCode::OK, TEXT.clone())
}
