//! The progress of a run over many records: a bar on a terminal, nothing elsewhere.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};

/// Counts records.
pub(crate) struct Meter(Option<ProgressBar>);

impl Meter {
    /// Starts at `done` of `all` records, as far as that is known.
    pub(crate) fn start(done: u64, all: Option<u64>) -> Meter {
        Meter::of("records", done, all)
    }

    /// The same for things of another name.
    pub(crate) fn of(things: &str, done: u64, all: Option<u64>) -> Meter {
        if !stderr().is_terminal() {
            return Meter(None);
        }
        let bar = match all {
            Some(all) => ProgressBar::new(all).with_style(style(
                "{wide_bar} {pos} of {len} {prefix}  {per_sec:>10}  {eta:>5} left",
            )),
            None => ProgressBar::no_length().with_style(style("{pos} {prefix}  {per_sec:>10}")),
        };
        bar.set_prefix(things.to_owned());
        bar.set_position(done);
        bar.reset_eta();
        Meter(Some(bar))
    }

    /// One more is done.
    pub(crate) fn one(&self) {
        self.more(1);
    }

    /// So many more are done.
    pub(crate) fn more(&self, count: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(count);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.abandon();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}
