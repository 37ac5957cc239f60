//! Loading, watching and unloading: `init`, `init_async`, `poll_system_status`, `deinit`, `version`, `free_string`.

use std::ffi::{c_char, c_void};

use super::SYSTEM;
use super::guard::{answer, bytes, quietly, required};
use crate::error::Code;

/// Loads the model or models and starts the engine. Waits until that is done.
///
/// `cmd` is a JSON object of llama.cpp's parameter names (`{"model": "target.gguf", "model_draft": "draft.gguf",
/// "n_ctx": 4096, "n_gpu_layers": 99}`; docs/reference.md has all, and an unknown one is only a warning in the status),
/// or a command line in llama.cpp's own flags (`-m target.gguf -md draft.gguf -c 4096 -ngl 99`); it is not kept. When a
/// model is loaded already, or being loaded, that ends first, as by `deinit`.
///
/// Returns 0, or: 1 the model cannot be loaded; 2 not JSON, not UTF-8 or NULL; 3 a key or value is wrong; 4 a later
/// `init` or `deinit` took its place; 5 called from inside a callback, where it would wait for itself; 6 a defect of
/// the library; 7 a file that it names is not there (a model's or an adapter's: 1); 8 this process was forked from one
/// that has a model loaded. `poll_system_status` has the sentence that says why.
#[unsafe(no_mangle)]
pub extern "C" fn init(cmd: *const c_char) -> i32 {
    quietly(Code::Internal.init_number(), || {
        // SAFETY: see the room's promise.
        let result = unsafe { required(cmd) };
        let command = result.unwrap_or(b"");
        SYSTEM.init(command).map_or_else(|error| error.code().init_number(), |()| 0)
    })
}

/// The same on another thread: returns at once, and `poll_system_status` tells how it goes. `cmd` may be freed as soon
/// as this returns.
#[unsafe(no_mangle)]
pub extern "C" fn init_async(cmd: *const c_char) {
    quietly((), || {
        // SAFETY: see the room's promise.
        let command = unsafe { bytes(cmd) }.unwrap_or(b"");
        SYSTEM.init_async(command);
    });
}

/// What the library is doing, as JSON: `init_success` (1 ready, 0 not yet, -1 failed), `state`, `progress`, `error`,
/// the models, slots, queue, the draft's compatibility, devices, and in `lookups` how far the lookup functions that run are
/// (`function`, `step`, `progress` 0..1). Never waits for a load or an evaluation.
/// The caller owns the returned string and releases it with `free_string` or `free`.
#[unsafe(no_mangle)]
pub extern "C" fn poll_system_status() -> *const c_char {
    answer(|| Ok(SYSTEM.status()))
}

/// Cancels what runs, or aborts the load that runs, joins the threads, those of `init_async` among them, and frees the
/// models. Harmless at any time and any number of times; `init` may follow. From inside a callback it only begins to,
/// and returns at once; a later `deinit` waits for the rest. A host that exits without it is stopped in the same way, for
/// 5 seconds at most, and is not called back any more.
#[unsafe(no_mangle)]
pub extern "C" fn deinit() {
    quietly((), || SYSTEM.deinit());
}

/// Releases a string that a function of this library returned; NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn free_string(s: *const c_char) {
    // SAFETY: the host passes what a function of this library returned, which `malloc` allocated, once; `free` takes NULL.
    unsafe { libc::free(s.cast_mut().cast::<c_void>()) }
}

/// The library's version. A static string, not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
