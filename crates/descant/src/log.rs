//! The log on standard error.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;
use crate::failure::Failure;

/// Starts the log for the whole process.
///
/// # Errors
/// [`Failure::LogFilter`] if the filter cannot be read.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<(), Failure> {
    let parsed = EnvFilter::try_new(filter).map_err(|error| Failure::LogFilter {
        found: filter.to_owned(),
        fault: error.to_string(),
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(io::stderr);
    match format {
        LogFormat::Json => log.json().flatten_event(true).with_target(false).init(),
        LogFormat::Text => log.with_target(false).with_ansi(false).init(),
    }
    Ok(())
}
