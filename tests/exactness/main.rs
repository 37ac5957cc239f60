//! Tests that completions do not change with drafts, concurrent requests, threads, batch sizes or prompt reuse.

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod distribution;
mod long_context;
mod lossless;
mod models_without_rollback;
