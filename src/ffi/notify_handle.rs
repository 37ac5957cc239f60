//! `notify_fd` on Windows: an event or a socket, which an event loop watches. It has the reasons of `notify_fd.rs`.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::windows::io::{AsRawHandle as _, AsRawSocket as _, FromRawHandle as _, FromRawSocket as _, OwnedHandle};

use windows_sys::Win32::Foundation::{DuplicateHandle, HANDLE};
use windows_sys::Win32::Networking::WinSock::{
    FROM_PROTOCOL_INFO, INVALID_SOCKET, POLLERR, POLLHUP, POLLNVAL, POLLWRNORM, SO_TYPE, SOCKET, SOL_SOCKET,
    WSA_FLAG_NO_HANDLE_INHERIT, WSADuplicateSocketW, WSAPOLLFD, WSAPROTOCOL_INFOW, WSAPoll, WSASocketW, getsockopt,
};
use windows_sys::Win32::System::Threading::{EVENT_MODIFY_STATE, GetCurrentProcess, GetCurrentProcessId, SetEvent};

use crate::error::{Error, Result};
use crate::host::Notice;

/// Returns a function that sets a copy of the event, or writes to a copy of the socket: 8 bytes, the number 1. It never waits: if the socket is
/// full, the reader already has a notification. The event is set once at the beginning, which shows that it is one.
///
/// # Errors
/// The number is neither an event's handle nor a connected socket.
pub(super) fn open(number: i32) -> Result<Notice> {
    let wrong = |what: &str| {
        Error::invalid(format!("notify_fd: expected the handle of an event, or a socket, got {number}, {what}"))
    };
    let number = usize::try_from(number).map_err(|_| wrong("which is negative"))?;
    if let Some(socket) = copy_of_socket(number) {
        return Ok(Box::new(move || send(&socket)));
    }
    let mut copy: HANDLE = std::ptr::null_mut();
    // SAFETY: accepts any number, and fails if it is not an open handle; `copy` is writable.
    let is_open = unsafe {
        let here = GetCurrentProcess();
        DuplicateHandle(here, std::ptr::without_provenance_mut(number), here, &raw mut copy, EVENT_MODIFY_STATE, 0, 0)
            != 0
    };
    if !is_open {
        return Err(wrong("which is not open"));
    }
    // SAFETY: a new handle, which nothing else owns.
    let event = unsafe { OwnedHandle::from_raw_handle(copy) };
    if !set(&event) {
        return Err(wrong("which has another type"));
    }
    Ok(Box::new(move || {
        // Nothing shows whether a thread still waits for it.
        set(&event);
        true
    }))
}

fn set(event: &OwnedHandle) -> bool {
    // SAFETY: the handle is open.
    unsafe { SetEvent(event.as_raw_handle()) != 0 }
}

/// A copy of a socket that connects to another one. `None`: the number is no socket.
fn copy_of_socket(number: SOCKET) -> Option<TcpStream> {
    let (mut kind, mut size) = (0_i32, 4_i32);
    // SAFETY: accepts any number, and fails if it is not a socket, or if the host has none; both numbers are writable, of this size.
    if unsafe { getsockopt(number, SOL_SOCKET, SO_TYPE, (&raw mut kind).cast(), &raw mut size) } != 0 {
        return None;
    }
    // SAFETY: zeros are a valid structure, which the first call fills and the second reads.
    let copy = unsafe {
        let mut about: WSAPROTOCOL_INFOW = std::mem::zeroed();
        if WSADuplicateSocketW(number, GetCurrentProcessId(), &raw mut about) != 0 {
            return None;
        }
        let (any, flags) = (FROM_PROTOCOL_INFO, WSA_FLAG_NO_HANDLE_INHERIT);
        WSASocketW(any, any, any, &raw const about, 0, flags)
    };
    // SAFETY: a new socket, which nothing else owns.
    (copy != INVALID_SOCKET).then(|| unsafe { TcpStream::from_raw_socket(copy as u64) })
}

/// Writes, unless the socket is full. Returns false if its reader is closed.
fn send(mut socket: &TcpStream) -> bool {
    let mut state = WSAPOLLFD { fd: socket.as_raw_socket() as SOCKET, events: POLLWRNORM, revents: 0 };
    // SAFETY: one entry, which lives during the call. With a timeout of 0 the call does not wait.
    if unsafe { WSAPoll(&raw mut state, 1, 0) } <= 0 {
        return true; // full
    }
    if state.revents & (POLLERR | POLLHUP | POLLNVAL) != 0 {
        return false;
    }
    match socket.write(&1_u64.to_le_bytes()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}
