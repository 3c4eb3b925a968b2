//! The commands that take many records, as processes, on the tiny random release.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::parse;
use tempfile::TempDir;

use crate::common::{Server, at, descant, repository, run, text};

fn model() -> String {
    repository("models/tiny-random").display().to_string()
}

/// A labelled record; its state has `words` words.
fn record(number: usize, words: usize) -> String {
    let state = "lamp stair window ".repeat(words / 3) + &number.to_string();
    let (broken, harm) = (number.is_multiple_of(2), number % 3);
    format!(
        r#"{{"state": "{state}", "questions": {{"broken": {{"type": "noul"}}, "room": {{"type": "choice", "criteria": {{"attic": null, "hall": null}}}}, "harm": {{"type": "score", "criteria": ["none", "some", "much"]}}}}, "expected": {{"broken": {broken}, "room": "hall", "harm": {harm}}}}}"#
    )
}

/// Records of many lengths, among them a blank line and two that are refused.
fn records(count: usize) -> String {
    let line = |number: usize| match number % 31 {
        7 => "{\"state\": 1}\n".to_owned(),
        8 => "\nno JSON\n".to_owned(),
        _ => record(number, number * 37 % 150) + "\n",
    };
    (0..count).map(line).collect()
}

fn labelled(count: usize) -> String {
    (0..count)
        .map(|number| record(number, number * 37 % 150) + "\n")
        .collect()
}

struct Place {
    directory: TempDir,
}

impl Place {
    fn with(records: &str) -> Place {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("in.jsonl"), records).unwrap();
        Place { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn batch(&self, out: &str, more: &[&str]) -> Output {
        let (input, out, model) = (self.name("in.jsonl"), self.name(out), model());
        run(
            &[
                &[
                    "batch",
                    &*input,
                    "-o",
                    &*out,
                    "-m",
                    &*model,
                    "--max-length",
                    "2048",
                ],
                more,
            ]
            .concat(),
            b"",
        )
    }
}

#[track_caller]
fn check_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
}

/// Kills a run once `path` has some bytes more than it had; whether it was still at work.
fn killed(args: &[&str], path: &Path, more: u64) -> bool {
    let bytes = || fs::metadata(path).map_or(0, |file| file.len());
    let (start, clock) = (bytes(), Instant::now());
    let mut child = descant(args).spawn().unwrap();
    while bytes() < start + more && child.try_wait().unwrap().is_none() {
        assert!(clock.elapsed() < Duration::from_secs(60), "no progress");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    !child.wait().unwrap().success()
}

#[test]
fn a_batch_killed_ten_times_is_the_batch_of_one_run() {
    let place = Place::with(&records(300));
    check_code(&place.batch("whole.jsonl", &[]), 0);
    let (input, out, model) = (place.name("in.jsonl"), place.name("out.jsonl"), model());
    let args = [
        "batch",
        &*input,
        "-o",
        &*out,
        "-m",
        &*model,
        "--max-length",
        "2048",
    ];
    let mut kills = 0;
    for round in 0..10_u64 {
        kills += u32::from(killed(
            &args,
            &place.path("out.jsonl"),
            1 + round * 2741 % 6000,
        ));
        if round % 3 == 0 {
            // A line that was being written, as a kill at the worst moment leaves it.
            let mut bytes = fs::read(place.path("out.jsonl")).unwrap();
            bytes.extend_from_slice(b"{\"model\": \"tiny");
            fs::write(place.path("out.jsonl"), bytes).unwrap();
        }
    }
    assert_eq!(
        kills, 10,
        "the batch was done before it was killed ten times"
    );
    check_code(&place.batch("out.jsonl", &[]), 0);
    let (whole, out) = (
        fs::read(place.path("whole.jsonl")).unwrap(),
        fs::read(place.path("out.jsonl")).unwrap(),
    );
    assert!(whole == out, "the outputs differ");
    let lines = text(&whole).lines().count();
    assert_eq!(
        lines,
        text(records(300).as_bytes())
            .lines()
            .filter(|line| !line.is_empty())
            .count()
    );
}

#[test]
fn a_batch_says_what_decide_says() {
    let place = Place::with(&records(20));
    check_code(&place.batch("out.jsonl", &["--raw"]), 0);
    let input = fs::read(place.path("in.jsonl")).unwrap();
    let decided = run(
        &[
            "decide",
            "--jsonl",
            "--raw",
            "-m",
            &model(),
            "--max-length",
            "2048",
        ],
        &input,
    );
    assert_eq!(
        text(&decided.stdout),
        text(&fs::read(place.path("out.jsonl")).unwrap())
    );
    let piped = run(
        &[
            "batch",
            "-",
            "-o",
            "-",
            "--raw",
            "-m",
            &model(),
            "--max-length",
            "2048",
        ],
        &input,
    );
    assert_eq!(text(&decided.stdout), text(&piped.stdout));
}

#[test]
fn shards_one_after_the_other_are_the_whole() {
    let place = Place::with(&records(20));
    check_code(&place.batch("whole.jsonl", &[]), 0);
    let mut joined = Vec::new();
    for index in 0..3 {
        let (shard, out) = (format!("{index}/3"), format!("{index}.jsonl"));
        check_code(&place.batch(&out, &["--shard", &shard]), 0);
        joined.extend(fs::read(place.path(&out)).unwrap());
    }
    assert_eq!(
        text(&joined),
        text(&fs::read(place.path("whole.jsonl")).unwrap())
    );
}

/// A file of `fixtures/parquet`.
fn parquet(name: &str) -> String {
    repository(&format!("fixtures/parquet/{name}"))
        .display()
        .to_string()
}

/// The replies of a batch, standard output.
#[track_caller]
fn answered(input: &str) -> String {
    let output = run(
        &[
            "batch",
            input,
            "-o",
            "-",
            "-m",
            &model(),
            "--max-length",
            "2048",
        ],
        b"",
    );
    check_code(&output, 0);
    text(&output.stdout).to_owned()
}

#[test]
fn rows_are_answered_as_the_lines_that_they_stand_for() {
    for (name, refused) in [
        ("requests-snappy", 36),
        ("parts-zstd", 1),
        ("parts-gzip", 0),
    ] {
        let rows = answered(&parquet(&format!("{name}.parquet")));
        let lines = answered(&parquet(&format!("{name}.jsonl.gz")));
        assert!(rows == lines, "{name}: the outputs differ");
        let errors = rows.lines().filter(|line| line.starts_with("{\"error\""));
        assert_eq!(errors.count(), refused, "{name}");
    }
}

#[test]
fn a_batch_of_rows_is_continued_and_sharded() {
    let (place, input) = (Place::with(""), parquet("requests-snappy.parquet"));
    let whole = answered(&input);
    let (out, model) = (place.name("out.jsonl"), model());
    let args = [
        "batch",
        &*input,
        "-o",
        &*out,
        "-m",
        &*model,
        "--max-length",
        "2048",
    ];
    for more in [1, 20_000, 9000] {
        assert!(
            killed(&args, &place.path("out.jsonl"), more),
            "it was done before it was killed"
        );
    }
    check_code(&run(&args, b""), 0);
    assert!(
        text(&fs::read(place.path("out.jsonl")).unwrap()) == whole,
        "the outputs differ"
    );
    let mut joined = String::new();
    for shard in ["0/3", "1/3", "2/3"] {
        let part = place.name(&shard.replace('/', "-"));
        let args = [
            "batch",
            &*input,
            "-o",
            &*part,
            "--shard",
            shard,
            "-m",
            &*model,
            "--max-length",
            "2048",
        ];
        check_code(&run(&args, b""), 0);
        joined += &fs::read_to_string(&part).unwrap();
    }
    assert!(joined == whole, "the parts are not the whole");
}

#[test]
fn rows_that_are_wrong_say_so_in_their_place() {
    let param = |line: &str| -> Option<String> {
        let reply = parse(line.as_bytes()).unwrap();
        let param = reply.get("error")?.get("param")?.as_str();
        param.map(str::to_owned)
    };
    let params = |name: &str| -> Vec<Option<String>> {
        answered(&parquet(name)).lines().map(param).collect()
    };
    let some = |name: &str| Some(name.to_owned());
    assert_eq!(
        params("wrong-rows.parquet"),
        [None, some("state"), some("questions"), None]
    );
    assert_eq!(params("wrong-text.parquet"), [None, some("state")]);
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let check = |input: &str, wanted: &str| {
        let output = run(&["batch", input, "-o", "-", "-m", &model()], b"");
        check_code(&output, 1);
        let said = text(&output.stderr);
        assert!(said.contains(input) && said.contains(wanted), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    check(&parquet("wrong-codec.parquet"), "brotli");
    check(&parquet("wrong-columns.parquet"), "prompt, questions");
    check(&parquet("wrong-nested.parquet"), "column state");
    check(&parquet("wrong-both.parquet"), "state_json");

    let place = Place::with("");
    let good = fs::read(parquet("requests-snappy.parquet")).unwrap();
    let damaged = |name: &str, bytes: &[u8], wanted: &str| {
        fs::write(place.path(name), bytes).unwrap();
        check(&place.name(name), wanted);
    };
    damaged("empty.parquet", b"", "Parquet");
    damaged("text.parquet", b"{\"state\": 1}\n", "Parquet");
    damaged("cut.parquet", &good[..good.len() / 2], "Parquet");
    damaged("named_otherwise", &good[..good.len() - 5], "Parquet");
    // The first page of the states overwritten: the footer is good, the rows are not.
    let mut torn = fs::read(parquet("parts-zstd.parquet")).unwrap();
    torn[40..400].fill(0xa5);
    damaged("torn.parquet", &torn, "Parquet");
    let output = run(&["decide", &parquet("wrong-rows.parquet")], b"");
    check_code(&output, 1);
    assert!(text(&output.stderr).contains("descant batch"));
}

#[test]
fn a_packed_batch_is_the_batch_of_what_is_packed() {
    let place = Place::with(&records(20));
    check_code(&place.batch("out.jsonl", &[]), 0);
    let packed = place.path("in.jsonl.gz");
    let mut encoder = flate2::write::GzEncoder::new(
        fs::File::create(&packed).unwrap(),
        flate2::Compression::default(),
    );
    std::io::Write::write_all(&mut encoder, records(20).as_bytes()).unwrap();
    encoder.finish().unwrap();
    let (input, out, model) = (
        packed.display().to_string(),
        place.name("packed.jsonl"),
        model(),
    );
    let args = [
        "batch",
        &*input,
        "-o",
        &*out,
        "-m",
        &*model,
        "--max-length",
        "2048",
    ];
    check_code(&run(&args, b""), 0);
    assert!(fs::read(place.path("out.jsonl")).unwrap() == fs::read(&out).unwrap());
}

#[test]
fn an_output_of_something_else_is_not_continued() {
    let place = Place::with(&records(4));
    fs::write(place.path("foreign.jsonl"), "{}\n").unwrap();
    check_code(&place.batch("foreign.jsonl", &[]), 1);
    assert_eq!(fs::read(place.path("foreign.jsonl")).unwrap(), b"{}\n");

    check_code(&place.batch("out.jsonl", &[]), 0);
    check_code(&place.batch("out.jsonl", &["--raw"]), 1);
    let kept = fs::read(place.path("out.jsonl")).unwrap();
    fs::write(place.path("in.jsonl"), records(5)).unwrap();
    let refused = place.batch("out.jsonl", &[]);
    check_code(&refused, 1);
    assert!(
        text(&refused.stderr).contains("another input"),
        "{}",
        text(&refused.stderr)
    );
    assert_eq!(fs::read(place.path("out.jsonl")).unwrap(), kept);
}

#[test]
fn an_evaluation_killed_on_its_way_is_that_of_one_run() {
    let place = Place::with(&labelled(150));
    let (input, model) = (place.name("in.jsonl"), model());
    let args = |results: &str| {
        let results = place.name(results);
        [
            "eval",
            &*input,
            "-m",
            &*model,
            "--max-length",
            "2048",
            "--json",
            "--results",
            &*results,
        ]
        .map(str::to_owned)
    };
    let whole = args("whole.jsonl");
    let whole = run(&whole.each_ref().map(|arg| &**arg), b"");
    check_code(&whole, 0);
    let parts = args("parts.jsonl");
    let parts = parts.each_ref().map(|arg| &**arg);
    for more in [1, 5000, 9000] {
        assert!(
            killed(&parts, &place.path("parts.jsonl"), more),
            "it was done before it was killed"
        );
    }
    let last = run(&parts, b"");
    check_code(&last, 0);
    assert_eq!(text(&whole.stdout), text(&last.stdout));
    let results = |name| fs::read(place.path(name)).unwrap();
    assert!(
        results("whole.jsonl") == results("parts.jsonl"),
        "the results differ"
    );

    fs::write(place.path("in.jsonl"), labelled(151)).unwrap();
    check_code(&run(&parts, b""), 1);
}

#[test]
fn an_evaluation_counts_every_label() {
    let place = Place::with(&labelled(12));
    let (input, page) = (place.name("in.jsonl"), place.name("page.html"));
    let output = run(
        &[
            "eval",
            &input,
            "-m",
            &model(),
            "--json",
            "--report",
            &page,
            "--max-length",
            "2048",
        ],
        b"",
    );
    check_code(&output, 0);
    let figures = parse(&output.stdout).unwrap();
    let rows = at(&figures, &["rows"]).as_array().unwrap();
    let row = |name: &str| {
        rows.iter()
            .find(|row| row.get("name").and_then(Value::as_str) == Some(name))
            .unwrap()
    };
    for (name, cases) in [("all", 36), ("noul", 12), ("harm", 12)] {
        assert_eq!(
            at(row(name), &["cases"]).as_number().unwrap().as_u64(),
            Some(cases)
        );
    }
    assert!(
        at(row("room"), &["score_mae"]).is_null() && !at(row("harm"), &["score_mae"]).is_null()
    );
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(!page.contains("http"), "the page needs something else");
}

#[test]
fn a_label_that_fits_no_option_stops_an_evaluation() {
    let place = Place::with(
        &(record(0, 3) + "\n" + &record(1, 3).replace("\"hall\", \"harm\"", "\"roof\", \"harm\"")),
    );
    let output = run(&["eval", &place.name("in.jsonl"), "-m", &model()], b"");
    check_code(&output, 1);
    let said = text(&output.stderr);
    assert!(
        said.contains("line 2") && said.contains("expected.room") && said.contains("roof"),
        "{said}"
    );
}

#[test]
fn a_comparison_ends_as_its_limits_say() {
    let place = Place::with(&labelled(6));
    let (input, model) = (place.name("in.jsonl"), model());
    check_code(&place.batch("raw.jsonl", &["--raw"]), 0);
    check_code(&place.batch("printed.jsonl", &[]), 0);
    let compare = |b: &str, more: &[&str]| {
        run(
            &[
                &[
                    "compare",
                    &*model,
                    b,
                    "--records",
                    &*input,
                    "--max-length",
                    "2048",
                ],
                more,
            ]
            .concat(),
            b"",
        )
    };
    let raw = place.name("raw.jsonl");
    let strict = ["--max-kl", "0", "--max-kl-worst", "0", "--min-top", "1"];
    check_code(&compare(&raw, &strict), 0);
    check_code(&compare(&model, &strict), 0);
    let printed = place.name("printed.jsonl");
    check_code(&compare(&printed, &["--max-kl", "1e-6"]), 0);

    // Logits that are moved: the answers are others.
    let moved = fs::read_to_string(&raw)
        .unwrap()
        .replace("\"logits\":[", "\"logits\":[4.0e0,");
    let moved: String = moved
        .lines()
        .map(|line| drop_last_logits(line) + "\n")
        .collect();
    fs::write(place.path("moved.jsonl"), moved).unwrap();
    let moved = place.name("moved.jsonl");
    check_code(&compare(&moved, &[]), 0);
    for limit in [
        ["--max-kl", "0.01"],
        ["--max-kl-worst", "0.01"],
        ["--min-top", "1"],
    ] {
        let output = compare(&moved, &limit);
        check_code(&output, 1);
        assert!(
            text(&output.stdout).contains("largest KL"),
            "the figures are printed all the same"
        );
    }

    let other = fs::read_to_string(&raw)
        .unwrap()
        .replacen("\"room\":", "\"floor\":", 1);
    fs::write(place.path("other.jsonl"), other).unwrap();
    let output = compare(&place.name("other.jsonl"), &[]);
    check_code(&output, 1);
    assert!(
        text(&output.stderr).contains("line 1"),
        "{}",
        text(&output.stderr)
    );
    let short: String = fs::read_to_string(&raw)
        .unwrap()
        .lines()
        .take(5)
        .map(|line| line.to_owned() + "\n")
        .collect();
    fs::write(place.path("short.jsonl"), short).unwrap();
    check_code(&compare(&place.name("short.jsonl"), &[]), 1);
}

/// Drops the last number of each list of logits.
fn drop_last_logits(line: &str) -> String {
    let mut parts = line.split("\"logits\":[");
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let (numbers, rest) = part.split_once(']').unwrap();
        let kept = numbers.rsplit_once(',').unwrap().0;
        out += &format!("\"logits\":[{kept}]{rest}");
    }
    out
}

#[test]
fn a_server_says_what_the_command_line_says() {
    let place = Place::with(&labelled(10));
    let server = Server::start(&[&model(), "--any-model", "--max-length", "2048"]);
    let url = format!("http://{}", server.address);
    let input = place.name("in.jsonl");
    let args = [
        "compare",
        &url,
        &model(),
        "--records",
        &input,
        "--max-length",
        "2048",
        "--max-kl-worst",
        "0",
    ];
    check_code(&run(&args, b""), 0);
}
