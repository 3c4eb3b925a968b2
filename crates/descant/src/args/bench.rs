//! The flags of `descant bench`.
#![allow(rustdoc::bare_urls, reason = "these comments are help texts")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::{ModelFlag, positive};

/// Measure.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) what: BenchWhat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchWhat {
    Http(BenchHttp),
    Model(BenchModel),
}

/// Measure a System One server, and check that its answers do not depend on who else asks.
///
/// Latency by length of the prompt, one request at a time; throughput at several numbers of clients; the gaps of a chat
/// stream while a long decision runs. Every answer in company is compared, byte for byte, with the answer to the same
/// request alone: exits with 1 if one differs or a request fails. A refusal with a hint when to come again is counted,
/// and the request is sent again then.
#[derive(Debug, Args)]
pub(crate) struct BenchHttp {
    /// The server, such as http://127.0.0.1:8000.
    #[arg(value_name = "URL")]
    pub(crate) url: String,
    /// Requests to send at every level instead of made-up ones, a line each.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) records: Option<PathBuf>,
    /// What to measure.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = PARTS)]
    pub(crate) only: Vec<BenchPart>,
    /// Numbers of clients.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64", value_parser = positive)]
    pub(crate) levels: Vec<usize>,
    /// Made-up requests of each level [default: 128, or 64 with --quick].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) requests: Option<usize>,
    /// About the most tokens of a made-up request; below what the server takes by as much as a guess may be wrong.
    #[arg(long, value_name = "TOKENS", default_value_t = 14_500, value_parser = positive)]
    pub(crate) longest: usize,
    /// Go through the levels so many times, in turns, and add up what each gave: what else the machine does then weighs
    /// on all of them alike.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(crate) turns: usize,

    /// Send fewer and shorter requests.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Seed of the made-up requests. A server that keeps states of earlier prompts knows those of an earlier run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Process of the server on this machine, whose memory is watched.
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Instead: so many clients that ask without pause for so long, such as 90s, 10m or 1h.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "kill")]
    pub(crate) soak: Option<Duration>,
    /// Clients of --soak; three times what the server has room for shows how it refuses.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive)]
    pub(crate) level: usize,
    /// Instead: so many clients that leave in the middle of a long request, and how long the next one waits.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) kill: Option<usize>,
}

/// Time prompts, next tokens and the parts of a prompt, beside the ceilings of the same run.
///
/// Needs a CUDA device. Times are medians; those of prompts are of the backbone alone, those of decisions of backbone and head.
/// With --dummy-weights the head's last step is timed as well, for few and many options, with the number of its launches.
#[derive(Debug, Args)]
pub(crate) struct BenchModel {
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    /// Make seeded random weights on the device in place of MODEL's: clef-flash, clef, or a directory with a config.json. Answers of
    /// such weights mean nothing; their speed is that of the shape.
    #[arg(long, value_name = "SHAPE", conflicts_with = "model")]
    pub(crate) dummy_weights: Option<String>,
    /// Number of the CUDA device.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) cuda: usize,
    /// Lengths of prompts, in tokens.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [256, 1024, 4096, 16_384], value_parser = positive)]
    pub(crate) lengths: Vec<usize>,
    /// Streams whose next tokens are computed together.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 8], value_parser = positive)]
    pub(crate) streams: Vec<usize>,
    /// Most prompt rows of a round; longer prompts go in pieces.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = positive)]
    pub(crate) max_rows: usize,
    /// Runs of each measurement, after two that are not counted.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive)]
    pub(crate) runs: usize,
}

/// A part of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchPart {
    /// The gaps of a chat stream while a long decision runs.
    Chat,
    /// Latency by length of the prompt.
    Latency,
    /// Throughput and equality at several numbers of clients.
    Levels,
}

const PARTS: [BenchPart; 3] = [BenchPart::Latency, BenchPart::Levels, BenchPart::Chat];

fn duration(text: &str) -> Result<Duration, String> {
    let wanted =
        || "must be a number of seconds, minutes or hours, such as 90s, 10m or 1h".to_owned();
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let found = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, seconds) = found.unwrap_or((text, &1));
    let number: u64 = number.parse().map_err(|_| wanted())?;
    match number.checked_mul(*seconds) {
        Some(seconds @ 1..=SECONDS_MAX) => Ok(Duration::from_secs(seconds)),
        _ => Err("must be from 1s to 24h".to_owned()),
    }
}

/// Longest soak.
const SECONDS_MAX: u64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_unit_or_counts_seconds() {
        let seconds = |text| duration(text).map(|duration| duration.as_secs());
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("90"), Ok(90));
        assert_eq!(seconds("10m"), Ok(600));
        assert_eq!(seconds("24h"), Ok(86_400));
        for wrong in ["", "0s", "-1", "25h", "1d", "1.5h", "99999999999999999999h"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
