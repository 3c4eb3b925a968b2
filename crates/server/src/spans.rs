//! What a collector of traces is told of a request: when each of its stages began and ended, with counts.
//!
//! ```text
//! POST /v1/systemone        the whole request, until the last byte of a stream is made
//!   read                    the body arrives
//!   encode                  it is decoded, checked and made tokens of
//!   queue                   a prompt waits for a slot
//!   rounds                  its rows run
//!   head                    what is left for the head after the last of them
//!   answer                  the reply is written
//! ```
//! A text has `prompt` (until its first token) and `generate` in place of the last three. Names and attributes come from
//! closed sets, and counts are numbers: nothing that a client wrote is told. Of a client's trace context its ids are taken over,
//! not its `tracestate`, which is text without meaning here.
//!
//! A request carries its trace as a task-local value: most of its way is one task, and what is not takes a clone along.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;

/// Where traces go.
#[derive(Clone)]
pub struct Traces {
    tracer: SdkTracer,
    counts: Arc<SpanCounts>,
}

/// What became of the spans that ended.
#[derive(Debug, Default)]
pub struct SpanCounts {
    dropped: AtomicU64,
    sent: AtomicU64,
}

/// A request's trace; of a server that tells nobody it is empty. The request's span ends with the last clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace(Option<Arc<Telling>>);

/// A request of which a collector is told.
struct Telling {
    tracer: SdkTracer,
    /// With the request's span in it.
    context: Context,
    /// The same moment on both clocks.
    started: (Instant, SystemTime),
}

tokio::task_local! {
    static TRACE: Trace;
}

impl Traces {
    /// Traces that a tracer takes, with what its exporter counts.
    pub fn new(tracer: SdkTracer, counts: Arc<SpanCounts>) -> Traces {
        Traces { tracer, counts }
    }

    pub(crate) fn counts(&self) -> &SpanCounts {
        &self.counts
    }

    /// Begins a request's trace, or goes on with its client's.
    pub(crate) fn begin(&self, name: String, headers: &HeaderMap) -> Trace {
        let parent = TraceContextPropagator::new().extract(&TraceParent(headers));
        let started = (Instant::now(), SystemTime::now());
        let span = self
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Server)
            .with_start_time(started.1)
            .start_with_context(&self.tracer, &parent);
        Trace(Some(Arc::new(Telling {
            tracer: self.tracer.clone(),
            context: parent.with_span(span),
            started,
        })))
    }
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl SpanCounts {
    /// Spans that a collector has taken.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Spans that nobody will hear of: there were too many at a time, or the collector did not take them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts spans that a collector has taken.
    pub fn note_sent(&self, spans: usize) {
        self.sent.fetch_add(spans as u64, Ordering::Relaxed);
    }

    /// Counts spans that are lost.
    pub fn note_dropped(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

impl Trace {
    /// The trace of the request whose task this is.
    pub(crate) fn current() -> Trace {
        TRACE.try_with(Trace::clone).unwrap_or_default()
    }

    /// Runs a request with this trace as its own.
    pub(crate) async fn within<F: Future>(self, request: F) -> F::Output {
        TRACE.scope(self, request).await
    }

    /// Tells of a stage that is over.
    pub(crate) fn stage(&self, name: &'static str, from: Instant, to: Instant, counts: Counts<'_>) {
        let Some(telling) = &self.0 else { return };
        let mut span = telling
            .tracer
            .span_builder(name)
            .with_start_time(telling.time(from))
            .with_attributes(counts.iter().map(attribute))
            .start_with_context(&telling.tracer, &telling.context);
        span.end_with_timestamp(telling.time(to));
    }

    /// Tells counts of the whole request.
    pub(crate) fn count(&self, counts: Counts<'_>) {
        if let Some(telling) = &self.0 {
            let counts = counts.iter().map(attribute);
            telling.context.span().set_attributes(counts);
        }
    }

    /// Tells how the request was answered.
    pub(crate) fn replied(
        &self,
        method: &'static str,
        route: &'static str,
        status: u16,
        refusal: Option<&'static str>,
    ) {
        let Some(telling) = &self.0 else { return };
        let span = telling.context.span();
        span.set_attribute(KeyValue::new("http.request.method", method));
        span.set_attribute(KeyValue::new("http.route", route));
        span.set_attribute(KeyValue::new(
            "http.response.status_code",
            i64::from(status),
        ));
        if let Some(code) = refusal {
            span.set_attribute(KeyValue::new("error.type", code));
        }
        if status >= 500 {
            span.set_status(Status::error(refusal.unwrap_or_default()));
        }
    }

    /// The id under which the collector has it, for the log.
    pub(crate) fn id(&self) -> Option<String> {
        let telling = self.0.as_ref()?;
        let span = telling.context.span();
        let is_told = span.span_context().is_sampled();
        is_told.then(|| span.span_context().trace_id().to_string())
    }
}

impl Telling {
    fn time(&self, moment: Instant) -> SystemTime {
        let (instant, time) = self.started;
        time + moment.saturating_duration_since(instant)
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.context.span().end();
    }
}

impl fmt::Debug for Telling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telling").finish_non_exhaustive()
    }
}

/// Names and counts.
pub(crate) type Counts<'a> = &'a [(&'static str, usize)];

fn attribute((name, count): &(&'static str, usize)) -> KeyValue {
    KeyValue::new(*name, i64::try_from(*count).unwrap_or(i64::MAX))
}

/// The part of a request's headers that is taken over.
struct TraceParent<'a>(&'a HeaderMap);

impl Extractor for TraceParent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.get(key)?.to_str().ok(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};

    use super::*;

    fn traces() -> (Traces, InMemorySpanExporter, SdkTracerProvider) {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let traces = Traces::new(provider.tracer("descant"), Arc::default());
        (traces, exporter, provider)
    }

    #[test]
    fn a_clients_trace_is_continued_and_its_text_is_not() {
        let (traces, exporter, _provider) = traces();
        let mut headers = HeaderMap::new();
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        headers.insert("traceparent", HeaderValue::from_static(parent));
        headers.insert("tracestate", HeaderValue::from_static("vendor=private"));
        let trace = traces.begin("POST /v1/systemone".into(), &headers);
        let now = Instant::now();
        trace.stage(
            "read",
            now,
            now + Duration::from_millis(5),
            &[("descant.body.bytes", 7)],
        );
        trace.replied("POST", "/v1/systemone", 529, Some("overloaded"));
        assert_eq!(trace.id().as_deref(), Some(&parent[3..35]));
        // The request's span waits for whoever still has a part in it.
        let other = trace.clone();
        drop(trace);
        assert_eq!(exporter.get_finished_spans().unwrap().len(), 1);
        drop(other);
        let spans = exporter.get_finished_spans().unwrap();
        let [read, request] = &spans[..] else {
            panic!("{spans:?}");
        };
        assert_eq!(read.parent_span_id, request.span_context.span_id());
        assert_eq!(
            read.end_time.duration_since(read.start_time).unwrap(),
            Duration::from_millis(5)
        );
        assert_eq!(request.parent_span_id.to_string(), &parent[36..52]);
        assert!(request.parent_span_is_remote);
        assert!(matches!(request.status, Status::Error { .. }));
        for span in &spans {
            assert_eq!(span.span_context.trace_id().to_string(), &parent[3..35]);
            assert!(!format!("{span:?}").contains("private"));
        }
    }

    #[test]
    fn a_client_may_ask_not_to_be_told_of_and_nonsense_begins_a_new_trace() {
        let (traces, exporter, _provider) = traces();
        for (parent, told) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", 0),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", 1),
            ("nonsense", 1),
            ("", 1),
        ] {
            exporter.reset();
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(parent));
            let trace = traces.begin("GET /health".into(), &headers);
            assert_eq!(trace.id().is_some(), told == 1, "{parent}");
            drop(trace);
            let spans = exporter.get_finished_spans().unwrap();
            assert_eq!(spans.len(), told, "{parent}");
            assert!(spans.iter().all(|span| !span.parent_span_is_remote));
        }
    }

    #[test]
    fn nothing_is_told_where_nobody_listens() {
        let trace = Trace::default();
        trace.stage("read", Instant::now(), Instant::now(), &[]);
        trace.replied("GET", "/", 200, None);
        assert!(trace.id().is_none() && Trace::current().id().is_none());
    }
}
