//! The flags of `descant prove`.

use std::path::PathBuf;

use clap::Args;

use super::{Accept, Compute, DummyFlag, Length, ModelFlag, mebibytes, piece_rows, positive};
use crate::prove::{Cache, Company};

/// Show that the same request gives the same bits, whatever else happens.
///
/// Answers one set of records and chats in every combination of threads, pieces, company and state cache, and compares
/// the bits of every logit with the plain run: one thread, the prompt in one piece, alone, nothing cached. Exits with 1
/// if an answer differs, or if a combination did not happen as it was meant to.
#[derive(Debug, Args)]
pub(crate) struct Prove {
    #[command(flatten)]
    pub(crate) model: ModelFlag,
    /// Records to take besides the made-up ones, a line each.
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) records: Option<PathBuf>,
    /// Take fewer and shorter made-up records.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Go on, with other company, until at least so many answers were compared.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) comparisons: Option<usize>,
    /// Numbers of threads; --threads names one alone.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8", value_parser = positive)]
    pub(crate) thread_counts: Vec<usize>,
    /// Rows of a piece, multiples of 64.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,256,4096", value_parser = piece_rows)]
    pub(crate) pieces: Vec<usize>,
    /// Who else is on the device.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = COMPANY)]
    pub(crate) company: Vec<Company>,
    /// What the state cache does.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_values_t = CACHE)]
    pub(crate) cache: Vec<Cache>,
    /// Memory for states of earlier prompts, in MiB; all records' must fit.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = mebibytes)]
    pub(crate) cache_mb: usize,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) accept: Accept,
    #[command(flatten)]
    pub(crate) length: Length,
    #[command(flatten)]
    pub(crate) compute: Compute,
    #[command(flatten)]
    pub(crate) dummy: DummyFlag,
}

const COMPANY: [Company; 6] = [
    Company::Alone,
    Company::Three,
    Company::Eight,
    Company::Mixed,
    Company::Cancelled,
    Company::Chat,
];
const CACHE: [Cache; 2] = [Cache::Cold, Cache::Hit];
