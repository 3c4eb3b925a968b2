//! What the server has done, in Prometheus's text format 0.0.4.
//!
//! All labels come from small closed sets: nothing that a client sends becomes one, so no client can make the page grow.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use descant_decision::{Kind, Record};
use descant_engine::{Decided, Health, Stats};

use crate::error::Refused;

/// Upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// The figures of one server.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Figures>);

#[derive(Debug, Default)]
struct Figures {
    /// Replies by route and status.
    replies: BTreeMap<(&'static str, u16), u64>,
    /// Times of requests by route.
    times: BTreeMap<&'static str, Histogram>,
    /// Refusals by code.
    refusals: BTreeMap<&'static str, u64>,
    in_flight: u64,
    connections: u64,
    decisions: u64,
    /// By kind: noul, choice, score.
    questions: [u64; 3],
    prompt_tokens: u64,
    truncated_tokens: u64,
    cached_tokens: u64,
    queue: Histogram,
    engine: Histogram,
}

/// Times, counted in buckets.
#[derive(Clone, Debug, Default)]
struct Histogram {
    /// One bucket for each of [`SECONDS`], none of them in another.
    buckets: [u64; SECONDS.len()],
    count: u64,
    sum: f64,
}

/// Something that is at hand; no longer when dropped.
#[derive(Debug)]
pub(crate) struct AtHand<'a> {
    of: &'a Metrics,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Connection,
    Request,
}

/// Tokens of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    /// Of its prompts.
    pub(crate) read: usize,
    /// Cut from its state.
    pub(crate) truncated: usize,
}

/// What is known about the server besides its figures.
#[derive(Debug)]
pub(crate) struct Now<'a> {
    /// The device and its precision; empty while the model is loaded.
    pub(crate) backend: &'a str,
    /// The engine's figures; none while the model is loaded.
    pub(crate) stats: Option<&'a Stats>,
    /// Whether a request would be taken up.
    pub(crate) ready: bool,
    /// Share of the model that is loaded, from 0 to 1.
    pub(crate) loaded: f64,
}

impl Metrics {
    /// Counts an open connection.
    pub(crate) fn connection(&self) -> AtHand<'_> {
        self.enter(What::Connection)
    }

    /// Counts a request that is at hand.
    pub(crate) fn request(&self) -> AtHand<'_> {
        self.enter(What::Request)
    }

    /// Notes a reply.
    pub(crate) fn replied(
        &self,
        route: &'static str,
        status: u16,
        refused: Option<&Refused>,
        took: Duration,
    ) {
        let mut figures = self.figures();
        *figures.replies.entry((route, status)).or_default() += 1;
        figures.times.entry(route).or_default().note(took);
        if let Some(refused) = refused {
            *figures.refusals.entry(refused.code()).or_default() += 1;
        }
    }

    /// Notes a decision.
    pub(crate) fn decided(&self, record: &Record, tokens: Tokens, decided: &[Decided]) {
        let mut figures = self.figures();
        figures.decisions += 1;
        for question in record.questions() {
            figures.questions[question.kind() as usize] += 1;
        }
        figures.prompt_tokens += tokens.read as u64;
        figures.truncated_tokens += tokens.truncated as u64;
        for decided in decided {
            figures.cached_tokens += decided.cached_rows as u64;
            figures.queue.note(decided.queue_time);
            figures.engine.note(decided.engine_time);
        }
    }

    /// The page.
    pub(crate) fn page(&self, now: &Now<'_>) -> String {
        let figures = self.figures();
        let mut page = Page::default();
        page.server(&figures, now);
        page.decisions(&figures);
        if let Some(stats) = now.stats {
            page.engine(stats);
        }
        page.0
    }

    fn enter(&self, what: What) -> AtHand<'_> {
        *self.figures().at_hand(what) += 1;
        AtHand { of: self, what }
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AtHand<'_> {
    fn drop(&mut self) {
        *self.of.figures().at_hand(self.what) -= 1;
    }
}

impl Figures {
    fn at_hand(&mut self, what: What) -> &mut u64 {
        match what {
            What::Connection => &mut self.connections,
            What::Request => &mut self.in_flight,
        }
    }
}

impl Histogram {
    fn note(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(bucket) = SECONDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[bucket] += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

/// The text while it is written.
#[derive(Default)]
struct Page(String);

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    fn server(&mut self, figures: &Figures, now: &Now<'_>) {
        self.family("descant_build_info", "gauge", "The program and its device.");
        let version = env!("CARGO_PKG_VERSION");
        let labels = [("version", version), ("backend", now.backend)];
        self.sample("descant_build_info", &labels, 1);
        self.one(
            "descant_ready",
            "gauge",
            "Whether requests are taken up.",
            u8::from(now.ready),
        );
        self.one(
            "descant_loaded_ratio",
            "gauge",
            "Share of the model that is loaded.",
            now.loaded,
        );
        self.family(
            "descant_http_requests_total",
            "counter",
            "Replies by route and status.",
        );
        for ((route, status), count) in &figures.replies {
            let labels = [("route", *route), ("status", &status.to_string())];
            self.sample("descant_http_requests_total", &labels, count);
        }
        self.family(
            "descant_http_request_seconds",
            "histogram",
            "Times of requests, body and reply included.",
        );
        for (route, times) in &figures.times {
            self.histogram("descant_http_request_seconds", &[("route", route)], times);
        }
        self.one(
            "descant_http_requests_in_flight",
            "gauge",
            "Requests at hand.",
            figures.in_flight,
        );
        self.one(
            "descant_http_connections",
            "gauge",
            "Open connections.",
            figures.connections,
        );
        self.family(
            "descant_refusals_total",
            "counter",
            "Refused requests by the code of the refusal.",
        );
        for (code, count) in &figures.refusals {
            self.sample("descant_refusals_total", &[("reason", code)], count);
        }
    }

    fn decisions(&mut self, figures: &Figures) {
        self.one(
            "descant_decisions_total",
            "counter",
            "Requests that were decided.",
            figures.decisions,
        );
        self.family(
            "descant_questions_total",
            "counter",
            "Questions that were answered.",
        );
        for (kind, count) in [Kind::Noul, Kind::Choice, Kind::Score]
            .iter()
            .zip(figures.questions)
        {
            self.sample("descant_questions_total", &[("type", kind.name())], count);
        }
        self.one(
            "descant_prompt_tokens_total",
            "counter",
            "Tokens of the prompts of decisions.",
            figures.prompt_tokens,
        );
        self.one(
            "descant_truncated_tokens_total",
            "counter",
            "Tokens cut from the ends of states.",
            figures.truncated_tokens,
        );
        self.one(
            "descant_cached_tokens_total",
            "counter",
            "Tokens of decisions whose states were in the cache.",
            figures.cached_tokens,
        );
        self.family(
            "descant_queue_seconds",
            "histogram",
            "Time of prompts between arrival and slot.",
        );
        self.histogram("descant_queue_seconds", &[], &figures.queue);
        self.family(
            "descant_engine_seconds",
            "histogram",
            "Time of prompts between slot and answer.",
        );
        self.histogram("descant_engine_seconds", &[], &figures.engine);
    }

    #[expect(clippy::too_many_lines, reason = "a list")]
    fn engine(&mut self, stats: &Stats) {
        let healthy = u8::from(stats.health == Health::Good);
        self.one(
            "descant_engine_healthy",
            "gauge",
            "Whether rounds succeed.",
            healthy,
        );
        self.one(
            "descant_jobs_waiting",
            "gauge",
            "Jobs that wait for a slot.",
            stats.queued,
        );
        self.one(
            "descant_jobs_prompt",
            "gauge",
            "Jobs whose prompt is being run.",
            stats.prompts,
        );
        self.one(
            "descant_jobs_stream",
            "gauge",
            "Chat streams that give tokens.",
            stats.streams,
        );
        self.one(
            "descant_jobs_head",
            "gauge",
            "Decisions whose rows are all with the head.",
            stats.in_head,
        );
        self.one("descant_slots", "gauge", "Slots in all.", stats.slots);
        self.one(
            "descant_slots_free",
            "gauge",
            "Slots that nobody has.",
            stats.slots_free,
        );
        self.family("descant_jobs_total", "counter", "Jobs that ended, by how.");
        for (how, count) in [
            ("answered", stats.answered),
            ("busy", stats.refused_busy),
            ("cancelled", stats.cancelled),
            ("closing", stats.refused_closing),
            ("deadline", stats.refused_deadline),
            ("defect", stats.defects),
        ] {
            self.sample("descant_jobs_total", &[("end", how)], count);
        }
        self.one(
            "descant_jobs_arrived_total",
            "counter",
            "Jobs taken in.",
            stats.arrived,
        );
        self.one(
            "descant_rounds_total",
            "counter",
            "Rounds run, failed ones too.",
            stats.rounds,
        );
        self.one(
            "descant_rounds_failed_total",
            "counter",
            "Rounds that the device failed.",
            stats.rounds_failed,
        );
        self.one(
            "descant_round_seconds_total",
            "counter",
            "Time spent in rounds.",
            stats.round_time.as_secs_f64(),
        );
        self.one(
            "descant_head_seconds_total",
            "counter",
            "Time that the head's threads worked.",
            stats.head_time.as_secs_f64(),
        );
        self.family("descant_rows_total", "counter", "Rows run, by pass.");
        self.sample(
            "descant_rows_total",
            &[("pass", "prefill")],
            stats.prefill_rows,
        );
        self.sample(
            "descant_rows_total",
            &[("pass", "decode")],
            stats.decode_rows,
        );
        self.one(
            "descant_cached_rows_total",
            "counter",
            "Prompt rows that came from the state cache.",
            stats.cached_rows,
        );
        self.one(
            "descant_cache_hits_total",
            "counter",
            "Prompts that found a prefix in the state cache.",
            stats.cache_hits,
        );
        self.one(
            "descant_cache_misses_total",
            "counter",
            "Prompts that found none.",
            stats.cache_misses,
        );
        self.one(
            "descant_cache_evictions_total",
            "counter",
            "Snapshots dropped to make room.",
            stats.cache_evictions,
        );
        self.one(
            "descant_cache_entries",
            "gauge",
            "Snapshots held.",
            stats.cache_entries,
        );
        self.one(
            "descant_cache_bytes",
            "gauge",
            "Memory of the snapshots held.",
            stats.cache_bytes,
        );
    }

    /// A family of one sample.
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn histogram(&mut self, name: &str, labels: Labels<'_>, times: &Histogram) {
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in SECONDS.iter().zip(times.buckets) {
            below += count;
            let bound = bound.to_string();
            self.sample(
                &bucket,
                &[labels, &[("le", bound.as_str())]].concat(),
                below,
            );
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), times.count);
        self.sample(&format!("{name}_sum"), labels, times.sum);
        self.sample(&format!("{name}_count"), labels, times.count);
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}")),
            false => self.line(format_args!("{name}{{{}}} {value}", labels.join(","))),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a String takes all text");
    }
}

/// A label's value with what the format escapes.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use descant_decision::{Limits, json};

    use super::*;

    fn page(metrics: &Metrics, stats: Option<&Stats>) -> String {
        metrics.page(&Now {
            backend: "cpu \"x\"",
            stats,
            ready: stats.is_some(),
            loaded: 0.5,
        })
    }

    fn value(page: &str, sample: &str) -> f64 {
        let line = page.lines().find(|line| {
            line.strip_prefix(sample)
                .is_some_and(|rest| rest.starts_with(' '))
        });
        let line = line.unwrap_or_else(|| panic!("no {sample} in\n{page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn what_happened_is_counted() {
        let metrics = Metrics::default();
        let connection = metrics.connection();
        let request = metrics.request();
        let second = Duration::from_secs(1);
        metrics.replied("/v1/systemone", 200, None, 3 * second);
        metrics.replied(
            "/v1/systemone",
            529,
            Some(&Refused::Busy { retry_after_ms: 1 }),
            second,
        );
        let body = r#"{"state":1,"questions":{"a":{"type":"noul"},"b":{"type":"noul"},"c":{"type":"score","criteria":["x"]}}}"#;
        let record =
            Record::from_value(&json::parse_str(body).unwrap(), &Limits::default()).unwrap();
        let decided = Decided {
            logits: Vec::new(),
            cached_rows: 64,
            queue_time: Duration::from_millis(2),
            engine_time: 100 * second,
        };
        let tokens = Tokens {
            read: 90,
            truncated: 7,
        };
        metrics.decided(&record, tokens, &[decided.clone(), decided]);
        let text = page(&metrics, None);
        for (sample, wanted) in [
            (
                r#"descant_build_info{version="0.1.0",backend="cpu \"x\""}"#,
                1.0,
            ),
            ("descant_ready", 0.0),
            ("descant_loaded_ratio", 0.5),
            ("descant_http_connections", 1.0),
            ("descant_http_requests_in_flight", 1.0),
            (
                r#"descant_http_requests_total{route="/v1/systemone",status="200"}"#,
                1.0,
            ),
            (
                r#"descant_http_requests_total{route="/v1/systemone",status="529"}"#,
                1.0,
            ),
            (
                r#"descant_http_request_seconds_bucket{route="/v1/systemone",le="0.5"}"#,
                0.0,
            ),
            (
                r#"descant_http_request_seconds_bucket{route="/v1/systemone",le="1"}"#,
                1.0,
            ),
            (
                r#"descant_http_request_seconds_bucket{route="/v1/systemone",le="5"}"#,
                2.0,
            ),
            (
                r#"descant_http_request_seconds_sum{route="/v1/systemone"}"#,
                4.0,
            ),
            (r#"descant_refusals_total{reason="overloaded"}"#, 1.0),
            ("descant_decisions_total", 1.0),
            (r#"descant_questions_total{type="noul"}"#, 2.0),
            (r#"descant_questions_total{type="choice"}"#, 0.0),
            (r#"descant_questions_total{type="score"}"#, 1.0),
            ("descant_prompt_tokens_total", 90.0),
            ("descant_truncated_tokens_total", 7.0),
            ("descant_cached_tokens_total", 128.0),
            (r#"descant_queue_seconds_bucket{le="0.0025"}"#, 2.0),
            (r#"descant_engine_seconds_bucket{le="60"}"#, 0.0),
            (r#"descant_engine_seconds_bucket{le="+Inf"}"#, 2.0),
            ("descant_engine_seconds_count", 2.0),
        ] {
            assert!((value(&text, sample) - wanted).abs() < 1e-12, "{sample}");
        }
        assert!(!text.contains("descant_rounds_total"));
        drop((connection, request));
        let text = page(
            &metrics,
            Some(&Stats {
                rounds: 5,
                ..Stats::default()
            }),
        );
        assert!((value(&text, "descant_http_connections")).abs() < 1e-12);
        assert!((value(&text, "descant_http_requests_in_flight")).abs() < 1e-12);
        assert!((value(&text, "descant_rounds_total") - 5.0).abs() < 1e-12);
    }

    /// Every sample follows the `TYPE` line of its family, and no family comes twice.
    #[test]
    fn the_page_is_well_formed() {
        let metrics = Metrics::default();
        metrics.replied("/", 200, None, Duration::ZERO);
        let text = page(&metrics, Some(&Stats::default()));
        assert!(text.ends_with('\n'));
        let (mut families, mut family) = (Vec::new(), "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap();
                assert!(!families.contains(&family), "{family}");
                families.push(family);
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let rest = name
                    .strip_prefix(family)
                    .unwrap_or_else(|| panic!("{line}"));
                assert!(matches!(rest, "" | "_bucket" | "_count" | "_sum"), "{line}");
                assert!(
                    line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(),
                    "{line}"
                );
            }
        }
        let docs = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/reference/metrics.md"
        );
        let docs = std::fs::read_to_string(docs).unwrap();
        for family in families {
            assert!(docs.contains(&format!("`{family}")), "{family}");
        }
    }
}
