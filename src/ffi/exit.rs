//! A handler for the end of the host's process.

use std::sync::OnceLock;

/// The function that the end of the process calls.
static HANDLER: OnceLock<fn()> = OnceLock::new();

#[cfg_attr(windows, allow(dead_code))]
fn end() {
    if let Some(handler) = HANDLER.get() {
        handler();
    }
}

/// Registers `handler` for the end of the process. It must not unwind, and must be the same function in all calls. Handlers run in
/// reverse order of registration. If there is no memory for another handler, the process ends without it. On Windows nothing is
/// registered, because all other threads have ended before handlers run.
pub(super) fn at_exit(handler: fn()) {
    HANDLER.get_or_init(|| handler);
    register();
}

/// `on_exit`, because `atexit` would call the function that `globals.c` replaces.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn register() {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn on_exit(handler: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn ends(_status: c_int, _argument: *mut c_void) {
        end();
    }
    // SAFETY: a function of glibc. The handler is a function of this library, which is never unloaded (`build.rs`).
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
