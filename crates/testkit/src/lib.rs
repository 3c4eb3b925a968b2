//! For tests: fixtures, bands, a fake backend.
#![forbid(unsafe_code)]
