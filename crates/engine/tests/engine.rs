//! The engine on its own thread, with the fake backend and head: answers, refusals, the end.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use descant_decision::{Encoded, Logits};
use descant_engine::{
    Engine, EngineError, FinishReason, GenerateOptions, Handle, Health, JobOptions, Sampling,
    Settings, StreamItem,
};
use descant_model::{
    Backend, Capacity, Defect, Head, HeadRun, KeptRows, Saved, SavedMemory, Segment, Slot,
};
use descant_release::ModelConfig;
use descant_testkit::fake::{
    FakeBackend, FakeHead, HIDDEN, Mishap, Script, VOCAB, fake_defect, fake_record,
};

const CAPACITY: Capacity = Capacity {
    slots: 3,
    positions: 2048,
    rows: 256,
};

/// An engine, and the scripts of its backend and head.
struct House {
    engine: Engine,
    backend: Script,
    head: Script,
}

fn house(settings: &Settings) -> House {
    let (backend, head) = (Script::default(), Script::default());
    let fake = Box::new(FakeBackend::new(CAPACITY, backend.clone()));
    let engine = Engine::start(fake, Some(Arc::new(FakeHead::new(head.clone()))), settings);
    House {
        engine: engine.unwrap(),
        backend,
        head,
    }
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    let token = |index: u32| (index.wrapping_mul(31).wrapping_add(seed * 17)) % VOCAB as u32;
    (0..count as u32).map(token).collect()
}

fn record(rows: usize, seed: u32) -> Arc<Encoded> {
    Arc::new(fake_record(tokens(rows, seed), rows - 10))
}

fn decide(handle: &Handle, record: &Arc<Encoded>) -> Result<Vec<Vec<f32>>, EngineError> {
    let ticket = handle.decide(Arc::clone(record), &JobOptions::default())?;
    ticket.wait().map(|decided| decided.logits)
}

fn generate(handle: &Handle, prompt: Vec<u32>, seed: u64) -> Vec<u32> {
    let options = GenerateOptions {
        sampling: Sampling {
            seed,
            ..Sampling::default()
        },
        tokens_max: Some(20),
        ..GenerateOptions::default()
    };
    let mut stream = handle.generate(prompt, options).unwrap();
    let mut ids = Vec::new();
    while let Some(item) = stream.wait_next() {
        match item.unwrap() {
            StreamItem::Token(token) => ids.push(token.id),
            StreamItem::Finished(finished) => assert_eq!(finished.completion_tokens, ids.len()),
        }
    }
    ids
}

/// Runs a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn answers_in_company_equal_those_alone() {
    let lengths = [10, 63, 64, 65, 128, 300, 777, 1500];
    let alone = house(&Settings::default());
    let wanted: Vec<_> = (0..8)
        .map(|seed| {
            let record = record(lengths[seed], seed as u32);
            let ids = generate(
                &alone.engine.handle(),
                tokens(lengths[seed], 50),
                seed as u64,
            );
            (decide(&alone.engine.handle(), &record).unwrap(), ids)
        })
        .collect();
    let company = house(&Settings {
        wait_max: None,
        piece_rows: 64,
        head_threads: 3,
        ..Settings::default()
    });
    let handle = company.engine.handle();
    thread::scope(|scope| {
        for (seed, (logits, ids)) in wanted.iter().enumerate() {
            let handle = &handle;
            scope.spawn(move || {
                for _ in 0..5 {
                    let record = record(lengths[seed], seed as u32);
                    assert_eq!(&decide(handle, &record).unwrap(), logits);
                }
            });
            scope.spawn(move || {
                let prompt = tokens(lengths[seed], 50);
                assert_eq!(&generate(handle, prompt, seed as u64), ids);
            });
        }
    });
    show_figures(&handle);
    let stats = handle.stats();
    assert_eq!(stats.answered, 48);
    // Four of the states are longer than a chunk; each is cold once.
    assert!(stats.cache_hits >= 4 * 4, "{stats:?}");
}

/// A backend that keeps hidden rows for its head, up to a number of rows at a time, and counts those that are out.
struct Keeping {
    inner: FakeBackend,
    room: usize,
    out: Arc<AtomicUsize>,
}

/// Rows that are given back when this is dropped.
struct Kept {
    values: Vec<f32>,
    rows: usize,
    out: Arc<AtomicUsize>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.out.fetch_sub(self.rows, Ordering::SeqCst);
    }
}

impl Backend for Keeping {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn reset(&mut self, slot: Slot) {
        self.inner.reset(slot);
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        self.inner.run(round)
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        self.inner.hidden(rows, out)
    }

    fn keep_hidden(&self, rows: Range<usize>) -> Result<Option<KeptRows>, Defect> {
        let count = rows.len();
        if self.out.load(Ordering::SeqCst) + count > self.room {
            return Ok(None);
        }
        self.out.fetch_add(count, Ordering::SeqCst);
        let mut values = vec![0.0; count * HIDDEN];
        self.inner.hidden(rows, &mut values)?;
        let out = Arc::clone(&self.out);
        let kept = Kept {
            values,
            rows: count,
            out,
        };
        Ok(Some(KeptRows {
            rows: count,
            data: Box::new(kept),
        }))
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        self.inner.logits(rows, out)
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        self.inner.saved_bytes(rows)
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        self.inner.save(slot, rows)
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        self.inner.load(slot, saved)
    }
}

/// The head beside it.
struct Beside(FakeHead);

struct RunBeside(Box<dyn HeadRun>);

impl Head for Beside {
    fn begin(&self, encoded: Arc<Encoded>) -> Box<dyn HeadRun> {
        Box::new(RunBeside(self.0.begin(encoded)))
    }

    fn memory_bytes(&self, rows: usize) -> usize {
        self.0.memory_bytes(rows)
    }
}

impl HeadRun for RunBeside {
    fn absorb(&mut self, start: usize, hidden: &[f32]) -> Result<(), Defect> {
        self.0.absorb(start, hidden)
    }

    fn absorb_kept(&mut self, start: usize, rows: KeptRows) -> Result<(), Defect> {
        let kept = rows.data.downcast::<Kept>().unwrap();
        self.0.absorb(start, &kept.values)
    }

    fn memory(&self, rows: Range<usize>) -> Option<SavedMemory> {
        self.0.memory(rows)
    }

    fn preload(&mut self, memory: &SavedMemory) {
        self.0.preload(memory);
    }

    fn finish(self: Box<Self>) -> Result<Logits, Defect> {
        self.0.finish()
    }
}

/// Hidden rows that stay on the device, those that find no room there, decisions that are given up: the same answers, and no
/// row is left behind.
#[test]
fn rows_kept_for_the_head_give_the_same_answers_and_are_given_back() {
    let plain = house(&Settings::default());
    let records: Vec<_> = [10, 64, 300, 777, 1500]
        .into_iter()
        .zip(0..)
        .map(|(rows, seed)| record(rows, seed))
        .collect();
    let wanted: Vec<_> = records
        .iter()
        .map(|record| decide(&plain.engine.handle(), record).unwrap())
        .collect();
    // No room at all, room for some pieces, for all.
    for room in [0, 200, 100_000] {
        let (script, out) = (Script::default(), Arc::new(AtomicUsize::new(0)));
        let backend = Keeping {
            inner: FakeBackend::new(CAPACITY, script),
            room,
            out: Arc::clone(&out),
        };
        let head = Arc::new(Beside(FakeHead::new(Script::default())));
        let settings = Settings {
            wait_max: None,
            ..Settings::default()
        };
        let engine = Engine::start(Box::new(backend), Some(head), &settings).unwrap();
        let handle = engine.handle();
        thread::scope(|scope| {
            for (record, wanted) in records.iter().zip(&wanted) {
                let handle = &handle;
                scope.spawn(move || {
                    for round in 0..6 {
                        let ticket = handle.decide(Arc::clone(record), &JobOptions::default());
                        if round % 2 == 1 {
                            drop(ticket.unwrap());
                            continue;
                        }
                        assert_eq!(&ticket.unwrap().wait().unwrap().logits, wanted);
                    }
                });
            }
        });
        engine.shutdown(Duration::from_secs(5));
        assert_eq!(out.load(Ordering::SeqCst), 0, "rows of {room} are left");
    }
}

#[test]
fn decisions_on_one_state_run_it_once() {
    let house = house(&Settings {
        chat_slots: 0,
        ..Settings::default()
    });
    let handle = house.engine.handle();
    // One state of 640 rows, each time with another schema of 20.
    let record = |seed| {
        let ids = [tokens(640, 1), tokens(20, seed)].concat();
        Arc::new(fake_record(ids, 640))
    };
    let tickets: Vec<_> = (2..10)
        .map(|seed| handle.decide(record(seed), &JobOptions::default()).unwrap())
        .collect();
    let cached: Vec<_> = tickets
        .into_iter()
        .map(|ticket| ticket.wait().unwrap().cached_rows)
        .collect();
    assert_eq!(cached, [0, 640, 640, 640, 640, 640, 640, 640]);
    show_figures(&handle);
    let stats = handle.stats();
    assert_eq!(
        (stats.prefill_rows, stats.cached_rows),
        (640 + 8 * 20, 7 * 640)
    );
}

#[test]
fn a_record_that_comes_again_runs_its_schema_again() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    // The head needs the hidden rows from row 150 on, so the snapshot stands at 128.
    let record = Arc::new(fake_record(tokens(500, 1), 150));
    let decided = || {
        let ticket = handle.decide(Arc::clone(&record), &JobOptions::default());
        ticket.unwrap().wait().unwrap()
    };
    let (cold, hit) = (decided(), decided());
    assert_eq!((cold.cached_rows, hit.cached_rows), (0, 128));
    assert_eq!(cold.logits, hit.logits);
}

#[test]
fn a_ticket_is_a_future() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    let record = record(100, 1);
    let wanted = decide(&handle, &record).unwrap();
    let ticket = handle.decide(record, &JobOptions::default()).unwrap();
    let decided = block_on(ticket).unwrap();
    assert_eq!(decided.logits, wanted);
    assert_eq!(decided.cached_rows, 64);
}

#[test]
fn a_stream_ends_with_a_stop_token_or_its_length() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    let ids = generate(&handle, tokens(70, 3), 9);
    assert_eq!(ids.len(), 20);
    let first = |id: u32| ids.iter().position(|other| *other == id).unwrap();
    let stop = *ids.iter().rfind(|id| first(**id) > 3).unwrap();
    let options = GenerateOptions {
        sampling: Sampling {
            seed: 9,
            ..Sampling::default()
        },
        stop_ids: vec![stop],
        ..GenerateOptions::default()
    };
    let mut stream = handle.generate(tokens(70, 3), options).unwrap();
    let mut found = Vec::new();
    let finished = loop {
        match block_on(stream.next()).unwrap().unwrap() {
            StreamItem::Token(token) => found.push(token.id),
            StreamItem::Finished(finished) => break finished,
        }
    };
    assert_eq!(found, ids[..first(stop)]);
    assert_eq!(finished.reason, FinishReason::Stop { id: stop });
    assert_eq!(finished.completion_tokens, found.len() + 1);
    assert_eq!((finished.prompt_tokens, finished.cached_tokens), (70, 64));
    assert!(block_on(stream.next()).is_none());
}

#[test]
fn a_stream_ends_when_its_slot_is_full() {
    let house = house(&Settings::default());
    let prompt = tokens(CAPACITY.positions - 2, 1);
    let options = GenerateOptions::default();
    let mut stream = house.engine.handle().generate(prompt, options).unwrap();
    let mut count = 0;
    while let Some(item) = stream.wait_next() {
        if let StreamItem::Finished(finished) = item.unwrap() {
            assert_eq!(finished.reason, FinishReason::Length);
        } else {
            count += 1;
        }
    }
    // Two of them are run, the third is only given.
    assert_eq!(count, 3);
}

#[test]
fn hidden_rows_do_not_depend_on_the_piece() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    let rows = |piece: usize| {
        let options = JobOptions::default();
        let mut stream = handle.hidden(tokens(333, 2), piece, &options).unwrap();
        let mut all = Vec::new();
        while let Some(piece) = stream.wait_next() {
            let piece = piece.unwrap();
            assert_eq!(piece.start * HIDDEN, all.len());
            all.extend(piece.rows);
        }
        all
    };
    let whole = rows(2048);
    assert_eq!(whole.len(), 333 * HIDDEN);
    assert_eq!(rows(64), whole);
    assert_eq!(rows(128), whole);
}

#[test]
fn what_cannot_run_is_refused_at_once() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    let options = JobOptions::default;
    let refusal = |ids| {
        let stream = handle.generate(ids, GenerateOptions::default());
        stream.unwrap_err()
    };
    assert_eq!(refusal(vec![]), EngineError::EmptyPrompt);
    let too_long = EngineError::TooLong {
        needed: 2049,
        allowed: 2048,
    };
    assert_eq!(refusal(tokens(2049, 1)), too_long);
    let no_token = EngineError::TokenId {
        index: 1,
        id: 97,
        vocab: 97,
    };
    assert_eq!(refusal(vec![5, 97]), no_token);
    assert_eq!(
        handle.hidden(vec![5], 100, &options()).unwrap_err(),
        EngineError::PieceRows { found: 100 }
    );
    let sampling = Sampling {
        top_p: 2.0,
        ..Sampling::default()
    };
    let options = GenerateOptions {
        sampling,
        ..GenerateOptions::default()
    };
    let refused = handle.generate(vec![5], options).unwrap_err();
    assert!(matches!(
        refused,
        EngineError::Sampling { name: "top_p", .. }
    ));
}

#[test]
fn a_release_without_a_head_still_chats() {
    let fake = FakeBackend::new(CAPACITY, Script::default());
    let engine = Engine::start(Box::new(fake), None, &Settings::default()).unwrap();
    let handle = engine.handle();
    assert!(!handle.has_head());
    assert_eq!(decide(&handle, &record(20, 1)), Err(EngineError::NoHead));
    assert_eq!(generate(&handle, tokens(20, 1), 1).len(), 20);
}

#[test]
fn a_panic_answers_the_jobs_it_hits_and_the_engine_goes_on() {
    let house = house(&Settings {
        cache_bytes: 0,
        ..Settings::default()
    });
    let handle = house.engine.handle();
    let record = record(50, 1);
    let wanted = decide(&handle, &record).unwrap();
    for script in [&house.backend, &house.head] {
        script.befall([Some(Mishap::Panic)]);
        let error = decide(&handle, &record).unwrap_err();
        assert!(
            error.to_string().contains("panicked: told to panic"),
            "{error}"
        );
        script.befall([Some(Mishap::Fail)]);
        let defect = EngineError::Defect(fake_defect());
        assert_eq!(decide(&handle, &record), Err(defect));
        assert_eq!(decide(&handle, &record).as_ref(), Ok(&wanted));
    }
    assert_eq!(house.head.head_runs(), 0);
    assert_eq!(handle.stats().health, Health::Good);
}

#[test]
fn repeated_failures_show_and_a_success_clears_them() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    for failures in 1..=3 {
        assert_eq!(handle.stats().health, Health::Good, "after {failures}");
        house.backend.befall([Some(Mishap::Fail)]);
        decide(&handle, &record(20, 1)).unwrap_err();
        show_figures(&handle);
    }
    assert_eq!(handle.stats().health, Health::Failing);
    decide(&handle, &record(20, 1)).unwrap();
    show_figures(&handle);
    assert_eq!(handle.stats().health, Health::Good);
}

/// Figures are shown at the end of a step, maybe after its answers. Passes through the engine twice without a round; when
/// the second pass is answered, the first one's step is over.
fn show_figures(handle: &Handle) {
    for _ in 0..2 {
        let options = JobOptions {
            timeout: Some(Duration::ZERO),
        };
        let ticket = handle.decide(record(20, 1), &options).unwrap();
        assert_eq!(ticket.wait().unwrap_err(), EngineError::Deadline);
    }
}

#[test]
fn after_the_end_nothing_is_taken_in() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    house.engine.shutdown(Duration::ZERO);
    assert_eq!(decide(&handle, &record(20, 1)), Err(EngineError::Closing));
    assert_eq!(handle.stats().health, Health::Stopped);
}

#[test]
fn a_shutdown_lets_admitted_jobs_finish() {
    let house = house(&Settings::default());
    let handle = house.engine.handle();
    let mut stream = handle
        .generate(tokens(20, 1), GenerateOptions::default())
        .unwrap();
    // It has a slot once it gave a token.
    stream.wait_next().unwrap().unwrap();
    house.engine.shutdown(Duration::from_secs(600));
    let mut last = None;
    while let Some(item) = stream.wait_next() {
        last = Some(item.unwrap());
    }
    assert!(matches!(last, Some(StreamItem::Finished(_))));
}
