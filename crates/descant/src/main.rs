//! The program: flags, settings, start, stop.
//!
//! ```text
//! decide  request ─► desk ─► engine ─► desk ─► reply          one process, one request or a file of them
//! encode  request ─► desk ─► token ids and spans              the tokenizer only
//! hidden  token ids ─► engine ─► hidden rows                  the backbone only
//! info    config files and headers ─► sizes
//! serve   the same as decide, over HTTP
//! batch   a file of requests ─► several at work ─► a file of replies, continued after a kill
//! eval    the same, against labels ─► figures
//! verify  receipt, request ─► the same once more, compared
//! compare the same by two models, servers or files ─► how far apart they are
//! bench   requests ─► a server, or rounds ─► a device ─► times, and whether answers stay the same in company
//! prove   made-up records ─► many engines, in all company ─► equal bits or not
//! ```
//!
//! Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 refused or failed, 2 wrong
//! usage.
#![forbid(unsafe_code)]

mod args;
mod backend;
mod batch;
mod bench;
mod compare;
mod decide;
mod dummy;
mod embedded;
mod encode;
mod eval;
mod failure;
mod hidden;
mod info;
mod input;
mod journal;
mod keys;
mod load;
mod log;
mod meter;
mod output;
mod progress;
mod prove;
mod reading;
mod rows;
mod samples;
mod serve;
mod several;
mod traces;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Batch(args) => batch::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Decide(args) => decide::run(&args),
        Command::Encode(args) => encode::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Hidden(args) => hidden::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Prove(args) => prove::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Verify(args) => verify::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                say(&message);
            }
            failure.code()
        }
    }
}

/// Prints a line for the user on standard error. That nobody may read it is no reason to stop.
fn say(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{message}");
}
