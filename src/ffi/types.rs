//! The types and constants of the header.
#![allow(non_camel_case_types, dead_code)] // C naming conventions; the enums are only for C hosts

use std::ffi::{c_char, c_void};

#[cfg(test)]
use crate::error::Code;
#[cfg(test)]
use crate::llama::log::Level;

/// The version of the C interface. It increases when hosts have to be recompiled. `foredraft_abi_version` returns the library's own
/// version; a host that loads the library at run time compares the two.
pub const FOREDRAFT_ABI_VERSION: u32 = 1;

/// An engine. A handle does not point to memory: it is a number of pointer type that the library looks up. NULL is the process's
/// default engine.
pub struct foredraft_engine {
    _private: [u8; 0],
}

/// The return values of `foredraft_load`, `foredraft_pause` and `foredraft_resume`. All except the first are also the `code` of error objects, as words: `"model_error"` for
/// `FOREDRAFT_MODEL_ERROR`, and so on. New codes can be added; numbers are never reused.
#[repr(C)]
pub enum foredraft_code {
    /// Success.
    FOREDRAFT_OK = 0,
    /// A model file cannot be loaded, or a decode failed.
    FOREDRAFT_MODEL_ERROR = 1,
    /// Not JSON, not UTF-8, or NULL where a document is required.
    FOREDRAFT_INVALID_JSON = 2,
    /// A key or value is invalid.
    FOREDRAFT_INVALID_REQUEST = 3,
    /// A later load or unload replaced it.
    FOREDRAFT_CANCELLED = 4,
    /// The call is not allowed from inside a callback, where it would deadlock.
    FOREDRAFT_WOULD_DEADLOCK = 5,
    /// A bug in the library.
    FOREDRAFT_INTERNAL = 6,
    /// No such request or file.
    FOREDRAFT_NOT_FOUND = 7,
    /// No model is loaded, or this process was forked while one was loaded or another thread was inside a call.
    FOREDRAFT_NOT_INITIALIZED = 8,
    /// A model is being loaded.
    FOREDRAFT_LOADING = 9,
    /// The prompt does not fit into the context and may not be truncated.
    FOREDRAFT_CONTEXT_FULL = 10,
    /// `max_queue` requests are already waiting.
    FOREDRAFT_QUEUE_FULL = 11,
    /// The engine handle was freed, or was not created by this library.
    FOREDRAFT_INVALID_ENGINE = 12,
    /// `timeout_ms` passed before the call could begin its work. Never a return value.
    FOREDRAFT_TIMEOUT = 13,
    /// The system has no more threads or memory for this.
    FOREDRAFT_RESOURCE_EXHAUSTED = 14,
}

/// `load_state` of `foredraft_status`.
#[repr(C)]
pub enum foredraft_load_state {
    /// The last load failed; see `error`.
    FOREDRAFT_LOAD_FAILED = -1,
    /// Nothing is loaded, or a load is running; see `state`.
    FOREDRAFT_LOAD_NOT_READY = 0,
    /// Requests are served.
    FOREDRAFT_LOAD_READY = 1,
}

/// The `level` of a log line.
#[repr(C)]
pub enum foredraft_log_level {
    /// Details for debugging.
    FOREDRAFT_LOG_DEBUG = 1,
    /// Information.
    FOREDRAFT_LOG_INFO = 2,
    /// A warning.
    FOREDRAFT_LOG_WARNING = 3,
    /// An error.
    FOREDRAFT_LOG_ERROR = 4,
}

/// Receives log lines. `text` is UTF-8 and valid during the call; `user` is the pointer that was set with the callback.
pub type foredraft_log_callback = Option<unsafe extern "C" fn(level: i32, text: *const c_char, user: *mut c_void)>;

/// Receives the id of a request that has a new update or has finished, and the pointer that was set with the callback.
pub type foredraft_update_callback = Option<unsafe extern "C" fn(id: u64, user: *mut c_void)>;

/// Changes `logits`, the `n_vocab` logits of the position that follows the `n_tokens` `tokens` in the request `id`. Both arrays are valid
/// during the call; `user` is the pointer that was set with the callback.
pub type foredraft_logits_callback = Option<
    unsafe extern "C" fn(id: u64, logits: *mut f32, n_vocab: i32, tokens: *const i32, n_tokens: i32, user: *mut c_void),
>;

#[cfg(test)]
mod tests {
    use super::*;

    /// The header's constant of a code. Exhaustive, so that a new code fails to compile here.
    fn in_header(code: Code) -> foredraft_code {
        use foredraft_code::*;
        match code {
            Code::ModelError => FOREDRAFT_MODEL_ERROR,
            Code::InvalidJson => FOREDRAFT_INVALID_JSON,
            Code::InvalidRequest => FOREDRAFT_INVALID_REQUEST,
            Code::Cancelled => FOREDRAFT_CANCELLED,
            Code::WouldDeadlock => FOREDRAFT_WOULD_DEADLOCK,
            Code::Internal => FOREDRAFT_INTERNAL,
            Code::NotFound => FOREDRAFT_NOT_FOUND,
            Code::NotInitialized => FOREDRAFT_NOT_INITIALIZED,
            Code::Loading => FOREDRAFT_LOADING,
            Code::ContextFull => FOREDRAFT_CONTEXT_FULL,
            Code::QueueFull => FOREDRAFT_QUEUE_FULL,
            Code::InvalidEngine => FOREDRAFT_INVALID_ENGINE,
            Code::Timeout => FOREDRAFT_TIMEOUT,
            Code::ResourceExhausted => FOREDRAFT_RESOURCE_EXHAUSTED,
        }
    }

    #[test]
    fn enums_of_the_header_have_the_librarys_numbers() {
        for (_, code) in Code::WORDS {
            assert_eq!(in_header(code) as i32, code.init_number(), "{}", code.as_str());
        }
        assert_eq!(foredraft_code::FOREDRAFT_OK as i32, 0);
        use foredraft_log_level::*;
        let levels = [FOREDRAFT_LOG_DEBUG, FOREDRAFT_LOG_INFO, FOREDRAFT_LOG_WARNING, FOREDRAFT_LOG_ERROR];
        let expected = [Level::Debug, Level::Info, Level::Warn, Level::Error].map(|level| level as i32);
        assert_eq!(levels.map(|level| level as i32), expected);
    }
}
