//! Token ids and spans against the release's own `encode_record`, with the released tokenizer and the tiny ones.
#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use descant_decision::json::{ParseErrorKind, parse_str};
use descant_decision::{
    Budget, COUNTED_MAX, EncodeError, Encoded, Encoder, Fault, FaultKind, Limits, OverLength,
    Record, Tokenize,
};
use descant_release::Tokenizer;
use descant_testkit::fixtures;
use serde_json::{Value, json};

/// Bodies that the release encodes and this program refuses, with the fault's type: numbers that are not finite, which
/// the release renders as `NaN` and `Infinity`. Besides these it refuses only bodies marked as quirks.
const REFUSED: &[(&str, FaultKind)] = &[
    ("numbers_as_state_nan", FaultKind::JsonInvalid),
    ("numbers_as_state_overflow", FaultKind::FiniteNumber),
    ("numbers_bare_names", FaultKind::JsonInvalid),
    ("numbers_in_options", FaultKind::FiniteNumber),
    ("numbers_overflow", FaultKind::FiniteNumber),
];

fn tokenizer(name: &str) -> Tokenizer {
    let bytes = match name {
        "clef" => fixtures::bytes("tokenizer/clef_tokenizer.json.gz"),
        tiny => fixtures::bytes(&format!("releases/{tiny}/tokenizer.json")),
    };
    Tokenizer::from_bytes(Path::new("tokenizer.json"), &bytes).unwrap()
}

fn encoder(name: &str) -> Encoder {
    Encoder::new(Arc::new(tokenizer(name)))
}

/// What became of a body.
#[derive(Debug)]
enum Outcome {
    Encoded(Encoded),
    LoneSurrogate,
    Refused(Vec<Fault>),
    Stopped(EncodeError),
}

fn outcome(encoder: &Encoder, body: &str, budget: &Budget, limits: &Limits) -> Outcome {
    let value = match parse_str(body) {
        Ok(value) => value,
        Err(error) if error.kind == ParseErrorKind::LoneSurrogate => return Outcome::LoneSurrogate,
        Err(error) => return Outcome::Refused(vec![error.into()]),
    };
    let record = match Record::from_value(&value, limits) {
        Ok(record) => record,
        Err(faults) => return Outcome::Refused(faults),
    };
    match encoder.encode(&record, budget) {
        Ok(encoded) => Outcome::Encoded(encoded),
        Err(error) => Outcome::Stopped(error),
    }
}

fn budget_of(golden: &Value, over_length: OverLength) -> Budget {
    Budget {
        max_length: usize::try_from(golden["max_length"].as_u64().unwrap()).unwrap(),
        over_length,
    }
}

/// Compares one golden record; says what differs.
fn compare(encoder: &Encoder, golden: &Value) -> Result<(), String> {
    let budget = budget_of(golden, OverLength::Truncate);
    let found = outcome(
        encoder,
        golden["body"].as_str().unwrap(),
        &budget,
        &Limits::release(),
    );
    match (found, golden["error_type"].as_str()) {
        (Outcome::Encoded(found), None) => compare_encoded(&found, golden),
        (Outcome::Stopped(EncodeError::SchemaTooLong { needed, allowed }), Some("ValueError")) => {
            let wanted =
                format!("schema requires {needed} tokens before state; maximum is {allowed}");
            equal("error", &json!(wanted), &golden["error"])
        }
        (Outcome::LoneSurrogate, Some("TypeError")) => Ok(()),
        (Outcome::Stopped(EncodeError::EmptySpan { .. }), None) if golden["quirk"] == true => {
            Ok(())
        }
        (Outcome::Refused(faults), None) => compare_refusal(&faults, golden),
        (found, error) => Err(format!("the release gives {error:?}, found {found:?}")),
    }
}

fn compare_refusal(faults: &[Fault], golden: &Value) -> Result<(), String> {
    let name = golden["name"].as_str().unwrap();
    let listed = REFUSED.iter().find(|(listed, _)| *listed == name);
    match (faults, listed) {
        ([fault], Some((_, kind))) if fault.kind == *kind => Ok(()),
        (_, None) if golden["quirk"] == true => Ok(()),
        _ => Err(format!("refused: {faults:?}")),
    }
}

fn compare_encoded(found: &Encoded, golden: &Value) -> Result<(), String> {
    equal(
        "truncated",
        &json!(found.truncated),
        &golden["truncated_tokens"],
    )?;
    let value: Value = serde_json::from_str(&found.to_value().to_string()).unwrap();
    equal("input_ids", &value["input_ids"], &golden["input_ids"])?;
    equal("questions", &value["questions"], &golden["questions"])?;
    equal(
        "keys",
        &json!(keys(&value)),
        &json!(["input_ids", "questions"]),
    )?;
    equal(
        "question keys",
        &json!(keys(&value["questions"][0])),
        &json!(keys(&golden["questions"][0])),
    )
}

fn keys(value: &Value) -> Vec<&String> {
    value.as_object().unwrap().keys().collect()
}

fn equal(what: &str, found: &Value, wanted: &Value) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    if let (Some(found), Some(wanted)) = (found.as_array(), wanted.as_array()) {
        let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
        return Err(format!(
            "{what}[{at}]: found {:?} of {}, wanted {:?} of {}",
            found.get(at),
            found.len(),
            wanted.get(at),
            wanted.len()
        ));
    }
    Err(format!("{what}: found {found}, wanted {wanted}"))
}

fn every_record_of(name: &str) {
    let encoder = encoder(name);
    let records = fixtures::jsonl(&format!("golden/encode/{name}.jsonl.gz"));
    let differing: Vec<String> = records
        .iter()
        .filter_map(|golden| {
            let error = compare(&encoder, golden).err()?;
            Some(format!("{} ({}): {error}", golden["name"], golden["why"]))
        })
        .collect();
    assert!(
        differing.is_empty(),
        "{} of {} differ:\n{}",
        differing.len(),
        records.len(),
        differing.join("\n")
    );
    let names: BTreeSet<_> = records
        .iter()
        .map(|golden| golden["name"].as_str().unwrap())
        .collect();
    for (refused, _) in REFUSED {
        assert!(
            names.contains(refused),
            "{refused} is listed but not among the records"
        );
    }
    assert!(records.len() >= 200, "only {} records", records.len());
}

#[test]
fn the_released_tokenizer() {
    every_record_of("clef");
}

#[test]
fn tiny_a() {
    every_record_of("tiny-a");
}

#[test]
fn tiny_b() {
    every_record_of("tiny-b");
}

#[test]
fn tiny_tied() {
    every_record_of("tiny-tied");
}

/// The forms that are taken from clients are some of the release's, and their ids are the same.
#[test]
fn documented_forms_are_refused_or_the_releases() {
    let encoder = encoder("tiny-b");
    let (mut encoded, mut refused) = (0, 0);
    for golden in fixtures::jsonl("golden/encode/tiny-b.jsonl.gz") {
        let budget = budget_of(&golden, OverLength::Truncate);
        match outcome(
            &encoder,
            golden["body"].as_str().unwrap(),
            &budget,
            &Limits::default(),
        ) {
            Outcome::Encoded(found) => {
                assert_eq!(
                    compare_encoded(&found, &golden),
                    Ok(()),
                    "{}",
                    golden["name"]
                );
                encoded += 1;
            }
            Outcome::Refused(_) => refused += 1,
            Outcome::LoneSurrogate | Outcome::Stopped(_) => assert!(golden["error"].is_string()),
        }
    }
    println!("{encoded} encoded, {refused} refused");
    assert!(encoded > 200 && refused > 20);
}

/// A cache of a state's rows relies on this.
#[test]
fn rows_before_the_schema_depend_on_the_state_alone() {
    let encoder = encoder("tiny-b");
    let encode = |questions: &str| {
        let body = format!(r#"{{"state":{{"a":[1,2,"drei"]}},"questions":{questions}}}"#);
        match outcome(&encoder, &body, &Budget::default(), &Limits::default()) {
            Outcome::Encoded(encoded) => encoded,
            other => panic!("{other:?}"),
        }
    };
    let one = encode(r#"{"q":{"type":"noul"}}"#);
    let other = encode(r#"{"r":{"type":"score","criteria":["low","high"]},"s":{"type":"noul"}}"#);
    assert_eq!(one.schema_start, other.schema_start);
    assert_eq!(one.ids[..one.schema_start], other.ids[..one.schema_start]);
    let schema = tokenizer("tiny-b").encode("\n\nSCHEMA FIELDS:\n");
    assert_eq!(one.ids[one.schema_start..][..schema.len()], schema);
}

/// Where nothing may be cut, a record is refused with the count of the whole prompt, or nothing need be cut.
#[test]
fn refusing_counts_the_whole_prompt() {
    let encoder = encoder("tiny-b");
    let mut refused = 0;
    for golden in fixtures::jsonl("golden/encode/tiny-b.jsonl.gz") {
        let Some(truncated) = golden["truncated_tokens"].as_u64() else {
            continue;
        };
        let budget = budget_of(&golden, OverLength::Refuse);
        match outcome(
            &encoder,
            golden["body"].as_str().unwrap(),
            &budget,
            &Limits::default(),
        ) {
            Outcome::Encoded(_) | Outcome::Refused(_) => {
                assert_eq!(truncated, 0, "{}", golden["name"])
            }
            Outcome::Stopped(EncodeError::TooLong { needed, allowed }) => {
                let kept = golden["input_ids"].as_array().unwrap().len();
                assert_eq!(
                    needed,
                    kept + usize::try_from(truncated).unwrap(),
                    "{}",
                    golden["name"]
                );
                assert_eq!(allowed, budget.max_length);
                refused += 1;
            }
            other => panic!("{}: {other:?}", golden["name"]),
        }
    }
    assert!(refused > 10, "only {refused} records were too long");
}

/// A state that is much too long is not counted to its end, and what is kept of it is the same.
#[test]
fn a_state_of_megabytes_is_counted_as_far_as_it_helps() {
    let encoder = encoder("tiny-b");
    let encode = |repeat: usize, over_length| {
        let state = "0123456789 ".repeat(repeat);
        let body = format!(r#"{{"state":"{state}","questions":{{"q":{{"type":"noul"}}}}}}"#);
        let budget = Budget {
            max_length: 1000,
            over_length,
        };
        outcome(&encoder, &body, &budget, &Limits::default())
    };
    // Eleven tokens a repetition.
    let (short, long) = (1000, 400_000);
    let Outcome::Stopped(EncodeError::TooLong { needed, .. }) = encode(long, OverLength::Refuse)
    else {
        panic!()
    };
    assert!((COUNTED_MAX..2 * COUNTED_MAX).contains(&needed), "{needed}");
    let Outcome::Encoded(whole) = encode(short, OverLength::Truncate) else {
        panic!()
    };
    let Outcome::Encoded(stopped) = encode(long, OverLength::Truncate) else {
        panic!()
    };
    assert_eq!(stopped.ids, whole.ids);
    assert!(
        (COUNTED_MAX..2 * COUNTED_MAX).contains(&stopped.truncated),
        "{}",
        stopped.truncated
    );
}

/// The release takes the mean of no rows here and answers NaN.
#[test]
fn a_question_without_words_is_refused_by_name() {
    let encoder = encoder("tiny-b");
    for question in [r#"{"type":"noul"}"#, r#"{"type":"noul","instructions":""}"#] {
        let body =
            format!(r#"{{"state":"x","questions":{{"a":{{"type":"noul"}},"":{question}}}}}"#);
        match outcome(&encoder, &body, &Budget::default(), &Limits::release()) {
            Outcome::Stopped(EncodeError::EmptySpan { question }) => assert_eq!(question, ""),
            other => panic!("{other:?}"),
        }
        let documented = outcome(&encoder, &body, &Budget::default(), &Limits::default());
        assert!(matches!(documented, Outcome::Refused(_)));
    }
    let body = r#"{"state":"x","questions":{"":{"type":"noul","instructions":"?"}}}"#;
    let encoded = outcome(&encoder, body, &Budget::default(), &Limits::release());
    assert!(matches!(encoded, Outcome::Encoded(_)));
}
