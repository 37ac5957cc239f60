//! What must not allocate once it is warm.

#[path = "../counting/mod.rs"]
mod counting;
mod ngram;
mod sampling;
