//! What is computed, apart from where: the [`Backend`] and [`Head`] traits that every device implements, and the
//! plain f64 [`mod@reference`] that judges their errors.
//!
//! The backbone has two ways in, no more: prefill rows (a prompt's pieces) and decode rows (a chat stream's next
//! token), both through [`Backend::run`]. A decision's hidden rows go to a [`HeadRun`], which gives the logits; a chat
//! stream's next token is a [`Choice`] among logits, by [`Backend::sample`] or by [`mod@choice`] itself.
#![forbid(unsafe_code)]

mod backend;
pub mod choice;
mod error;
mod head;
pub mod reference;

pub use backend::{Backend, CHUNK_ROWS, Capacity, KeptRows, Pass, Saved, Segment, Slot};
pub use choice::{ADJUSTMENTS_MAX, Adjustment, Choice};
pub use error::Defect;
pub use head::{Head, HeadRun, HeadWeights, SavedMemory};
