//! Stops all engines when the host's process ends without freeing them.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{engines, guard};
use crate::api::{Loaded, System};

/// How long the end of the process waits for what runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Registers a handler for the process's end. Handlers run in the reverse order of their registration, which llama.cpp's
/// globals have when it starts and when the first model is loaded: so there is one before the destructors of each, where they
/// are destroyed at all (`globals.c`). (On Windows all other threads have ended before any handler runs.)
pub(super) fn end_before_llama(loaded: Loaded) {
    static BEFORE_START: Once = Once::new();
    static BEFORE_MODELS: Once = Once::new();
    let once = match loaded {
        Loaded::Nothing => &BEFORE_START,
        Loaded::Model => &BEFORE_MODELS,
    };
    // Where there is no memory for a handler the host ends as it did without.
    once.call_once(at_exit);
}

fn end() {
    /// A thread is inside a callback that does not return: the second handler need not wait for it again.
    static GAVE_UP: AtomicBool = AtomicBool::new(false);
    guard::quietly((), || {
        if !GAVE_UP.load(Ordering::Acquire) {
            GAVE_UP.store(!System::end(engines::all(), PATIENCE), Ordering::Release);
        }
    });
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
