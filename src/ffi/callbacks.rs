//! The host's callbacks: for log lines, and for requests with news.

use std::ffi::{CString, c_char, c_void};

use super::SYSTEM;
use super::guard::quietly;
use crate::llama::log;

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

/// Takes the library's log lines, llama.cpp's among them, instead of stderr; NULL restores stderr. `level` is 1 debug,
/// 2 info, 3 warning, 4 error; lines below `log_level` of `init` are dropped. `text` is UTF-8 and valid during the call.
/// Called from any thread. When this function returns, the former callback runs no more (unless this is called from
/// inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn set_log_callback(
    cb: Option<extern "C" fn(level: i32, text: *const c_char, user: *mut c_void)>,
    user: *mut c_void,
) {
    quietly((), || {
        let user = User(user);
        log::set_sink(cb.map(|cb| -> Box<log::Sink> {
            Box::new(move |level, text| {
                // A line with NUL inside ends there.
                let line = text.trim_end().split('\0').next().unwrap_or_default();
                let line = CString::new(line).unwrap_or_default();
                cb(level as i32, line.as_ptr(), user.get());
            })
        }));
    });
}

/// Called from the engine's thread when the request `id` has a new update or has finished, so that an event loop can
/// sleep until then; NULL ends that. It may call every function of the library that does not wait for the engine: not
/// `get_completion`, `speculative_completion`, `get_embedding`, `session_save`, `session_load`, nor a poll with `timeout_ms`, which
/// then answer `would_deadlock`, and not `init`, which returns 5. When this function returns, the former callback runs no more
/// (unless this is called from inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn set_update_callback(cb: Option<extern "C" fn(id: u64, user: *mut c_void)>, user: *mut c_void) {
    quietly((), || {
        let user = User(user);
        SYSTEM
            .set_update_hook(cb.map(|cb| -> Box<dyn Fn(u64) + Send + Sync> { Box::new(move |id| cb(id, user.get())) }));
    });
}
