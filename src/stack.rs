//! Work that recurses deeper than the stacks of a host's threads allow.

use std::thread;

use crate::error::{Code, Error, Result};

/// Runs `work` on a thread with a stack of `size` bytes, and waits for it. `what` it is begins the message of an error.
///
/// # Errors
/// The work's own, and `internal`: there is no such thread, or the work panicked.
pub fn with<T: Send>(size: usize, what: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let internal = |why: &str| Error::new(Code::Internal, format!("{what}: {why}"));
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(what.to_owned()).stack_size(size).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| internal(&format!("no thread: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(internal("failed")))
    })
}
