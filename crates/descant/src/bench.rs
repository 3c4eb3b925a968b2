//! `descant bench`: how fast it is.

mod http;
mod model;

use crate::args::{Bench, BenchWhat};
use crate::failure::Failure;

pub(crate) fn run(args: &Bench) -> Result<(), Failure> {
    match &args.what {
        BenchWhat::Http(args) => http::run(args),
        BenchWhat::Model(args) => model::run(args),
    }
}
