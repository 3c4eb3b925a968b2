//! Results on standard output.

use std::io::{self, StdoutLock, Write};

use descant_decision::json::{Object, to_json};
use descant_server::Refused;

use crate::failure::Failure;

/// What stands in the place of a reply to a request that was refused.
pub(crate) fn error_line(refused: &Refused) -> String {
    to_json(&Object::new().with("error", refused.error_object()).into())
}

/// Standard output, held for the whole run.
pub(crate) struct Output(StdoutLock<'static>);

impl Output {
    pub(crate) fn open() -> Output {
        Output(io::stdout().lock())
    }

    /// Prints text and an end of line, at once: whoever reads a line of `--jsonl` may wait for it.
    ///
    /// # Errors
    /// [`Failure::OutputClosed`] when the reader has left, which is no fault, or what the system says.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(b'\n');
        let written = self.0.write_all(&bytes).and_then(|()| self.0.flush());
        written.map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Output { source },
        })
    }
}
