//! Chat and completions over HTTP, on a backend that hashes and waits where a test wants it to.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use descant_decision::json::{self, to_json};
use descant_decision::{Budget, Detokenize, Tokenize, Value};
use descant_engine::{Engine, Settings, Stats};
use descant_model::{Backend, Capacity, Defect, Pass, Saved, Segment, Slot};
use descant_release::ModelConfig;
use descant_server::{
    App, Card, ChatDesk, ChatTemplate, Confidence, Desk, Front, Limits, Names, Provenance, Setup,
    Size, serve,
};
use descant_testkit::fake::{Call, FakeBackend, FakeHead, Mishap, Script, VOCAB};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
const CHAT: &str =
    r#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "seed": 7}"#;
/// Rows of a piece.
const PIECE: usize = 64;

/// A character is a token; two tokens more are the halves of an `é`.
struct Letters;

impl Tokenize for Letters {
    fn encode(&self, text: &str) -> Vec<u32> {
        text.bytes()
            .map(|byte| u32::from(byte.wrapping_sub(b' ')) % VOCAB as u32)
            .collect()
    }
}

impl Detokenize for Letters {
    fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        match id {
            0..95 => Some(vec![b' ' + id as u8]),
            95 => Some(vec![0xc3]),
            96 => Some(vec![0xa9]),
            _ => None,
        }
    }

    fn is_special(&self, id: u32) -> bool {
        id == 0
    }
}

/// Lets rounds pass, one for each permit, or all of them.
#[derive(Default)]
struct Gate {
    permits: Mutex<Option<usize>>,
    changed: Condvar,
    /// Tokens that the model chooses next, whatever its logits say.
    words: Mutex<VecDeque<u32>>,
}

impl Gate {
    /// A gate that lets no round pass.
    fn shut() -> Arc<Gate> {
        let gate = Gate::default();
        *gate.permits.lock().unwrap() = Some(0);
        Arc::new(gate)
    }

    /// Lets the model say a text and then end its turn.
    fn dictate(&self, text: &str) {
        *self.words.lock().unwrap() = Letters.encode(text).into_iter().chain([0]).collect();
    }

    fn allow(&self, rounds: usize) {
        if let Some(permits) = &mut *self.permits.lock().unwrap() {
            *permits += rounds;
        }
        self.changed.notify_all();
    }

    fn open(&self) {
        *self.permits.lock().unwrap() = None;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let permits = self.permits.lock().unwrap();
        let mut permits = self
            .changed
            .wait_while(permits, |permits| *permits == Some(0))
            .unwrap();
        if let Some(permits) = &mut *permits {
            *permits -= 1;
        }
    }
}

/// A fake backend whose rounds wait at a gate.
struct Gated {
    backend: FakeBackend,
    gate: Arc<Gate>,
}

impl Backend for Gated {
    fn config(&self) -> &ModelConfig {
        self.backend.config()
    }

    fn capacity(&self) -> Capacity {
        self.backend.capacity()
    }

    fn reset(&mut self, slot: Slot) {
        self.backend.reset(slot);
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        self.gate.pass();
        self.backend.run(round)
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        self.backend.hidden(rows, out)
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        self.backend.logits(rows, out)?;
        if let Some(word) = self.gate.words.lock().unwrap().pop_front() {
            out[word as usize] = 1000.0;
        }
        Ok(())
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        self.backend.saved_bytes(rows)
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        self.backend.save(slot, rows)
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        self.backend.load(slot, saved)
    }
}

/// A server on a fake.
struct House {
    app: Arc<App>,
    engine: Engine,
    script: Script,
    gate: Arc<Gate>,
}

impl Drop for House {
    fn drop(&mut self) {
        // The engine's thread ends only between rounds.
        self.gate.open();
    }
}

struct Plan {
    gate: Arc<Gate>,
    settings: Settings,
    limits: Limits,
    slots: usize,
}

impl Default for Plan {
    fn default() -> Plan {
        let gate = Gate::shut();
        gate.open();
        Plan {
            gate,
            settings: Settings {
                piece_rows: PIECE,
                cache_bytes: 0,
                ..Settings::default()
            },
            limits: Limits::default(),
            slots: 4,
        }
    }
}

impl Plan {
    fn house(self) -> House {
        let script = Script::default();
        let capacity = Capacity {
            slots: self.slots,
            positions: 4096,
            rows: 128 + self.slots,
        };
        let backend = Gated {
            backend: FakeBackend::new(capacity, script.clone()),
            gate: Arc::clone(&self.gate),
        };
        let head = Arc::new(FakeHead::new(Script::default()));
        let engine = Engine::start(Box::new(backend), Some(head), &self.settings).unwrap();
        let budget = Budget {
            max_length: 4096,
            ..Budget::default()
        };
        let names = Names::new("fake".into(), Vec::new(), Size::Other, false);
        let template = ChatTemplate::new(TEMPLATE, Vec::new()).map_err(|error| error.to_string());
        let app = App::new(Front {
            limits: self.limits,
            readers: 2,
            ..Front::default()
        });
        app.open(Setup {
            desk: Desk::new(names, Arc::new(Letters), budget, Confidence::Auto),
            engine: engine.handle(),
            card: Card {
                description: "a fake".into(),
                length_max: 4096,
                loaded: SystemTime::now(),
            },
            provenance: no_files(),
            no_head: None,
            chat: Ok(ChatDesk::new(
                Arc::new(Letters),
                template,
                vec![0],
                VOCAB,
                4096,
            )),
        });
        House {
            app: Arc::new(app),
            engine,
            script,
            gate: self.gate,
        }
    }
}

fn no_files() -> Provenance {
    Provenance::new("fake".into(), || Err("a fake has no files".into()))
}

impl House {
    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Response<Body> {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let answer = tokio::time::timeout(PATIENCE, self.app.answer(request)).await;
        answer.expect("a reply in time")
    }

    async fn ask(&self, path: &str, body: &str) -> (u16, Value) {
        let response = self.post(path, &[], body).await;
        (response.status().as_u16(), value(response).await)
    }

    async fn chat(&self, body: &str) -> Value {
        let (status, reply) = self.ask("/v1/chat/completions", body).await;
        assert_eq!(status, 200, "{reply}");
        reply
    }

    /// The events of a stream, without the last.
    async fn events(&self, path: &str, body: &str) -> Vec<Value> {
        let response = self.post(path, &[], body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let mut events: Vec<&str> = std::str::from_utf8(&bytes).unwrap().split("\n\n").collect();
        assert_eq!(
            (events.pop(), events.pop()),
            (Some(""), Some("data: [DONE]"))
        );
        let event = |event: &str| json::parse_str(event.strip_prefix("data: ").unwrap()).unwrap();
        events.into_iter().map(event).collect()
    }

    fn stats(&self) -> Stats {
        self.engine.handle().stats()
    }

    /// Serves on a port of its own.
    async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(
            listener,
            Arc::clone(&self.app),
            std::future::pending(),
        ));
        address
    }

    /// Lets rounds pass one by one until something is so; the rounds that it took.
    async fn step_until(&self, what: &str, mut done: impl FnMut(&Stats) -> bool) -> u64 {
        let first = self.stats().rounds;
        let start = Instant::now();
        while !done(&self.stats()) {
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", self.stats());
            self.gate.allow(1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.stats().rounds - first
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

async fn value(response: Response<Body>) -> Value {
    json::parse(&to_bytes(response.into_body(), 1 << 20).await.unwrap()).unwrap()
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter()
        .fold(value, |value, key| match key.parse::<usize>() {
            Ok(index) => &value.as_array().unwrap()[index],
            Err(_) => value
                .get(key)
                .unwrap_or_else(|| panic!("no {key} in {value}")),
        })
}

fn text(value: &Value, path: &[&str]) -> String {
    at(value, path).as_str().unwrap().to_owned()
}

fn number(value: &Value, path: &[&str]) -> u64 {
    at(value, path).as_number().unwrap().as_u64().unwrap()
}

/// The text of a whole chat reply.
fn said(reply: &Value) -> String {
    text(reply, &["choices", "0", "message", "content"])
}

/// A chat body with further fields.
fn with(fields: &str) -> String {
    CHAT.replace("\"seed\": 7", &format!("\"seed\": 7, {fields}"))
}

/// A chat body whose prompt has so many rows.
fn long(rows: usize, fields: &str) -> String {
    let content = "x".repeat(rows - "user:;".len());
    with(fields).replace("hi", &content)
}

/// An HTTP/1.1 request as bytes.
fn http(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Prompt rows that ran, by slot, in order.
fn prompt_rows(calls: &[Call]) -> Vec<Vec<(usize, usize)>> {
    let segments = |call: &Call| match call {
        Call::Run(segments) => Some(
            segments
                .iter()
                .filter(|(.., pass)| *pass == Pass::Prefill)
                .map(|(slot, _, rows, _)| (slot.0, *rows))
                .collect(),
        ),
        _ => None,
    };
    calls.iter().filter_map(segments).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_says_what_the_whole_reply_says() {
    let house = Plan::default().house();
    let whole = house
        .chat(&with(r#""logprobs": true, "top_logprobs": 2"#))
        .await;
    let fields = r#""logprobs": true, "top_logprobs": 2, "stream": true, "stream_options": {"include_usage": true}"#;
    let events = house.events("/v1/chat/completions", &with(fields)).await;
    let (usage, parts) = events.split_last().unwrap();
    assert_eq!(at(usage, &["usage"]), at(&whole, &["usage"]));
    assert_eq!(at(usage, &["choices"]).as_array().unwrap().len(), 0);
    assert_eq!(
        to_json(at(&parts[0], &["choices", "0", "delta"])),
        r#"{"role":"assistant","content":""}"#
    );
    let (last, middle) = parts[1..].split_last().unwrap();
    let pieces: String = middle
        .iter()
        .map(|part| text(part, &["choices", "0", "delta", "content"]))
        .collect();
    assert_eq!(pieces, said(&whole));
    assert!(middle.len() > 5, "one event a token or so");
    assert_eq!(to_json(at(last, &["choices", "0", "delta"])), "{}");
    assert_eq!(
        at(last, &["choices", "0", "finish_reason"]),
        at(&whole, &["choices", "0", "finish_reason"])
    );
    let tokens: Vec<String> = middle
        .iter()
        .flat_map(|part| {
            at(part, &["choices", "0", "logprobs", "content"])
                .as_array()
                .unwrap()
        })
        .map(to_json)
        .collect();
    let wanted = at(&whole, &["choices", "0", "logprobs", "content"])
        .as_array()
        .unwrap();
    assert_eq!(tokens, wanted.iter().map(to_json).collect::<Vec<_>>());
    assert_eq!(
        at(&wanted[0], &["top_logprobs"]).as_array().unwrap().len(),
        2
    );
    for event in &events {
        assert_eq!(at(event, &["id"]), at(&events[0], &["id"]));
        assert_eq!(text(event, &["object"]), "chat.completion.chunk");
    }
    assert_ne!(at(&whole, &["id"]), at(&events[0], &["id"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_the_text_whole_or_in_pieces() {
    let house = Plan::default().house();
    let all = said(&house.chat(CHAT).await);
    let chars: Vec<char> = all.chars().collect();
    let stop: String = chars[10..13].iter().collect();
    let quoted = to_json(&Value::from(stop.as_str()));
    let before: String = all[..all.find(&stop).unwrap()].to_owned();
    let reply = house.chat(&with(&format!("\"stop\": {quoted}"))).await;
    assert_eq!(said(&reply), before);
    assert_eq!(text(&reply, &["choices", "0", "finish_reason"]), "stop");
    assert!(number(&reply, &["usage", "completion_tokens"]) < 40);
    let events = house
        .events(
            "/v1/chat/completions",
            &with(&format!(
                "\"stream\": true, \"stop\": [\"never this\", {quoted}]"
            )),
        )
        .await;
    let (last, middle) = events[1..].split_last().unwrap();
    let pieces: String = middle
        .iter()
        .map(|part| text(part, &["choices", "0", "delta", "content"]))
        .collect();
    assert_eq!(pieces, before);
    assert_eq!(text(last, &["choices", "0", "finish_reason"]), "stop");
    // The stream was let go of: its slot is free again.
    until("the slots are free", || house.stats().slots_free == 4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_says_the_same_in_any_company() {
    let house = Plan::default().house();
    let alone = said(&house.chat(CHAT).await);
    let other = said(
        &house
            .chat(&CHAT.replace("\"seed\": 7", "\"seed\": 8"))
            .await,
    );
    assert_ne!(alone, other, "the seed is heeded");
    assert_eq!(said(&house.chat(CHAT).await), alone);
    let company = (0..12).map(|index| {
        let body = match index % 3 {
            0 => CHAT.to_owned(),
            1 => long(300 + index, "\"top_p\": 0.5"),
            _ => CHAT.replace("hi", "something else"),
        };
        let app = Arc::clone(&house.app);
        tokio::spawn(async move {
            let request = Request::post("/v1/chat/completions")
                .body(Body::from(body))
                .unwrap();
            value(app.answer(request).await).await
        })
    });
    let company: Vec<_> = company.collect();
    for (index, reply) in company.into_iter().enumerate() {
        let reply = reply.await.unwrap();
        if index % 3 == 0 {
            assert_eq!(said(&reply), alone, "{index}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_continues_text_or_ids() {
    let house = Plan::default().house();
    let text_body = r#"{"prompt": "user:hi;", "seed": 7, "max_tokens": 40, "logprobs": 1}"#;
    let (status, reply) = house.ask("/v1/completions", text_body).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(text(&reply, &["object"]), "text_completion");
    assert_eq!(
        text(&reply, &["choices", "0", "text"]),
        said(&house.chat(CHAT).await)
    );
    let offsets = at(&reply, &["choices", "0", "logprobs", "text_offset"])
        .as_array()
        .unwrap();
    let tokens = at(&reply, &["choices", "0", "logprobs", "tokens"])
        .as_array()
        .unwrap();
    assert_eq!(
        (to_json(&offsets[0]), offsets.len()),
        ("0".into(), tokens.len())
    );
    let ids = to_json(&Letters.encode("user:hi;").into_iter().collect());
    let by_ids = text_body.replace("\"user:hi;\"", &ids);
    let (_, again) = house.ask("/v1/completions", &by_ids).await;
    assert_eq!(at(&again, &["choices"]), at(&reply, &["choices"]));
    let events = house
        .events(
            "/v1/completions",
            &text_body.replace("{", "{\"stream\": true, "),
        )
        .await;
    let pieces: String = events
        .iter()
        .map(|part| text(part, &["choices", "0", "text"]))
        .collect();
    assert_eq!(pieces, text(&reply, &["choices", "0", "text"]));
    let short = house
        .ask("/v1/completions", r#"{"prompt": "x", "ignore_eos": true}"#)
        .await
        .1;
    assert_eq!(number(&short, &["usage", "completion_tokens"]), 16);
    assert_eq!(text(&short, &["choices", "0", "finish_reason"]), "length");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_called_whole_and_in_a_stream() {
    let house = Plan::default().house();
    let tools = r#""tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}}}}], "max_tokens": 400"#;
    let said_first = "Sure.<tool_call><function=add><parameter=a>41</parameter>\
        <parameter=note>x>y</parameter></function></tool_call>";
    house.gate.dictate(said_first);
    let body = CHAT.replace("\"max_tokens\": 40", tools);
    let reply = house.chat(&body).await;
    assert_eq!(said(&reply), "Sure.");
    let call = at(&reply, &["choices", "0", "message", "tool_calls", "0"]);
    assert_eq!(
        to_json(at(call, &["function"])),
        r#"{"name":"add","arguments":"{\"a\":41,\"note\":\"x>y\"}"}"#
    );
    assert_eq!(
        text(&reply, &["choices", "0", "finish_reason"]),
        "tool_calls"
    );
    house.gate.dictate(said_first);
    let events = house
        .events(
            "/v1/chat/completions",
            &body.replacen('{', "{\"stream\": true, ", 1),
        )
        .await;
    let [.., one, last] = &events[..] else {
        panic!("{events:?}")
    };
    let streamed = at(one, &["choices", "0", "delta", "tool_calls", "0"]);
    assert_eq!(at(streamed, &["function"]), at(call, &["function"]));
    assert_eq!(number(streamed, &["index"]), 0);
    assert_eq!(text(last, &["choices", "0", "finish_reason"]), "tool_calls");
    // Without tools the same words are text; the tools are part of the prompt.
    house.gate.dictate(said_first);
    let plain = house
        .chat(&CHAT.replace("\"max_tokens\": 40", "\"max_tokens\": 400"))
        .await;
    assert_eq!(said(&plain), said_first);
    let prompt = |reply: &Value| number(reply, &["usage", "prompt_tokens"]);
    assert!(prompt(&reply) > prompt(&plain) + 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_text_follows_its_schema_at_any_seed() {
    let house = Plan::default().house();
    let schema = r#"{"type": "object", "properties": {"room": {"enum": ["attic", "hall"]}, "floor": {"type": "integer",
        "minimum": 0, "maximum": 99}}, "required": ["room", "floor"], "additionalProperties": false}"#;
    let format = format!(
        r#""response_format": {{"type": "json_schema", "json_schema": {{"name": "place", "schema": {schema}}}}}"#
    );
    let mut texts = Vec::new();
    for seed in 0..8 {
        let body = with(&format!("{format}, \"top_k\": 20, \"presence_penalty\": 1"))
            .replace("\"seed\": 7", &format!("\"seed\": {seed}"))
            .replace("\"max_tokens\": 40", "\"max_tokens\": 2000");
        let reply = house.chat(&body).await;
        assert_eq!(text(&reply, &["choices", "0", "finish_reason"]), "stop");
        let object = json::parse_str(&said(&reply)).unwrap();
        let room = text(&object, &["room"]);
        assert!(["attic", "hall"].contains(&room.as_str()), "{object}");
        assert!(number(&object, &["floor"]) < 100, "{object}");
        assert_eq!(said(&house.chat(&body).await), said(&reply));
        texts.push(said(&reply));
    }
    texts.sort();
    texts.dedup();
    assert!(texts.len() > 2, "seeds are heeded: {texts:?}");
    let nonsense = r#"{"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}"#;
    for wrong in [nonsense, r#"{"type": "xml"}"#] {
        let body = with(&format!("\"response_format\": {wrong}"));
        let (status, reply) = house.ask("/v1/chat/completions", &body).await;
        assert!((400..500).contains(&status), "{wrong}: {status}");
        assert!(text(&reply, &["error", "param"]).starts_with("response_format"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_ends_at_the_models_own_token_unless_it_is_ignored() {
    let house = Plan::default().house();
    let biased = |fields: &str| with(&format!("\"logit_bias\": {{\"0\": 100}}{fields}"));
    let reply = house.chat(&biased("")).await;
    assert_eq!(said(&reply), "");
    assert_eq!(text(&reply, &["choices", "0", "finish_reason"]), "stop");
    assert_eq!(number(&reply, &["usage", "completion_tokens"]), 1);
    let reply = house.chat(&biased(", \"ignore_eos\": true")).await;
    assert_eq!(
        (
            said(&reply),
            number(&reply, &["usage", "completion_tokens"])
        ),
        (String::new(), 40)
    );
    assert_eq!(text(&reply, &["choices", "0", "finish_reason"]), "length");
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_tokens_are_counted_and_change_nothing() {
    let mut plan = Plan::default();
    plan.settings.cache_bytes = 1 << 20;
    let house = plan.house();
    let body = long(300, "\"top_k\": 40");
    let cold = house.chat(&body).await;
    assert_eq!(
        number(&cold, &["usage", "prompt_tokens_details", "cached_tokens"]),
        0
    );
    let warm = house.chat(&body).await;
    assert_eq!(
        number(&warm, &["usage", "prompt_tokens_details", "cached_tokens"]),
        256
    );
    assert_eq!(said(&warm), said(&cold));
    // A text that a stop string ends counts them too.
    let stop = to_json(&Value::from(&said(&cold)[..1]));
    let stopped = house
        .chat(&long(300, &format!("\"top_k\": 40, \"stop\": {stop}")))
        .await;
    assert_eq!(
        number(
            &stopped,
            &["usage", "prompt_tokens_details", "cached_tokens"]
        ),
        256
    );
    let decision = r#"{"state": "STATE", "questions": {"a": {"type": "noul"}}}"#
        .replace("STATE", &"s".repeat(400));
    let mut replies = Vec::new();
    for _ in 0..2 {
        let reply = house.post("/v1/systemone", &[], &decision).await;
        let cached = reply.headers()["x-clef-cached-tokens"]
            .to_str()
            .unwrap()
            .parse::<usize>()
            .unwrap();
        replies.push((cached, to_json(&value(reply).await)));
    }
    assert_eq!(replies[0].0, 0);
    assert!(replies[1].0 >= 384, "{}", replies[1].0);
    assert_eq!(replies[0].1, replies[1].1);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_and_spelled() {
    let house = Plan::default().house();
    let ids: Value = Letters.encode("a b").into_iter().collect();
    for (body, wanted) in [
        (
            r#"{"prompt": "a b", "add_special_tokens": false}"#,
            to_json(&ids),
        ),
        (
            r#"{"content": "a b", "add_special": true, "model": "fake"}"#,
            to_json(&ids),
        ),
        (
            r#"{"content": "é", "with_pieces": true}"#,
            r#"[{"id":66,"piece":"b"},{"id":40,"piece":"H"}]"#.into(),
        ),
        (
            r#"{"messages": [{"role": "user", "content": "hi"}]}"#,
            to_json(&Letters.encode("user:hi;").into_iter().collect()),
        ),
    ] {
        for path in ["/tokenize", "/v1/tokenize"] {
            let (status, reply) = house.ask(path, body).await;
            assert_eq!(
                (status, to_json(at(&reply, &["tokens"]))),
                (200, wanted.clone()),
                "{body}"
            );
            let count = at(&reply, &["tokens"]).as_array().unwrap().len();
            assert_eq!(number(&reply, &["count"]), count as u64);
            assert_eq!(number(&reply, &["max_model_len"]), 4096);
        }
    }
    let body = r#"{"tokens": [95, 96, 33, 95, 0]}"#;
    let (_, reply) = house.ask("/detokenize", body).await;
    assert_eq!(
        to_json(&reply),
        "{\"prompt\":\"éA\u{fffd} \",\"text\":\"éA\u{fffd} \",\"content\":\"éA\u{fffd} \"}"
    );
    for (path, body) in [
        ("/detokenize", r#"{"tokens": [97]}"#),
        ("/detokenize", r#"{"tokens": "x"}"#),
        ("/detokenize", "{}"),
        ("/tokenize", r#"{"prompt": [1]}"#),
        ("/tokenize", "{}"),
        ("/tokenize", r#"{"messages": []}"#),
        ("/tokenize", r#"{"prompt": "x", "model": "gpt-6"}"#),
    ] {
        let (status, reply) = house.ask(path, body).await;
        assert!((400..500).contains(&status), "{body}: {status}");
        assert!(at(&reply, &["error", "message"]).as_str().is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_no_slot_holds_is_refused_with_both_counts() {
    let house = Plan::default().house();
    let (status, reply) = house
        .ask("/v1/chat/completions", &long(4097, "\"n\": 1"))
        .await;
    assert!((400..500).contains(&status));
    let message = text(&reply, &["error", "message"]);
    assert!(
        message.contains("4097") && message.contains("4096"),
        "{message}"
    );
    let fits = house.chat(&long(4096, "\"n\": 1")).await;
    assert_eq!(number(&fits, &["usage", "completion_tokens"]), 1);
    for (path, body, param) in [
        ("/v1/completions", r#"{"prompt": ""}"#, "prompt"),
        ("/v1/completions", r#"{"prompt": [97]}"#, "prompt"),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "x"}], "temperature": 1e9}"#,
            "temperature",
        ),
    ] {
        let (status, reply) = house.ask(path, body).await;
        assert!((400..500).contains(&status), "{body}: {status}");
        let found = text(&reply, &["error", "param"]);
        assert!(found.starts_with(param), "{body}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_in_a_stream_says_so_in_its_last_event() {
    let gate = Gate::shut();
    let house = Plan {
        gate: Arc::clone(&gate),
        ..Plan::default()
    }
    .house();
    let asked = tokio::spawn({
        let app = Arc::clone(&house.app);
        let request = Request::post("/v1/chat/completions")
            .body(Body::from(with("\"stream\": true")))
            .unwrap();
        async move { app.answer(request).await }
    });
    gate.allow(3);
    let response = asked.await.unwrap();
    assert_eq!(response.status(), 200);
    // The fourth round waits at the gate by now or will.
    house.script.befall([Some(Mishap::Fail)]);
    gate.open();
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let body = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
    assert!(
        body.contains(r#"data: {"error":{"message":"the server failed"#),
        "{body}"
    );
    assert!(!body.contains("told to fail"), "{body}");
    // The same before the first token is a status.
    house.script.befall([Some(Mishap::Fail)]);
    let (status, _) = house
        .ask("/v1/chat/completions", &with("\"stream\": true"))
        .await;
    assert_eq!(status, 500);
    assert!(!said(&house.chat(CHAT).await).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_gives_its_rows_back_and_its_neighbour_does_not_notice() {
    let gate = Gate::shut();
    let house = Plan {
        gate: Arc::clone(&gate),
        slots: 3,
        ..Plan::default()
    }
    .house();
    let address = house.listen().await;
    let neighbour_body = long(200, "\"top_k\": 50");
    let neighbour = tokio::spawn({
        let app = Arc::clone(&house.app);
        let request = Request::post("/v1/chat/completions")
            .body(Body::from(neighbour_body.clone()))
            .unwrap();
        async move { value(app.answer(request).await).await }
    });
    let mut leaver = TcpStream::connect(address).await.unwrap();
    leaver
        .write_all(&http("/v1/chat/completions", &long(3000, "\"top_k\": 50")))
        .await
        .unwrap();
    // The third slot's client leaves in mid-decision.
    let mut decider = TcpStream::connect(address).await.unwrap();
    let decision = r#"{"state": "STATE", "questions": {"a": {"type": "noul"}}}"#
        .replace("STATE", &"s".repeat(3000));
    decider
        .write_all(&http("/v1/systemone", &decision))
        .await
        .unwrap();
    house
        .step_until("all run", |stats| stats.prompts + stats.streams == 3)
        .await;
    house
        .step_until("some pieces", |stats| stats.prefill_rows >= 512)
        .await;
    drop((leaver, decider));
    house
        .step_until("they are noticed", |stats| stats.cancelled == 2)
        .await;
    let rows_then = house.stats().prefill_rows;
    assert!(
        rows_then < 3000,
        "the prompts ran to their end: {rows_then}"
    );
    assert!(house.stats().slots_free >= 2, "{:?}", house.stats());
    house.script.take_calls();
    gate.open();
    let alone = house.chat(&neighbour_body).await;
    let reply = neighbour.await.unwrap();
    assert_eq!(at(&reply, &["choices"]), at(&alone, &["choices"]));
    until("all slots are free", || house.stats().slots_free == 3).await;
    // What ran afterwards is the neighbour's prompt at most, and that of the comparison.
    let rows: usize = prompt_rows(&house.script.take_calls())
        .iter()
        .flatten()
        .map(|(_, rows)| rows)
        .sum();
    assert!(rows <= 400, "{rows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_request_runs_no_further_piece() {
    let gate = Gate::shut();
    let house = Plan {
        gate: Arc::clone(&gate),
        ..Plan::default()
    }
    .house();
    let body = long(3000, "\"top_k\": 50");
    let mut asked = Box::pin(house.post("/v1/chat/completions", &[], &body));
    let mut rounds = 0;
    while house.stats().prefill_rows < 128 {
        let _ = tokio::time::timeout(Duration::from_millis(5), &mut asked).await;
        gate.allow(1);
        rounds += 1;
        assert!(rounds < 1000);
    }
    // Whatever was allowed runs; then one round stands at the gate.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = house.stats().rounds;
    drop(asked);
    gate.open();
    until("it is cancelled", || house.stats().cancelled == 1).await;
    let after = house.stats();
    assert!(
        after.rounds <= before + 1,
        "{} rounds, then {}",
        before,
        after.rounds
    );
    assert_eq!(after.slots_free, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_clients_killed_in_mid_prefill_make_way_within_a_piece() {
    let gate = Gate::shut();
    let house = Plan {
        gate: Arc::clone(&gate),
        ..Plan::default()
    }
    .house();
    let address = house.listen().await;
    let mut clients = Vec::new();
    for index in 0..200 {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = match index % 2 {
            0 => http("/v1/chat/completions", &long(3000, "\"stream\": true")),
            _ => {
                let body = r#"{"state": "STATE", "questions": {"a": {"type": "noul"}}}"#;
                http("/v1/systemone", &body.replace("STATE", &"s".repeat(3000)))
            }
        };
        client.write_all(&request).await.unwrap();
        clients.push(client);
    }
    house
        .step_until("all are inside", |stats| {
            stats.arrived == 200 && stats.prompts == 4
        })
        .await;
    house
        .step_until("pieces run", |stats| stats.prefill_rows >= 256)
        .await;
    drop(clients);
    house
        .step_until("all are gone", |stats| stats.cancelled == 200)
        .await;
    let stats = house.stats();
    assert_eq!((stats.slots_free, stats.queued, stats.prompts), (4, 0, 0));
    house.script.take_calls();
    gate.open();
    house.chat(CHAT).await;
    let ran = prompt_rows(&house.script.take_calls());
    let first = ran.first().unwrap();
    assert_eq!(
        first.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(),
        ["user:hi;".len()]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passed_deadline_is_told_at_once_and_frees_the_slot_at_the_next_round() {
    let gate = Gate::shut();
    let mut plan = Plan {
        gate: Arc::clone(&gate),
        ..Plan::default()
    };
    plan.limits.request_time_max = Some(Duration::from_secs(20));
    let house = plan.house();
    let decision = r#"{"state": "x", "questions": {"a": {"type": "noul"}}}"#;
    let chat_long = long(2000, "\"stream\": true");
    for (path, body) in [
        ("/v1/systemone", decision),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", chat_long.as_str()),
    ] {
        let start = Instant::now();
        // No round passes, so that the engine itself cannot look at the clock.
        let response = house
            .post(path, &[("x-descant-timeout-ms", "120")], body)
            .await;
        let took = start.elapsed();
        assert!(
            took >= Duration::from_millis(120) && took < Duration::from_secs(10),
            "{took:?}"
        );
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key("retry-after-ms"));
        let reply = value(response).await;
        assert_eq!(text(&reply, &["error", "code"]), "deadline");
    }
    house
        .step_until("the slots are free", |stats| stats.slots_free == 4)
        .await;
    gate.open();
    assert!(!said(&house.chat(CHAT).await).is_empty());
    for wrong in ["0", "-1", "soon", "1.5", "86400001"] {
        let response = house
            .post(
                "/v1/systemone",
                &[("x-descant-timeout-ms", wrong)],
                decision,
            )
            .await;
        assert_eq!(response.status(), 400, "{wrong}");
        let reply = value(response).await;
        assert!(text(&reply, &["error", "message"]).contains("x-descant-timeout-ms"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_servers_own_limit_holds_in_the_middle_of_a_stream() {
    let gate = Gate::shut();
    let mut plan = Plan {
        gate: Arc::clone(&gate),
        ..Plan::default()
    };
    plan.limits.request_time_max = Some(Duration::from_millis(400));
    let house = plan.house();
    gate.allow(3);
    let response = house
        .post("/v1/chat/completions", &[], &with("\"stream\": true"))
        .await;
    assert_eq!(response.status(), 200);
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let body = String::from_utf8(bytes.to_vec()).unwrap();
    assert!(
        body.contains("\"code\":\"deadline\"") && body.ends_with("data: [DONE]\n\n"),
        "{body}"
    );
    house
        .step_until("the slot is free", |stats| stats.slots_free == 4)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_is_told_when_to_come_back() {
    let gate = Gate::shut();
    let mut plan = Plan {
        gate: Arc::clone(&gate),
        slots: 1,
        ..Plan::default()
    };
    plan.limits.queue_wait_max = Some(Duration::from_millis(150));
    let house = plan.house();
    let first = tokio::spawn({
        let app = Arc::clone(&house.app);
        let request = Request::post("/v1/chat/completions")
            .body(Body::from(CHAT))
            .unwrap();
        async move { value(app.answer(request).await).await }
    });
    gate.allow(1);
    until("it runs", || house.stats().streams == 1).await;
    let decision = r#"{"state": "x", "questions": {"a": {"type": "noul"}}}"#;
    for (path, body) in [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", r#"{"prompt": "x"}"#),
        ("/v1/systemone", decision),
    ] {
        let start = Instant::now();
        let response = house.post(path, &[], body).await;
        assert!(start.elapsed() >= Duration::from_millis(150));
        assert!(
            matches!(response.status().as_u16(), 503 | 529),
            "{path}: {}",
            response.status()
        );
        let ms: u64 = response.headers()["retry-after-ms"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        let seconds: u64 = response.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(seconds, ms.div_ceil(1000));
        assert_eq!(
            text(&value(response).await, &["error", "code"]),
            "overloaded"
        );
    }
    gate.open();
    assert!(!said(&first.await.unwrap()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_no_quiet_connection() {
    let gate = Gate::shut();
    let mut plan = Plan {
        gate: Arc::clone(&gate),
        ..Plan::default()
    };
    plan.limits.idle_max = Duration::from_millis(150);
    let house = plan.house();
    let address = house.listen().await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(&http("/v1/chat/completions", &with("\"stream\": true")))
        .await
        .unwrap();
    gate.allow(2);
    // Longer than an idle connection lives.
    tokio::time::sleep(Duration::from_millis(500)).await;
    gate.open();
    let mut body = String::new();
    // The connection is closed when it was quiet for long enough after the end.
    client.read_to_string(&mut body).await.unwrap();
    assert!(body.contains("data: [DONE]"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_chat_its_routes_say_so() {
    let plan = Plan::default();
    let script = Script::default();
    let capacity = Capacity {
        slots: 1,
        positions: 1024,
        rows: 128,
    };
    let engine = Engine::start(
        Box::new(FakeBackend::new(capacity, script)),
        None,
        &plan.settings,
    )
    .unwrap();
    let names = Names::new("fake".into(), Vec::new(), Size::Other, false);
    let app = App::new(Front::default());
    app.open(Setup {
        desk: Desk::new(
            names,
            Arc::new(Letters),
            Budget::default(),
            Confidence::Auto,
        ),
        engine: engine.handle(),
        card: Card {
            description: String::new(),
            length_max: 1024,
            loaded: SystemTime::now(),
        },
        provenance: no_files(),
        no_head: None,
        chat: Err("it was told not to".into()),
    });
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
    ] {
        let response = app
            .answer(Request::post(path).body(Body::from(CHAT)).unwrap())
            .await;
        assert_eq!(response.status(), 400);
        let reply = value(response).await;
        assert_eq!(text(&reply, &["error", "code"]), "model_not_supported");
        let message = text(&reply, &["error", "message"]);
        assert!(
            message.contains("/v1/systemone") && message.contains("told not to"),
            "{message}"
        );
    }
}
