//! Chat and completions over HTTP, as a process, with the releases of the fixtures.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::io::Read;
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;

use descant_decision::json::{parse_str, to_json};
use descant_decision::{Detokenize, Value};
use descant_release::Tokenizer;
use descant_testkit::fixtures;

use crate::common::{Server, at, repository, run, text};

const RELEASES: [&str; 4] = ["tiny-a", "tiny-b", "tiny-tied", "tiny-random"];

fn release(name: &str) -> PathBuf {
    match name {
        "tiny-random" => repository("models/tiny-random"),
        _ => fixtures::release(name),
    }
}

fn server(name: &str, flags: &[&str]) -> Server {
    let release = release(name);
    let model = [
        release.to_str().unwrap(),
        "--max-length",
        "2048",
        "--threads",
        "1",
    ];
    Server::start(&[&model, flags].concat())
}

fn post(server: &Server, path: &str, body: &str) -> Value {
    let reply = server.ask("POST", path, "", body.as_bytes());
    assert_eq!(reply.status, 200, "{}", text(&reply.body));
    reply.json()
}

fn string(value: &Value, path: &[&str]) -> String {
    at(value, path).as_str().unwrap().to_owned()
}

fn choice(value: &Value) -> &Value {
    &at(value, &["choices"]).as_array().unwrap()[0]
}

fn count(value: &Value, path: &[&str]) -> u64 {
    at(value, path).as_number().unwrap().as_u64().unwrap()
}

/// The whole body of a streamed reply.
fn stream(server: &Server, path: &str, body: &str) -> String {
    let mut connection = TcpStream::connect(server.address).unwrap();
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    std::io::Write::write_all(&mut connection, head.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    connection.read_to_end(&mut bytes).unwrap();
    String::from_utf8(bytes).expect("no character is cut")
}

/// The text of a stream's events.
fn streamed(body: &str) -> String {
    let events = body.split("data: ").filter(|event| event.starts_with('{'));
    let pieces = events.map(|event| {
        let end = event.find("\n\n").unwrap();
        let event = parse_str(&event[..end]).unwrap();
        let delta = choice(&event).get("delta").unwrap();
        delta
            .get("content")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    });
    pieces.collect()
}

#[test]
fn greedy_answers_are_the_references() {
    for name in RELEASES {
        let golden = fixtures::json(&format!("golden/chat/{name}.json"));
        let tokenizer = Tokenizer::open(&release(name).join("tokenizer.json")).unwrap();
        let server = server(name, &[]);
        for chat in golden["chats"].as_array().unwrap() {
            let case = format!("{name}/{}", chat["name"]);
            let (messages, limit) = (chat["messages"].to_string(), &golden["tokens_max"]);
            let tail = format!("\"temperature\": 0, \"max_tokens\": {limit}, \"logprobs\": true");
            let body = format!("{{\"messages\": {messages}, {tail}}}");
            let prompt: Vec<u64> = fixtures::integers(&chat["prompt"]);

            let reply = post(&server, "/v1/chat/completions", &body);
            let tokens: Vec<u32> = fixtures::integers(&chat["tokens"]);
            let stops = chat["finish_reason"] == "stop";
            assert_eq!(
                string(choice(&reply), &["message", "content"]),
                chat["text"].as_str().unwrap(),
                "{case}"
            );
            assert_eq!(
                string(choice(&reply), &["finish_reason"]),
                chat["finish_reason"].as_str().unwrap(),
                "{case}"
            );
            assert_eq!(
                count(&reply, &["usage", "prompt_tokens"]),
                prompt.len() as u64,
                "{case}"
            );
            assert_eq!(
                count(&reply, &["usage", "completion_tokens"]),
                tokens.len() as u64,
                "{case}"
            );
            // The tokens themselves, by their bytes; one that ends the turn is not told.
            let told = at(choice(&reply), &["logprobs", "content"])
                .as_array()
                .unwrap();
            let told: Vec<String> = told
                .iter()
                .map(|token| to_json(at(token, &["bytes"])))
                .collect();
            let bytes = |id: &u32| {
                let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
                to_json(&bytes.into_iter().map(u32::from).collect())
            };
            let said = &tokens[..tokens.len() - usize::from(stops)];
            assert_eq!(told, said.iter().map(bytes).collect::<Vec<_>>(), "{case}");

            let body = body.replacen('{', "{\"stream\": true, ", 1);
            let events = stream(&server, "/v1/chat/completions", &body);
            assert_eq!(streamed(&events), chat["text"].as_str().unwrap(), "{case}");

            let body = format!(
                "{{\"prompt\": {}, \"temperature\": 0, \"max_tokens\": {limit}}}",
                chat["prompt"]
            );
            let reply = post(&server, "/v1/completions", &body);
            assert_eq!(
                string(choice(&reply), &["text"]),
                chat["text"].as_str().unwrap(),
                "{case}"
            );
        }
    }
}

#[test]
fn conversations_have_the_references_tokens() {
    for name in RELEASES {
        let golden = fixtures::json(&format!("golden/chat/{name}.json"));
        let server = server(name, &[]);
        for chat in golden["chats"].as_array().unwrap() {
            let body = format!("{{\"messages\": {}}}", chat["messages"]);
            let counted = post(&server, "/tokenize", &body);
            let tokens = to_json(at(&counted, &["tokens"]));
            assert_eq!(
                tokens,
                chat["prompt"].to_string(),
                "{name}/{}",
                chat["name"]
            );
        }
    }
}

/// The continuations of `golden/hidden` are of token ids over the whole embedding, the tokenizer's or not.
#[test]
fn greedy_continuations_of_any_ids_are_the_references() {
    for name in RELEASES {
        let golden = fixtures::json(&format!("golden/hidden/{name}.json"));
        let tokenizer = Tokenizer::open(&release(name).join("tokenizer.json")).unwrap();
        let server = server(name, &[]);
        for chat in golden["chats"].as_array().unwrap() {
            let tokens: Vec<u32> = fixtures::integers(&chat["continuation"]);
            let body = format!(
                "{{\"prompt\": {}, \"temperature\": 0, \"max_tokens\": {}, \"ignore_eos\": true, \"logprobs\": 0}}",
                chat["prompt"],
                tokens.len()
            );
            let reply = post(&server, "/v1/completions", &body);
            let told = at(choice(&reply), &["logprobs", "tokens"]);
            let text = |id: &u32| {
                let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
                String::from_utf8_lossy(&bytes).into_owned()
            };
            let wanted: Value = tokens.iter().map(text).collect();
            assert_eq!(
                to_json(told),
                to_json(&wanted),
                "{name}: {}",
                chat["prompt"]
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_text_alone_and_in_company() {
    let server = server("tiny-random", &["--slots", "3", "--cache-mb", "8"]);
    let body = |index: usize, seed: usize| {
        let words = "lamp attic roof rain ".repeat(1 + 37 * (index % 5));
        let penalties = "\"presence_penalty\": 0.5, \"frequency_penalty\": 0.25, \"min_p\": 0.01";
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{index} {words}\"}}], \"seed\": {seed}, \"max_tokens\": 24, \
             \"temperature\": 1.3, \"top_p\": 0.95, {penalties}, \"logprobs\": true, \"top_logprobs\": 3}}"
        )
    };
    let said = |reply: &Value| to_json(choice(reply));
    let alone: Vec<String> = (0..10)
        .map(|index| said(&post(&server, "/v1/chat/completions", &body(index, 7))))
        .collect();
    assert_ne!(
        alone[0],
        said(&post(&server, "/v1/chat/completions", &body(0, 8)))
    );
    thread::scope(|scope| {
        for index in 0..10 {
            let (server, alone, body) = (&server, &alone, &body);
            scope.spawn(move || {
                for turn in 0..3 {
                    let reply = post(server, "/v1/chat/completions", &body(index, 7));
                    assert_eq!(said(&reply), alone[index], "{index}, turn {turn}");
                }
            });
        }
    });
}

#[test]
fn thinking_is_switched_by_the_template() {
    let server = server("tiny-random", &[]);
    let ids = |fields: &str| {
        let body =
            format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}]{fields}}}");
        to_json(at(&post(&server, "/tokenize", &body), &["tokens"]))
    };
    // This release's template has no such switch; it takes the variable and does what it does.
    assert_eq!(
        ids(", \"chat_template_kwargs\": {\"enable_thinking\": true}"),
        ids("")
    );
    assert_ne!(ids(", \"add_generation_prompt\": false"), ids(""));
}

#[test]
fn a_server_without_chat_says_so_and_decides() {
    let server = Server::start(&["--no-chat", "--max-length", "1024"]);
    let body = r#"{"messages": [{"role": "user", "content": "x"}]}"#;
    let reply = server.ask("POST", "/v1/chat/completions", "", body.as_bytes());
    assert_eq!(reply.status, 400);
    let message = string(&reply.json(), &["error", "message"]);
    assert!(
        message.contains("/v1/systemone") && message.contains("--no-chat"),
        "{message}"
    );
    let decision = br#"{"state": "x", "questions": {"a": {"type": "noul"}}}"#;
    assert_eq!(server.decide(decision).status, 200);
}

#[test]
fn pieces_and_the_cache_change_no_byte() {
    let messages = format!(
        "[{{\"role\": \"user\", \"content\": \"{}\"}}]",
        "a roof over the attic, ".repeat(40)
    );
    let body = format!(
        "{{\"messages\": {messages}, \"max_tokens\": 20, \"seed\": 3, \"logprobs\": true, \"top_logprobs\": 5}}"
    );
    let mut replies = Vec::new();
    for flags in [
        ["--max-rows", "64", "--cache-mb", "0"],
        ["--max-rows", "1024", "--cache-mb", "16"],
    ] {
        let server = server("tiny-random", &flags);
        for _ in 0..2 {
            let reply = post(&server, "/v1/chat/completions", &body);
            let cached = count(&reply, &["usage", "prompt_tokens_details", "cached_tokens"]);
            replies.push((cached > 0, to_json(choice(&reply))));
        }
    }
    let hits: Vec<bool> = replies.iter().map(|(hit, _)| *hit).collect();
    assert_eq!(hits, [false, false, false, true]);
    assert!(replies.iter().all(|(_, choice)| *choice == replies[0].1));
}

/// Checks a refusal of OpenAI's family and gives its `param` and `code`.
fn refused(server: &Server, path: &str, body: &str, status: u16) -> (Value, Value) {
    let reply = server.ask("POST", path, "", body.as_bytes());
    assert_eq!(reply.status, status, "{}", text(&reply.body));
    let body = reply.json();
    assert!(body.get("detail").is_none(), "one shape is enough: {body}");
    assert!(!string(&body, &["error", "message"]).is_empty());
    let kind = if status < 500 {
        "invalid_request_error"
    } else {
        "server_error"
    };
    assert_eq!(string(&body, &["error", "type"]), kind);
    let field = |name| at(&body, &["error", name]).clone();
    (field("param"), field("code"))
}

#[test]
fn refusals_are_openais() {
    let server = server("tiny-random", &[]);
    let chat = |fields: &str| {
        format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}]{fields}}}")
    };
    let long = format!("{{\"prompt\": \"{}\"}}", "word ".repeat(3000));
    let no_text = r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#;
    for (path, body, status, param, code) in [
        ("/v1/chat/completions", "{", 400, None, None),
        ("/v1/chat/completions", "[]", 400, None, None),
        (
            "/v1/chat/completions",
            &chat(", \"temperature\": -1"),
            400,
            Some("temperature"),
            None,
        ),
        (
            "/v1/chat/completions",
            no_text,
            400,
            Some("messages[0].content[0].type"),
            None,
        ),
        (
            "/v1/chat/completions",
            &chat(", \"model\": \"gpt-6\""),
            404,
            Some("model"),
            Some("model_not_found"),
        ),
        (
            "/v1/completions",
            &long,
            400,
            None,
            Some("context_length_exceeded"),
        ),
        ("/v1/completions", "{}", 400, Some("prompt"), None),
        ("/tokenize", "{}", 400, Some("prompt"), None),
        ("/detokenize", "{}", 400, Some("tokens"), None),
    ] {
        let (found_param, found_code) = refused(&server, path, body, status);
        // A body that is no JSON is at fault where it stops to be some.
        if body != "{" {
            assert_eq!(found_param.as_str(), param, "{path} {body}");
        }
        assert_eq!(found_code.as_str(), code, "{path} {body}");
    }
}

#[test]
fn a_full_server_says_when_to_come_back() {
    let server = server("tiny-random", &["--slots", "1", "--queue", "1"]);
    let body = r#"{"prompt": "x", "max_tokens": 900, "ignore_eos": true}"#;
    let replies: Vec<_> = thread::scope(|scope| {
        let ask = || server.ask("POST", "/v1/completions", "", body.as_bytes());
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asked
            .into_iter()
            .map(|asked| asked.join().unwrap())
            .collect()
    });
    let full: Vec<_> = replies.iter().filter(|reply| reply.status != 200).collect();
    assert!(!full.is_empty() && full.len() < 8, "{} of 8", full.len());
    for reply in full {
        assert_eq!(reply.status, 503);
        assert_eq!(string(&reply.json(), &["error", "code"]), "overloaded");
        let ms: u64 = reply.header("retry-after-ms").unwrap().parse().unwrap();
        let seconds: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert_eq!(seconds, ms.div_ceil(1000));
    }
    let texts: Vec<_> = replies
        .iter()
        .filter(|reply| reply.status == 200)
        .map(|reply| string(choice(&reply.json()), &["text"]))
        .collect();
    assert!(texts.iter().all(|text| *text == texts[0]));
}

#[test]
fn a_server_that_does_not_fit_says_what_would() {
    let limit = ["--memory-limit", "24MiB"];
    let asked = [&["serve", "--port", "0", "--slots", "8"], &limit[..]].concat();
    let output = run(&asked, b"");
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    for item in ["not enough memory: ", "LM head", "KV cache", "state cache"] {
        assert!(message.contains(item), "{item}: {message}");
    }
    // What it advises fits.
    let (_, advice) = message.split_once("it fits with ").expect("advice");
    let flags: Vec<&str> = advice.split_whitespace().collect();
    assert!(
        flags.contains(&"--cache-mb") && flags.contains(&"--slots"),
        "{advice}"
    );
    let server = Server::start(&[&flags[..], &limit[..]].concat());
    let decision = br#"{"state": "x", "questions": {"a": {"type": "noul"}}}"#;
    assert_eq!(server.decide(decision).status, 200);
}
