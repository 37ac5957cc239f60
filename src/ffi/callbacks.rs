//! The host's callbacks: for log lines, and for requests with news.

use std::ffi::{CString, c_char, c_void};

use super::engine::silently;
use super::engines;
use super::guard::quietly;
use super::types::{foredraft_engine, foredraft_log_callback, foredraft_update_callback};
use crate::llama::log;

unsafe extern "C" {
    // `call.c`: they call `cb` unless it is an interpreter's that is ending, and keep a thread that the host ends meanwhile
    // from unwinding into Rust.
    fn foredraft_is_made_at_run_time(code: *const c_void) -> i32;
    fn foredraft_call_update(
        cb: unsafe extern "C" fn(u64, *mut c_void),
        made_at_run_time: i32,
        id: u64,
        user: *mut c_void,
    );
    fn foredraft_call_log(
        cb: unsafe extern "C" fn(i32, *const c_char, *mut c_void),
        made_at_run_time: i32,
        level: i32,
        text: *const c_char,
        user: *mut c_void,
    );
}

/// The host's pointer, passed back to it and otherwise left alone.
struct User(*mut c_void);

// SAFETY: the library does nothing with the pointer; that the callback may run on any thread is part of the interface.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Takes the log lines of the library, llama.cpp's among them, instead of stderr; NULL restores stderr. One callback for all
/// engines. `level` is a `foredraft_log_level`; lines below `log_level` of the newest load that had one are dropped. `text` is
/// UTF-8 and valid during the call. Called from any thread. When this function returns, the former callback runs no more
/// (unless this is called from inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_set_log_callback(cb: foredraft_log_callback, user: *mut c_void) {
    set_log(cb, user);
}

/// Called from the engine's thread when the request `id` has a new update or has finished, so that an event loop can
/// sleep until then; NULL ends that. It may call every function of the library that does not wait for an engine: not
/// `foredraft_complete`, `_embed`, `_session_save`, `_session_load`, nor a poll with `timeout_ms`, which then answer
/// `would_deadlock`, and not `foredraft_load`, which returns FOREDRAFT_WOULD_DEADLOCK. When this function returns, the former
/// callback runs no more (unless this is called from inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_set_update_callback(
    engine: *mut foredraft_engine,
    cb: foredraft_update_callback,
    user: *mut c_void,
) {
    set_update(engine, cb, user);
}

pub(super) fn set_log(cb: foredraft_log_callback, user: *mut c_void) {
    quietly((), || {
        let user = User(user);
        log::set_sink(cb.map(|cb| -> Box<log::Sink> {
            // SAFETY: looks the address up, whatever it is.
            let made = unsafe { foredraft_is_made_at_run_time(cb as *const c_void) };
            Box::new(move |level, text| {
                // A line with NUL inside ends there.
                let line = text.trim_end().split('\0').next().unwrap_or_default();
                let line = CString::new(line).unwrap_or_default();
                // SAFETY: the host's function of this type, which may be called until it is replaced; the line outlives the call.
                unsafe { foredraft_call_log(cb, made, level as i32, line.as_ptr(), user.get()) };
            })
        }));
    });
}

pub(super) fn set_update(engine: *mut foredraft_engine, cb: foredraft_update_callback, user: *mut c_void) {
    let user = User(user);
    let hook = cb.map(|cb| -> Box<dyn Fn(u64) + Send + Sync> {
        // SAFETY: looks the address up, whatever it is.
        let made = unsafe { foredraft_is_made_at_run_time(cb as *const c_void) };
        // SAFETY: the host's function of this type, which may be called until it is replaced.
        Box::new(move |id| unsafe { foredraft_call_update(cb, made, id, user.get()) })
    });
    let set = |()| Ok(engines::find(engine)?.set_update_hook(hook));
    quietly((), || silently("foredraft_set_update_callback", Ok(()).and_then(set)));
}
