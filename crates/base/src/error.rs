//! The crate's error type: a code from a closed list, and a message.
//!
//! A leaf module: every module may use it, and it uses no other module.

use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// `ENFILE` and `EMFILE` of Unix: no more files can be open, of all processes or of this one.
const TOO_MANY_FILES: [i32; 2] = [23, 24];

crate::words! {
    /// The kind of an [`Error`]. The list is closed and part of the C contract: the names appear as `"code"` in error objects, and
    /// `foredraft_load` and `init` return the numbers of [`Code::init_number`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
    pub enum Code {
        /// The argument is not JSON (or not UTF-8, or NULL where a document is required).
        InvalidJson = 2 => "invalid_json",
        /// The argument is JSON, but a field is missing, of the wrong type, or out of range. (An unknown key is only a warning.)
        InvalidRequest = 3 => "invalid_request",
        /// The function requires a loaded model, and none is loaded.
        NotInitialized = 8 => "not_initialized",
        /// A model is being loaded. Try again when `poll_system_status` reports `ready`.
        Loading = 9 => "loading",
        /// No request or file with that name.
        NotFound = 7 => "not_found",
        /// The prompt does not fit into the context and may not be truncated.
        ContextFull = 10 => "context_full",
        /// Superseded by a later load or unload. (A cancelled request succeeds, with the `stop_type` `cancelled`.)
        Cancelled = 4 => "cancelled",
        /// `max_queue` requests are already waiting.
        QueueFull = 11 => "queue_full",
        /// The model file cannot be loaded, or a decode failed.
        ModelError = 1 => "model_error",
        /// The call is not allowed from inside a callback of the library, where it would deadlock.
        WouldDeadlock = 5 => "would_deadlock",
        /// A bug in the library. The message says where.
        Internal = 6 => "internal",
        /// The engine handle was freed, or not created by this library.
        InvalidEngine = 12 => "invalid_engine",
        /// `timeout_ms` passed before the call could begin its work. (A request that times out succeeds, with the `stop_type` `timeout`.)
        Timeout = 13 => "timeout",
        /// The system has no more threads or memory for this. Nothing was changed; try again when it has.
        ResourceExhausted = 14 => "resource_exhausted",
    }
}

impl Code {
    /// The HTTP-style number used as `"status"` in JSON.
    pub fn status(self) -> u16 {
        match self {
            Code::InvalidJson | Code::InvalidRequest | Code::ContextFull | Code::InvalidEngine => 400,
            Code::NotFound => 404,
            Code::Timeout => 408,
            Code::WouldDeadlock => 409,
            Code::QueueFull => 429,
            Code::Cancelled => 499,
            Code::Internal | Code::ModelError => 500,
            Code::NotInitialized | Code::Loading | Code::ResourceExhausted => 503,
        }
    }

    /// The return value of `foredraft_load` and `init` for this code. Numbers are never reused; 0 is success.
    pub fn init_number(self) -> i32 {
        self as i32
    }
}

/// A failure: its [`Code`], and a message that names the field, file or value at fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    code: Code,
    message: String,
    /// The file or folder whose absence, or whose permissions, are the reason.
    file: Option<(FileFault, Box<str>)>,
    /// See [`Error::overflow`].
    overflow: Option<ContextOverflow>,
}

/// Why a file cannot be used, where languages have an error of their own for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum FileFault {
    Missing,
    Denied,
}

/// A prompt that does not fit into a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextOverflow {
    /// The tokens of the prompt.
    pub n_prompt_tokens: usize,
    /// The tokens that fit.
    pub n_ctx: usize,
}

/// The crate's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with that code. `message` names the field and the value, and what is wrong with it.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code, message: message.into(), file: None, overflow: None }
    }

    /// [`Code::InvalidRequest`] with that message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(Code::InvalidRequest, message)
    }

    /// [`Code::ModelError`] with that message.
    pub fn model(message: impl Into<String>) -> Self {
        Error::new(Code::ModelError, message)
    }

    /// [`Code::ResourceExhausted`] with that message.
    pub fn exhausted(message: impl Into<String>) -> Self {
        Error::new(Code::ResourceExhausted, message)
    }

    /// [`Code::WouldDeadlock`] for a function that would wait for its own caller.
    pub fn would_deadlock(function: &str) -> Self {
        Error::new(Code::WouldDeadlock, format!("{function}: waits, and was called from inside a callback"))
    }

    /// An I/O error of a file or folder: [`Code::NotFound`] if it does not exist, [`Code::ResourceExhausted`] if the disk is full or the
    /// process may have no more memory, files or larger files, else [`Code::InvalidRequest`].
    pub fn file(path: &Path, error: &io::Error, message: impl Into<String>) -> Self {
        let (code, fault) = match error.kind() {
            io::ErrorKind::NotFound => (Code::NotFound, Some(FileFault::Missing)),
            io::ErrorKind::PermissionDenied => (Code::InvalidRequest, Some(FileFault::Denied)),
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::OutOfMemory => (Code::ResourceExhausted, None),
            _ if cfg!(unix) && error.raw_os_error().is_some_and(|number| TOO_MANY_FILES.contains(&number)) => {
                (Code::ResourceExhausted, None)
            }
            _ => (Code::InvalidRequest, None),
        };
        let file = fault.map(|fault| (fault, path.display().to_string().into()));
        Error { file, ..Error::new(code, message) }
    }

    /// [`Code::ContextFull`] for a prompt of `n_prompt_tokens` tokens, of which at most `n_ctx` fit.
    pub fn context_full(message: impl Into<String>, n_prompt_tokens: usize, n_ctx: usize) -> Self {
        let overflow = Some(ContextOverflow { n_prompt_tokens, n_ctx });
        Error { overflow, ..Error::new(Code::ContextFull, message) }
    }

    /// The same error with another code.
    pub fn with_code(self, code: Code) -> Self {
        Error { code, ..self }
    }

    /// The same error with the prefix `name: `.
    pub fn within(self, name: &str) -> Self {
        Error { message: format!("{name}: {}", self.message), ..self }
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The file or folder whose absence is the reason. Hosts whose language has an error for that (`FileNotFoundError`, `ENOENT`) use it.
    pub fn missing_file(&self) -> Option<&str> {
        self.file_with(FileFault::Missing)
    }

    /// The file or folder that the process may not read or write. Hosts whose language has an error for that (`PermissionError`, `EACCES`) use it.
    pub fn denied_file(&self) -> Option<&str> {
        self.file_with(FileFault::Denied)
    }

    fn file_with(&self, fault: FileFault) -> Option<&str> {
        self.file.as_ref().filter(|(kind, _)| *kind == fault).map(|(_, path)| &**path)
    }

    /// The numbers of a [`Code::ContextFull`], where they are known.
    pub fn overflow(&self) -> Option<ContextOverflow> {
        self.overflow
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code.as_str())
    }
}

impl std::error::Error for Error {}
