//! macOS and other systems: threads keep their settings, and what is not portable is unknown.

use std::fs::{File, Metadata};
use std::path::PathBuf;

use super::identity::FileIdentity;
use crate::llama::threads::cpus::{CpuSet, ThreadPriority};

pub(in crate::llama) use self::UnknownScheduling as Scheduling;
pub(in crate::llama) use super::unix::{file_identity, n_cores_online, stack_bounds, thread_cpu_time};

/// ggml places the threads of its pools, and the calling thread does not change.
#[derive(Clone, Copy)]
pub(in crate::llama) struct UnknownScheduling;

impl UnknownScheduling {
    pub(in crate::llama) fn of_this_thread() -> Option<Self> {
        None
    }

    pub(in crate::llama) fn with(self, _: ThreadPriority, _: &CpuSet) -> Self {
        self
    }

    pub(in crate::llama) fn apply(&self) -> bool {
        true
    }
}

/// Empty: unknown.
pub(in crate::llama) fn allowed_cpus() -> Vec<usize> {
    Vec::new()
}

/// `None`: unknown.
pub(in crate::llama) fn physical_cores(_: &[usize]) -> Option<usize> {
    None
}

/// `None`: models are not loaded from descriptors here.
pub(in crate::llama) fn identity_of_descriptor(_: i32) -> Option<(Metadata, FileIdentity)> {
    None
}

/// `None`: unknown.
pub(in crate::llama) fn available_memory() -> Option<u64> {
    None
}

/// Pages are left to the system.
pub(in crate::llama) fn give_back_pages(_: &[PathBuf]) {}

/// Nothing is read ahead.
pub(in crate::llama) fn read_piece(_: &File, _: u64, _: u64) -> bool {
    false
}

/// The linker keeps the library on most systems (`build.rs`), but not on macOS.
pub fn keep_loaded() {}

/// Not known.
pub(in crate::llama) fn total_memory() -> Option<u64> {
    None
}
