//! The backbone against the reference's own hidden rows, and against itself on bits.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::sync::Arc;

use descant_cpu::{CpuBackend, Isa, LmHead, Options, Pool, Precision, memory};
use descant_model::{Backend, Capacity, Saved, Slot};
use descant_release::{Release, safetensors::SafetensorsFile};
use descant_testkit::Band;
use descant_testkit::assert_same_bits;
use descant_testkit::drive::{decode, prefill};
use descant_testkit::fixtures::{self, RELEASES, integers};
use serde_json::Value;

/// Correct f32 code in another order of addition stays within this of the reference's f32 rows; the bands are those that
/// real faults (a lost term, a wrong head, an angle off by one position) exceed by orders of magnitude.
const HIDDEN: Band =
    Band::absolute(1e-3, "f32 sums in another order, through all layers").with_mean(2e-5);
/// Logits are sums of H products of hidden rows with weights below 1.
const LOGITS: Band =
    Band::absolute(2e-3, "hidden rows off by 2e-5 on average, times H weights").with_mean(5e-4);

struct Golden {
    name: &'static str,
    release: Arc<Release>,
    inputs: Value,
    numbers: SafetensorsFile,
}

impl Golden {
    fn all() -> Vec<Golden> {
        RELEASES.into_iter().map(Golden::new).collect()
    }

    fn new(name: &'static str) -> Golden {
        Golden {
            name,
            release: Arc::new(Release::open(&fixtures::release(name), None).unwrap()),
            inputs: fixtures::json(&format!("golden/hidden/{name}.json")),
            numbers: fixtures::tensors(&format!("golden/hidden/{name}.safetensors")),
        }
    }

    /// Prompts of a kind: their length and ids.
    fn prompts(&self, kind: &str) -> Vec<(usize, Vec<u32>)> {
        let prompts = self.inputs[kind].as_array().unwrap();
        prompts
            .iter()
            .map(|p| {
                (
                    integers::<usize>(&Value::Array(vec![p["length"].clone()]))[0],
                    integers(&p["ids"]),
                )
            })
            .collect()
    }

    /// The longest f32 prompt.
    fn longest(&self) -> Vec<u32> {
        self.prompts("prompts")
            .into_iter()
            .max_by_key(|(length, _)| *length)
            .unwrap()
            .1
    }

    fn backend(&self, manner: Manner) -> Driver {
        let isa = manner.isa.unwrap_or_else(|| Isa::from_env().unwrap());
        let pool = Arc::new(Pool::with_isa(manner.threads, isa).unwrap());
        let capacity = Capacity {
            slots: 3,
            positions: 400,
            rows: 700,
        };
        let options = Options {
            precision: manner.precision,
            capacity,
            lm_head: manner.lm_head,
        };
        let backend = CpuBackend::load(Arc::clone(&self.release), options, pool).unwrap();
        Driver::new(backend)
    }
}

/// A way of running a case.
#[derive(Clone, Copy)]
struct Manner {
    precision: Precision,
    threads: usize,
    isa: Option<Isa>,
    lm_head: LmHead,
}

const PLAIN: Manner = Manner {
    precision: Precision::F32,
    threads: 2,
    isa: None,
    lm_head: LmHead::Mapped,
};

type Driver = descant_testkit::drive::Driver<CpuBackend>;

#[test]
fn hidden_rows_and_logits_are_the_references() {
    for golden in Golden::all() {
        let mut driver = golden.backend(PLAIN);
        for (length, ids) in golden.prompts("prompts") {
            let what = format!("{} of {length} rows", golden.name);
            let hidden = driver.prefill(1, &ids, ids.len());
            let wanted = fixtures::tensor(&golden.numbers, &format!("hidden.{length}"));
            HIDDEN.check_f32(&what, &hidden, &wanted);
            let wanted = fixtures::tensor(&golden.numbers, &format!("logits.{length}"));
            LOGITS.check_f32(
                &format!("logits of {what}"),
                &driver.logits(length - 1),
                &wanted,
            );
        }
    }
}

#[test]
fn bf16_rows_are_as_near_to_f32_as_the_references() {
    // The reference's own bf16 run differs from its f32 run by the rounding of every operation; ours differs from its bf16
    // run by the same kind of steps wherever a sum lands on the other side of a rounding border. So its own distance is
    // the band: our mean distance from it may be no larger than its mean distance from f32, which our f32 run stands for.
    for golden in Golden::all() {
        let mut exact = golden.backend(PLAIN);
        let mut driver = golden.backend(Manner {
            precision: Precision::Bf16,
            ..PLAIN
        });
        for (length, ids) in golden.prompts("bf16_prompts") {
            let wanted = fixtures::tensor(&golden.numbers, &format!("bf16_hidden.{length}"));
            let f32s = exact.prefill(0, &ids, ids.len());
            let found = driver.prefill(0, &ids, ids.len());
            assert!(
                found.iter().all(|x| x.to_bits() & 0xffff == 0),
                "hidden rows are bf16"
            );
            let (ours, theirs) = (
                mean_distance(&found, &wanted),
                mean_distance(&f32s, &wanted),
            );
            println!(
                "{} of {length} rows: {ours:.2e} from the bf16 reference, f32 is {theirs:.2e} from it",
                golden.name
            );
            assert!(
                ours <= theirs,
                "{} of {length} rows: {ours:.3e} > {theirs:.3e}",
                golden.name
            );
        }
    }
}

fn mean_distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from((a - b).abs()))
        .sum::<f64>()
        / a.len() as f64
}

#[test]
fn pieces_change_no_bit() {
    for golden in Golden::all() {
        let ids = golden.longest();
        for precision in [Precision::F32, Precision::Bf16] {
            let mut driver = golden.backend(Manner { precision, ..PLAIN });
            let whole = driver.prefill(0, &ids, ids.len());
            for piece in [64, 128, 192] {
                let pieces = driver.prefill(2, &ids, piece);
                assert_same_bits(
                    &format!("{} {precision:?} {piece}", golden.name),
                    driver.hidden,
                    &pieces,
                    &whole,
                );
            }
        }
    }
}

#[test]
fn threads_and_paths_change_no_bit() {
    for golden in Golden::all() {
        let ids = golden.longest();
        for precision in [Precision::F32, Precision::Bf16] {
            let run = |threads, isa| {
                let mut driver = golden.backend(Manner {
                    precision,
                    threads,
                    isa: Some(isa),
                    ..PLAIN
                });
                let mut rows = driver.prefill(0, &ids, 128);
                rows.extend(driver.round(&[decode(0, ids.len(), &5)]));
                rows.extend(driver.logits(0));
                rows
            };
            let wanted = run(1, Isa::detect());
            for threads in [2, 3, 4, 8] {
                let found = run(threads, Isa::detect());
                assert_same_bits(
                    &format!("{} {precision:?} {threads} threads", golden.name),
                    1,
                    &found,
                    &wanted,
                );
            }
            for isa in Isa::all() {
                let found = run(2, isa);
                assert_same_bits(
                    &format!("{} {precision:?} {}", golden.name, isa.name()),
                    1,
                    &found,
                    &wanted,
                );
            }
        }
    }
}

#[test]
fn company_changes_no_bit() {
    for golden in Golden::all() {
        for precision in [Precision::F32, Precision::Bf16] {
            let mut driver = golden.backend(Manner { precision, ..PLAIN });
            let ids = golden.longest();
            let hidden = driver.hidden;
            let alone = driver.prefill(0, &ids, 64);
            let chat = &ids[7..40];
            let chat_alone = driver.prefill(1, chat, 64);
            let next_alone = driver.round(&[decode(1, chat.len(), &ids[3])]);

            // The same prompt again, in the slot that another stream used, beside a chat and a third stream.
            for slot in 0..3 {
                driver.backend.reset(Slot(slot));
            }
            let first = driver.round(&[prefill(1, 0, chat), prefill(2, 0, &ids[..64])]);
            let what = format!("{} {precision:?}", golden.name);
            assert_same_bits(
                &format!("{what} chat"),
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
                &format!("{what} decode"),
                hidden,
                &second[..hidden],
                &next_alone,
            );
            let rows = [&first[chat.len() * hidden..], &second[65 * hidden..]].concat();
            assert_same_bits(&what, hidden, &rows, &alone);
        }
    }
}

#[test]
fn greedy_chats_are_the_references() {
    for golden in Golden::all() {
        for lm_head in [LmHead::Mapped, LmHead::Packed] {
            let mut driver = golden.backend(Manner { lm_head, ..PLAIN });
            for chat in golden.inputs["chats"].as_array().unwrap() {
                let (prompt, wanted): (Vec<u32>, Vec<u32>) =
                    (integers(&chat["prompt"]), integers(&chat["continuation"]));
                driver.prefill(0, &prompt, 128);
                let (mut found, mut row) = (Vec::new(), (prompt.len() - 1) % 128);
                for step in 0..wanted.len() {
                    let logits = driver.logits(row);
                    let top = (0..logits.len())
                        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
                        .unwrap();
                    found.push(top as u32);
                    driver.round(&[decode(0, prompt.len() + step, &found[step])]);
                    row = 0;
                }
                assert_eq!(found, wanted, "{} after {} rows", golden.name, prompt.len());
            }
        }
    }
}

#[test]
fn decode_goes_on_where_prefill_stands() {
    for golden in Golden::all() {
        let ids = golden.longest();
        let mut driver = golden.backend(PLAIN);
        let whole = driver.prefill(0, &ids, ids.len());
        driver.prefill(1, &ids[..130], 64);
        let rows: Vec<f32> = (130..200)
            .flat_map(|at| driver.round(&[decode(1, at, &ids[at])]))
            .collect();
        let wanted = &whole[130 * driver.hidden..200 * driver.hidden];
        HIDDEN.check_f32(&format!("{} decoded", golden.name), &rows, wanted);
    }
}

#[test]
fn a_slot_restored_from_copies_goes_on_with_the_same_bits() {
    for golden in Golden::all() {
        for precision in [Precision::F32, Precision::Bf16] {
            let mut driver = golden.backend(Manner { precision, ..PLAIN });
            let ids = golden.longest();
            let whole = driver.prefill(0, &ids, 64);
            driver.prefill(0, &ids[..64], 64);
            let first = driver.backend.save(Slot(0), 0..64).unwrap().unwrap();
            driver.go_on(0, 64, &ids[..192], 64);
            let second = driver.backend.save(Slot(0), 64..192).unwrap().unwrap();
            assert_eq!((first.rows.clone(), second.rows.clone()), (0..64, 64..192));
            // What is asked for is what is taken.
            let asked = [64, 128].map(|rows| driver.backend.saved_bytes(rows));
            assert_eq!([first.bytes, second.bytes], asked);

            let restore = |driver: &mut Driver, slot: usize, saved: &[&Saved], end: usize| {
                // Another stream used the slot before.
                driver.prefill(slot, &ids[100..300], 128);
                driver.backend.reset(Slot(slot));
                driver.backend.load(Slot(slot), saved).unwrap();
                let rows = driver.go_on(slot, end, &ids, 128);
                let what = format!("{} {precision:?} from {end}", golden.name);
                assert_same_bits(&what, driver.hidden, &rows, &whole[end * driver.hidden..]);
            };
            restore(&mut driver, 1, &[&first], 64);
            restore(&mut driver, 2, &[&first, &second], 192);
        }
    }
}

#[test]
fn memory_is_listed_and_bounded() {
    let golden = Golden::new("tiny-b");
    let capacity = Capacity {
        slots: 3,
        positions: 400,
        rows: 700,
    };
    let options = Options {
        precision: Precision::F32,
        capacity,
        lm_head: LmHead::Packed,
    };
    let items = memory(golden.release.config(), &options, 2);
    let names: Vec<&str> = items.iter().map(|item| item.name).collect();
    assert_eq!(
        names,
        [
            "weights",
            "KV cache",
            "recurrent states",
            "activations of a round",
            "rotary tables",
            "scratch of the threads",
            "LM head"
        ]
    );
    // Two attention layers, three slots, two heads of 32 values for keys and values, 448 positions (whole blocks), f32.
    assert_eq!(items[1].bytes, 2 * 3 * 2 * 2 * 32 * 448 * 4);
    // Six delta layers: six heads of 16 keys and 32 padded values, two blocks of 3 · 128 inputs.
    assert_eq!(items[2].bytes, 6 * 3 * (6 * 16 * 32 + 2 * 3 * 128) * 4);
    let capacity = Capacity {
        slots: 3,
        positions: usize::MAX >> 20,
        rows: 700,
    };
    let error = CpuBackend::load(
        Arc::clone(&golden.release),
        Options {
            capacity,
            ..options
        },
        Arc::new(Pool::new(1).unwrap()),
    );
    assert!(error.unwrap_err().to_string().contains("KV cache"));
}

#[test]
#[should_panic(expected = "stands at another row")]
fn a_segment_begins_where_its_slot_stands() {
    Golden::new("tiny-a")
        .backend(PLAIN)
        .round(&[prefill(0, 64, &[1])]);
}

#[test]
#[should_panic(expected = "a token is not below")]
fn tokens_are_below_the_vocabulary() {
    Golden::new("tiny-a")
        .backend(PLAIN)
        .round(&[prefill(0, 0, &[512])]);
}
