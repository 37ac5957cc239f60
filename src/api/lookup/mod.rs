//! The n-gram caches as hosts see them: the file tools, the engine's live caches, and the progress of long calls.

pub(super) mod cache;
pub(super) mod progress;
mod tools;
