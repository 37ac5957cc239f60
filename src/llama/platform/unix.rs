//! What Linux and other Unix systems have in common.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use super::identity::FileIdentity;

/// The CPU time of the calling thread. `None`: unknown.
pub(in crate::llama) fn thread_cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| result == 0)?;
    Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
}

/// `std::thread::hardware_concurrency`, which ignores quotas. 0: unknown.
pub(in crate::llama) fn n_cores_online() -> usize {
    // SAFETY: reads a number of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(0)
}

/// The identity of a file. `None`: unknown.
pub(in crate::llama) fn file_identity(path: &Path) -> Option<FileIdentity> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
