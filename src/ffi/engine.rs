//! Engines: made, loaded, watched, unloaded, freed; the library's version; returned strings.

use std::ffi::{c_char, c_void};

use super::engines;
use super::guard::{answer, bytes, quietly, required};
use super::types::{FOREDRAFT_ABI_VERSION, foredraft_engine};
use crate::api::System;
use crate::error::{Code, Error, Result};
use crate::llama::log::{self, Level};

/// Makes an engine without a model. Engines are independent of each other: models, threads, slots, n-gram caches,
/// callbacks. Engines that load the same file with the same settings share it in memory.
///
/// The handle is a number, never NULL and never given out twice, that only this copy of the library knows. Release it with
/// `foredraft_engine_free`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_engine_new() -> *mut foredraft_engine {
    quietly(std::ptr::null_mut(), engines::make)
}

/// Unloads the engine as `foredraft_unload` does, and releases it: every later use of the handle is `invalid_engine`. NULL
/// is ignored: the default engine stays.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_engine_free(engine: *mut foredraft_engine) {
    quietly((), || {
        if !engine.is_null() {
            silently("foredraft_engine_free", engines::take(engine).map(|system| system.close()));
        }
    });
}

/// Loads the model or models and starts the engine. Waits until that is done.
///
/// `config` is a JSON object of llama.cpp's parameter names (`{"model": "target.gguf", "model_draft": "draft.gguf",
/// "n_ctx": 4096, "n_gpu_layers": 99}`; docs/reference.md has all, and an unknown one is only a warning in the status),
/// or a command line in llama.cpp's own flags (`-m target.gguf -md draft.gguf -c 4096 -ngl 99`); it is not kept. When a
/// model is loaded already, or being loaded, that ends first, as by `foredraft_unload`.
///
/// A model can also be in an open file or in memory (`{"model": {"fd": 5, "offset": 4096, "length": 98000000}}`), which must
/// stay there until the load has ended.
///
/// Returns a `foredraft_code`: FOREDRAFT_OK, or why not; `foredraft_status` has the sentence that says why.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_load(engine: *mut foredraft_engine, config: *const c_char) -> i32 {
    // SAFETY: see the module's promise.
    quietly(Code::Internal.init_number(), || load(engines::find(engine), unsafe { required(config) }))
}

/// The same on another thread: returns at once, and `foredraft_status` tells how it goes. `config` may be freed as soon as
/// this returns.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_load_async(engine: *mut foredraft_engine, config: *const c_char) {
    // SAFETY: see the module's promise.
    let load = |system: System| system.init_async(unsafe { bytes(config) }.unwrap_or(b""));
    quietly((), || silently("foredraft_load_async", engines::find(engine).map(load)));
}

/// Cancels what runs, or aborts the load that runs, joins the threads, those of `foredraft_load_async` among them, and frees
/// the models. Harmless at any time and any number of times; a load may follow. From inside a callback it only begins to, and
/// returns at once; a later `foredraft_unload` waits for the rest. A host that exits without it is stopped in the same way, for
/// 5 seconds at most, and is not called back any more.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_unload(engine: *mut foredraft_engine) {
    quietly((), || silently("foredraft_unload", engines::find(engine).map(|system| system.deinit())));
}

/// What the engine is doing, as JSON: `init_success` (a `foredraft_init_state`), `state`, `progress`, `error`, the models,
/// slots, queue, the draft's compatibility, devices, and in `lookups` how far the lookup functions that run are (`function`,
/// `step`, `progress` 0..1). Never waits for a load or a decode. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_status(engine: *mut foredraft_engine) -> *mut c_char {
    answer(|| Ok(engines::find(engine)?.status()))
}

/// The library's version. A static string, not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// FOREDRAFT_ABI_VERSION as it was when the library was built.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_abi_version() -> u32 {
    FOREDRAFT_ABI_VERSION
}

/// Releases a string that a function of this library returned; NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_string_free(s: *mut c_char) {
    // SAFETY: the host passes what a function of this library returned, which `malloc` allocated, once; `free` takes NULL.
    unsafe { libc::free(s.cast::<c_void>()) }
}

/// Loads; the number that C hosts get.
pub(super) fn load(system: Result<System>, config: Result<&[u8]>) -> i32 {
    // NULL is refused by the load as the empty text is, so that the status tells of it.
    let result = system.and_then(|system| system.init(config.unwrap_or(b"")));
    result.map_or_else(|error| error.code().init_number(), |()| 0)
}

/// For functions that return nothing: an error goes to the log.
pub(super) fn silently(function: &str, result: Result<()>) {
    if let Err(error) = result {
        let error: Error = error.within(function);
        log::write(Level::Error, error.message());
    }
}
