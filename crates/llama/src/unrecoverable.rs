//! Failures after which the models of this process cannot be used any more.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

static ENDS_PROCESS: AtomicBool = AtomicBool::new(false);

/// Lets the process end when an RPC server is lost, or a decode leaves threads behind. The process of an isolated engine calls this: its host
/// starts another one.
pub fn end_process_on_loss() {
    ENDS_PROCESS.store(true, Ordering::Relaxed);
}

/// Ends the process after [`end_process_on_loss`], else returns. The models are lost.
pub(super) fn lose(reason: &str) {
    if ENDS_PROCESS.load(Ordering::Relaxed) {
        // The log would need memory.
        let _ = writeln!(std::io::stderr(), "{reason}");
        std::process::abort();
    }
}
