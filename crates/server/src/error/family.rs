//! How a refusal is spoken to each family of clients: which status, in which shape.

use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use descant_decision::json::{Object, Value, to_json};
use descant_decision::{Fault, FaultKind, Step, printable};

use super::{Refused, Row};
use crate::request_id::RequestId;

/// Milliseconds after which a client may ask again.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Who speaks on a route, and so in which shape errors are expected there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Workers AI: an envelope with numbered errors.
    Cloudflare,
    /// OpenAI: `error` alone, 400 for what System One calls 422.
    OpenAi,
    /// System One, and every route that has no family of its own: `detail` and `error`.
    #[default]
    SystemOne,
}

impl Family {
    /// The family of a path, whether there is anything at it or not.
    pub fn of_path(path: &str) -> Family {
        match path {
            "/detokenize"
            | "/tokenize"
            | "/v1/chat/completions"
            | "/v1/completions"
            | "/v1/decisions"
            | "/v1/detokenize"
            | "/v1/tokenize"
            | "/inference/v1/decisions" => Family::OpenAi,
            _ if path.starts_with("/client/v4/") => Family::Cloudflare,
            _ => Family::SystemOne,
        }
    }
}

/// A refusal on its way to [`crate::App::answer`], which makes the reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) refused: Refused,
    /// Who is told, if it is not the family of the path.
    pub(crate) family: Option<Family>,
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        Refusal {
            refused,
            family: None,
        }
    }
}

/// Handlers refuse by returning the value.
impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(self);
        response
    }
}

impl Refused {
    /// The refusal as a reply to a family of clients.
    pub(crate) fn response(&self, family: Family, id: &RequestId) -> Response<Body> {
        let message = match self {
            Refused::Defect { .. } => format!("{self}; request {id}"),
            _ => self.to_string(),
        };
        let body = match family {
            Family::Cloudflare => self.envelope(message),
            Family::OpenAi => Object::new().with("error", self.openai_error(message)),
            Family::SystemOne => {
                let mut error = self.error_object();
                error.insert("message", message);
                Object::new()
                    .with("detail", self.detail())
                    .with("error", error)
            }
        };
        let mut response = Response::new(Body::from(to_json(&body.into())));
        *response.status_mut() =
            StatusCode::from_u16(self.status(family)).expect("the table holds status codes");
        self.head(&mut response);
        response
    }

    /// The refusal, to be told to a family other than the path's.
    pub(crate) fn told_to(self, family: Family) -> Refusal {
        Refusal {
            refused: self,
            family: Some(family),
        }
    }

    fn head(&self, response: &mut Response<Body>) {
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(ms) = self.retry_after_ms() {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(ms));
        }
        match self {
            Refused::Method { allowed } => {
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            Refused::Unauthorised { .. } => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
    }

    /// The status for a family of clients.
    pub(crate) fn status(&self, family: Family) -> u16 {
        match family {
            Family::Cloudflare => self.cloudflare().0,
            Family::OpenAi => self.openai().0,
            Family::SystemOne => self.row().status,
        }
    }

    /// Status and `error.code` as OpenAI has them; no code for a field that is wrong.
    pub(super) fn openai(&self) -> (u16, Option<&'static str>) {
        let Row { status, code, .. } = self.row();
        match self {
            Refused::Busy { .. } => (503, Some(code)),
            Refused::Faults(_) => (400, None),
            Refused::SchemaTooLong { .. } | Refused::TooLong { .. } => {
                (400, Some("context_length_exceeded"))
            }
            Refused::Unauthorised { .. } => (status, Some("invalid_api_key")),
            Refused::UnknownModel { .. } => (404, Some(code)),
            _ => (status, Some(code)),
        }
    }

    fn openai_error(&self, message: String) -> Object {
        let param = match self {
            Refused::Faults(faults) => faults
                .first()
                .filter(|fault| fault.kind != FaultKind::JsonInvalid)
                .and_then(|fault| openai_path(&fault.loc)),
            _ => self.param(),
        };
        Object::new()
            .with("message", message)
            .with("type", self.row().kind)
            .with("param", param)
            .with("code", self.openai().1)
    }

    /// Status and error number as Workers AI has them.
    pub(super) fn cloudflare(&self) -> (u16, u32) {
        let Row { status, .. } = self.row();
        match self {
            Refused::Busy { .. } => (429, CF_CAPACITY),
            Refused::Closing | Refused::Deadline | Refused::Loading { .. } => (503, CF_CAPACITY),
            Refused::BodyTooBig { .. }
            | Refused::SchemaTooLong { .. }
            | Refused::TooLong { .. } => (413, CF_TOO_LONG),
            Refused::Defect { .. } => (500, CF_INVALID),
            Refused::Faults(faults) => cloudflare_faults(faults),
            Refused::Method { .. } | Refused::Route { .. } => (status, CF_ROUTE),
            Refused::NoChat { .. }
            | Refused::NoHead { .. }
            | Refused::UnknownModel { .. }
            | Refused::UnknownModelPath { .. } => (400, CF_ROUTE),
            Refused::Unauthorised { .. } => (401, CF_AUTHENTICATION),
            _ => (status, CF_NOT_JSON),
        }
    }

    fn envelope(&self, message: String) -> Object {
        let error = Object::new()
            .with("code", self.cloudflare().1)
            .with("message", message);
        Object::new()
            .with("result", Value::Null)
            .with("success", false)
            .with("errors", Value::Array(vec![error.into()]))
            .with("messages", Value::Array(Vec::new()))
    }
}

/// Workers AI's numbers of errors.
const CF_AUTHENTICATION: u32 = 10_000;
const CF_CAPACITY: u32 = 3040;
const CF_INVALID: u32 = 5012;
const CF_NO_QUESTIONS: u32 = 5006;
const CF_NOT_JSON: u32 = 6003;
const CF_ROUTE: u32 = 7000;
const CF_TOO_LONG: u32 = 5021;

/// Workers AI tells three kinds of wrong bodies apart: those that are no JSON, those that ask nothing it knows, and all
/// others.
fn cloudflare_faults(faults: &[Fault]) -> (u16, u32) {
    let about_questions = |fault: &Fault| {
        fault.loc == [Step::key("questions")]
            || matches!(
                fault.kind,
                FaultKind::UnionTagInvalid | FaultKind::UnionTagNotFound
            )
    };
    match faults {
        [fault, ..] if fault.kind == FaultKind::JsonInvalid => (400, CF_NOT_JSON),
        [fault, ..] if about_questions(fault) => (400, CF_NO_QUESTIONS),
        _ => (422, CF_INVALID),
    }
}

/// A path as OpenAI writes it, `questions[1].choices`; none for the whole body.
fn openai_path(loc: &[Step]) -> Option<String> {
    let mut path = String::new();
    for step in loc {
        match step {
            Step::Key(key) if path.is_empty() => path.push_str(&printable(key)),
            Step::Key(key) => path.push_str(&format!(".{}", printable(key))),
            Step::Index(index) => path.push_str(&format!("[{index}]")),
        }
    }
    Some(path).filter(|path| !path.is_empty())
}
