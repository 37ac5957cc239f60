//! Files that are written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Code, Error, Result};

/// Opens a regular file for reading.
///
/// # Errors
/// [`Code::NotFound`]; [`Code::InvalidRequest`] for what is no regular file or may not be read.
pub(crate) fn open(path: &Path) -> Result<File> {
    // Before opening: to open a pipe waits for its other end.
    let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
    regular(path, &metadata)?;
    File::open(path).map_err(|error| failed(path, &error))
}

/// Writes a file with `write`: beside its place under a name of its own, from where it is renamed when all of it is on
/// the disk. What was there before is replaced by that, or stays as it was. A link stays, and what it leads to is
/// replaced; the permissions stay as well.
///
/// # Errors
/// [`Code::NotFound`]: there is no such folder; [`Code::InvalidRequest`]: it cannot be written, or `write` failed.
pub(crate) fn write(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let failed = |error| failed(path, &error);
    let (place, before) = match fs::canonicalize(path) {
        Ok(place) => {
            let metadata = fs::metadata(&place).map_err(failed)?;
            regular(path, &metadata)?;
            (place, Some(metadata.permissions()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => (path.to_path_buf(), None),
        Err(error) => return Err(failed(error)),
    };
    let (beside, mut file) = loop {
        let beside = beside(&place)?;
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            // A process of our number was killed while it wrote.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => break (beside, opened.map_err(failed)?),
        }
    };
    let written = write(&mut file)
        .and_then(|()| before.map_or(Ok(()), |permissions| file.set_permissions(permissions)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, &place));
    if let Err(error) = written {
        // It may be gone already; there is nothing else to be done about it.
        let _ = fs::remove_file(&beside);
        return Err(failed(error));
    }
    // Only now the renaming is sure to survive a power failure. Not every file system has this, and the file is whole.
    let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// A name that no other thread uses, in the same folder.
fn beside(place: &Path) -> Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let Some(name) = place.file_name() else {
        return Err(Error::invalid(format!("{}: is not the path of a file", place.display())));
    };
    // The end of a long name may be cut off: the whole must not be longer than file systems allow.
    let name: String = name.to_string_lossy().chars().take(40).collect();
    Ok(place.with_file_name(format!(".{name}.{}-{number}.part", std::process::id())))
}

fn regular(path: &Path, metadata: &fs::Metadata) -> Result<()> {
    match metadata {
        metadata if metadata.is_file() => Ok(()),
        metadata if metadata.is_dir() => Err(Error::invalid(format!("{}: is a folder", path.display()))),
        _ => Err(Error::invalid(format!("{}: is not a regular file", path.display()))),
    }
}

/// The error of a file.
pub(super) fn failed(path: &Path, error: &io::Error) -> Error {
    let code = if error.kind() == ErrorKind::NotFound { Code::NotFound } else { Code::InvalidRequest };
    Error::new(code, format!("{}: {error}", path.display()))
}

#[cfg(test)]
#[path = "atomic_write_tests.rs"]
mod tests;
