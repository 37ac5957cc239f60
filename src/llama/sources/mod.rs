//! Where a model comes from: files, descriptors, memory, several files, or a model that is loaded already.

pub(super) mod gguf_source;
pub(super) mod shards;
pub(super) mod shared;
