//! Chat and completions, as OpenAI's clients speak.
//!
//! ```text
//! body ─► fields ─► order ─► template ─► tokenizer ─► engine ─► teller ─► form ─► reply, or events
//!                                                        token ─► characters ─► stop strings ─► tool calls
//! ```
//!
//! The text of a reply is a function of the prompt's tokens, the terms and the weights: streamed or not, it is the
//! same. What may still become part of a character or of a stop string is held back until it is known.
//!
//! Start reading at `routes.rs`.

mod calls;
mod desk;
mod fields;
mod form;
mod generation;
mod grammar;
mod journal;
mod messages;
mod order;
pub(crate) mod routes;
mod teller;
mod template;
mod text;
mod tokens;

pub use desk::{ChatDesk, Vocabulary};
pub(crate) use routes::routes;
pub use template::{ChatTemplate, TemplateError};
