//! Code that must not allocate once its buffers have grown.

#[path = "../counting_allocator/mod.rs"]
mod counting;
mod ngram;
mod sampling;
