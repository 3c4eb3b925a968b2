//! Which other sites' pages may ask: cross-origin requests of browsers. Off unless origins are named.

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request};

/// What a page of another origin may read of a reply.
const EXPOSED: &str = "retry-after, retry-after-ms, x-clef-cached-tokens, x-clef-engine-ms, x-clef-mode, x-clef-queue-ms, x-clef-round-ms, \
                       x-clef-truncated-tokens, x-descant-receipt, x-request-id, x-typesafe-request-id";

/// The origins that are let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// Every one.
    Any,
    /// These, as browsers spell them: `https://example.org`.
    Listed(Vec<String>),
    /// None.
    #[default]
    None,
}

/// What a request's reply says to the browser.
pub(crate) struct Grant {
    origin: HeaderValue,
    /// For a browser that asks beforehand: the headers it would send.
    preflight: Option<HeaderValue>,
}

impl Origins {
    /// The origins of flags: `*` for any.
    pub fn from_flags(flags: Vec<String>) -> Origins {
        match flags.as_slice() {
            [] => Origins::None,
            _ if flags.iter().any(|flag| flag == "*") => Origins::Any,
            _ => Origins::Listed(flags),
        }
    }

    /// What is granted to a request; nothing if it comes from elsewhere or from no page.
    pub(crate) fn grant(&self, request: &Request<Body>) -> Option<Grant> {
        let headers = request.headers();
        let origin = headers.get(ORIGIN)?;
        let granted = match self {
            Origins::Any => HeaderValue::from_static("*"),
            Origins::Listed(listed) => {
                let found = listed
                    .iter()
                    .any(|listed| listed.as_bytes() == origin.as_bytes());
                found.then(|| origin.clone())?
            }
            Origins::None => return None,
        };
        Some(Grant {
            origin: granted,
            preflight: preflight(request.method(), headers),
        })
    }
}

impl Grant {
    /// Tells the browser.
    pub(crate) fn put(self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
        headers.insert(VARY, HeaderValue::from_static("origin"));
        match self.preflight {
            Some(asked) => {
                headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked);
                headers.insert(
                    ACCESS_CONTROL_ALLOW_METHODS,
                    HeaderValue::from_static("GET, HEAD, OPTIONS, POST"),
                );
                headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
            }
            None => {
                headers.insert(
                    ACCESS_CONTROL_EXPOSE_HEADERS,
                    HeaderValue::from_static(EXPOSED),
                );
            }
        }
    }
}

/// The headers that a browser asks leave to send, if this is such a question.
fn preflight(method: &Method, headers: &HeaderMap) -> Option<HeaderValue> {
    if method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let asked = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    Some(asked.unwrap_or_else(|| HeaderValue::from_static("content-type")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(origins: &Origins, method: &str, fields: &[(&str, &str)]) -> HeaderMap {
        let mut request = Request::builder().method(method).uri("/v1/systemone");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let mut headers = HeaderMap::new();
        if let Some(grant) = origins.grant(&request.body(Body::empty()).unwrap()) {
            grant.put(&mut headers);
        }
        headers
    }

    fn listed() -> Origins {
        Origins::from_flags(vec![
            "https://a.example".into(),
            "http://localhost:5173".into(),
        ])
    }

    #[test]
    fn listed_origins_are_let_in_and_named() {
        let headers = granted(&listed(), "POST", &[("origin", "http://localhost:5173")]);
        assert_eq!(
            headers[ACCESS_CONTROL_ALLOW_ORIGIN],
            "http://localhost:5173"
        );
        assert_eq!(headers[VARY], "origin");
        assert!(headers.contains_key(ACCESS_CONTROL_EXPOSE_HEADERS));
        let any = Origins::from_flags(vec!["*".into()]);
        let headers = granted(&any, "POST", &[("origin", "https://b.example")]);
        assert_eq!(headers[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
    }

    #[test]
    fn others_hear_nothing() {
        for origin in [
            "https://b.example",
            "https://a.example.org",
            "null",
            "HTTPS://a.example",
        ] {
            assert!(
                granted(&listed(), "POST", &[("origin", origin)]).is_empty(),
                "{origin}"
            );
        }
        assert!(granted(&listed(), "POST", &[]).is_empty());
        assert!(granted(&Origins::None, "POST", &[("origin", "https://a.example")]).is_empty());
    }

    #[test]
    fn a_browser_may_ask_beforehand() {
        let headers = granted(
            &listed(),
            "OPTIONS",
            &[
                ("origin", "https://a.example"),
                ("access-control-request-method", "POST"),
                (
                    "access-control-request-headers",
                    "authorization,content-type",
                ),
            ],
        );
        assert_eq!(
            headers[ACCESS_CONTROL_ALLOW_HEADERS],
            "authorization,content-type"
        );
        assert_eq!(
            headers[ACCESS_CONTROL_ALLOW_METHODS],
            "GET, HEAD, OPTIONS, POST"
        );
    }
}
