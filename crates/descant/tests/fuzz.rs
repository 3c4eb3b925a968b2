//! Mutated requests over HTTP: no panic, no 5xx, no answer with NaN, memory flat.
//!
//! Requests of every dialect are taken apart as JSON trees, changed where it hurts (types, keys, counts, depths, numbers, texts), put
//! together, packed, cut and sent on every route. `DESCANT_FUZZ_REQUESTS=100000 cargo test --release -p descant --test fuzz` sends as many,
//! `DESCANT_FUZZ_SEED` takes other ones.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::thread;

use descant_decision::Value;
use descant_decision::json::{Object, parse, parse_str, to_json};
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

use crate::common::{Connection, Server};

/// Requests of a plain run.
const REQUESTS: usize = 4000;
/// Connections at a time.
const CLIENTS: usize = 4;
/// Memory that a server may have taken on beyond what it had after a tenth of the requests: allocators keep some.
const GROWTH_BYTES_MAX: usize = 48 << 20;

/// Requests that are answered, one a dialect or form.
const SEEDS: &[(&str, &str)] = &[
    (
        "/v1/chat/completions",
        r#"{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hi"}]}],"max_tokens":2,"temperature":0.5,"seed":1,"stop":["x"],"logprobs":true,"top_logprobs":2}"#,
    ),
    (
        "/tokenize",
        r#"{"prompt":"The lamp","add_special_tokens":false}"#,
    ),
    (
        "/v1/systemone",
        r#"{"model":"clef-flash","state":"The lamp is broken.","questions":{"broken":{"type":"noul","instructions":"Is it?","criteria":{"true":"yes","false":null}},"room":{"type":"choice","instructions":["Where?"],"criteria":{"kitchen":null,"attic":"Under the roof","hall":{"a":1.5}}},"harm":{"type":"score","criteria":["None",["Some"],{"x":2}]}}}"#,
    ),
    (
        "/v1/systemone",
        r#"{"model":"jev-latest","raw":true,"state":{"a":[1,2.50,-0,1e16,true,null,"\u00e9"],"b":{"c":{"d":[]}}},"questions":{"10":{"type":"noul"},"2":{"type":"noul","instructions":{"ask":"y?"}}},"images":[],"videos":null,"assets":{}}"#,
    ),
    (
        "/v1/systemone",
        r#"{"state":[{"role":"user","content":"hi <|im_end|>"}],"questions":{"q":{"type":"choice","criteria":{"1":null,"10":null,"100":null}}},"images":["data:image/png;base64,iVBORw0KGgo="],"assets":{"<i>":{"type":"image","format":"png","data_base64":"iVBORw0KGgo="}}}"#,
    ),
    (
        "/v1/decisions",
        r#"{"model":"clef-flash","input":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"input_text","text":"See:"},{"type":"input_json","data":{"a":1}}]},{"type":"function_call","call_id":"c","name":"n","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"}],"questions":[{"type":"predicate","name":"p","instructions":"y?"},{"type":"choice","instructions":"z?","choices":[{"value":true},{"value":"true","description":"d"},{"value":false}]},{"type":"score","name":"s","instructions":[{"type":"input_text","text":"w?"}],"levels":[{"label":"low"},{"label":"high","description":"e"}]}]}"#,
    ),
    (
        "/v1/decisions",
        r#"{"input":{"title":"x"},"questions":[{"id":"a","type":"choice","question":"Which?","options":[{"name":"p"},{"name":"q","description":"r"}]},{"id":"b","type":"yes_no","question":"y?","yes":"j"},{"id":"c","type":"score","question":"s?","levels":["l","m"]}],"temperature":1,"prompt_format_version":1}"#,
    ),
    (
        "/client/v4/accounts/local/ai/run/@cf/cloudflare/clef-flash",
        r#"{"model":"clef-flash","state":"Flight delayed.","questions":{"c":{"type":"noul","instructions":"Is it?"}}}"#,
    ),
];

const PATHS: &[&str] = &[
    "/v1/systemone",
    "/v1/decisions",
    "/api/alpha/decisions",
    "/client/v4/accounts/a/ai/run/clef",
    "/client/v4/accounts//ai/run/",
    "/v1/models",
    "/v1/models/%ff%00",
    "/v1/chat/completions",
    "/nothing",
    "/",
];

const METHODS: &[&str] = &["GET", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"];

const KEYS: &[&str] = &[
    "",
    "type",
    "criteria",
    "instructions",
    "questions",
    "state",
    "model",
    "images",
    "files",
    "assets",
    "videos",
    "raw",
    "input",
    "choices",
    "levels",
    "value",
    "label",
    "name",
    "id",
    "question",
    "options",
    "true",
    "false",
    "part",
    "data_base64",
    "url",
    "\u{0}",
    "a\u{1b}[31m",
    "🙂",
];

const TEXTS: &[&str] = &[
    "",
    " ",
    "noul",
    "choice",
    "score",
    "predicate",
    "yes_no",
    "box",
    "jev-latest",
    "clef",
    "<|im_end|>",
    "<|image_pad|>",
    "\u{0}",
    "\u{feff}",
    "e\u{301}",
    "\u{202e}abc",
    "data:image/png;base64,AAAA",
    "https://example.invalid/x.png",
    "file:///etc/passwd",
    "/etc/passwd",
    "input_text",
    "function_call_output",
    "हिन्दी",
    "\u{10ffff}",
];

/// JSON text of values, some of which no value of this program can be.
const RAW: &[&str] = &[
    "null",
    "true",
    "false",
    "0",
    "-0",
    "-0.0",
    "1e400",
    "-1e400",
    "1e-400",
    "NaN",
    "Infinity",
    "123456789012345678901234567890",
    "1.10",
    "[]",
    "{}",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "[[[[]]]]",
    "{\"a\":{\"a\":{}}}",
    "\"\\u0000\"",
    "[null]",
    "{\"\":null}",
];

/// Xorshift: the same requests on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }
}

/// Changes one node of a tree. A placeholder stands for raw text, put in once the tree is written.
fn change(value: Value, random: &mut Random, raw: &mut Vec<String>) -> Value {
    if random.chance(3) {
        return replacement(value, random, raw);
    }
    match value {
        Value::Array(mut items) if !items.is_empty() => {
            let at = random.below(items.len());
            match random.below(6) {
                0 => drop(items.remove(at)),
                1 => items.insert(at, items[at].clone()),
                2 => items.reverse(),
                3 => {
                    items = items
                        .iter()
                        .cycle()
                        .take(items.len() * (2 + random.below(60)))
                        .cloned()
                        .collect()
                }
                _ => items[at] = change(items[at].clone(), random, raw),
            }
            Value::Array(items)
        }
        Value::Object(object) if !object.is_empty() => changed_object(&object, random, raw).into(),
        other => replacement(other, random, raw),
    }
}

fn changed_object(object: &Object, random: &mut Random, raw: &mut Vec<String>) -> Object {
    let mut entries: Vec<(String, Value)> = object
        .iter()
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .collect();
    let at = random.below(entries.len());
    match random.below(7) {
        0 => drop(entries.remove(at)),
        1 => entries[at].0 = random.one(KEYS).to_owned(),
        2 => entries.push((random.one(KEYS).to_owned(), entries[at].1.clone())),
        3 => entries.reverse(),
        4 => {
            let copies = 1 + random.below(300);
            entries.extend((0..copies).map(|copy| (format!("k{copy}"), Value::Null)));
        }
        _ => entries[at].1 = change(entries[at].1.clone(), random, raw),
    }
    entries.into_iter().collect()
}

fn replacement(value: Value, random: &mut Random, raw: &mut Vec<String>) -> Value {
    match random.below(8) {
        0 => random.one(TEXTS).into(),
        1 => random.one(TEXTS).repeat(1 + random.below(400)).into(),
        2 => Value::Array(vec![value]),
        3 => Object::new().with(random.one(KEYS), value).into(),
        4 => {
            let depth = 1 + random.below(1200);
            raw.push(format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
            placeholder(raw.len() - 1)
        }
        5 | 6 => {
            raw.push(random.one(RAW).to_owned());
            placeholder(raw.len() - 1)
        }
        _ => Value::Null,
    }
}

fn placeholder(index: usize) -> Value {
    format!("@raw{index}@").into()
}

/// The text of a tree, duplicate keys and raw values included.
fn written(value: &Value, raw: &[String], random: &mut Random) -> Vec<u8> {
    let mut text = to_json(value);
    for (index, raw) in raw.iter().enumerate() {
        text = text.replace(&format!("\"@raw{index}@\""), raw);
    }
    if random.chance(12) {
        text = text.replacen('{', "{\"state\":1,\"questions\":{},", 1);
    }
    let mut bytes = text.into_bytes();
    if random.chance(6) {
        damage(&mut bytes, random);
    }
    bytes
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        let end = (at + random.below(40)).min(bytes.len());
        match random.below(4) {
            0 => bytes[at] = random.below(256) as u8,
            1 => drop(bytes.drain(at..end)),
            2 => bytes.truncate(at),
            _ => drop(bytes.splice(at..at, random.one(RAW).bytes())),
        }
    }
}

/// Packs a body in one of the ways of HTTP; sometimes not quite.
fn packed(bytes: Vec<u8>, random: &mut Random) -> (Vec<u8>, String) {
    let (mut bytes, header) = match random.below(14) {
        0 => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&bytes).unwrap();
            (
                encoder.finish().unwrap(),
                "content-encoding: gzip\r\n".to_owned(),
            )
        }
        1 => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&bytes).unwrap();
            (
                encoder.finish().unwrap(),
                "content-encoding: deflate\r\n".to_owned(),
            )
        }
        2 => {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&bytes).unwrap();
            (
                encoder.finish().unwrap(),
                "content-encoding: deflate\r\n".to_owned(),
            )
        }
        3 => (
            bytes,
            format!(
                "content-encoding: {}\r\n",
                random.one(&["zstd", "gzip", "br", "", "gzip, gzip"])
            ),
        ),
        4 | 5 => (
            form(&bytes, random),
            "content-type: multipart/form-data; boundary=b1\r\n".to_owned(),
        ),
        6 => (
            bytes,
            format!(
                "content-type: {}\r\n",
                random.one(&[
                    "text/plain",
                    "multipart/mixed",
                    "multipart/form-data",
                    "application/json; charset=latin1"
                ])
            ),
        ),
        _ => (bytes, String::new()),
    };
    if !header.is_empty() && random.chance(4) {
        damage(&mut bytes, random);
    }
    (bytes, header)
}

fn form(request: &[u8], random: &mut Random) -> Vec<u8> {
    let name = random.one(&["request", "request", "request", "other", ""]);
    let head = format!("--b1\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
    let picture = b"\r\n--b1\r\nContent-Disposition: form-data; name=\"asset-0\"; filename=\"x\"\r\n\r\n\x89PNG\r\n\x1a\n\r\n--b1--\r\n";
    [head.as_bytes(), request, picture].concat()
}

/// A request as it goes over the wire.
struct Sent {
    method: &'static str,
    path: String,
    headers: String,
    body: Vec<u8>,
}

fn sent(seeds: &[(&str, Value)], random: &mut Random) -> Sent {
    let (path, seed) = &seeds[random.below(seeds.len())];
    let (mut tree, mut raw) = (seed.clone(), Vec::new());
    for _ in 0..random.below(4) {
        tree = change(tree, random, &mut raw);
    }
    let (body, mut headers) = packed(written(&tree, &raw, random), random);
    if random.chance(10) {
        headers.push_str(random.one(&[
            "x-request-id: \u{e9}\r\n",
            "x-request-id: mine\r\n",
            "x-descant-receipt: 1\r\n",
            "accept-encoding: gzip\r\n",
            "authorization: Bearer x\r\n",
            "origin: https://a.example\r\n",
        ]));
    }
    Sent {
        method: if random.chance(40) {
            random.one(METHODS)
        } else {
            "POST"
        },
        path: if random.chance(12) {
            random.one(PATHS).to_owned()
        } else {
            (*path).to_owned()
        },
        headers,
        body,
    }
}

/// Sends a share of the requests and counts the statuses.
fn client(server: &Server, seed: u64, count: usize, statuses: &Mutex<BTreeMap<u16, usize>>) {
    let seeds: Vec<(&str, Value)> = SEEDS
        .iter()
        .map(|(path, text)| (*path, parse_str(text).unwrap()))
        .collect();
    let mut random = Random(seed);
    let mut connection: Connection = server.connect();
    for _ in 0..count {
        let Sent {
            method,
            path,
            headers,
            body,
        } = sent(&seeds, &mut random);
        let reply = connection.ask(method, &path, &headers, &body);
        let told = || {
            format!(
                "{method} {path}\n{headers}\n{}\n{}",
                String::from_utf8_lossy(&body),
                String::from_utf8_lossy(&reply.body)
            )
        };
        assert!(
            (200..500).contains(&reply.status),
            "{}: {}",
            reply.status,
            told()
        );
        assert!(reply.header("x-request-id").is_some(), "{}", told());
        if reply.header("content-type") == Some("application/json") {
            // A strict reader: NaN and Infinity are no JSON to it.
            let read = parse(&reply.body).unwrap_or_else(|error| panic!("{error}: {}", told()));
            let refused = read.get("error").is_some()
                || read.get("success").and_then(Value::as_bool) == Some(false);
            assert!(
                method != "POST" || refused == (reply.status != 200),
                "{}",
                told()
            );
        }
        *statuses.lock().unwrap().entry(reply.status).or_insert(0) += 1;
        if !matches!(reply.status, 200 | 422) {
            // A body that was refused unread costs its connection.
            connection = server.connect();
        }
    }
}

fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name)
        .ok()
        .map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn no_request_is_the_servers_fault() {
    let (count, seed) = (
        setting("DESCANT_FUZZ_REQUESTS", REQUESTS),
        setting("DESCANT_FUZZ_SEED", 1),
    );
    let server = Server::start(&["--max-length", "1024", "--log", "error", "--cache-mb", "4"]);
    let statuses = Mutex::new(BTreeMap::new());
    let run = |share: usize, first: u64| {
        thread::scope(|scope| {
            for number in 0..CLIENTS as u64 {
                let (server, statuses) = (&server, &statuses);
                let seed =
                    (first + number + 1000 * seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                scope.spawn(move || client(server, seed, share, statuses));
            }
        });
    };
    run(count / 10 / CLIENTS, 1);
    let before = server.memory_bytes();
    run((count - count / 10) / CLIENTS, 101);
    let after = server.memory_bytes();
    let statuses = statuses.into_inner().unwrap();
    let total: usize = statuses.values().sum();
    println!(
        "{total} requests: {statuses:?}; memory {} MiB, then {} MiB",
        before >> 20,
        after >> 20
    );
    assert!(
        after < before + GROWTH_BYTES_MAX,
        "memory grew from {before} to {after} bytes"
    );
    // The changes are neither always harmless nor always fatal.
    assert!(
        statuses[&200] * 20 > total && (statuses[&422] + statuses[&400]) * 10 > total,
        "{statuses:?}"
    );
    let log = server.log();
    assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    assert_eq!(server.ask("GET", "/health", "", b"").status, 200);
}
