//! Files of whole lines that a run can be killed at and continued.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use descant_decision::Value;
use descant_decision::json::to_json;
use ring::digest::{Context, SHA256};

use crate::embedded;
use crate::failure::Failure;
use crate::input::Source;
use crate::load::Place;

/// How often written lines are brought to the disk.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// A file up to this size is digested whole, of a longer one its size and its ends of this size.
const WHOLE_BYTES_MAX: u64 = 64 << 20;

/// An append-only file of lines, each a JSON object; held by one process at a time.
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    synced: Instant,
}

impl Journal {
    /// Opens or makes a file, hands its complete lines to `keep` in order, and cuts what comes after them: a line that
    /// was being written when a run was killed, or what a crash of the machine left there.
    ///
    /// # Errors
    /// If another process writes it, it cannot be read or written, or `keep` fails; then it is left as it was.
    pub(crate) fn open(
        path: &Path,
        mut keep: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<Journal, Failure> {
        let wrong = |source| Failure::File {
            file: path.to_owned(),
            source,
        };
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path);
        let mut file = open.map_err(wrong)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let fault = "another process is writing it";
                return Err(Failure::Resume {
                    file: path.to_owned(),
                    fault,
                });
            }
            Err(TryLockError::Error(source)) => return Err(wrong(source)),
        }
        let (mut reader, mut line, mut end) = (BufReader::new(&file), Vec::new(), 0);
        while reader.read_until(b'\n', &mut line).map_err(wrong)? > 0 && is_whole(&line) {
            keep(&line[..line.len() - 1])?;
            end += line.len() as u64;
            line.clear();
        }
        file.set_len(end)
            .and_then(|()| file.seek(SeekFrom::Start(end)))
            .map_err(wrong)?;
        Ok(Journal {
            file,
            path: path.to_owned(),
            synced: Instant::now(),
        })
    }

    /// Appends a line.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.file.write_all(format!("{text}\n").as_bytes());
        written.map_err(|source| self.wrong(source))?;
        if self.synced.elapsed() < SYNC_EVERY {
            return Ok(());
        }
        self.synced = Instant::now();
        self.sync()
    }

    /// Brings all lines to the disk.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.file.sync_data().map_err(|source| self.wrong(source))
    }

    fn wrong(&self, source: io::Error) -> Failure {
        Failure::File {
            file: self.path.clone(),
            source,
        }
    }
}

/// Whether a line has its end and looks like an object. Zero bytes are what a crash can leave in a file's last block.
fn is_whole(line: &[u8]) -> bool {
    line.starts_with(b"{") && line.ends_with(b"}\n") && !line.contains(&0)
}

/// Writes a small file so that it is there as a whole or not at all.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&part, path)
    };
    write().map_err(|source| Failure::File {
        file: path.to_owned(),
        source,
    })
}

/// SHA-256 of a file of requests as it lies on disk, and how many requests it has.
pub(crate) fn digest_of_records(path: &Path) -> Result<(String, u64), Failure> {
    let count = Source::open(path)?.count()?;
    Ok((digest_of_file(path)?, count))
}

fn digest_of_file(path: &Path) -> Result<String, Failure> {
    let wrong = |source| Failure::File {
        file: path.to_owned(),
        source,
    };
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(wrong)?);
    let mut digest = Context::new(&SHA256);
    loop {
        let bytes = reader.fill_buf().map_err(wrong)?;
        if bytes.is_empty() {
            return Ok(hex(digest));
        }
        digest.update(bytes);
        let used = bytes.len();
        reader.consume(used);
    }
}

/// What tells a model from others: SHA-256 over the names, sizes and contents of its files. Of files above 64 MiB the
/// first and last 64 MiB are read, so that it takes seconds where the weights take minutes.
pub(crate) fn digest_of_model(place: &Place, clef: Option<&Path>) -> Result<String, Failure> {
    let mut digest = Context::new(&SHA256);
    match place.texts()? {
        None => embedded::FILES.iter().for_each(|(name, bytes)| {
            digest.update(name.as_bytes());
            digest.update(bytes);
        }),
        Some(directory) => {
            for directory in [Some(&*directory), clef].into_iter().flatten() {
                digest_directory(&mut digest, directory).map_err(|source| Failure::File {
                    file: directory.to_owned(),
                    source,
                })?;
            }
        }
    }
    Ok(hex(digest))
}

fn digest_directory(digest: &mut Context, directory: &Path) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        if matches!(kind, Some("json" | "safetensors")) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    for path in files {
        let mut file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        digest.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        digest.update(&bytes.to_le_bytes());
        digest_part(digest, &mut file)?;
        if bytes > WHOLE_BYTES_MAX {
            file.seek(SeekFrom::Start(bytes - WHOLE_BYTES_MAX))?;
            digest_part(digest, &mut file)?;
        }
    }
    Ok(())
}

fn digest_part(digest: &mut Context, file: &mut File) -> io::Result<()> {
    let (mut part, mut buffer) = (file.take(WHOLE_BYTES_MAX), vec![0; 1 << 20]);
    loop {
        match part.read(&mut buffer)? {
            0 => return Ok(()),
            read => digest.update(&buffer[..read]),
        }
    }
}

fn hex(digest: Context) -> String {
    digest
        .finish()
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A line that says what a file answers.
pub(crate) fn identity(entries: impl IntoIterator<Item = (&'static str, Value)>) -> String {
    to_json(&Value::Object(entries.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(text: &[u8]) -> (Vec<String>, Vec<u8>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut kept = Vec::new();
        let journal = Journal::open(file.path(), |line| {
            kept.push(String::from_utf8(line.to_vec()).unwrap());
            Ok(())
        });
        journal.unwrap().line("{}").unwrap();
        (kept, std::fs::read(file.path()).unwrap())
    }

    #[test]
    fn whole_lines_stay_and_the_rest_is_cut() {
        let cases: [(&[u8], &[u8]); 5] = [
            (b"", b""),
            (b"{1}\n{2}\n", b"{1}\n{2}\n"),
            (b"{1}\n{2", b"{1}\n"),
            (b"{1}\n{2}", b"{1}\n"),
            (b"{1}\n{\0\0}\n{3}\n", b"{1}\n"),
        ];
        for (text, whole) in cases {
            let (kept, after) = opened(text);
            assert_eq!(
                kept.iter().map(|line| line.len() + 1).sum::<usize>(),
                whole.len()
            );
            assert_eq!(after, [whole, b"{}\n"].concat());
        }
    }

    #[test]
    fn a_file_is_written_by_one_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let _held = Journal::open(file.path(), |_| Ok(()))
            .map_err(|e| e.to_string())
            .unwrap();
        let second = Journal::open(file.path(), |_| Ok(())).err().unwrap();
        assert!(matches!(second, Failure::Resume { .. }), "{second}");
    }

    #[test]
    fn lines_that_are_blank_do_not_count_and_gzip_changes_no_count() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}\n\n  \n{}\n{}").unwrap();
        let (digest, lines) = digest_of_records(file.path()).unwrap();
        assert_eq!(lines, 3);
        // From `printf '{}\n\n  \n{}\n{}' | sha256sum`.
        assert_eq!(
            digest,
            "06f98ef21e9c3945ca13cbb9b0ea8de052b4205d7fb2accb06b9b252fb0ea9e5"
        );
        let packed = tempfile::Builder::new().suffix(".gz").tempfile().unwrap();
        let mut encoder = flate2::write::GzEncoder::new(&packed, flate2::Compression::default());
        encoder.write_all(b"{}\n\n  \n{}\n{}").unwrap();
        encoder.finish().unwrap();
        assert_eq!(digest_of_records(packed.path()).unwrap().1, 3);
    }
}
