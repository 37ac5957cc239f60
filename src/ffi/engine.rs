//! Engines: create, load, pause, status, unload, free. Also the library's version, and releasing returned strings.

use std::ffi::{c_char, c_void};

use super::engines;
use super::guard::{answer, answer_or, bytes, has_memory, required, run, run_or};
use super::types::{FOREDRAFT_ABI_VERSION, foredraft_engine};
use crate::api::{JsonEngine, devices};
use crate::error::{Code, Error, Result};
use crate::llama::log::{self, Level};

/// Creates an engine without a model. Engines are independent of each other: models, threads, slots, n-gram caches, callbacks.
/// Engines that load the same file with the same settings share it in memory.
///
/// The handle is a number, never NULL, and never used twice. Only this copy of the library knows it. Release it with
/// `foredraft_engine_free`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_engine_new() -> *mut foredraft_engine {
    if !has_memory() {
        return engines::unusable();
    }
    run_or(engines::unusable(), engines::unusable(), engines::create)
}

/// Unloads the engine as `foredraft_unload` does, and releases it. Every later use of the handle returns the error
/// `invalid_engine`. NULL is ignored: the default engine is never released.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_engine_free(engine: *mut foredraft_engine) {
    run(|| {
        if !engine.is_null() {
            log_failure("foredraft_engine_free", engines::remove(engine).map(|engine| engine.close()));
        }
    });
}

/// Loads the model or models and starts the engine. Returns when that is done.
///
/// `config` is a JSON object with llama.cpp's parameter names (`{"model": "target.gguf", "model_draft": "draft.gguf",
/// "n_ctx": 4096, "n_gpu_layers": 99}`), or a command line in llama.cpp's flags (`-m target.gguf -md draft.gguf -c 4096 -ngl 99`).
/// docs/reference.md lists all keys; an unknown key gives a warning in the status. The string is not kept. If a model is loaded or
/// being loaded, it is unloaded first, as by `foredraft_unload`.
///
/// A model can also be in an open file or in memory (`{"model": {"fd": 5, "offset": 4096, "length": 98000000}}`), which must
/// stay unchanged until the load has ended.
///
/// Returns FOREDRAFT_OK or another `foredraft_code`. On failure, `foredraft_status` has the message.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_load(engine: *mut foredraft_engine, config: *const c_char) -> i32 {
    // SAFETY: see "Safety" in the module's documentation.
    load(unsafe { required(config) }, |config| engines::find(engine)?.load(config))
}

/// As `foredraft_load`, on another thread. Returns at once; `foredraft_status` has the progress and the result. `config` can be freed
/// when this returns.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_load_async(engine: *mut foredraft_engine, config: *const c_char) {
    // SAFETY: see "Safety" in the module's documentation.
    let load = |engine: JsonEngine| engine.load_async(unsafe { bytes(config) }.unwrap_or(b""));
    run(|| log_failure("foredraft_load_async", engines::find(engine).map(load)));
}

/// Cancels running requests or aborts a running load, joins all threads including those of `foredraft_load_async`, and frees the
/// models. It can be called at any time and repeatedly, and a load can follow. Inside a callback it returns at once and unloads in
/// the background; a later `foredraft_unload` waits for that. If the host's process exits without calling this, the library does
/// the same, for at most 5 seconds, and calls no more callbacks.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_unload(engine: *mut foredraft_engine) {
    run(|| log_failure("foredraft_unload", engines::find(engine).map(|engine| engine.unload())));
}

/// Lets the engine's threads sleep, also in the middle of a decode, until as many calls of `foredraft_resume` have followed. For a host that
/// needs the processor, for example from the moment at which it begins a frame until it waits for the next one.
///
/// Returns at once. The threads leave the processor within a millisecond, and go on exactly where they were, so no completion changes. Loads
/// are paused, too, and engines may be paused before they are loaded. Requests wait meanwhile. They can be cancelled and end at their
/// `timeout_ms`, and the engine can be unloaded. With a GPU the engine pauses between decodes.
///
/// Returns FOREDRAFT_OK or another `foredraft_code`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_pause(engine: *mut foredraft_engine) -> i32 {
    pause_or_resume(engine, JsonEngine::pause)
}

/// Ends a pause of `foredraft_pause`. After the last one the threads go on. Returns at once: FOREDRAFT_OK, or FOREDRAFT_INVALID_REQUEST if
/// the engine is not paused, or another `foredraft_code`.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_resume(engine: *mut foredraft_engine) -> i32 {
    pause_or_resume(engine, JsonEngine::resume)
}

/// The status of the engine as JSON: `load_state` (a `foredraft_load_state`), `state`, `progress`, `error`, the models, slots,
/// queue, the draft's compatibility, devices, and the progress of running lookup functions in `lookups` (`function`, `step`,
/// `progress` 0..1). Never waits for a load or a decode. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_status(engine: *mut foredraft_engine) -> *mut c_char {
    answer_or(JsonEngine::status_when_cut_off, || Ok(engines::find(engine)?.status()))
}

/// Lists what a load can use, as JSON: `devices` (`name`, as a load's `devices` takes it, `description`, `type`, `memory_total`, `memory_free` in
/// bytes), `modules` with backends of GPUs (`path`, `found`, `loaded`, and the `error` of one that is found and not used), and `cpu`
/// (`level`, `levels`, `cores` that this process may use, `memory_total`, `memory_free`).
///
/// Can be called before any load. The first call of the process starts the backends in this process, which takes as long as a GPU's driver
/// needs. The caller owns the returned string.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_devices() -> *mut c_char {
    answer(devices)
}

/// The library's version. A static string; do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The value of FOREDRAFT_ABI_VERSION when the library was built.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_abi_version() -> u32 {
    FOREDRAFT_ABI_VERSION
}

/// Releases a string that a function of this library returned. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn foredraft_string_free(s: *mut c_char) {
    // SAFETY: the interface requires a string that this library returned, released once. It was allocated with `malloc`; `free`
    // accepts NULL.
    unsafe { libc::free(s.cast::<c_void>()) }
}

fn pause_or_resume(engine: *mut foredraft_engine, call: fn(&JsonEngine) -> Result<()>) -> i32 {
    run_or(Code::NotInitialized.init_number(), Code::Internal.init_number(), || {
        let result = engines::find(engine).and_then(|engine| call(&engine));
        result.map_or_else(|error| error.code().init_number(), |()| 0)
    })
}

/// Calls `load`, and returns the number for C hosts.
pub(super) fn load(config: Result<&[u8]>, load: impl FnOnce(&[u8]) -> Result<()>) -> i32 {
    if !has_memory() {
        return Code::ResourceExhausted.init_number();
    }
    run_or(Code::NotInitialized.init_number(), Code::Internal.init_number(), || {
        // NULL becomes an empty text, which the load refuses, so that the status reports the error.
        let result = load(config.unwrap_or(b""));
        result.map_or_else(|error| error.code().init_number(), |()| 0)
    })
}

/// Logs an error of a function that returns nothing.
pub(super) fn log_failure(function: &str, result: Result<()>) {
    if let Err(error) = result {
        let error: Error = error.within(function);
        log::write(Level::Error, error.message());
    }
}
