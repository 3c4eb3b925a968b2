//! The Hub cache on disk, in the layout that every Hub client shares.
//!
//! ```text
//! models--owner--name/refs/main                          the commit that a branch stood for when it was last asked
//!                     blobs/<etag>                       contents, each once
//!                     snapshots/<commit>/config.json     a link to a blob: a snapshot is a release directory
//!                     .no_exist/<commit>/<file>          empty: the commit is known to lack the file
//! .locks/models--owner--name/<etag>.lock                 held while a blob is written
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::error::HubError;
use super::name::{HubName, is_commit, is_component};

/// The folder of one repository.
#[derive(Debug)]
pub(super) struct RepositoryCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepositoryCache {
    pub(super) fn new(cache: &Path, name: &HubName) -> RepositoryCache {
        RepositoryCache {
            folder: cache.join(name.folder()),
            locks: cache.join(".locks").join(name.folder()),
        }
    }

    /// The commit that a revision stood for when it was last asked.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        let commit = commit.trim();
        is_component(commit).then(|| commit.to_owned())
    }

    /// Notes the commit that a revision stands for.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let file = self.folder.join("refs").join(revision);
        create_parent(&file)?;
        // Written beside and renamed, so that nobody reads half a commit.
        let refs = self.folder.join("refs");
        let beside = refs.join(beside_name(&revision.replace('/', "-")));
        fs::write(&beside, commit).map_err(at(&beside))?;
        fs::rename(&beside, &file).map_err(at(&file))
    }

    /// The release directory of a commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Whether the snapshot has a file, with its content.
    pub(super) fn has(&self, commit: &str, file: &str) -> bool {
        self.snapshot(commit).join(file).is_file()
    }

    /// Whether the commit is known to lack a file.
    pub(super) fn lacks(&self, commit: &str, file: &str) -> bool {
        self.absence(commit, file).is_file()
    }

    /// Notes that the commit lacks a file.
    pub(super) fn set_lacking(&self, commit: &str, file: &str) -> Result<(), HubError> {
        let mark = self.absence(commit, file);
        create_parent(&mark)?;
        File::create(&mark).map(drop).map_err(at(&mark))
    }

    fn absence(&self, commit: &str, file: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(file)
    }

    /// Where a content lies once it is whole.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Where a content grows.
    pub(super) fn incomplete(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Waits until no other process writes this content. `waiting` is called if one does. Dropping the file ends it.
    pub(super) fn lock(&self, etag: &str, waiting: impl FnOnce()) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        create_parent(&path)?;
        create_parent(&self.blob(etag))?;
        let file = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(at(&path))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => waiting(),
            Err(fs::TryLockError::Error(error)) => return Err(at(&path)(error)),
        }
        file.lock().map_err(at(&path))?;
        Ok(file)
    }

    /// Makes the snapshot's file a link to a content.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(file);
        create_parent(&link)?;
        let target = Path::new("../../blobs").join(etag);
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        let beside = link.with_file_name(beside_name(file));
        make_link(&target, &self.blob(etag), &beside).map_err(at(&beside))?;
        fs::rename(&beside, &link).map_err(at(&link))
    }
}

#[cfg(unix)]
fn make_link(target: &Path, _blob: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Where links need rights that few have, the content lies in the snapshot a second time.
#[cfg(not(unix))]
fn make_link(_target: &Path, blob: &Path, link: &Path) -> io::Result<()> {
    fs::copy(blob, link).map(drop)
}

/// A name that no other thread or process uses, for what is renamed into place.
fn beside_name(name: &str) -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    format!(
        ".{name}.{}-{}.tmp",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

fn create_parent(file: &Path) -> Result<(), HubError> {
    let parent = file.parent().unwrap_or(file);
    fs::create_dir_all(parent).map_err(at(parent))
}

/// Names the file of an I/O error.
pub(super) fn at(file: &Path) -> impl Fn(io::Error) -> HubError {
    let file = file.to_path_buf();
    move |source| HubError::File {
        file: file.clone(),
        source,
    }
}
