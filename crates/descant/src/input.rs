//! Requests from files and standard input, bounded.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Longest request, in bytes; the same as the server's default for a body.
pub(crate) const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Where requests come from, and what it is called in messages.
pub(crate) struct Source {
    reader: Box<dyn BufRead>,
    name: String,
}

/// One line of a file of requests.
pub(crate) enum Line {
    /// The line, without its end.
    Text(Vec<u8>),
    /// A line with more than [`REQUEST_BYTES_MAX`] bytes; it was skipped.
    TooLong,
}

impl Source {
    /// Opens a file, or standard input for `-`. A file whose name ends in `.gz` is decompressed.
    pub(crate) fn open(path: &Path) -> Result<Source, Failure> {
        if path == Path::new("-") {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                crate::say("reading a request from the terminal; end it with ctrl-d");
            }
            return Ok(Source {
                reader: Box::new(BufReader::new(stdin)),
                name: "standard input".to_owned(),
            });
        }
        let name = path.display().to_string();
        match open_regular(path) {
            Ok(file) if path.extension().is_some_and(|kind| kind == "gz") => Ok(Source {
                reader: Box::new(BufReader::new(flate2::read::MultiGzDecoder::new(file))),
                name,
            }),
            Ok(file) => Ok(Source {
                reader: Box::new(BufReader::new(file)),
                name,
            }),
            Err(source) => Err(Failure::Input { name, source }),
        }
    }

    /// What the input is called in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the whole input as one request.
    pub(crate) fn whole(mut self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        let mut reader = (&mut self.reader).take(REQUEST_BYTES_MAX as u64 + 1);
        match reader.read_to_end(&mut bytes) {
            Ok(_) if bytes.len() > REQUEST_BYTES_MAX => Err(self.too_big()),
            Ok(_) => Ok(bytes),
            Err(source) => Err(Failure::Input {
                name: self.name,
                source,
            }),
        }
    }

    /// Reads the next line; `None` at the end of the input.
    pub(crate) fn line(&mut self) -> Result<Option<Line>, Failure> {
        let mut bytes = Vec::new();
        let mut reader = (&mut self.reader).take(REQUEST_BYTES_MAX as u64 + 1);
        let read = reader.read_until(b'\n', &mut bytes);
        read.map_err(|source| Failure::Input {
            name: self.name.clone(),
            source,
        })?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        } else if bytes.len() > REQUEST_BYTES_MAX {
            self.skip_line()?;
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Text(bytes)))
    }

    /// Reads to the end of the line and forgets it.
    fn skip_line(&mut self) -> Result<(), Failure> {
        loop {
            let buffer = self.reader.fill_buf();
            let buffer = buffer.map_err(|source| Failure::Input {
                name: self.name.clone(),
                source,
            })?;
            let (used, done) = match buffer.iter().position(|&byte| byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            };
            self.reader.consume(used);
            if done {
                return Ok(());
            }
        }
    }

    fn too_big(&self) -> Failure {
        Failure::InputTooBig {
            name: self.name.clone(),
            allowed_bytes: REQUEST_BYTES_MAX,
        }
    }
}

/// Reads a JSON array of token ids below `vocab`.
pub(crate) fn token_ids(path: &Path, vocab: usize) -> Result<Vec<u32>, Failure> {
    let bytes = Source::open(path)?.whole()?;
    let wrong = |fault: String| Failure::Ids {
        file: PathBuf::from(path),
        fault,
    };
    let ids: Vec<serde_json::Value> = serde_json::from_slice(&bytes)
        .map_err(|error| wrong(format!("not a JSON array of token ids: {error}")))?;
    if ids.is_empty() {
        return Err(wrong("no token ids".to_owned()));
    }
    let id = |(index, id): (usize, &serde_json::Value)| {
        let small = id.as_u64().and_then(|id| u32::try_from(id).ok());
        small.filter(|&id| (id as usize) < vocab).ok_or_else(|| {
            wrong(format!(
                "element {index} is {id}, token ids are integers from 0 to {}",
                vocab - 1
            ))
        })
    };
    ids.iter().enumerate().map(id).collect()
}

/// Opens a file that can be read to an end: a directory is refused by name, where reading it would say less.
fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    match file.metadata()?.is_dir() {
        true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        false => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &[u8]) -> Source {
        Source {
            reader: Box::new(io::Cursor::new(text.to_vec())),
            name: "a test".to_owned(),
        }
    }

    fn texts(mut source: Source) -> Vec<Option<Vec<u8>>> {
        let mut lines = Vec::new();
        while let Some(line) = source.line().unwrap() {
            lines.push(match line {
                Line::Text(text) => Some(text),
                Line::TooLong => None,
            });
        }
        lines
    }

    #[test]
    fn lines_come_without_their_ends() {
        let some = |text: &[u8]| Some(text.to_vec());
        assert_eq!(
            texts(source(b"a\n\nb")),
            [some(b"a"), some(b""), some(b"b")]
        );
        assert_eq!(texts(source(b"a\n")), [some(b"a")]);
        assert_eq!(texts(source(b"")), [] as [Option<Vec<u8>>; 0]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_whole() {
        let longest = vec![b'x'; REQUEST_BYTES_MAX];
        let text = [&longest[..], b"\n", &longest, b"y\nlast\n"].concat();
        assert_eq!(
            texts(source(&text)),
            [Some(longest), None, Some(b"last".to_vec())]
        );
    }

    #[test]
    fn an_input_that_is_too_big_is_refused() {
        assert!(source(&vec![b' '; REQUEST_BYTES_MAX]).whole().is_ok());
        let failure = source(&vec![b' '; REQUEST_BYTES_MAX + 1])
            .whole()
            .unwrap_err();
        assert!(failure.to_string().contains("a test"), "{failure}");
    }
}
