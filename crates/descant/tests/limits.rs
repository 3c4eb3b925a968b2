//! The bounds on connections, heads and bodies, over real sockets: each holds, and what it shuts out leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use crate::common::{Connection, Server};

const LAMP: &str = r#"{"state": "The lamp is broken.", "questions": {"broken": {"type": "noul"}}}"#;

/// A request that keeps its connection.
const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: test\r\n\r\n";

fn figure(connection: &mut Connection, name: &str) -> u64 {
    let page = connection.ask("GET", "/metrics", "", b"").body;
    let page = String::from_utf8(page).unwrap();
    let line = page.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.unwrap_or_else(|| panic!("no {name}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until no connection is open but the one that asks.
fn all_gone(server: &Server) {
    let start = Instant::now();
    let mut asking = server.connect();
    while figure(&mut asking, "descant_http_connections") > 1 {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "connections stay open"
        );
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(figure(&mut asking, "descant_http_requests_in_flight"), 1);
}

/// Each byte comes well within any time between bytes, so only a limit on the whole head ends this.
#[test]
fn a_head_that_trickles_in_is_cut_off() {
    let server = Server::start(&["--header-timeout", "1", "--idle-timeout", "600"]);
    let slow = |mut connection: Connection| {
        let start = Instant::now();
        let head = b"POST /v1/systemone HTTP/1.1\r\nhost: test\r\nx-filler: "
            .iter()
            .chain([b'a'].iter().cycle());
        for byte in head {
            if connection.send(&[*byte]).is_err() {
                break;
            }
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "nobody cuts it off"
            );
            thread::sleep(Duration::from_millis(20));
        }
        assert!(
            start.elapsed() > Duration::from_millis(900),
            "cut off too early"
        );
    };
    let connections: Vec<Connection> = (0..8).map(|_| server.connect()).collect();
    thread::scope(|scope| {
        for connection in connections {
            scope.spawn(move || slow(connection));
        }
        // The others hear nothing of it.
        assert_eq!(server.decide(LAMP.as_bytes()).status, 200);
    });
    // A second head of a connection has no more time than the first.
    let mut second = server.connect();
    second.send(HEALTH).unwrap();
    assert_eq!(second.reply().status, 200);
    second.send(b"GET /heal").unwrap();
    assert_eq!(second.rest().expect("the server closes it"), b"");
    all_gone(&server);
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let server = Server::start(&[]);
    let mut connection = server.connect();
    let filler = "a".repeat(200 << 10);
    let head = format!("GET /health HTTP/1.1\r\nhost: test\r\nx-filler: {filler}\r\n\r\n");
    // The server may answer before all of it is sent.
    let _ = connection.send(head.as_bytes());
    let said = connection.rest().unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.is_empty() || said.starts_with("HTTP/1.1 431"),
        "{said}"
    );
    assert_eq!(server.decide(LAMP.as_bytes()).status, 200);
    all_gone(&server);
}

#[test]
fn further_connections_wait_for_a_place() {
    let server = Server::start(&["--max-connections", "2"]);
    let mut held: Vec<Connection> = (0..2).map(|_| server.connect()).collect();
    for connection in &mut held {
        connection.send(HEALTH).unwrap();
        assert_eq!(connection.reply().status, 200);
    }
    let mut third = server.connect();
    third.send(HEALTH).unwrap();
    let waiting = thread::spawn(move || {
        let reply = third.reply();
        (reply.status, Instant::now())
    });
    thread::sleep(Duration::from_millis(500));
    assert!(!waiting.is_finished(), "a third one was served beside two");
    // The two are served as before.
    for connection in &mut held {
        connection.send(HEALTH).unwrap();
        assert_eq!(connection.reply().status, 200);
    }
    let left = Instant::now();
    held.pop();
    let (status, answered) = waiting.join().unwrap();
    assert_eq!(status, 200);
    assert!(answered > left);
    drop(held);
    // However many come and go, there are two places afterwards.
    for _ in 0..50 {
        let mut connection = server.connect();
        connection.send(HEALTH).unwrap();
        assert_eq!(connection.reply().status, 200);
    }
    all_gone(&server);
    let mut held: Vec<Connection> = (0..2).map(|_| server.connect()).collect();
    for connection in &mut held {
        connection.send(HEALTH).unwrap();
        assert_eq!(connection.reply().status, 200);
    }
}

/// 64 MiB of blanks pack to some 64 KiB: within the limit as sent, far beyond it decoded.
#[test]
fn a_body_that_unpacks_to_too_much_is_refused() {
    let server = Server::start(&["--max-body-bytes", "1048576"]);
    let blanks = vec![b' '; 64 << 20];
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(&blanks).unwrap();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
    zlib.write_all(&blanks).unwrap();
    let packed = [
        ("gzip", gzip.finish().unwrap()),
        ("deflate", zlib.finish().unwrap()),
    ];
    assert_eq!(server.decide(LAMP.as_bytes()).status, 200);
    let before = server.memory_bytes();
    for (encoding, body) in packed.iter().cycle().take(40) {
        assert!(body.len() < 1 << 20);
        let header = format!("content-encoding: {encoding}\r\n");
        let reply = server.ask("POST", "/v1/systemone", &header, body);
        assert_eq!(reply.status, 413, "{encoding}");
        let message = String::from_utf8_lossy(&reply.body);
        assert!(message.contains("1048576"), "{message}");
    }
    let grown = server.memory_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
    assert_eq!(server.decide(LAMP.as_bytes()).status, 200);
    all_gone(&server);
}
