//! The items that Linux and other Unix systems share.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::identity::FileIdentity;

/// The CPU time of the calling thread. `None`: unknown.
pub(crate) fn thread_cpu_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok().filter(|_| result == 0)?;
    Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
}

/// A clock that all processes share, in nanoseconds.
pub(crate) fn clock_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(time.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec))
}

/// `std::thread::hardware_concurrency`, which ignores quotas. 0: unknown.
pub(crate) fn n_cores_online() -> usize {
    // SAFETY: reads a number of the system.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(0)
}

/// The file with this code. `None`: unknown.
pub(crate) fn own_file() -> Option<PathBuf> {
    // SAFETY: zeros are a valid structure, which is writable, and the address is one of this file. The name is NUL-terminated.
    let name = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(own_file as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(info.dli_fname)
    };
    Some(OsStr::from_bytes(name.to_bytes()).into())
}

/// The identity of a file. `None`: unknown.
pub(crate) fn file_identity(path: &Path) -> Option<FileIdentity> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The lowest address of the calling thread's stack, and the one after its highest. `None`: unknown.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn stack_bounds() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the first call initializes `attributes` if it succeeds, the second one reads them, and the last one frees them.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let result = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        (result == 0).then_some((low.addr(), low.addr() + size))
    }
}

/// The lowest address of the calling thread's stack, and the one after its highest. `None`: unknown.
#[cfg(target_vendor = "apple")]
pub(crate) fn stack_bounds() -> Option<(usize, usize)> {
    // SAFETY: both functions only read the calling thread's settings.
    let (high, size) = unsafe {
        let thread = libc::pthread_self();
        (libc::pthread_get_stackaddr_np(thread).addr(), libc::pthread_get_stacksize_np(thread))
    };
    Some((high - size, high))
}

/// `None`: unknown.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
pub(crate) fn stack_bounds() -> Option<(usize, usize)> {
    None
}
