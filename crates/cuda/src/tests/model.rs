//! The backend: against the reference's bf16 rows and the f64 reference, and against itself on bits.

use std::panic::{AssertUnwindSafe, catch_unwind};

use descant_model::{Backend, Capacity, Saved, Segment, Slot};
use descant_release::Release;
use descant_release::safetensors::SafetensorsFile;
use descant_testkit::assert_same_bits;
use descant_testkit::drive::{decode, prefill};
use descant_testkit::fixtures::{self, RELEASES, integers};

use super::device;
use crate::{CudaBackend, Options};

struct Golden {
    name: &'static str,
    release: Release,
    inputs: serde_json::Value,
    numbers: SafetensorsFile,
}

impl Golden {
    fn all() -> Vec<Golden> {
        let golden = |name: &'static str| Golden {
            name,
            release: Release::open(&fixtures::release(name), None).unwrap(),
            inputs: fixtures::json(&format!("golden/hidden/{name}.json")),
            numbers: fixtures::tensors(&format!("golden/hidden/{name}.safetensors")),
        };
        RELEASES.into_iter().map(golden).collect()
    }

    fn prompts(&self, kind: &str) -> Vec<Vec<u32>> {
        self.inputs[kind]
            .as_array()
            .unwrap()
            .iter()
            .map(|prompt| integers(&prompt["ids"]))
            .collect()
    }

    fn longest(&self) -> Vec<u32> {
        self.prompts("prompts")
            .into_iter()
            .max_by_key(Vec::len)
            .unwrap()
    }

    fn driver(&self, portable: bool) -> Driver {
        let capacity = Capacity {
            slots: 3,
            positions: 400,
            rows: 700,
        };
        let backend = CudaBackend::load(
            &self.release,
            Options {
                ordinal: 0,
                capacity,
                snapshot_bytes: 4 << 20,
                portable,
            },
        )
        .unwrap();
        Driver::new(backend)
    }
}

type Driver = descant_testkit::drive::Driver<CudaBackend>;

fn mean_distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from((a - b).abs()))
        .sum::<f64>()
        / a.len() as f64
}

#[test]
fn rows_are_as_near_to_the_references_as_bf16_allows() {
    // The reference's own bf16 run differs from its f32 run by the rounding of every operation, ours from its bf16 run by
    // the same kind of steps: so its distance from f32 is the band for our mean distance from it.
    if device(false).is_none() {
        return;
    }
    for golden in Golden::all() {
        for portable in [false, true] {
            let mut driver = golden.driver(portable);
            for ids in golden.prompts("bf16_prompts") {
                let length = ids.len();
                let wanted = fixtures::tensor(&golden.numbers, &format!("bf16_hidden.{length}"));
                let exact = descant_model::reference::Backbone::new(&golden.release)
                    .run(&ids)
                    .unwrap()
                    .hidden;
                let exact: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
                let found = driver.prefill(0, &ids, ids.len());
                let (ours, theirs, truth) = (
                    mean_distance(&found, &wanted),
                    mean_distance(&exact, &wanted),
                    mean_distance(&found, &exact),
                );
                println!(
                    "{} of {length} rows, portable {portable}: {ours:.2e} from the bf16 reference, {truth:.2e} from f64; \
                     the reference is {theirs:.2e} from f64",
                    golden.name
                );
                assert!(
                    ours <= theirs && truth <= 1.5 * theirs,
                    "{} of {length} rows",
                    golden.name
                );
            }
        }
    }
}

#[test]
fn pieces_change_no_bit() {
    if device(false).is_none() {
        return;
    }
    for golden in Golden::all() {
        for portable in [false, true] {
            let (ids, mut driver) = (golden.longest(), golden.driver(portable));
            let whole = driver.prefill(0, &ids, ids.len());
            for piece in [64, 128, 192] {
                let pieces = driver.prefill(2, &ids, piece);
                assert_same_bits(
                    &format!("{} {piece}", golden.name),
                    driver.hidden,
                    &pieces,
                    &whole,
                );
            }
        }
    }
}

#[test]
fn company_changes_no_bit() {
    if device(false).is_none() {
        return;
    }
    for golden in Golden::all() {
        let (ids, mut driver) = (golden.longest(), golden.driver(false));
        let hidden = driver.hidden;
        let alone = driver.prefill(0, &ids, 64);
        let chat = &ids[7..40];
        let chat_alone = driver.prefill(1, chat, 64);
        let next_alone = driver.round(&[decode(1, chat.len(), &ids[3])]);
        let next_logits = driver.logits(0);
        for slot in 0..3 {
            driver.backend.reset(Slot(slot));
        }
        let first = driver.round(&[prefill(1, 0, chat), prefill(2, 0, &ids[..64])]);
        assert_same_bits(
            &format!("{} chat", golden.name),
            hidden,
            &first[..chat.len() * hidden],
            &chat_alone,
        );
        let second = driver.round(&[
            decode(1, chat.len(), &ids[3]),
            prefill(0, 0, &ids[9..73]),
            prefill(2, 64, &ids[64..]),
        ]);
        assert_same_bits(
            &format!("{} decode", golden.name),
            hidden,
            &second[..hidden],
            &next_alone,
        );
        let mut logits = vec![f32::NAN; 3 * driver.vocab];
        driver.backend.logits(&[70, 0, 70], &mut logits).unwrap();
        assert_same_bits(
            &format!("{} logits", golden.name),
            1,
            &logits[driver.vocab..2 * driver.vocab],
            &next_logits,
        );
        let rows = [&first[chat.len() * hidden..], &second[65 * hidden..]].concat();
        assert_same_bits(golden.name, hidden, &rows, &alone);
    }
}

#[test]
fn decode_goes_on_where_prefill_stands() {
    if device(false).is_none() {
        return;
    }
    for golden in Golden::all() {
        let (ids, mut driver) = (golden.longest(), golden.driver(false));
        let whole = driver.prefill(0, &ids, ids.len());
        driver.prefill(1, &ids[..130], 64);
        let rows: Vec<f32> = (130..200)
            .flat_map(|at| driver.round(&[decode(1, at, &ids[at])]))
            .collect();
        let wanted = &whole[130 * driver.hidden..200 * driver.hidden];
        // bf16 rows that differ by a step here and there: the same prompt in bf16 and f64 is the yardstick.
        let exact = descant_model::reference::Backbone::new(&golden.release)
            .run(&ids)
            .unwrap()
            .hidden;
        let exact: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
        let (apart, band) = (mean_distance(&rows, wanted), mean_distance(&whole, &exact));
        println!(
            "{} decoded: {apart:.2e} from prefill, which is {band:.2e} from f64",
            golden.name
        );
        assert!(apart <= band, "{}", golden.name);
    }
}

#[test]
fn a_slot_restored_from_copies_goes_on_with_the_same_bits() {
    if device(false).is_none() {
        return;
    }
    for golden in Golden::all() {
        let (ids, mut driver) = (golden.longest(), golden.driver(false));
        let whole = driver.prefill(0, &ids, 64);
        driver.prefill(0, &ids[..64], 64);
        let first = driver.backend.save(Slot(0), 0..64).unwrap().unwrap();
        driver.go_on(0, 64, &ids[..192], 64);
        let second = driver.backend.save(Slot(0), 64..192).unwrap().unwrap();
        assert_eq!((first.rows.clone(), second.rows.clone()), (0..64, 64..192));
        let restore = |driver: &mut Driver, slot: usize, saved: &[&Saved], end: usize| {
            // Another stream used the slot before.
            driver.prefill(slot, &ids[100..300], 128);
            driver.backend.reset(Slot(slot));
            driver.backend.load(Slot(slot), saved).unwrap();
            let rows = driver.go_on(slot, end, &ids, 128);
            assert_same_bits(
                &format!("{} from {end}", golden.name),
                driver.hidden,
                &rows,
                &whole[end * driver.hidden..],
            );
        };
        restore(&mut driver, 1, &[&first], 64);
        restore(&mut driver, 2, &[&first, &second], 192);
        // What is asked for is what is taken, until there is no more.
        assert_eq!(second.bytes, driver.backend.saved_bytes(128));
        let mut more = Vec::new();
        let room = (4 << 20) - first.bytes - second.bytes;
        driver.prefill(0, &ids[..64], 64);
        while let Some(saved) = driver.backend.save(Slot(0), 0..64).unwrap() {
            more.push(saved);
        }
        assert_eq!(more.len(), room / driver.backend.saved_bytes(64));
        more.pop();
        assert!(driver.backend.save(Slot(0), 0..64).unwrap().is_some());
    }
}

#[test]
fn a_slot_restored_from_a_mark_goes_on_with_the_same_bits() {
    if device(false).is_none() {
        return;
    }
    for golden in Golden::all() {
        for portable in [false, true] {
            let (ids, mut driver) = (golden.longest(), golden.driver(portable));
            let others: Vec<u32> = ids.iter().rev().copied().collect();
            let wholes = [&ids, &others].map(|ids| driver.prefill(0, ids, ids.len()));
            // The other is at its second piece.
            driver.prefill(1, &others[..64], 64);
            driver.backend.reset(Slot(0));
            let marked = |slot, start: usize, ids, mark| Segment {
                mark: Some(mark),
                ..prefill(slot, start, ids)
            };
            let both = [
                marked(0, 0, &ids[..], 128),
                marked(1, 64, &others[64..], 256),
            ];
            let rows = driver.round(&both);
            let (len, hidden) = (ids.len(), driver.hidden);
            let what = format!("{}, portable {portable}", golden.name);
            assert_same_bits(&what, hidden, &rows[..len * hidden], &wholes[0]);
            assert_same_bits(
                &what,
                hidden,
                &rows[len * hidden..],
                &wholes[1][64 * hidden..],
            );

            let mut save = |slot, end| {
                let saved = driver.backend.save(Slot(slot), 0..end);
                saved.unwrap().unwrap()
            };
            let saved = [save(0, 128), save(1, 256)];
            for ((saved, ids), whole) in saved.iter().zip([&ids, &others]).zip(&wholes) {
                let end = saved.rows.end;
                driver.prefill(2, &ids[100..300], 200);
                driver.backend.reset(Slot(2));
                driver.backend.load(Slot(2), &[saved]).unwrap();
                let rows = driver.go_on(2, end, ids, 128);
                let what = format!("{what}, from the mark at {end}");
                assert_same_bits(&what, hidden, &rows, &whole[end * hidden..]);
            }
            let gone = AssertUnwindSafe(|| driver.backend.save(Slot(0), 0..128));
            assert!(
                catch_unwind(gone).is_err(),
                "{what}: what was kept at a mark is there until the next round"
            );
        }
    }
}
