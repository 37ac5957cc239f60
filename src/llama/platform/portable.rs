//! macOS and other systems: threads keep their settings, and what is not portable is unknown.

use std::fs::{File, Metadata};
use std::path::Path;
use std::time::Duration;

use super::identity::FileIdentity;
use crate::llama::threads::cpus::{CpuSet, ThreadPriority};

pub(in crate::llama) use self::UnknownScheduling as Scheduling;

/// ggml places the threads of its pools, and the calling thread does not change.
#[derive(Clone, Copy)]
pub(in crate::llama) struct UnknownScheduling;

impl UnknownScheduling {
    pub(in crate::llama) fn of_this_thread() -> Option<Self> {
        None
    }

    pub(in crate::llama) fn with(self, _: ThreadPriority, _: &CpuSet) -> Self {
        self
    }

    pub(in crate::llama) fn apply(&self) -> bool {
        true
    }
}

/// The CPU time of the calling thread. `None`: unknown.
pub(in crate::llama) fn thread_cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| result == 0)?;
    Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
}

/// `std::thread::hardware_concurrency`. 0: unknown.
pub(in crate::llama) fn n_cores_online() -> usize {
    // SAFETY: reads a number of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(0)
}

/// Empty: unknown.
pub(in crate::llama) fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

/// `None`: unknown.
pub(in crate::llama) fn physical_cores(_: &[usize]) -> Option<usize> {
    None
}

/// The identity of a file. `None`: unknown.
pub(in crate::llama) fn file_identity(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// `None`: models are not loaded from descriptors here.
pub(in crate::llama) fn identity_of_descriptor(_: i32) -> Option<(Metadata, FileIdentity)> {
    None
}

/// Nothing is read ahead.
pub(in crate::llama) fn read_piece(_: &File, _: u64, _: u64) -> bool {
    false
}

/// The linker keeps the library on most systems (`build.rs`), but not on macOS.
pub fn keep_loaded() {}
