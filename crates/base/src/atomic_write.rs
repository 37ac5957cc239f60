//! Atomic file writes: a file is replaced completely or left unchanged. Temporary files of killed processes are removed by the next write
//! in the same folder.

mod writer;

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use self::writer::WriterProcess;
use crate::error::{Error, Result};

/// Opens a regular file for reading.
///
/// # Errors
/// [`Code::NotFound`](crate::error::Code::NotFound); [`Code::InvalidRequest`](crate::error::Code::InvalidRequest): it is not a regular file or cannot be read.
pub fn open(path: &Path) -> Result<File> {
    // Checked before opening, because opening a pipe would wait for its other end.
    let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
    regular(path, &metadata)?;
    File::open(path).map_err(|error| failed(path, &error))
}

/// Writes a file with `write`: into a temporary file in the same folder, which is renamed after it is synced to disk. An
/// existing file is replaced or left unchanged. Keeps permissions; writing to a symlink replaces the file it points to.
///
/// # Errors
/// [`Code::NotFound`](crate::error::Code::NotFound): the folder does not exist;
/// [`Code::InvalidRequest`](crate::error::Code::InvalidRequest): it cannot be written, or `write` failed.
pub fn write(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let failed = |error| failed(path, &error);
    let (destination, before) = match fs::canonicalize(path) {
        Ok(destination) => {
            let metadata = fs::metadata(&destination).map_err(failed)?;
            regular(path, &metadata)?;
            (destination, Some(metadata.permissions()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => (path.to_path_buf(), None),
        Err(error) => return Err(failed(error)),
    };
    let folder = destination.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    writer::remove_stale(folder);
    let (temporary, mut file) = loop {
        let temporary = temporary_path(&destination)?;
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            // Left by a killed process that had this process id.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => break (temporary, opened.map_err(failed)?),
        }
    };
    let written = write(&mut file)
        .and_then(|()| before.map_or(Ok(()), |permissions| file.set_permissions(permissions)))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, &destination));
    if let Err(error) = written {
        // It may already be gone; an error here cannot be handled.
        let _ = fs::remove_file(&temporary);
        return Err(failed(error));
    }
    // Syncing the folder makes the rename survive a power failure. Not every file system supports it; the file is complete
    // either way.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// A temporary path in the same folder that no other thread uses.
fn temporary_path(destination: &Path) -> Result<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let Some(name) = destination.file_name() else {
        return Err(Error::invalid(format!("{}: is not the path of a file", destination.display())));
    };
    // A long name is truncated, so that the temporary name does not exceed the file system's limit.
    let name: String = name.to_string_lossy().chars().take(40).collect();
    Ok(destination.with_file_name(format!(".{name}.{}-{number}.part", WriterProcess::this())))
}

fn regular(path: &Path, metadata: &fs::Metadata) -> Result<()> {
    match metadata {
        metadata if metadata.is_file() => Ok(()),
        metadata if metadata.is_dir() => Err(Error::invalid(format!("{}: is a folder", path.display()))),
        _ => Err(Error::invalid(format!("{}: is not a regular file", path.display()))),
    }
}

/// Converts an I/O error, with the path in its message.
pub fn failed(path: &Path, error: &io::Error) -> Error {
    Error::file(path, error, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
