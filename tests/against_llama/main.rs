//! Our own grammars, samplers and tokenizer calls give the same results as llama.cpp's.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

#[path = "../common/mod.rs"]
mod common;
mod embeddings;
mod grammar;
mod pictures;
mod sampling;
mod sounds;
mod templates;
mod vocabularies;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
