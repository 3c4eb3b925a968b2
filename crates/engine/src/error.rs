//! Why the engine does not answer.

use std::error::Error;
use std::fmt;

use descant_model::{CHUNK_ROWS, Defect};

/// Why a job got no answer. Every job gets exactly one answer or one of these.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineError {
    /// The line is full, or the job waited in it for as long as a job may.
    Busy {
        /// When another try is likely to be taken, in milliseconds.
        retry_after_ms: u64,
    },
    /// The client dropped its ticket.
    Cancelled,
    /// The engine is shutting down.
    Closing,
    /// The job's own time limit passed.
    Deadline,
    /// The device or the weights failed; the request is not to blame.
    Defect(Defect),
    /// A prompt of no tokens.
    EmptyPrompt,
    /// A decision, but the release has no joint schema head.
    NoHead,
    /// Next-token logits that are not finite: the weights are damaged or overflow.
    NonFiniteLogits,
    /// Piece rows that are no positive multiple of [`CHUNK_ROWS`].
    PieceRows {
        /// What was asked for.
        found: usize,
    },
    /// A sampling parameter outside its range.
    Sampling {
        /// Name of the parameter.
        name: &'static str,
        /// What it may be.
        wanted: &'static str,
    },
    /// A token id that the embedding has no row for.
    TokenId {
        /// Index of the id in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// A prompt with more rows than a slot holds.
    TooLong {
        /// Rows of the prompt.
        needed: usize,
        /// Rows of a slot.
        allowed: usize,
    },
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Busy { retry_after_ms } => {
                write!(f, "all places are taken; try again in {retry_after_ms} ms")
            }
            EngineError::Cancelled => write!(f, "the request was cancelled"),
            EngineError::Closing => write!(f, "the server is shutting down"),
            EngineError::Deadline => write!(f, "the request's time limit passed"),
            EngineError::Defect(defect) => defect.fmt(f),
            EngineError::EmptyPrompt => write!(f, "the prompt has no tokens"),
            EngineError::NoHead => write!(
                f,
                "this release has no joint schema head, so it cannot answer questions"
            ),
            EngineError::NonFiniteLogits => write!(
                f,
                "the next-token logits are not finite; the weights are damaged or overflow"
            ),
            EngineError::PieceRows { found } => write!(
                f,
                "a piece of {found} rows; it must be a positive multiple of {CHUNK_ROWS}"
            ),
            EngineError::Sampling { name, wanted } => write!(f, "{name} must be {wanted}"),
            EngineError::TokenId { index, id, vocab } => write!(
                f,
                "token {index} is {id}, but the model has {vocab} tokens, counted from 0"
            ),
            EngineError::TooLong { needed, allowed } => write!(
                f,
                "the prompt has {needed} tokens, the server was started for at most {allowed}"
            ),
        }
    }
}

impl Error for EngineError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            EngineError::Defect(defect) => Some(defect),
            _ => None,
        }
    }
}

impl From<Defect> for EngineError {
    fn from(defect: Defect) -> EngineError {
        EngineError::Defect(defect)
    }
}
