//! The flags of the commands that take many records.

use std::path::PathBuf;

use clap::Args;

use super::{Accept, ClefFlag, Compute, Confidence, Length, ModelFlag};

/// Answer a file of requests, as many at once as the machine can take.
///
/// IN has a request a line, or is a Parquet file with a column `request` (or `questions` and `state`); OUT gets a reply
/// a line in the same order. A request that is refused becomes {"error": …} in its place. A run that was killed is
/// continued by the same command, and the file is in the end the same, byte for byte.
#[derive(Debug, Args)]
pub(crate) struct Batch {
    /// The requests, a line or a row each; - for standard input, which has lines and cannot be continued.
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// Where the replies go; - for standard output. OUT.descant.json beside it says what it answers.
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,
    /// Answer part I of N: parts are runs of whole lines or rows, counted from 0, and their outputs one after the other are the
    /// whole output.
    #[arg(long, value_name = "I/N", value_parser = shard)]
    pub(crate) shard: Option<Shard>,
    /// Print all digits of every number instead of four decimal places.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Which number `confidence` is.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) confidence: Confidence,
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
    #[command(flatten)]
    pub(crate) compute: Compute,
}

/// Compare the answers of two models, servers or files.
///
/// A and B are each a release directory or a Hub name, the URL of a System One server, or a file of replies, a line for
/// each record. Exits with 1 past a limit.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// What is taken as true.
    pub(crate) a: String,
    /// What is measured.
    pub(crate) b: String,
    /// The records, a line each.
    #[arg(long, value_name = "FILE")]
    pub(crate) records: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Largest mean of KL(A‖B) over the questions, in nats.
    #[arg(long, value_name = "X", value_parser = limit)]
    pub(crate) max_kl: Option<f64>,
    /// Largest KL(A‖B) of a question, in nats.
    #[arg(long, value_name = "X", value_parser = limit)]
    pub(crate) max_kl_worst: Option<f64>,
    /// Least share of questions with the same top option, from 0 to 1.
    #[arg(long, value_name = "X", value_parser = share)]
    pub(crate) min_top: Option<f64>,
    #[command(flatten)]
    pub(crate) clef: ClefFlag,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
    #[command(flatten)]
    pub(crate) compute: Compute,
}

/// Measure answers against labels.
///
/// A line of RECORDS is {"request": {…}, "expected": {question: label}}, or a request with `expected` in it. A label is
/// true or false, an option's name, or a level counted from 0.
#[derive(Debug, Args)]
pub(crate) struct Eval {
    /// The labelled records.
    #[arg(value_name = "RECORDS.jsonl")]
    pub(crate) records: PathBuf,
    /// Keep the replies here, a line each after a first line that names model and records; a file that is there is
    /// continued.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) results: Option<PathBuf>,
    /// Write a page with reliability diagrams.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Precision at which coverage is measured.
    #[arg(long, value_name = "X", default_value_t = 0.95, value_parser = share)]
    pub(crate) target_precision: f64,
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
    #[command(flatten)]
    pub(crate) compute: Compute,
}

/// A part of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// Which, counted from 0.
    pub(crate) index: u64,
    /// Of how many.
    pub(crate) count: u64,
}

fn shard(text: &str) -> Result<Shard, String> {
    let wanted = || "must be I/N with I from 0 to N - 1, such as 0/8".to_owned();
    let (index, count) = text.split_once('/').ok_or_else(wanted)?;
    let index = index.parse().map_err(|_| wanted())?;
    let count = count.parse().map_err(|_| wanted())?;
    match index < count {
        true => Ok(Shard { index, count }),
        false => Err(wanted()),
    }
}

fn limit(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0.0..f64::INFINITY).contains(&x) => Ok(x),
        _ => Err("must be a number of at least 0".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if (0.0..=1.0).contains(&x) => Ok(x),
        _ => Err("must be a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_its_count() {
        assert_eq!(shard("2/3"), Ok(Shard { index: 2, count: 3 }));
        for wrong in ["3/3", "0/0", "1", "a/2", "-1/2", "1/"] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_are_finite_and_shares_at_most_one() {
        assert_eq!((limit("1e-5"), share("0.999")), (Ok(1e-5), Ok(0.999)));
        for wrong in ["-1", "nan", "x"] {
            assert!(limit(wrong).is_err() && share(wrong).is_err(), "{wrong}");
        }
        assert!(limit("inf").is_err() && share("1.1").is_err());
    }
}
