//! The log of llama.cpp and of this library: to the host's callback, else to stderr, above a threshold.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, Ordering};

use llama_cpp_sys_2 as sys;

use foredraft_host::Hook;

/// The level of a line. The numbers are part of the C interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Details for debugging.
    Debug = 1,
    /// Information.
    Info = 2,
    /// A warning.
    Warn = 3,
    /// An error.
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

/// The host's callback.
pub type Sink = dyn Fn(Level, &str) + Send + Sync;

static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Warn as u8);
static SINK: Hook<Sink> = Hook::new();

thread_local! {
    /// The level of llama.cpp's current line, which `CONT` pieces continue.
    static CURRENT: RefCell<Level> = const { RefCell::new(Level::Info) };
    /// The errors logged by this thread inside [`collecting`], which takes them out: a thread takes memory for a value that it has to drop itself,
    /// and the engine's thread decodes when a host may have taken all.
    static COLLECTED: RefCell<Option<ManuallyDrop<Vec<String>>>> = const { RefCell::new(None) };
}

/// Drops lines below `level`.
pub fn set_level(level: Level) {
    THRESHOLD.store(level as u8, Ordering::Relaxed);
}

/// Sends lines to `sink`, or to stderr. See [`Hook::set`] about the previous sink.
pub fn set_sink(sink: Option<Box<Sink>>) {
    SINK.set(sink);
}

/// Whether lines of this level are logged.
pub fn is_enabled(level: Level) -> bool {
    level >= Level::from_number(THRESHOLD.load(Ordering::Relaxed))
}

/// Logs a line if its level is not below the threshold.
pub fn write(level: Level, text: &str) {
    if is_enabled(level) {
        always(level, text);
    }
}

/// Logs a line regardless of the threshold.
pub fn always(level: Level, text: &str) {
    if !SINK.with(|sink| sink(level, text)) {
        let line_end = if text.ends_with('\n') { "" } else { "\n" };
        // A closed stderr is ignored.
        let _ = write!(std::io::stderr().lock(), "{text}{line_end}");
    }
}

/// Runs `call`, and also returns the errors that llama.cpp logged on this thread: it reports some reasons only in its log. Meanwhile its
/// errors and warnings are logged at the debug level, because the caller reports the failure (or caused it, by a cancel).
pub(super) fn collecting<R>(call: impl FnOnce() -> R) -> (R, Vec<String>) {
    COLLECTED.set(Some(ManuallyDrop::new(Vec::new())));
    let result = call();
    let lines = COLLECTED.take().map(ManuallyDrop::into_inner).unwrap_or_default();
    (result, lines)
}

/// llama.cpp's log callback.
pub(super) unsafe extern "C" fn from_llama(level: sys::ggml_log_level, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp passes a NUL-terminated string that lives during the call.
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
    // Progress dots and empty lines are only useful in terminals.
    if text.trim_matches(|c: char| c == '.' || c.is_whitespace()).is_empty() {
        return;
    }
    write(level, &text);
}
