//! The flags. Each is one item: its name, what it does, its default; `descant help` prints them from here.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, in which brackets mean optional"
)]
#![allow(rustdoc::bare_urls, reason = "these comments are help texts")]

mod bench;
mod many;
mod prove;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::styling::Styles;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::traces::endpoint;

pub(crate) use bench::{Bench, BenchHttp, BenchModel, BenchPart, BenchWhat};
pub(crate) use many::{Batch, Compare, Eval, Shard};
pub(crate) use prove::Prove;

/// Answers typed questions about a state with a Clef decision model.
///
/// A request is a JSON object with a `state` (any JSON) and `questions`: yes/no (`noul`), one of several options
/// (`choice`) or a level on a scale (`score`). The reply gives a probability for every allowed option.
///
/// MODEL is a release directory, or a name on the Hugging Face Hub: OWNER/NAME or OWNER/NAME@REVISION, fetched into
/// the usual Hub cache. Without one, a small trained model that is part of the program is used. It knows software
/// packages (what they are, from their descriptions) and nothing else.
#[derive(Debug, Parser)]
#[command(name = "descant", version, max_term_width = 100, styles = Styles::plain())]
#[command(after_help = "Try it: descant decide examples/package.json --pretty")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Batch(Batch),
    Bench(Bench),
    Compare(Compare),
    Decide(Decide),
    Encode(Encode),
    Eval(Eval),
    Hidden(Hidden),
    Info(Info),
    Prove(Prove),
    Serve(Serve),
    Verify(Verify),
}

/// Answer a request.
///
/// Reads a System One request, prints the reply. Exits with 1 when a request is refused, and says why on standard
/// error.
#[derive(Debug, Args)]
pub(crate) struct Decide {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    /// Print all digits of every number instead of four decimal places.
    #[arg(long)]
    pub(crate) raw: bool,
    /// Spread the reply over several lines.
    #[arg(long, conflicts_with = "jsonl")]
    pub(crate) pretty: bool,
    /// Which number `confidence` is.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) confidence: Confidence,
    #[command(flatten)]
    pub(crate) reading: ReadingFlags,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
    #[command(flatten)]
    pub(crate) compute: Compute,
}

/// Check a receipt: whether an answer came from this model and this request.
///
/// A server gives a receipt in the header x-descant-receipt of a reply, to a request that has that header. This computes
/// the request again and compares the digests of model, head, tokenizer, prompt and logits. Exits with 1 if one differs,
/// and names it.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The receipt: a file with the header's value, or - for standard input.
    #[arg(value_name = "RECEIPT.json")]
    pub(crate) receipt: PathBuf,
    /// The request's body: a file, or - for standard input.
    #[arg(value_name = "REQUEST.json")]
    pub(crate) request: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
    #[command(flatten)]
    pub(crate) compute: Compute,
}

/// Print the token ids of a request, and where its questions and options lie in them.
///
/// Needs the tokenizer of a release, not its weights.
#[derive(Debug, Args)]
pub(crate) struct Encode {
    #[command(flatten)]
    pub(crate) input: Input,
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
}

/// Write the final hidden rows of a sequence of token ids.
///
/// The tensor `hidden` of the output is f32, [rows, hidden size]: what the joint schema head reads.
#[derive(Debug, Args)]
pub(crate) struct Hidden {
    /// The token ids: a file with a JSON array of integers.
    #[arg(long, value_name = "FILE.json")]
    pub(crate) ids: PathBuf,
    /// Where to write the rows; an existing file is replaced.
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    /// Rows computed at a time, a multiple of 64. The result does not depend on it.
    #[arg(long, value_name = "N", value_parser = piece_rows)]
    pub(crate) piece: Option<usize>,
    #[command(flatten)]
    pub(crate) compute: Compute,
}

/// Show what a release holds and how much memory it takes.
///
/// Reads the config files and, where they are there, the headers of the weight files.
#[derive(Debug, Args)]
pub(crate) struct Info {
    #[command(flatten)]
    pub(crate) model: ModelArgument,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Most tokens of a prompt, for which memory is counted.
    #[arg(long, value_name = "N", default_value_t = MAX_LENGTH, value_parser = positive)]
    pub(crate) max_length: usize,
    /// Requests computed at one time, for which memory is counted.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive)]
    pub(crate) slots: usize,
    #[command(flatten)]
    pub(crate) compute: Compute,
}

/// Answer requests over HTTP.
///
/// The page at / asks in a browser. Routes: POST /v1/systemone, /v1/decisions, /client/v4/accounts/ANY/ai/run/MODEL,
/// /v1/chat/completions, /v1/completions, /tokenize, /detokenize, GET /v1/models, /health, /livez, /metrics. An interrupt
/// or termination signal lets the requests at hand finish; a second one ends the program at once.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) model: ModelArgument,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 takes a free one, which is printed.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Name of the model in replies and listings [default: from the model's name or size].
    #[arg(long, value_name = "NAME", conflicts_with = "dummy_weights")]
    pub(crate) served_name: Option<String>,
    /// Answer requests for any model name instead of refusing unknown ones.
    #[arg(long, conflicts_with = "dummy_weights")]
    pub(crate) any_model: bool,
    /// Which model name a reply carries.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) model_echo: ModelEcho,
    /// Which number `confidence` is.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) confidence: Confidence,
    #[command(flatten)]
    pub(crate) reading: ReadingFlags,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
    #[command(flatten)]
    pub(crate) compute: Compute,
    #[command(flatten)]
    pub(crate) dummy: DummyFlag,
    /// Requests computed at one time. Each has memory for a prompt of the greatest length.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = positive)]
    pub(crate) slots: usize,
    /// Rows computed in one round, a multiple of 64: a long prompt is run in pieces of so many. Fewer let chat flow and
    /// cancelled requests go sooner, more are a little faster in all [default: 256; on a GPU 4096]. Numbers do not
    /// depend on it.
    #[arg(long, value_name = "N", value_parser = piece_rows)]
    pub(crate) max_rows: Option<usize>,
    /// Memory for states of earlier prompts, which spare later ones that begin alike, in MiB; 0 for none [default: 256; on a GPU
    /// a sixteenth of its free memory]. A GPU keeps states of 512 tokens and more, a CPU of 64.
    #[arg(long, value_name = "MIB", value_parser = mebibytes)]
    pub(crate) cache_mb: Option<usize>,
    /// Take decisions only: chat and completions are refused, and the memory of the output embedding is spared.
    #[arg(long)]
    pub(crate) no_chat: bool,
    /// Compute the digests of receipts at the start. Otherwise the first request that wants a receipt waits for them.
    #[arg(long, conflicts_with = "dummy_weights")]
    pub(crate) receipts: bool,
    #[command(flatten)]
    pub(crate) access: Access,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    /// Tell the OpenTelemetry collector at this address how requests went: OTLP over HTTP, such as http://localhost:4318.
    /// Neither texts nor names of clients are told.
    #[arg(
        long,
        value_name = "URL",
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        value_parser = endpoint
    )]
    pub(crate) otlp_endpoint: Option<String>,
    /// Form of the log lines on standard error.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log_format: LogFormat,
    /// What is logged: error, warn, info, debug, or a tracing filter.
    #[arg(
        long,
        value_name = "FILTER",
        env = "DESCANT_LOG",
        default_value = "info"
    )]
    pub(crate) log: String,
}

/// Where requests come from.
#[derive(Debug, Args)]
pub(crate) struct Input {
    /// The request: a file, or - for standard input.
    #[arg(value_name = "REQUEST.json", default_value = "-")]
    pub(crate) request: PathBuf,
    /// Read a request a line and print a reply, or {"error": …}, a line in the same order.
    ///
    /// The model is loaded once. Exits with 1 if a line was refused.
    #[arg(long)]
    pub(crate) jsonl: bool,
}

/// The model, as a flag.
#[derive(Debug, Args)]
pub(crate) struct ModelFlag {
    /// A release directory or OWNER/NAME[@REVISION] on the Hub [default: the built-in demo model].
    #[arg(short, long = "model", value_name = "MODEL", env = "DESCANT_MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) clef: ClefFlag,
}

/// The model, as an argument.
#[derive(Debug, Args)]
pub(crate) struct ModelArgument {
    /// A release directory or OWNER/NAME[@REVISION] on the Hub [default: the built-in demo model].
    #[arg(value_name = "MODEL", env = "DESCANT_MODEL")]
    pub(crate) model: Option<String>,
    #[command(flatten)]
    pub(crate) clef: ClefFlag,
}

#[derive(Debug, Args)]
pub(crate) struct ClefFlag {
    /// Directory of the head's files (joint_head.safetensors, joint_head_config.json, lm_head_rows.safetensors), where
    /// they are not in MODEL.
    #[arg(long, value_name = "DIR")]
    pub(crate) clef: Option<PathBuf>,
}

/// How long a prompt may be.
#[derive(Debug, Args)]
pub(crate) struct Length {
    /// Most tokens of a prompt. Memory for them is reserved at the start.
    #[arg(long, value_name = "N", default_value_t = MAX_LENGTH, value_parser = positive)]
    pub(crate) max_length: usize,
    /// What to do with a longer one: refuse it, or cut the state's end as the release's own code does.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    pub(crate) over_length: OverLength,
}

/// How the questions of a request are put to the model.
#[derive(Debug, Args)]
pub(crate) struct ReadingFlags {
    /// Read every question in a prompt of its own, so that no question can move the answer to another. The release reads
    /// all together; the state is then read once for each.
    #[arg(long)]
    pub(crate) split_questions: bool,
    /// Show the model field_1, field_2 and so on in place of the ids of questions, so that an id cannot move an answer.
    #[arg(long)]
    pub(crate) neutral_ids: bool,
}

/// Who may ask.
#[derive(Debug, Args)]
pub(crate) struct Access {
    /// Ask for this API key (repeatable). Probes, figures and the page need none.
    #[arg(
        long,
        value_name = "KEY",
        env = "DESCANT_API_KEY",
        hide_env_values = true
    )]
    pub(crate) api_key: Vec<String>,
    /// Ask for one of the API keys in this file: one a line, # for remarks. It is read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Let pages of this origin ask, such as https://example.org (repeatable); * for any.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Vec<String>,
}

/// Which requests are taken.
#[derive(Debug, Args)]
pub(crate) struct Accept {
    /// Forms of questions that are taken: those that the documents of this family of servers describe, or all that the
    /// release's own code answers, however many options a question has.
    #[arg(long, value_enum, value_name = "FORMS", default_value_t)]
    pub(crate) accept: Forms,
    /// Most questions of a request [default: 1024].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_questions: Option<usize>,
    /// Most options of a choice [default: 255].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_options: Option<usize>,
    /// Most levels of a score [default: 10].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_levels: Option<usize>,
}

/// How numbers are computed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Compute {
    /// Where the model runs: cpu, cuda (device 0), cuda:N, or auto: a CUDA device if there is one, else the CPU. Numbers
    /// are equal within rounding, not on bits, between the two.
    #[arg(long, value_name = "WHERE", env = "DESCANT_DEVICE", default_value = "auto", value_parser = device)]
    pub(crate) device: DeviceFlag,
    /// Where the joint head runs: auto is with the model; cpu keeps it on the processor beside a GPU, which is slower and serves
    /// as a check, since the two are equal within f32's rounding.
    #[arg(long, value_enum, value_name = "WHERE", default_value = "auto")]
    pub(crate) head_device: HeadDevice,
    /// Threads that compute [default: all cores]. Numbers do not depend on it.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) threads: Option<usize>,
    /// Precision of the activations: f32, or bf16, which is faster and rounds as the release's own code does on a GPU
    /// [default: f32 on a CPU; a GPU has bf16 alone].
    #[arg(long, value_enum, value_name = "P")]
    pub(crate) precision: Option<Precision>,
    /// Most memory to take, of the system's or the GPU's: bytes, or a number with KiB, MiB, GiB, KB, MB or GB [default:
    /// what is available]. A model that needs more is refused before it is loaded, with each item and what would fit.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory_limit: Option<u64>,
    /// Instruction set, for tests.
    #[arg(long, hide = true, value_name = "ISA", env = "DESCANT_ISA")]
    pub(crate) isa: Option<String>,
}

/// Weights without a release.
#[derive(Clone, Debug, Args)]
pub(crate) struct DummyFlag {
    /// Make seeded random weights on the GPU, of the shape clef-flash, clef, or of a directory with a config.json; MODEL gives the
    /// tokenizer and the chat template alone. Answers of such weights mean nothing; their speed is that of the shape.
    #[arg(long, value_name = "SHAPE")]
    pub(crate) dummy_weights: Option<String>,
}

/// Bounds on what clients may make the server hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitFlags {
    /// Longest body of a request in bytes, as sent and decoded.
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20, value_parser = positive)]
    pub(crate) max_body_bytes: usize,
    /// Open connections; further clients wait.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub(crate) max_connections: usize,
    /// Requests that wait for a slot; further ones are told when to come back (529, on OpenAI's routes 503).
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub(crate) queue: usize,
    /// Seconds that a request waits for a slot, after which it is told the same. Common clients give up after 10.
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = seconds)]
    pub(crate) queue_timeout: u64,
    /// Seconds that a request may take in all, after which it is refused (503) [default: no limit]. A client may name a
    /// shorter time in the header x-descant-timeout-ms.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) request_timeout: Option<u64>,
    /// Seconds that the head of a request may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = seconds)]
    pub(crate) header_timeout: u64,
    /// Seconds that the body of a request may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = seconds)]
    pub(crate) body_timeout: u64,
    /// Seconds that a connection may stay open without a request.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = seconds)]
    pub(crate) idle_timeout: u64,
    /// Seconds that requests at hand may take once the server is told to stop.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = seconds)]
    pub(crate) stop_timeout: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Confidence {
    /// As the request's model name has it: TypeSafe's for jev-…, unrounded; otherwise the release's own.
    #[default]
    Auto,
    /// The top probability, as the release's own code has it.
    Clef,
    /// Normalised Simpson index, as Workers AI has it.
    Cloudflare,
    /// One less the normalised entropy.
    Entropy,
    /// TypeSafe's margin (choice) and spread (score), unrounded.
    Typesafe,
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceFlag {
    Auto,
    Cpu,
    /// A CUDA device by its number.
    Cuda(usize),
}

/// Where the joint head runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeadDevice {
    Auto,
    Cpu,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Forms {
    /// What clients can read back, with nothing dropped silently.
    #[default]
    Documented,
    /// Whatever the release answers.
    Release,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One object a line.
    Json,
    /// For people.
    #[default]
    Text,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelEcho {
    /// The request's, whatever it is.
    Always,
    /// The request's if it is a name of the model; the served name for jev-…
    #[default]
    Auto,
    /// The served name.
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverLength {
    /// Refuse the request, naming both counts.
    #[default]
    Refuse,
    /// Cut the state's end and say how many tokens were dropped.
    Truncate,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Precision {
    /// As the release's code runs on a GPU.
    Bf16,
    /// As the release's code runs on a CPU.
    #[default]
    F32,
}

/// Most tokens of a prompt, as in the release's own code.
const MAX_LENGTH: usize = 16_384;
/// Longest time that a flag may name: a day.
const SECONDS_MAX: u64 = 86_400;

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(error.to_string()),
    }
}

fn mebibytes(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(number) if number <= usize::MAX >> 20 => Ok(number),
        Ok(_) => Err("is more than can be addressed".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Bytes, or a number with a unit.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match text[digits.len()..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "kib" | "k" => 1 << 10,
        "mb" => 1_000_000,
        "mib" | "m" => 1 << 20,
        "gb" => 1_000_000_000,
        "gib" | "g" => 1 << 30,
        _ => return Err("the unit must be KiB, MiB, GiB, KB, MB or GB".to_owned()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|error: std::num::ParseIntError| error.to_string())?;
    let bytes = number.checked_mul(unit);
    bytes.ok_or_else(|| "is more than can be counted".to_owned())
}

fn device(text: &str) -> Result<DeviceFlag, String> {
    match text {
        "auto" => Ok(DeviceFlag::Auto),
        "cpu" => Ok(DeviceFlag::Cpu),
        "cuda" => Ok(DeviceFlag::Cuda(0)),
        _ => match text.strip_prefix("cuda:").map(str::parse) {
            Some(Ok(number)) => Ok(DeviceFlag::Cuda(number)),
            _ => Err("must be auto, cpu, cuda or cuda:N".to_owned()),
        },
    }
}

fn piece_rows(text: &str) -> Result<usize, String> {
    match positive(text)? {
        rows if rows.is_multiple_of(64) => Ok(rows),
        _ => Err("must be a multiple of 64".to_owned()),
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds @ 1..=SECONDS_MAX) => Ok(seconds),
        Ok(_) => Err(format!("must be between 1 and {SECONDS_MAX}")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_fit_together() {
        Cli::command().debug_assert();
    }

    /// `docs/reference/cli.md`, from the help texts.
    fn reference() -> String {
        let mut out = String::from(
            "# Command line\n\nWhat `descant help` says; made from it, and compared with it by the tests \
             (`DESCANT_WRITE_DOCS=1 cargo test -p descant` writes it anew).\n",
        );
        let mut program = Cli::command().term_width(100);
        program.build();
        section(&mut out, "descant", &program);
        out
    }

    /// A command's help, then those of its own commands.
    fn section(out: &mut String, title: &str, command: &clap::Command) {
        let help = command.clone().term_width(100).render_long_help();
        let help = help.to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        out.push_str(&format!(
            "\n## {title}\n\n```text\n{}\n```\n",
            lines.join("\n").trim()
        ));
        let inner = command.get_subcommands();
        for inner in inner.filter(|inner| inner.get_name() != "help") {
            section(out, &format!("{title} {}", inner.get_name()), inner);
        }
    }

    #[test]
    fn the_reference_page_is_what_the_help_says() {
        let page =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
        let wanted = reference();
        if std::env::var_os("DESCANT_WRITE_DOCS").is_some() {
            std::fs::write(&page, &wanted).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&page).unwrap(), wanted);
    }

    #[test]
    fn a_size_has_a_unit_or_is_in_bytes() {
        for (text, bytes) in [
            ("0", 0),
            ("1048576", 1 << 20),
            ("3GiB", 3 << 30),
            ("3 gib", 3 << 30),
            ("2G", 2 << 30),
            ("5MB", 5_000_000),
            ("7k", 7168),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "GiB", "1.5GiB", "-1", "1TiB", "x", "99999999999GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_device_is_named_with_or_without_a_number() {
        assert_eq!(device("cuda"), Ok(DeviceFlag::Cuda(0)));
        assert_eq!(device("cuda:3"), Ok(DeviceFlag::Cuda(3)));
        assert_eq!(device("cpu"), Ok(DeviceFlag::Cpu));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "CUDA"] {
            assert!(device(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_piece_is_a_positive_multiple_of_64() {
        assert_eq!(piece_rows("128"), Ok(128));
        for wrong in ["0", "63", "-64", "x"] {
            assert!(piece_rows(wrong).is_err(), "{wrong}");
        }
    }
}
