//! The buffer for the messages of the C++ exceptions that the functions of `native.h` catch, and their structures.

use std::ffi::{CStr, c_char};

use foredraft_base::error::{Code, Error};

pub(super) use foredraft_native::{
    foredraft_attention as AttentionShape, foredraft_buffers as Buffers, foredraft_weights_of_format as WeightsOfFormat,
};

/// The buffer for the message of a caught exception.
pub(super) struct ErrorBuffer([c_char; 256]);

impl ErrorBuffer {
    pub(super) fn new() -> Self {
        ErrorBuffer([0; 256])
    }

    pub(super) fn ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr()
    }

    pub(super) fn size(&self) -> usize {
        self.0.len()
    }

    /// The error of a caught exception: [`Code::ResourceExhausted`] if memory was lacking, else [`Code::ModelError`].
    pub(super) fn error(&self, what: &str) -> Error {
        let message = self.message();
        let code = if message == "std::bad_alloc" { Code::ResourceExhausted } else { Code::ModelError };
        Error::new(code, format!("{what}: {message}"))
    }

    /// The message. Empty if there was no exception.
    pub(super) fn message(&self) -> String {
        // SAFETY: the buffer is zeroed at first, and `snprintf` always writes a NUL, so there is a NUL within its 256 bytes.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }.to_string_lossy().into_owned()
    }
}

/// A C string's text; empty for NULL.
///
/// # Safety
/// `pointer` is NULL or NUL-terminated and readable during the call.
pub(crate) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
