//! Latency by length of the prompt, and throughput and equality at several numbers of clients.
//!
//! Each level has requests of its own, of the same lengths as the others', so that a server that keeps states of earlier
//! prompts knows none of them. They are asked in company first and then one at a time, and the two answers to each are
//! compared byte for byte.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::Object;

use super::Verdict;
use super::client::{Answer, Client};
use super::times::{ms, ms_value, percentile};
use crate::meter::Meter;

/// How a number of clients fared.
#[derive(Debug)]
pub(crate) struct Level {
    clients: usize,
    requests: usize,
    wall: Duration,
    tokens: u64,
    /// Of each turn: tokens a second.
    rates: Vec<f64>,
    latencies: Vec<Duration>,
    /// Refusals with a hint; the requests were sent again.
    refused: usize,
    unequal: usize,
    failed: usize,
}

/// Latencies of the prompts of a class of length.
#[derive(Debug)]
pub(crate) struct Class {
    name: &'static str,
    tokens_least: u64,
    tokens_most: u64,
    latencies: Vec<Duration>,
}

/// What some clients got: an answer to each request, or why not.
struct Got {
    answers: Vec<Result<Answer, String>>,
    wall: Duration,
    refused: usize,
}

/// Asks for all requests, with so many clients at a time.
fn ask(client: &Client, requests: &[String], clients: usize, meter: &Meter) -> Got {
    let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let answers = Mutex::new(Vec::with_capacity(requests.len()));
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..clients.min(requests.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(request) = requests.get(index) else {
                        return;
                    };
                    let answer = client.decided(request, &refused);
                    answers
                        .lock()
                        .expect("no client panics")
                        .push((index, answer));
                    meter.one();
                }
            });
        }
    });
    let wall = started.elapsed();
    let mut answers = answers.into_inner().expect("no client panicked");
    answers.sort_by_key(|(index, _)| *index);
    Got {
        answers: answers.into_iter().map(|(_, answer)| answer).collect(),
        wall,
        refused: refused.into_inner(),
    }
}

/// Measures a level and compares its answers with those to the same requests one at a time.
pub(crate) fn level(
    client: &Client,
    requests: &[String],
    clients: usize,
    meter: &Meter,
    verdict: &mut Verdict,
) -> Level {
    let company = ask(client, requests, clients, meter);
    let alone = ask(client, requests, 1, meter);
    let mut level = Level {
        clients,
        requests: requests.len(),
        wall: company.wall,
        tokens: 0,
        rates: Vec::new(),
        latencies: Vec::new(),
        refused: company.refused + alone.refused,
        unequal: 0,
        failed: 0,
    };
    for (index, pair) in company.answers.iter().zip(&alone.answers).enumerate() {
        match pair {
            (Ok(together), Ok(alone)) => {
                level.tokens += together.tokens();
                level.latencies.push(together.took);
                if together.body != alone.body {
                    level.unequal += 1;
                    verdict.unequal(&format!("{clients} clients, request {index}"));
                }
            }
            (Err(fault), _) | (_, Err(fault)) => {
                level.failed += 1;
                verdict.failed(format!("{clients} clients, request {index}: {fault}"));
            }
        }
    }
    level.rates.push(level.per_second(level.tokens as f64));
    level
}

/// Measures latencies, one request at a time.
pub(crate) fn classes(
    client: &Client,
    requests: &[String],
    meter: &Meter,
    verdict: &mut Verdict,
) -> Vec<Class> {
    let mut classes: Vec<Class> = Vec::new();
    for (index, answer) in ask(client, requests, 1, meter)
        .answers
        .into_iter()
        .enumerate()
    {
        let answer = match answer {
            Ok(answer) => answer,
            Err(fault) => {
                verdict.failed(format!("latency, request {index}: {fault}"));
                continue;
            }
        };
        let tokens = answer.tokens();
        let name = crate::compare::size_class(tokens);
        match classes.iter_mut().find(|class| class.name == name) {
            Some(class) => {
                class.tokens_least = class.tokens_least.min(tokens);
                class.tokens_most = class.tokens_most.max(tokens);
                class.latencies.push(answer.took);
            }
            None => classes.push(Class {
                name,
                tokens_least: tokens,
                tokens_most: tokens,
                latencies: vec![answer.took],
            }),
        }
    }
    classes.sort_by_key(|class| class.tokens_least);
    classes
}

impl Level {
    /// Adds another turn of the same level.
    pub(crate) fn add(&mut self, turn: Level) {
        self.requests += turn.requests;
        self.wall += turn.wall;
        self.tokens += turn.tokens;
        self.rates.extend(turn.rates);
        self.latencies.extend(turn.latencies);
        self.refused += turn.refused;
        self.unequal += turn.unequal;
        self.failed += turn.failed;
    }

    /// The throughput against that of another level, in all and turn by turn.
    pub(crate) fn against(&self, other: &Level) -> String {
        let rate = |level: &Level| level.per_second(level.tokens as f64);
        let whole = rate(self) / rate(other).max(f64::MIN_POSITIVE);
        let pairs = self.rates.iter().zip(&other.rates);
        let turns: Vec<String> = pairs
            .map(|(rate, other)| format!("{:.2}", rate / other.max(f64::MIN_POSITIVE)))
            .collect();
        format!(
            "{} clients: {whole:.2} times the tokens a second of {} (turn by turn: {})",
            self.clients,
            other.clients,
            turns.join(" ")
        )
    }

    fn per_second(&self, count: f64) -> f64 {
        count / self.wall.as_secs_f64().max(1e-9)
    }

    pub(crate) fn head() -> String {
        format!(
            "{:>8}{:>10}{:>9}{:>12}{:>12}{:>10}{:>10}{:>9}{:>9}{:>8}",
            "clients",
            "requests",
            "seconds",
            "requests/s",
            "tokens/s",
            "p50 ms",
            "p95 ms",
            "refused",
            "unequal",
            "failed"
        )
    }

    pub(crate) fn line(&self) -> String {
        let requests = self.per_second(self.latencies.len() as f64);
        let tokens = self.per_second(self.tokens as f64);
        format!(
            "{:>8}{:>10}{:>9.2}{requests:>12.2}{tokens:>12.0}{:>10.1}{:>10.1}{:>9}{:>9}{:>8}",
            self.clients,
            self.requests,
            self.wall.as_secs_f64(),
            ms(percentile(&self.latencies, 0.5)),
            ms(percentile(&self.latencies, 0.95)),
            self.refused,
            self.unequal,
            self.failed
        )
    }

    pub(crate) fn value(&self) -> Value {
        Object::new()
            .with("clients", self.clients)
            .with("requests", self.requests)
            .with("seconds", Value::float(self.wall.as_secs_f64()))
            .with(
                "requests_per_second",
                Value::float(self.per_second(self.latencies.len() as f64)),
            )
            .with(
                "tokens_per_second",
                Value::float(self.per_second(self.tokens as f64)),
            )
            .with(
                "tokens_per_second_of_each_turn",
                self.rates
                    .iter()
                    .map(|rate| Value::float(*rate))
                    .collect::<Value>(),
            )
            .with("p50_ms", ms_value(percentile(&self.latencies, 0.5)))
            .with("p95_ms", ms_value(percentile(&self.latencies, 0.95)))
            .with("refused", self.refused)
            .with("unequal", self.unequal)
            .with("failed", self.failed)
            .into()
    }
}

impl Class {
    pub(crate) fn head() -> String {
        format!(
            "{:<12}{:>9}{:>16}{:>11}{:>11}",
            "prompts", "requests", "tokens", "p50 ms", "p95 ms"
        )
    }

    pub(crate) fn line(&self) -> String {
        format!(
            "{:<12}{:>9}{:>16}{:>11.1}{:>11.1}",
            self.name,
            self.latencies.len(),
            format!("{} to {}", self.tokens_least, self.tokens_most),
            ms(percentile(&self.latencies, 0.5)),
            ms(percentile(&self.latencies, 0.95))
        )
    }

    pub(crate) fn value(&self) -> Value {
        Object::new()
            .with("class", self.name)
            .with("requests", self.latencies.len())
            .with("tokens_least", self.tokens_least)
            .with("tokens_most", self.tokens_most)
            .with("p50_ms", ms_value(percentile(&self.latencies, 0.5)))
            .with("p95_ms", ms_value(percentile(&self.latencies, 0.95)))
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(clients: usize, tokens: u64, seconds: u64) -> Level {
        Level {
            clients,
            requests: 2,
            wall: Duration::from_secs(seconds),
            tokens,
            rates: vec![tokens as f64 / seconds as f64],
            latencies: vec![Duration::from_millis(seconds); 2],
            refused: 1,
            unequal: 0,
            failed: 0,
        }
    }

    #[test]
    fn turns_add_up_and_are_compared_pair_by_pair() {
        let mut one = level(1, 1000, 10);
        one.add(level(1, 1000, 20));
        let mut many = level(16, 1000, 5);
        many.add(level(16, 1000, 25));
        assert_eq!((one.requests, one.tokens, one.refused), (4, 2000, 2));
        assert_eq!(one.latencies.len(), 4);
        assert_eq!(
            many.against(&one),
            "16 clients: 1.00 times the tokens a second of 1 (turn by turn: 2.00 0.80)"
        );
    }
}
