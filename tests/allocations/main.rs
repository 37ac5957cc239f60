//! What must not allocate once it is warm.

#[path = "../counting_allocator/mod.rs"]
mod counting;
mod ngram;
mod sampling;
