//! Clients that leave in the middle of a long request, and how long the next request waits.

use std::io::Write;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::Object;

use super::Verdict;
use super::client::{Answer, Client};
use super::times::{ms, ms_value, percentile};
use super::watch::{Look, look};
use crate::meter::Meter;

/// What came of it.
#[derive(Debug)]
pub(crate) struct Kill {
    clients: usize,
    /// A short request with nobody else there.
    idle: Duration,
    /// The same right after the clients left.
    next: Answer,
    /// How often it was refused before that.
    refused: usize,
    /// A long request alone: tokens, and its longest round.
    long_tokens: u64,
    round: Option<Duration>,
    after: Look,
}

/// Lets clients begin long requests and leave, then asks.
///
/// # Errors
/// What went wrong before anything could be measured.
pub(crate) fn kill(
    client: &Client,
    (longs, short): (&[String], &str),
    pid: Option<u32>,
    verdict: &mut Verdict,
) -> Result<Kill, String> {
    let refusals = AtomicUsize::new(0);
    let long = client.decided(&longs[0], &refusals)?;
    let wanted = client.decided(short, &refusals)?;
    let mut idle = Vec::new();
    for _ in 0..IDLE_TRIES {
        idle.push(client.decided(short, &refusals)?.took);
    }
    let meter = Meter::of("clients", 0, Some(longs.len() as u64 - 1));
    let mut streams = Vec::with_capacity(longs.len());
    for request in &longs[1..] {
        streams.push(begin(client.url(), request)?);
        meter.one();
    }
    drop(meter);
    // The first of them is in the middle of its prompt by now, the others in line behind it.
    thread::sleep(
        long.computed
            .unwrap_or(long.took)
            .mul_f64(0.4)
            .max(Duration::from_millis(20)),
    );
    for stream in &streams {
        // A client that was answered already has closed its side.
        let _ = stream.shutdown(Shutdown::Both);
    }
    let started = Instant::now();
    drop(streams);
    let refused = AtomicUsize::new(0);
    let next = client.decided(short, &refused);
    let next = next.map_err(|fault| format!("after the clients left: {fault}"))?;
    if next.body != wanted.body {
        verdict.unequal("the request after the clients left");
    }
    let next = Answer {
        took: started.elapsed(),
        ..next
    };
    thread::sleep(Duration::from_secs(1));
    let after = look(client, pid);
    if let Some((free, all)) = after.slots
        && free != all
    {
        verdict.note(format!("{free} of {all} slots are free though nobody asks"));
        verdict.broken();
    }
    Ok(Kill {
        clients: longs.len() - 1,
        idle: percentile(&idle, 0.5),
        next,
        refused: refused.into_inner(),
        long_tokens: long.tokens(),
        round: long.round,
        after,
    })
}

/// Sends a request on a connection of its own and does not read the reply.
fn begin(url: &str, request: &str) -> Result<TcpStream, String> {
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| "--kill needs a URL that begins with http://".to_owned())?;
    let (host, path) = rest
        .split_once('/')
        .map_or((rest, ""), |(host, path)| (host, path));
    let with_port = match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:80"),
    };
    let said = |error: std::io::Error| format!("{host}: {error}");
    let mut addresses = with_port.to_socket_addrs().map_err(said)?;
    let address = addresses
        .next()
        .ok_or_else(|| format!("{host}: no address"))?;
    let mut stream = TcpStream::connect(address).map_err(said)?;
    let separator = if path.is_empty() { "" } else { "/" };
    let head = format!(
        "POST {separator}{path}/v1/systemone HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        request.len()
    );
    stream
        .write_all(&[head.as_bytes(), request.as_bytes()].concat())
        .map_err(said)?;
    Ok(stream)
}

impl Kill {
    pub(crate) fn lines(&self) -> Vec<String> {
        let known = |time: Option<Duration>| match time {
            Some(time) => format!("{:.2} ms", ms(time)),
            None => "unknown".to_owned(),
        };
        let mut lines = vec![format!(
            "{} clients left in the middle of {} tokens; the next request waited {} in line and was answered in {:.2} ms",
            self.clients,
            self.long_tokens,
            known(self.next.queued),
            ms(self.next.took)
        )];
        if self.refused > 0 {
            lines.push(format!("it was refused {} times before", self.refused));
        }
        lines.push(format!(
            "alone it takes {:.2} ms; the longest piece of a long one takes {}",
            ms(self.idle),
            known(self.round)
        ));
        if let Some((free, all)) = self.after.slots {
            lines.push(format!("slots afterwards: {free} of {all} free"));
        }
        lines
    }

    pub(crate) fn value(&self) -> Value {
        Object::new()
            .with("clients", self.clients)
            .with("tokens", self.long_tokens)
            .with("next_queue_ms", self.next.queued.map(ms_value))
            .with("next_ms", ms_value(self.next.took))
            .with("next_refused", self.refused)
            .with("idle_ms", ms_value(self.idle))
            .with("longest_piece_ms", self.round.map(ms_value))
            .with("slots_free_after", self.after.slots.map(|(free, _)| free))
            .with("slots", self.after.slots.map(|(_, all)| all))
            .into()
    }
}

/// Short requests whose median is the idle latency.
const IDLE_TRIES: usize = 9;
