//! Whether a proof finds what is not equal: devices that keep their promise but for one thing.

use std::ops::Range;
use std::sync::Arc;

use descant_model::{Backend, Capacity, Choice, Defect, Pass, Saved, Segment, Slot};
use descant_release::ModelConfig;
use descant_testkit::fake::{FakeBackend, FakeHead, Script, VOCAB, fake_record};

use super::cast::{Case, Cast, ChatCase};
use super::*;

/// What a device does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// One unit in the last place where a round has more than one stream.
    Company,
    /// The same for rows that follow a snapshot.
    Hit,
    Nothing,
    /// The same for a piece that is not a prompt's first.
    Piece,
    /// The same for next-token logits, where a chat has company.
    Chat,
    /// A chat that has company is given another token than the logits say.
    Choice,
}

/// A device that hashes, with a fault.
struct Faulty {
    inner: FakeBackend,
    fault: Fault,
    /// Slots that were filled from a snapshot.
    loaded: Vec<bool>,
    /// Rows of the last round whose numbers are wrong.
    wrong: Vec<Range<usize>>,
    streams: usize,
}

impl Faulty {
    fn is_wrong(&self, segment: &Segment<'_>, streams: usize) -> bool {
        match self.fault {
            Fault::Company => streams > 1,
            Fault::Hit => self.loaded[segment.slot.0] && segment.pass == Pass::Prefill,
            Fault::Piece => segment.start > 0 && segment.pass == Pass::Prefill,
            Fault::Chat | Fault::Choice | Fault::Nothing => false,
        }
    }
}

impl Backend for Faulty {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn capacity(&self) -> Capacity {
        self.inner.capacity()
    }

    fn marks_max(&self) -> usize {
        self.inner.marks_max()
    }

    fn rows_step(&self) -> usize {
        self.inner.rows_step()
    }

    fn reset(&mut self, slot: Slot) {
        self.loaded[slot.0] = false;
        self.inner.reset(slot);
    }

    fn run(&mut self, round: &[Segment<'_>]) -> Result<(), Defect> {
        self.streams = round.len();
        self.wrong.clear();
        let mut first = 0;
        for segment in round {
            let rows = first..first + segment.tokens.len();
            first = rows.end;
            if self.is_wrong(segment, round.len()) {
                self.wrong.push(rows);
            }
        }
        self.inner.run(round)
    }

    fn hidden(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), Defect> {
        self.inner.hidden(rows.clone(), out)?;
        let width = out.len() / rows.len();
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            if self.wrong.iter().any(|wrong| wrong.contains(&row)) {
                out[0] = out[0].next_up();
            }
        }
        Ok(())
    }

    fn logits(&mut self, rows: &[usize], out: &mut [f32]) -> Result<(), Defect> {
        self.inner.logits(rows, out)?;
        if self.fault == Fault::Chat && self.streams > 1 {
            // The least probable token: whoever looked at tokens alone would hardly see it.
            out[0] = out[0].next_down();
        }
        Ok(())
    }

    fn sample(
        &mut self,
        rows: &[usize],
        choices: &[Choice<'_>],
    ) -> Result<Option<Vec<Option<u32>>>, Defect> {
        let mut chosen = self.inner.sample(rows, choices)?.unwrap();
        if self.fault == Fault::Choice && self.streams > 1 {
            for id in &mut chosen {
                *id = id.map(|id| (id + 1) % VOCAB as u32);
            }
        }
        Ok(Some(chosen))
    }

    fn saved_bytes(&self, rows: usize) -> usize {
        self.inner.saved_bytes(rows)
    }

    fn save(&mut self, slot: Slot, rows: Range<usize>) -> Result<Option<Saved>, Defect> {
        self.inner.save(slot, rows)
    }

    fn load(&mut self, slot: Slot, saved: &[&Saved]) -> Result<(), Defect> {
        self.loaded[slot.0] = true;
        self.inner.load(slot, saved)
    }
}

fn tokens(count: usize, seed: u32) -> Vec<u32> {
    let token = |index: u32| (index * index * 13 + index * 7 + seed * 31) % VOCAB as u32;
    (0..count as u32).map(token).collect()
}

/// Twelve records, four chats and a long prompt.
fn cast() -> Cast {
    let lengths = [70, 127, 128, 129, 150, 192, 200, 260, 333, 500, 700, 900];
    let case = |(seed, rows): (u32, usize)| Case {
        name: format!("of {rows}"),
        encoded: Arc::new(fake_record(tokens(rows, seed), rows - 6)),
    };
    let chat = |seed: u32| ChatCase {
        prompt: tokens(65 + 30 * seed as usize, 50 + seed),
        sampling: cast::sampling(u64::from(seed)),
    };
    let victim = |seed| Arc::new(fake_record(tokens(1200, seed), 1190));
    Cast {
        cases: (0..).zip(lengths).map(case).collect(),
        chats: (0..4).map(chat).collect(),
        victims: vec![victim(90), victim(91)],
    }
}

fn axes() -> Axes {
    Axes {
        threads: vec![1, 2],
        pieces: vec![64, 256],
        company: vec![
            Company::Alone,
            Company::Three,
            Company::Eight,
            Company::Mixed,
            Company::Cancelled,
            Company::Chat,
        ],
        cache: vec![Cache::Cold, Cache::Hit],
    }
}

/// A device that keeps states aside and has steps of rows, as a GPU.
fn fake_device(capacity: Capacity) -> FakeBackend {
    FakeBackend::new(capacity, Script::default())
        .with_marks(2)
        .with_rows_step(128)
}

/// Otherwise a proof would go another way than a server.
#[test]
fn what_a_device_says_of_itself_holds_in_a_proof() {
    let capacity = Capacity {
        slots: 1,
        positions: 64,
        rows: 64,
    };
    let rig = Rig::new(Box::new(fake_device(capacity)));
    let device = rig.backend();
    assert_eq!((device.marks_max(), device.rows_step()), (2, 128));
    assert_eq!(device.capacity(), capacity);
}

/// A proof on a device whose fault shows with `faulty` threads and more.
fn prove(fault: Fault, faulty: usize, cache_bytes: usize) -> Tally {
    let cast = cast();
    let mut proof = Proof::new(&cast, axes(), None, cache_bytes);
    let house = |threads| {
        let capacity = Capacity {
            slots: SLOTS,
            positions: 1280,
            rows: 2400 + SLOTS,
        };
        let fault = if threads >= faulty {
            fault
        } else {
            Fault::Nothing
        };
        let device = Faulty {
            inner: fake_device(capacity),
            fault,
            loaded: vec![false; SLOTS],
            wrong: Vec::new(),
            streams: 0,
        };
        Ok(House {
            rig: Rig::new(Box::new(device)),
            head: Arc::new(FakeHead::new(Script::default())),
        })
    };
    proof.run(house).unwrap();
    proof.tally
}

#[test]
fn a_device_that_keeps_its_promise_passes() {
    let tally = prove(Fault::Nothing, 1, 1 << 30);
    assert_eq!(
        (tally.unequal(), tally.lapsed()),
        (0, 0),
        "{}",
        tally.table()
    );
    assert!(tally.compared() > 1000, "{}", tally.table());
    assert_eq!(tally.of("company", "8").peak, 9);
    assert!(tally.of("company", "cancelled").cancelled > 100);
    assert!(tally.of("cache", "hit").cached_rows > 0);
    assert_eq!(tally.of("cache", "cold").cached_rows, 0);
}

/// Values of an axis with unequal answers, and without.
fn split<'a>(tally: &Tally, axis: &str, values: &[&'a str]) -> (Vec<&'a str>, Vec<&'a str>) {
    values
        .iter()
        .partition(|value| tally.of(axis, value).unequal > 0)
}

const COMPANY: [&str; 6] = ["alone", "3", "8", "mixed", "cancelled", "chat"];

#[test]
fn one_unit_in_the_last_place_in_company_is_found() {
    let tally = prove(Fault::Company, 1, 1 << 30);
    assert_eq!(split(&tally, "company", &COMPANY).1, ["alone"]);
    assert_eq!(split(&tally, "cache", &["cold", "hit"]).1, [] as [&str; 0]);
    assert!(
        tally.differences[0].contains("alone"),
        "{:?}",
        tally.differences
    );
}

#[test]
fn one_unit_in_a_later_piece_is_found() {
    let tally = prove(Fault::Piece, 1, 1 << 30);
    assert_eq!(split(&tally, "company", &COMPANY).0, COMPANY);
    let (small, large) = (tally.of("pieces", "64"), tally.of("pieces", "256"));
    assert!(small.unequal > large.unequal && large.unequal > 0);
}

#[test]
fn one_unit_behind_a_snapshot_is_found() {
    let tally = prove(Fault::Hit, 1, 1 << 30);
    assert_eq!(
        split(&tally, "cache", &["cold", "hit"]),
        (vec!["hit"], vec!["cold"])
    );
}

#[test]
fn one_unit_with_more_threads_is_found() {
    let tally = prove(Fault::Piece, 2, 1 << 30);
    assert_eq!(
        split(&tally, "threads", &["1", "2"]),
        (vec!["2"], vec!["1"])
    );
}

#[test]
fn one_unit_of_a_chats_logits_is_found() {
    let tally = prove(Fault::Chat, 1, 1 << 30);
    assert_eq!(split(&tally, "company", &COMPANY).0, ["chat"]);
    let found = tally.of("company", "chat");
    assert!(found.unequal <= found.chats, "no record's answer differs");
}

#[test]
fn another_token_of_the_devices_own_choice_is_found() {
    let tally = prove(Fault::Choice, 1, 1 << 30);
    assert_eq!(split(&tally, "company", &COMPANY).0, ["chat"]);
    let found = tally.of("company", "chat");
    assert!(found.unequal <= found.chats, "no record's answer differs");
    let named = |difference: &String| difference.contains("though its logits are the same bits");
    assert!(
        tally.differences.iter().any(named),
        "{:?}",
        tally.differences
    );
}

#[test]
fn a_cache_that_has_no_room_is_not_taken_for_one_that_hits() {
    let tally = prove(Fault::Nothing, 1, 1);
    assert_eq!(tally.unequal(), 0);
    assert!(tally.of("cache", "hit").lapses > 100);
    assert_eq!(tally.of("cache", "hit").answers, 0);
    assert_eq!(tally.of("cache", "cold").lapses, 0);
    let empty = tally.empty(&axes().values());
    assert_eq!(empty, ["cache hit"]);
}

#[test]
fn company_that_does_not_come_is_not_counted() {
    // A record, and nobody to meet.
    let mut cast = cast();
    cast.cases.truncate(1);
    cast.chats.clear();
    let axes = Axes {
        threads: vec![1],
        pieces: vec![64],
        company: vec![Company::Three, Company::Chat],
        cache: vec![Cache::Cold],
    };
    let mut proof = Proof::new(&cast, axes, None, 1 << 20);
    proof.run(good_house).unwrap();
    assert_eq!(proof.tally.compared(), 0);
    // Each scene, and for one of the two the company that never was.
    assert!(proof.tally.lapsed() >= 2, "{:?}", proof.tally.lapses);
    let failure = proof
        .report(true, Object::new(), Instant::now())
        .unwrap_err();
    assert!(matches!(failure, Failure::Unproven { unequal: 0, .. }));
}

/// A house whose device keeps its promise.
fn good_house(_: usize) -> Result<House, Failure> {
    let capacity = Capacity {
        slots: SLOTS,
        positions: 1280,
        rows: 2400 + SLOTS,
    };
    Ok(House {
        rig: Rig::new(Box::new(FakeBackend::new(capacity, Script::default()))),
        head: Arc::new(FakeHead::new(Script::default())),
    })
}

#[test]
fn a_proof_goes_on_until_enough_is_compared() {
    let cast = cast();
    let axes = Axes {
        threads: vec![2],
        pieces: vec![256],
        company: vec![Company::Eight],
        cache: vec![Cache::Cold],
    };
    let mut proof = Proof::new(&cast, axes, Some(300), 0);
    // As if fewer had been expected to be needed.
    proof.passes = 0..1;
    proof.run(good_house).unwrap();
    assert!(proof.tally.compared() >= 300 && proof.passes.end > 1);
    assert_eq!((proof.tally.unequal(), proof.tally.lapsed()), (0, 0));
}

#[test]
fn more_comparisons_are_more_passes() {
    let cast = cast();
    let one = Proof::new(&cast, axes(), None, 0).passes;
    let many = Proof::new(&cast, axes(), Some(20_000), 0).passes;
    assert!(one == (0..1) && many.end > 2, "{many:?}");
}
