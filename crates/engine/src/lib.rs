//! Who runs when: rounds, slots, caches, memory.
//!
//! One thread owns the backend. Jobs come in through a door with a bounded number of places; what happens is noted as
//! an event; then a pure function plans the next round: the next token of every chat stream, and pieces of the prompts
//! that wait. The hidden rows of decisions go to the head, which runs on threads of its own beside the next round.
//!
//! ```text
//! Handle ──door──► queue ──slot──► prompt ──rows──► Backend::run ──hidden rows──► HeadRun ──logits──► Ticket
//!                                    │                  ▲
//!                                    └── chat ──► next token ──────────────────────────────────────► TokenStream
//! ```
//!
//! Invariants:
//! * Nothing here changes a number: not the round a row is in, nor its neighbours, nor the cut into pieces, nor a hit in
//!   the state cache, nor the number of the head's threads.
//! * A job has one way in and leaves once; all that it holds are guards that it owns, so every way out gives them back.
//! * Every ticket gets one answer, whatever panics.
//! * The engine never waits for a client or for the head.
//!
//! Start reading at [`Handle`], then `machine.rs` (a job's life), then `plan.rs` (who runs next).
#![forbid(unsafe_code)]

mod budget;
mod cache;
mod clock;
mod door;
mod engine;
mod error;
mod job;
mod jury;
mod machine;
mod pipe;
mod plan;
mod sampling;
mod settings;
mod slots;
mod stats;
mod ticket;
mod times;

pub use budget::{Advice, BudgetFlag, BudgetItem, OverBudget, budget_total, check_budget};
pub use engine::{Engine, GenerateOptions, Handle, JobOptions, StartError};
pub use error::EngineError;
pub use sampling::{Constraint, Sampling, Token};
pub use settings::{Settings, SettingsError};
pub use stats::{Health, Stats};
pub use ticket::{
    Decided, FinishReason, Finished, HiddenRows, HiddenStream, StreamItem, Ticket, TokenStream,
};
pub use times::Times;
