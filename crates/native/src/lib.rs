//! The C and C++ code of foredraft, and what it replaces in ggml: see `seams.md`. The declarations are bindgen's, of `native.h`, `kernels/native.h` and
//! `call.h`. Only the crates above it that may use `unsafe` call these functions.
#![allow(unsafe_code, missing_docs, non_camel_case_types, clippy::all, clippy::indexing_slicing, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/native.rs"));

/// The version of `llama-cpp-sys-2`.
pub const LLAMA_CPP_SYS_VERSION: &str = env!("LLAMA_CPP_SYS_VERSION");
