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

use crate::api::System;

/// The server that C hosts talk to.
static SYSTEM: Lazy<System> = Lazy::new(|| System::calling(end_before_llama));

/// How long the end of the process waits for what runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Stops the engine when the host exits without `deinit`. Handlers run in the reverse order of their registration, which
/// llama.cpp's globals have when the first model is loaded: so this one before their destructors. (On Windows all other threads
/// have ended before any handler runs.)
fn end_before_llama() {
    extern "C" fn end() {
        guard::quietly((), || SYSTEM.end(PATIENCE));
    }
    static ONCE: Once = Once::new();
    #[cfg(not(windows))]
    ONCE.call_once(|| {
        // SAFETY: `end` is a function of this library, which is never unloaded (`build.rs`).
        // Where there is no room for it the host ends as it did without.
        let _ = unsafe { libc::atexit(end) };
    });
}
