//! `notify_fd`: notifies an event loop of updates through a file descriptor, for hosts whose language cannot use a callback safely.
//!
//! A callback runs on the engine's thread. An interpreter that ends at that moment kills the thread; and if the callback waits for an
//! event loop, the loop may have ended. A file descriptor has neither problem: the loop watches it like any other, and the engine
//! never waits for the loop.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;

use crate::error::{Error, Result};
use crate::host::Notice;
use crate::thread_state::without_signal;

/// Returns a function that writes to a copy of the descriptor: 8 bytes, the number 1, as an eventfd requires. It never waits: if the
/// descriptor is full, the reader already has a notification.
///
/// # Errors
/// The descriptor is not open for writing, or is not an eventfd, a pipe or a socket.
pub(super) fn open(number: i32) -> Result<Notice> {
    let wrong = |what: &str| {
        Error::invalid(format!("notify_fd: expected an eventfd, a pipe or a socket, got {number}, {what}"))
    };
    // SAFETY: accepts any number, and fails if it is not an open descriptor.
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
    let kind = file.metadata().map_err(|error| wrong(&format!("whose type cannot be read: {error}")))?.file_type();
    let kind = match (kind.is_fifo(), kind.is_socket()) {
        (true, _) => DescriptorKind::Pipe,
        (_, true) => DescriptorKind::Socket,
        _ if is_eventfd(copy) => DescriptorKind::EventFd,
        _ => return Err(wrong("which has another type")),
    };
    Ok(Box::new(move || signal(file.as_raw_fd(), kind)))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DescriptorKind {
    EventFd,
    Pipe,
    Socket,
}

/// Only Linux has eventfds, and only `/proc` shows that a descriptor is one.
fn is_eventfd(fd: i32) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

/// Writes, unless the descriptor is full. Returns false if its reader is closed.
fn signal(fd: i32, kind: DescriptorKind) -> bool {
    let mut state = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, which lives during the call. With a timeout of 0 the call does not wait.
    if unsafe { libc::poll(&raw mut state, 1, 0) } <= 0 {
        return true; // full, or interrupted by a signal
    }
    if state.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) != 0 {
        return false;
    }
    let written = match kind {
        DescriptorKind::EventFd => write(fd),
        DescriptorKind::Pipe => without_signal(libc::SIGPIPE, || write(fd)),
        DescriptorKind::Socket => send(fd),
    };
    !written.is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

const ONE: [u8; 8] = 1_u64.to_ne_bytes();

fn write(fd: i32) -> std::io::Result<()> {
    // SAFETY: reads 8 bytes of a constant.
    outcome(unsafe { libc::write(fd, ONE.as_ptr().cast(), ONE.len()) })
}

fn outcome(written: isize) -> std::io::Result<()> {
    if written < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(any(target_os = "macos", target_os = "ios"))]
fn send(fd: i32) -> std::io::Result<()> {
    without_signal(libc::SIGPIPE, || write(fd))
}

#[cfg(not(any(target_os = "macos", target_os = "ios")))]
fn send(fd: i32) -> std::io::Result<()> {
    // SAFETY: as in `write`.
    outcome(unsafe { libc::send(fd, ONE.as_ptr().cast(), ONE.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) })
}
