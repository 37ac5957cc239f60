//! Where a model comes from: files, descriptors, memory, several files, or a model that is loaded already; reading
//! its files ahead; and making weights smaller while they are read (`requantized.cpp`).

pub(super) mod gguf_source;
pub(super) mod read_ahead;
pub(super) mod shards;
pub(super) mod shared;
