//! Runs deeply recursive work on a thread with a large stack, because a host's threads may have small ones.

use std::thread;

use crate::error::{Code, Error, Result};

/// Runs `work` on a thread with a stack of `size` bytes, and waits for it. `name` is the prefix of error messages.
///
/// # Errors
/// Those of `work`; `internal`: the thread cannot be started, or `work` panicked.
pub fn with<T: Send>(size: usize, name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let internal = |reason: &str| Error::new(Code::Internal, format!("{name}: {reason}"));
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(size).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| internal(&format!("no thread: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(internal("failed")))
    })
}
