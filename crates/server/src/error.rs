//! Every way a request is refused, and how that is spoken: one table, the only place that knows status codes.
//!
//! A body carries both shapes that clients of System One read: `detail` (a list of faults, or an object with an
//! `error_type`) and `error` (an object with `message`, `type`, `param`, `code`). A client's mistake is never a 5xx,
//! because every SDK of this family sends a 5xx again.

mod family;

use std::fmt;

use axum::body::Body;
use axum::http::Response;
use axum::response::IntoResponse;
use descant_decision::json::{Object, Value};
use descant_decision::{Fault, Step, printable};
use descant_engine::EngineError;

pub use family::Family;
pub(crate) use family::Refusal;

/// What a client is told while this server stops: by then another one may have taken its place.
const CLOSING_RETRY_MS: u64 = 1000;

/// What a client is told while the model is loaded: short for a small one, and no burden for a large one.
const LOADING_RETRY_MS: u64 = 2000;

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
    /// The body is not the form that its content type says.
    BodyForm {
        /// What is wrong with it.
        fault: &'static str,
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
    /// The model is not loaded yet.
    Loading {
        /// How much of it is, where that is known.
        percent: Option<u8>,
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
    /// A key is required, and none was sent, or one that is not known.
    Unauthorised {
        /// Whether one was sent.
        sent: bool,
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
            Refused::BodyForm { .. } => caller(400, "api_usage_error", "body_form"),
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
            Refused::Loading { .. } => server(503, "unavailable_error", "loading"),
            Refused::MediaType { .. } => caller(415, "api_usage_error", "unsupported_media_type"),
            Refused::Method { .. } => caller(405, "api_usage_error", "method_not_allowed"),
            Refused::NoChat { .. } | Refused::NoHead { .. } => {
                caller(400, "api_usage_error", "model_not_supported")
            }
            Refused::Route { .. } => caller(404, "api_usage_error", "not_found"),
            Refused::SchemaTooLong { .. } | Refused::TooLong { .. } => {
                caller(413, "max_tokens_exceeded", "max_tokens_exceeded")
            }
            Refused::Unauthorised { .. } => {
                caller(401, "authentication_error", "authentication_error")
            }
            Refused::UnknownModel { .. } => caller(400, "api_usage_error", "model_not_found"),
            Refused::UnknownModelPath { .. } => caller(404, "api_usage_error", "model_not_found"),
        }
    }

    /// One of each kind, for the document.
    pub(crate) fn kinds() -> [Refused; 23] {
        let text = String::new;
        [
            Refused::BodyEncoding { found: text() },
            Refused::BodyForm { fault: "" },
            Refused::BodyIncomplete,
            Refused::BodySlow { waited_s: 0 },
            Refused::BodyTooBig { allowed_bytes: 0 },
            Refused::BodyUndecodable { encoding: "" },
            Refused::Busy { retry_after_ms: 0 },
            Refused::Closing,
            Refused::Deadline,
            Refused::Defect { message: text() },
            Refused::Faults(Vec::new()),
            Refused::Header {
                name: "",
                wanted: "",
            },
            Refused::Loading { percent: None },
            Refused::MediaType { found: text() },
            Refused::Method { allowed: "" },
            Refused::NoChat { missing: text() },
            Refused::NoHead { missing: text() },
            Refused::Route { path: text() },
            Refused::SchemaTooLong {
                needed: 0,
                allowed: 0,
            },
            Refused::TooLong {
                needed: 0,
                allowed: 0,
            },
            Refused::Unauthorised { sent: false },
            Refused::UnknownModel { name: text() },
            Refused::UnknownModelPath { name: text() },
        ]
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

    /// When the same request may be answered, in milliseconds; `None` if it never will.
    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Refused::Busy { retry_after_ms } => Some(*retry_after_ms),
            Refused::Closing => Some(CLOSING_RETRY_MS),
            Refused::Deadline => Some(DEADLINE_RETRY_MS),
            Refused::Loading { .. } => Some(LOADING_RETRY_MS),
            _ => None,
        }
    }

    /// One word for the log.
    pub(crate) fn code(&self) -> &'static str {
        self.row().code
    }
}

impl fmt::Display for Refused {
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::BodyEncoding { found } => write!(
                f,
                "content-encoding {} is not decoded; use identity, gzip, deflate or zstd",
                printable(found)
            ),
            Refused::BodyForm { fault } => write!(f, "the body is no multipart form: {fault}"),
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
            Refused::Loading {
                percent: Some(percent),
            } => {
                write!(f, "the model is being loaded, {percent} % so far")
            }
            Refused::Loading { percent: None } => f.write_str("the model is being loaded"),
            Refused::MediaType { found } => {
                write!(
                    f,
                    "content-type {} is not read; send JSON, or multipart/form-data with a boundary",
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
            Refused::Unauthorised { sent: true } => f.write_str("the API key is not known"),
            Refused::Unauthorised { sent: false } => {
                f.write_str("an API key is required: authorization: Bearer KEY, or x-api-key: KEY")
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

/// Handlers refuse by returning the value.
impl IntoResponse for Refused {
    fn into_response(self) -> Response<Body> {
        Refusal::from(self).into_response()
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
    use descant_decision::json::to_json;

    use super::*;
    use crate::request_id::RequestId;

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

    /// A refusal, and what is said of it by the published contracts.
    struct Case {
        refused: Refused,
        /// Status, `error_type`, `error.type` and `error.code`.
        system_one: (u16, &'static str, &'static str, &'static str),
        /// Status and `error.code`.
        openai: (u16, Option<&'static str>),
        /// Status and number.
        cloudflare: (u16, u32),
    }

    #[expect(clippy::too_many_lines, reason = "a table")]
    fn table() -> Vec<Case> {
        const CALLER: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        const USAGE: &str = "api_usage_error";
        const LONG: &str = "max_tokens_exceeded";
        let name = || "x".to_owned();
        let case = |refused, system_one, openai, cloudflare| Case {
            refused,
            system_one,
            openai,
            cloudflare,
        };
        // The same status and code for OpenAI's clients as for System One's.
        let same = |refused, (status, error_type, kind, code), cloudflare| Case {
            refused,
            system_one: (status, error_type, kind, code),
            openai: (status, Some(code)),
            cloudflare,
        };
        let (needed, allowed) = (2, 1);
        vec![
            same(
                Refused::BodyEncoding { found: name() },
                (415, USAGE, CALLER, "unsupported_encoding"),
                (415, 6003),
            ),
            same(
                Refused::BodyForm {
                    fault: "it has no end",
                },
                (400, USAGE, CALLER, "body_form"),
                (400, 6003),
            ),
            same(
                Refused::BodyIncomplete,
                (400, USAGE, CALLER, "body_incomplete"),
                (400, 6003),
            ),
            same(
                Refused::BodySlow { waited_s: 9 },
                (408, USAGE, CALLER, "body_timeout"),
                (408, 6003),
            ),
            same(
                Refused::BodyTooBig { allowed_bytes: 9 },
                (413, "request_too_large", CALLER, "request_too_large"),
                (413, 5021),
            ),
            same(
                Refused::BodyUndecodable { encoding: "gzip" },
                (400, USAGE, CALLER, "body_undecodable"),
                (400, 6003),
            ),
            case(
                Refused::Busy {
                    retry_after_ms: 1500,
                },
                (529, "overloaded_error", SERVER, "overloaded"),
                (503, Some("overloaded")),
                (429, 3040),
            ),
            same(
                Refused::Closing,
                (503, "unavailable_error", SERVER, "closing"),
                (503, 3040),
            ),
            same(
                Refused::Deadline,
                (503, "unavailable_error", SERVER, "deadline"),
                (503, 3040),
            ),
            same(
                Refused::Defect { message: name() },
                (500, "internal_error", SERVER, "internal"),
                (500, 5012),
            ),
            case(
                Refused::Faults(faults(1)),
                (422, "validation_error", CALLER, "validation_error"),
                (400, None),
                (422, 5012),
            ),
            same(
                Refused::Header {
                    name: "x",
                    wanted: "a number",
                },
                (400, USAGE, CALLER, "invalid_header"),
                (400, 6003),
            ),
            same(
                Refused::Loading { percent: Some(40) },
                (503, "unavailable_error", SERVER, "loading"),
                (503, 3040),
            ),
            same(
                Refused::MediaType { found: name() },
                (415, USAGE, CALLER, "unsupported_media_type"),
                (415, 6003),
            ),
            same(
                Refused::Method { allowed: "POST" },
                (405, USAGE, CALLER, "method_not_allowed"),
                (405, 7000),
            ),
            same(
                Refused::NoChat { missing: name() },
                (400, USAGE, CALLER, "model_not_supported"),
                (400, 7000),
            ),
            same(
                Refused::NoHead { missing: name() },
                (400, USAGE, CALLER, "model_not_supported"),
                (400, 7000),
            ),
            same(
                Refused::Route { path: name() },
                (404, USAGE, CALLER, "not_found"),
                (404, 7000),
            ),
            case(
                Refused::SchemaTooLong { needed, allowed },
                (413, LONG, CALLER, LONG),
                (400, Some("context_length_exceeded")),
                (413, 5021),
            ),
            case(
                Refused::TooLong { needed, allowed },
                (413, LONG, CALLER, LONG),
                (400, Some("context_length_exceeded")),
                (413, 5021),
            ),
            case(
                Refused::Unauthorised { sent: true },
                (401, "authentication_error", CALLER, "authentication_error"),
                (401, Some("invalid_api_key")),
                (401, 10_000),
            ),
            case(
                Refused::UnknownModel { name: name() },
                (400, USAGE, CALLER, "model_not_found"),
                (404, Some("model_not_found")),
                (400, 7000),
            ),
            same(
                Refused::UnknownModelPath { name: name() },
                (404, USAGE, CALLER, "model_not_found"),
                (400, 7000),
            ),
        ]
    }

    #[test]
    fn every_refusal_has_its_row() {
        for case in table() {
            let Case { refused, .. } = &case;
            let row = refused.row();
            let found = (row.status, row.error_type, row.kind, row.code);
            assert_eq!(found, case.system_one, "{refused:?}");
            assert_eq!(refused.openai(), case.openai, "{refused:?}");
            assert_eq!(refused.cloudflare(), case.cloudflare, "{refused:?}");
            let retry = refused.retry_after_ms().is_some();
            assert_eq!(retry, matches!(row.status, 503 | 529), "{refused:?}");
        }
    }

    /// The table has a line for each kind, so a kind that is missing here is missed there.
    #[test]
    fn every_kind_is_in_the_document() {
        let kinds = Refused::kinds().map(|refused| std::mem::discriminant(&refused));
        for case in table() {
            let kind = std::mem::discriminant(&case.refused);
            let found = kinds.iter().filter(|found| **found == kind).count();
            assert_eq!(found, 1, "{:?}", case.refused);
        }
    }

    /// The table of `docs/reference/errors.md`.
    fn reference() -> String {
        let mut out = String::from(
            "| code | status | `detail.error_type` | `error.type` | OpenAI's routes | Workers AI | for example |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for case in table() {
            let (status, error_type, kind, code) = case.system_one;
            let error_type = match case.refused {
                Refused::Faults(_) => "(a list of faults)",
                _ => error_type,
            };
            let openai = match case.openai {
                (status, Some(code)) => format!("{status} `{code}`"),
                (status, None) => format!("{status}"),
            };
            let (cf_status, number) = case.cloudflare;
            let example = case.refused.to_string().replace('|', "\\|");
            out.push_str(&format!(
                "| `{code}` | {status} | {error_type} | {kind} | {openai} | {cf_status}/{number} | {example} |\n"
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

    async fn body(response: Response<Body>) -> Value {
        let body = axum::body::to_bytes(response.into_body(), 1 << 20)
            .await
            .unwrap();
        descant_decision::json::parse(&body).unwrap()
    }

    #[tokio::test]
    async fn a_body_has_both_shapes_and_the_headers() {
        let id = RequestId::fresh();
        for case in table() {
            let (status, error_type, ..) = case.system_one;
            let response = case.refused.response(Family::SystemOne, &id);
            assert_eq!(response.status().as_u16(), status);
            let headers = response.headers();
            assert_eq!(headers["content-type"], "application/json");
            assert_eq!(
                headers.contains_key("retry-after"),
                matches!(status, 503 | 529)
            );
            assert_eq!(headers.contains_key("allow"), status == 405);
            assert_eq!(headers.contains_key("www-authenticate"), status == 401);
            let body = body(response).await;
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

    #[tokio::test]
    async fn other_families_have_their_own_shape() {
        let id = RequestId::fresh();
        let refused = Refused::Faults(faults(1));
        let openai = body(refused.response(Family::OpenAi, &id)).await;
        assert_eq!(
            to_json(&openai),
            r#"{"error":{"message":"questions.a\\u{1b}[0]: wanted text","type":"invalid_request_error","param":"questions.a\\u{1b}[0]","code":null}}"#
        );
        let cloudflare = body(refused.response(Family::Cloudflare, &id)).await;
        assert_eq!(
            to_json(&cloudflare),
            r#"{"result":null,"success":false,"errors":[{"code":5012,"message":"questions.a\\u{1b}[0]: wanted text"}],"messages":[]}"#
        );
    }

    #[test]
    fn workers_ai_tells_kinds_of_wrong_bodies_apart() {
        let refused = |kind, loc: &[Step]| {
            let (loc, msg) = (loc.to_vec(), String::new());
            Refused::Faults(vec![Fault { loc, kind, msg }]).cloudflare()
        };
        let questions = Step::key("questions");
        let question = [questions.clone(), Step::key("a")];
        assert_eq!(
            refused(FaultKind::JsonInvalid, &[Step::Index(0)]),
            (400, 6003)
        );
        assert_eq!(refused(FaultKind::TooShort, &[questions]), (400, 5006));
        assert_eq!(refused(FaultKind::UnionTagInvalid, &question), (400, 5006));
        assert_eq!(refused(FaultKind::DictType, &question), (422, 5012));
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
