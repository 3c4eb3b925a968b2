//! Every way a request is refused, and how that is spoken: one table, the only place that knows status codes.
//!
//! A body carries both shapes that clients of System One read: `detail` (a list of faults, or an object with an
//! `error_type`) and `error` (an object with `message`, `type`, `param`, `code`). A client's mistake is never a 5xx,
//! because every SDK of this family sends a 5xx again.

use std::fmt;

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use descant_decision::json::{Object, Value, to_json};
use descant_decision::{Fault, Step, printable};
use descant_engine::EngineError;

use crate::request_id::RequestId;

/// Milliseconds after which a client may ask again when it was refused for want of room.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// What a client is told while this server stops: by then another one may have taken its place.
const CLOSING_RETRY_MS: u64 = 1000;

/// What a client is told whose request took longer than a request may.
const DEADLINE_RETRY_MS: u64 = 1000;

/// Why a request gets no answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Refused {
    /// The body is encoded in a way that this server does not decode.
    BodyEncoding {
        /// The `content-encoding` that was sent.
        found: String,
    },
    /// The body stopped before its end.
    BodyIncomplete,
    /// The body did not arrive in time.
    BodySlow {
        /// How long the server waited.
        waited_s: u64,
    },
    /// The body is longer than the server reads, as sent or once decoded.
    BodyTooBig {
        /// The longest body it reads.
        allowed_bytes: usize,
    },
    /// The body cannot be decoded with the encoding it names.
    BodyUndecodable {
        /// The `content-encoding` that was sent.
        encoding: &'static str,
    },
    /// The line is full, or a place in it could not be had in time.
    Busy {
        /// When another try is likely to be taken, in milliseconds.
        retry_after_ms: u64,
    },
    /// The server is about to stop.
    Closing,
    /// The request's time is up: the client's own limit, or the server's.
    Deadline,
    /// A fault of ours or of the device. The text goes to the log, not to the client.
    Defect {
        /// What failed.
        message: String,
    },
    /// The request is not a record; all its faults.
    Faults(Vec<Fault>),
    /// A header's value cannot be used.
    Header {
        /// Its name.
        name: &'static str,
        /// What it may be.
        wanted: &'static str,
    },
    /// The content type is one that this server does not read.
    MediaType {
        /// The type that was sent.
        found: String,
    },
    /// The path exists, the method does not.
    Method {
        /// The methods that do, as in an `allow` header.
        allowed: &'static str,
    },
    /// The server holds no conversations.
    NoChat {
        /// Why not.
        missing: String,
    },
    /// The served release has no joint schema head.
    NoHead {
        /// What is missing, as the release says it.
        missing: String,
    },
    /// No such path.
    Route {
        /// The path that was asked for.
        path: String,
    },
    /// The questions alone have more tokens than the server takes.
    SchemaTooLong {
        /// Tokens of the prompt without its state.
        needed: usize,
        /// The most that are allowed.
        allowed: usize,
    },
    /// The prompt has more tokens than the server takes.
    TooLong {
        /// Tokens of the whole prompt.
        needed: usize,
        /// The most that are allowed.
        allowed: usize,
    },
    /// No model of that name is served, in a body.
    UnknownModel {
        /// The name that was asked for.
        name: String,
    },
    /// No model of that name is served, in a path.
    UnknownModelPath {
        /// The name that was asked for.
        name: String,
    },
}

/// A row of the table: what a refusal is called.
struct Row {
    status: u16,
    /// `detail.error_type`, as TypeSafe names it.
    error_type: &'static str,
    /// `error.type`, as OpenAI names it.
    kind: &'static str,
    code: &'static str,
}

impl Refused {
    /// The table of `POST /v1/systemone` and of every route that has no family of its own.
    fn row(&self) -> Row {
        let caller = |status, error_type, code| Row {
            status,
            error_type,
            kind: "invalid_request_error",
            code,
        };
        let server = |status, error_type, code| Row {
            status,
            error_type,
            kind: "server_error",
            code,
        };
        match self {
            Refused::BodyEncoding { .. } => caller(415, "api_usage_error", "unsupported_encoding"),
            Refused::BodyIncomplete => caller(400, "api_usage_error", "body_incomplete"),
            Refused::BodySlow { .. } => caller(408, "api_usage_error", "body_timeout"),
            Refused::BodyTooBig { .. } => caller(413, "request_too_large", "request_too_large"),
            Refused::BodyUndecodable { .. } => caller(400, "api_usage_error", "body_undecodable"),
            Refused::Busy { .. } => server(529, "overloaded_error", "overloaded"),
            Refused::Closing => server(503, "unavailable_error", "closing"),
            Refused::Deadline => server(503, "unavailable_error", "deadline"),
            Refused::Defect { .. } => server(500, "internal_error", "internal"),
            Refused::Faults(_) => caller(422, "validation_error", "validation_error"),
            Refused::Header { .. } => caller(400, "api_usage_error", "invalid_header"),
            Refused::MediaType { .. } => caller(415, "api_usage_error", "unsupported_media_type"),
            Refused::Method { .. } => caller(405, "api_usage_error", "method_not_allowed"),
            Refused::NoChat { .. } | Refused::NoHead { .. } => {
                caller(400, "api_usage_error", "model_not_supported")
            }
            Refused::Route { .. } => caller(404, "api_usage_error", "not_found"),
            Refused::SchemaTooLong { .. } | Refused::TooLong { .. } => {
                caller(413, "max_tokens_exceeded", "max_tokens_exceeded")
            }
            Refused::UnknownModel { .. } => caller(400, "api_usage_error", "model_not_found"),
            Refused::UnknownModelPath { .. } => caller(404, "api_usage_error", "model_not_found"),
        }
    }

    /// The `error` object: what `--jsonl` prints for a line, and half of a reply over HTTP.
    pub fn error_object(&self) -> Object {
        let row = self.row();
        Object::new()
            .with("message", self.to_string())
            .with("type", row.kind)
            .with("param", self.param())
            .with("code", row.code)
    }

    /// The field that is at fault, where one is.
    fn param(&self) -> Option<String> {
        match self {
            Refused::Faults(faults) => faults.first().map(|fault| path(&fault.loc)),
            Refused::UnknownModel { .. } => Some("model".to_owned()),
            _ => None,
        }
    }

    /// `detail` as TypeSafe has it: the faults one by one, or what kind of refusal it is.
    fn detail(&self) -> Value {
        match self {
            Refused::Faults(faults) => faults.iter().map(fault_object).collect(),
            _ => Object::new()
                .with("error_type", self.row().error_type)
                .with("message", self.to_string())
                .into(),
        }
    }

    /// The refusal as a reply.
    pub(crate) fn response(&self, id: &RequestId) -> Response<Body> {
        let row = self.row();
        let mut error = self.error_object();
        if let Refused::Defect { .. } = self {
            error.insert("message", format!("{self}; request {id}"));
        }
        let body = Object::new()
            .with("detail", self.detail())
            .with("error", error);
        let mut response = Response::new(Body::from(to_json(&body.into())));
        *response.status_mut() =
            StatusCode::from_u16(row.status).expect("the table holds status codes");
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(ms) = self.retry_after_ms() {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(ms));
        }
        if let Refused::Method { allowed } = self {
            headers.insert(ALLOW, HeaderValue::from_static(allowed));
        }
        response
    }

    /// When the same request may be answered, in milliseconds; `None` if it never will.
    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Refused::Busy { retry_after_ms } => Some(*retry_after_ms),
            Refused::Closing => Some(CLOSING_RETRY_MS),
            Refused::Deadline => Some(DEADLINE_RETRY_MS),
            _ => None,
        }
    }

    /// One word for the log.
    pub(crate) fn code(&self) -> &'static str {
        self.row().code
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::BodyEncoding { found } => write!(
                f,
                "content-encoding {} is not decoded; use identity, gzip, deflate or zstd",
                printable(found)
            ),
            Refused::BodyIncomplete => f.write_str("the body stopped before its end"),
            Refused::BodySlow { waited_s } => {
                write!(f, "the body did not arrive within {waited_s} s")
            }
            Refused::BodyTooBig { allowed_bytes } => {
                write!(
                    f,
                    "the body has more than the {allowed_bytes} bytes that are read"
                )
            }
            Refused::BodyUndecodable { encoding } => {
                write!(f, "the body is not {encoding}, as content-encoding says")
            }
            Refused::Busy { retry_after_ms } => {
                write!(
                    f,
                    "too many requests are at hand; ask again in {retry_after_ms} ms"
                )
            }
            Refused::Closing => f.write_str("the server is about to stop"),
            Refused::Deadline => f.write_str("the request's time limit passed"),
            Refused::Defect { .. } => f.write_str("the server failed to compute an answer"),
            Refused::Faults(faults) => list(f, faults),
            Refused::Header { name, wanted } => write!(f, "the header {name} must be {wanted}"),
            Refused::MediaType { found } => {
                write!(
                    f,
                    "content-type {} is not read; send JSON",
                    printable(found)
                )
            }
            Refused::Method { allowed } => {
                write!(f, "this path does not have the method; it has {allowed}")
            }
            Refused::NoChat { missing } => {
                write!(
                    f,
                    "this server holds no conversations, only decisions (POST /v1/systemone): {missing}"
                )
            }
            Refused::NoHead { missing } => {
                write!(f, "the model answers no decisions: {missing}")
            }
            Refused::Route { path } => write!(f, "there is nothing at {}", printable(path)),
            Refused::SchemaTooLong { needed, allowed } => write!(
                f,
                "the questions need {needed} tokens without the state, at most {allowed} are allowed; ask fewer at a time"
            ),
            Refused::TooLong { needed, allowed } => {
                write!(
                    f,
                    "the prompt has {needed} tokens, at most {allowed} are allowed"
                )
            }
            Refused::UnknownModel { name } | Refused::UnknownModelPath { name } => {
                write!(f, "Unknown model: {}", printable(name))
            }
        }
    }
}

impl std::error::Error for Refused {}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Refused {
        match error {
            EngineError::Busy { retry_after_ms } => Refused::Busy { retry_after_ms },
            EngineError::Closing => Refused::Closing,
            EngineError::Deadline => Refused::Deadline,
            EngineError::NoHead => Refused::NoHead {
                missing: error.to_string(),
            },
            EngineError::TooLong { needed, allowed } => Refused::TooLong { needed, allowed },
            // Whatever else the engine can say, no System One body brings it about.
            other => Refused::Defect {
                message: other.to_string(),
            },
        }
    }
}

/// Handlers refuse by returning the value; [`crate::app::App::answer`] makes the reply, which names the request.
impl IntoResponse for Refused {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(self);
        response
    }
}

/// The faults that a message spells out; `detail` has them all.
const FAULTS_SPELLED: usize = 5;

fn list(f: &mut fmt::Formatter<'_>, faults: &[Fault]) -> fmt::Result {
    for (position, fault) in faults.iter().take(FAULTS_SPELLED).enumerate() {
        let joint = if position > 0 { "; " } else { "" };
        write!(f, "{joint}{fault}")?;
    }
    match faults.len().saturating_sub(FAULTS_SPELLED) {
        0 => Ok(()),
        more => write!(f, "; and {more} more"),
    }
}

/// An entry of `detail`, in FastAPI's shape.
fn fault_object(fault: &Fault) -> Object {
    let loc = std::iter::once(Value::from("body")).chain(fault.loc.iter().map(Value::from));
    Object::new()
        .with("loc", loc.collect::<Value>())
        .with("msg", fault.msg.as_str())
        .with("type", fault.kind.name())
}

/// A path with dots, for `param`.
fn path(loc: &[Step]) -> String {
    let step = |step: &Step| match step {
        Step::Key(key) => printable(key),
        Step::Index(index) => index.to_string(),
    };
    loc.iter().map(step).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use descant_decision::FaultKind;

    use super::*;

    fn faults(count: usize) -> Vec<Fault> {
        let fault = |index| Fault {
            loc: vec![
                Step::key("questions"),
                Step::key("a\u{1b}"),
                Step::Index(index),
            ],
            kind: FaultKind::UnionType,
            msg: "wanted text".to_owned(),
        };
        (0..count).map(fault).collect()
    }

    /// Every refusal with the status, `error_type`, `error.type` and `error.code` of the published contract.
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn table() -> Vec<(Refused, u16, &'static str, &'static str, &'static str)> {
        const CALLER: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        const USAGE: &str = "api_usage_error";
        let name = || "x".to_owned();
        vec![
            (
                Refused::BodyEncoding { found: name() },
                415,
                USAGE,
                CALLER,
                "unsupported_encoding",
            ),
            (
                Refused::BodyIncomplete,
                400,
                USAGE,
                CALLER,
                "body_incomplete",
            ),
            (
                Refused::BodySlow { waited_s: 9 },
                408,
                USAGE,
                CALLER,
                "body_timeout",
            ),
            (
                Refused::BodyTooBig { allowed_bytes: 9 },
                413,
                "request_too_large",
                CALLER,
                "request_too_large",
            ),
            (
                Refused::BodyUndecodable { encoding: "gzip" },
                400,
                USAGE,
                CALLER,
                "body_undecodable",
            ),
            (
                Refused::Busy {
                    retry_after_ms: 1500,
                },
                529,
                "overloaded_error",
                SERVER,
                "overloaded",
            ),
            (
                Refused::Closing,
                503,
                "unavailable_error",
                SERVER,
                "closing",
            ),
            (
                Refused::Deadline,
                503,
                "unavailable_error",
                SERVER,
                "deadline",
            ),
            (
                Refused::Defect { message: name() },
                500,
                "internal_error",
                SERVER,
                "internal",
            ),
            (
                Refused::Faults(faults(1)),
                422,
                "validation_error",
                CALLER,
                "validation_error",
            ),
            (
                Refused::Header {
                    name: "x",
                    wanted: "a number",
                },
                400,
                USAGE,
                CALLER,
                "invalid_header",
            ),
            (
                Refused::MediaType { found: name() },
                415,
                USAGE,
                CALLER,
                "unsupported_media_type",
            ),
            (
                Refused::Method { allowed: "POST" },
                405,
                USAGE,
                CALLER,
                "method_not_allowed",
            ),
            (
                Refused::NoChat { missing: name() },
                400,
                USAGE,
                CALLER,
                "model_not_supported",
            ),
            (
                Refused::NoHead { missing: name() },
                400,
                USAGE,
                CALLER,
                "model_not_supported",
            ),
            (
                Refused::Route { path: name() },
                404,
                USAGE,
                CALLER,
                "not_found",
            ),
            (
                Refused::SchemaTooLong {
                    needed: 2,
                    allowed: 1,
                },
                413,
                "max_tokens_exceeded",
                CALLER,
                "max_tokens_exceeded",
            ),
            (
                Refused::TooLong {
                    needed: 2,
                    allowed: 1,
                },
                413,
                "max_tokens_exceeded",
                CALLER,
                "max_tokens_exceeded",
            ),
            (
                Refused::UnknownModel { name: name() },
                400,
                USAGE,
                CALLER,
                "model_not_found",
            ),
            (
                Refused::UnknownModelPath { name: name() },
                404,
                USAGE,
                CALLER,
                "model_not_found",
            ),
        ]
    }

    #[test]
    fn every_refusal_has_its_row() {
        for (refused, status, error_type, kind, code) in table() {
            let row = refused.row();
            let found = (row.status, row.error_type, row.kind, row.code);
            assert_eq!(found, (status, error_type, kind, code), "{refused:?}");
            let retry = refused.retry_after_ms().is_some();
            assert_eq!(retry, matches!(status, 503 | 529), "{refused:?}");
        }
    }

    /// The table of `docs/reference/errors.md`.
    fn reference() -> String {
        let mut out = String::from(
            "| code | status | `detail.error_type` | `error.type` | for example |\n|---|---|---|---|---|\n",
        );
        for (refused, status, error_type, kind, code) in table() {
            let error_type = match refused {
                Refused::Faults(_) => "(a list of faults)",
                _ => error_type,
            };
            let example = refused.to_string().replace('|', "\\|");
            out.push_str(&format!(
                "| `{code}` | {status} | {error_type} | {kind} | {example} |\n"
            ));
        }
        out
    }

    #[test]
    fn the_reference_page_has_the_table() {
        let page = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/errors.md"
        );
        let found = std::fs::read_to_string(page).unwrap();
        assert!(
            found.contains(&reference()),
            "the page should have\n{}",
            reference()
        );
    }

    #[tokio::test]
    async fn a_body_has_both_shapes_and_the_headers() {
        let id = RequestId::fresh();
        for (refused, status, error_type, ..) in table() {
            let response = refused.response(&id);
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
            assert_eq!(
                response.headers().contains_key(RETRY_AFTER),
                matches!(status, 503 | 529)
            );
            assert_eq!(response.headers().contains_key(ALLOW), status == 405);
            let body = axum::body::to_bytes(response.into_body(), 1 << 20)
                .await
                .unwrap();
            let body = descant_decision::json::parse(&body).unwrap();
            let detail = body.get("detail").unwrap();
            match detail.as_array() {
                Some(entries) => {
                    let loc = entries[0].get("loc").unwrap();
                    assert_eq!(to_json(loc), r#"["body","questions","a\u001b",0]"#);
                }
                None => assert_eq!(detail.get("error_type"), Some(&error_type.into())),
            }
            let message = body
                .get("error")
                .unwrap()
                .get("message")
                .unwrap()
                .as_str()
                .unwrap();
            assert!(
                !message.is_empty() && !message.contains('\u{1b}'),
                "{message:?}"
            );
            assert_eq!(
                message.contains(&id.to_string()),
                status == 500,
                "{message}"
            );
        }
    }

    #[test]
    fn what_the_engine_says_has_a_row() {
        let defect = |error: &EngineError| Refused::Defect {
            message: error.to_string(),
        };
        let no_head = Refused::NoHead {
            missing: EngineError::NoHead.to_string(),
        };
        for (error, wanted) in [
            (
                EngineError::Busy { retry_after_ms: 70 },
                Refused::Busy { retry_after_ms: 70 },
            ),
            (EngineError::Closing, Refused::Closing),
            (EngineError::Deadline, Refused::Deadline),
            (EngineError::NoHead, no_head),
            (
                EngineError::TooLong {
                    needed: 2,
                    allowed: 1,
                },
                Refused::TooLong {
                    needed: 2,
                    allowed: 1,
                },
            ),
            (EngineError::EmptyPrompt, defect(&EngineError::EmptyPrompt)),
            (EngineError::Cancelled, defect(&EngineError::Cancelled)),
        ] {
            assert_eq!(Refused::from(error), wanted);
        }
    }

    #[test]
    fn a_defect_is_not_told_to_clients() {
        let refused = Refused::Defect {
            message: "secret of the driver".to_owned(),
        };
        assert!(!refused.to_string().contains("secret"));
    }

    #[test]
    fn a_message_spells_out_the_first_faults() {
        let message = Refused::Faults(faults(7)).to_string();
        assert!(
            message.starts_with("questions.a\\u{1b}[0]: wanted text; "),
            "{message}"
        );
        assert!(message.ends_with("; and 2 more"), "{message}");
        assert_eq!(
            Refused::Faults(faults(2)).param().unwrap(),
            "questions.a\\u{1b}.0"
        );
    }
}
