//! One client of a server: asks, and takes refusals for what they are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::parse;
use ureq::Agent;
use ureq::http::Response;

use crate::failure::Failure;
use crate::reading::input_tokens;

/// A way to a server; clones share its connections.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: Agent,
    url: String,
}

/// A reply with status 200.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) body: Vec<u8>,
    /// From the request to the reply's last byte.
    pub(crate) took: Duration,
    /// Time in the server's line, where it says so.
    pub(crate) queued: Option<Duration>,
    /// Time from the line to the answer, where it says so.
    pub(crate) computed: Option<Duration>,
    /// The longest round with rows of its prompt, where it says so.
    pub(crate) round: Option<Duration>,
}

/// What came of a request.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Answered(Answer),
    /// No reply, or one that is neither an answer nor a proper refusal.
    Failed(String),
    /// No room now; come again then.
    Refused(Duration),
}

impl Answer {
    /// Tokens of the prompt, where the reply says so; 0 otherwise.
    pub(crate) fn tokens(&self) -> u64 {
        parse(&self.body)
            .ok()
            .as_ref()
            .and_then(input_tokens)
            .unwrap_or(0)
    }
}

impl Client {
    /// Finds out that the server is there.
    ///
    /// # Errors
    /// [`Failure::Http`] if it is not.
    pub(crate) fn new(url: &str) -> Result<Client, Failure> {
        let client = Client {
            agent: Agent::config_builder()
                .http_status_as_error(false)
                .timeout_connect(Some(Duration::from_secs(10)))
                .timeout_global(Some(ANSWER_WAIT_MAX))
                .max_idle_connections(CONNECTIONS_MAX)
                .max_idle_connections_per_host(CONNECTIONS_MAX)
                .build()
                .into(),
            url: url.trim_end_matches('/').to_owned(),
        };
        client
            .read("/health")
            .map_err(|fault| client.failure(fault))?;
        Ok(client)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn failure(&self, fault: String) -> Failure {
        Failure::Http {
            url: self.url.clone(),
            fault,
        }
    }

    /// A page of the server: status and body.
    pub(crate) fn read(&self, path: &str) -> Result<(u16, Vec<u8>), String> {
        let reply = self.agent.get(format!("{}{path}", self.url)).call();
        let mut reply = reply.map_err(|error| error.to_string())?;
        let status = reply.status().as_u16();
        Ok((status, read(&mut reply)?))
    }

    /// The name of the first model that the server lists.
    pub(crate) fn model(&self) -> Option<String> {
        let (_, body) = self.read("/v1/models").ok()?;
        let listing = parse(&body).ok()?;
        let first = listing.get("data")?.as_array()?.first()?;
        first.get("id")?.as_str().map(str::to_owned)
    }

    /// Asks once for a decision.
    pub(crate) fn decide(&self, body: &str) -> Outcome {
        let started = Instant::now();
        match self.post("/v1/systemone", body) {
            Err(fault) => Outcome::Failed(fault),
            Ok(mut reply) => match (reply.status().as_u16(), retry_after(&reply)) {
                (200, _) => match read(&mut reply) {
                    Err(fault) => Outcome::Failed(fault),
                    Ok(body) => Outcome::Answered(Answer {
                        body,
                        took: started.elapsed(),
                        queued: milliseconds(&reply, "x-clef-queue-ms"),
                        computed: milliseconds(&reply, "x-clef-engine-ms"),
                        round: milliseconds(&reply, "x-clef-round-ms"),
                    }),
                },
                (429 | 503 | 529, Some(pause)) => {
                    // Read, so that the connection can serve the next request.
                    let _ = read(&mut reply);
                    Outcome::Refused(pause)
                }
                (status, _) => Outcome::Failed(said(status, &mut reply)),
            },
        }
    }

    /// Asks until there is an answer, waiting as long as refusals say.
    ///
    /// # Errors
    /// What went wrong, or that there was no room for too long.
    pub(crate) fn decided(&self, body: &str, refusals: &AtomicUsize) -> Result<Answer, String> {
        let started = Instant::now();
        loop {
            match self.decide(body) {
                Outcome::Answered(answer) => return Ok(answer),
                Outcome::Failed(fault) => return Err(fault),
                Outcome::Refused(pause) if started.elapsed() + pause < ANSWER_WAIT_MAX => {
                    refusals.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(pause);
                }
                Outcome::Refused(_) => {
                    return Err(format!("no room in {} s", ANSWER_WAIT_MAX.as_secs()));
                }
            }
        }
    }

    /// Sends a body to a path.
    ///
    /// # Errors
    /// Why there is no reply.
    pub(crate) fn post(&self, path: &str, body: &str) -> Result<Response<ureq::Body>, String> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let sent = request.content_type("application/json").send(body);
        sent.map_err(|error| error.to_string())
    }
}

/// A status and what the reply said.
pub(crate) fn said(status: u16, reply: &mut Response<ureq::Body>) -> String {
    let body = read(reply).unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let text: String = text.chars().take(300).collect();
    let hint = match status {
        429 | 503 | 529 => " without a hint when to come again",
        _ => "",
    };
    format!("status {status}{hint}: {text}")
}

fn read(reply: &mut Response<ureq::Body>) -> Result<Vec<u8>, String> {
    let read = reply
        .body_mut()
        .with_config()
        .limit(REPLY_BYTES_MAX)
        .read_to_vec();
    read.map_err(|error| error.to_string())
}

/// When to come again: `retry-after-ms`, or `retry-after` in seconds.
fn retry_after(reply: &Response<ureq::Body>) -> Option<Duration> {
    let number = |name: &str| {
        let text = reply.headers().get(name)?.to_str().ok()?;
        text.parse::<f64>()
            .ok()
            .filter(|number| (0.0..1e6).contains(number))
    };
    let ms = number("retry-after-ms").or_else(|| Some(1e3 * number("retry-after")?))?;
    Some(Duration::from_secs_f64(ms / 1e3))
}

fn milliseconds(reply: &Response<ureq::Body>, name: &str) -> Option<Duration> {
    let ms: f64 = reply.headers().get(name)?.to_str().ok()?.parse().ok()?;
    (0.0..1e9)
        .contains(&ms)
        .then(|| Duration::from_secs_f64(ms / 1e3))
}

/// The body with logits asked for, so that answers are compared by all their digits; servers that do not know the field
/// ignore it.
pub(crate) fn with_raw(request: Value) -> Value {
    match request {
        Value::Object(object) => Value::Object(object.with("raw", true)),
        other => other,
    }
}

/// Longest time for one answer; long prompts on a CPU take minutes.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);
/// Connections that are kept, one for each client of the highest level.
const CONNECTIONS_MAX: usize = 1024;
/// Longest reply.
const REPLY_BYTES_MAX: u64 = 64 << 20;
