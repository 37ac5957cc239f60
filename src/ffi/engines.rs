//! The engines of the process, by handle.
//!
//! A handle is a number that is never dereferenced, looked up in a table, and never given out twice. A checked pointer would
//! need a read of memory that the host may have freed, or a table anyway; and an address can be given out again by the
//! allocator, so that a stale handle would name another engine. A number that is not in the table is `invalid_engine`.
//!
//! Where pointers have 64 bits, handles are above every address of a process with the usual 47 or 48 bits, so no pointer of the
//! host's can be mistaken for one; below 2^53, so that hosts whose only numbers are doubles can hold them; and a part of each
//! depends on where this library is loaded, so another copy of it in the process takes none of this one's for its own.

use std::collections::BTreeMap;
use std::ptr::without_provenance_mut;
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::RwLock;

use super::exit::end_before_llama;
use super::notify_fd;
use super::types::foredraft_engine;
use crate::api::System;
use crate::error::{Code, Error, Result};

/// The engine that NULL and the old names mean. It lives as long as the process.
static DEFAULT: LazyLock<System> = LazyLock::new(|| System::calling(end_before_llama, notify_fd::open));

static TABLE: LazyLock<RwLock<EngineTable>> = LazyLock::new(Default::default);

#[derive(Default)]
struct EngineTable {
    engines: BTreeMap<usize, System>,
    /// Handles given out so far.
    made: u32,
}

/// The handle of the `index`-th engine; where pointers have 32 bits, odd numbers, which no allocation has for its address.
fn handle(index: u32) -> usize {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let here = (&raw const TABLE).addr() >> 12 & 0xF_FFFF;
    match (1_usize.checked_shl(52), here.checked_shl(32)) {
        (Some(above), Some(here)) => above + here + index,
        _ => index.saturating_mul(2).saturating_add(1),
    }
}

/// Makes an engine. After 2^32 of them there are no numbers left, and the handle is one that no function accepts.
pub(super) fn make() -> *mut foredraft_engine {
    let mut table = TABLE.write();
    let handle = handle(table.made);
    if let Some(made) = table.made.checked_add(1) {
        table.made = made;
        table.engines.insert(handle, System::calling(end_before_llama, notify_fd::open));
    }
    without_provenance_mut(handle)
}

/// Takes an engine out of the table: no later call finds it. NULL, the default engine, stays.
pub(super) fn take(engine: *mut foredraft_engine) -> Result<System> {
    TABLE.write().engines.remove(&engine.addr()).ok_or_else(|| invalid(engine))
}

/// The engine of a handle.
pub(super) fn find(engine: *mut foredraft_engine) -> Result<System> {
    if engine.is_null() {
        return Ok(DEFAULT.clone());
    }
    TABLE.read().engines.get(&engine.addr()).cloned().ok_or_else(|| invalid(engine))
}

/// Every engine, for the end of the process. In a fork, a thread that does not exist there may hold the lock.
pub(super) fn all() -> Vec<System> {
    let table = TABLE.try_read_for(Duration::from_secs(1));
    let made = table.iter().flat_map(|table| table.engines.values().cloned());
    std::iter::once(DEFAULT.clone()).chain(made).collect()
}

fn invalid(engine: *mut foredraft_engine) -> Error {
    Error::new(Code::InvalidEngine, format!("engine: {engine:p} was freed, or is not an engine of this library"))
}
