//! `descant prove` and `descant bench` from outside: what they find, and that they find it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::{Server, at, descant, repository, text};
use descant_decision::json::{Value, parse};

/// The program on the tiny random release, where no other is named: a proof is thousands of answers.
fn on_tiny(args: &[&str]) -> Command {
    let mut command = descant(args);
    command.env("DESCANT_MODEL", repository("models/tiny-random"));
    command
}

/// Runs a command that prints JSON; whether it succeeded, and what it printed.
fn json(args: &[&str]) -> (bool, Value) {
    let output = on_tiny(args).output().unwrap();
    let value = parse(&output.stdout);
    let value = value.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (output.status.success(), value)
}

fn count(value: &Value, path: &[&str]) -> u64 {
    at(value, path).as_number().unwrap().as_u64().unwrap()
}

fn number(value: &Value, path: &[&str]) -> f64 {
    at(value, path).as_number().unwrap().as_f64()
}

/// The row of a list whose field has a value.
fn row<'a>(list: &'a Value, field: &str, wanted: &str) -> &'a Value {
    let mut rows = list.as_array().unwrap().iter();
    let found = rows.find(|row| at(row, &[field]).as_str() == Some(wanted));
    found.unwrap_or_else(|| panic!("no {wanted} in {list}"))
}

#[test]
fn a_proof_compares_records_and_chats_in_all_company() {
    let records = repository("fixtures/gate/records.jsonl");
    let few = tempfile::NamedTempFile::new().unwrap();
    let lines = std::fs::read_to_string(records).unwrap();
    let lines: Vec<&str> = lines.lines().take(6).collect();
    std::fs::write(few.path(), lines.join("\n")).unwrap();
    let (proven, report) = json(&[
        "prove",
        "--quick",
        "--json",
        "--threads",
        "2",
        "--pieces",
        "256",
        "--records",
        few.path().to_str().unwrap(),
    ]);
    assert!(proven, "{report}");
    assert_eq!(count(&report, &["unequal"]), 0);
    assert_eq!(count(&report, &["scenes_that_did_not_happen"]), 0);
    assert!(number(&report, &["answers"]) > 500.0, "{report}");
    assert!(number(&report, &["chats"]) > 30.0, "{report}");
    let rows = at(&report, &["rows"]);
    assert_eq!(
        count(row(rows, "value", "8"), &["streams_in_a_round_max"]),
        9
    );
    assert!(number(row(rows, "value", "cancelled"), &["cancelled_in_prefill"]) > 20.0);
    assert!(number(row(rows, "value", "hit"), &["cached_rows"]) > 0.0);
    assert_eq!(count(row(rows, "value", "cold"), &["cached_rows"]), 0);
}

#[test]
fn hits_that_have_no_room_are_not_proven() {
    let output = on_tiny(&[
        "prove",
        "--quick",
        "--thread-counts",
        "1",
        "--pieces",
        "256",
        "--company",
        "alone",
        "--cache-mb",
        "0",
    ])
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("nothing was compared of cache hit"), "{said}");
}

#[test]
fn a_server_is_measured_and_its_answers_are_compared() {
    let server = Server::start(&["--log", "warn"]);
    let url = format!("http://{}", server.address);
    let (good, report) = json(&[
        "bench",
        "http",
        &url,
        "--quick",
        "--json",
        "--levels",
        "1,6",
        "--requests",
        "12",
        "--longest",
        "1500",
    ]);
    assert!(good, "{report}");
    let classes = at(&report, &["latency"]).as_array().unwrap();
    assert_eq!(classes.len(), 2, "{report}");
    assert_eq!(at(&classes[0], &["class"]).as_str(), Some("up to 1K"));
    assert!(number(&classes[1], &["tokens_least"]) > 1024.0);
    assert!(number(&classes[0], &["p50_ms"]) > 0.0);
    let levels = at(&report, &["levels"]).as_array().unwrap();
    assert_eq!(levels.len(), 2);
    for level in levels {
        assert_eq!(count(level, &["requests"]), 12);
        assert_eq!(
            (count(level, &["unequal"]), count(level, &["failed"])),
            (0, 0)
        );
        assert!(number(level, &["tokens_per_second"]) > 0.0);
    }
}

#[test]
fn pressed_beyond_its_room_a_server_refuses_and_keeps_its_slots() {
    let server = Server::start(&["--log", "warn", "--slots", "2", "--queue", "2"]);
    let url = format!("http://{}", server.address);
    let pid = server.id().to_string();
    let (good, report) = json(&[
        "bench",
        "http",
        &url,
        "--json",
        "--soak",
        "4s",
        "--level",
        "12",
        "--quick",
        "--requests",
        "12",
        "--pid",
        &pid,
    ]);
    assert!(good, "{report}");
    assert!(number(&report, &["soak", "answered"]) > 10.0, "{report}");
    assert!(number(&report, &["soak", "refused"]) > 0.0, "{report}");
    assert!(number(&report, &["soak", "memory_end_bytes"]) > 1e6);
}

#[test]
fn clients_that_leave_take_their_requests_with_them() {
    let server = Server::start(&["--log", "warn"]);
    let url = format!("http://{}", server.address);
    let (good, report) = json(&["bench", "http", &url, "--json", "--kill", "40", "--quick"]);
    assert!(good, "{report}");
    let long = number(&report, &["kill", "longest_piece_ms"]) * 4.0;
    // All forty would take forty times as long.
    let waited = number(&report, &["kill", "next_queue_ms"]);
    assert!(waited < 10.0 * long, "{report}");
}

/// A server that answers as it is told: `reply` gets the path, the body and how many requests are at work.
fn fake(reply: impl Fn(&str, &str, usize) -> String + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (reply, inside) = (Arc::new(reply), Arc::new(AtomicUsize::new(0)));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (reply, inside) = (Arc::clone(&reply), Arc::clone(&inside));
            thread::spawn(move || serve_one(stream, &*reply, &inside));
        }
    });
    address
}

fn serve_one(
    mut stream: TcpStream,
    reply: &(impl Fn(&str, &str, usize) -> String + ?Sized),
    inside: &AtomicUsize,
) {
    let (path, body) = request(&stream);
    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
    // Long enough that others come meanwhile.
    thread::sleep(Duration::from_millis(5));
    let said = reply(&path, &body, now);
    inside.fetch_sub(1, Ordering::SeqCst);
    let _ = stream.write_all(said.as_bytes());
}

/// Reads a request: its path and its body.
fn request(stream: &TcpStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(found) = line.strip_prefix("content-length: ") {
            length = found.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let path = first.split(' ').nth(1).unwrap().to_owned();
    (path, String::from_utf8(body).unwrap())
}

fn http(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A reply that says how long the prompt was, by its words.
fn answer(body: &str, noul: &str) -> String {
    let tokens = body.split(' ').count();
    let reply = format!(
        r#"{{"model":"m","answers":{{"q":{{"type":"noul","noul":{noul}}}}},"usage":{{"input_tokens":{tokens},"output_tokens":0}}}}"#
    );
    http("200 OK", "content-type: application/json\r\n", &reply)
}

fn bench(address: SocketAddr) -> (bool, Value) {
    let url = format!("http://{address}");
    json(&[
        "bench",
        "http",
        &url,
        "--quick",
        "--json",
        "--only",
        "levels",
        "--levels",
        "1,4",
        "--requests",
        "16",
        "--longest",
        "300",
    ])
}

#[test]
fn answers_that_change_in_company_are_found() {
    let address = fake(|_, body, inside| answer(body, if inside > 1 { "0.5001" } else { "0.5" }));
    let (good, report) = bench(address);
    assert!(!good, "{report}");
    let levels = at(&report, &["levels"]).as_array().unwrap();
    assert_eq!(count(&levels[0], &["unequal"]), 0);
    assert!(number(&levels[1], &["unequal"]) > 0.0);
    assert_eq!(count(&report, &["failed"]), 0);
}

#[test]
fn a_refusal_with_a_hint_is_tried_again_and_one_without_is_a_failure() {
    let turns = AtomicUsize::new(0);
    let address = fake(move |path, body, _| {
        let turn = turns.fetch_add(1, Ordering::SeqCst);
        match path {
            "/v1/systemone" if turn % 3 == 1 => {
                http("529 Overloaded", "retry-after-ms: 3\r\n", "{}")
            }
            "/v1/systemone" if turn % 3 == 2 => http("503 Busy", "retry-after: 0\r\n", "{}"),
            _ => answer(body, "0.5"),
        }
    });
    let (good, report) = bench(address);
    assert!(good, "{report}");
    let levels = at(&report, &["levels"]).as_array().unwrap();
    assert!(number(&levels[0], &["refused"]) > 0.0);

    let turns = AtomicUsize::new(0);
    let address = fake(move |_, body, _| {
        let turn = turns.fetch_add(1, Ordering::SeqCst);
        match turn > 20 && turn.is_multiple_of(5) {
            true => http("503 Busy", "", "{}"),
            false => answer(body, "0.5"),
        }
    });
    let (good, report) = bench(address);
    assert!(!good, "{report}");
    assert!(number(&report, &["failed"]) > 0.0);
    assert_eq!(count(&report, &["unequal"]), 0);
}

#[test]
fn the_gaps_of_a_chat_stream_are_seen() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let deciding = Arc::new(AtomicUsize::new(0));
    thread::spawn(move || {
        for stream in server.incoming().flatten() {
            let deciding = Arc::clone(&deciding);
            thread::spawn(move || chat_and_decide(stream, &deciding));
        }
    });
    let url = format!("http://{address}");
    let (good, report) = json(&[
        "bench",
        "http",
        &url,
        "--quick",
        "--json",
        "--only",
        "chat",
        "--longest",
        "300",
    ]);
    assert!(good, "{report}");
    let alone = number(&report, &["chat", "alone", "median_ms"]);
    let longest = number(&report, &["chat", "beside_decision", "longest_ms"]);
    assert!((1.0..20.0).contains(&alone), "{report}");
    // The stream stands still for 60 ms while the decision runs.
    assert!((55.0..200.0).contains(&longest), "{report}");
    assert_eq!(
        at(&report, &["chat", "stream_outlasted_decision"]).as_bool(),
        Some(true)
    );
}

/// A token every 3 ms, and none for 60 ms while a decision runs.
fn chat_and_decide(mut stream: TcpStream, deciding: &AtomicUsize) {
    let (path, body) = request(&stream);
    if path != "/v1/chat/completions" {
        deciding.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(70));
        deciding.fetch_sub(1, Ordering::SeqCst);
        let _ = stream.write_all(answer(&body, "0.5").as_bytes());
        return;
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let _ = stream.write_all(head.as_bytes());
    let mut stood = false;
    for _ in 0..2000 {
        if !stood && deciding.load(Ordering::SeqCst) > 0 {
            stood = true;
            thread::sleep(Duration::from_millis(60));
        }
        let event = b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n";
        if stream.write_all(event).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(3));
    }
}
