//! The MODEL argument: a directory, or the name of a repository on the Hub.

use std::fmt;
use std::path::{Path, PathBuf};

use super::error::HubError;

/// What a MODEL argument names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelPlace {
    /// A directory (or a file, which the loader refuses in its own words).
    Directory(PathBuf),
    /// A repository on the Hub.
    Hub(HubName),
}

impl ModelPlace {
    /// Reads an argument. What exists in the file system is a directory; else `owner/name[@revision]` is a Hub name.
    ///
    /// # Errors
    /// [`HubError::NotAModel`].
    pub fn parse(argument: &str) -> Result<ModelPlace, HubError> {
        if Path::new(argument).exists() {
            return Ok(ModelPlace::Directory(PathBuf::from(argument)));
        }
        match HubName::parse(argument) {
            Some(name) => Ok(ModelPlace::Hub(name)),
            None => Err(HubError::NotAModel {
                argument: argument.to_owned(),
            }),
        }
    }
}

/// `owner/name@revision`. Every part is safe inside a path and a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    owner: String,
    name: String,
    revision: String,
}

impl HubName {
    /// Reads `owner/name[@revision]`; the revision is `main` unless it is given.
    pub fn parse(text: &str) -> Option<HubName> {
        let (repository, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = repository.split_once('/')?;
        let valid =
            is_component(owner) && is_component(name) && revision.split('/').all(is_component);
        valid.then(|| HubName {
            owner: owner.to_owned(),
            name: name.to_owned(),
            revision: revision.to_owned(),
        })
    }

    /// `owner/name`.
    pub(super) fn repository(&self) -> String {
        format!("{}/{}", self.owner, self.name)
    }

    /// The repository's folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }

    /// The revision as asked for: a branch, a tag or a commit.
    pub(super) fn revision(&self) -> &str {
        &self.revision
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.owner, self.name, self.revision)
    }
}

/// Whether a text is one plain component of a path: no separator, no leading dot or dash, nothing that a URL escapes.
pub(super) fn is_component(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    text.len() <= COMPONENT_BYTES_MAX
        && text.bytes().all(plain)
        && !text.is_empty()
        && !text.starts_with(['.', '-'])
}

/// Whether a revision is a full commit, which never changes its content.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Greatest length of an owner, a name, a part of a revision or an etag.
const COMPONENT_BYTES_MAX: usize = 128;
