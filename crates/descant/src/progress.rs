//! The progress of a fetch and of loading, on standard error: a bar on a terminal; elsewhere a fetch says a line a file.

use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use descant_decision::printable;
use descant_release::Release;
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

/// Loads a release's weights by `load`, with a bar if standard error is a terminal.
pub(crate) fn loading<T>(release: &Release, load: impl FnOnce() -> T) -> T {
    let bytes = release.bytes() as u64;
    // Smaller ones are there before a bar can be seen.
    if !stderr().is_terminal() || bytes < BAR_BYTES {
        return load();
    }
    let bar = ProgressBar::new(bytes)
        .with_style(style())
        .with_message("weights");
    let (loaded, watched) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            let watched = watched;
            while watched.recv_timeout(BAR_PAUSE) == Err(RecvTimeoutError::Timeout) {
                bar.set_position((release.touched() * bytes as f64) as u64);
            }
            bar.finish_and_clear();
        });
        let result = load();
        drop(loaded);
        result
    })
}

fn style() -> ProgressStyle {
    let template =
        "{msg:32!} {wide_bar} {bytes:>10} of {total_bytes:>10}  {bytes_per_sec:>12}  {eta:>5} left";
    ProgressStyle::with_template(template).expect("the template is a constant")
}

/// Weights that are loaded with a bar, from so many bytes on.
const BAR_BYTES: u64 = 256 << 20;
/// Time between two looks at what was loaded.
const BAR_PAUSE: Duration = Duration::from_millis(100);
