//! Whole answers, over the command line and over HTTP, compared with the release's own.

#![allow(clippy::unwrap_used, reason = "a test has no other use for an error")]

mod common;

use std::path::PathBuf;

use descant_decision::Value;
use descant_decision::json::{parse_str, to_json};
use descant_testkit::{Band, fixtures};

use crate::common::{Server, at, repository, run, text};

/// Requests that the release answers and this program refuses: a number that overflows, which the release renders as
/// `Infinity`.
const REFUSED: [&str; 1] = ["numbers_in_options"];

fn release(name: &str) -> String {
    let place: PathBuf = match name {
        "tiny-random" => repository("models/tiny-random"),
        _ => fixtures::release(name),
    };
    place.to_str().unwrap().to_owned()
}

/// The golden requests of a release with the usual limit, without those that are refused.
fn golden(name: &str) -> Vec<serde_json::Value> {
    let all = fixtures::jsonl(&format!("golden/answers/{name}.jsonl.gz"));
    let usual = |golden: &serde_json::Value| {
        golden["max_length"] == 16_384 && !REFUSED.contains(&golden["name"].as_str().unwrap())
    };
    all.into_iter().filter(usual).collect()
}

fn bodies(golden: &[serde_json::Value]) -> Vec<&str> {
    golden
        .iter()
        .map(|golden| golden["body"].as_str().unwrap())
        .collect()
}

/// Whether rounding a value to four places depends on differences that f32 arithmetic in another order may have: the
/// releases' logits agree within 1e-4 and probabilities move by a quarter of that at most, in practice by 1e-6.
fn near_boundary(x: f64) -> bool {
    ((x * 1e4).fract().abs() - 0.5).abs() < 0.1
}

/// Compares two replies: the same keys in the same order, the same text, the same numbers; a number of a question that
/// has a value near a rounding boundary may differ by one unit of the fourth place.
fn compare(golden: &serde_json::Value, reply: &Value) {
    let name = golden["name"].as_str().unwrap();
    let wanted = parse_str(golden["reply"].as_str().unwrap()).unwrap();
    let without_answers = |value: &Value| {
        let keys = value
            .as_object()
            .unwrap()
            .iter()
            .filter(|(key, _)| *key != "answers");
        keys.map(|(key, value)| format!("{key}: {}", to_json(value)))
            .collect::<Vec<_>>()
    };
    assert_eq!(without_answers(reply), without_answers(&wanted), "{name}");
    let entries = |value: &Value| -> Vec<(String, Value)> {
        let answers = at(value, &["answers"]).as_object().unwrap();
        answers
            .iter()
            .map(|(id, answer)| (id.to_owned(), answer.clone()))
            .collect()
    };
    let (found, wanted) = (entries(reply), entries(&wanted));
    assert_eq!(found.len(), wanted.len(), "{name}");
    for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        assert_eq!(found.0, wanted.0, "{name}");
        let p = fixtures::numbers(&golden["probabilities"][index]);
        let score: f64 = p
            .iter()
            .enumerate()
            .map(|(level, p)| level as f64 * p)
            .sum();
        let slack = if p.iter().copied().chain([score]).any(near_boundary) {
            1.01e-4
        } else {
            0.0
        };
        compare_values(&found.1, &wanted.1, slack, &format!("{name}, {}", found.0));
    }
}

fn compare_values(found: &Value, wanted: &Value, slack: f64, place: &str) {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            assert_eq!(found.len(), wanted.len(), "{place}");
            for ((found_key, found), (wanted_key, wanted)) in found.iter().zip(wanted.iter()) {
                assert_eq!(found_key, wanted_key, "{place}");
                // A legend is text of the client, whose numbers are echoed as they were sent.
                let slack = if found_key == "legend" { 0.0 } else { slack };
                compare_values(found, wanted, slack, &format!("{place}, {found_key}"));
            }
        }
        (Value::Array(found), Value::Array(wanted)) => {
            assert_eq!(found.len(), wanted.len(), "{place}");
            for (found, wanted) in found.iter().zip(wanted) {
                compare_values(found, wanted, slack, place);
            }
        }
        (Value::Number(found), Value::Number(wanted)) => {
            let difference = (found.as_f64() - wanted.as_f64()).abs();
            assert!(difference <= slack, "{place}: {found:?}, wanted {wanted:?}");
        }
        _ => assert_eq!(found, wanted, "{place}"),
    }
}

/// The replies of one process that was given all bodies, a line each.
fn command_line_replies(name: &str, bodies: &[&str], more: &[&str]) -> Vec<String> {
    let place = release(name);
    let args = [
        &[
            "decide",
            "--jsonl",
            "--accept",
            "release",
            "-m",
            place.as_str(),
        ],
        more,
    ]
    .concat();
    let output = run(&args, bodies.join("\n").as_bytes());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

/// Logits of whole requests: f32 roundings of the backbone (2e-4 in a hidden value, at most), averaged over spans and
/// read by the head. A wrong row, order or layer gives 0.1 and more.
const LOGITS: Band = Band::absolute(1e-4, "f32 roundings of backbone and head");

/// Compares the unrounded logits of every question, in encoder order, with the release's.
fn check_logits(name: &str, golden: &[serde_json::Value]) {
    let replies = command_line_replies(name, &bodies(golden), &["--raw"]);
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    for (golden, reply) in golden.iter().zip(&replies) {
        let reply: serde_json::Value = serde_json::from_str(reply).unwrap();
        for (index, id) in golden["questions"].as_array().unwrap().iter().enumerate() {
            let raw = &reply["answers"][id.as_str().unwrap()]["raw"];
            assert_eq!(raw["options"], golden["option_ids"][index], "{name}, {id}");
            found.extend(fixtures::numbers(&raw["logits"]));
            wanted.extend(fixtures::numbers(&golden["logits"][index]));
        }
    }
    LOGITS.check(name, found, wanted);
}

#[track_caller]
fn check(name: &str) {
    let golden = golden(name);
    let bodies = bodies(&golden);
    assert!(bodies.len() >= 50 && bodies.iter().all(|body| !body.contains('\n')));
    let replies = command_line_replies(name, &bodies, &[]);
    assert_eq!(replies.len(), golden.len());
    for (golden, reply) in golden.iter().zip(&replies) {
        compare(golden, &parse_str(reply).unwrap());
    }
    check_logits(name, &golden);
    // The same bytes over HTTP, one connection for some of them.
    let server = Server::start(&[&release(name), "--accept", "release", "--any-model"]);
    let mut connection = server.connect();
    for (body, wanted) in bodies.iter().zip(&replies).step_by(3) {
        let reply = connection.ask("POST", "/v1/systemone", "", body.as_bytes());
        assert_eq!(text(&reply.body), wanted);
    }
}

#[test]
fn tiny_random_answers_as_the_release() {
    check("tiny-random");
}

#[test]
fn tiny_a_answers_as_the_release() {
    check("tiny-a");
}

#[test]
fn tiny_b_answers_as_the_release() {
    check("tiny-b");
}

#[test]
fn tiny_tied_answers_as_the_release() {
    check("tiny-tied");
}

#[test]
fn a_cut_state_answers_as_the_release() {
    for name in ["tiny-random", "tiny-a", "tiny-b", "tiny-tied"] {
        let all = fixtures::jsonl(&format!("golden/answers/{name}.jsonl.gz"));
        let cut: Vec<_> = all
            .iter()
            .filter(|golden| golden["max_length"] != 16_384)
            .collect();
        assert!(!cut.is_empty());
        for golden in cut {
            let max_length = golden["max_length"].to_string();
            let place = release(name);
            let body = golden["body"].as_str().unwrap().as_bytes();
            let args = [
                "decide",
                "-m",
                &place,
                "--accept",
                "release",
                "--max-length",
                &max_length,
            ];
            let output = run(&[&args[..], &["--over-length", "truncate"]].concat(), body);
            assert!(output.status.success(), "{}", text(&output.stderr));
            compare(golden, &parse_str(text(&output.stdout)).unwrap());
            let was_cut = text(&output.stderr).contains("tokens were cut from the end");
            let refused = run(&args, body);
            assert_eq!(
                was_cut,
                refused.status.code() == Some(1),
                "{}",
                text(&refused.stderr)
            );
        }
    }
}

#[test]
fn threads_do_not_change_a_byte() {
    let golden = golden("tiny-b");
    let bodies = &bodies(&golden)[..12];
    let one = command_line_replies("tiny-b", bodies, &["--threads", "1", "--raw"]);
    for threads in ["2", "5"] {
        assert_eq!(
            command_line_replies("tiny-b", bodies, &["--threads", threads, "--raw"]),
            one
        );
    }
}
