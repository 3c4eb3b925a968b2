//! A System One server as a side of a comparison.

use std::thread;
use std::time::Duration;

use descant_decision::Value;
use descant_decision::json::{parse, to_json};
use ureq::Agent;

use crate::failure::Failure;
use crate::meter::Meter;
use crate::several::{Item, Items};

/// Requests at a time.
const TOGETHER: usize = 8;
/// Longest time for one answer; long prompts on a CPU take minutes.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);
/// Tries of a request that the server has no room for, and the longest wait between two.
const TRIES: u32 = 10;
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest reply.
const REPLY_BYTES_MAX: u64 = 64 << 20;

/// Asks a server for the answers to records, in their order.
pub(super) fn replies(url: &str, items: Items, count: usize) -> Result<Vec<Value>, Failure> {
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(Duration::from_secs(10)))
        .timeout_global(Some(ANSWER_WAIT_MAX))
        .build()
        .into();
    let (mut replies, meter) = (
        Vec::with_capacity(count),
        Meter::start(0, Some(count as u64)),
    );
    let mut items = items.peekable();
    while items.peek().is_some() {
        let group: Vec<Item> = items.by_ref().take(TOGETHER).collect::<Result<_, _>>()?;
        let answers: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> = group
                .iter()
                .map(|item| scope.spawn(|| asked(&agent, url, item)))
                .collect();
            asked
                .into_iter()
                .map(|asked| asked.join().expect("asking does not panic"))
                .collect()
        });
        for answer in answers {
            replies.push(answer?);
            meter.one();
        }
    }
    Ok(replies)
}

fn asked(agent: &Agent, url: &str, item: &Item) -> Result<Value, Failure> {
    let wrong = |fault| Failure::Server {
        url: url.to_owned(),
        line: item.line,
        fault,
    };
    let body = item
        .body
        .as_ref()
        .map_err(|refused| wrong(refused.to_string()))?;
    let body = with_raw(body).map_err(wrong)?;
    let mut pause = Duration::from_millis(500);
    for _ in 0..TRIES {
        let request = agent
            .post(format!("{url}/v1/systemone"))
            .content_type("application/json");
        let mut reply = request
            .send(&body)
            .map_err(|error| wrong(error.to_string()))?;
        let status = reply.status().as_u16();
        let read = reply
            .body_mut()
            .with_config()
            .limit(REPLY_BYTES_MAX)
            .read_to_vec();
        let bytes = read.map_err(|error| wrong(error.to_string()))?;
        match status {
            200 => return parse(&bytes).map_err(|error| wrong(error.to_string())),
            429 | 503 | 529 => {
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            _ => {
                return Err(wrong(format!(
                    "status {status}: {}",
                    String::from_utf8_lossy(&bytes)
                )));
            }
        }
    }
    Err(wrong(format!("no room for the request in {TRIES} tries")))
}

/// The body with logits asked for; servers that do not know the field ignore it.
fn with_raw(body: &[u8]) -> Result<String, String> {
    match parse(body).map_err(|error| error.to_string())? {
        Value::Object(mut body) => {
            body.insert("raw", true);
            Ok(to_json(&Value::Object(body)))
        }
        other => Err(format!("a request is an object, this is {}", other.kind())),
    }
}
