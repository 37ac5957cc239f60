//! Reads a file into the system's page cache before llama.cpp maps it.
//!
//! llama.cpp maps a file with all its pages in one system call, which reports nothing and cannot be interrupted while a disk reads
//! gigabytes. The file is read in pieces here, so that a load has a progress and can be aborted. A file that is in the page cache already
//! costs two system calls for each piece. Nothing is copied but a byte of each piece.

use std::path::Path;

/// The size of a piece, in bytes.
const PIECE: u64 = 1 << 20;

/// Reads these files. `progress` is called with the part that is read, 0..=1, and aborts by returning false. A file that cannot be read
/// is skipped: the load reports it. Returns whether it was not aborted.
pub(in crate::llama) fn read_ahead(files: &[impl AsRef<Path>], mut progress: impl FnMut(f32) -> bool) -> bool {
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
#[cfg(target_os = "linux")]
fn read_file(file: &Path, mut read: impl FnMut(u64) -> bool) -> bool {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    let Ok(file) = std::fs::File::open(file) else { return true };
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let mut at = 0;
    while at < len {
        let end = (at + PIECE).min(len);
        if let (Ok(start), Ok(size)) = (libc::off64_t::try_from(at), libc::off64_t::try_from(end - at)) {
            // SAFETY: the descriptor is open. The call only advises the system.
            unsafe { libc::posix_fadvise64(file.as_raw_fd(), start, size, libc::POSIX_FADV_WILLNEED) };
        }
        // Waits until the piece is there.
        if file.read_at(&mut [0], end - 1).is_err() {
            return true;
        }
        if !read(end) {
            return false;
        }
        at = end;
    }
    true
}

/// Elsewhere nothing is read ahead.
#[cfg(not(target_os = "linux"))]
fn read_file(_: &Path, _: impl FnMut(u64) -> bool) -> bool {
    true
}
