//! How it is spoken: HTTP routes, the error table, limits, headers.
#![forbid(unsafe_code)]

mod body;
mod error;
mod limits;
mod models;
mod names;
mod panic;
mod request_id;

pub use error::Refused;
pub use limits::Limits;
pub use names::{Asked, Names, Size};
