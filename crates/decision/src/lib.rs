//! What is asked and answered: a record becomes a prompt, a prompt becomes token ids with spans, and logits become
//! answers.
//!
//! ```text
//! JSON text ──parse──► Value ──Record::from_value──► Record ──Encoder──► Encoded        Logits ──answer──► Answers
//! ```
//!
//! Everything here is a pure function: no I/O, no threads, no `unsafe`. Text ends at [`Encoded`]; the rest of the
//! program sees token ids and spans.
#![forbid(unsafe_code)]

mod answer;
mod encode;
mod encoded;
mod fault;
mod float;
pub mod json;
mod media;
mod prompt;
mod record;
mod render;
mod tokenize;

pub use answer::{Answer, Answers, NonFiniteLogits, Profile, Raw, Verdict, answer};
pub use encode::{Budget, COUNTED_MAX, EncodeError, Encoder, OverLength, SPLIT_TOKENS_MAX};
pub use encoded::{Encoded, EncodedOption, EncodedQuestion, Kind, Logits, Span};
pub use fault::{Fault, FaultKind, STEP_CHARS_MAX, Step, printable};
pub use json::Value;
pub use media::{IMAGES_MAX, Part};
pub use record::{FAULTS_MAX, Forms, Limits, Options, Question, Record};
pub use render::render;
pub use tokenize::{Detokenize, Tokenize};
