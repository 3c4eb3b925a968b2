//! The program: flags, settings, start, stop.
#![forbid(unsafe_code)]

fn main() {}
