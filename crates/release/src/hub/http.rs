//! Requests to the Hub: redirects, tokens, statuses; one attempt each. Retrying is the caller's business.

use std::ops::Range;
use std::time::Duration;

use ureq::http::{HeaderMap, Method, Response, StatusCode};
use ureq::{Agent, Body};

use super::error::HubError;

/// Asks one Hub.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    /// The Hub's address without a slash at its end.
    pub(super) endpoint: String,
    token: Option<String>,
}

/// What the Hub says of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileFacts {
    /// The commit that the revision stands for.
    pub(super) commit: String,
    /// Name of the file's content: a SHA-256 of large files, a git hash of small ones.
    pub(super) etag: String,
    /// Size in bytes.
    pub(super) bytes: u64,
}

/// An attempt that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: HubError,
    /// Whether another attempt may succeed.
    pub(super) again: bool,
    /// How long the server asks to wait.
    pub(super) wait: Option<Duration>,
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Failure {
        Failure {
            error,
            again: false,
            wait: None,
        }
    }
}

impl Client {
    pub(super) fn new(endpoint: &str, token: Option<String>) -> Client {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(CONNECT_WAIT_MAX))
            .timeout_connect(Some(CONNECT_WAIT_MAX))
            .timeout_recv_response(Some(RESPONSE_WAIT_MAX))
            .timeout_per_read(Some(READ_WAIT_MAX))
            .user_agent(concat!("descant/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Client {
            agent,
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
        }
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks what a file is, without its content; none if the repository lacks it.
    ///
    /// The Hub answers for a large file with a redirect to its store, whose headers say all: it is not followed.
    pub(super) fn facts(&self, name: &str, url: &str) -> Result<Option<FileFacts>, Failure> {
        let found = self.walk(&Method::HEAD, url, None, |headers| {
            headers.contains_key(LINKED_ETAG) && headers.contains_key(COMMIT)
        })?;
        let found = match found.response.status() {
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => {
                // A mirror without HEAD: the first byte's headers say the same.
                self.walk(&Method::GET, url, Some(&(0..1)), |_| false)?
            }
            _ => found,
        };
        let status = found.response.status();
        if status == StatusCode::NOT_FOUND {
            return match text(found.response.headers(), ERROR_CODE).as_deref() {
                Some("RevisionNotFound") => Err(HubError::RevisionMissing {
                    name: name.to_owned(),
                }
                .into()),
                Some("RepoNotFound") => Err(self.denied(name, status)),
                _ => Ok(None),
            };
        }
        self.check(name, url, &found.response)?;
        found.facts(url).map(Some)
    }

    /// Asks for a file's content from a byte on.
    pub(super) fn content(
        &self,
        name: &str,
        url: &str,
        from: u64,
    ) -> Result<Response<Body>, Failure> {
        let range = from..u64::MAX;
        let range = (from > 0).then_some(&range);
        let found = self.walk(&Method::GET, url, range, |_| false)?;
        if found.response.status() != StatusCode::RANGE_NOT_SATISFIABLE {
            self.check(name, url, &found.response)?;
        }
        Ok(found.response)
    }

    /// Sends a request and follows redirects until `stop` says of one's headers that it is the answer.
    fn walk(
        &self,
        method: &Method,
        url: &str,
        range: Option<&Range<u64>>,
        stop: impl Fn(&HeaderMap) -> bool,
    ) -> Result<Walked, Failure> {
        let mut at = url.to_owned();
        let mut commit = None;
        for _ in 0..REDIRECTS_MAX {
            let response = self.send(method, &at, range)?;
            commit = commit.or_else(|| text(response.headers(), COMMIT));
            if !response.status().is_redirection() || stop(response.headers()) {
                return Ok(Walked { response, commit });
            }
            at = redirected(&at, &response)?;
        }
        Err(HubError::TooManyRedirects { url: at }.into())
    }

    fn send(
        &self,
        method: &Method,
        url: &str,
        range: Option<&Range<u64>>,
    ) -> Result<Response<Body>, Failure> {
        let transport = |source: Box<dyn std::error::Error + Send + Sync>| Failure {
            error: HubError::Transport {
                url: url.to_owned(),
                source,
            },
            again: true,
            wait: None,
        };
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(url)
            .header("accept-encoding", "identity");
        if let Some(range) = range {
            let end = if range.end == u64::MAX {
                String::new()
            } else {
                (range.end - 1).to_string()
            };
            request = request.header("range", format!("bytes={}-{end}", range.start));
        }
        // The token is for the Hub alone; its stores lie elsewhere and have their own signatures in the address.
        if let Some(token) = self
            .token
            .as_ref()
            .filter(|_| origin(url) == origin(&self.endpoint))
        {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(()).map_err(|error| Failure {
            again: false,
            ..transport(error.into())
        })?;
        self.agent
            .run(request)
            .map_err(|error| transport(error.into()))
    }

    /// Turns a status that is no success into a failure.
    fn check(&self, name: &str, url: &str, response: &Response<Body>) -> Result<(), Failure> {
        let status = response.status();
        if status.is_success() || status.is_redirection() {
            return Ok(());
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(self.denied(name, status));
        }
        let again = status.is_server_error()
            || matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
            );
        let seconds = text(response.headers(), "retry-after").and_then(|wait| wait.parse().ok());
        Err(Failure {
            error: HubError::Status {
                url: url.to_owned(),
                status: status.as_u16(),
            },
            again,
            wait: seconds.map(Duration::from_secs),
        })
    }

    fn denied(&self, name: &str, status: StatusCode) -> Failure {
        let (name, status) = (name.to_owned(), status.as_u16());
        HubError::Denied {
            name,
            status,
            with_token: self.has_token(),
        }
        .into()
    }
}

/// The answer at the end of a way, and the commit that some answer on it named.
struct Walked {
    response: Response<Body>,
    commit: Option<String>,
}

impl Walked {
    fn facts(&self, url: &str) -> Result<FileFacts, Failure> {
        let headers = self.response.headers();
        let missing = |header| HubError::Header {
            url: url.to_owned(),
            header,
            found: None,
        };
        let commit = self.commit.clone().ok_or_else(|| missing(COMMIT))?;
        let etag = text(headers, LINKED_ETAG)
            .or_else(|| text(headers, "etag"))
            .ok_or_else(|| missing("etag"))?;
        let etag = etag
            .strip_prefix("W/")
            .unwrap_or(&etag)
            .trim_matches('"')
            .to_owned();
        let bytes = text(headers, LINKED_SIZE)
            .or_else(|| content_range(headers).map(|(_, total)| total.to_string()))
            .or_else(|| text(headers, "content-length"))
            .and_then(|bytes| bytes.parse().ok())
            .ok_or_else(|| missing("content-length"))?;
        for (header, value) in [(COMMIT, &commit), ("etag", &etag)] {
            // Both become file names.
            if !super::name::is_component(value) {
                let found = Some(value.clone());
                return Err(HubError::Header {
                    url: url.to_owned(),
                    header,
                    found,
                }
                .into());
            }
        }
        Ok(FileFacts {
            commit,
            etag,
            bytes,
        })
    }
}

/// First byte and total size of a partial answer: `bytes 5-9/10`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let value = text(headers, "content-range")?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, total.parse().ok()?))
}

/// A header as text.
pub(super) fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Where a redirect leads.
fn redirected(from: &str, response: &Response<Body>) -> Result<String, HubError> {
    let location = text(response.headers(), "location");
    let location = location.ok_or(HubError::Header {
        url: from.to_owned(),
        header: "location",
        found: None,
    })?;
    let to = join(from, &location);
    let secure = |url: &str| url.starts_with("https://");
    let web = secure(&to) || to.starts_with("http://");
    match web && (secure(&to) || !secure(from)) {
        true => Ok(to),
        false => Err(HubError::TooManyRedirects { url: to }),
    }
}

/// A reference as seen from an address: absolute, from the host's root, or beside the address.
fn join(base: &str, reference: &str) -> String {
    let before_path = reference.split(['/', '?', '#']).next().unwrap_or_default();
    if before_path.contains(':') {
        return reference.to_owned();
    }
    let origin = origin(base);
    if let Some(rest) = reference.strip_prefix("//") {
        let scheme = base.split_once("://").map_or("https", |(scheme, _)| scheme);
        return format!("{scheme}://{rest}");
    }
    if reference.starts_with('/') {
        return format!("{origin}{reference}");
    }
    let path = base[origin.len()..]
        .split(['?', '#'])
        .next()
        .unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |slash| &path[..=slash]);
    format!("{origin}{folder}{reference}")
}

/// Scheme, host and port of an address.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |at| start + at);
    &url[..end]
}

const COMMIT: &str = "x-repo-commit";
const LINKED_ETAG: &str = "x-linked-etag";
const LINKED_SIZE: &str = "x-linked-size";
const ERROR_CODE: &str = "x-error-code";
/// Redirects of one request.
const REDIRECTS_MAX: usize = 8;
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(30);
/// How long a silent connection is believed while content comes.
const READ_WAIT_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_as_seen_from_its_address() {
        let base = "https://hub.example:8443/a/b/file?x=1";
        for (reference, wanted) in [
            ("https://store.example/k?s=/", "https://store.example/k?s=/"),
            ("//store.example/k", "https://store.example/k"),
            ("/new/file", "https://hub.example:8443/new/file"),
            ("other", "https://hub.example:8443/a/b/other"),
            (
                "/new?from=http://x",
                "https://hub.example:8443/new?from=http://x",
            ),
            ("file:///etc/passwd", "file:///etc/passwd"),
        ] {
            assert_eq!(join(base, reference), wanted);
        }
        assert_eq!(join("http://h", "x"), "http://h/x");
    }
}
