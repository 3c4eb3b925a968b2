//! The head on the CPU: against the release's own logits, and against itself in every manner of running it.

use std::sync::Arc;

use descant_cpu::{CpuHead, Isa, Pool};
use descant_decision::{Kind, Logits};
use descant_model::{Defect, Head, HeadWeights, SavedMemory, reference};
use descant_release::{Dtype, HeadConfig};
use descant_testkit::drawn::{Converted, Drawn, assert_same_logits};
use descant_testkit::head_cases::{GoldenHead, HeadCase, real_heads, small_heads};
use descant_testkit::{Band, assert_same_bits};

/// Against torch in f32, which lies up to 9.3e-7 from f64 on these heads.
const SINGLE: Band = Band::absolute(
    1.5e-6,
    "f32 roundings of torch, logits of up to a few units",
);
/// Against f64: the memory's rows and products are f32, everything else is f64. Their roundings average out over the rows,
/// except where all rows are the same (`zero_rows`, 1.4e-6).
const DOUBLE: Band = Band::absolute(
    1.5e-6,
    "f32 roundings of the memory, logits of up to a few units",
);
/// Factor of the cosines of `small-2`, whose scales are clamped to 100, over those of the other heads, `e^1.5` at most.
const CLAMPED: f64 = 100.0 / 4.48;

#[test]
fn logits_of_small_heads_are_the_releases() {
    small_heads().iter().for_each(check_golden);
}

#[test]
fn logits_of_the_published_widths_are_the_releases() {
    real_heads().for_each(|head| check_golden(&head));
}

fn check_golden(golden: &GoldenHead) {
    let head = load(&golden.config, &golden.weights, &pool(2, Isa::detect()));
    let factor = if golden.name == "small-2" {
        CLAMPED
    } else {
        1.0
    };
    for case in &golden.cases {
        let Some(wanted) = &case.wanted else { continue };
        let logits = whole(&head, case);
        let found = flat(&logits).map(f64::from);
        let (single, double) = (wanted.single.iter().copied(), wanted.double.iter().copied());
        DOUBLE
            .times(factor)
            .check(&format!("{}, f64", case.name), found.clone(), double);
        SINGLE
            .times(factor)
            .check(&format!("{}, f32", case.name), found, single);
    }
}

/// The worst of some 400 logits lies further out than that of the goldens' 20; the mean does not.
const WORST_OF_MANY: f64 = 2.5;

/// The schemas' extremes: one question with one option; many questions; many options; spans of one row, of the first row,
/// and of nearly the whole prompt.
#[test]
fn extreme_schemas_follow_the_formula() {
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, &pool(2, Isa::detect()));
    let judge = reference::Head::new(&drawn.config, drawn.weights.as_ref());
    for case in drawn.cases() {
        let hidden: Vec<f64> = case.hidden.iter().map(|x| f64::from(*x)).collect();
        let wanted = judge
            .logits(&case.encoded, &hidden)
            .expect("the weights are there")
            .concat();
        DOUBLE.times(WORST_OF_MANY).check(
            &case.name,
            flat(&whole(&head, &case)).map(f64::from),
            wanted,
        );
    }
}

#[test]
fn threads_and_instructions_leave_the_bits() {
    let drawn = Drawn::new();
    let heads = small_heads();
    let goldens = heads
        .iter()
        .map(|head| (&head.config, &head.weights, head.cases.clone()));
    for (config, weights, cases) in goldens.chain([(&drawn.config, &drawn.weights, drawn.cases())])
    {
        let alone = load(config, weights, &pool(1, Isa::detect()));
        let finite: Vec<&HeadCase> = cases.iter().filter(|case| is_finite(case)).collect();
        let wanted: Vec<Logits> = finite.iter().map(|case| whole(&alone, case)).collect();
        let threads = [2, 3, 4, 8].map(|threads| (threads, Isa::detect()));
        for (threads, isa) in threads
            .into_iter()
            .chain(Isa::all().into_iter().map(|isa| (2, isa)))
        {
            let head = load(config, weights, &pool(threads, isa));
            for (case, wanted) in finite.iter().zip(&wanted) {
                let what = format!("{} on {threads} threads, {}", case.name, isa.name());
                assert_same_logits(&what, &whole(&head, case), wanted);
            }
        }
    }
}

#[test]
fn threads_leave_the_bits_at_the_published_width() {
    let golden = real_heads().next().expect("there is one");
    let case = &golden.cases[0];
    let wanted = whole(
        &load(&golden.config, &golden.weights, &pool(1, Isa::detect())),
        case,
    );
    for threads in [2, 3, 8] {
        let head = load(
            &golden.config,
            &golden.weights,
            &pool(threads, Isa::detect()),
        );
        assert_same_logits(&format!("{threads} threads"), &whole(&head, case), &wanted);
    }
}

#[test]
fn cuts_leave_the_bits() {
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, &pool(2, Isa::detect()));
    for case in drawn.cases() {
        let wanted = whole(&head, &case);
        for piece in [1, 7, 64, 128, 240, 241, 1000] {
            let mut run = head.begin(Arc::clone(&case.encoded));
            for (index, hidden) in case.hidden.chunks(piece * drawn.config.hidden).enumerate() {
                run.absorb(index * piece, hidden).unwrap();
            }
            let what = format!("{} in pieces of {piece}", case.name);
            assert_same_logits(&what, &run.finish().unwrap(), &wanted);
        }
    }
}

#[test]
fn preloaded_memory_leaves_the_bits() {
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, &pool(2, Isa::detect()));
    let case = drawn.case("preloaded", 700, &[(Kind::Noul, 2), (Kind::Score, 5)], 320);
    let wanted = whole(&head, &case);
    let cold = run_to_end(&head, &case);
    for (cut, end) in [(0, 64), (64, 320), (128, 192), (0, 320)] {
        let width = drawn.config.hidden;
        let mut run = head.begin(Arc::clone(&case.encoded));
        run.absorb(0, &case.hidden[..cut * width]).unwrap();
        run.preload(&cold.memory(cut..end).unwrap());
        run.absorb(end, &case.hidden[end * width..]).unwrap();
        let all = 0..640;
        let [found, wanted_rows] = [&run, &cold].map(|run| run.memory(all.clone()).unwrap());
        assert_eq!(
            (found.rows.clone(), found.bytes),
            (all.clone(), head.memory_bytes(all.len()))
        );
        let [found, wanted_rows] =
            [&found, &wanted_rows].map(|memory| memory.data.downcast_ref::<Vec<f32>>().unwrap());
        assert_same_bits("memory", drawn.config.width, found, wanted_rows);
        assert_same_logits(
            &format!("rows {cut}..{end} preloaded"),
            &run.finish().unwrap(),
            &wanted,
        );
    }
}

#[test]
#[should_panic(expected = "row 65 is in a span")]
fn memory_does_not_stand_for_rows_of_a_span() {
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, &pool(1, Isa::detect()));
    let case = drawn.case("preloaded", 200, &[(Kind::Noul, 2)], 64);
    head.begin(case.encoded).preload(&SavedMemory {
        rows: 0..65,
        bytes: 0,
        data: Box::new(vec![0.0_f32; 65 * drawn.config.width]),
    });
}

#[test]
#[should_panic(expected = "rows come in order")]
fn rows_do_not_come_twice() {
    let drawn = Drawn::new();
    let head = load(&drawn.config, &drawn.weights, &pool(1, Isa::detect()));
    let case = drawn.case("twice", 200, &[(Kind::Noul, 2)], 64);
    let mut run = head.begin(case.encoded);
    run.absorb(0, &case.hidden[..64 * drawn.config.hidden])
        .unwrap();
    run.absorb(0, &case.hidden).unwrap();
}

#[test]
fn a_value_that_is_not_finite_is_a_defect_that_names_a_question() {
    for golden in small_heads() {
        let head = load(&golden.config, &golden.weights, &pool(2, Isa::detect()));
        let poisoned: Vec<&HeadCase> = golden
            .cases
            .iter()
            .filter(|case| !is_finite(case))
            .collect();
        assert!(poisoned.len() >= 4, "{} has no such cases", golden.name);
        for case in poisoned {
            let wanted = Defect::NonFinite {
                question: "q0".into(),
            };
            assert_eq!(run(&head, case), Err(wanted), "{}", case.name);
        }
    }
}

/// A head may be stored as bf16, f16 or f32: bf16 values widened to f32 give the same bits; f16 rounds them, and the
/// judge reads the same rounded values.
#[test]
fn every_dtype_of_weights_is_read_exactly() {
    let drawn = Drawn::new();
    let case = drawn.case("dtypes", 200, &[(Kind::Choice, 3), (Kind::Noul, 2)], 64);
    let pool = pool(2, Isa::detect());
    let wanted = whole(&load(&drawn.config, &drawn.weights, &pool), &case);
    let wide: Arc<dyn HeadWeights> = Arc::new(Converted::new(&drawn, Dtype::F32, 0.0));
    assert_same_logits(
        "F32",
        &whole(&load(&drawn.config, &wide, &pool), &case),
        &wanted,
    );

    let half: Arc<dyn HeadWeights> = Arc::new(Converted::new(&drawn, Dtype::F16, 0.0));
    let hidden: Vec<f64> = case.hidden.iter().map(|x| f64::from(*x)).collect();
    let judge = reference::Head::new(&drawn.config, half.as_ref());
    let wanted = judge.logits(&case.encoded, &hidden).unwrap().concat();
    DOUBLE.check(
        "F16",
        flat(&whole(&load(&drawn.config, &half, &pool), &case)).map(f64::from),
        wanted,
    );
}

#[test]
fn a_missing_tensor_is_named() {
    let drawn = Drawn::new();
    let mut weights = Converted::new(&drawn, Dtype::F32, 0.0);
    weights
        .tensors
        .retain(|(name, ..)| name != "layers.0.linear2.bias");
    let error =
        CpuHead::load(&drawn.config, Arc::new(weights), &pool(1, Isa::detect())).unwrap_err();
    assert!(
        error.to_string().contains("layers.0.linear2.bias"),
        "{error}"
    );
}

fn load(config: &HeadConfig, weights: &Arc<dyn HeadWeights>, pool: &Arc<Pool>) -> CpuHead {
    CpuHead::load(config, Arc::clone(weights), pool).expect("the weights are there")
}

fn pool(threads: usize, isa: Isa) -> Arc<Pool> {
    Arc::new(Pool::with_isa(threads, isa).expect("the system gives threads"))
}

fn run_to_end(head: &CpuHead, case: &HeadCase) -> Box<dyn descant_model::HeadRun> {
    let mut run = head.begin(Arc::clone(&case.encoded));
    run.absorb(0, &case.hidden).expect("the CPU does not fail");
    run
}

fn run(head: &CpuHead, case: &HeadCase) -> Result<Logits, Defect> {
    run_to_end(head, case).finish()
}

fn whole(head: &CpuHead, case: &HeadCase) -> Logits {
    run(head, case).expect("the rows are finite")
}

fn is_finite(case: &HeadCase) -> bool {
    case.hidden.iter().all(|x| x.is_finite())
}

fn flat(logits: &Logits) -> impl Iterator<Item = f32> + Clone {
    logits.iter().flatten().copied()
}
