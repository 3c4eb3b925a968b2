//! Running a server: keys, probes, figures, the page, other origins, receipts.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::sync::LazyLock;
use std::time::{Duration, Instant};
use std::{fs, thread};

use descant_decision::Value;
use descant_decision::json::{parse_str, to_json};

use crate::common::{Reply, Server, at, repository, run, text};

static SERVER: LazyLock<Server> = LazyLock::new(|| Server::start(&[]));

const BODY: &str = r#"{"state": "The lamp is broken.", "questions": {"broken": {"type": "noul"}}}"#;

fn with(server: &Server, headers: &str) -> Reply {
    server.ask("POST", "/v1/systemone", headers, BODY.as_bytes())
}

fn get(server: &Server, path: &str) -> Reply {
    server.ask("GET", path, "", b"")
}

#[test]
fn a_key_is_asked_for_where_there_are_keys() {
    let server = Server::start(&["--api-key", "sesame", "--api-key", "second"]);
    for headers in [
        "authorization: Bearer sesame\r\n",
        "authorization: bearer second\r\n",
        "x-api-key: sesame\r\n",
    ] {
        assert_eq!(with(&server, headers).status, 200, "{headers}");
    }
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "x-api-key: sesam\r\n",
    ] {
        let reply = with(&server, headers);
        assert_eq!(reply.status, 401, "{headers}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        let body = reply.json();
        let detail = at(&body, &["detail", "error_type"]).as_str();
        assert_eq!(detail, Some("authentication_error"));
        assert!(at(&body, &["error", "message"]).as_str().is_some());
    }
    let ask = |path: &str| server.ask("POST", path, "", BODY.as_bytes());
    let openai = ask("/v1/decisions").json();
    assert_eq!(
        at(&openai, &["error", "code"]).as_str(),
        Some("invalid_api_key")
    );
    let cloudflare = ask("/client/v4/accounts/a/ai/run/clef").json();
    let error = &at(&cloudflare, &["errors"]).as_array().unwrap()[0];
    assert_eq!(to_json(at(error, &["code"])), "10000");
    // Listings say what is served, so they are not for everybody; probes, figures and the page are.
    assert_eq!(get(&server, "/v1/models").status, 401);
    for path in ["/health", "/livez", "/metrics", "/", "/page.js"] {
        assert_eq!(get(&server, path).status, 200, "{path}");
    }
    // A path that is not there is not told apart from one that is.
    assert_eq!(get(&server, "/nothing").status, 401);
    assert!(!server.log().contains("sesame"));
}

#[test]
fn a_file_of_keys_is_read_again_when_it_changes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    fs::write(&file, "# the team\nold\n").unwrap();
    let server = Server::start(&["--api-key-file", file.to_str().unwrap()]);
    let status = |key: &str| with(&server, &format!("x-api-key: {key}\r\n")).status;
    assert_eq!((status("old"), status("new")), (200, 401));
    fs::write(&file, "new\nnewer\n").unwrap();
    wait_for("the new key", || status("new") == 200);
    assert_eq!((status("old"), status("newer")), (401, 200));
    // A file that cannot be used changes nothing.
    fs::write(&file, "not a key\n").unwrap();
    wait_for("the warning", || server.log().contains("stay as they were"));
    assert_eq!((status("new"), status("old")), (200, 401));
    assert!(!server.log().contains("not a key"));
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn keys_that_cannot_be_are_told_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("keys");
    fs::write(&file, "# nothing\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, message) in [
        (["--api-key", "two words"], "--api-key: a key has"),
        (["--api-key-file", file], "it holds no key"),
        (
            ["--api-key-file", "/nowhere/keys"],
            "--api-key-file /nowhere/keys",
        ),
    ] {
        let output = run(&[&["serve", "--port", "0"], &args[..]].concat(), b"");
        assert_eq!(output.status.code(), Some(1));
        let error = text(&output.stderr);
        assert!(
            error.contains(message) && !error.contains("two words"),
            "{error}"
        );
    }
}

fn figure(page: &str, sample: &str) -> f64 {
    let line = page.lines().find(|line| {
        line.strip_prefix(sample)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.unwrap_or_else(|| panic!("no {sample} in\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A text is written down once its reply is out.
fn texts_are_written_down(server: &Server) {
    let wanted = [
        r#"descant_texts_total{end="length"} 2"#,
        r#"descant_jobs_total{end="answered"} 4"#,
        "descant_http_requests_in_flight 1",
    ];
    wait_for("the last text", || {
        let page = String::from_utf8(get(server, "/metrics").body).unwrap();
        let has = |line: &&str| page.lines().any(|found| found == *line);
        wanted.iter().all(has)
    });
}

#[test]
fn the_figures_tell_what_happened() {
    let server = Server::start(&["--max-length", "512"]);
    let long = BODY.replace("broken.", &"broken. ".repeat(600));
    for (body, status) in [(BODY, 200), (BODY, 200), ("{", 422), (long.as_str(), 413)] {
        assert_eq!(server.decide(body.as_bytes()).status, status);
    }
    get(&server, "/nothing");
    for stream in ["false", "true"] {
        let chat = format!(
            r#"{{"messages": [{{"role": "user", "content": "A lamp?"}}], "max_tokens": 3, "ignore_eos": true, "stream": {stream}}}"#
        );
        let mut connection = server.connect();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{chat}",
            chat.len()
        );
        connection.send(head.as_bytes()).unwrap();
        assert!(connection.rest().unwrap().starts_with(b"HTTP/1.1 200"));
    }
    texts_are_written_down(&server);
    let reply = get(&server, "/metrics");
    let kind = reply.header("content-type").unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    let page = String::from_utf8(reply.body).unwrap();
    for (sample, wanted) in [
        (
            r#"descant_http_requests_total{route="/v1/systemone",status="200"}"#,
            2.0,
        ),
        (
            r#"descant_http_requests_total{route="/v1/systemone",status="422"}"#,
            1.0,
        ),
        (
            r#"descant_http_requests_total{route="other",status="404"}"#,
            1.0,
        ),
        (r#"descant_refusals_total{reason="validation_error"}"#, 1.0),
        (
            r#"descant_refusals_total{reason="max_tokens_exceeded"}"#,
            1.0,
        ),
        ("descant_decisions_total", 2.0),
        (r#"descant_questions_total{type="noul"}"#, 2.0),
        ("descant_engine_seconds_count", 2.0),
        (r#"descant_jobs_total{end="answered"}"#, 4.0),
        (r#"descant_texts_total{end="length"}"#, 2.0),
        (r#"descant_text_tokens_total{kind="completion"}"#, 6.0),
        ("descant_first_token_seconds_count", 2.0),
        ("descant_ready", 1.0),
        ("descant_slots", 4.0),
        ("descant_http_requests_in_flight", 1.0),
    ] {
        assert!((figure(&page, sample) - wanted).abs() < 1e-9, "{sample}");
    }
    for sample in [
        "descant_prompt_tokens_total",
        "descant_rounds_total",
        "descant_round_seconds_sum",
        "descant_round_seconds_count",
        "descant_head_seconds_sum",
        "descant_head_seconds_count",
        r#"descant_text_tokens_total{kind="prompt"}"#,
        r#"descant_rows_total{pass="prefill"}"#,
    ] {
        assert!(figure(&page, sample) > 0.0, "{sample}");
    }
}

#[test]
fn the_page_is_served_from_the_program() {
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/page.css", "text/css; charset=utf-8"),
        ("/page.js", "text/javascript; charset=utf-8"),
    ] {
        let reply = get(&SERVER, path);
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (200, Some(kind))
        );
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{policy}");
        assert!(reply.body.len() > 500);
    }
}

#[test]
fn pages_of_other_origins_ask_only_where_they_may() {
    let origin = "origin: https://app.example\r\n";
    let preflight = format!(
        "{origin}access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n"
    );
    assert_eq!(
        with(&SERVER, origin).header("access-control-allow-origin"),
        None
    );
    let server = Server::start(&["--cors-origin", "https://app.example", "--api-key", "k"]);
    let asked = server.ask("OPTIONS", "/v1/systemone", &preflight, b"");
    assert_eq!(asked.status, 204);
    assert_eq!(
        asked.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    assert_eq!(
        asked.header("access-control-allow-headers"),
        Some("authorization")
    );
    for (headers, status) in [
        (format!("{origin}x-api-key: k\r\n"), 200),
        // A refusal can be read, too.
        (origin.to_owned(), 401),
    ] {
        let reply = with(&server, &headers);
        assert_eq!(reply.status, status);
        assert_eq!(
            reply.header("access-control-allow-origin"),
            Some("https://app.example")
        );
    }
    let other = with(&server, "origin: https://other.example\r\nx-api-key: k\r\n");
    assert_eq!(other.header("access-control-allow-origin"), None);
}

#[test]
fn the_listing_shows_the_limits() {
    let server = Server::start(&[
        "--max-options",
        "7",
        "--max-length",
        "1024",
        "--neutral-ids",
    ]);
    let listing = get(&server, "/v1/models").json();
    let card = &at(&listing, &["data"]).as_array().unwrap()[0];
    for (key, wanted) in [
        ("prompt_tokens_max", "1024"),
        ("over_length", "\"refuse\""),
        ("questions_max", "1024"),
        ("options_max", "7"),
        ("levels_max", "10"),
        ("images_max", "0"),
        ("body_bytes_max", "33554432"),
    ] {
        assert_eq!(to_json(at(card, &["x_limits", key])), wanted, "{key}");
    }
    assert_eq!(at(card, &["x_mode"]).as_str(), Some("neutral"));
}

/// A receipt, as a file for `descant verify`.
fn receipt(server: &Server, body: &str) -> Value {
    let reply = server.ask(
        "POST",
        "/v1/systemone",
        "x-descant-receipt: 1\r\n",
        body.as_bytes(),
    );
    assert_eq!(reply.status, 200);
    parse_str(reply.header("x-descant-receipt").expect("a receipt")).unwrap()
}

#[test]
fn a_receipt_is_verified_and_a_forged_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let (file, request) = (
        directory.path().join("receipt"),
        directory.path().join("request"),
    );
    let verify = |receipt: &Value, body: &str, more: &[&str]| {
        fs::write(&file, to_json(receipt)).unwrap();
        fs::write(&request, body).unwrap();
        // The model of `SERVER`, unless another is named.
        let served = repository("models/tiny-random");
        let named: &[&str] = if more.is_empty() {
            &["-m", served.to_str().unwrap()]
        } else {
            more
        };
        let args = [
            &["verify", file.to_str().unwrap(), request.to_str().unwrap()],
            named,
        ]
        .concat();
        let output = run(&args, b"");
        (
            output.status.code(),
            format!("{}{}", text(&output.stdout), text(&output.stderr)),
        )
    };
    assert_eq!(with(&SERVER, "").header("x-descant-receipt"), None);
    let given = receipt(&SERVER, BODY);
    assert_eq!(
        receipt(&SERVER, BODY),
        given,
        "the same request has the same receipt"
    );
    let (code, said) = verify(&given, BODY, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("verified"), "{said}");
    // Blanks in the body change nothing that the model reads; another state does.
    assert_eq!(verify(&given, &BODY.replace(": ", ":  "), &[]).0, Some(0));
    let (code, said) = verify(&given, &BODY.replace("broken.", "whole."), &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("another prompt, logits"), "{said}");
    let demo = repository("fixtures/releases/tiny-a");
    let (code, said) = verify(&given, BODY, &["-m", demo.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(said.contains("another model, head, tokenizer"), "{said}");
    for field in ["model", "head", "tokenizer", "prompt", "logits"] {
        let mut forged = given.as_object().unwrap().clone();
        let digest = at(&given, &[field]).as_str().unwrap();
        let first = if digest.starts_with('0') { "1" } else { "0" };
        forged.insert(field, format!("{first}{}", &digest[1..]));
        let (code, said) = verify(&forged.into(), BODY, &[]);
        assert_eq!(code, Some(1));
        assert!(said.contains(&format!("another {field}\n")), "{said}");
    }
    let split = Server::start(&["--split-questions"]);
    let given = receipt(&split, BODY);
    assert_eq!(at(&given, &["mode"]).as_str(), Some("split"));
    assert_eq!(verify(&given, BODY, &[]).0, Some(0));
    assert_eq!(verify(&parse_str("{}").unwrap(), BODY, &[]).0, Some(1));
}

/// The digests are those that `b3sum` finds, so that an auditor needs no trust in this program for them.
#[test]
fn the_digests_of_a_receipt_are_those_of_the_files() {
    let release = repository("models/tiny-random");
    let sum = |name: &str| {
        let bytes = fs::read(release.join(name)).unwrap();
        blake3::hash(&bytes).to_hex().to_string()
    };
    let list = |names: &[&str]| {
        let lines: String = names
            .iter()
            .map(|name| format!("{}  {name}\n", sum(name)))
            .collect();
        blake3::hash(lines.as_bytes()).to_hex().to_string()
    };
    let given = receipt(&SERVER, BODY);
    let digest = |field: &str| at(&given, &[field]).as_str().unwrap().to_owned();
    assert_eq!(digest("tokenizer"), sum("tokenizer.json"));
    assert_eq!(digest("model"), list(&["config.json", "model.safetensors"]));
    assert_eq!(
        digest("head"),
        list(&["joint_head.safetensors", "joint_head_config.json"])
    );
    assert_eq!(digest("version"), env!("CARGO_PKG_VERSION"));
}
