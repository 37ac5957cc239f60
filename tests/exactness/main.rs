//! Tests that completions do not change with drafts, concurrent requests, threads, batch sizes or prompt reuse.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod conversations;
mod distribution;
mod long_context;
mod lossless;
mod models_without_rollback;
mod prefixes;
mod priorities;
mod rollback;
