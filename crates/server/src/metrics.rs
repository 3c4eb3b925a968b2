//! What the server has done, in Prometheus's text format 0.0.4.
//!
//! All labels come from small closed sets: nothing that a client sends becomes one, so no client can make the page grow.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use descant_decision::{Kind, Record};
use descant_engine::{Decided, Health, Stats, Times};

use crate::error::Refused;
use crate::spans::SpanCounts;

/// The figures of one server. Copies are of the same figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Arc<Mutex<Figures>>);

#[derive(Debug, Default)]
struct Figures {
    /// Replies by route and status.
    replies: BTreeMap<(&'static str, u16), u64>,
    /// Times of requests by route.
    times: BTreeMap<&'static str, Times>,
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
    queue: Times,
    engine: Times,
    /// Texts by how they ended.
    texts: BTreeMap<&'static str, u64>,
    text_prompt_tokens: u64,
    text_cached_tokens: u64,
    text_tokens: u64,
    first_token: Times,
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

/// A text that was generated, or not to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text {
    /// Why it ended, or the code of the refusal that ended it.
    pub(crate) outcome: &'static str,
    /// Tokens of its prompt.
    pub(crate) prompt: usize,
    /// Of these, taken from the state cache.
    pub(crate) cached: usize,
    /// Tokens of its own.
    pub(crate) tokens: usize,
    /// Time from the order to the first of them, if there was one.
    pub(crate) first_token: Option<Duration>,
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
    /// What became of spans, if a collector is told of requests.
    pub(crate) spans: Option<&'a SpanCounts>,
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

    /// Notes a text.
    pub(crate) fn told(&self, text: &Text) {
        let mut figures = self.figures();
        *figures.texts.entry(text.outcome).or_default() += 1;
        figures.text_prompt_tokens += text.prompt as u64;
        figures.text_cached_tokens += text.cached as u64;
        figures.text_tokens += text.tokens as u64;
        if let Some(time) = text.first_token {
            figures.first_token.note(time);
        }
    }

    /// The page.
    pub(crate) fn page(&self, now: &Now<'_>) -> String {
        let figures = self.figures();
        let mut page = Page::default();
        page.server(&figures, now);
        page.decisions(&figures);
        page.texts(&figures);
        if let Some(spans) = now.spans {
            page.spans(spans);
        }
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

    fn spans(&mut self, spans: &SpanCounts) {
        self.family(
            "descant_spans_total",
            "counter",
            "Spans of traces: taken by the collector, and lost.",
        );
        for (end, count) in [("sent", spans.sent()), ("dropped", spans.dropped())] {
            self.sample("descant_spans_total", &[("end", end)], count);
        }
    }

    fn texts(&mut self, figures: &Figures) {
        self.family(
            "descant_texts_total",
            "counter",
            "Texts that were generated, by why they ended.",
        );
        for (end, count) in &figures.texts {
            self.sample("descant_texts_total", &[("end", end)], count);
        }
        self.family(
            "descant_text_tokens_total",
            "counter",
            "Tokens of chat and completions: of prompts, of these from the state cache, and generated.",
        );
        for (kind, count) in [
            ("prompt", figures.text_prompt_tokens),
            ("cached", figures.text_cached_tokens),
            ("completion", figures.text_tokens),
        ] {
            self.sample("descant_text_tokens_total", &[("kind", kind)], count);
        }
        self.family(
            "descant_first_token_seconds",
            "histogram",
            "Time of texts between their order and their first token.",
        );
        self.histogram("descant_first_token_seconds", &[], &figures.first_token);
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
        self.family("descant_round_seconds", "histogram", "Times of rounds.");
        self.histogram("descant_round_seconds", &[], &stats.round_times);
        self.family(
            "descant_head_seconds",
            "histogram",
            "Times of the turns of decisions in the head.",
        );
        self.histogram("descant_head_seconds", &[], &stats.head_times);
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

    fn histogram(&mut self, name: &str, labels: Labels<'_>, times: &Times) {
        let bucket = format!("{name}_bucket");
        for (bound, count) in times.up_to() {
            let bound = bound.as_secs_f64().to_string();
            self.sample(
                &bucket,
                &[labels, &[("le", bound.as_str())]].concat(),
                count,
            );
        }
        let count = times.count();
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), count);
        self.sample(&format!("{name}_sum"), labels, times.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, count);
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
            spans: Some(&SpanCounts::default()),
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
            head_time: Duration::ZERO,
            cached_rows: 64,
            queue_time: Duration::from_millis(2),
            engine_time: 100 * second,
            round_longest: second,
        };
        let tokens = Tokens {
            read: 90,
            truncated: 7,
        };
        metrics.decided(&record, tokens, &[decided.clone(), decided]);
        for (outcome, first_token) in [("stop", Some(second)), ("cancelled", None)] {
            metrics.told(&Text {
                outcome,
                prompt: 70,
                cached: 64,
                tokens: 5,
                first_token,
            });
        }
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
            (r#"descant_texts_total{end="stop"}"#, 1.0),
            (r#"descant_texts_total{end="cancelled"}"#, 1.0),
            (r#"descant_text_tokens_total{kind="prompt"}"#, 140.0),
            (r#"descant_text_tokens_total{kind="cached"}"#, 128.0),
            (r#"descant_text_tokens_total{kind="completion"}"#, 10.0),
            (r#"descant_first_token_seconds_bucket{le="0.5"}"#, 0.0),
            (r#"descant_first_token_seconds_bucket{le="1"}"#, 1.0),
            ("descant_first_token_seconds_count", 1.0),
        ] {
            assert!((value(&text, sample) - wanted).abs() < 1e-12, "{sample}");
        }
        assert!(!text.contains("descant_rounds_total"));
        drop((connection, request));
        let mut stats = Stats {
            rounds: 5,
            ..Stats::default()
        };
        stats.round_times.note(Duration::from_millis(7));
        stats.head_times.note(Duration::from_millis(20));
        let text = page(&metrics, Some(&stats));
        for (sample, wanted) in [
            (r#"descant_round_seconds_bucket{le="0.005"}"#, 0.0),
            (r#"descant_round_seconds_bucket{le="0.01"}"#, 1.0),
            ("descant_round_seconds_sum", 0.007),
            (r#"descant_head_seconds_bucket{le="0.01"}"#, 0.0),
            ("descant_head_seconds_count", 1.0),
        ] {
            assert!((value(&text, sample) - wanted).abs() < 1e-12, "{sample}");
        }
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
