//! A handler for the end of the host's process.

use std::sync::OnceLock;

/// What the end of the process calls.
static HANDLER: OnceLock<fn()> = OnceLock::new();

#[cfg_attr(windows, allow(dead_code))]
fn end() {
    if let Some(handler) = HANDLER.get() {
        handler();
    }
}

/// Registers `handler`, which must not unwind, for the process's end; the same one each time. Handlers run in the reverse order of
/// their registration. Where there is no memory for one more, the host ends without it; on Windows, where all other threads have
/// ended before any handler runs, it always does.
pub(super) fn at_exit(handler: fn()) {
    HANDLER.get_or_init(|| handler);
    register();
}

/// `atexit` would be a call of what `globals.c` replaces.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn register() {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn ends(_status: c_int, _argument: *mut c_void) {
        end();
    }
    // SAFETY: glibc's; the handler is a function of this library, which is never unloaded (`build.rs`).
    let _ = unsafe { on_exit(ends, std::ptr::null_mut()) };
}

#[cfg(not(any(windows, all(target_os = "linux", target_env = "gnu"))))]
fn register() {
    extern "C" fn ends() {
        end();
    }
    // SAFETY: the handler is a function of this library, which is never unloaded (`build.rs`).
    let _ = unsafe { libc::atexit(ends) };
}

#[cfg(windows)]
fn register() {}
