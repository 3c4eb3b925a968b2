//! `descant bench`: how fast it is.

mod http;

use crate::args::{Bench, BenchWhat};
use crate::failure::Failure;

pub(crate) fn run(args: &Bench) -> Result<(), Failure> {
    match &args.what {
        BenchWhat::Http(args) => http::run(args),
    }
}
