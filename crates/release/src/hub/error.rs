//! What can go wrong between a Hub name and a directory.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A release could not be found or fetched.
#[derive(Debug)]
#[non_exhaustive]
pub enum HubError {
    /// The server refuses: the repository is private, gated, or does not exist.
    Denied {
        /// The repository.
        name: String,
        /// The HTTP status, 401 or 403.
        status: u16,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// A file in the cache cannot be read or written.
    File {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The repository has no such file, or there is no such repository.
    FileMissing {
        /// The repository with its revision.
        name: String,
        /// The file.
        file: String,
    },
    /// The server's answer lacks what the Hub's answers have, or has it in a form that is not followed.
    Header {
        /// The address.
        url: String,
        /// The header.
        header: &'static str,
        /// What it says; none if it is missing.
        found: Option<String>,
    },
    /// The index of the shards cannot be used.
    Index {
        /// The repository with its revision.
        name: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The argument is neither a directory nor a Hub name.
    NotAModel {
        /// The argument.
        argument: String,
    },
    /// The network may not be used, or does not answer, and the cache lacks a file.
    Offline {
        /// The repository with its revision.
        name: String,
        /// The file that the cache lacks.
        file: String,
        /// Why the network was not asked: none if `HF_HUB_OFFLINE` forbids it.
        source: Option<Box<HubError>>,
    },
    /// The repository has no such revision.
    RevisionMissing {
        /// The repository with its revision.
        name: String,
    },
    /// What arrived has another checksum than the server promised.
    Sum {
        /// The file.
        file: String,
        /// The promised SHA-256.
        wanted: String,
        /// The SHA-256 of what arrived.
        found: String,
    },
    /// A file has another size than the server promised.
    Size {
        /// The file.
        file: String,
        /// The promised size in bytes.
        wanted: u64,
        /// The size found.
        found: u64,
    },
    /// The server answers with a status that is not expected.
    Status {
        /// The address.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The address leads through too many redirects, or from https to http.
    TooManyRedirects {
        /// The last address.
        url: String,
    },
    /// The connection failed, again and again.
    Transport {
        /// The address.
        url: String,
        /// What failed.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A setting of the environment cannot be used.
    Variable {
        /// Name of the variable.
        variable: &'static str,
        /// What is wrong with it.
        fault: &'static str,
    },
}

impl fmt::Display for HubError {
    #[expect(clippy::too_many_lines, reason = "one arm a variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HubError::Denied {
                name,
                status,
                with_token: true,
            } => write!(
                f,
                "the Hub refuses {name} ({status}): the token in HF_TOKEN has no access to it, or it does not exist; a \
                 gated repository asks to accept its terms on its page"
            ),
            HubError::Denied {
                name,
                status,
                with_token: false,
            } => write!(
                f,
                "the Hub refuses {name} ({status}): it does not exist, is private or gated; HF_TOKEN takes an access \
                 token"
            ),
            HubError::File { file, source } => write!(f, "{}: {source}", file.display()),
            HubError::FileMissing { name, file } => write!(
                f,
                "{name} has no {file} on the Hub, or does not exist; wanted a qwen3_5 release in safetensors form"
            ),
            HubError::Header {
                url,
                header,
                found: None,
            } => {
                write!(
                    f,
                    "{url} answers without {header}; this is no Hub, see HF_ENDPOINT"
                )
            }
            HubError::Header {
                url,
                header,
                found: Some(found),
            } => {
                write!(
                    f,
                    "{url} answers with {header}: {found:?}, which is not followed"
                )
            }
            HubError::Index { name, source } => {
                write!(f, "model.safetensors.index.json of {name}: {source}")
            }
            HubError::NotAModel { argument } => write!(
                f,
                "{argument} is neither a directory nor a Hub name; wanted a release directory or owner/name[@revision]"
            ),
            HubError::Offline {
                name,
                file,
                source: None,
            } => write!(
                f,
                "{file} of {name} is not in the cache and HF_HUB_OFFLINE forbids to fetch it; unset it, or name a directory"
            ),
            HubError::Offline {
                name,
                file,
                source: Some(source),
            } => {
                write!(
                    f,
                    "{file} of {name} is not in the cache, and the Hub cannot be asked: {source}"
                )
            }
            HubError::RevisionMissing { name } => write!(f, "the Hub has no revision {name}"),
            HubError::Size {
                file,
                wanted,
                found,
            } => write!(
                f,
                "{file} has {found} bytes, the Hub promised {wanted}; it was not kept, try again"
            ),
            HubError::Status { url, status } => write!(f, "{url} answers with status {status}"),
            HubError::Sum {
                file,
                wanted,
                found,
            } => write!(
                f,
                "{file} arrived with SHA-256 {found}, the Hub promised {wanted}; it was not kept, try again"
            ),
            HubError::TooManyRedirects { url } => {
                write!(f, "{url} redirects too often or from https to http")
            }
            HubError::Transport { url, source } => write!(f, "{url} cannot be reached: {source}"),
            HubError::Variable { variable, fault } => write!(f, "{variable} {fault}"),
        }
    }
}

impl Error for HubError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            HubError::File { source, .. } => Some(source),
            HubError::Index { source, .. } => Some(source),
            HubError::Offline {
                source: Some(source),
                ..
            } => Some(source.as_ref()),
            HubError::Transport { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}
