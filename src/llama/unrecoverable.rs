//! Failures after which the models of this process cannot be used any more.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

static ENDS_PROCESS: AtomicBool = AtomicBool::new(false);

/// From now on the process ends when an RPC server is lost, or a decode breaks its context. For the process of an isolated engine, whose host
/// starts another one.
pub fn end_process_on_loss() {
    ENDS_PROCESS.store(true, Ordering::Relaxed);
}

/// The models are lost. Returns if the process goes on without them.
pub(super) fn lose(reason: &str) {
    if ENDS_PROCESS.load(Ordering::Relaxed) {
        // Not through the log, which needs memory.
        let _ = writeln!(std::io::stderr(), "{reason}");
        std::process::abort();
    }
}
