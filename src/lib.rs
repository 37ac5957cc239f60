//! foredraft: llama.cpp in your process, with speculative decoding, behind a C ABI that speaks JSON.

pub mod api;
#[cfg(test)]
#[allow(unsafe_code)]
#[path = "../tests/counting_allocator/mod.rs"]
mod counting;
pub mod engine;
#[allow(unsafe_code)]
mod ffi;
pub mod forks;
pub mod host;
#[allow(unsafe_code)]
pub mod llama;
pub mod session;
pub mod speculative;
#[allow(unsafe_code)]
pub mod thread_state;

// The crates under crates/ are layers of this one, under these names.
pub use foredraft_base::{checksum, error};
pub use foredraft_grammar as grammar;
pub use foredraft_ngram as ngram;
pub use foredraft_sampling as sampling;
