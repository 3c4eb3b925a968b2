//! The server over HTTP, as a process, with the tiny random release.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::to_json;

use crate::common::{Reply, Server, at};

/// One server for all tests that leave it as they found it.
static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(&[]));

const LAMP: &str = r#"{"model": "clef-flash", "state": "The lamp is broken.", "questions": {
    "broken": {"type": "noul", "instructions": "Is the lamp broken?"},
    "room": {"type": "choice", "criteria": {"kitchen": null, "attic": "Under the roof", "hall": null}},
    "harm": {"type": "score", "criteria": ["None", "Some", "Much"]}}}"#;

/// A body with one question of the given JSON.
fn asking(question: &str) -> String {
    format!(r#"{{"model": "clef-flash", "state": "x", "questions": {{"a": {question}}}}}"#)
}

/// Checks what every reply has, whatever it says.
fn check_common(reply: &Reply) {
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let id = reply.header("x-request-id").expect("a request id");
    assert_eq!(reply.header("x-typesafe-request-id"), Some(id));
}

/// Checks a refusal: its status, both shapes of its body, and gives the body.
#[track_caller]
fn check_refused(reply: &Reply, status: u16) -> Value {
    assert_eq!(
        reply.status,
        status,
        "{}",
        String::from_utf8_lossy(&reply.body)
    );
    check_common(reply);
    let body = reply.json();
    assert!(
        at(&body, &["error", "message"])
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert!(at(&body, &["error", "type"]).as_str().is_some());
    assert!(at(&body, &["error", "code"]).as_str().is_some());
    match at(&body, &["detail"]).as_array() {
        Some(entries) => assert!(!entries.is_empty()),
        None => assert!(at(&body, &["detail", "error_type"]).as_str().is_some()),
    }
    body
}

#[test]
fn a_decision_is_answered_in_request_order() {
    let reply = SERVER.decide(LAMP.as_bytes());
    assert_eq!(
        reply.status,
        200,
        "{}",
        String::from_utf8_lossy(&reply.body)
    );
    check_common(&reply);
    let body = reply.json();
    let keys = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, _)| key.to_owned())
            .collect()
    };
    assert_eq!(keys(&body), ["model", "answers", "usage"]);
    assert_eq!(keys(at(&body, &["answers"])), ["broken", "room", "harm"]);
    assert_eq!(keys(at(&body, &["answers", "broken"])), ["type", "noul"]);
    let room = at(&body, &["answers", "room"]);
    assert_eq!(
        keys(room),
        ["type", "choice", "confidence", "probabilities"]
    );
    assert_eq!(
        keys(at(room, &["probabilities"])),
        ["kitchen", "attic", "hall"]
    );
    let harm = at(&body, &["answers", "harm"]);
    assert_eq!(
        keys(harm),
        ["type", "score", "confidence", "legend", "probabilities"]
    );
    assert_eq!(
        to_json(at(harm, &["legend"])),
        r#"{"0":"None","1":"Some","2":"Much"}"#
    );
    assert_eq!(at(&body, &["model"]).as_str(), Some("clef-flash"));
    assert_eq!(to_json(at(&body, &["usage", "output_tokens"])), "0");
    assert_eq!(reply.header("x-clef-mode"), Some("joint"));
    assert_eq!(reply.header("x-clef-truncated-tokens"), None);
    for header in ["x-clef-queue-ms", "x-clef-engine-ms", "x-clef-round-ms"] {
        let ms: f64 = reply.header(header).unwrap().parse().unwrap();
        assert!((0.0..60_000.0).contains(&ms), "{header}: {ms}");
    }
}

#[test]
fn any_content_type_but_multipart_is_json() {
    for headers in [
        "",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: text/plain\r\n",
    ] {
        let reply = SERVER.ask("POST", "/v1/systemone", headers, LAMP.as_bytes());
        assert_eq!(reply.status, 200, "{headers}");
    }
    let ask = |headers: &str| SERVER.ask("POST", "/v1/systemone", headers, LAMP.as_bytes());
    check_refused(&ask("content-type: multipart/mixed; boundary=x\r\n"), 415);
    check_refused(&ask("content-type: multipart/form-data\r\n"), 415);
    check_refused(
        &ask("content-type: multipart/form-data; boundary=x\r\n"),
        400,
    );
}

#[test]
fn models_are_named_as_the_contract_says() {
    let named = |name: &str| LAMP.replace("\"clef-flash\"", name);
    for (name, echoed) in [
        ("\"clef\"", "clef"),
        ("\"@cf/cloudflare/clef-flash\"", "@cf/cloudflare/clef-flash"),
        ("\"tiny-random\"", "tiny-random"),
        ("\"jev-latest\"", "tiny-random"),
        ("null", "tiny-random"),
        ("\"\"", "tiny-random"),
    ] {
        let reply = SERVER.decide(named(name).as_bytes());
        assert_eq!(
            reply.status,
            200,
            "{name}: {}",
            String::from_utf8_lossy(&reply.body)
        );
        assert_eq!(
            at(&reply.json(), &["model"]).as_str(),
            Some(echoed),
            "{name}"
        );
    }
    let body = check_refused(
        &SERVER.decide(named("\"jevcompat-no-such-model\"").as_bytes()),
        400,
    );
    assert_eq!(
        at(&body, &["detail", "error_type"]).as_str(),
        Some("api_usage_error")
    );
    let message = at(&body, &["detail", "message"]).as_str();
    assert_eq!(message, Some("Unknown model: jevcompat-no-such-model"));
    check_refused(&SERVER.decide(named("7").as_bytes()), 422);
}

#[test]
fn jev_aliases_have_typesafe_numbers() {
    let numbers = |model: &str| {
        let reply = SERVER
            .decide(LAMP.replace("clef-flash", model).as_bytes())
            .json();
        let at = |key: &str| at(&reply, &["answers", "room", key]).clone();
        let p: Vec<f64> = at("probabilities")
            .as_object()
            .unwrap()
            .iter()
            .map(|(_, p)| p.as_number().unwrap().as_f64())
            .collect();
        (p, at("confidence").as_number().unwrap().as_f64())
    };
    let top = |p: &[f64]| p.iter().copied().fold(0.0, f64::max);
    let (clef, clef_confidence) = numbers("clef-flash");
    // The release's own confidence is the top probability itself.
    assert!((clef_confidence - top(&clef)).abs() < 1e-12);
    let (jev, jev_confidence) = numbers("jev-latest");
    // Unrounded: three f64 quotients of one sum are off by a few ulps of 1.
    assert!((jev.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!((jev_confidence - (3.0 * top(&jev) - 1.0) / 2.0).abs() < 1e-12);
    for (clef, jev) in clef.iter().zip(&jev) {
        // Half a unit of the fourth place, and f32 against f64.
        assert!((clef - jev).abs() < 5.1e-5, "{clef} {jev}");
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let body = check_refused(
        &SERVER.decide(br#"{"model": 7, "questions": {"a": {"type": "box"}, "b": {"type": "score", "criteria": []}}}"#),
        422,
    );
    let locs: Vec<String> = at(&body, &["detail"])
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| to_json(entry.get("loc").unwrap()))
        .collect();
    assert_eq!(
        locs,
        [
            r#"["body","model"]"#,
            r#"["body","state"]"#,
            r#"["body","questions","a"]"#,
            r#"["body","questions","b","score","criteria"]"#
        ]
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_bodies_are_refused_where_they_are_wrong() {
    let options: Vec<String> = (0..256)
        .map(|index| format!("\"o{index}\": null"))
        .collect();
    let too_many = format!(
        r#"{{"type": "choice", "criteria": {{{}}}}}"#,
        options.join(", ")
    );
    let questions = |question: &str| asking(question);
    for (body, loc) in [
        (
            r#"{"questions": {"a": {"type": "noul"}}}"#.to_owned(),
            r#"["body","state"]"#,
        ),
        (r#"{"state": "x"}"#.to_owned(), r#"["body","questions"]"#),
        (
            r#"{"state": "x", "questions": {}}"#.to_owned(),
            r#"["body","questions"]"#,
        ),
        (
            r#"{"state": "x", "questions": []}"#.to_owned(),
            r#"["body","questions"]"#,
        ),
        (r#"[]"#.to_owned(), r#"["body"]"#),
        ("null".to_owned(), r#"["body"]"#),
        (String::new(), r#"["body",0]"#),
        ("{".to_owned(), r#"["body",1]"#),
        ("\u{feff}{}".to_owned(), r#"["body",0]"#),
        (
            r#"{"state": "\ud800", "questions": {}}"#.to_owned(),
            r#"["body",11]"#,
        ),
        (
            r#"{"state": 1e400, "questions": {}}"#.to_owned(),
            r#"["body","state"]"#,
        ),
        (
            r#"{"state": "x", "images": ["aGk="], "questions": {"a": {"type": "noul"}}}"#
                .to_owned(),
            r#"["body","images"]"#,
        ),
        (questions("null"), r#"["body","questions","a"]"#),
        (
            questions(r#"{"instructions": "y?"}"#),
            r#"["body","questions","a"]"#,
        ),
        (
            questions(r#"{"type": "boolean"}"#),
            r#"["body","questions","a"]"#,
        ),
        (
            questions(r#"{"type": "choice", "criteria": ["red"]}"#),
            r#"["body","questions","a","choice","criteria"]"#,
        ),
        (
            questions(r#"{"type": "choice"}"#),
            r#"["body","questions","a","choice","criteria"]"#,
        ),
        (
            questions(&too_many),
            r#"["body","questions","a","choice","criteria"]"#,
        ),
        (
            questions(r#"{"type": "choice", "criteria": {"": null}}"#),
            r#"["body","questions","a","choice","criteria",""]"#,
        ),
        (
            questions(r#"{"type": "score", "criteria": {"0": "low"}}"#),
            r#"["body","questions","a","score","criteria"]"#,
        ),
        (
            questions(r#"{"type": "score", "criteria": ["low", null]}"#),
            r#"["body","questions","a","score","criteria",1]"#,
        ),
        (
            questions(r#"{"type": "noul", "criteria": {"maybe": "x"}}"#),
            r#"["body","questions","a","noul","criteria","maybe"]"#,
        ),
        (
            r#"{"state": "x", "questions": {"": {"type": "noul"}}}"#.to_owned(),
            r#"["body","questions",""]"#,
        ),
    ] {
        let refused = check_refused(&SERVER.decide(body.as_bytes()), 422);
        let first = &at(&refused, &["detail"]).as_array().unwrap()[0];
        assert_eq!(to_json(first.get("loc").unwrap()), loc, "{body}");
        assert!(
            first.get("msg").unwrap().as_str().is_some()
                && first.get("type").unwrap().as_str().is_some()
        );
        assert!(
            first.get("input").is_none(),
            "private text is not sent back"
        );
    }
}

#[test]
fn control_characters_of_a_client_are_not_sent_back_raw() {
    let reply = SERVER.decide(br#"{"state": "x", "questions": {"a\u001b[31m": {"type": "box"}}}"#);
    check_refused(&reply, 422);
    assert!(!reply.body.contains(&0x1b));
    let message = at(&reply.json(), &["error", "message"])
        .as_str()
        .unwrap()
        .to_owned();
    assert!(!message.contains('\u{1b}'), "{message:?}");
}

#[test]
fn unknown_paths_and_methods_are_json_too() {
    check_refused(&SERVER.ask("GET", "/nothing/here", "", b""), 404);
    check_refused(
        &SERVER.ask("POST", "/v1/systemone/", "", LAMP.as_bytes()),
        404,
    );
    for (method, path, allow) in [
        ("GET", "/v1/systemone", "OPTIONS, POST"),
        ("DELETE", "/v1/systemone", "OPTIONS, POST"),
        ("POST", "/v1/models", "GET, HEAD, OPTIONS"),
        ("PUT", "/health", "GET, HEAD, OPTIONS"),
    ] {
        let reply = SERVER.ask(method, path, "", b"");
        check_refused(&reply, 405);
        assert_eq!(reply.header("allow"), Some(allow), "{method} {path}");
        let options = SERVER.ask("OPTIONS", path, "", b"");
        assert_eq!(
            (options.status, options.header("allow")),
            (204, Some(allow))
        );
    }
}

#[test]
fn head_is_get_without_a_body() {
    for path in ["/health", "/v1/models"] {
        let mut connection = SERVER.connect();
        let get = connection.ask("GET", path, "", b"");
        let head = connection.ask("HEAD", path, "", b"");
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), get.header("content-length"));
        // The connection is still in step.
        assert_eq!(connection.ask("GET", path, "", b"").status, 200);
    }
    let head = SERVER.connect().ask("HEAD", "/v1/systemone", "", b"");
    assert_eq!(head.status, 405);
}

#[test]
fn health_has_its_usual_names() {
    for path in ["/health", "/healthz", "/ready", "/ping"] {
        let reply = SERVER.ask("GET", path, "", b"");
        assert_eq!(
            (reply.status, reply.body.as_slice()),
            (200, br#"{"status":"ok"}"#.as_slice())
        );
    }
}

#[test]
fn the_listing_serves_both_families_of_clients() {
    let body = SERVER.ask("GET", "/v1/models", "", b"").json();
    let names = |list: &str, key: &str| -> Vec<String> {
        let list = at(&body, &[list]).as_array().unwrap();
        list.iter()
            .map(|entry| at(entry, &[key]).as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(at(&body, &["object"]).as_str(), Some("list"));
    assert_eq!(names("data", "id"), ["tiny-random", "clef", "clef-flash"]);
    assert_eq!(
        names("models", "name"),
        ["tiny-random", "clef", "clef-flash", "jev-latest"]
    );
    let model = &at(&body, &["models"]).as_array().unwrap()[0];
    assert!(at(model, &["description"]).as_str().is_some());
    let date = at(model, &["release_date"]).as_str().unwrap();
    assert!(date.len() == 10 && date.starts_with("20"), "{date}");

    for name in [
        "tiny-random",
        "clef-flash",
        "@cf/cloudflare/clef-flash",
        "%40cf/cloudflare/clef-flash",
    ] {
        let entry = SERVER.ask("GET", &format!("/v1/models/{name}"), "", b"");
        assert_eq!(entry.status, 200, "{name}");
        assert_eq!(
            at(&entry.json(), &["id"]).as_str(),
            Some(name.replace("%40", "@").as_str())
        );
    }
    let body = check_refused(&SERVER.ask("GET", "/v1/models/other/model", "", b""), 404);
    assert_eq!(
        at(&body, &["error", "code"]).as_str(),
        Some("model_not_found")
    );
}

#[test]
fn a_callers_request_id_is_echoed() {
    let reply = SERVER.ask("GET", "/health", "x-request-id: trace 7/9\r\n", b"");
    assert_eq!(reply.header("x-request-id"), Some("trace 7/9"));
    let reply = SERVER.ask("GET", "/nothing", "x-request-id: mine\r\n", b"");
    assert_eq!(reply.header("x-typesafe-request-id"), Some("mine"));
}

#[test]
fn a_connection_takes_many_requests() {
    let mut connection = SERVER.connect();
    let first = connection.ask("POST", "/v1/systemone", "", LAMP.as_bytes());
    check_refused(&connection.ask("POST", "/v1/systemone", "", b"{"), 422);
    let second = connection.ask("POST", "/v1/systemone", "", LAMP.as_bytes());
    assert_eq!(first.body, second.body);
    // Two requests in one write.
    let one = format!(
        "POST /v1/systemone HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n{LAMP}",
        LAMP.len()
    );
    connection.send(one.repeat(2).as_bytes()).unwrap();
    assert_eq!(connection.reply().body, first.body);
    assert_eq!(connection.reply().body, first.body);
}

#[test]
fn company_does_not_change_a_byte() {
    let states: Vec<String> = (0..8)
        .map(|index| {
            LAMP.replace(
                "The lamp is broken.",
                &"A lamp flickers. ".repeat(1 + 9 * index),
            )
        })
        .collect();
    let alone: Vec<Vec<u8>> = states
        .iter()
        .map(|body| SERVER.decide(body.as_bytes()).body)
        .collect();
    for _ in 0..3 {
        let together: Vec<Vec<u8>> = thread::scope(|scope| {
            let asked: Vec<_> = states
                .iter()
                .map(|body| scope.spawn(|| SERVER.decide(body.as_bytes()).body))
                .collect();
            asked
                .into_iter()
                .map(|reply| reply.join().unwrap())
                .collect()
        });
        for (alone, together) in alone.iter().zip(&together) {
            assert_eq!(
                String::from_utf8_lossy(alone),
                String::from_utf8_lossy(together)
            );
        }
    }
}

#[test]
fn packed_bodies_are_unpacked() {
    use flate2::write::GzEncoder;
    use std::io::Write;
    let plain = SERVER.decide(LAMP.as_bytes()).body;
    let mut gzip = GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(LAMP.as_bytes()).unwrap();
    let packed = gzip.finish().unwrap();
    let reply = SERVER.ask(
        "POST",
        "/v1/systemone",
        "content-encoding: gzip\r\n",
        &packed,
    );
    assert_eq!(
        String::from_utf8_lossy(&reply.body),
        String::from_utf8_lossy(&plain)
    );
    check_refused(
        &SERVER.ask(
            "POST",
            "/v1/systemone",
            "content-encoding: zstd\r\n",
            &packed,
        ),
        400,
    );
    check_refused(
        &SERVER.ask("POST", "/v1/systemone", "content-encoding: br\r\n", &packed),
        415,
    );
}

#[test]
fn an_oversized_body_is_told_so_even_while_it_is_sent() {
    let server = Server::start(&["--max-body-bytes", "1000000"]);
    let body = LAMP.replace("The lamp", &" ".repeat(4_000_000));
    check_refused(&server.decide(body.as_bytes()), 413);
    // In chunks, without a length that would give it away.
    let mut connection = server.connect();
    connection
        .send(b"POST /v1/systemone HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    for _ in 0..20 {
        let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
        connection.send(&chunk).unwrap();
    }
    connection.send(b"0\r\n\r\n").unwrap();
    check_refused(&connection.reply(), 413);
    assert_eq!(server.decide(LAMP.as_bytes()).status, 200);
}

#[test]
fn expect_continue_is_honoured() {
    let mut connection = SERVER.connect();
    let head = format!(
        "POST /v1/systemone HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        LAMP.len()
    );
    connection.send(head.as_bytes()).unwrap();
    let interim = connection.reply();
    assert_eq!(interim.status, 100);
    connection.send(LAMP.as_bytes()).unwrap();
    assert_eq!(connection.reply().status, 200);
}

#[test]
fn a_prompt_that_is_too_long_is_told_both_counts() {
    let server = Server::start(&["--max-length", "512"]);
    let long = LAMP.replace("The lamp is broken.", &"flicker ".repeat(1000));
    let body = check_refused(&server.decide(long.as_bytes()), 413);
    assert_eq!(
        at(&body, &["detail", "error_type"]).as_str(),
        Some("max_tokens_exceeded")
    );
    let message = at(&body, &["error", "message"]).as_str().unwrap();
    let counts: Vec<usize> = message
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(
        counts.len() == 2 && counts[0] > 512 && counts[1] == 512,
        "{message}"
    );

    let truncating = Server::start(&["--max-length", "512", "--over-length", "truncate"]);
    let reply = truncating.decide(long.as_bytes());
    assert_eq!(
        reply.status,
        200,
        "{}",
        String::from_utf8_lossy(&reply.body)
    );
    let dropped: usize = reply
        .header("x-clef-truncated-tokens")
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(dropped, counts[0] - 512);
    assert_eq!(
        to_json(at(&reply.json(), &["usage", "input_tokens"])),
        "512"
    );
}

#[test]
fn a_client_that_says_nothing_is_shown_out() {
    let server = Server::start(&[
        "--header-timeout",
        "1",
        "--idle-timeout",
        "1",
        "--body-timeout",
        "1",
    ]);
    let start = Instant::now();
    let mut silent = server.connect();
    let mut slow = server.connect();
    slow.send(b"POST /v1/systemone HTTP/1.1\r\nhost: te")
        .unwrap();
    let mut idle = server.connect();
    assert_eq!(idle.ask("GET", "/health", "", b"").status, 200);
    let mut bodiless = server.connect();
    bodiless
        .send(b"POST /v1/systemone HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\n{")
        .unwrap();
    check_refused(&bodiless.reply(), 408);
    for connection in [&mut silent, &mut slow, &mut idle] {
        connection.rest().expect("the server closes the connection");
    }
    let took = start.elapsed();
    assert!(
        (Duration::from_millis(900)..Duration::from_secs(20)).contains(&took),
        "{took:?}"
    );
    assert_eq!(server.decide(LAMP.as_bytes()).status, 200);
}

#[test]
fn a_client_that_closes_its_side_has_left() {
    let mut connection = SERVER.connect();
    let half = &LAMP.as_bytes()[..40];
    let head = format!(
        "POST /v1/systemone HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n",
        LAMP.len()
    );
    connection.send(&[head.as_bytes(), half].concat()).unwrap();
    connection.half_close();
    let rest = connection.rest().expect("the server closes the connection");
    // Either nothing or the refusal of half a body, never an answer.
    assert!(!String::from_utf8_lossy(&rest).contains("answers"));
    assert_eq!(SERVER.decide(LAMP.as_bytes()).status, 200);
}

#[test]
fn clients_that_leave_free_their_places() {
    let server = Server::start(&["--max-connections", "4"]);
    let long = LAMP.replace("The lamp is broken.", &"A lamp flickers. ".repeat(400));
    let request = format!(
        "POST /v1/systemone HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n{long}",
        long.len()
    );
    for _ in 0..20 {
        let mut connection = server.connect();
        connection.send(request.as_bytes()).unwrap();
        drop(connection);
    }
    assert_eq!(server.decide(LAMP.as_bytes()).status, 200);
}

#[test]
fn a_stop_finishes_what_is_at_hand() {
    let mut server = Server::start(&[]);
    let long = LAMP.replace("The lamp is broken.", &"A lamp flickers. ".repeat(400));
    let alone = server.decide(long.as_bytes());
    let mut connection = server.connect();
    let head = format!(
        "POST /v1/systemone HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n",
        long.len()
    );
    connection
        .send(&[head.as_bytes(), long.as_bytes()].concat())
        .unwrap();
    thread::sleep(Duration::from_millis(20));
    let id = server.id().to_string();
    assert!(
        std::process::Command::new("kill")
            .args(["-TERM", &id])
            .status()
            .unwrap()
            .success()
    );
    let reply = connection.reply();
    assert_eq!((reply.status, reply.body), (200, alone.body));
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn http2_with_prior_knowledge_is_spoken() {
    let mut connection = SERVER.connect();
    // The preface and an empty SETTINGS frame; the server answers with its own SETTINGS.
    connection
        .send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let head = connection.bytes(9);
    assert_eq!(head[3], 4, "the first frame is SETTINGS: {head:?}");
}

#[test]
fn garbage_is_not_http() {
    for garbage in [
        b"\0\x01\x02\r\n\r\n".as_slice(),
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let mut connection = SERVER.connect();
        connection.send(garbage).unwrap();
        let reply = connection.rest().expect("the server closes the connection");
        assert!(
            reply.is_empty() || reply.starts_with(b"HTTP/1.1 4"),
            "{reply:?}"
        );
    }
    assert_eq!(SERVER.decide(LAMP.as_bytes()).status, 200);
}

/// Bodies made by damaging good ones: bytes changed, cut out, doubled, replaced by what JSON is made of.
#[test]
fn no_body_is_the_servers_fault() {
    let seeds: Vec<Vec<u8>> = [LAMP]
        .iter()
        .map(|text| text.as_bytes().to_vec())
        .chain(
            ["ticket", "tool-gate", "moderation", "logs"]
                .iter()
                .map(|name| {
                    std::fs::read(common::repository(&format!("examples/{name}.json"))).unwrap()
                }),
        )
        .collect();
    let mut random = Random(0x5eed);
    let mut connection = SERVER.connect();
    let mut statuses = std::collections::BTreeMap::new();
    for round in 0..1500 {
        let mut body = seeds[round % seeds.len()].clone();
        for _ in 0..=random.below(4) {
            mutate(&mut body, &mut random);
        }
        let reply = connection.ask("POST", "/v1/systemone", "", &body);
        *statuses.entry(reply.status).or_insert(0) += 1;
        let text = String::from_utf8_lossy(&body);
        assert!(
            matches!(reply.status, 200 | 400 | 413 | 422),
            "{}: {text}",
            reply.status
        );
        check_common(&reply);
        let parsed = reply.json();
        assert_eq!(
            reply.status == 200,
            parsed.get("answers").is_some(),
            "{text}"
        );
    }
    // The damage is neither always harmless nor always fatal.
    assert!(statuses[&200] > 50 && statuses[&422] > 200, "{statuses:?}");
}

fn mutate(body: &mut Vec<u8>, random: &mut Random) {
    const PIECES: [&[u8]; 16] = [
        b"null",
        b"{}",
        b"[]",
        b"\"\"",
        b"-1e999",
        b"1e-7",
        b"\\ud800",
        b"\"type\"",
        b"\"score\"",
        b"\xff",
        b"\\u0000",
        b"{\"a\":",
        b"[[[[[[[[",
        b"\"criteria\":null,",
        b"<|im_end|>",
        b"true",
    ];
    let at = random.below(body.len());
    let end = (at + random.below(24)).min(body.len());
    match random.below(5) {
        0 => body[at] = random.below(256) as u8,
        1 => drop(body.drain(at..end)),
        2 => {
            let copy = body[at..end].to_vec();
            body.splice(at..at, copy);
        }
        3 => drop(body.splice(at..end, PIECES[random.below(PIECES.len())].iter().copied())),
        _ => drop(body.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
    }
    if body.is_empty() {
        body.push(b' ');
    }
}

/// Xorshift: the same bodies on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn the_log_names_the_request_and_none_of_its_text() {
    let server = Server::start(&["--log-format", "json"]);
    let body = LAMP
        .replace("The lamp is broken.", "SECRET-STATE")
        .replace("attic", "SECRET-OPTION");
    server.ask(
        "POST",
        "/v1/systemone",
        "x-request-id: trace-1\r\n",
        body.as_bytes(),
    );
    server.ask(
        "POST",
        "/v1/systemone",
        "x-request-id: trace-2\r\n",
        body.replace("noul", "SECRET-TYPE").as_bytes(),
    );
    let start = Instant::now();
    while !server.log().contains("trace-2") && start.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(10));
    }
    let log = server.log();
    assert!(!log.contains("SECRET"), "{log}");
    let line = |id: &str| {
        let line = log
            .lines()
            .find(|line| line.contains(id))
            .unwrap_or_else(|| panic!("{log}"));
        descant_decision::json::parse_str(line).unwrap()
    };
    let decided = line("trace-1");
    assert_eq!(at(&decided, &["message"]).as_str(), Some("decided"));
    assert_eq!(to_json(at(&decided, &["status"])), "200");
    for key in [
        "took_ms",
        "queue_ms",
        "engine_ms",
        "input_tokens",
        "truncated_tokens",
    ] {
        assert!(at(&decided, &[key]).as_number().is_some(), "{key}");
    }
    assert_eq!(to_json(at(&line("trace-2"), &["status"])), "422");
}
