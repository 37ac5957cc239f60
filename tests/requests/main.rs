//! Requests, sessions, model files and the status. Single request and response fields are tested in `tests/fields`.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod beams;
mod chat;
#[path = "../common/mod.rs"]
mod common;
mod decisions;
mod embeddings;
mod hostile_templates;
mod model_files;
mod model_metadata;
mod pictures;
mod preparation;
mod prepared_turns;
mod processor_time;
mod prompt_logprobs;
mod questions;
mod reference;
mod schema;
mod sessions;
mod shards;
#[cfg(unix)]
mod slow_sources;
mod status;
mod templates;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
mod warnings;
