//! foredraft: llama.cpp in your process, with speculative decoding, behind a C ABI that speaks JSON.

// The checks in fuzz/ name the library as `foredraft`, also in unit tests.
#[cfg(test)]
extern crate self as foredraft;

pub mod api;
mod atomic_write;
pub mod checksum;
#[cfg(test)]
#[allow(unsafe_code)]
#[path = "../tests/counting_allocator/mod.rs"]
mod counting;
pub mod engine;
pub mod error;
#[allow(unsafe_code)]
mod ffi;
pub mod grammar;
pub mod host;
#[allow(unsafe_code)]
pub mod llama;
pub mod ngram;
pub mod sampling;
pub mod session;
pub mod speculative;
mod stack;
