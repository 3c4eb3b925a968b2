//! The f64 reference against the release's own Python in f32.

use descant_model::reference::{Backbone, Head};
use descant_release::Release;
use descant_testkit::head_cases::{GoldenHead, real_heads, small_heads};
use descant_testkit::{Band, fixtures};

/// The golden rows are f32: one layer rounds by a few times 2^-24, and the delta rule's state carries that from row to
/// row, so single values lie 2e-4 away where the mean lies below 1e-5. A wrong sign, order or epsilon moves the mean by
/// 1e-3 and more.
const HIDDEN: Band =
    Band::absolute(1e-3, "f32 roundings of 8 layers, carried over 321 rows").with_mean(2e-5);
/// A logit is a sum of H of these values times weights of up to one.
const LOGITS: Band =
    Band::absolute(1e-3, "f32 roundings of hidden rows, summed over H").with_mean(2e-4);
/// Both sides compute in f64: a few hundred roundings of 2^-53 on sums of some thousand terms, scaled by up to 100.
const DOUBLE: Band = Band::absolute(1e-10, "f64 roundings of another order");

#[test]
fn hidden_rows_and_logits_are_the_references() {
    for name in fixtures::RELEASES {
        let release = Release::open(&fixtures::release(name), None).unwrap();
        let backbone = Backbone::new(&release);
        let golden = fixtures::tensors(&format!("golden/hidden/{name}.safetensors"));
        let record = fixtures::json(&format!("golden/hidden/{name}.json"));
        for prompt in record["prompts"].as_array().unwrap() {
            let length = &prompt["length"];
            let trace = backbone.run(&fixtures::integers(&prompt["ids"])).unwrap();
            let logits = backbone
                .logits(&trace.hidden[trace.hidden.len() - release.config().hidden..])
                .unwrap();
            let wanted = |what: &str| {
                fixtures::tensor(&golden, &format!("{what}.{length}"))
                    .into_iter()
                    .map(f64::from)
            };
            HIDDEN.check(
                &format!("{name}, hidden rows of {length}"),
                trace.hidden,
                wanted("hidden"),
            );
            LOGITS.check(
                &format!("{name}, logits after {length}"),
                logits,
                wanted("logits"),
            );
        }
    }
}

#[test]
fn logits_of_small_heads_are_the_references() {
    small_heads().iter().for_each(check_head);
}

#[test]
fn logits_of_the_published_widths_are_the_references() {
    real_heads().for_each(|head| check_head(&head));
}

fn check_head(golden: &GoldenHead) {
    let head = Head::new(&golden.config, golden.weights.as_ref());
    for case in &golden.cases {
        let hidden: Vec<f64> = case.hidden.iter().map(|&x| f64::from(x)).collect();
        let logits = head
            .logits(&case.encoded, &hidden)
            .expect("its tensors are there")
            .concat();
        match &case.wanted {
            Some(wanted) => DOUBLE.check(&case.name, logits, wanted.double.iter().copied()),
            None => assert!(
                logits.iter().all(|logit| logit.is_nan()),
                "{}: {logits:?}",
                case.name
            ),
        }
    }
}
