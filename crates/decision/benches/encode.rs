//! From a request's text to token ids and spans: `cargo bench -p descant-decision --bench encode`.
//!
//! A line reads: tokens, bytes of the body, the median, least and greatest time of reading the JSON, checking the record
//! and encoding it with the released tokenizer on one thread, and tokens a second. With `--test`, or without the `--bench`
//! that cargo gives, one run of the shortest.
#![allow(clippy::print_stdout, reason = "a bench reports on stdout")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use descant_decision::json::parse_str;
use descant_decision::{Budget, Encoded, Encoder, Limits, OverLength, Record};
use descant_release::Tokenizer;
use descant_testkit::fixtures;
use serde_json::{Value, json};

/// What the bodies' states are cut from: prose, names and numbers of a support ticket.
const TICKET: &str = include_str!("../../../examples/ticket.json");

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let small = args.iter().any(|arg| arg == "--test") || !args.iter().any(|arg| arg == "--bench");
    let bytes = fixtures::bytes("tokenizer/clef_tokenizer.json.gz");
    let tokenizer =
        Tokenizer::from_bytes(Path::new("tokenizer.json"), &bytes).expect("the fixture");
    let encoder = Encoder::new(Arc::new(tokenizer));
    let sizes: &[usize] = if small { &[1] } else { &[1, 4, 16, 64] };
    for kilobytes in sizes {
        let body = body(kilobytes * 1000);
        let tokens = encode(&encoder, &body).ids.len();
        let (begun, mut times) = (Instant::now(), Vec::new());
        while times.is_empty() || !small && (times.len() < 5 || begun.elapsed().as_secs_f64() < 1.0)
        {
            let start = Instant::now();
            let again = encode(&encoder, &body);
            times.push(start.elapsed().as_secs_f64());
            assert_eq!(again.ids.len(), tokens, "one text, one encoding");
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        println!(
            "encode {tokens} tokens, {} bytes: {:.3} ms ({:.3}–{:.3}, {}) {:.0} tokens/s",
            body.len(),
            median * 1e3,
            times[0] * 1e3,
            times[times.len() - 1] * 1e3,
            times.len(),
            tokens as f64 / median
        );
    }
}

/// The ticket's questions about a state of so many bytes. Its lines differ by their numbers alone, so that each word was met
/// before; what other texts cost, `words` of descant-release tells.
fn body(bytes: usize) -> String {
    let ticket: Value = serde_json::from_str(TICKET).expect("the example");
    let text = ticket["state"].to_string();
    let mut state = String::new();
    for turn in 0.. {
        state.push_str(&format!("{turn}. {text}\n"));
        if state.len() >= bytes {
            break;
        }
    }
    let mut end = bytes;
    while !state.is_char_boundary(end) {
        end -= 1;
    }
    json!({"state": &state[..end], "questions": ticket["questions"]}).to_string()
}

fn encode(encoder: &Encoder, body: &str) -> Encoded {
    let value = parse_str(body).expect("JSON");
    let record = Record::from_value(&value, &Limits::default()).expect("a record");
    let budget = Budget {
        max_length: 65_536,
        over_length: OverLength::Refuse,
    };
    encoder.encode(&record, &budget).expect("it fits")
}
