//! Traces to a collector: OTLP over HTTP, as protobuf, from a thread of its own.
//!
//! Serving never waits for the collector. Spans that ended go into a bounded queue; those that find it full, and those that
//! the collector does not take in time, are counted and forgotten.

use std::error::Error;
use std::fmt;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use descant_server::{SpanCounts, Traces};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{
    SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanLimits, SpanProcessor,
};
use tokio::runtime::Runtime;
use ureq::Agent;
use ureq::http::Uri;

use crate::failure::Failure;

/// Spans that wait; a request has about seven.
const WAITING_MAX: usize = 4096;
/// Spans that are sent together.
const TOGETHER_MAX: usize = 512;
/// How long a span waits for company.
const COMPANY_WAIT: Duration = Duration::from_millis(500);
/// How long the collector may take.
const SEND_MAX: Duration = Duration::from_secs(5);
/// How long the server's end may wait for the last spans.
const STOP_MAX: Duration = Duration::from_secs(3);
/// Longest reply of a collector that is read, in bytes.
const REPLY_BYTES_MAX: u64 = 1 << 20;

/// What tells a collector.
pub(crate) struct Telling {
    provider: SdkTracerProvider,
    counts: Arc<SpanCounts>,
}

impl Telling {
    /// Begins to tell the collector at an address.
    ///
    /// # Errors
    /// [`Failure::Start`].
    pub(crate) fn start(endpoint: &str) -> Result<Telling, Failure> {
        let start = |source: Box<dyn Error + Send + Sync>| Failure::Start {
            what: "--otlp-endpoint",
            source,
        };
        let counts = Arc::new(SpanCounts::default());
        let mut exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new())
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(traces_url(endpoint))
            .with_timeout(SEND_MAX)
            .build()
            .map_err(|error| start(error.into()))?;
        let resource = Resource::builder()
            .with_service_name("descant")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        exporter.set_resource(&resource);
        let queue = Queue::start(exporter, Arc::clone(&counts)).map_err(start)?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_limits(SpanLimits::default())
            .with_span_processor(queue)
            .build();
        Ok(Telling { provider, counts })
    }

    pub(crate) fn traces(&self) -> Traces {
        Traces::new(self.provider.tracer("descant"), Arc::clone(&self.counts))
    }

    /// Sends what is left, for [`STOP_MAX`] at most.
    pub(crate) fn stop(self) {
        let _ = self.provider.shutdown_with_timeout(STOP_MAX);
    }
}

/// The address of `--otlp-endpoint`: the collector's root, or the whole address of its traces. An empty one is none, as an
/// empty variable of the environment is to other programs that read it.
pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    match (uri.scheme_str(), uri.authority(), uri.query()) {
        (Some("http" | "https"), Some(_), None) => Ok(text.to_owned()),
        _ => Err("wanted http:// or https://, a host, and perhaps a port and a path".to_owned()),
    }
}

fn traces_url(endpoint: &str) -> String {
    let root = endpoint.trim_end_matches('/');
    match root.ends_with("/v1/traces") {
        true => root.to_owned(),
        false => format!("{root}/v1/traces"),
    }
}

/// Spans on their way to the thread that sends them.
#[derive(Debug)]
struct Queue {
    /// `None` once the server stops.
    spans: Mutex<Option<SyncSender<SpanData>>>,
    /// Closed when the thread is done.
    done: Mutex<Receiver<()>>,
    counts: Arc<SpanCounts>,
}

impl Queue {
    fn start(
        exporter: SpanExporter,
        counts: Arc<SpanCounts>,
    ) -> Result<Queue, Box<dyn Error + Send + Sync>> {
        let (spans, waiting) = sync_channel(WAITING_MAX);
        let (running, done) = sync_channel(0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()?;
        let sender = Sender {
            exporter,
            runtime,
            counts: Arc::clone(&counts),
            fails: false,
        };
        thread::Builder::new()
            .name("descant-traces".into())
            .spawn(move || {
                sender.run(&waiting);
                drop::<SyncSender<()>>(running);
            })?;
        Ok(Queue {
            spans: Mutex::new(Some(spans)),
            done: Mutex::new(done),
            counts,
        })
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = spans
            .as_ref()
            .is_some_and(|spans| spans.try_send(span).is_ok());
        if !is_taken {
            self.counts.note_dropped(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        drop(
            self.spans
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        match done.recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => Err(OTelSdkError::Timeout(timeout)),
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
        }
    }
}

/// Sends spans, on its own thread.
struct Sender {
    exporter: SpanExporter,
    runtime: Runtime,
    counts: Arc<SpanCounts>,
    /// Whether the last ones were not taken, which is said in the log once.
    fails: bool,
}

impl Sender {
    fn run(mut self, waiting: &Receiver<SpanData>) {
        while let Ok(first) = waiting.recv() {
            let mut spans = vec![first];
            let until = Instant::now() + COMPANY_WAIT;
            while spans.len() < TOGETHER_MAX {
                let left = until.saturating_duration_since(Instant::now());
                match waiting.recv_timeout(left) {
                    Ok(span) => spans.push(span),
                    Err(_) => break,
                }
            }
            self.send(spans);
        }
    }

    fn send(&mut self, spans: Vec<SpanData>) {
        let count = spans.len();
        match self.runtime.block_on(self.exporter.export(spans)) {
            Ok(()) => {
                self.counts.note_sent(count);
                if std::mem::take(&mut self.fails) {
                    tracing::info!("the collector of traces takes spans again");
                }
            }
            Err(error) => {
                self.counts.note_dropped(count);
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%error, "the collector of traces takes no spans");
                }
            }
        }
    }
}

/// The program's own HTTP client, as the exporter wants one. It blocks its thread, which has nothing else to do.
struct Client(Agent);

impl Client {
    fn new() -> Client {
        let config = Agent::config_builder()
            .timeout_global(Some(SEND_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Client(config.into())
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let reply = self.0.run(Request::from_parts(head, body.to_vec()))?;
        let (head, mut body) = reply.into_parts();
        let body = body.with_config().limit(REPLY_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(future::ready(self.send(request)))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_root_or_the_whole_address() {
        for (given, wanted) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
            ("https://c.example/otlp", "https://c.example/otlp/v1/traces"),
            ("http://c/v1/traces", "http://c/v1/traces"),
        ] {
            assert_eq!(traces_url(&endpoint(given).unwrap()), wanted);
        }
        assert_eq!(endpoint(""), Ok(String::new()));
        for wrong in ["localhost:4318", "grpc://c:4317", "http://", "http://c?x=1"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
