//! Reads a file into the system's page cache before llama.cpp maps it.
//!
//! llama.cpp maps a file with all its pages in one system call, which reports nothing and cannot be interrupted while a disk reads
//! gigabytes. The file is read in pieces here, so that a load has a progress and can be aborted. A file that is in the page cache already
//! costs some system calls for each piece. Nothing is copied but a few bytes of each piece.

use std::path::Path;

use crate::platform::ReadAhead;

/// The size of a piece, in bytes.
const PIECE: u64 = 1 << 20;

/// Reads these files. `progress` is called with the part that is read, 0..=1, and aborts by returning false. A file that cannot be read
/// is skipped: the load reports it. Returns whether it was not aborted.
pub(crate) fn read_ahead(files: &[impl AsRef<Path>], mut progress: impl FnMut(f32) -> bool) -> bool {
    let len = |file: &Path| std::fs::metadata(file).map_or(0, |file| file.len());
    let total: u64 = files.iter().map(|file| len(file.as_ref())).sum();
    let mut done = 0;
    for file in files {
        let before = done;
        let read = |at: u64| progress((before + at) as f32 / total.max(1) as f32);
        if !read_file(file.as_ref(), read) {
            return false;
        }
        done += len(file.as_ref());
    }
    true
}

/// Reads a file. `read` gets the number of bytes so far.
fn read_file(file: &Path, mut read: impl FnMut(u64) -> bool) -> bool {
    let Ok(file) = std::fs::File::open(file) else { return true };
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let Some(ahead) = ReadAhead::of(&file, len) else { return true };
    let mut at = 0;
    while at < len {
        let end = (at + PIECE).min(len);
        if !ahead.read(at, end) {
            return true;
        }
        if !read(end) {
            return false;
        }
        at = end;
    }
    true
}
