//! Where a release's files come from: a directory, or the program itself.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crate::error::{FileFault, LoadError};
use crate::mmap::FileMap;

/// Files compiled into the program, by name.
pub type EmbeddedFiles = &'static [(&'static str, &'static [u8])];

/// A place that holds a release's files.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A directory.
    Directory(PathBuf),
    /// The program itself.
    Embedded(EmbeddedFiles),
}

impl Source {
    /// The file's path for messages and for opening.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Source::Directory(directory) => directory.join(name),
            Source::Embedded(_) => PathBuf::from(name),
        }
    }

    /// The place itself, for messages.
    pub(crate) fn place(&self) -> PathBuf {
        match self {
            Source::Directory(directory) => directory.clone(),
            Source::Embedded(_) => PathBuf::from("the embedded release"),
        }
    }

    /// Whether anything stands under the name, be it readable or not: what is there but unusable is an error later,
    /// not an absence.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Source::Directory(directory) => directory.join(name).symlink_metadata().is_ok(),
            Source::Embedded(files) => embedded(files, name).is_some(),
        }
    }

    /// Reads a text file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`LoadError::File`] and [`LoadError::Memory`].
    pub(crate) fn text(&self, name: &str, bytes_max: u64) -> Result<Cow<'static, str>, LoadError> {
        let path = self.path(name);
        let not_text = |_| LoadError::File {
            file: self.path(name),
            fault: FileFault::NotText,
        };
        match self {
            Source::Directory(_) => String::from_utf8(read_bounded(&path, bytes_max)?)
                .map(Cow::Owned)
                .map_err(|e| not_text(e.utf8_error())),
            Source::Embedded(files) => {
                let bytes = embedded(files, name).ok_or(LoadError::File {
                    file: path,
                    fault: FileFault::Missing,
                })?;
                std::str::from_utf8(bytes)
                    .map(Cow::Borrowed)
                    .map_err(not_text)
            }
        }
    }

    /// The bytes of a weight file, mapped or compiled in.
    ///
    /// # Errors
    /// [`LoadError::File`].
    pub(crate) fn weights(&self, name: &str) -> Result<WeightBytes, LoadError> {
        let path = self.path(name);
        match self {
            Source::Directory(_) => map_file(&path),
            Source::Embedded(files) => {
                embedded(files, name)
                    .map(WeightBytes::Static)
                    .ok_or(LoadError::File {
                        file: path,
                        fault: FileFault::Missing,
                    })
            }
        }
    }
}

/// The bytes of a weight file.
#[derive(Debug)]
pub(crate) enum WeightBytes {
    /// Mapped from a file.
    Map(FileMap),
    /// Part of the program.
    Static(&'static [u8]),
}

impl WeightBytes {
    /// Gives mapped pages back to the system until they are read again.
    pub(crate) fn discard(&self) {
        if let WeightBytes::Map(map) = self {
            map.discard();
        }
    }
}

impl Deref for WeightBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            WeightBytes::Map(map) => map,
            WeightBytes::Static(bytes) => bytes,
        }
    }
}

/// Maps a regular, non-empty file.
///
/// # Errors
/// [`LoadError::File`].
pub(crate) fn map_file(path: &Path) -> Result<WeightBytes, LoadError> {
    let file = open_regular(path)?;
    FileMap::new(&file)
        .map(WeightBytes::Map)
        .map_err(|error| fault(path, FileFault::Io(error)))
}

/// Reads a regular, non-empty file of at most `bytes_max` bytes.
///
/// # Errors
/// [`LoadError::File`] and [`LoadError::Memory`].
pub(crate) fn read_bounded(path: &Path, bytes_max: u64) -> Result<Vec<u8>, LoadError> {
    let mut file = open_regular(path)?;
    let found = file
        .metadata()
        .map_err(|error| fault(path, FileFault::Io(error)))?
        .len();
    if found > bytes_max {
        return Err(fault(
            path,
            FileFault::TooLarge {
                found,
                max: bytes_max,
            },
        ));
    }
    let size = usize::try_from(found).expect("bounded by bytes_max, which fits");
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(size)
        .map_err(|_| LoadError::Memory {
            what: path.display().to_string(),
            bytes: size,
        })?;
    // The file may grow while it is read; what was measured is what is taken.
    Read::take(&mut file, found)
        .read_to_end(&mut bytes)
        .map_err(|error| fault(path, FileFault::Io(error)))?;
    Ok(bytes)
}

/// Opens a file once it is known to be a regular one with content, through links.
///
/// The kind is looked at first, because opening a FIFO waits for a writer.
fn open_regular(path: &Path) -> Result<File, LoadError> {
    let metadata = fs::metadata(path).map_err(|error| fault(path, missing_or(path, error)))?;
    check_regular(path, &metadata)?;
    let file = File::open(path).map_err(|error| fault(path, FileFault::Io(error)))?;
    let opened = file
        .metadata()
        .map_err(|error| fault(path, FileFault::Io(error)))?;
    check_regular(path, &opened)?;
    Ok(file)
}

fn check_regular(path: &Path, metadata: &fs::Metadata) -> Result<(), LoadError> {
    if !metadata.is_file() {
        return Err(fault(
            path,
            FileFault::NotRegular {
                found: kind_name(metadata.file_type()),
            },
        ));
    }
    if metadata.len() == 0 {
        return Err(fault(path, FileFault::Empty));
    }
    Ok(())
}

/// Why `metadata` failed: nothing there, a link to nothing, or the system's own words.
fn missing_or(path: &Path, error: io::Error) -> FileFault {
    if error.kind() != io::ErrorKind::NotFound {
        return FileFault::Io(error);
    }
    match fs::read_link(path) {
        Ok(target) => FileFault::DanglingLink { target },
        Err(_) => FileFault::Missing,
    }
}

#[cfg(unix)]
fn kind_name(kind: fs::FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() => "a character device",
        () if kind.is_block_device() => "a block device",
        () => "no file",
    }
}

#[cfg(not(unix))]
fn kind_name(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else {
        "no file"
    }
}

fn fault(path: &Path, fault: FileFault) -> LoadError {
    LoadError::File {
        file: path.to_path_buf(),
        fault,
    }
}

fn embedded(files: EmbeddedFiles, name: &str) -> Option<&'static [u8]> {
    files
        .iter()
        .find(|(file, _)| *file == name)
        .map(|(_, bytes)| *bytes)
}
