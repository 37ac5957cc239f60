//! The engines of the process, by handle.
//!
//! A handle is a number. It is looked up in a table, never dereferenced, and never used twice. A number that is not in the table is
//! `invalid_engine`. The alternative, a checked pointer, would read memory that the host may have freed; and the allocator can
//! reuse an address, so a stale handle would name another engine.
//!
//! With 64-bit pointers, a handle has three properties. It is above every address of a process with the usual 47 or 48 bits, so no
//! pointer of the host equals a handle. It is below 2^53, so that languages whose numbers are doubles can store it. A part of it
//! depends on the library's address, so another copy of the library in the same process does not accept it.

use std::collections::BTreeMap;
use std::ptr::without_provenance_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Once};
use std::time::Duration;

use parking_lot::RwLock;

use super::exit::at_exit;
use super::guard::run;
#[cfg(unix)]
use super::notify_fd as notice;
#[cfg(windows)]
use super::notify_handle as notice;
use super::types::foredraft_engine;
use crate::api::{JsonEngine, LlamaStage, stop_all};
use crate::error::{Code, Error, Result};
use crate::llama::keep_loaded;

/// The default engine: NULL, and the engine of the old names. It lives as long as the process.
static DEFAULT: LazyLock<JsonEngine> = LazyLock::new(new_engine);

static TABLE: LazyLock<RwLock<EngineTable>> = LazyLock::new(Default::default);

#[derive(Default)]
struct EngineTable {
    engines: BTreeMap<usize, JsonEngine>,
    /// The number of handles created so far.
    n_created: u32,
}

/// The handle of engine `index`. With 32-bit pointers handles are odd numbers, which are not addresses of allocations.
fn handle(index: u32) -> usize {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let here = (&raw const TABLE).addr() >> 12 & 0xF_FFFF;
    match (1_usize.checked_shl(52), here.checked_shl(32)) {
        (Some(above), Some(here)) => above + here + index,
        _ => index.saturating_mul(2).saturating_add(1),
    }
}

/// An engine without a model. From the first one on, the library stays loaded, because engines have threads.
fn new_engine() -> JsonEngine {
    keep_loaded();
    JsonEngine::with_callbacks(register_exit_handler, notice::open)
}

/// Creates an engine. After 2^32 engines, the handle is a number that no function accepts.
pub(super) fn create() -> *mut foredraft_engine {
    let mut table = TABLE.write();
    let handle = handle(table.n_created);
    if let Some(n_created) = table.n_created.checked_add(1) {
        table.n_created = n_created;
        table.engines.insert(handle, new_engine());
    }
    without_provenance_mut(handle)
}

/// A handle that no function accepts, for `foredraft_engine_new` in a process that is cut off, or without memory.
pub(super) fn unusable() -> *mut foredraft_engine {
    without_provenance_mut(handle(u32::MAX))
}

/// Removes an engine from the table. NULL, the default engine, is not in the table.
pub(super) fn remove(engine: *mut foredraft_engine) -> Result<JsonEngine> {
    TABLE.write().engines.remove(&engine.addr()).ok_or_else(|| invalid(engine))
}

/// The default engine.
pub(super) fn default() -> JsonEngine {
    DEFAULT.clone()
}

/// The engine of a handle.
pub(super) fn find(engine: *mut foredraft_engine) -> Result<JsonEngine> {
    if engine.is_null() {
        return Ok(default());
    }
    TABLE.read().engines.get(&engine.addr()).cloned().ok_or_else(|| invalid(engine))
}

/// The maximum time that the end of the process waits for running engines.
const PATIENCE: Duration = Duration::from_secs(5);

/// Registers a handler that stops all engines when the host exits without freeing them. llama.cpp creates globals when it starts,
/// and when the first model is loaded. Exit handlers and destructors run in reverse order of registration. So a handler is
/// registered after each of these stages, and runs before the destructors. (`globals.c` removes the destructors where it can.)
fn register_exit_handler(stage: LlamaStage) {
    static BEFORE_START: Once = Once::new();
    static BEFORE_MODELS: Once = Once::new();
    let once = match stage {
        LlamaStage::Started => &BEFORE_START,
        LlamaStage::ModelLoaded => &BEFORE_MODELS,
    };
    once.call_once(|| at_exit(end));
}

fn end() {
    /// A callback does not return. The second handler does not wait for it again.
    static GAVE_UP: AtomicBool = AtomicBool::new(false);
    run(|| {
        if !GAVE_UP.load(Ordering::Acquire) {
            GAVE_UP.store(!stop_all(all(), PATIENCE), Ordering::Release);
        }
    });
}

fn all() -> Vec<JsonEngine> {
    std::iter::once(default()).chain(TABLE.read().engines.values().cloned()).collect()
}

fn invalid(engine: *mut foredraft_engine) -> Error {
    Error::new(Code::InvalidEngine, format!("engine: {engine:p} was freed, or is not an engine of this library"))
}
