//! How it is spoken: HTTP routes, the error table, limits, headers.
//!
//! ```text
//! socket ─► connection ─► App::answer ─► route ─► body ─► Desk::read ─► engine ─► Asking::reply ─► bytes and headers
//!                              │                    └────────┴── Refused ──────────────┴────────► the error table
//!                              └── key, request id, figures, log line, panics
//! ```
//!
//! Invariants: every request is answered, in JSON, with a request id; a client's mistake is a 4xx that names the field;
//! status codes are known in `error` alone; whatever a client can make the server hold has a bound in
//! [`Limits`]; bodies are parsed and tokenised on threads of their own, never on those that serve connections; a client
//! that leaves cancels its work; no text of a client goes into the log or the figures.
//!
//! Start reading at [`App`], then [`Desk`].
#![forbid(unsafe_code)]

mod app;
mod auth;
mod body;
mod chat;
mod connection;
mod cors;
mod courtesy;
mod decisions;
mod error;
mod hall;
mod limits;
mod metrics;
mod models;
mod multipart;
mod names;
mod openapi;
mod page;
mod panic;
mod patience;
mod receipt;
mod request_id;
mod routes;
mod spans;
mod systemone;
pub mod wire;
mod workers_ai;

pub use app::App;
pub use auth::Keys;
pub use chat::{ChatDesk, ChatTemplate, TemplateError, Vocabulary};
pub use connection::serve;
pub use cors::Origins;
pub use courtesy::make_way_for_connections;
pub use error::{Family, Refused};
pub use hall::{Front, Progress, Setup};
pub use limits::Limits;
pub use models::Card;
pub use names::{Asked, Names, Size};
pub use receipt::{ModelDigests, Provenance, Receipt};
pub use spans::{SpanCounts, Traces};
pub use systemone::{Asking, Confidence, Desk, ModelEcho, Reading, Reply};
