//! API keys of flags and of a file, which is read again when it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use descant_server::Keys;
use tokio::time::{MissedTickBehavior, interval};

use crate::args::Access;
use crate::failure::Failure;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(2);
/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The keys of a server.
pub(crate) struct KeyRing {
    /// Those that the server knows; `None` if it asks for none.
    pub(crate) keys: Option<Arc<Keys>>,
    flags: Vec<String>,
    file: Option<PathBuf>,
}

/// What tells whether a file is another one than before.
type Mark = Option<(SystemTime, u64)>;

impl KeyRing {
    /// Reads the keys.
    ///
    /// # Errors
    /// [`Failure::Keys`].
    pub(crate) fn open(access: &Access) -> Result<KeyRing, Failure> {
        let ring = KeyRing {
            keys: None,
            flags: access.api_key.clone(),
            file: access.api_key_file.clone(),
        };
        for key in &ring.flags {
            check(key).map_err(|fault| Failure::Keys {
                place: "--api-key".to_owned(),
                fault,
            })?;
        }
        if ring.flags.is_empty() && ring.file.is_none() {
            return Ok(ring);
        }
        let keys = Some(Arc::new(Keys::new(ring.read()?)));
        Ok(KeyRing { keys, ..ring })
    }

    fn read(&self) -> Result<Vec<String>, Failure> {
        let mut keys = self.flags.clone();
        if let Some(file) = &self.file {
            keys.extend(read(file).map_err(|fault| Failure::Keys {
                place: format!("--api-key-file {}", file.display()),
                fault,
            })?);
        }
        Ok(keys)
    }

    /// Reads the file again whenever it changes, for ever. A file that cannot be read leaves the keys as they were.
    pub(crate) async fn watch(self) {
        let (Some(keys), Some(file)) = (&self.keys, &self.file) else {
            return;
        };
        let mut seen = mark(file);
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let now = mark(file);
            if now == seen {
                continue;
            }
            seen = now;
            match self.read() {
                Ok(fresh) => {
                    keys.replace(&fresh);
                    tracing::info!(keys = fresh.len(), "the API keys were read again");
                }
                Err(failure) => {
                    let error = failure.to_string();
                    tracing::warn!(error, "the API keys stay as they were");
                }
            }
        }
    }
}

fn mark(file: &Path) -> Mark {
    let metadata = fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// The keys in a file: one a line; blank lines and lines that start with `#` are passed over.
fn read(file: &Path) -> Result<Vec<String>, String> {
    let metadata = fs::metadata(file).map_err(|error| error.to_string())?;
    if metadata.len() > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    parse(&fs::read_to_string(file).map_err(|error| error.to_string())?)
}

fn parse(text: &str) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let key = line.trim();
        if key.is_empty() || key.starts_with('#') {
            continue;
        }
        check(key).map_err(|fault| format!("line {}: {fault}", index + 1))?;
        keys.push(key.to_owned());
    }
    match keys.is_empty() {
        true => Err("it holds no key".to_owned()),
        false => Ok(keys),
    }
}

/// Checks that a key can be sent in a header. The key itself is never repeated.
fn check(key: &str) -> Result<(), String> {
    match !key.is_empty() && key.len() <= 1024 && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("a key has 1 to 1024 visible ASCII characters and no blanks".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_one_a_line() {
        let text = "# the team\nfirst\n\n  second  \r\n#third\n";
        assert_eq!(
            parse(text),
            Ok(vec!["first".to_owned(), "second".to_owned()])
        );
    }

    #[test]
    fn a_file_of_no_keys_is_refused() {
        assert_eq!(parse("# none\n").unwrap_err(), "it holds no key");
        let error = parse("good\nnot good\n").unwrap_err();
        assert!(
            error.starts_with("line 2: ") && !error.contains("not good"),
            "{error}"
        );
        assert!(parse("schlüssel\n").is_err());
        assert!(parse(&"x".repeat(1025)).is_err());
    }
}
