//! The progress of a fetch on standard error: a bar on a terminal, a line a file elsewhere.

use std::io::{IsTerminal, stderr};

use descant_decision::printable;
use descant_release::hub::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// Shows what a fetch does.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    bar: Option<ProgressBar>,
}

impl Progress for Bars {
    fn file(&mut self, name: &str, bytes: u64, present: u64) {
        self.done();
        let name = printable(name);
        if !stderr().is_terminal() {
            crate::say(&format!(
                "fetching {name}: {bytes} bytes, {present} of them here already"
            ));
            return;
        }
        let bar = ProgressBar::new(bytes)
            .with_style(style())
            .with_message(name);
        bar.set_position(present);
        bar.reset_eta();
        self.bar = Some(bar);
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn done(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }

    fn note(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| crate::say(text)),
            None => crate::say(text),
        }
    }
}

fn style() -> ProgressStyle {
    let template =
        "{msg:32!} {wide_bar} {bytes:>10} of {total_bytes:>10}  {bytes_per_sec:>12}  {eta:>5} left";
    ProgressStyle::with_template(template).expect("the template is a constant")
}
