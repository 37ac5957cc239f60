//! The one error type of the crate: a code from a closed list, and a sentence for a person.
//!
//! It is a leaf: every room may use it, and it uses none of them.

use std::fmt;

/// What kind of failure an [`Error`] is. The list is closed and part of the C contract: the names
/// appear as `"code"` in error objects, the numbers of [`Code::init_number`] are what `init` and `foredraft_load` return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The argument is not JSON (or not UTF-8, or NULL where a document is needed).
    InvalidJson,
    /// The argument is JSON, but a field is missing, of the wrong type, or out of range. (An unknown key is only a warning.)
    InvalidRequest,
    /// The function needs a loaded model, and none is loaded.
    NotInitialized,
    /// A model is being loaded; try again when `poll_system_status` says `ready`.
    Loading,
    /// No request or file of that name.
    NotFound,
    /// The prompt does not fit into the context and may not be shortened.
    ContextFull,
    /// A later `init` or `deinit` took its place. (A request that is cancelled succeeds, with the `stop_type` `cancelled`.)
    Cancelled,
    /// As many requests wait as `max_queue` allows.
    QueueFull,
    /// The model file cannot be loaded, or an evaluation failed.
    ModelError,
    /// The call is not allowed from inside a callback of the library, where it would wait for itself.
    WouldDeadlock,
    /// A defect of the library: the message says where.
    Internal,
    /// The engine handle was freed, or never made by this library.
    InvalidEngine,
}

impl Code {
    /// Every code.
    pub const ALL: [Code; 12] = [
        Code::InvalidJson,
        Code::InvalidRequest,
        Code::NotInitialized,
        Code::Loading,
        Code::NotFound,
        Code::ContextFull,
        Code::Cancelled,
        Code::QueueFull,
        Code::ModelError,
        Code::WouldDeadlock,
        Code::Internal,
        Code::InvalidEngine,
    ];

    /// The name used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Code::InvalidJson => "invalid_json",
            Code::InvalidRequest => "invalid_request",
            Code::NotInitialized => "not_initialized",
            Code::Loading => "loading",
            Code::NotFound => "not_found",
            Code::ContextFull => "context_full",
            Code::Cancelled => "cancelled",
            Code::QueueFull => "queue_full",
            Code::ModelError => "model_error",
            Code::WouldDeadlock => "would_deadlock",
            Code::Internal => "internal",
            Code::InvalidEngine => "invalid_engine",
        }
    }

    /// The HTTP-style number used as `"status"` in JSON.
    pub fn status(self) -> u16 {
        match self {
            Code::InvalidJson | Code::InvalidRequest | Code::ContextFull | Code::InvalidEngine => 400,
            Code::NotFound => 404,
            Code::WouldDeadlock => 409,
            Code::QueueFull => 429,
            Code::Cancelled => 499,
            Code::Internal | Code::ModelError => 500,
            Code::NotInitialized | Code::Loading => 503,
        }
    }

    /// What `init` and `foredraft_load` return for it. Numbers are never reused; 0 is success.
    pub fn init_number(self) -> i32 {
        match self {
            Code::ModelError => 1,
            Code::InvalidJson => 2,
            Code::InvalidRequest => 3,
            Code::Cancelled => 4,
            Code::WouldDeadlock => 5,
            Code::Internal => 6,
            Code::NotFound => 7,
            Code::NotInitialized => 8,
            Code::Loading => 9,
            Code::ContextFull => 10,
            Code::QueueFull => 11,
            Code::InvalidEngine => 12,
        }
    }
}

/// A failure: its [`Code`] and one sentence that names the field, file or value at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: Code,
    message: String,
}

/// The crate's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of that kind; `message` says what is wrong, naming the field and the value.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code, message: message.into() }
    }

    /// [`Code::InvalidRequest`] with that message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(Code::InvalidRequest, message)
    }

    /// [`Code::ModelError`] with that message.
    pub fn model(message: impl Into<String>) -> Self {
        Error::new(Code::ModelError, message)
    }

    /// The same failure, told of the field `name`.
    pub fn within(self, name: &str) -> Self {
        Error { message: format!("{name}: {}", self.message), ..self }
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The sentence for a person.
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
