//! Where a model comes from: files, descriptors, memory, several files, or a model that is loaded already; and reading its files ahead.

pub(super) mod gguf_source;
pub(super) mod read_ahead;
pub(super) mod shards;
pub(super) mod shared;
