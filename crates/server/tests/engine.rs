//! What the server makes of an engine that fails, panics, is full, or closes. The backend and the head are fakes.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use descant_decision::{Budget, Encoded, Logits, Tokenize, Value, json};
use descant_engine::{Engine, Health, Settings};
use descant_model::{Capacity, Defect, Head, HeadRun, SavedMemory};
use descant_server::{
    App, Card, Confidence, Desk, Front, Names, Progress, Provenance, Setup, Size,
};
use descant_testkit::fake::{FakeBackend, FakeHead, Mishap, Script, VOCAB};

const BODY: &str = r#"{"state": "x", "questions": {"a": {"type": "noul"}}}"#;

/// A byte is a token; a text that holds `PANIC` is too much for it.
struct Bytes;

impl Tokenize for Bytes {
    fn encode(&self, text: &str) -> Vec<u32> {
        assert!(!text.contains("PANIC"), "the tokenizer was told to panic");
        text.bytes()
            .map(|byte| u32::from(byte) % VOCAB as u32)
            .collect()
    }
}

/// A head whose decisions end when the gate is open.
struct GatedHead {
    head: FakeHead,
    gate: Arc<Gate>,
}

struct GatedRun {
    run: Box<dyn HeadRun>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let shut = self.open.lock().unwrap();
        drop(self.opened.wait_while(shut, |open| !*open).unwrap());
    }
}

impl Head for GatedHead {
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun> {
        let run = self.head.begin(encoded);
        Box::new(GatedRun {
            run,
            gate: Arc::clone(&self.gate),
        })
    }

    fn memory_bytes(&self, rows: usize) -> usize {
        self.head.memory_bytes(rows)
    }
}

impl HeadRun for GatedRun {
    fn absorb(&mut self, start: usize, hidden: &[f32]) -> Result<(), Defect> {
        self.run.absorb(start, hidden)
    }

    fn memory(&self, rows: std::ops::Range<usize>) -> Option<SavedMemory> {
        self.run.memory(rows)
    }

    fn preload(&mut self, memory: &SavedMemory) {
        self.run.preload(memory);
    }

    fn finish(self: Box<Self>) -> Result<Logits, Defect> {
        self.gate.pass();
        self.run.finish()
    }
}

/// A server on fakes.
struct House {
    app: App,
    engine: Engine,
    backend: Script,
    head: Script,
    gate: Arc<Gate>,
}

fn house(settings: &Settings, has_head: bool) -> House {
    let (backend, head) = (Script::default(), Script::default());
    let gate = Arc::new(Gate::default());
    let gated = GatedHead {
        head: FakeHead::new(head.clone()),
        gate: Arc::clone(&gate),
    };
    let capacity = Capacity {
        slots: 2,
        positions: 2048,
        rows: 1024,
    };
    let head_or_none = has_head.then(|| Arc::new(gated) as Arc<dyn Head>);
    let fake = Box::new(FakeBackend::new(capacity, backend.clone()));
    let engine = Engine::start(fake, head_or_none, settings).unwrap();
    let names = Names::new("fake".into(), Vec::new(), Size::Other, false);
    let budget = Budget {
        max_length: 2048,
        ..Budget::default()
    };
    let app = App::new(Front {
        readers: 2,
        ..Front::default()
    });
    app.open(Setup {
        desk: Desk::new(names, Arc::new(Bytes), budget, Confidence::Auto),
        engine: engine.handle(),
        card: Card {
            description: "a fake".into(),
            length_max: 2048,
            loaded: SystemTime::now(),
        },
        provenance: Provenance::new("fake".into(), || Err("a fake has no files".into())),
        no_head: (!has_head).then(|| "joint_head.safetensors is missing".into()),
        chat: Err("a fake holds none".into()),
    });
    House {
        app,
        engine,
        backend,
        head,
        gate,
    }
}

impl House {
    async fn ask(&self, method: &str, path: &str, body: &str) -> Response<Body> {
        let request = Request::builder().method(method).uri(path);
        self.app
            .answer(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }

    /// Asks until there is no place left, and gives those who have one and the first refusal. The gate is shut: what gets
    /// in stays in.
    async fn fill(
        &self,
    ) -> (
        Vec<Pin<Box<impl Future<Output = Response<Body>>>>>,
        Response<Body>,
    ) {
        let mut inside = Vec::new();
        loop {
            let mut asked = Box::pin(self.ask("POST", "/v1/systemone", BODY));
            match tokio::time::timeout(Duration::from_millis(300), &mut asked).await {
                Ok(response) => return (inside, response),
                Err(_) => inside.push(asked),
            }
            assert!(inside.len() < 50, "nobody is refused");
        }
    }

    async fn decide(&self, body: &str) -> (u16, Value) {
        let response = self.ask("POST", "/v1/systemone", body).await;
        let status = response.status().as_u16();
        (status, value(response).await)
    }

    async fn health(&self) -> (u16, String) {
        let response = self.ask("GET", "/health", "").await;
        let status = response.status().as_u16();
        let body = value(response).await;
        (
            status,
            body.get("status").unwrap().as_str().unwrap().to_owned(),
        )
    }
}

async fn value(response: Response<Body>) -> Value {
    json::parse(&to_bytes(response.into_body(), 1 << 20).await.unwrap()).unwrap()
}

fn error_code(body: &Value) -> &str {
    body.get("error")
        .unwrap()
        .get("code")
        .unwrap()
        .as_str()
        .unwrap()
}

fn failing(house: &House) -> bool {
    house.engine.handle().stats().health == Health::Failing
}

/// Waits for something that another thread brings about.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_costs_its_requests_and_shows_in_health() {
    // Without a state cache, whose calls would meet the mishaps in place of the rounds.
    let settings = Settings {
        failures_max: 2,
        cache_bytes: 0,
        ..Settings::default()
    };
    let house = house(&settings, true);
    house.gate.open();
    assert_eq!(house.decide(BODY).await.0, 200);
    house
        .backend
        .befall([Some(Mishap::Fail), Some(Mishap::Panic)]);
    for _ in 0..2 {
        let response = house.ask("POST", "/v1/systemone", BODY).await;
        assert_eq!(response.status(), 500);
        let id = response.headers()["x-request-id"]
            .to_str()
            .unwrap()
            .to_owned();
        let body = value(response).await;
        let text = body.to_string();
        assert!(text.contains(&id) && !text.contains("told to"), "{text}");
    }
    until("the failures show", || failing(&house)).await;
    assert_eq!(house.health().await, (503, "failing".into()));
    assert_eq!(house.decide(BODY).await.0, 200);
    until("health comes back", || !failing(&house)).await;
    assert_eq!(house.health().await, (200, "ok".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_fails_costs_its_request() {
    let house = house(&Settings::default(), true);
    house.gate.open();
    for mishap in [Mishap::Fail, Mishap::Panic] {
        house.head.befall([Some(mishap)]);
        let (status, body) = house.decide(BODY).await;
        assert_eq!((status, error_code(&body)), (500, "internal"), "{mishap:?}");
        assert_eq!(house.decide(BODY).await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_while_reading_costs_its_request() {
    let house = house(&Settings::default(), true);
    house.gate.open();
    let (status, body) = house.decide(&BODY.replace("\"x\"", "\"PANIC\"")).await;
    assert_eq!((status, error_code(&body)), (500, "internal"));
    assert_eq!(house.decide(BODY).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_head_decisions_are_refused_and_the_rest_works() {
    let house = house(&Settings::default(), false);
    let (status, body) = house.decide(BODY).await;
    assert_eq!((status, error_code(&body)), (400, "model_not_supported"));
    assert!(
        body.to_string()
            .contains("joint_head.safetensors is missing")
    );
    assert_eq!(house.health().await.0, 200);
    assert_eq!(house.ask("GET", "/v1/models", "").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_house_says_when_to_come_back_and_leavers_make_room() {
    let house = house(
        &Settings {
            queue_max: 1,
            ..Settings::default()
        },
        true,
    );
    let (inside, refused) = house.fill().await;
    assert_eq!(refused.status(), 529);
    let seconds: u64 = refused.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let ms: u64 = refused.headers()["retry-after-ms"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(seconds, ms.div_ceil(1000));
    assert!(ms > 0);
    let body = value(refused).await;
    assert_eq!(error_code(&body), "overloaded");
    // A dropped future is a client that has left.
    let left = inside.len() as u64;
    drop(inside);
    house.gate.open();
    until("all of them are cancelled", || {
        house.engine.handle().stats().cancelled == left
    })
    .await;
    assert_eq!(house.decide(BODY).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_engine_is_unavailable() {
    let house = house(&Settings::default(), true);
    house.gate.open();
    let House { app, engine, .. } = house;
    engine.shutdown(Duration::from_secs(1));
    let request = Request::post("/v1/systemone")
        .body(Body::from(BODY))
        .unwrap();
    let response = app.answer(request).await;
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_is_alive_and_not_ready() {
    let app = App::new(Front {
        progress: Progress::new(|| 0.425),
        ..Front::default()
    });
    let ask = async |method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let response = app.answer(request.body(Body::from(BODY)).unwrap()).await;
        let status = response.status().as_u16();
        let retry = response.headers().contains_key("retry-after");
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, retry, String::from_utf8(body.to_vec()).unwrap())
    };
    for path in ["/health/live", "/livez"] {
        assert_eq!(ask("GET", path).await.0, 200, "{path}");
    }
    for path in ["/health", "/health/ready", "/readyz"] {
        let (status, _, body) = ask("GET", path).await;
        assert_eq!(
            (status, body.as_str()),
            (503, r#"{"status":"loading","loaded":0.425}"#)
        );
    }
    for (method, path) in [
        ("POST", "/v1/systemone"),
        ("POST", "/v1/decisions"),
        ("POST", "/client/v4/accounts/a/ai/run/clef"),
        ("GET", "/v1/models"),
    ] {
        let (status, retry, body) = ask(method, path).await;
        assert_eq!((status, retry), (503, true), "{path}");
        assert!(body.contains("42 %"), "{body}");
    }
    let (status, _, figures) = ask("GET", "/metrics").await;
    assert_eq!(status, 200);
    assert!(
        figures.contains("\ndescant_ready 0\n")
            && figures.contains("\ndescant_loaded_ratio 0.425\n")
    );
    assert!(
        figures.contains(r#"descant_refusals_total{reason="loading"} 4"#),
        "{figures}"
    );
    assert_eq!(ask("GET", "/").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_that_cannot_be_made_is_our_fault() {
    let house = house(&Settings::default(), true);
    house.gate.open();
    let request = Request::post("/v1/systemone").header("x-descant-receipt", "1");
    let response = house
        .app
        .answer(request.body(Body::from(BODY)).unwrap())
        .await;
    assert_eq!(response.status(), 500);
    assert_eq!(house.decide(BODY).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_family_hears_of_a_full_house_in_its_own_way() {
    let settings = Settings {
        queue_max: 0,
        ..Settings::default()
    };
    let house = house(&settings, true);
    let (_inside, _) = house.fill().await;
    let openai = r#"{"input":"x","questions":[{"type":"predicate","instructions":"y?"}]}"#;
    for (path, body, status) in [
        ("/v1/systemone", BODY, 529),
        ("/v1/decisions", BODY, 529),
        ("/v1/decisions", openai, 503),
        ("/client/v4/accounts/a/ai/run/fake", BODY, 429),
    ] {
        let response = house.ask("POST", path, body).await;
        assert_eq!(response.status(), status, "{path}");
        assert!(response.headers().contains_key("retry-after"), "{path}");
        assert!(response.headers().contains_key("retry-after-ms"), "{path}");
    }
    house.gate.open();
}
