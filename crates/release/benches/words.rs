//! Token ids of texts of all kinds, here and by the tokenizers library alone: `cargo bench -p descant-release --bench words`.
//!
//! A line reads: the text, its tokens, the median time and that of the first run, here and by the library on segments of some
//! 4 KiB, one thread. Both remember words, so that a first run is one of words that were not met before. The texts that never
//! repeat a word are what somebody would send to slow a server down. With `--test`, or without the `--bench` that cargo gives, short texts once.
#![allow(clippy::print_stdout, reason = "a bench reports on stdout")]

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use descant_decision::Tokenize as _;
use descant_release::Tokenizer;
use descant_testkit::fixtures;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let small = args.iter().any(|arg| arg == "--test") || !args.iter().any(|arg| arg == "--bench");
    let bytes = if small { 6_000 } else { 100_000 };
    let runs = if small { 1 } else { 9 };
    let json = fixtures::bytes("tokenizer/clef_tokenizer.json.gz");
    let open = || Tokenizer::from_bytes(Path::new("tokenizer.json"), &json).expect("the fixture");
    let library = tokenizers::Tokenizer::from_bytes(&json).expect("the fixture");
    let ours = open();
    for (name, text) in texts(bytes) {
        let segments = segments(&text);
        let here = times(runs, || ours.encode(&text));
        let whole = || {
            segments
                .iter()
                .flat_map(|part| library_ids(&library, part))
                .collect()
        };
        let there = times(runs, whole);
        assert_eq!(here.ids, there.ids, "{name}");
        println!(
            "{name}: {} bytes, {} tokens: {:.3} ms, first {:.3}; library {:.3} ms, first {:.3}",
            text.len(),
            here.ids.len(),
            here.median * 1e3,
            here.first * 1e3,
            there.median * 1e3,
            there.first * 1e3
        );
    }
}

fn library_ids(library: &tokenizers::Tokenizer, text: &str) -> Vec<u32> {
    let encoding = library
        .encode_fast(text, false)
        .expect("it refuses no text");
    encoding.get_ids().to_vec()
}

/// The text cut behind line feeds before letters, where no id depends on a cut.
fn segments(text: &str) -> Vec<&str> {
    let (mut segments, mut rest) = (Vec::new(), text);
    while let Some(at) = (4096..rest.len())
        .find(|&at| rest.as_bytes()[at - 1] == b'\n' && rest.as_bytes()[at].is_ascii_alphanumeric())
    {
        let (segment, behind) = rest.split_at(at);
        segments.push(segment);
        rest = behind;
    }
    segments.push(rest);
    segments
}

/// Seconds that some runs took, and what they gave.
struct Times {
    first: f64,
    median: f64,
    ids: Vec<u32>,
}

fn times(runs: usize, mut run: impl FnMut() -> Vec<u32>) -> Times {
    let mut once = || {
        let start = Instant::now();
        let ids = run();
        (start.elapsed().as_secs_f64(), ids)
    };
    let (first, ids) = once();
    let mut times = vec![first];
    times.extend((1..runs).map(|_| once().0));
    times.sort_by(f64::total_cmp);
    Times {
        first,
        median: times[times.len() / 2],
        ids,
    }
}

/// Texts of about so many bytes.
fn texts(bytes: usize) -> Vec<(&'static str, String)> {
    let fill = |line: &str| line.repeat(bytes / line.len() + 1);
    let record = fixtures::jsonl("golden/encode/clef.jsonl.gz");
    let mut golden = String::new();
    for body in record.iter().filter_map(|record| record["body"].as_str()) {
        golden.push_str(body);
        golden.push('\n');
        if golden.len() >= bytes {
            break;
        }
    }
    vec![
        ("golden bodies", golden),
        ("code", fill(include_str!("../src/words.rs"))),
        (
            "French",
            fill(
                "L’hôtel n’a pas été réservé : le client s’est plaint auprès de la direction, qui a remboursé.\n",
            ),
        ),
        ("Chinese", fill("用户说他的卡被扣了两次款，请尽快退款。\n")),
        (
            "English, curly quotes",
            fill(
                "He said “it doesn’t work”, and I haven’t seen it work since the last update – not once.\n",
            ),
        ),
        (
            "chat",
            fill(
                "<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\nNothing at all.<|im_end|>\n",
            ),
        ),
        (
            "words that never repeat",
            random_words(bytes, 8, 30, b"abcdefghijklmnopqrstuvwxyz"),
        ),
        (
            "short words that never repeat",
            random_words(bytes, 5, 8, b"abcdefghijklmnopqrstuvwxyz"),
        ),
        (
            "symbols that never repeat",
            random_words(bytes, 8, 30, b"<|>/!?#&%.,;:-_+*"),
        ),
        ("one word", "abcdefghij".repeat(bytes / 10)),
        ("one letter", "a".repeat(bytes)),
        ("blanks", " ".repeat(bytes)),
        ("line feeds", "\n".repeat(bytes)),
        ("line feeds and blanks", " \n\t \n".repeat(bytes / 5)),
        ("digits", "7".repeat(bytes)),
        ("one symbol", "<".repeat(bytes)),
        (
            "beginnings of added tokens",
            "<|im_star ".repeat(bytes / 10),
        ),
        ("begun added tokens", "<|".repeat(bytes / 2)),
        ("a quote a letter", "'a".repeat(bytes / 2)),
        (
            "a letter beyond ASCII now and then",
            format!("{}é", "a, ".repeat(20)).repeat(bytes / 62),
        ),
    ]
}

/// Words of letters drawn from a fixed sequence, a line every 60 of them.
fn random_words(bytes: usize, least: usize, most: usize, letters: &[u8]) -> String {
    let mut seed = 1_u64;
    let mut draw = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut text = String::new();
    for number in 1.. {
        for _ in 0..least + draw(most - least) {
            text.push(char::from(letters[draw(letters.len())]));
        }
        text.write_str(if number % 60 == 0 { "\n" } else { " " })
            .expect("a string takes all");
        if text.len() >= bytes {
            break;
        }
    }
    text
}
