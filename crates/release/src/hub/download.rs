//! One content from the Hub to a blob of the cache: resumed, counted, summed, then renamed into place.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use ring::digest::{Context, SHA256};
use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::cache::at;
use super::error::HubError;
use super::http::{Failure, FileFacts, content_range};
use super::{Fetch, Pause, Progress};

/// Brings a content into the cache. Another process that does the same is waited for.
pub(super) fn blob(
    fetch: &mut Fetch<'_>,
    file: &str,
    url: &str,
    facts: &FileFacts,
) -> Result<(), HubError> {
    let blob = fetch.cache.blob(&facts.etag);
    if has_size(&blob, facts.bytes) {
        return Ok(());
    }
    let progress = &mut *fetch.progress;
    let _lock = fetch.cache.lock(&facts.etag, || {
        progress.note(&format!("waiting for another process that fetches {file}"))
    })?;
    if has_size(&blob, facts.bytes) {
        return Ok(());
    }
    let incomplete = fetch.cache.incomplete(&facts.etag);
    let mut growing = Growing::open(&incomplete, facts.bytes)?;
    progress.file(file, facts.bytes, growing.present);
    let mut pause = Pause::new(fetch.hub.retry_wait);
    while growing.present < facts.bytes {
        let before = growing.present;
        let answer = fetch
            .hub
            .client
            .content(&fetch.name.to_string(), url, before);
        let result = answer.and_then(|response| growing.take(response, file, url, progress));
        match result {
            Ok(()) => {}
            Err(failure) => {
                // What moves is not failing: a slow line may be cut any number of times.
                if growing.present > before {
                    pause = Pause::new(fetch.hub.retry_wait);
                }
                pause.after(failure, progress)?;
            }
        }
    }
    growing.finish(file, facts, &blob)?;
    progress.done();
    Ok(())
}

/// A content as far as it is here.
struct Growing<'a> {
    path: &'a Path,
    file: File,
    /// Bytes that are here.
    present: u64,
    /// Bytes of the whole.
    bytes: u64,
}

impl<'a> Growing<'a> {
    fn open(path: &'a Path, bytes: u64) -> Result<Growing<'a>, HubError> {
        let options = File::options()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .clone();
        let file = options.open(path).map_err(at(path))?;
        let present = file.metadata().map_err(at(path))?.len();
        let mut growing = Growing {
            path,
            file,
            present,
            bytes,
        };
        if present > bytes {
            growing.start_anew()?;
        }
        Ok(growing)
    }

    fn start_anew(&mut self) -> Result<(), HubError> {
        self.file.set_len(0).map_err(at(self.path))?;
        self.present = 0;
        Ok(())
    }

    /// Appends an answer's content.
    fn take(
        &mut self,
        response: Response<Body>,
        file: &str,
        url: &str,
        progress: &mut dyn Progress,
    ) -> Result<(), Failure> {
        let wrong_size = |found| HubError::Size {
            file: file.to_owned(),
            wanted: self.bytes,
            found,
        };
        let again = |error| Failure {
            error,
            again: true,
            wait: None,
        };
        let status = response.status();
        match status {
            StatusCode::PARTIAL_CONTENT => match content_range(response.headers()) {
                Some((_, total)) if total != self.bytes => return Err(wrong_size(total).into()),
                Some((start, _)) if start == self.present => {}
                _ => {
                    return Err(again(HubError::Header {
                        url: url.to_owned(),
                        header: "content-range",
                        found: None,
                    }));
                }
            },
            StatusCode::OK => {
                if let Some(found) = response
                    .body()
                    .content_length()
                    .filter(|found| *found != self.bytes)
                {
                    return Err(wrong_size(found).into());
                }
                // The server does not know ranges, so the content starts at its first byte.
                if self.present > 0 {
                    self.start_anew()?;
                    progress.file(file, self.bytes, 0);
                }
            }
            _ => {
                self.start_anew()?;
                return Err(again(HubError::Status {
                    url: url.to_owned(),
                    status: status.as_u16(),
                }));
            }
        }
        self.append(&mut response.into_body().into_reader(), file, progress)
            .map_err(|error| match error {
                AppendError::Ours(error) => error.into(),
                AppendError::Theirs(source) => again(HubError::Transport {
                    url: url.to_owned(),
                    source: source.into(),
                }),
            })
    }

    fn append(
        &mut self,
        content: &mut dyn Read,
        file: &str,
        progress: &mut dyn Progress,
    ) -> Result<(), AppendError> {
        self.file
            .seek(SeekFrom::Start(self.present))
            .map_err(at(self.path))
            .map_err(AppendError::Ours)?;
        let mut block = vec![0; BLOCK_BYTES];
        while self.present < self.bytes {
            let count = match content.read(&mut block) {
                Ok(0) => return Err(AppendError::Theirs(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(AppendError::Theirs(error)),
            };
            let found = self.present + count as u64;
            if found > self.bytes {
                let (file, wanted) = (file.to_owned(), self.bytes);
                return Err(AppendError::Ours(HubError::Size {
                    file,
                    wanted,
                    found,
                }));
            }
            self.file
                .write_all(&block[..count])
                .map_err(at(self.path))
                .map_err(AppendError::Ours)?;
            self.present = found;
            progress.advance(count as u64);
        }
        Ok(())
    }

    /// Checks the whole and gives it its name. What is wrong is removed, so that the next run starts anew.
    fn finish(mut self, file: &str, facts: &FileFacts, blob: &Path) -> Result<(), HubError> {
        let found = self.file.metadata().map_err(at(self.path))?.len();
        if found != self.bytes {
            fs::remove_file(self.path).map_err(at(self.path))?;
            return Err(HubError::Size {
                file: file.to_owned(),
                wanted: self.bytes,
                found,
            });
        }
        if is_sha256(&facts.etag) {
            let found = self.sha256()?;
            if !found.eq_ignore_ascii_case(&facts.etag) {
                fs::remove_file(self.path).map_err(at(self.path))?;
                return Err(HubError::Sum {
                    file: file.to_owned(),
                    wanted: facts.etag.clone(),
                    found,
                });
            }
        }
        self.file.sync_all().map_err(at(self.path))?;
        fs::rename(self.path, blob).map_err(at(blob))
    }

    fn sha256(&mut self) -> Result<String, HubError> {
        self.file.seek(SeekFrom::Start(0)).map_err(at(self.path))?;
        let mut sum = Context::new(&SHA256);
        let mut block = vec![0; BLOCK_BYTES];
        loop {
            match self.file.read(&mut block).map_err(at(self.path))? {
                0 => break,
                count => sum.update(&block[..count]),
            }
        }
        Ok(sum
            .finish()
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }
}

/// Whose fault it is that a content did not grow.
enum AppendError {
    /// The disk's, or the content is not what was promised: no retry helps.
    Ours(HubError),
    /// The connection's.
    Theirs(io::Error),
}

/// Whether an etag is a SHA-256, as the Hub's are for large files.
fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn has_size(blob: &Path, bytes: u64) -> bool {
    fs::metadata(blob).is_ok_and(|found| found.is_file() && found.len() == bytes)
}

/// Bytes that are read, written or summed at a time.
const BLOCK_BYTES: usize = 1 << 20;
