//! Every drafter, through the whole engine.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

#[path = "../common/mod.rs"]
mod common;
mod cross_vocabulary;
mod draft_only;
mod draft_weights;
mod drafters;
mod heads;
mod lookup_cache;
mod many_runs;
mod mtp;
mod pictures;
#[path = "../toolchain/mod.rs"]
mod toolchain;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
mod vocabulary_map;
