//! What can be wrong with a release, before anything is served.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::hub::HubError;
use crate::safetensors::{Dtype, FormatFault};

/// A release cannot be loaded. Every variant says where, what was found, what was wanted and, where there is one, the
/// next step.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// A field of a config file has a value that this program cannot serve.
    Field {
        /// The config file.
        file: PathBuf,
        /// Path of the field inside the file, with dots.
        field: String,
        /// What the file says, as JSON, or `nothing`.
        found: String,
        /// What would be served.
        wanted: String,
    },
    /// A file is missing, is no regular file, or cannot be read.
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        fault: FileFault,
    },
    /// A safetensors file breaks the format.
    Format {
        /// The file.
        file: PathBuf,
        /// The rule that it breaks.
        fault: FormatFault,
    },
    /// A tensor of the head is stored below bf16.
    HeadPrecision {
        /// The file.
        file: PathBuf,
        /// The tensor.
        name: String,
        /// How it is stored.
        found: Dtype,
    },
    /// The release could not be fetched from the Hub.
    Hub(HubError),
    /// The index names another shard for a tensor than the one that holds it.
    IndexDisagrees {
        /// The shard that holds the tensor.
        file: PathBuf,
        /// The tensor.
        name: String,
        /// The shard that the index names; none if the index lacks the tensor.
        indexed: Option<String>,
    },
    /// The index names a tensor that its shard does not hold.
    IndexTensorMissing {
        /// The shard that the index names.
        file: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A file is not the JSON it should be.
    Json {
        /// The file.
        file: PathBuf,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A buffer could not be allocated.
    Memory {
        /// What was to be read.
        what: String,
        /// Size of the buffer.
        bytes: usize,
    },
    /// The place holds something else than a release.
    NotARelease {
        /// The directory or file.
        place: PathBuf,
        /// What it seems to be.
        found: Foreign,
    },
    /// Several faults, found in one look.
    Several {
        /// The release.
        place: PathBuf,
        /// The faults, in the order of the plan.
        faults: Vec<LoadError>,
    },
    /// A tensor is stored as packed or scaled integers.
    TensorQuantised {
        /// The file.
        file: PathBuf,
        /// The tensor.
        name: String,
        /// How it is stored.
        found: Dtype,
    },
    /// A tensor that no plan asks for.
    TensorUnexpected {
        /// The file.
        file: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor that the configs ask for is in no file.
    TensorMissing {
        /// The file, or the release's directory where shards could hold it.
        file: PathBuf,
        /// The tensor.
        name: String,
        /// The shape that the configs ask for.
        wanted: Vec<usize>,
    },
    /// A tensor has another shape than the config asks for; usually a file of another model size.
    TensorShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        name: String,
        /// Name of the config file that asks.
        config: &'static str,
        /// The shape that it asks for.
        wanted: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// `tokenizer.json` cannot be used.
    Tokenizer {
        /// The file.
        file: PathBuf,
        /// What the tokenizer library says.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The tokenizer gives ids that the embedding has no rows for.
    TokenizerIds {
        /// The file.
        file: PathBuf,
        /// The greatest id.
        id_max: u32,
        /// Rows of the embedding.
        vocab: usize,
    },
}

/// What is wrong with a file as a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileFault {
    /// A symbolic link whose target does not exist.
    DanglingLink {
        /// Where it points.
        target: PathBuf,
    },
    /// It has no bytes.
    Empty,
    /// The system refused.
    Io(io::Error),
    /// It is larger than any such file may be.
    TooLarge {
        /// Its size in bytes.
        found: u64,
        /// The greatest size that is read.
        max: u64,
    },
    /// Nothing is there.
    Missing,
    /// It is not a regular file.
    NotRegular {
        /// What it is: `a directory`, `a FIFO`, …
        found: &'static str,
    },
    /// It is not UTF-8.
    NotText,
}

/// What a place that is no release seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// A LoRA adapter without the model it was made for.
    Adapter,
    /// A directory without `config.json`.
    Directory,
    /// Files of llama.cpp and LM Studio.
    Gguf,
    /// A joint schema head without a backbone.
    HeadOnly,
    /// Pickled PyTorch weights.
    Pickle,
    /// A single file.
    SingleFile,
}

/// Faults that [`LoadError::Several`] prints; a file of another model size has one fault a tensor.
const FAULTS_SHOWN: usize = 20;

impl LoadError {
    /// Nothing if there are no faults, the fault itself if there is one, else [`LoadError::Several`].
    pub(crate) fn all_of(place: &Path, mut faults: Vec<LoadError>) -> Result<(), LoadError> {
        match faults.len() {
            0 => Ok(()),
            1 => Err(faults.remove(0)),
            _ => Err(LoadError::Several {
                place: place.to_path_buf(),
                faults,
            }),
        }
    }
}

impl fmt::Display for LoadError {
    #[expect(clippy::too_many_lines, reason = "one arm a variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Field {
                file,
                field,
                found,
                wanted,
            } => {
                write!(f, "{}: {field} is {found}, wanted {wanted}", name_of(file))
            }
            LoadError::File { file, fault } => write!(f, "{} {fault}", file.display()),
            LoadError::Format { file, fault } => write!(f, "{}: {fault}", name_of(file)),
            LoadError::HeadPrecision { file, name, found } => write!(
                f,
                "{}: {name} is {found}, the head is read as BF16, F16 or F32 only: a quantised head flattens every \
                 distribution",
                name_of(file)
            ),
            LoadError::Hub(error) => error.fmt(f),
            LoadError::IndexDisagrees {
                file,
                name,
                indexed,
            } => {
                write!(f, "{}: {name} is here, {INDEX} ", name_of(file))?;
                match indexed {
                    Some(other) => write!(f, "says {other}"),
                    None => f.write_str("does not list it"),
                }
            }
            LoadError::IndexTensorMissing { file, name } => {
                write!(
                    f,
                    "{}: {name} is not here, {INDEX} says it is",
                    name_of(file)
                )
            }
            LoadError::Json { file, source } => write!(f, "{}: {source}", name_of(file)),
            LoadError::Memory { what, bytes } => {
                write!(
                    f,
                    "no memory for {what}: {bytes} bytes could not be allocated"
                )
            }
            LoadError::NotARelease { place, found } => write!(f, "{} {found}", place.display()),
            LoadError::Several { place, faults } => {
                write!(f, "{}: {} faults", place.display(), faults.len())?;
                for fault in faults.iter().take(FAULTS_SHOWN) {
                    write!(f, "\n  {fault}")?;
                }
                match faults.len().saturating_sub(FAULTS_SHOWN) {
                    0 => Ok(()),
                    more => write!(f, "\n  and {more} more"),
                }
            }
            LoadError::TensorMissing { file, name, wanted } => {
                write!(f, "{}: {name} {wanted:?} is missing", name_of(file))
            }
            LoadError::TensorQuantised { file, name, found } => write!(
                f,
                "{}: {name} ({found}) is packed or scaled, weights are read as BF16, F16 or F32 only; use the release \
                 that this file was quantised from",
                name_of(file)
            ),
            LoadError::TensorShape {
                file,
                name,
                config,
                wanted,
                found,
            } => write!(
                f,
                "{}: {name} is {found:?}, {config} asks for {wanted:?}",
                name_of(file)
            ),
            LoadError::TensorUnexpected { file, name } => {
                write!(
                    f,
                    "{}: {name} is not part of a qwen3_5 release with this config",
                    name_of(file)
                )
            }
            LoadError::Tokenizer { file, source } => write!(f, "{}: {source}", file.display()),
            LoadError::TokenizerIds {
                file,
                id_max,
                vocab,
            } => write!(
                f,
                "{}: token id {id_max} has no row in an embedding of vocab_size {vocab}; the tokenizer is another model's",
                name_of(file)
            ),
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            LoadError::File {
                fault: FileFault::Io(source),
                ..
            } => Some(source),
            LoadError::Format { fault, .. } => Some(fault),
            LoadError::Hub(source) => Some(source),
            LoadError::Json { source, .. } => Some(source),
            LoadError::Tokenizer { source, .. } => Some(source.as_ref()),
            _ => None,
        }
    }
}

impl From<HubError> for LoadError {
    fn from(error: HubError) -> LoadError {
        LoadError::Hub(error)
    }
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileFault::DanglingLink { target } => {
                write!(f, "is a link to {}, which does not exist", target.display())
            }
            FileFault::Empty => f.write_str("is empty"),
            FileFault::Io(error) => write!(f, "cannot be read: {error}"),
            FileFault::Missing => f.write_str("does not exist"),
            FileFault::NotRegular { found } => write!(f, "is {found}, wanted a regular file"),
            FileFault::NotText => f.write_str("is not UTF-8 text"),
            FileFault::TooLarge { found, max } => {
                write!(f, "has {found} bytes, such a file may have {max}")
            }
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Foreign::Adapter => {
                "holds an adapter without its model; merge it into the model it was made for, then name that directory"
            }
            Foreign::Directory => "has no config.json; wanted a directory with a qwen3_5 release",
            Foreign::Gguf => {
                "holds GGUF files, which carry no joint schema head; wanted a qwen3_5 release: config.json, \
                 tokenizer.json and safetensors files"
            }
            Foreign::HeadOnly => {
                "holds a joint schema head without a backbone; name the backbone's directory and give this one with --clef"
            }
            Foreign::Pickle => "holds pickled PyTorch weights, which are not read; wanted safetensors files",
            Foreign::SingleFile => "is a file; wanted the directory of a qwen3_5 release",
        })
    }
}

/// The last part of a path, which is enough inside one release.
fn name_of(file: &Path) -> std::path::Display<'_> {
    file.file_name().map_or(file, Path::new).display()
}

const INDEX: &str = "model.safetensors.index.json";
