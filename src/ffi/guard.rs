//! The wrapper of every C function: catches panics, converts arguments, and returns JSON in memory from `malloc`.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

use crate::api::{cut_off, error_json};
use crate::error::{Code, Error, Result};
use crate::forks::{self, HostCall};
use crate::thread_state::StandardFloats;

/// Runs a function of the interface and returns its answer as JSON, or an error object if it fails or panics. Never NULL, unless
/// there is no memory for the answer.
pub(super) fn answer(call: impl FnOnce() -> Result<Value>) -> *mut c_char {
    answer_or(|| error_json(&cut_off()), call)
}

/// As [`answer`]. `cut_off` is the answer in a process that is [cut off](forks).
pub(super) fn answer_or(cut_off: impl FnOnce() -> Value, call: impl FnOnce() -> Result<Value>) -> *mut c_char {
    if forks::is_cut_off() {
        return to_c_string(&cut_off().to_string());
    }
    if !has_memory() {
        return to_c_string(WITHOUT_MEMORY);
    }
    forks::make_thread_locals();
    let _inside = Inside::new();
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
    let value = result.unwrap_or_else(|error| error_json(&error));
    to_c_string(&value.to_string())
}

/// Runs a function of the interface that returns nothing. Does nothing in a process that is [cut off](forks).
pub(super) fn run(call: impl FnOnce()) {
    run_or((), (), call);
}

/// Whether there is memory for a small call. Rust ends the process when an allocation fails, so this is asked first: above all, a thread's
/// first call needs memory for what belongs to the thread.
pub(super) fn has_memory() -> bool {
    // Below the size from which `free` gives memory back to the system.
    const NEEDED: usize = 60 << 10;
    let block = allocate(NEEDED);
    // SAFETY: the block is freed once.
    unsafe { libc::free(block) };
    !block.is_null()
}

/// A block for `free`; NULL if there is no memory. Not by `malloc`: the library's own looks at a thread-local when it fails
/// (`allocation.cpp`), which needs memory in a thread's first call.
#[cfg(unix)]
fn allocate(size: usize) -> *mut c_void {
    let mut block = std::ptr::null_mut();
    // SAFETY: `block` is writable, and the alignment is one of `malloc`'s.
    let failed = unsafe { libc::posix_memalign(&raw mut block, 16, size) } != 0;
    if failed { std::ptr::null_mut() } else { block }
}

/// A block for `free`; NULL if there is no memory.
#[cfg(not(unix))]
fn allocate(size: usize) -> *mut c_void {
    // SAFETY: takes a number. The compiler must not take an allocation that is only freed for successful.
    std::hint::black_box(unsafe { libc::malloc(size) })
}

/// The answer of a call that finds no memory.
const WITHOUT_MEMORY: &str =
    r#"{"success":false,"status":503,"error":"there is no memory for this call","code":"resource_exhausted"}"#;

/// Runs a function of the interface that returns a number. After a panic it returns `failed`, and in a process that is [cut off](forks)
/// `cut_off`.
pub(super) fn run_or<R>(cut_off: R, failed: R, call: impl FnOnce() -> R) -> R {
    if forks::is_cut_off() {
        return cut_off;
    }
    let _inside = Inside::new();
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(failed)
}

/// This thread is inside a call of the host.
struct Inside {
    _uncancelled: Uncancelled,
    _floats: StandardFloats,
    _call: HostCall,
}

impl Inside {
    /// Not inlined, so that each program that calls the library has this part of it, which registers [`AT_START`].
    #[inline(never)]
    fn new() -> Inside {
        Inside { _uncancelled: Uncancelled::new(), _floats: StandardFloats::new(), _call: HostCall::begin() }
    }
}

/// Runs when the library or the program that it is linked into is loaded.
#[cfg(all(unix, not(target_vendor = "apple")))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = watch_forks;

#[cfg(target_vendor = "apple")]
#[used]
#[unsafe(link_section = "__DATA,__mod_init_func")]
static AT_START: extern "C" fn() = watch_forks;

#[cfg(unix)]
extern "C" fn watch_forks() {
    unsafe extern "C" fn after() {
        forks::after_fork();
    }
    // SAFETY: the handler changes atomic numbers only, and the library is never unloaded once it has threads. Without memory for the handler,
    // no child is cut off.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(after)) };
}

/// Keeps `pthread_cancel` from ending the host's thread inside a call: the unwinding would reach Rust's frames, which abort the process.
/// A cancel that arrives meanwhile takes effect at the host's next cancellation point.
struct Uncancelled {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    before: std::ffi::c_int,
}

#[cfg(any(target_os = "linux", target_os = "macos"))]
mod cancellation {
    use std::ffi::c_int;

    pub(super) const DISABLED: c_int = if cfg!(target_os = "linux") { 1 } else { 0 };

    unsafe extern "C" {
        pub(super) fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
}

impl Uncancelled {
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    fn new() -> Uncancelled {
        let mut before = cancellation::DISABLED;
        // SAFETY: a POSIX function that changes a property of this thread and writes the former value.
        unsafe { cancellation::pthread_setcancelstate(cancellation::DISABLED, &raw mut before) };
        Uncancelled { before }
    }

    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    fn new() -> Uncancelled {
        Uncancelled {}
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as above; the value came from this function. It is no cancellation point itself.
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        unsafe {
            cancellation::pthread_setcancelstate(self.before, std::ptr::null_mut())
        };
    }
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
    let copy = allocate(size).cast::<u8>();
    // SAFETY: it is NULL or has `size` bytes, which the text and its NUL fill exactly.
    unsafe {
        if !copy.is_null() {
            std::ptr::copy_nonoverlapping(text.as_ptr(), copy, text.len());
            copy.add(text.len()).write(0);
        }
        copy.cast::<c_char>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_without_memory_is_an_error_object() {
        let error = Error::exhausted("there is no memory for this call");
        assert_eq!(error_json(&error).to_string(), WITHOUT_MEMORY);
    }
}
