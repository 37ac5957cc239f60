//! Code that must not allocate once its buffers have grown.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and the counting allocator is unsafe"
)]

#[path = "../counting_allocator/mod.rs"]
mod counting;
mod ngram;
mod sampling;
