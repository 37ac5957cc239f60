//! The n-gram cache files that requests name, kept in memory while they do not change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::error::Result;
use crate::speculative::{CacheFile, read_cache};

/// The maximum number of files kept. The least recently used one is dropped first.
const MAX_FILES: usize = 4;

/// The files by path. A file is read again if it has changed.
#[derive(Default)]
pub struct CacheFiles {
    /// The most recently used file is the last one.
    files: Mutex<Vec<(PathBuf, FileVersion, CacheFile)>>,
}

/// File metadata that differs if the file was replaced.
#[derive(PartialEq)]
struct FileVersion {
    modified: Option<SystemTime>,
    len: u64,
    /// 0 on platforms without inode numbers.
    inode: u64,
}

impl FileVersion {
    fn of(path: &Path) -> Option<FileVersion> {
        let metadata = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Some(FileVersion { modified: metadata.modified().ok(), len: metadata.len(), inode })
    }
}

impl CacheFiles {
    /// The cache in `path`. Error messages name the field `name`.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn get(&self, name: &str, path: &Path, n_vocab: usize) -> Result<CacheFile> {
        let version = FileVersion::of(path);
        {
            let mut files = self.files.lock();
            let known = files.iter().position(|(known, of, _)| known == path && Some(of) == version.as_ref());
            if let Some(known) = known {
                let file = files.remove(known);
                let cache = file.2.clone();
                files.push(file);
                return Ok(cache);
            }
        }
        // The lock is released here, so that other threads can read other files.
        let cache = CacheFile(Arc::new(read_cache(name, path, n_vocab, false)?));
        if let Some(version) = version {
            let mut files = self.files.lock();
            files.retain(|(known, ..)| known != path);
            files.push((path.to_owned(), version, cache.clone()));
            if files.len() > MAX_FILES {
                files.remove(0);
            }
        }
        Ok(cache)
    }
}
