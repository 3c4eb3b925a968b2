//! Why a command ends with something else than success.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use descant_cpu::IsaMissing;
use descant_cuda::CudaError;
use descant_decision::printable;
use descant_engine::{EngineError, OverBudget, SettingsError};
use descant_release::{HeadMissing, LoadError};
use descant_server::Refused;

/// What went wrong, with what is needed to do something about it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Two sides of a comparison are further apart than allowed.
    Apart { past: Vec<String> },
    /// The address cannot be listened on.
    Bind {
        address: SocketAddr,
        source: io::Error,
    },
    /// The CUDA device of `--device` cannot be used.
    Cuda(CudaError),
    /// The engine gave up; the request was read and is not to blame.
    Engine(EngineError),
    /// A file of records, replies or results cannot be read or written.
    File { file: PathBuf, source: io::Error },
    /// A GPU was asked for f32 activations.
    GpuPrecision,
    /// Weights without a release for another device than a GPU, or with the head elsewhere.
    DummyDevice,
    /// A tokenizer with more tokens than the shape of weights without a release.
    DummyVocab {
        /// Tokens of the release that the tokenizer comes from, and of the shape.
        tokens: usize,
        vocab: usize,
    },
    /// A server cannot be measured.
    Http { url: String, fault: String },
    /// The file of `--ids` holds something else than token ids.
    Ids { file: PathBuf, fault: String },
    /// A request could not be read.
    Input { name: String, source: io::Error },
    /// A request has more bytes than are read.
    InputTooBig { name: String, allowed_bytes: usize },
    /// The instruction set of `--isa` is not to be had.
    Isa(IsaMissing),
    /// API keys cannot be read.
    Keys { place: String, fault: String },
    /// Some lines of `--jsonl` were refused; each said why in its place.
    Lines { refused: usize, all: usize },
    /// The release cannot be used.
    Load(LoadError),
    /// The log filter is no filter.
    LogFilter { found: String, fault: String },
    /// The release answers no questions.
    NoHead(HeadMissing),
    /// A measured server did something that it must not.
    Measured {
        unequal: usize,
        failed: usize,
        /// Whether something else was found, which was said.
        broken: bool,
    },
    /// A reply could not be printed.
    Output { source: io::Error },
    /// Nobody reads the output any more; no fault, but nothing is left to do.
    OutputClosed,
    /// The model does not fit into memory.
    OverBudget(OverBudget),
    /// A line of a file of records, or what was said about it, is wrong.
    Record {
        file: PathBuf,
        line: usize,
        fault: String,
    },
    /// A receipt cannot be read, or is not that of the model and the request.
    Receipt { file: PathBuf, fault: String },
    /// The request is refused.
    Refused { name: String, refused: Refused },
    /// A file cannot be continued by this run.
    Resume { file: PathBuf, fault: &'static str },
    /// A server of a comparison gives no answer.
    Server {
        url: String,
        line: usize,
        fault: String,
    },
    /// A setting of the engine cannot be.
    Settings(SettingsError),
    /// The program could not be started.
    Start {
        what: &'static str,
        source: Box<dyn Error + Send + Sync>,
    },
    /// An engine that has work does not go on.
    Stuck,
    /// Answers differ that should not, or were not got in the manner that was meant.
    Unproven {
        compared: usize,
        unequal: usize,
        /// Scenes that were not what they were meant to be.
        lapsed: usize,
        /// Values of an axis of which nothing was compared.
        empty: Vec<String>,
    },
    /// A file could not be written.
    Write { file: PathBuf, source: io::Error },
}

impl Failure {
    /// The program's exit code.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Failure::OutputClosed => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    /// What to print on standard error; nothing when all was said before.
    pub(crate) fn message(&self) -> Option<String> {
        match self {
            Failure::OutputClosed => None,
            _ => Some(format!("error: {self}")),
        }
    }
}

impl fmt::Display for Failure {
    #[expect(clippy::too_many_lines, reason = "an arm for each failure")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Apart { past } => f.write_str(&past.join("; ")),
            Failure::Bind { address, source } => {
                write!(f, "cannot listen on {address} (--host, --port): {source}")
            }
            Failure::Cuda(error) => write!(f, "--device: {error}"),
            Failure::Engine(error) => error.fmt(f),
            Failure::File { file, source } => write!(f, "{}: {source}", file.display()),
            Failure::DummyDevice => f.write_str(
                "--dummy-weights are made on a GPU, with the head there: --device cuda, --head-device auto",
            ),
            Failure::DummyVocab { tokens, vocab } => write!(
                f,
                "--dummy-weights: a vocabulary of {vocab} tokens, but MODEL's tokenizer may give any of {tokens}"
            ),
            Failure::GpuPrecision => {
                f.write_str("--precision f32 is for CPUs; --device cpu computes in it")
            }
            Failure::Http { url, fault } => write!(f, "{url}: {}", printable(fault)),
            Failure::Ids { file, fault } => write!(f, "--ids {}: {fault}", file.display()),
            Failure::Input { name, source } => write!(f, "{name}: {source}"),
            Failure::InputTooBig {
                name,
                allowed_bytes,
            } => {
                write!(
                    f,
                    "{name}: a request may have {allowed_bytes} bytes, this one has more"
                )
            }
            Failure::Keys { place, fault } => write!(f, "{place}: {fault}"),
            Failure::Lines { refused, all } => {
                write!(
                    f,
                    "{refused} of {all} lines were refused; each says why in its place"
                )
            }
            Failure::Load(error) => error.fmt(f),
            Failure::LogFilter { found, fault } => {
                write!(f, "--log {}: {fault}", printable(found))
            }
            Failure::Isa(missing) => write!(f, "--isa: {missing}"),
            Failure::Measured {
                unequal,
                failed,
                broken,
            } => {
                let more = if *broken {
                    ", and more that must not be"
                } else {
                    ""
                };
                write!(
                    f,
                    "{unequal} answers unequal, {failed} requests failed{more}"
                )
            }
            Failure::NoHead(missing) => missing.fmt(f),
            Failure::OverBudget(over) => write!(f, "not enough memory: {over}"),
            Failure::Output { source } => write!(f, "standard output: {source}"),
            Failure::OutputClosed => f.write_str("standard output was closed"),
            Failure::Refused { name, refused } => match refused {
                Refused::Defect { message } => write!(f, "{name}: {message}"),
                _ => write!(f, "{name}: {refused}"),
            },
            Failure::Receipt { file, fault } => {
                write!(f, "{}: {}", file.display(), printable(fault))
            }
            Failure::Record { file, line, fault } => {
                write!(f, "{}: line {line}: {}", file.display(), printable(fault))
            }
            Failure::Resume { file, fault } => write!(f, "{}: {fault}", file.display()),
            Failure::Server { url, line, fault } => {
                write!(f, "{url}: the record in line {line}: {}", printable(fault))
            }
            Failure::Settings(error) => error.fmt(f),
            Failure::Start { what, source } => write!(f, "{what}: {source}"),
            Failure::Stuck => f.write_str("the engine has work but does not go on"),
            Failure::Unproven {
                compared,
                unequal,
                lapsed,
                empty,
            } => write!(
                f,
                "not proven: {unequal} of {compared} answers differ, {lapsed} scenes did not happen{}",
                of_nothing(empty)
            ),
            Failure::Write { file, source } => write!(f, "--out {}: {source}", file.display()),
        }
    }
}

/// What a proof has nothing of, in words.
fn of_nothing(empty: &[String]) -> String {
    match empty {
        [] => String::new(),
        empty => format!(", nothing was compared of {}", empty.join(", ")),
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Failure::Bind { source, .. }
            | Failure::File { source, .. }
            | Failure::Input { source, .. }
            | Failure::Output { source }
            | Failure::Write { source, .. } => Some(source),
            Failure::Cuda(error) => Some(error),
            Failure::Engine(error) => Some(error),
            Failure::Load(error) => Some(error),
            Failure::Isa(missing) => Some(missing),
            Failure::NoHead(missing) => Some(missing),
            Failure::OverBudget(over) => Some(over),
            Failure::Refused { refused, .. } => Some(refused),
            Failure::Settings(error) => Some(error),
            Failure::Start { source, .. } => Some(&**source),
            Failure::Apart { .. }
            | Failure::DummyDevice
            | Failure::DummyVocab { .. }
            | Failure::GpuPrecision
            | Failure::Http { .. }
            | Failure::Measured { .. }
            | Failure::Ids { .. }
            | Failure::Keys { .. }
            | Failure::Receipt { .. }
            | Failure::Record { .. }
            | Failure::Resume { .. }
            | Failure::Server { .. }
            | Failure::Stuck
            | Failure::Unproven { .. }
            | Failure::InputTooBig { .. }
            | Failure::Lines { .. }
            | Failure::LogFilter { .. }
            | Failure::OutputClosed => None,
        }
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        match error {
            CudaError::Load(error) => Failure::Load(error),
            other => Failure::Cuda(other),
        }
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::Engine(error)
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Failure {
        Failure::Load(error)
    }
}
