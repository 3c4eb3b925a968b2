//! The head on the device: against the release's own logits, the f64 reference, and itself in every manner of running it.

use std::sync::Arc;

use descant_decision::{Kind, Logits};
use descant_model::{Backend, Capacity, Defect, Head, HeadRun, HeadWeights, Pass, Segment, Slot};
use descant_release::{Dtype, HeadConfig, Release};
use descant_testkit::Band;
use descant_testkit::drawn::{Converted, Drawn, VOCAB, assert_same_logits, record};
use descant_testkit::fixtures::{self, RELEASES};
use descant_testkit::head_cases::{GoldenHead, HeadCase, real_heads, small_heads};

use super::device;
use crate::launch::Manner;
use crate::{CudaBackend, CudaHead, HeadOptions, Options};

/// Against torch in f32, as the head on the CPU.
const SINGLE: Band = Band::absolute(
    1.5e-6,
    "f32 roundings of torch, logits of up to a few units",
);
/// Against f64, as the head on the CPU: rows of the prompt have 22 bits, everything else is f64.
const DOUBLE: Band = Band::absolute(
    1.5e-6,
    "roundings of the memory, logits of up to a few units",
);
/// Factor of the cosines of `small-2`, whose scales are clamped to 100, over those of the other heads, `e^1.5` at most.
const CLAMPED: f64 = 100.0 / 4.48;
/// The worst of some 400 logits lies further out than that of the goldens' 20; the mean does not.
const WORST_OF_MANY: f64 = 2.5;
/// The fastest kernels, and those of every device.
const BOTH: [bool; 2] = [false, true];

#[test]
fn logits_of_small_heads_are_the_releases() {
    if device(false).is_none() {
        return;
    }
    small_heads().iter().for_each(check_golden);
}

#[test]
fn logits_of_the_published_widths_are_the_releases() {
    if device(false).is_none() {
        return;
    }
    real_heads().for_each(|head| check_golden(&head));
}

fn check_golden(golden: &GoldenHead) {
    for portable in BOTH {
        let head = load(&golden.config, &golden.weights, portable);
        let factor = if golden.name == "small-2" {
            CLAMPED
        } else {
            1.0
        };
        for case in &golden.cases {
            let Some(wanted) = &case.wanted else { continue };
            head.poison();
            let found = flat(&whole(&head, case));
            let (single, double) = (wanted.single.iter().copied(), wanted.double.iter().copied());
            let name = format!("{}, portable {portable}", case.name);
            DOUBLE
                .times(factor)
                .check(&format!("{name}, f64"), found.clone(), double);
            SINGLE
                .times(factor)
                .check(&format!("{name}, f32"), found, single);
        }
    }
}

#[test]
fn extreme_schemas_follow_the_formula() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    let judge = descant_model::reference::Head::new(&drawn.config, drawn.weights.as_ref());
    for case in drawn.cases() {
        let hidden: Vec<f64> = case.hidden.iter().map(|x| f64::from(*x)).collect();
        let wanted = judge.logits(&case.encoded, &hidden).unwrap().concat();
        for portable in BOTH {
            let head = load(&drawn.config, &drawn.weights, portable);
            head.poison();
            let found = flat(&whole(&head, &case));
            DOUBLE.times(WORST_OF_MANY).check(
                &format!("{}, portable {portable}", case.name),
                found,
                wanted.iter().copied(),
            );
        }
    }
}

#[test]
fn cuts_leave_the_bits() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    for portable in BOTH {
        let head = load(&drawn.config, &drawn.weights, portable);
        for case in drawn.cases() {
            let wanted = whole(&head, &case);
            for piece in [1, 7, 64, 128, 240, 257, 1000] {
                if piece == 1 && case.encoded.ids.len() > 600 {
                    continue;
                }
                head.poison();
                let mut run = head.begin(Arc::clone(&case.encoded));
                for (index, hidden) in case.hidden.chunks(piece * drawn.config.hidden).enumerate() {
                    run.absorb(index * piece, hidden).unwrap();
                }
                let what = format!("{} in pieces of {piece}", case.name);
                assert_same_logits(&what, &run.finish().unwrap(), &wanted);
            }
        }
    }
}

#[test]
fn launches_do_not_grow_with_options() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    let table = vec![0x3F80; VOCAB * drawn.config.hidden];
    for portable in BOTH {
        let head = load(&drawn.config, &drawn.weights, portable).with_table(&table);
        let launches = |rows, schema: &[(Kind, usize)]| {
            let case = drawn.case("launches", rows, schema, 0);
            head.launches(&case.encoded).unwrap()
        };
        // One, and two for each of the two evidence and two decoder layers.
        for (rows, schema) in [
            (64, vec![(Kind::Choice, 1)]),
            (1000, vec![(Kind::Choice, 64)]),
            (1100, vec![(Kind::Noul, 2); 32]),
            (2100, vec![(Kind::Choice, 256)]),
        ] {
            assert_eq!(launches(rows, &schema), 9, "{schema:?}");
        }
        // More options than 256 come in parts, in each of the two layers in which they attend.
        assert_eq!(launches(2100, &[(Kind::Choice, 600)]), 9 + 2 * 2 * 2);
    }
}

/// Attention over the memory in all manners: tiles, steps, parts of the pairs and numbers of blocks. Records come one after the
/// other in a workspace full of NaN, so a launch that left its gate or its stages unlike it found them spoils the next one.
#[test]
fn manners_of_attention_leave_the_bits() {
    if device(false).is_none() {
        return;
    }
    let default = Manner::default();
    let small = [[false, false], [false, true], [true, false], [true, true]];
    let pairs = [1, 63, 64, 65, 128, 200, 1000];
    let blocks = [1, 2, 5, 64];
    let mut manners: Vec<Manner> = vec![Manner {
        apart: true,
        ..default
    }];
    manners.extend(small.map(|small| Manner {
        small: Some(small),
        ..default
    }));
    manners.extend(blocks.map(|blocks| Manner {
        blocks: Some(blocks),
        ..default
    }));
    manners.extend(pairs.map(|pairs| Manner {
        pairs: Some(pairs),
        ..default
    }));
    // Few blocks with many tiles each, whose stages come round many times, in tiles of either size by turns.
    for small in small {
        manners.push(Manner {
            small: Some(small),
            pairs: Some(65),
            blocks: Some(3),
            apart: false,
        });
    }
    for drawn in [Drawn::new(), Drawn::wide()] {
        let cases = attended(&drawn);
        for portable in BOTH {
            let mut head = load(&drawn.config, &drawn.weights, portable);
            let wanted: Vec<Logits> = cases.iter().map(|case| whole(&head, case)).collect();
            for manner in &manners {
                head = head.in_manner(*manner);
                for (case, wanted) in cases.iter().zip(&wanted) {
                    // A launch for each of very many parts takes long and tells nothing more.
                    if manner.pairs == Some(1) && case.encoded.ids.len() > 100 {
                        continue;
                    }
                    head.poison();
                    let what = format!("{}, portable {portable}, {manner:?}", case.name);
                    assert_same_logits(&what, &whole(&head, case), wanted);
                }
            }
        }
    }
}

/// More pairs than there is room for weights of, in parts that are not forced, against the formula's own logits.
#[test]
fn pairs_that_attend_in_parts_follow_the_formula() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    let case = drawn.case("256 options", 2200, &[(Kind::Choice, 256)], 64);
    let hidden: Vec<f64> = case.hidden.iter().map(|x| f64::from(*x)).collect();
    let judge = descant_model::reference::Head::new(&drawn.config, drawn.weights.as_ref());
    let wanted = judge.logits(&case.encoded, &hidden).unwrap().concat();
    for portable in BOTH {
        let head = load(&drawn.config, &drawn.weights, portable);
        head.poison();
        DOUBLE.times(WORST_OF_MANY).check(
            &format!("{}, portable {portable}", case.name),
            flat(&whole(&head, &case)),
            wanted.iter().copied(),
        );
    }
}

#[test]
fn company_leaves_the_bits() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, false);
    let cases: Vec<HeadCase> = drawn.cases().into_iter().take(3).collect();
    let wanted: Vec<Logits> = cases.iter().map(|case| whole(&head, case)).collect();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for (case, wanted) in cases.iter().zip(&wanted) {
                let (head, width) = (&head, drawn.config.hidden);
                scope.spawn(move || {
                    let mut run = head.begin(Arc::clone(&case.encoded));
                    for (index, hidden) in case.hidden.chunks(64 * width).enumerate() {
                        run.absorb(index * 64, hidden).unwrap();
                    }
                    assert_same_logits(&case.name, &run.finish().unwrap(), wanted);
                });
            }
            // One that is given up in the middle.
            let (head, case) = (&head, &cases[1]);
            let width = drawn.config.hidden;
            scope.spawn(move || {
                let mut run = head.begin(Arc::clone(&case.encoded));
                run.absorb(0, &case.hidden[..200 * width]).unwrap();
            });
        });
    }
    // All places were given back.
    let runs: Vec<_> = (0..RUNS)
        .map(|_| {
            let mut run = head.begin(Arc::clone(&cases[0].encoded));
            run.absorb(0, &cases[0].hidden).unwrap();
            run
        })
        .collect();
    let mut more = head.begin(Arc::clone(&cases[0].encoded));
    let error = more.absorb(0, &cases[0].hidden).unwrap_err();
    assert!(error.to_string().contains("places"), "{error}");
    drop(runs);
}

#[test]
fn preloaded_memory_leaves_the_bits() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    for portable in BOTH {
        let head = load(&drawn.config, &drawn.weights, portable).with_shelf(2 << 20);
        let case = drawn.case("preloaded", 700, &[(Kind::Noul, 2), (Kind::Score, 5)], 320);
        let wanted = whole(&head, &case);
        let cold = run_to_end(&head, &case);
        // A run whose rows `cut..end` come from `from`, in memory in which there was nothing of them.
        let run_with = |from: &dyn HeadRun, cut: usize, end: usize| {
            let width = drawn.config.hidden;
            head.poison();
            let mut run = head.begin(Arc::clone(&case.encoded));
            if cut > 0 {
                run.absorb(0, &case.hidden[..cut * width]).unwrap();
            }
            let memory = from.memory(cut..end).unwrap();
            assert_eq!(memory.bytes, head.memory_bytes(end - cut));
            run.preload(&memory);
            drop(memory);
            run.absorb(end, &case.hidden[end * width..]).unwrap();
            run
        };
        for (cut, end) in [(0, 64), (64, 320), (128, 192), (0, 320)] {
            let run = run_with(cold.as_ref(), cut, end);
            // And what is copied from there again.
            let again = run_with(run.as_ref(), cut, end);
            for run in [run, again] {
                assert_same_logits(
                    &format!("rows {cut}..{end} preloaded"),
                    &run.finish().unwrap(),
                    &wanted,
                );
            }
        }
        // No room is no error, and what is given back can be taken.
        let bytes = head.memory_bytes(64);
        let all: Vec<_> = std::iter::from_fn(|| cold.memory(0..64)).collect();
        assert_eq!(all.len(), (2 << 20) / bytes);
        drop(all);
        assert!(cold.memory(0..64).is_some());
    }
}

#[test]
fn memory_is_not_kept_where_nothing_is() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, false);
    let case = drawn.case("cold", 200, &[(Kind::Noul, 2)], 64);
    assert!(run_to_end(&head, &case).memory(0..64).is_none());
}

#[test]
fn a_value_that_is_not_finite_is_a_defect_that_names_a_question() {
    if device(false).is_none() {
        return;
    }
    for golden in small_heads() {
        let head = load(&golden.config, &golden.weights, false);
        let poisoned: Vec<&HeadCase> = golden
            .cases
            .iter()
            .filter(|case| !case.hidden.iter().all(|x| x.is_finite()))
            .collect();
        assert!(poisoned.len() >= 4, "{} has no such cases", golden.name);
        for case in poisoned {
            let wanted = Defect::NonFinite {
                question: "q0".into(),
            };
            assert_eq!(
                run_to_end(&head, case).finish(),
                Err(wanted),
                "{}",
                case.name
            );
        }
    }
}

#[test]
fn every_dtype_of_weights_keeps_its_bits() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    let case = drawn.case("dtypes", 200, &[(Kind::Choice, 3), (Kind::Noul, 2)], 64);
    let hidden: Vec<f64> = case.hidden.iter().map(|x| f64::from(*x)).collect();
    for portable in BOTH {
        let wanted = whole(&load(&drawn.config, &drawn.weights, portable), &case);
        let wide: Arc<dyn HeadWeights> = Arc::new(Converted::new(&drawn, Dtype::F32, 0.0));
        let found = whole(&load(&drawn.config, &wide, portable), &case);
        assert_same_logits("bf16 values as F32", &found, &wanted);
        // f16 rounds the values; f32 ones here have bits that neither has.
        for (dtype, noise) in [(Dtype::F16, 0.0), (Dtype::F32, 1e-4)] {
            let other: Arc<dyn HeadWeights> = Arc::new(Converted::new(&drawn, dtype, noise));
            let judge = descant_model::reference::Head::new(&drawn.config, other.as_ref());
            let wanted = judge.logits(&case.encoded, &hidden).unwrap().concat();
            let found = flat(&whole(&load(&drawn.config, &other, portable), &case));
            DOUBLE.check(&format!("{dtype:?}, portable {portable}"), found, wanted);
        }
    }
}

#[test]
fn a_record_that_has_no_room_is_refused_in_words() {
    if device(false).is_none() {
        return;
    }
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, false);
    let case = drawn.case("long", POSITIONS + 64, &[(Kind::Noul, 2)], 64);
    let error = head
        .begin(Arc::clone(&case.encoded))
        .absorb(0, &case.hidden[..64 * drawn.config.hidden])
        .unwrap_err();
    assert!(error.to_string().contains("rows"), "{error}");
}

/// Rows that the backend keeps on the device give the bits that the same rows give by way of the host; so does the output
/// embedding of the backend.
#[test]
fn kept_rows_give_the_bits_of_rows_from_the_host() {
    if device(false).is_none() {
        return;
    }
    for name in RELEASES {
        let release = Arc::new(Release::open(&fixtures::release(name), None).unwrap());
        let Some(config) = release.head().cloned() else {
            continue;
        };
        let capacity = Capacity {
            slots: 2,
            positions: 512,
            rows: 300,
        };
        let options = Options {
            ordinal: 0,
            capacity,
            snapshot_bytes: 0,
            portable: false,
        };
        let mut backend = CudaBackend::load(&release, options).unwrap();
        let source = Arc::clone(&release) as Arc<dyn HeadWeights>;
        let head_options = HeadOptions {
            ordinal: 0,
            positions: 512,
            runs: 2,
            staged_rows: 300,
            spans: 64,
            portable: false,
        };
        let plain = CudaHead::load(&config, Arc::clone(&source), head_options).unwrap();
        assert!(backend.run(&[]).is_ok() && backend.keep_hidden(0..0).unwrap().is_none());
        let beside =
            CudaHead::load_beside(&mut backend, &config, source, head_options, true).unwrap();
        let vocab = release.config().vocab;
        let encoded = Arc::new(record(
            300,
            &[(Kind::Choice, 4), (Kind::Score, 3)],
            128,
            vocab,
        ));
        let (mut kept, mut hosted) = (
            beside.begin(Arc::clone(&encoded)),
            plain.begin(Arc::clone(&encoded)),
        );
        for start in [0, 128, 256] {
            let tokens = &encoded.ids[start..(start + 128).min(300)];
            let segment = Segment {
                slot: Slot(0),
                start,
                tokens,
                pass: Pass::Prefill,
                mark: None,
            };
            backend.run(&[segment]).unwrap();
            let mut rows = vec![f32::NAN; tokens.len() * config.hidden];
            backend.hidden(0..tokens.len(), &mut rows).unwrap();
            let place = backend.keep_hidden(0..tokens.len()).unwrap().unwrap();
            // The next round overwrites what is not kept.
            let other = Segment {
                slot: Slot(1),
                start,
                tokens: &encoded.ids[..tokens.len()],
                pass: Pass::Prefill,
                mark: None,
            };
            backend.run(&[other]).unwrap();
            kept.absorb_kept(start, place).unwrap();
            hosted.absorb(start, &rows).unwrap();
        }
        let (kept, hosted) = (kept.finish().unwrap(), hosted.finish().unwrap());
        assert_same_logits(name, &kept, &hosted);
        // All rows were given back.
        let all = backend.keep_hidden(0..44).unwrap();
        assert!(all.is_some());
        drop(all);
        let cpu_rows = plain.begin(encoded).absorb_kept(
            0,
            descant_model::KeptRows {
                rows: 1,
                data: Box::new(()),
            },
        );
        assert!(cpu_rows.is_err());
    }
}

fn load(config: &HeadConfig, weights: &Arc<dyn HeadWeights>, portable: bool) -> CudaHead {
    let options = HeadOptions {
        ordinal: 0,
        positions: POSITIONS,
        runs: RUNS,
        staged_rows: 0,
        spans: 1000,
        portable,
    };
    CudaHead::load(config, Arc::clone(weights), options).unwrap()
}

const POSITIONS: usize = 2304;
const RUNS: usize = 4;

fn run_to_end(head: &CudaHead, case: &HeadCase) -> Box<dyn HeadRun> {
    let mut run = head.begin(Arc::clone(&case.encoded));
    run.absorb(0, &case.hidden).unwrap();
    run
}

fn whole(head: &CudaHead, case: &HeadCase) -> Logits {
    run_to_end(head, case).finish().unwrap()
}

fn flat(logits: &Logits) -> Vec<f64> {
    logits.concat().into_iter().map(f64::from).collect()
}

/// Records whose attention has few tiles and many, of scores or of weighted rows, none of them whole.
fn attended(drawn: &Drawn) -> Vec<HeadCase> {
    vec![
        drawn.case("one option of one question", 3, &[(Kind::Choice, 1)], 0),
        drawn.case("65 rows", 65, &[(Kind::Noul, 2), (Kind::Choice, 4)], 20),
        drawn.case("a long state", 2100, &[(Kind::Noul, 2)], 1990),
        drawn.case("300 options", 1000, &[(Kind::Choice, 300)], 64),
        drawn.case("32 questions", 1100, &[(Kind::Score, 3); 32], 300),
    ]
}
