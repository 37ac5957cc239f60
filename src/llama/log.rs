//! Where log lines go: stderr from a chosen level on, or the host's callback; llama.cpp's and ours alike.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicU8, Ordering};

use llama_cpp_sys_2 as sys;

use crate::host::Hook;

/// How important a line is. The numbers are part of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Details for debugging.
    Debug = 1,
    /// What happens.
    Info = 2,
    /// Something that a person should know.
    Warn = 3,
    /// Something failed.
    Error = 4,
    /// As a threshold: nothing is logged.
    Off = 5,
}

impl Level {
    fn from_number(number: u8) -> Level {
        match number {
            1 => Level::Debug,
            2 => Level::Info,
            3 => Level::Warn,
            4 => Level::Error,
            _ => Level::Off,
        }
    }
}

/// What a host does with a line.
pub type Sink = dyn Fn(Level, &str) + Send + Sync;

static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Warn as u8);
static SINK: Hook<Sink> = Hook::new();

thread_local! {
    /// Level of llama.cpp's line in progress: `CONT` pieces continue it.
    static CURRENT: RefCell<Level> = const { RefCell::new(Level::Info) };
    /// Errors logged by this thread, while somebody collects them.
    static COLLECTED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Drops lines below `level`.
pub fn set_level(level: Level) {
    THRESHOLD.store(level as u8, Ordering::Relaxed);
}

/// Sends lines to `sink`, or to stderr; see [`Hook::set`] for when the former sink ends.
pub fn set_sink(sink: Option<Box<Sink>>) {
    SINK.set(sink);
}

/// Logs one line, if its level is not below the threshold.
pub fn write(level: Level, text: &str) {
    if level >= Level::from_number(THRESHOLD.load(Ordering::Relaxed)) {
        always(level, text);
    }
}

/// Logs one line that was asked for, whatever the threshold.
pub fn always(level: Level, text: &str) {
    if !SINK.with(|sink| sink(level, text)) {
        let line_end = if text.ends_with('\n') { "" } else { "\n" };
        // A closed stderr is no reason to fail.
        let _ = write!(std::io::stderr().lock(), "{text}{line_end}");
    }
}

/// Runs `call` and returns with its result the errors that llama.cpp logged on this thread meanwhile: it says why
/// a file cannot be loaded in its log only. Its errors and warnings are then details, because the caller reports
/// the failure (or caused it, as a cancelled evaluation).
pub(super) fn collecting<R>(call: impl FnOnce() -> R) -> (R, Vec<String>) {
    COLLECTED.with_borrow_mut(|collected| *collected = Some(Vec::new()));
    let result = call();
    let lines = COLLECTED.with_borrow_mut(Option::take).unwrap_or_default();
    (result, lines)
}

/// llama.cpp's callback.
pub(super) unsafe extern "C" fn from_llama(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives for the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let level = match level {
        sys::GGML_LOG_LEVEL_DEBUG => Level::Debug,
        sys::GGML_LOG_LEVEL_INFO => Level::Info,
        sys::GGML_LOG_LEVEL_WARN => Level::Warn,
        sys::GGML_LOG_LEVEL_ERROR => Level::Error,
        sys::GGML_LOG_LEVEL_CONT => CURRENT.with_borrow(|level| *level),
        _ => Level::Debug,
    };
    CURRENT.with_borrow_mut(|current| *current = level);
    let level = COLLECTED.with_borrow_mut(|collected| match collected {
        Some(lines) if level >= Level::Warn => {
            if level == Level::Error {
                lines.push(text.trim().to_owned());
            }
            Level::Debug
        }
        _ => level,
    });
    // Dots of a progress bar and blank lines are for terminals.
    if text.trim_matches(|c: char| c == '.' || c.is_whitespace()).is_empty() {
        return;
    }
    write(level, &text);
}
