//! Where nothing is read ahead. On Windows, llama.cpp asks the system to (`PrefetchVirtualMemory`).

use std::fs::File;

/// Never has a value.
pub(in crate::llama) enum NothingAhead {}

impl NothingAhead {
    pub(in crate::llama) fn of(_: &File, _: u64) -> Option<Self> {
        None
    }

    pub(in crate::llama) fn read(&self, _: u64, _: u64) -> bool {
        match *self {}
    }
}
