//! `notify_fd`: tells an event loop of news by a file descriptor, where a callback into the host's language would be unsafe.
//!
//! A callback runs on the engine's thread, which is the host's trouble in two ways: an interpreter that ends while the thread
//! is inside takes the thread down with it, and an event loop that the callback waits for may not run any more. A descriptor
//! has neither: the loop watches it together with everything else, and the engine never waits for the loop.

use crate::error::{Error, Result};
use crate::host::Notice;

#[cfg(not(unix))]
pub(super) fn open(_number: i32) -> Result<Notice> {
    Err(Error::invalid("notify_fd: not available on this platform, which has no such descriptors"))
}

/// What writes to a copy of that descriptor: 8 bytes, the number 1, as an eventfd takes and a pipe or socket passes on. It
/// never waits: a descriptor that takes no more has news already.
///
/// # Errors
/// It is not open for writing, or neither an eventfd nor a pipe nor a socket.
#[cfg(unix)]
pub(super) fn open(number: i32) -> Result<Notice> {
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use std::os::unix::fs::FileTypeExt as _;

    let wrong = |what: &str| {
        Error::invalid(format!("notify_fd: expected an eventfd, a pipe or a socket, got {number}, {what}"))
    };
    // SAFETY: takes any number, and fails where it is no open descriptor.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(wrong("which is not open"));
    }
    // SAFETY: a new descriptor, which nothing else owns.
    let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(copy) });
    // SAFETY: asks for the flags of an open descriptor.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(wrong("which cannot be written to"));
    }
    let kind = file.metadata().map_err(|error| wrong(&format!("of which nothing is known: {error}")))?.file_type();
    let kind = match (kind.is_fifo(), kind.is_socket()) {
        (true, _) => Kind::Pipe,
        (_, true) => Kind::Socket,
        _ if is_eventfd(copy) => Kind::EventFd,
        _ => return Err(wrong("which is something else")),
    };
    Ok(Box::new(move || signal(file.as_raw_fd(), kind)))
}

#[cfg(unix)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    EventFd,
    Pipe,
    Socket,
}

/// Linux alone has them, and only this file system tells.
#[cfg(unix)]
fn is_eventfd(fd: i32) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Writes, unless the descriptor is full. False when nobody can read it any more.
#[cfg(unix)]
fn signal(fd: i32, kind: Kind) -> bool {
    let mut state = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, which lives during the call; a timeout of 0 waits for nothing.
    if unsafe { libc::poll(&raw mut state, 1, 0) } <= 0 {
        return true; // full, or interrupted by a signal, whose handler does not change that the loop is to look
    }
    if state.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
        return false;
    }
    let written = match kind {
        Kind::EventFd => write(fd),
        Kind::Pipe => without_sigpipe(|| write(fd)),
        Kind::Socket => send(fd),
    };
    !written.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(unix)]
const ONE: [u8; 8] = 1_u64.to_ne_bytes();

#[cfg(unix)]
fn write(fd: i32) -> std::io::Result<()> {
    // SAFETY: reads 8 bytes that live as long as the program.
    outcome(unsafe { libc::write(fd, ONE.as_ptr().cast(), ONE.len()) })
}

#[cfg(unix)]
fn outcome(written: isize) -> std::io::Result<()> {
    if written < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(any(target_os = "macos", target_os = "ios"))]
fn send(fd: i32) -> std::io::Result<()> {
    without_sigpipe(|| write(fd))
}

#[cfg(all(unix, not(any(target_os = "macos", target_os = "ios"))))]
fn send(fd: i32) -> std::io::Result<()> {
    // SAFETY: as in `write`.
    outcome(unsafe { libc::send(fd, ONE.as_ptr().cast(), ONE.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
}

/// Runs `write` so that a reader that closes at this very moment does not end the process by SIGPIPE, whatever the host has
/// made of that signal, and without changing it for the host.
#[cfg(unix)]
fn without_sigpipe(write: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
    use std::mem::MaybeUninit;
    use std::ptr::null_mut;

    let mut only = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut former = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the sets are this function's own, and each is filled before it is read; the mask is this thread's alone, and as
    // it was in the end. SIGPIPE comes to the thread that writes: if it was not pending before and is now, `sigwait` takes it
    // without waiting.
    unsafe {
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), libc::SIGPIPE);
        libc::sigemptyset(pending.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, only.as_ptr(), former.as_mut_ptr());
        let written = write();
        let is_broken = written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
        if is_broken && !was_pending {
            libc::sigpending(pending.as_mut_ptr());
            if libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1 {
                let mut taken = 0;
                libc::sigwait(only.as_ptr(), &raw mut taken);
            }
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), null_mut());
        written
    }
}
