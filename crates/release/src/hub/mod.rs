//! Fetches a release from the Hub into the cache that every Hub client shares.
//!
//! Only the files that a release is read from are fetched. A download that was cut goes on where it stopped, in this
//! run or the next; contents are checked by size and, where the Hub names it, by SHA-256 before they count as there. A
//! snapshot that is complete is used without the network if the Hub does not answer.
//!
//! Start reading at [`Hub::fetch`].

mod cache;
mod download;
mod error;
mod http;
mod name;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use error::HubError;
pub use name::{HubName, ModelPlace};

use crate::config_files::{CONFIG, GENERATION_CONFIG, HEAD_CONFIG};
use crate::release::{CHAT_TEMPLATE, HEAD_ROWS, HEAD_WEIGHTS, TOKENIZER, TOKENIZER_CONFIG};
use crate::shards::{INDEX, Index, SINGLE};
use cache::{RepositoryCache, at};
use http::{Client, Failure, FileFacts};

/// Learns what a fetch does. Every method does nothing unless it is written.
pub trait Progress {
    /// A file is fetched: its size, and how much of it is here already. Called again if the file starts anew.
    fn file(&mut self, name: &str, bytes: u64, present: u64) {
        let _ = (name, bytes, present);
    }

    /// More of the file has come.
    fn advance(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// The file is here.
    fn done(&mut self) {}

    /// Something that the user may want to know: a wait, a retry, the cache in place of the Hub.
    fn note(&mut self, text: &str) {
        let _ = text;
    }
}

impl Progress for () {}

/// The Hub and the cache to use.
pub struct Hub {
    client: Client,
    cache: PathBuf,
    offline: bool,
    retry_wait: Duration,
}

/// How a [`Hub`] is reached.
#[derive(Clone)]
pub struct HubSettings {
    /// The Hub's address.
    pub endpoint: String,
    /// The cache's directory.
    pub cache: PathBuf,
    /// An access token, for private and gated repositories.
    pub token: Option<String>,
    /// Use the cache alone.
    pub offline: bool,
    /// Wait before the first retry; each further one waits twice as long.
    pub retry_wait: Duration,
}

impl fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubSettings")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .field("has_token", &self.token.is_some())
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl HubSettings {
    /// Reads the variables that every Hub client knows: `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    /// [`HubError::Variable`].
    pub fn from_env() -> Result<HubSettings, HubError> {
        HubSettings::from_variables(|name| std::env::var(name).ok())
    }

    /// As [`HubSettings::from_env`], with another source of variables. An empty variable counts as unset.
    ///
    /// # Errors
    /// [`HubError::Variable`].
    pub fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<HubSettings, HubError> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let path = |name: &str| variable(name).map(PathBuf::from);
        let user_cache =
            || path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
        let home = path("HF_HOME").or_else(|| user_cache().map(|cache| cache.join("huggingface")));
        let cache = path("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub")));
        let cache = cache.ok_or(HubError::Variable {
            variable: "HF_HOME",
            fault: "is not set and there is no HOME; one of them says where the cache lies",
        })?;
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let fault = "is no address that starts with https:// or http://";
            return Err(HubError::Variable {
                variable: "HF_ENDPOINT",
                fault,
            });
        }
        let token_file = path("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
        let token = variable("HF_TOKEN")
            .or_else(|| token_file.and_then(|file| fs::read_to_string(file).ok()));
        let token = token
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty());
        if token
            .as_ref()
            .is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(HubError::Variable {
                variable: "HF_TOKEN",
                fault: "holds characters that no token has",
            });
        }
        let offline = variable("HF_HUB_OFFLINE").is_some_and(|value| {
            ["1", "true", "yes", "on"].contains(&value.trim().to_lowercase().as_str())
        });
        Ok(HubSettings {
            endpoint,
            cache,
            token,
            offline,
            retry_wait: RETRY_WAIT,
        })
    }
}

impl Hub {
    /// A Hub with the given settings. Nothing is asked yet.
    pub fn new(settings: HubSettings) -> Hub {
        Hub {
            client: Client::new(&settings.endpoint, settings.token),
            cache: settings.cache,
            offline: settings.offline,
            retry_wait: settings.retry_wait,
        }
    }

    /// Brings a release into the cache, as far as it is not there, and gives its directory.
    ///
    /// # Errors
    /// [`HubError`]; what was fetched so far stays and is not fetched again.
    pub fn fetch(&self, name: &HubName, progress: &mut dyn Progress) -> Result<PathBuf, HubError> {
        self.fetch_extent(name, Extent::Whole, progress)
    }

    /// As [`Hub::fetch`], without the weights: config files and tokenizer, which say what a release is and encode for
    /// it.
    ///
    /// # Errors
    /// As [`Hub::fetch`].
    pub fn fetch_texts(
        &self,
        name: &HubName,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        self.fetch_extent(name, Extent::Texts, progress)
    }

    fn fetch_extent(
        &self,
        name: &HubName,
        extent: Extent,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let cache = RepositoryCache::new(&self.cache, name);
        let cached = cache.commit(name.revision());
        let lacking = match &cached {
            Some(commit) => missing_file(&cache, commit, name, extent)?,
            None => Some(CONFIG.to_owned()),
        };
        let complete = cached.filter(|_| lacking.is_none());
        if self.offline || name::is_commit(name.revision()) && complete.is_some() {
            return match (complete, lacking) {
                (Some(commit), _) => Ok(cache.snapshot(&commit)),
                (None, file) => Err(HubError::Offline {
                    name: name.to_string(),
                    file: file.unwrap_or_else(|| CONFIG.to_owned()),
                    source: None,
                }),
            };
        }
        let url = self.url(name, None, CONFIG);
        let config = match complete {
            // The cache is as good as the Hub while the Hub does not answer, so it is asked once.
            Some(commit) => match self.client.facts(&name.to_string(), &url) {
                Err(failure) if failure.again => {
                    progress.note(&format!("{}; using the cached {name}", failure.error));
                    return Ok(cache.snapshot(&commit));
                }
                answer => answer.map_err(|failure| failure.error)?,
            },
            None => self
                .retry(progress, |client| client.facts(&name.to_string(), &url))
                .map_err(|error| unreachable_without_cache(error, name))?,
        };
        self.fetch_commit(&cache, name, extent, config, progress)
    }

    /// Fetches what the snapshot of the commit that `config` belongs to still lacks.
    fn fetch_commit(
        &self,
        cache: &RepositoryCache,
        name: &HubName,
        extent: Extent,
        config: Option<FileFacts>,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let missing = |file: &str| HubError::FileMissing {
            name: name.to_string(),
            file: file.to_owned(),
        };
        let config = config.ok_or_else(|| missing(CONFIG))?;
        let commit = config.commit.clone();
        let mut fetch = Fetch {
            hub: self,
            cache,
            name,
            commit: &commit,
            progress,
        };
        fetch.store(CONFIG, &config)?;
        if !fetch.file(TOKENIZER)? {
            return Err(missing(TOKENIZER));
        }
        for file in SMALL_FILES {
            fetch.file(file)?;
        }
        if extent == Extent::Texts {
            cache.set_commit(name.revision(), &commit)?;
            return Ok(cache.snapshot(&commit));
        }
        if fetch.file(INDEX)? {
            for shard in shards(cache, &commit, name)? {
                if !fetch.file(&shard)? {
                    return Err(missing(&shard));
                }
            }
        } else if !fetch.file(SINGLE)? {
            return Err(missing(SINGLE));
        }
        for file in [HEAD_WEIGHTS, HEAD_ROWS] {
            fetch.file(file)?;
        }
        // Last, so that an offline run never meets a revision whose files are not there.
        cache.set_commit(name.revision(), &commit)?;
        Ok(cache.snapshot(&commit))
    }

    /// Address of a file at a commit, or at the revision that was asked for.
    fn url(&self, name: &HubName, commit: Option<&str>, file: &str) -> String {
        let revision = commit.unwrap_or(name.revision()).replace('/', "%2F");
        format!(
            "{}/{}/resolve/{revision}/{file}",
            self.client.endpoint,
            name.repository()
        )
    }

    /// Repeats a request while it fails in a way that may pass.
    fn retry<T>(
        &self,
        progress: &mut dyn Progress,
        mut attempt: impl FnMut(&Client) -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut pause = Pause::new(self.retry_wait);
        loop {
            match attempt(&self.client) {
                Ok(value) => return Ok(value),
                Err(failure) => pause.after(failure, progress)?,
            }
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("endpoint", &self.client.endpoint)
            .field("cache", &self.cache)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

/// How much of a release is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// Config files and tokenizer.
    Texts,
    /// All that is read.
    Whole,
}

/// A connection that failed, as seen by someone who has nothing in the cache.
fn unreachable_without_cache(error: HubError, name: &HubName) -> HubError {
    match error {
        HubError::Transport { .. } => HubError::Offline {
            name: name.to_string(),
            file: CONFIG.to_owned(),
            source: Some(Box::new(error)),
        },
        error => error,
    }
}

/// One run over the files of a commit.
struct Fetch<'a> {
    hub: &'a Hub,
    cache: &'a RepositoryCache,
    name: &'a HubName,
    commit: &'a str,
    progress: &'a mut dyn Progress,
}

impl Fetch<'_> {
    /// Brings a file into the snapshot; false if the commit lacks it.
    fn file(&mut self, file: &str) -> Result<bool, HubError> {
        if self.cache.has(self.commit, file) {
            return Ok(true);
        }
        if self.cache.lacks(self.commit, file) {
            return Ok(false);
        }
        let url = self.hub.url(self.name, Some(self.commit), file);
        let name = self.name.to_string();
        match self
            .hub
            .retry(self.progress, |client| client.facts(&name, &url))?
        {
            Some(facts) => self.store(file, &facts).map(|()| true),
            None => self.cache.set_lacking(self.commit, file).map(|()| false),
        }
    }

    /// Brings a content into the cache and links it into the snapshot.
    fn store(&mut self, file: &str, facts: &FileFacts) -> Result<(), HubError> {
        if !self.cache.has(self.commit, file) {
            let url = self.hub.url(self.name, Some(self.commit), file);
            download::blob(self, file, &url, facts)?;
            self.cache.link(self.commit, file, &facts.etag)?;
        }
        Ok(())
    }
}

/// Waits between attempts, twice as long each time.
struct Pause {
    wait: Duration,
    left: u32,
}

impl Pause {
    fn new(wait: Duration) -> Pause {
        Pause {
            wait,
            left: RETRIES_MAX,
        }
    }

    /// Waits, or gives up with the failure's error.
    fn after(&mut self, failure: Failure, progress: &mut dyn Progress) -> Result<(), HubError> {
        if !failure.again || self.left == 0 {
            return Err(failure.error);
        }
        let wait = failure.wait.unwrap_or(self.wait).min(RETRY_WAIT_MAX);
        progress.note(&format!("{}; trying again in {wait:?}", failure.error));
        std::thread::sleep(wait);
        self.left -= 1;
        self.wait *= 2;
        Ok(())
    }
}

/// The first file that a snapshot lacks and no release is read without.
fn missing_file(
    cache: &RepositoryCache,
    commit: &str,
    name: &HubName,
    extent: Extent,
) -> Result<Option<String>, HubError> {
    let mut needed = vec![CONFIG.to_owned(), TOKENIZER.to_owned()];
    if extent == Extent::Texts {
        return Ok(needed.into_iter().find(|file| !cache.has(commit, file)));
    }
    if cache.has(commit, INDEX) {
        needed.extend(shards(cache, commit, name)?);
    } else {
        needed.push(SINGLE.to_owned());
    }
    if cache.has(commit, HEAD_CONFIG) {
        needed.push(HEAD_WEIGHTS.to_owned());
    }
    Ok(needed.into_iter().find(|file| !cache.has(commit, file)))
}

/// The shards that a snapshot's index names. The index comes from outside: it names plain files only.
fn shards(cache: &RepositoryCache, commit: &str, name: &HubName) -> Result<Vec<String>, HubError> {
    let path: PathBuf = cache.snapshot(commit).join(INDEX);
    let text = read_index(&path)?;
    let index = Index::parse(&text).map_err(|source| HubError::Index {
        name: name.to_string(),
        source,
    })?;
    Ok(index.shards.into_keys().collect())
}

fn read_index(path: &Path) -> Result<String, HubError> {
    let size = fs::metadata(path).map_err(at(path))?.len();
    if size > crate::shards::INDEX_BYTES_MAX {
        let (file, wanted) = (INDEX.to_owned(), crate::shards::INDEX_BYTES_MAX);
        return Err(HubError::Size {
            file,
            wanted,
            found: size,
        });
    }
    fs::read_to_string(path).map_err(at(path))
}

/// Files that a release may lack, apart from weights.
const SMALL_FILES: [&str; 4] = [
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    HEAD_CONFIG,
];
/// The Hub that is asked unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
const RETRIES_MAX: u32 = 5;
const RETRY_WAIT: Duration = Duration::from_secs(1);
const RETRY_WAIT_MAX: Duration = Duration::from_secs(60);
