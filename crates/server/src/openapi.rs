//! The OpenAPI document, made from the types in [`crate::wire`], the notes at the handlers and the table of refusals.
//!
//! What every operation has is added here: the headers of a reply, the refusals by their statuses in the shape of the
//! route's family, keys where the server asks for them, and examples of requests.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use crate::chat;
use crate::error::{Family, Refused};
use crate::hall::{self, Hall};
use crate::routes;
use crate::wire;

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
        chat::routes::chat,
        chat::routes::completions,
        chat::routes::tokenize,
        chat::routes::detokenize,
        routes::list_models,
        routes::show_model,
        routes::ready,
        routes::live,
        routes::metrics,
        openapi,
    ),
    components(schemas(
        wire::AnyErrorReply,
        wire::Envelope,
        wire::ErrorReply,
        wire::InputItem,
        wire::OpenAiErrorReply,
        wire::Question,
    ))
)]
struct Document;

/// The document of a server that asks for keys, and of one that does not.
static WITH_KEYS: LazyLock<String> = LazyLock::new(|| document(true).to_string());
static WITHOUT_KEYS: LazyLock<String> = LazyLock::new(|| document(false).to_string());

#[utoipa::path(
    get,
    path = "/openapi.json",
    operation_id = "openapi",
    description = "This document.",
    responses((status = 200, description = "The document.", body = std::collections::BTreeMap<String, serde_json::Value>))
)]
pub(crate) async fn openapi(State(hall): State<Arc<Hall>>) -> Response<Body> {
    let text: &str = match hall.front.keys {
        Some(_) => &WITH_KEYS,
        None => &WITHOUT_KEYS,
    };
    hall::json(StatusCode::OK, text.to_owned())
}

fn document(keys: bool) -> Value {
    let document = serde_json::to_value(Document::openapi());
    let mut document = document.expect("a document of plain types is JSON");
    let paths = document["paths"].as_object_mut();
    for (path, item) in paths.expect("a document has paths") {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            complete(path, operation, keys);
        }
    }
    let schemas = &mut document["components"]["schemas"];
    for (name, schema) in schemas.as_object_mut().into_iter().flatten() {
        tighten(name, schema);
    }
    if keys {
        document["components"]["securitySchemes"] = json!({
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        });
    }
    document
}

/// Adds to an operation what the notes at its handler leave out.
fn complete(path: &str, operation: &mut Value, keys: bool) {
    let is_open = routes::is_open(path);
    let takes_body = operation.get("requestBody").is_some();
    if keys && !is_open {
        operation["security"] = json!([{"bearer": []}, {"key": []}]);
    }
    if let Some((name, text)) = EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, e)| e) {
        let value: Value = serde_json::from_str(text).expect("the examples are JSON");
        let content = &mut operation["requestBody"]["content"]["application/json"];
        content["examples"] = json!({*name: {"value": value}});
    }
    let responses = operation["responses"].as_object_mut();
    let responses = responses.expect("an operation has responses");
    for (status, refusals) in refusals(path, takes_body, is_open) {
        responses
            .entry(status.to_string())
            .or_insert_with(|| refusal(path, &refusals));
    }
    for (status, response) in responses.iter_mut() {
        let mut headers = json!({
            "x-request-id": header("The request's id, or a new one.", true),
            "x-typesafe-request-id": header("The same.", true),
        });
        if path.starts_with("/client/") {
            headers["cf-ai-req-id"] = header("The same.", true);
        }
        if matches!(status.as_str(), "429" | "503" | "529") && !is_open {
            headers["retry-after"] =
                header("Seconds after which the request may be sent again.", true);
            headers["retry-after-ms"] = header("The same in milliseconds.", true);
        }
        if status == "401" {
            headers["www-authenticate"] = header("How a key is sent.", true);
        }
        if status == "200" && DECISIONS.contains(&path) {
            headers["x-clef-mode"] = header("How the questions were read.", true);
            headers["x-clef-queue-ms"] = header("Milliseconds in line.", true);
            headers["x-clef-engine-ms"] = header("Milliseconds at work.", true);
            headers["x-clef-round-ms"] =
                header("Milliseconds of the longest round with rows of it.", true);
            headers["x-clef-cached-tokens"] =
                header("Tokens that came from the state cache.", true);
            headers["x-clef-truncated-tokens"] = header("Tokens cut from the state's end.", false);
            headers["x-descant-receipt"] = header("The receipt that was asked for.", false);
        }
        response["headers"] = headers;
        // What a schema would say of a stream, of the whole or of an event, has no agreed meaning.
        if let Some(stream) = response["content"].get_mut("text/event-stream") {
            *stream = json!({});
        }
    }
}

fn header(description: &str, required: bool) -> Value {
    json!({"description": description, "required": required, "schema": {"type": "string"}})
}

/// The refusals that an operation's clients may meet, by status.
fn refusals(path: &str, takes_body: bool, is_open: bool) -> BTreeMap<u16, Vec<Refused>> {
    let families: &[Family] = match Family::of_path(path) {
        Family::OpenAi if path.ends_with("/decisions") => &[Family::OpenAi, Family::SystemOne],
        Family::OpenAi => &[Family::OpenAi],
        Family::SystemOne => &[Family::SystemOne],
        Family::Cloudflare => &[Family::Cloudflare],
    };
    let mut found: BTreeMap<u16, Vec<Refused>> = BTreeMap::new();
    for refused in Refused::kinds() {
        let is_met = match refused {
            Refused::Method { .. } | Refused::Route { .. } => false,
            Refused::Defect { .. } => true,
            Refused::Loading { .. } | Refused::Unauthorised { .. } => !is_open,
            Refused::UnknownModelPath { .. } => path.contains('{'),
            Refused::NoChat { .. } => takes_body && !DECISIONS.contains(&path),
            Refused::NoHead { .. } => DECISIONS.contains(&path),
            _ => takes_body,
        };
        for family in families.iter().filter(|_| is_met) {
            let refusals = found.entry(refused.status(*family)).or_default();
            if !refusals.contains(&refused) {
                refusals.push(refused.clone());
            }
        }
    }
    found
}

fn refusal(path: &str, refusals: &[Refused]) -> Value {
    let codes: Vec<&str> = refusals.iter().map(Refused::code).collect();
    let shape = match Family::of_path(path) {
        Family::Cloudflare => "Envelope",
        Family::OpenAi if path.ends_with("/decisions") => "AnyErrorReply",
        Family::OpenAi => "OpenAiErrorReply",
        Family::SystemOne => "ErrorReply",
    };
    let shape = format!("#/components/schemas/{shape}");
    json!({
        "description": format!("Refused: {}.", codes.join(", ")),
        "content": {"application/json": {"schema": {"$ref": shape}}},
    })
}

/// What the types cannot say of themselves.
fn tighten(name: &str, schema: &mut Value) {
    // A text, or parts of which there is at least one.
    if name.starts_with("PartsOf") {
        let lists = schema["oneOf"].as_array_mut().into_iter().flatten();
        for list in lists.filter(|shape| shape["type"] == "array") {
            list["minItems"] = json!(1);
        }
    }
    // A body may have what two shapes ask for; the first that fits is read.
    if matches!(
        name,
        "AnyDecisionsRequest" | "InputItem" | "TokenizeRequest"
    ) {
        let shapes = schema["oneOf"].take();
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("oneOf");
            schema.insert("anyOf".to_owned(), shapes);
        }
    }
}

/// Operations that decide.
const DECISIONS: [&str; 3] = [
    "/client/v4/accounts/{account}/ai/run/{model}",
    "/v1/decisions",
    "/v1/systemone",
];

/// Examples of requests: path, name, body.
const EXAMPLES: [(&str, (&str, &str)); 7] = [
    (
        "/client/v4/accounts/{account}/ai/run/{model}",
        ("a ticket", TICKET),
    ),
    ("/v1/systemone", ("a ticket", TICKET)),
    (
        "/v1/decisions",
        (
            "a message",
            r#"{"input": [{"role": "user", "content": "The export button does nothing."}], "questions": [
                {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
                {"type": "choice", "name": "team", "instructions": "Who takes it?", "choices": [
                    {"value": "billing", "description": "Invoices"}, {"value": "platform"}]}]}"#,
        ),
    ),
    (
        "/v1/chat/completions",
        (
            "a greeting",
            r#"{"messages": [{"role": "user", "content": "Good morning!"}], "max_tokens": 16}"#,
        ),
    ),
    (
        "/v1/completions",
        (
            "a beginning",
            r#"{"prompt": "Once upon a time", "max_tokens": 16}"#,
        ),
    ),
    ("/tokenize", ("a text", r#"{"prompt": "Good morning!"}"#)),
    ("/detokenize", ("some tokens", r#"{"tokens": [1, 2, 3]}"#)),
];

const TICKET: &str = r#"{"state": "The export button does nothing.", "questions": {
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "team": {"type": "choice", "instructions": "Who takes it?", "criteria": {"billing": "Invoices", "platform": null}},
    "severity": {"type": "score", "instructions": "How bad is it?", "criteria": ["cosmetic", "annoying", "blocking"]}}}"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` of a document.
    fn references<'v>(value: &'v Value, found: &mut Vec<&'v str>) {
        match value {
            Value::Object(object) => {
                found.extend(object.get("$ref").and_then(Value::as_str));
                object.values().for_each(|inner| references(inner, found));
            }
            Value::Array(array) => array.iter().for_each(|inner| references(inner, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document(true);
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50, "{}", found.len());
        for reference in found {
            let place = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(place).is_some(), "{reference}");
        }
    }

    #[test]
    fn every_example_has_its_operation_and_its_type() {
        let document = document(false);
        for (path, (name, text)) in EXAMPLES {
            let escaped = path.replace('/', "~1");
            let place = format!(
                "/paths/{escaped}/post/requestBody/content/application~1json/examples/{name}/value"
            );
            let example = document
                .pointer(&place)
                .unwrap_or_else(|| panic!("{place}"));
            assert_eq!(*example, serde_json::from_str::<Value>(text).unwrap());
        }
        let _: wire::SystemOneRequest = serde_json::from_str(TICKET).unwrap();
    }

    #[test]
    fn refusals_are_told_by_status_in_the_shape_of_the_family() {
        let document = document(true);
        for (path, method, status, wanted) in [
            ("/v1/systemone", "post", "529", "ErrorReply"),
            ("/v1/systemone", "post", "422", "ErrorReply"),
            ("/v1/decisions", "post", "404", "AnyErrorReply"),
            ("/v1/chat/completions", "post", "503", "OpenAiErrorReply"),
            (
                "/client/v4/accounts/{account}/ai/run/{model}",
                "post",
                "429",
                "Envelope",
            ),
            ("/v1/models", "get", "401", "ErrorReply"),
        ] {
            let responses = &document["paths"][path][method]["responses"];
            let shape = &responses[status]["content"]["application/json"]["schema"]["$ref"];
            assert_eq!(
                shape,
                &format!("#/components/schemas/{wanted}"),
                "{path} {status}"
            );
            assert_eq!(
                responses[status]["headers"]["x-request-id"]["required"],
                true
            );
        }
        assert!(
            document["paths"]["/v1/models"]["get"]["responses"]
                .get("413")
                .is_none()
        );
        assert!(
            document["paths"]["/livez"]["get"]["responses"]
                .get("401")
                .is_none()
        );
    }

    #[test]
    fn keys_are_in_the_document_where_they_are_asked_for() {
        let security = |keys| document(keys)["paths"]["/v1/systemone"]["post"]["security"].clone();
        assert_eq!(security(true), json!([{"bearer": []}, {"key": []}]));
        assert_eq!(security(false), Value::Null);
        assert_eq!(
            document(true)["paths"]["/livez"]["get"]["security"],
            Value::Null
        );
    }
}
