//! `descant compare`: how far the answers of B are from those of A.
//!
//! KL(A‖B) = Σ p_A (ln p_A - ln p_B) in f64, from logits or unrounded probabilities where both sides have them. Where
//! one has not, both are taken as printed, with [`PRINTED_FLOOR`] for a printed 0.

mod remote;

use std::path::{Path, PathBuf};

use descant_decision::Value;
use descant_decision::json::{Object, parse, to_json};
use descant_server::Confidence;

use crate::args::Compare;
use crate::failure::Failure;
use crate::load::{self, Place};
use crate::meter::Meter;
use crate::output::Output;
use crate::reading::{PRINTED_FLOOR, Reading, input_tokens, logarithms, readings, top};
use crate::several::{Items, Runner, Setup, values};

/// Largest prompts of the classes of size, in tokens, and their names.
const SIZES: [(u64, &str); 4] = [
    (1024, "up to 1K"),
    (4096, "1K to 4K"),
    (10_240, "4K to 10K"),
    (u64::MAX, "above 10K"),
];
/// The class of records whose replies do not say how long they were.
const SIZE_UNKNOWN: &str = "unknown size";

/// Where answers come from.
enum Side {
    File(PathBuf),
    Model(Place),
    Server(String),
}

/// How far apart the two answers to a question are.
#[derive(Clone, Debug, PartialEq)]
struct Gap {
    line: usize,
    question: String,
    size: &'static str,
    /// In nats; never below 0.
    kl: f64,
    same_top: bool,
    /// Whether it is from printed numbers.
    printed: bool,
}

/// What some gaps come to.
#[derive(Clone, Debug, PartialEq)]
struct Summary {
    name: &'static str,
    questions: usize,
    kl_mean: f64,
    kl_max: f64,
    /// Share with the same top option.
    top: f64,
}

pub(crate) fn run(args: &Compare) -> Result<(), Failure> {
    let records: Vec<usize> = values(&args.records)?
        .into_iter()
        .map(|(line, _)| line)
        .collect();
    let a = replies(args, &args.a, records.len())?;
    let b = replies(args, &args.b, records.len())?;
    let mut gaps = Vec::new();
    for ((&line, a), b) in records.iter().zip(&a).zip(&b) {
        let wrong = |fault| Failure::Record {
            file: args.records.clone(),
            line,
            fault,
        };
        gaps.extend(compared(line, a, b).map_err(wrong)?);
    }
    if gaps.is_empty() {
        return Err(Failure::Record {
            file: args.records.clone(),
            line: 0,
            fault: "no records".to_owned(),
        });
    }
    let summaries = summaries(&gaps);
    let mut output = Output::open();
    match args.json {
        true => output.line(&json(&summaries, &gaps))?,
        false => output.line(&table(&summaries, &gaps))?,
    }
    let past = past(args, &summaries[0]);
    if past.is_empty() {
        Ok(())
    } else {
        Err(Failure::Apart { past })
    }
}

/// The replies of a side, in the order of the records.
fn replies(args: &Compare, name: &str, count: usize) -> Result<Vec<Value>, Failure> {
    let replies = match side(name)? {
        Side::File(file) => recorded(&file)?,
        Side::Model(place) => of_model(args, &place, count)?,
        Side::Server(url) => remote::replies(&url, Items::open(&args.records)?, count)?,
    };
    if replies.len() == count {
        return Ok(replies);
    }
    let fault = format!("{name} has {} replies to {count} records", replies.len());
    Err(Failure::Record {
        file: args.records.clone(),
        line: 1 + replies.len().min(count),
        fault,
    })
}

fn side(name: &str) -> Result<Side, Failure> {
    if name.starts_with("http://") || name.starts_with("https://") {
        return Ok(Side::Server(name.trim_end_matches('/').to_owned()));
    }
    match Path::new(name).is_file() {
        true => Ok(Side::File(PathBuf::from(name))),
        false => load::place(Some(name)).map(Side::Model),
    }
}

/// The replies of a file; a first line that says what `eval --results` kept there is passed over.
fn recorded(file: &Path) -> Result<Vec<Value>, Failure> {
    let lines = values(file)?.into_iter().map(|(_, value)| value);
    Ok(lines
        .filter(|value| value.get("descant_eval").is_none())
        .collect())
}

fn of_model(args: &Compare, place: &Place, count: usize) -> Result<Vec<Value>, Failure> {
    let runner = Runner::load(&Setup {
        place,
        clef: args.clef.clef.as_deref(),
        accept: &args.accept,
        length: &args.length,
        compute: &args.compute,
        confidence: Confidence::default(),
        raw: true,
    })?;
    let (mut replies, meter) = (
        Vec::with_capacity(count),
        Meter::start(0, Some(count as u64)),
    );
    let answered = runner.each(Items::open(&args.records)?, |line, reply| {
        let wrong = |fault| Failure::Record {
            file: args.records.clone(),
            line,
            fault,
        };
        let reply = reply.map_err(|refused| wrong(format!("{place}: {refused}")))?;
        replies.push(parse(reply.compact().as_bytes()).map_err(|error| wrong(error.to_string()))?);
        meter.one();
        Ok(())
    });
    runner.stop();
    answered.map(|()| replies)
}

/// Compares two replies to a record.
fn compared(line: usize, a: &Value, b: &Value) -> Result<Vec<Gap>, String> {
    let read = |name: &str, reply| readings(reply).map_err(|fault| format!("{name}: {fault}"));
    let (read_a, read_b) = (read("A", a)?, read("B", b)?);
    if let Some((id, _)) = read_b
        .iter()
        .find(|(id, _)| read_a.iter().all(|(other, _)| other != id))
    {
        return Err(format!("B answers question {id}, A does not"));
    }
    let size = input_tokens(a)
        .or_else(|| input_tokens(b))
        .map_or(SIZE_UNKNOWN, size_class);
    let gap = |(id, a): (String, Reading)| {
        let found = read_b.iter().find(|(other, _)| *other == id);
        let (_, b) = found.ok_or_else(|| format!("A answers question {id}, B does not"))?;
        let (ln_a, ln_b, printed) =
            aligned(&a, b).map_err(|fault| format!("question {id}: {fault}"))?;
        let same_top = top(&ln_a) == top(&ln_b);
        Ok(Gap {
            line,
            question: id,
            size,
            kl: kl(&ln_a, &ln_b),
            same_top,
            printed,
        })
    };
    read_a.into_iter().map(gap).collect()
}

/// The name of the class of a prompt's length.
pub(crate) fn size_class(tokens: u64) -> &'static str {
    SIZES
        .iter()
        .find(|(most, _)| tokens <= *most)
        .expect("the last class has no bound")
        .1
}

/// Logarithms of both sides' probabilities in the order of A's options, and whether they are from printed numbers.
fn aligned(a: &Reading, b: &Reading) -> Result<(Vec<f64>, Vec<f64>, bool), String> {
    if a.options.len() != b.options.len() {
        return Err(format!(
            "A has {} options, B has {}",
            a.options.len(),
            b.options.len()
        ));
    }
    let place = |name: &String| {
        let found = b.options.iter().position(|option| option == name);
        found.ok_or_else(|| format!("A has option {name}, B does not"))
    };
    let places: Vec<usize> = a.options.iter().map(place).collect::<Result<_, _>>()?;
    let moved = |numbers: &[f64]| places.iter().map(|&at| numbers[at]).collect::<Vec<_>>();
    match (&a.exact, &b.exact, &a.printed, &b.printed) {
        (Some(a), Some(b), _, _) => Ok((a.clone(), moved(b), false)),
        (_, _, Some(a), Some(b)) => Ok((
            logarithms(a, PRINTED_FLOOR),
            logarithms(&moved(b), PRINTED_FLOOR),
            true,
        )),
        _ => Err("one side has only raw numbers, the other only printed ones".to_owned()),
    }
}

/// Roundings can bring a divergence of nothing below 0.
fn kl(ln_a: &[f64], ln_b: &[f64]) -> f64 {
    ln_a.iter()
        .zip(ln_b)
        .map(|(a, b)| a.exp() * (a - b))
        .sum::<f64>()
        .max(0.0)
}

/// All gaps, then each class of size that has any.
fn summaries(gaps: &[Gap]) -> Vec<Summary> {
    let mut all = vec![summary("all", gaps.iter()).expect("there are gaps")];
    let names = SIZES.iter().map(|(_, name)| *name).chain([SIZE_UNKNOWN]);
    all.extend(names.filter_map(|name| summary(name, gaps.iter().filter(|gap| gap.size == name))));
    all
}

fn summary<'a>(name: &'static str, gaps: impl Iterator<Item = &'a Gap>) -> Option<Summary> {
    let (mut questions, mut same, mut sum, mut kl_max) = (0_u32, 0_u32, 0.0, 0.0_f64);
    for gap in gaps {
        questions += 1;
        same += u32::from(gap.same_top);
        sum += gap.kl;
        kl_max = kl_max.max(gap.kl);
    }
    let count = f64::from(questions);
    (questions > 0).then(|| Summary {
        name,
        questions: questions as usize,
        kl_mean: sum / count,
        kl_max,
        top: f64::from(same) / count,
    })
}

fn worst(gaps: &[Gap]) -> &Gap {
    gaps.iter()
        .max_by(|a, b| a.kl.total_cmp(&b.kl))
        .expect("there are gaps")
}

/// The limits that are passed, in words.
fn past(args: &Compare, all: &Summary) -> Vec<String> {
    let above = |name: &str, found: f64, most: Option<f64>| {
        most.filter(|&most| found > most)
            .map(|most| format!("{name} is {found:.3e}, above {most:e}"))
    };
    let below = args.min_top.filter(|&least| all.top < least);
    let below = below.map(|least| {
        format!(
            "the share of same top options is {:.5}, below {least}",
            all.top
        )
    });
    let found = [
        above("the mean KL", all.kl_mean, args.max_kl),
        above("the largest KL", all.kl_max, args.max_kl_worst),
        below,
    ];
    found.into_iter().flatten().collect()
}

fn table(summaries: &[Summary], gaps: &[Gap]) -> String {
    let mut lines = vec![format!(
        "{:<14}{:>10}{:>12}{:>12}{:>10}",
        "", "questions", "mean KL", "max KL", "same top"
    )];
    lines.extend(summaries.iter().map(|row| {
        format!(
            "{:<14}{:>10}{:>12.3e}{:>12.3e}{:>10.5}",
            row.name, row.questions, row.kl_mean, row.kl_max, row.top
        )
    }));
    let worst = worst(gaps);
    lines.push(format!(
        "largest KL: line {}, question {}",
        worst.line, worst.question
    ));
    let printed = gaps.iter().filter(|gap| gap.printed).count();
    if printed > 0 {
        lines.push(format!(
            "{printed} questions from printed probabilities, with {PRINTED_FLOOR} for 0"
        ));
    }
    lines.join("\n")
}

fn json(summaries: &[Summary], gaps: &[Gap]) -> String {
    let rows = summaries.iter().map(|row| {
        Value::from(
            Object::new()
                .with("size", row.name)
                .with("questions", row.questions)
                .with("kl_mean", Value::float(row.kl_mean))
                .with("kl_max", Value::float(row.kl_max))
                .with("same_top", Value::float(row.top)),
        )
    });
    let worst = worst(gaps);
    let all = Object::new()
        .with("rows", rows.collect::<Value>())
        .with(
            "worst",
            Object::new()
                .with("line", worst.line)
                .with("question", worst.question.as_str()),
        )
        .with(
            "printed_questions",
            gaps.iter().filter(|gap| gap.printed).count(),
        )
        .with("printed_floor", Value::float(PRINTED_FLOOR));
    to_json(&all.into())
}

#[cfg(test)]
mod tests {
    use descant_decision::json::parse_str;

    use super::*;

    fn pair(a: &str, b: &str) -> Result<Vec<Gap>, String> {
        let reply = |answers| {
            parse_str(&format!(
                r#"{{"answers": {{{answers}}}, "usage": {{"input_tokens": 1025}}}}"#
            ))
            .unwrap()
        };
        compared(3, &reply(a), &reply(b))
    }

    /// KL of (3/4, 1/4) from (1/2, 1/2), worked by hand: 3/4 ln 3/2 + 1/4 ln 1/2.
    #[test]
    fn a_divergence_is_the_formula_whatever_the_order_of_options() {
        let a = r#""q": {"raw": {"options": ["x", "y"], "probabilities": [0.75, 0.25]}}"#;
        let b = r#""q": {"raw": {"options": ["y", "x"], "logits": [7.0, 7.0]}}"#;
        let gap = &pair(a, b).unwrap()[0];
        assert!((gap.kl - (0.75 * 1.5_f64.ln() + 0.25 * 0.5_f64.ln())).abs() < 1e-15);
        assert_eq!(
            (gap.size, gap.printed, gap.same_top),
            ("1K to 4K", false, true)
        );
        assert_eq!(pair(a, a).unwrap()[0].kl.to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn printed_numbers_stand_in_where_one_side_has_no_others() {
        let a =
            r#""q": {"noul": 1.0, "raw": {"options": ["true", "false"], "logits": [9.0, -9.0]}}"#;
        let gap = &pair(a, r#""q": {"noul": 0.0}"#).unwrap()[0];
        let (most, least): (f64, f64) = (1.0 / 1.00005, 5e-5 / 1.00005);
        assert!((gap.kl - (most - least) * (most / least).ln()).abs() < 1e-12);
        assert_eq!((gap.printed, gap.same_top), (true, false));
    }

    #[test]
    fn questions_and_options_of_one_side_are_faults() {
        let q = r#""q": {"noul": 0.5}"#;
        let both = r#""q": {"noul": 0.5}, "r": {"noul": 0.5}"#;
        assert!(pair(q, both).unwrap_err().contains("question r"));
        assert!(pair(both, q).unwrap_err().contains("question r"));
        assert!(
            pair(q, r#""q": {"probabilities": {"true": 0.5, "no": 0.5}}"#)
                .unwrap_err()
                .contains("false")
        );
        assert!(
            pair(q, r#""q": {"probabilities": {"true": 1}}"#)
                .unwrap_err()
                .contains("options")
        );
    }
}
