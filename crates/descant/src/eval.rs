//! `descant eval`: how good a model's answers are on labelled records.

mod metrics;
mod report;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use descant_decision::json::parse;
use descant_decision::{Kind, Limits, Options, Question, Record, Value};
use descant_server::Confidence;

use crate::args::Eval;
use crate::backend;
use crate::eval::metrics::{Case, Figures, figures};
use crate::failure::Failure;
use crate::journal::{Journal, digest_of_model, digest_of_records, identity, write_whole};
use crate::load;
use crate::meter::Meter;
use crate::output::{Output, error_line};
use crate::reading::{self, readings};
use crate::several::{Items, Runner, Setup, values, wrapped};

/// The labels of a record, checked against its questions.
struct Labelled {
    line: usize,
    labels: Vec<Label>,
}

struct Label {
    id: String,
    /// What its cases are listed under: the record's `groups` entry, or the question's id.
    group: String,
    kind: Kind,
    /// The right option, by the name that replies use.
    option: String,
}

/// The figures of some cases, and what they have in common.
struct Row {
    /// `all`, `kind` or `group`.
    by: &'static str,
    name: String,
    figures: Figures,
}

pub(crate) fn run(args: &Eval) -> Result<(), Failure> {
    let labelled = labelled(&args.records)?;
    let place = load::place(args.model.model.as_deref())?;
    let clef = args.model.clef.clef.as_deref();
    let mut replies = Vec::with_capacity(labelled.len());
    let mut journal = match &args.results {
        Some(path) => Some(resumed(path, &header(args, &place)?, &mut replies)?),
        None => None,
    };
    if replies.len() > labelled.len() {
        let file = args.results.clone().unwrap_or_default();
        return Err(Failure::Resume {
            file,
            fault: "it has more lines than there are records",
        });
    }
    if replies.len() < labelled.len() {
        let runner = Runner::load(&Setup {
            place: &place,
            clef,
            accept: &args.accept,
            length: &args.length,
            compute: &args.compute,
            confidence: Confidence::default(),
            raw: true,
        })?;
        let meter = Meter::start(replies.len() as u64, Some(labelled.len() as u64));
        let items = Items::open(&args.records)?.skip(replies.len());
        let answered = runner.each(items, |_, reply| {
            let text = match reply {
                Ok(reply) => reply.compact(),
                Err(error) => error_line(&error),
            };
            meter.one();
            journal
                .as_mut()
                .map_or(Ok(()), |journal| journal.line(&text))?;
            replies.push(text);
            Ok(())
        });
        runner.stop();
        answered?;
    }
    if let Some(journal) = &journal {
        journal.sync()?;
    }
    finish(args, &labelled, &replies)
}

/// Prints what the replies come to.
fn finish(args: &Eval, labelled: &[Labelled], replies: &[String]) -> Result<(), Failure> {
    let (mut cases, mut refused) = (Vec::new(), 0);
    for (record, reply) in labelled.iter().zip(replies) {
        let wrong = |fault| Failure::Record {
            file: args.records.clone(),
            line: record.line,
            fault,
        };
        let reply = parse(reply.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        if reply.get("error").is_some() {
            refused += 1;
            continue;
        }
        let read = readings(&reply).map_err(wrong)?;
        for label in &record.labels {
            let found = read.iter().find(|(id, _)| *id == label.id);
            let case = found.and_then(|(_, reading)| case(label, reading, &reply));
            let fault = || wrong(format!("the reply does not fit question {}", label.id));
            cases.push((label.group.clone(), case.ok_or_else(fault)?));
        }
    }
    if cases.is_empty() {
        let (file, fault) = (
            args.records.clone(),
            "no labelled question was answered".to_owned(),
        );
        return Err(Failure::Record {
            file,
            line: labelled.last().map_or(0, |record| record.line),
            fault,
        });
    }
    let rows = rows(&cases, args.target_precision);
    if let Some(path) = &args.report {
        write_whole(path, &report::html(&rows, args.target_precision))?;
    }
    let mut output = Output::open();
    match args.json {
        true => output.line(&report::json(&rows, refused, args.target_precision))?,
        false => output.line(&report::table(&rows, args.target_precision))?,
    }
    match refused {
        0 => Ok(()),
        _ => Err(Failure::Lines {
            refused,
            all: labelled.len(),
        }),
    }
}

/// The first line of a file of results: what it answers.
fn header(args: &Eval, place: &load::Place) -> Result<String, Failure> {
    let flags = format!(
        "{:?} {} {:?}",
        args.accept, args.length.max_length, args.length.over_length
    );
    Ok(identity([
        ("descant_eval", 1_u32.into()),
        ("records_sha256", digest_of_records(&args.records)?.0.into()),
        (
            "model_sha256",
            digest_of_model(place, args.model.clef.clef.as_deref())?.into(),
        ),
        ("precision", backend::arithmetic(&args.compute)?.into()),
        ("flags", flags.into()),
    ]))
}

/// Opens a file of results and reads the replies that it has.
fn resumed(path: &Path, header: &str, replies: &mut Vec<String>) -> Result<Journal, Failure> {
    let mut has_header = false;
    let mut journal = Journal::open(path, |line| {
        let text = String::from_utf8_lossy(line).into_owned();
        if has_header {
            replies.push(text);
        } else if text != header {
            let fault = "it belongs to other records, another model or other flags; choose another or remove it";
            return Err(Failure::Resume {
                file: path.to_owned(),
                fault,
            });
        }
        has_header = true;
        Ok(())
    })?;
    if !has_header {
        journal.line(header)?;
    }
    Ok(journal)
}

fn labelled(path: &Path) -> Result<Vec<Labelled>, Failure> {
    let of = |(line, value): (usize, Value)| {
        let wrong = |fault| Failure::Record {
            file: PathBuf::from(path),
            line,
            fault,
        };
        labels(&value)
            .map(|labels| Labelled { line, labels })
            .map_err(wrong)
    };
    values(path)?.into_iter().map(of).collect()
}

/// Checks the labels of a record.
fn labels(value: &Value) -> Result<Vec<Label>, String> {
    let request = wrapped(value).unwrap_or(value);
    let record = Record::from_value(request, &Limits::release()).map_err(|faults| {
        faults
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    })?;
    let Some(expected) = value.get("expected") else {
        return Ok(Vec::new());
    };
    let expected = expected
        .as_object()
        .ok_or("expected is no object of labels")?;
    let groups = value.get("groups");
    let label = |(id, label): (&str, &Value)| {
        let question = record
            .questions()
            .iter()
            .find(|question| question.id() == id);
        let question =
            question.ok_or_else(|| format!("expected.{id}: there is no such question"))?;
        let group = groups
            .and_then(|groups| groups.get(id))
            .and_then(Value::as_str)
            .unwrap_or(id);
        Ok(Label {
            id: id.to_owned(),
            group: group.to_owned(),
            kind: question.kind(),
            option: option(question, label)
                .map_err(|wanted| format!("expected.{id} is {label}, {wanted}"))?,
        })
    };
    expected.iter().map(label).collect()
}

/// The option that a label names, or what it should have been.
fn option(question: &Question, label: &Value) -> Result<String, String> {
    match question.options() {
        Options::Noul { .. } => label
            .as_bool()
            .map(|label| label.to_string())
            .ok_or_else(|| "a noul wants true or false".to_owned()),
        Options::Choice(options) => label
            .as_str()
            .filter(|label| options.iter().any(|(name, _)| name == label))
            .map(str::to_owned)
            .ok_or_else(|| "a choice wants the name of one of its options".to_owned()),
        Options::Score(levels) => label
            .as_number()
            .and_then(descant_decision::json::Number::as_u64)
            .filter(|&level| level < levels.len() as u64)
            .map(|level| level.to_string())
            .ok_or_else(|| format!("a score wants a level from 0 to {}", levels.len() - 1)),
    }
}

/// A label beside its answer; none if they do not fit.
fn case(label: &Label, reading: &reading::Reading, reply: &Value) -> Option<Case> {
    let place = |name: &str| reading.options.iter().position(|option| option == name);
    let ln = reading.exact.clone()?;
    let choice = reply
        .get("answers")?
        .get(&label.id)?
        .get("choice")
        .and_then(Value::as_str);
    let answered = match choice {
        Some(choice) => place(choice)?,
        None => reading::top(&ln),
    };
    Some(Case {
        id: label.group.clone(),
        kind: label.kind.name(),
        options: reading.options.clone(),
        label: place(&label.option)?,
        answered,
        ln,
    })
}

fn rows(cases: &[(String, Case)], target: f64) -> Vec<Row> {
    let mut sets: BTreeMap<(u8, &str), Vec<&Case>> = BTreeMap::new();
    for (group, case) in cases {
        for key in [(0, "all"), (1, case.kind), (2, group)] {
            sets.entry(key).or_default().push(case);
        }
    }
    let row = |((by, name), cases): ((u8, &str), Vec<&Case>)| Row {
        by: ["all", "kind", "group"][usize::from(by)],
        name: name.to_owned(),
        figures: figures(&cases, target),
    };
    // A group of one case says nothing that its record does not.
    sets.into_iter()
        .filter(|((by, _), cases)| *by < 2 || cases.len() > 1)
        .map(row)
        .collect()
}

#[cfg(test)]
mod tests {
    use descant_decision::json::parse_str;

    use super::*;

    fn read(expected: &str) -> Result<Vec<Label>, String> {
        labels(
            &parse_str(&format!(
                r#"{{"request": {{"state": "x", "questions": {{"n": {{"type": "noul"}},
            "c": {{"type": "choice", "criteria": {{"a": null, "b": null}}}},
            "s": {{"type": "score", "criteria": ["low", "high"]}}}}}}, "expected": {expected}}}"#
            ))
            .unwrap(),
        )
    }

    #[test]
    fn labels_are_options() {
        let labels = read(r#"{"s": 1, "n": false, "c": "b"}"#).unwrap();
        let options: Vec<&str> = labels.iter().map(|label| &*label.option).collect();
        assert_eq!(options, ["1", "false", "b"]);
    }

    #[test]
    fn labels_that_fit_no_option_name_their_question() {
        for (wrong, id) in [
            (r#"{"n": "yes"}"#, "expected.n"),
            (r#"{"c": "d"}"#, "expected.c"),
            (r#"{"c": true}"#, "expected.c"),
            (r#"{"s": 2}"#, "expected.s"),
            (r#"{"s": 0.5}"#, "expected.s"),
            (r#"{"other": 1}"#, "expected.other"),
            ("[]", "expected"),
        ] {
            let fault = read(wrong).err().unwrap();
            assert!(fault.contains(id), "{wrong}: {fault}");
        }
    }
}
