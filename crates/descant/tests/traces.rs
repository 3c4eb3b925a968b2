//! Traces, as a collector in this process gets them over a real socket; and collectors that are not there, or do not answer.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

use crate::common::Server;

const BODY: &str = r#"{"state": "The lamp is broken.", "questions": {"secret-id": {"type": "noul", "instructions": "Is it?"},
    "other": {"type": "choice", "criteria": {"kitchen": null, "attic": null}}}}"#;
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A collector that takes all, and keeps it.
struct Collector {
    endpoint: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bodies);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = Arc::clone(&kept);
                thread::spawn(move || collect(stream.unwrap(), &kept));
            }
        });
        Collector { endpoint, bodies }
    }

    /// All spans so far, with the services that they are of.
    fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies.lock().unwrap();
        let requests = bodies
            .iter()
            .map(|body| ExportTraceServiceRequest::decode(body.as_slice()).unwrap());
        let mut spans = Vec::new();
        for of_resource in requests.flat_map(|request| request.resource_spans) {
            let resource = of_resource.resource.unwrap();
            let service = resource
                .attributes
                .iter()
                .find(|attribute| attribute.key == "service.name");
            let service = service.unwrap().value.clone().unwrap().value.unwrap();
            assert_eq!(service, Value::StringValue("descant".into()));
            spans.extend(of_resource.scope_spans.into_iter().flat_map(|of| of.spans));
        }
        spans
    }

    /// Waits for a request's span, which ends last, and gives it and those within it.
    fn request(&self, name: &str) -> (Span, Vec<Span>) {
        let start = Instant::now();
        loop {
            let (whole, rest): (Vec<Span>, Vec<Span>) =
                self.spans().into_iter().partition(|span| span.name == name);
            if let [request] = &whole[..] {
                let within = rest
                    .into_iter()
                    .filter(|span| span.parent_span_id == request.span_id);
                return (request.clone(), within.collect());
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no {name}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Answers the requests of a connection, each with an empty message, which says that all was taken.
fn collect(stream: TcpStream, kept: &Mutex<Vec<Vec<u8>>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line) = (0, String::new());
        while reader.read_line(&mut line).unwrap_or(0) > 2 {
            let head = line.to_ascii_lowercase();
            if let Some(found) = head.strip_prefix("content-length:") {
                length = found.trim().parse().unwrap();
            } else if let Some(kind) = head.strip_prefix("content-type:") {
                assert_eq!(kind.trim(), "application/x-protobuf");
            } else if head.starts_with("post") {
                assert!(head.starts_with("post /v1/traces http/1.1"), "{head}");
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if length == 0 || reader.read_exact(&mut body).is_err() {
            return;
        }
        kept.lock().unwrap().push(body);
        let reply =
            b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        reader.get_mut().write_all(reply).unwrap();
    }
}

fn number(span: &Span, key: &str) -> Option<i64> {
    let found = span.attributes.iter().find(|found| found.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn names(spans: &[Span]) -> BTreeSet<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn figure(server: &Server, sample: &str) -> Option<u64> {
    let page = server.ask("GET", "/metrics", "", b"").body;
    let page = String::from_utf8(page).unwrap();
    let line = page.lines().find(|line| {
        line.strip_prefix(sample)
            .is_some_and(|rest| rest.starts_with(' '))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Stages lie within their request, one after the other.
fn check_times(request: &Span, within: &[Span]) {
    for span in within {
        assert_eq!(span.trace_id, request.trace_id);
        assert!(
            span.start_time_unix_nano <= span.end_time_unix_nano,
            "{}",
            span.name
        );
        assert!(
            span.start_time_unix_nano >= request.start_time_unix_nano,
            "{}",
            span.name
        );
        assert!(
            span.end_time_unix_nano <= request.end_time_unix_nano,
            "{}",
            span.name
        );
    }
    // One after the other, as a request goes.
    let begun = |name: &str| {
        within
            .iter()
            .find(|span| span.name == name)
            .unwrap()
            .start_time_unix_nano
    };
    let order = ["read", "encode", "queue", "rounds", "head", "answer"].map(begun);
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn a_decision_is_told_stage_by_stage_and_without_its_text() {
    let collector = Collector::start();
    let server = Server::start(&["--otlp-endpoint", &collector.endpoint]);
    let headers = format!(
        "traceparent: {PARENT}\r\ntracestate: vendor=private\r\nx-request-id: caller-7\r\n"
    );
    let reply = server.ask("POST", "/v1/systemone", &headers, BODY.as_bytes());
    assert_eq!(reply.status, 200);
    let (request, within) = collector.request("POST /v1/systemone");
    let wanted = ["answer", "encode", "head", "queue", "read", "rounds"];
    assert_eq!(names(&within), BTreeSet::from(wanted));
    assert_eq!(within.len(), wanted.len());
    assert_eq!(hex(&request.trace_id), PARENT[3..35]);
    assert_eq!(hex(&request.parent_span_id), PARENT[36..52]);
    check_times(&request, &within);
    let tokens = reply.json();
    let tokens = common::at(&tokens, &["usage", "input_tokens"]).to_string();
    assert_eq!(
        number(&request, "descant.input_tokens")
            .unwrap()
            .to_string(),
        tokens
    );
    assert_eq!(number(&request, "descant.questions"), Some(2));
    assert_eq!(number(&request, "http.response.status_code"), Some(200));
    let bodies = collector.bodies.lock().unwrap().concat();
    for text in [
        "lamp",
        "secret-id",
        "Is it?",
        "kitchen",
        "private",
        "caller-7",
    ] {
        let found = bodies
            .windows(text.len())
            .any(|part| part == text.as_bytes());
        assert!(!found, "the collector was told {text}");
    }
    // The log has the id under which the collector has it.
    assert!(server.log().contains(&PARENT[3..35]));
    let start = Instant::now();
    while figure(&server, r#"descant_spans_total{end="sent"}"#) < Some(7) {
        assert!(start.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        figure(&server, r#"descant_spans_total{end="dropped"}"#),
        Some(0)
    );
}

#[test]
fn a_stream_is_told_to_its_end_and_a_refusal_with_its_code() {
    let collector = Collector::start();
    let server = Server::start(&["--otlp-endpoint", &collector.endpoint]);
    let chat = r#"{"messages": [{"role": "user", "content": "A lamp?"}], "max_tokens": 5, "ignore_eos": true, "stream": true}"#;
    let mut connection = server.connect();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{chat}",
        chat.len()
    );
    connection.send(head.as_bytes()).unwrap();
    assert!(connection.rest().unwrap().starts_with(b"HTTP/1.1 200"));
    let (request, within) = collector.request("POST /v1/chat/completions");
    assert_eq!(
        names(&within),
        BTreeSet::from(["encode", "generate", "prompt", "queue", "read"])
    );
    assert_eq!(number(&request, "descant.output_tokens"), Some(5));
    let generate = within.iter().find(|span| span.name == "generate").unwrap();
    assert!(generate.end_time_unix_nano <= request.end_time_unix_nano);
    assert_eq!(server.ask("POST", "/v1/decisions", "", b"{").status, 400);
    let (request, _) = collector.request("POST /v1/decisions");
    let code = request
        .attributes
        .iter()
        .find(|found| found.key == "error.type");
    let code = code.unwrap().value.clone().unwrap().value;
    assert_eq!(code, Some(Value::StringValue("validation_error".into())));
}

/// One collector refuses connections, the other takes them and never says a word.
#[test]
fn a_collector_that_does_not_answer_is_not_waited_for() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://{}", gone.local_addr().unwrap());
    drop(gone);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging = format!("http://{}", silent.local_addr().unwrap());
    for endpoint in [closed, hanging] {
        let mut server = Server::start(&["--otlp-endpoint", &endpoint, "--stop-timeout", "1"]);
        let mut connection = server.connect();
        let before = server.memory_bytes();
        let start = Instant::now();
        // Three spans each: more than find room while the first are on their way.
        for _ in 0..4_000 {
            let reply = connection.ask("POST", "/v1/systemone", "", b"{}");
            assert_eq!(reply.status, 422);
        }
        let reply = connection.ask("POST", "/v1/systemone", "", BODY.as_bytes());
        assert_eq!(reply.status, 200);
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
        let dropped = r#"descant_spans_total{end="dropped"}"#;
        while figure(&server, dropped) == Some(0) || !server.log().contains("takes no spans") {
            assert!(
                start.elapsed() < Duration::from_secs(40),
                "nothing is dropped"
            );
            thread::sleep(Duration::from_millis(50));
        }
        assert!(server.memory_bytes().saturating_sub(before) < 32 << 20);
        assert_eq!(server.log().matches("takes no spans").count(), 1);
        drop(connection);
        let stopped = Instant::now();
        let id = server.id().to_string();
        std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap();
        assert_eq!(server.wait(), Some(0));
        assert!(
            stopped.elapsed() < Duration::from_secs(15),
            "{:?}",
            stopped.elapsed()
        );
    }
}

#[test]
fn an_address_that_is_none_is_told_at_the_start() {
    let output = common::run(&["serve", "--otlp-endpoint", "localhost:4318"], b"");
    assert_eq!(output.status.code(), Some(2));
    let error = common::text(&output.stderr);
    assert!(error.contains("--otlp-endpoint"), "{error}");
}
