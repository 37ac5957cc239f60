//! The C interface: each function converts, calls [`System`], and reports. The one global lives here.
//!
//! # Safety, for all functions of this room
//! A pointer that a host passes is NULL or points to a NUL-terminated string that is readable during the call; a
//! callback may be called from any thread until it is replaced. That is all that C can promise and all that is used.

mod callbacks;
mod completion;
mod guard;
mod lifecycle;
mod lookup;
mod lookup_cache;
mod session;
mod text;

use std::sync::Once;
use std::time::Duration;

use once_cell::sync::Lazy;

use crate::api::{Loaded, System};

/// The server that C hosts talk to.
static SYSTEM: Lazy<System> = Lazy::new(|| System::calling(end_before_llama));

/// How long the end of the process waits for what runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Stops the engine when the host exits without `deinit`. Handlers run in the reverse order of their registration, which
/// llama.cpp's globals have when it starts and when the first model is loaded: so there is one before the destructors of each,
/// where they are destroyed at all (`globals.c`). (On Windows all other threads have ended before any handler runs.)
fn end_before_llama(loaded: Loaded) {
    static ONCE: [Once; 2] = [const { Once::new() }; 2];
    // Where there is no room for a handler the host ends as it did without.
    ONCE[loaded as usize].call_once(at_exit);
}

fn end() {
    guard::quietly((), || SYSTEM.end(PATIENCE));
}

/// `atexit` would be a call of what `globals.c` replaces.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn at_exit() {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn handler(_status: c_int, _argument: *mut c_void) {
        end();
    }
    // SAFETY: glibc's; the handler is a function of this library, which is never unloaded (`build.rs`).
    let _ = unsafe { on_exit(handler, std::ptr::null_mut()) };
}

#[cfg(not(any(windows, all(target_os = "linux", target_env = "gnu"))))]
fn at_exit() {
    extern "C" fn handler() {
        end();
    }
    // SAFETY: the handler is a function of this library, which is never unloaded (`build.rs`).
    let _ = unsafe { libc::atexit(handler) };
}

#[cfg(windows)]
fn at_exit() {}
