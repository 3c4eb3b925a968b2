//! Requests from files and standard input, bounded: JSON, a line each, or the rows of a Parquet file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

use descant_server::Refused;

use crate::failure::Failure;
use crate::rows::Rows;

/// Longest request, in bytes; the same as the server's default for a body.
pub(crate) const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Where requests come from, and what it is called in messages.
pub(crate) struct Source {
    records: Records,
    name: String,
}

/// How an input is divided into requests.
enum Records {
    /// Into lines.
    Lines(Box<dyn BufRead>),
    /// Into rows.
    Rows(Box<Rows>),
}

/// One line of a file of requests.
pub(crate) enum Line {
    /// The line, without its end.
    Text(Vec<u8>),
    /// One that cannot be read: longer than [`REQUEST_BYTES_MAX`] bytes, or a row that makes no request.
    Refused(Refused),
}

impl Source {
    /// Opens a file, or standard input for `-`. A file whose name ends in `.gz` is decompressed; one that begins as
    /// Parquet does, or whose name says so, is read as that.
    pub(crate) fn open(path: &Path) -> Result<Source, Failure> {
        if path == Path::new("-") {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                crate::say("reading a request from the terminal; end it with ctrl-d");
            }
            return Ok(Source {
                records: Records::Lines(Box::new(BufReader::new(stdin))),
                name: "standard input".to_owned(),
            });
        }
        let name = path.display().to_string();
        match records(path) {
            Ok(records) => Ok(Source { records, name }),
            Err(source) => Err(Failure::Input { name, source }),
        }
    }

    /// What the input is called in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the whole input as one request.
    pub(crate) fn whole(mut self) -> Result<Vec<u8>, Failure> {
        let Records::Lines(reader) = &mut self.records else {
            let fault = "a Parquet file holds many requests; `descant batch` answers them";
            return Err(self.wrong(io::Error::new(io::ErrorKind::InvalidInput, fault)));
        };
        let mut bytes = Vec::new();
        match reader
            .take(REQUEST_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes)
        {
            Ok(_) if bytes.len() > REQUEST_BYTES_MAX => Err(self.too_big()),
            Ok(_) => Ok(bytes),
            Err(source) => Err(self.wrong(source)),
        }
    }

    /// Reads the next line; `None` at the end of the input.
    pub(crate) fn line(&mut self) -> Result<Option<Line>, Failure> {
        let line = match &mut self.records {
            Records::Lines(reader) => line(reader),
            Records::Rows(rows) => rows.next().map_err(unusable),
        };
        line.map_err(|source| self.wrong(source))
    }

    /// How many requests the input has from here on: lines that are not blank, or rows.
    pub(crate) fn count(mut self) -> Result<u64, Failure> {
        if let Records::Rows(rows) = &self.records {
            return Ok(rows.count());
        }
        let mut count = 0;
        while let Some(line) = self.line()? {
            count += u64::from(!line.is_blank());
        }
        Ok(count)
    }

    fn wrong(&self, source: io::Error) -> Failure {
        Failure::Input {
            name: self.name.clone(),
            source,
        }
    }

    fn too_big(&self) -> Failure {
        Failure::InputTooBig {
            name: self.name.clone(),
            allowed_bytes: REQUEST_BYTES_MAX,
        }
    }
}

impl Line {
    /// Whether there is no request in it.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Line::Text(text) => text.iter().all(u8::is_ascii_whitespace),
            Line::Refused(_) => false,
        }
    }
}

/// Reads the next line, without its end.
fn line(reader: &mut dyn BufRead) -> io::Result<Option<Line>> {
    let mut bytes = Vec::new();
    let mut bounded = (&mut *reader).take(REQUEST_BYTES_MAX as u64 + 1);
    bounded.read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() > REQUEST_BYTES_MAX {
        skip_line(reader)?;
        return Ok(Some(Line::Refused(Refused::BodyTooBig {
            allowed_bytes: REQUEST_BYTES_MAX,
        })));
    }
    Ok(Some(Line::Text(bytes)))
}

/// Reads to the end of the line and forgets it.
fn skip_line(reader: &mut dyn BufRead) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        let (used, done) = match buffer.iter().position(|&byte| byte == b'\n') {
            Some(end) => (end + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        reader.consume(used);
        if done {
            return Ok(());
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

/// Opens a file as what it is.
fn records(path: &Path) -> io::Result<Records> {
    let mut reader = BufReader::new(open_regular(path)?);
    let is_named = |kind: &str| path.extension().is_some_and(|found| found == kind);
    if is_named("gz") {
        let decoder = flate2::read::MultiGzDecoder::new(reader);
        return Ok(Records::Lines(Box::new(BufReader::new(decoder))));
    }
    if is_named("parquet") || reader.fill_buf()?.starts_with(b"PAR1") {
        let rows = Rows::open(reader.into_inner()).map_err(unusable)?;
        return Ok(Records::Rows(Box::new(rows)));
    }
    Ok(Records::Lines(Box::new(reader)))
}

fn unusable(fault: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
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
            records: Records::Lines(Box::new(io::Cursor::new(text.to_vec()))),
            name: "a test".to_owned(),
        }
    }

    fn texts(mut source: Source) -> Vec<Option<Vec<u8>>> {
        let mut lines = Vec::new();
        while let Some(line) = source.line().unwrap() {
            lines.push(match line {
                Line::Text(text) => Some(text),
                Line::Refused(_) => None,
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
