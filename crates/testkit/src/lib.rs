//! For tests: where the fixtures are, bands, equality on bits, a fake backend.
//!
//! Everything here panics with a message that says where: a test has no other use for an error.
#![forbid(unsafe_code)]

mod band;
mod bits;
pub mod drawn;
pub mod drive;
pub mod fake;
pub mod fixtures;
pub mod head_cases;
pub mod seeded;

pub use band::Band;
pub use bits::assert_same_bits;
