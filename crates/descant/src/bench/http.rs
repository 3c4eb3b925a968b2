//! `descant bench http`: how fast a server is, and whether its answers stay the same while it is pressed.

mod chat;
mod client;
mod kill;
mod levels;
mod requests;
mod soak;
mod times;
mod watch;

use descant_decision::Value;
use descant_decision::json::{Object, to_json};

use self::client::Client;
use self::levels::{Class, Level};
use self::requests::{Sizer, mixed_lengths};
use crate::args::{BenchHttp, BenchPart};
use crate::failure::Failure;
use crate::meter::Meter;
use crate::output::Output;
use crate::samples::Seeded;

/// What must not be: answers that differ, requests without a proper reply, and whatever else a measurement finds.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    unequal: usize,
    failed: usize,
    broken: bool,
    /// The first of them, in words.
    notes: Vec<String>,
}

/// What is printed.
#[derive(Default)]
struct Report {
    lines: Vec<String>,
    value: Object,
}

pub(crate) fn run(args: &BenchHttp) -> Result<(), Failure> {
    let client = Client::new(&args.url)?;
    let mut report = Report::default();
    let mut verdict = Verdict::default();
    report.put("url", args.url.as_str(), Vec::new());
    match (args.soak, args.kill) {
        (Some(_), _) => soak(args, &client, &mut report, &mut verdict)?,
        (None, Some(clients)) => kill(args, &client, clients, &mut report, &mut verdict)?,
        (None, None) => measure(args, &client, &mut report, &mut verdict)?,
    }
    report.print(args.json, &verdict)?;
    verdict.into_result()
}

/// The parts that `--only` names, in the order of the help.
fn measure(
    args: &BenchHttp,
    client: &Client,
    report: &mut Report,
    verdict: &mut Verdict,
) -> Result<(), Failure> {
    let sizer = Sizer::calibrate(client, args.seed, args.longest)?;
    let wants = |part| args.only.contains(&part);
    if wants(BenchPart::Latency) {
        let classes = latency(args, client, sizer, verdict);
        let lines = classes.iter().map(Class::line);
        let values: Value = classes.iter().map(Class::value).collect();
        report.put(
            "latency",
            values,
            [Class::head()].into_iter().chain(lines).collect(),
        );
    }
    if wants(BenchPart::Levels) {
        let levels = levels(args, client, sizer, verdict)?;
        let mut lines = vec![Level::head()];
        lines.extend(levels.iter().map(Level::line));
        if let Some((first, others)) = levels.split_first() {
            lines.extend(others.iter().map(|level| level.against(first)));
        }
        let values: Value = levels.iter().map(Level::value).collect();
        report.put("levels", values, lines);
    }
    if wants(BenchPart::Chat) {
        let length = if args.quick { 4000 } else { args.longest }.min(args.longest);
        let request = |index, length| sizer.request(seed(args, Part::Chat, index), length);
        let long = [request(1, length), request(2, length)];
        match chat::gaps(client, &long) {
            Err(fault) => verdict.failed(fault),
            Ok(Some(gaps)) => report.put("chat", gaps.value(), gaps.lines()),
            Ok(None) => report.put(
                "chat",
                Value::Null,
                vec!["the server has no /v1/chat/completions".to_owned()],
            ),
        }
    }
    Ok(())
}

/// Some requests of each class of length, longest class last, as far as the longest request goes.
fn latency(args: &BenchHttp, client: &Client, sizer: Sizer, verdict: &mut Verdict) -> Vec<Class> {
    let each = if args.quick { 4 } else { 12 };
    let mut random = Seeded::new(5);
    let mut requests = Vec::new();
    for (least, most) in CLASSES {
        let least = least.max(sizer.least());
        let most = most.min(args.longest);
        for _ in 0..each {
            if least < most {
                let length = least + random.below(most - least);
                let seed = seed(args, Part::Latency, requests.len());
                requests.push(sizer.request(seed, length));
            }
        }
    }
    let meter = Meter::of("requests", 0, Some(requests.len() as u64));
    levels::classes(client, &requests, &meter, verdict)
}

fn levels(
    args: &BenchHttp,
    client: &Client,
    sizer: Sizer,
    verdict: &mut Verdict,
) -> Result<Vec<Level>, Failure> {
    let count = args.requests.unwrap_or(if args.quick { 64 } else { 128 });
    let longest = if args.quick { 2500 } else { 9500 }.min(args.longest);
    let lengths = mixed_lengths(count, longest);
    let given = args.records.as_deref().map(requests::of_file).transpose()?;
    let each = given.as_ref().map_or(lengths.len(), Vec::len);
    let count = args.levels.len() * args.turns;
    let meter = Meter::of("requests", 0, Some((2 * each * count) as u64));
    let mut found: Vec<Level> = Vec::new();
    for turn in 0..count {
        let index = turn % args.levels.len();
        let clients = args.levels[index];
        let made = || {
            let seed = |at| seed(args, Part::Level(turn), at);
            let pairs = lengths.iter().enumerate();
            pairs
                .map(|(at, &length)| sizer.request(seed(at), length))
                .collect()
        };
        let requests = given.clone().unwrap_or_else(made);
        let level = levels::level(client, &requests, clients, &meter, verdict);
        match found.get_mut(index) {
            Some(first) => first.add(level),
            None => found.push(level),
        }
    }
    Ok(found)
}

fn soak(
    args: &BenchHttp,
    client: &Client,
    report: &mut Report,
    verdict: &mut Verdict,
) -> Result<(), Failure> {
    let requests = match args.records.as_deref() {
        Some(file) => requests::of_file(file)?,
        None => {
            let sizer = Sizer::calibrate(client, args.seed, args.longest)?;
            let longest = if args.quick { 1000 } else { 4000 }.min(args.longest);
            let lengths = mixed_lengths(args.requests.unwrap_or(64), longest);
            let pairs = lengths.iter().enumerate();
            pairs
                .map(|(at, &length)| sizer.request(seed(args, Part::Soak, at), length))
                .collect()
        }
    };
    let time = args.soak.unwrap_or_default();
    let soak = soak::soak(client, &requests, (args.level, time), args.pid, verdict);
    report.put("soak", soak.value(), soak.lines());
    Ok(())
}

fn kill(
    args: &BenchHttp,
    client: &Client,
    clients: usize,
    report: &mut Report,
    verdict: &mut Verdict,
) -> Result<(), Failure> {
    let sizer = Sizer::calibrate(client, args.seed, args.longest)?;
    let length = if args.quick { 4000 } else { args.longest }.min(args.longest);
    let longs: Vec<String> = (0..=clients)
        .map(|at| sizer.request(seed(args, Part::Kill, at), length))
        .collect();
    let short = sizer.request(seed(args, Part::Kill, clients + 1), sizer.least() + 40);
    let kill = kill::kill(client, (&longs, &short), args.pid, verdict);
    let kill = kill.map_err(|fault| client.failure(fault))?;
    report.put("kill", kill.value(), kill.lines());
    Ok(())
}

/// Whose requests a seed is for; no two share one.
#[derive(Clone, Copy)]
enum Part {
    Chat,
    Kill,
    Latency,
    Level(usize),
    Soak,
}

fn seed(args: &BenchHttp, part: Part, index: usize) -> u64 {
    let part = match part {
        Part::Chat => 0,
        Part::Kill => 1,
        Part::Latency => 2,
        Part::Soak => 3,
        Part::Level(level) => 4 + level as u64,
    };
    (args.seed << 32).wrapping_add((part << 20) + index as u64)
}

impl Report {
    fn put(&mut self, key: &str, value: impl Into<Value>, lines: Vec<String>) {
        self.value.insert(key, value);
        if !lines.is_empty() && !self.lines.is_empty() {
            self.lines.push(String::new());
        }
        self.lines.extend(lines);
    }

    fn print(mut self, as_json: bool, verdict: &Verdict) -> Result<(), Failure> {
        let mut output = Output::open();
        if as_json {
            self.value.insert("unequal", verdict.unequal);
            self.value.insert("failed", verdict.failed);
            let notes: Value = verdict.notes.iter().map(String::as_str).collect();
            self.value.insert("notes", notes);
            return output.line(&to_json(&self.value.into()));
        }
        self.lines
            .extend(verdict.notes.iter().map(|note| format!("! {note}")));
        self.lines.push(format!(
            "{} unequal, {} failed",
            verdict.unequal, verdict.failed
        ));
        output.line(&self.lines.join("\n"))
    }
}

impl Verdict {
    /// Counts an answer in company that is another than alone.
    fn unequal(&mut self, what: &str) {
        self.count(1, 0);
        self.note(format!("{what}: another answer than alone"));
    }

    /// Counts a request without a proper reply.
    fn failed(&mut self, what: String) {
        self.count(0, 1);
        self.note(what);
    }

    fn count(&mut self, unequal: usize, failed: usize) {
        self.unequal += unequal;
        self.failed += failed;
    }

    /// Says that something else is wrong, which a note names.
    fn broken(&mut self) {
        self.broken = true;
    }

    fn note(&mut self, what: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(what);
        }
    }

    fn is_good(&self) -> bool {
        self.unequal == 0 && self.failed == 0 && !self.broken
    }

    fn into_result(self) -> Result<(), Failure> {
        match self.is_good() {
            true => Ok(()),
            false => Err(Failure::Measured {
                unequal: self.unequal,
                failed: self.failed,
                broken: self.broken,
            }),
        }
    }
}

/// Lengths of the classes' prompts, in tokens, well within the classes.
const CLASSES: [(usize, usize); 4] = [(100, 950), (1200, 3800), (4400, 9600), (10_800, 15_500)];
/// Notes that are kept.
const NOTES_MAX: usize = 20;
