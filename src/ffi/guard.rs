//! The wrapper of every C function: catches panics, converts arguments, and returns JSON in memory from `malloc`.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

use crate::api::error_json;
use crate::error::{Code, Error, Result};

/// Runs a function of the interface and returns its answer as JSON, or an error object if it fails or panics. Never NULL, unless
/// there is no memory for the answer.
pub(super) fn answer(call: impl FnOnce() -> Result<Value>) -> *mut c_char {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
    let value = result.unwrap_or_else(|error| error_json(&error));
    to_c_string(&value.to_string())
}

/// Runs a function of the interface that returns a number or nothing. After a panic it returns `failed`.
pub(super) fn run<R>(failed: R, call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(failed)
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::new(Code::Internal, format!("a bug in the library: {text}"))
}

/// The host's string; `None` for NULL.
///
/// # Safety
/// `pointer` is NULL or NUL-terminated, and readable for `'a`.
pub(super) unsafe fn bytes<'a>(pointer: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: guaranteed by the caller.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// The host's string. NULL is an error.
///
/// # Safety
/// As [`bytes`].
pub(super) unsafe fn required<'a>(pointer: *const c_char) -> Result<&'a [u8]> {
    // SAFETY: guaranteed by the caller.
    unsafe { bytes(pointer) }.ok_or_else(|| Error::new(Code::InvalidJson, "the argument is NULL"))
}

/// Copies `text` for the host, which releases it with `free`.
fn to_c_string(text: &str) -> *mut c_char {
    let Some(size) = text.len().checked_add(1) else { return std::ptr::null_mut() };
    // SAFETY: `malloc` returns NULL or `size` bytes, which the text and its NUL fill exactly.
    unsafe {
        let copy = libc::malloc(size).cast::<u8>();
        if !copy.is_null() {
            std::ptr::copy_nonoverlapping(text.as_ptr(), copy, text.len());
            copy.add(text.len()).write(0);
        }
        copy.cast::<c_char>()
    }
}
