//! Runs deeply recursive work on a thread with a large stack, because a host's threads may have small ones.

use std::thread;

use crate::error::{Code, Error, Result};

/// Runs `work` on a thread with a stack of `size` bytes, and waits for it. `name` is the prefix of error messages.
///
/// # Errors
/// Those of `work`; `resource_exhausted`: the thread cannot be started, mostly for lack of memory for its stack; `internal`: `work` panicked.
pub fn with<T: Send>(size: usize, name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let internal = |reason: &str| Error::new(Code::Internal, format!("{name}: {reason}"));
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(size).spawn_scoped(scope, work);
        let thread = thread
            .map_err(|error| Error::exhausted(format!("{name}: no thread with a stack of {size} bytes: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(internal("failed")))
    })
}
