//! What must not change a completion: drafts, neighbours, threads, batch sizes, reused prompts.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod distribution;
mod long_context;
mod lossless;
mod memories;
