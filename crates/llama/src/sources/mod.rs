//! Where a model comes from: files, descriptors, memory, or several files; reading its files ahead; and making weights smaller while they are
//! read (`requantized.cpp`).

pub(super) mod gguf_source;
pub(super) mod read_ahead;
pub(super) mod shards;
