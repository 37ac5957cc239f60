//! Where nothing is read ahead. On Windows, llama.cpp asks the system to (`PrefetchVirtualMemory`).

use std::fs::File;

/// Never has a value.
pub(crate) enum NothingAhead {}

impl NothingAhead {
    pub(crate) fn of(_: &File, _: u64) -> Option<Self> {
        None
    }

    pub(crate) fn read(&self, _: u64, _: u64) -> bool {
        match *self {}
    }
}
