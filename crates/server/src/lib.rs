//! How it is spoken: HTTP routes, the error table, limits, headers.
//!
//! ```text
//! socket ─► connection ─► App::answer ─► route ─► body ─► Desk::read ─► engine ─► Asking::reply ─► bytes and headers
//!                              │                    └────────┴── Refused ──────────────┴────────► the error table
//!                              └── request id, log line, panics
//! ```
//!
//! Invariants: every request is answered, in JSON, with a request id; a client's mistake is a 4xx that names the field;
//! status codes are known in `error.rs` alone; whatever a client can make the server hold has a bound in
//! [`Limits`]; bodies are parsed and tokenised on threads of their own, never on those that serve connections; a client
//! that leaves cancels its work; no text of a client goes into the log.
//!
//! Start reading at [`App`], then [`Desk`].
#![forbid(unsafe_code)]

mod app;
mod body;
mod chat;
mod connection;
mod error;
mod limits;
mod models;
mod names;
mod panic;
mod patience;
mod request_id;
mod systemone;

pub use app::{App, Setup};
pub use chat::{ChatDesk, ChatTemplate, TemplateError, Vocabulary};
pub use connection::serve;
pub use error::Refused;
pub use limits::Limits;
pub use models::Card;
pub use names::{Asked, Names, Size};
pub use systemone::{Asking, Confidence, Desk, Reply};
