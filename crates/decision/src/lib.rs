//! What is asked and answered: a record becomes a prompt, a prompt becomes token ids with spans, and logits become
//! answers.
//!
//! ```text
//! JSON text ──parse──► Value ──Record::from_json──► Record ──encode──► Encoded        Logits ──answer──► Answers
//! ```
//!
//! Everything here is a pure function: no I/O, no threads, no `unsafe`. Text ends at [`Encoded`]; the rest of the
//! program sees token ids and spans.
#![forbid(unsafe_code)]

mod encoded;

pub use encoded::{Encoded, EncodedOption, EncodedQuestion, Kind, Logits, Span};
