//! Replies against the release's own, byte for byte, from the release's own logits.
#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

use descant_decision::json::{ParseErrorKind, parse_str, to_json};
use descant_decision::{
    Encoded, EncodedOption, EncodedQuestion, Limits, Logits, Profile, Record, Verdict, answer,
};
use descant_testkit::fixtures;
use serde_json::Value;

/// Requests that the release answers and this program refuses: a number that overflows, which the release renders as
/// `Infinity`.
const REFUSED: [&str; 1] = ["numbers_in_options"];

/// Replies that differ in spelling: the legend echoes a number as it was sent, the release as Python spells it.
const RESPELLED: [&str; 1] = ["score_objects"];

/// The encoded record of a golden request, as far as answers look at it.
fn encoded(record: &Record, golden: &Value) -> Encoded {
    let option = |id: &Value| EncodedOption {
        id: id.as_str().unwrap().to_owned(),
        span: 0..1,
    };
    let ids = golden["option_ids"].as_array().unwrap();
    let questions = record
        .questions()
        .iter()
        .zip(ids)
        .map(|(question, ids)| EncodedQuestion {
            id: question.id().to_owned(),
            kind: question.kind(),
            span: 0..1,
            options: ids.as_array().unwrap().iter().map(option).collect(),
        });
    Encoded {
        ids: vec![0; usize::try_from(golden["input_tokens"].as_u64().unwrap()).unwrap()],
        questions: questions.collect(),
        truncated: 0,
        schema_start: 0,
    }
}

/// The values are f32, printed as the doubles they are.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the doubles are f32 values"
)]
fn logits(golden: &Value) -> Logits {
    let questions = golden["logits"].as_array().unwrap();
    questions
        .iter()
        .map(|logits| {
            fixtures::numbers(logits)
                .iter()
                .map(|&logit| logit as f32)
                .collect()
        })
        .collect()
}

fn record(golden: &Value) -> Record {
    let body = parse_str(golden["body"].as_str().unwrap()).unwrap();
    Record::from_value(&body, &Limits::release()).unwrap()
}

fn every_golden_request(mut check: impl FnMut(&Value)) {
    for name in fixtures::RELEASES {
        let requests = fixtures::jsonl(&format!("golden/answers/{name}.jsonl.gz"));
        let answered = requests
            .iter()
            .filter(|golden| !REFUSED.contains(&golden["name"].as_str().unwrap()));
        answered.for_each(&mut check);
    }
}

#[test]
fn what_the_release_renders_as_infinity_is_refused() {
    for golden in fixtures::jsonl("golden/answers/tiny-a.jsonl.gz") {
        let refused = REFUSED.contains(&golden["name"].as_str().unwrap());
        let error = parse_str(golden["body"].as_str().unwrap()).err();
        assert_eq!(
            error.map(|error| error.kind),
            refused.then_some(ParseErrorKind::NumberTooLarge)
        );
    }
}

#[test]
fn replies_are_the_releases_byte_for_byte() {
    let mut replies = 0;
    every_golden_request(|golden| {
        let record = record(golden);
        let answers = answer(
            &record,
            &encoded(&record, golden),
            &logits(golden),
            Profile::Clef,
        )
        .unwrap();
        let reply = to_json(&answers.to_value(record.model().unwrap()));
        let wanted = golden["reply"].as_str().unwrap();
        if RESPELLED.contains(&golden["name"].as_str().unwrap()) {
            let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(read(&reply), read(wanted));
            assert_ne!(reply, wanted);
        } else {
            assert_eq!(reply, wanted, "{}", golden["name"]);
        }
        replies += 1;
    });
    assert!(replies > 30, "only {replies} golden replies");
    println!("{replies} replies equal");
}

/// The reference's softmax and ours round the exponential, the sum and the quotient each once: at most 1.5 units of the
/// last place of a value below 1, and a sum of n terms in another order n more of 2^-24. 32 options: 2e-6.
const PROBABILITY_BAND: f64 = 2e-6;

#[test]
fn raw_numbers_are_the_releases() {
    let mut worst = 0.0_f64;
    every_golden_request(|golden| {
        let record = record(golden).with_raw(true);
        let answers = answer(
            &record,
            &encoded(&record, golden),
            &logits(golden),
            Profile::Clef,
        )
        .unwrap();
        for (index, answer) in answers.answers.iter().enumerate() {
            let raw = answer.raw.as_ref().unwrap();
            assert_eq!(serde_json::json!(raw.options), golden["option_ids"][index]);
            assert_eq!(raw.logits, logits(golden)[index]);
            let wanted = fixtures::numbers(&golden["probabilities"][index]);
            assert_eq!(raw.probabilities.len(), wanted.len());
            for (p, wanted) in raw.probabilities.iter().zip(wanted) {
                worst = worst.max((p - wanted).abs());
            }
        }
    });
    println!("worst difference of a probability: {worst:e}");
    assert!(worst < PROBABILITY_BAND, "{worst:e}");
}

/// What clients of this family check, whatever confidence means.
#[test]
fn every_profile_gives_numbers_that_clients_accept() {
    every_golden_request(|golden| {
        let record = record(golden);
        for profile in [
            Profile::Clef,
            Profile::Cloudflare,
            Profile::Entropy,
            Profile::TypeSafe,
        ] {
            let answers =
                answer(&record, &encoded(&record, golden), &logits(golden), profile).unwrap();
            for answer in &answers.answers {
                check_verdict(&answer.verdict, profile);
            }
        }
    });
}

fn check_verdict(verdict: &Verdict, profile: Profile) {
    let unit = |x: f64| assert!((0.0..=1.0).contains(&x), "{x}");
    // A rounded probability is off by at most half of 1e-4; a client's bound on unrounded ones is 1e-6.
    let sums_to_one = |p: &[f64]| {
        let band = if profile == Profile::TypeSafe {
            1e-6
        } else {
            0.5e-4 * float(p.len()) + 1e-6
        };
        let sum: f64 = p.iter().sum();
        assert!((sum - 1.0).abs() <= band, "{sum}");
        p.iter().for_each(|&p| unit(p));
    };
    match verdict {
        Verdict::Noul { noul } => unit(*noul),
        Verdict::Choice {
            choice,
            confidence,
            probabilities,
        } => {
            unit(*confidence);
            let p: Vec<f64> = probabilities.iter().map(|(_, p)| *p).collect();
            sums_to_one(&p);
            let chosen = probabilities
                .iter()
                .find(|(name, _)| name == choice)
                .unwrap()
                .1;
            assert!(
                p.iter().all(|&p| p <= chosen),
                "{choice} is not among the most probable"
            );
        }
        Verdict::Score {
            score,
            confidence,
            legend,
            probabilities,
        } => {
            unit(*confidence);
            sums_to_one(probabilities);
            assert_eq!(legend.len(), probabilities.len());
            assert!((0.0..=float(legend.len() - 1)).contains(score), "{score}");
        }
    }
}

fn float(count: usize) -> f64 {
    u32::try_from(count).unwrap().into()
}
