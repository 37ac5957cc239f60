//! The host's callbacks, for log lines, for updates of requests, and for their logits.

use std::ffi::{CString, c_void};

use foredraft_native as native;

use super::engine::log_failure;
use super::engines;
use super::guard::run;
use super::types::{foredraft_engine, foredraft_log_callback, foredraft_logits_callback, foredraft_update_callback};
use crate::engine::LogitsCallback;
use crate::error::{Code, Error};
use crate::llama::{Token, log};

/// The host's pointer, which is only passed back to the host.
struct User(*mut c_void);

// SAFETY: the library does not dereference the pointer, and the interface says that callbacks run on any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl User {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Sets the callback for log lines of the library and of llama.cpp, which otherwise go to stderr. NULL restores stderr. There is
/// one callback for all engines. `level` is a `foredraft_log_level`; lines below the `log_level` of the newest load that set it are
/// dropped. `text` is UTF-8 and valid during the call. The callback is called from any thread. When this function returns, the
/// previous callback no longer runs (unless this function was called from inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_set_log_callback(cb: foredraft_log_callback, user: *mut c_void) {
    set_log(cb, user);
}

/// Sets the callback for updates. The engine's thread calls it when the request `id` has a new update or has finished, so an event
/// loop can sleep until then. NULL removes the callback. The callback can call every function of the library that does not wait
/// for an engine. Not allowed are `foredraft_complete`, `_decide`, `_embed`, `_rerank`, `_session_save`, `_session_load`, `_session_erase`, `_conversation` and a
/// poll with `timeout_ms`, which return the error `would_deadlock`, and `foredraft_load`, which returns
/// FOREDRAFT_WOULD_DEADLOCK. When this function returns, the previous callback no longer runs (unless this function was called
/// from inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_set_update_callback(
    engine: *mut foredraft_engine,
    cb: foredraft_update_callback,
    user: *mut c_void,
) {
    set_update(engine, cb, user);
}

/// Sets the callback for logits. For requests with `"logits_callback": true`, the engine's thread calls it once for each position, in
/// order, before the position's token is chosen: with the request's `id`, the model's logits, which it may change, and all tokens
/// before the position, prompt and completion, as far as they are in the context. Biases, penalties, the grammar and all other samplers
/// see the changed logits. Drafted tokens are accepted as the changed logits say, so speculation still changes no completion.
///
/// NULL removes the callback; a request that runs and needs it then ends with an error. The callback may call the functions that the
/// update callback may call; `foredraft_cancel` ends the request before the position's token. It must return: no `longjmp`, no exception. The engine decodes nothing meanwhile. When this function
/// returns, the previous callback no longer runs (unless this function was called from inside a callback).
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_set_logits_callback(
    engine: *mut foredraft_engine,
    cb: foredraft_logits_callback,
    user: *mut c_void,
) {
    let user = User(user);
    let hook = cb.map(|cb| -> Box<LogitsCallback> {
        // SAFETY: looks up the address, which can have any value.
        let made = unsafe { native::foredraft_is_made_at_run_time(cb as *const c_void) };
        Box::new(move |id, logits: &mut [f32], tokens: &[Token]| {
            let length = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
            let (n_vocab, n_tokens) = (length(logits.len()), length(tokens.len()));
            let (logits, tokens) = (logits.as_mut_ptr(), tokens.as_ptr());
            // SAFETY: `cb` is the host's function of this type, valid until it is replaced; the arrays have these lengths and outlive the
            // call.
            let called = unsafe {
                native::foredraft_call_logits(Some(cb), made, id, logits, n_vocab, tokens, n_tokens, user.get())
            };
            let finalizing = || Error::new(Code::Cancelled, "logits_callback: the interpreter is finalizing");
            if called != 0 { Ok(()) } else { Err(finalizing()) }
        })
    });
    run(|| {
        let found = engines::find(engine).map(|engine| engine.set_logits_hook(hook));
        log_failure("foredraft_set_logits_callback", found);
    });
}

pub(super) fn set_log(cb: foredraft_log_callback, user: *mut c_void) {
    run(|| {
        let user = User(user);
        log::set_sink(cb.map(|cb| -> Box<log::Sink> {
            // SAFETY: looks up the address, which can have any value.
            let made = unsafe { native::foredraft_is_made_at_run_time(cb as *const c_void) };
            Box::new(move |level, text| {
                // A line that contains NUL ends there.
                let line = text.trim_end().split('\0').next().unwrap_or_default();
                let line = CString::new(line).unwrap_or_default();
                // SAFETY: `cb` is the host's function of this type, valid until it is replaced; the line outlives the call.
                unsafe { native::foredraft_call_log(Some(cb), made, level as i32, line.as_ptr(), user.get()) };
            })
        }));
    });
}

pub(super) fn set_update(engine: *mut foredraft_engine, cb: foredraft_update_callback, user: *mut c_void) {
    let user = User(user);
    let hook = cb.map(|cb| -> Box<dyn Fn(u64) + Send + Sync> {
        // SAFETY: looks up the address, which can have any value.
        let made = unsafe { native::foredraft_is_made_at_run_time(cb as *const c_void) };
        // SAFETY: `cb` is the host's function of this type, valid until it is replaced.
        Box::new(move |id| unsafe { native::foredraft_call_update(Some(cb), made, id, user.get()) })
    });
    run(|| {
        let found = engines::find(engine).map(|engine| engine.set_update_hook(hook));
        log_failure("foredraft_set_update_callback", found);
    });
}
