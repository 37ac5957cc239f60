//! The only crate that calls llama.cpp, beside the C++ code in `foredraft-native`. Its types own llama.cpp's objects, and no call throws into Rust.
//!
//! `guard.cpp` catches exceptions, and makes an exception of an assertion that fails on the calling thread. One that fails on another thread of a
//! decode ends the process. So each method validates in advance what the call asserts. This crate does not know requests, slots or JSON.
//!
//! - `model`: weights, vocabulary, adapters. `sources`: the files, descriptors and memory that a model is read from.
//! - `context`: the KV cache and decodes of a model. `params`: validated parameters of both.
//! - `threads`: the pool that decodes run on. `kernels`: ours in place of ggml's.
//! - `platform`: what differs between operating systems. `process`: the process of an isolated engine, on Linux.
//! - `device_use`, `placement`: what models and contexts have on each device.
//! - `builtin_templates`: the chat templates that llama.cpp has in C++.
//! - `backend`: llama.cpp's start, devices, RPC servers. `guard`: calls that can throw. `log`: llama.cpp's log and ours.
//! - `unrecoverable`: failures that end the process of an isolated engine.
//! - `fake` (the feature `fake`, for tests): a context without llama.cpp.
#![allow(unsafe_code)]

mod backend;
mod builtin_templates;
mod context;
mod device_use;
#[cfg(any(test, feature = "fake"))]
#[path = "tests/fake/mod.rs"]
pub mod fake;
mod guard;
mod kernels;
pub mod large_stack;
pub mod log;
mod model;
mod params;
mod pause;
mod placement;
pub mod platform;
#[cfg(target_os = "linux")]
pub mod process;
mod sources;
mod threads;
mod unrecoverable;

pub use backend::devices::{Device, devices};
#[cfg(not(target_os = "linux"))]
pub use backend::module_failures;
#[cfg(target_os = "linux")]
pub use backend::modules::module_failures;
pub use backend::rpc::{hurry_rpc_servers, use_rpc_servers};
pub use backend::{Numa, llama_version, max_sequences, set_numa, start, system_info};
pub use builtin_templates::{apply_template, template_names};
pub use context::Context;
pub use context::batch::{Batch, DecodeError};
pub use context::heads::DraftBlock;
pub use context::interrupt::{Interrupt, PausableLoad};
pub use context::memory::Part;
pub use context::raw_params::{DEFAULT_N_CTX, most_rollback, n_ctx as context_length, text_pooling};
pub use context::rollback::Rollback;
pub use context::token_subset::TokenSubset;
pub use device_use::{DevicePlacement, DeviceUse};
pub use kernels::{
    CpuLevel, KernelCalls, LayoutCost, LayoutReason, Replacements, WeightLayout, are_used as kernels_are_used,
    attention_cost, barrier_sleeps, calls as kernel_calls, choose_default_level, level, levels, replacements,
};
pub use model::Model;
pub use model::pieces::TokenPieces;
pub use model::special::{GuardedTokens, SpecialTokens, TokenStarts};
pub use model::vocab::{Fim, Vocab, VocabKind};
pub use params::{
    CacheType, ContextParams, FlashAttn, KvValue, LoraParams, ModelParams, Pooling, RopeScaling, SplitMode, TextPooling,
};
pub use pause::PauseGate;
pub use sources::gguf_source::{DraftKind, GgufSource, WeightType};
pub use threads::ThreadPool;
pub use threads::cores::default_threads_on;
pub use threads::cpus::{CpuSet, ThreadPriority};
pub use threads::pacing::{FrameBudget, working_time};
pub use threads::placement::{KeepPlacement, ThreadSettings, run_when_idle};
pub use unrecoverable::end_process_on_loss;

pub use foredraft_base::{Token, TokenData, TokenTree, Vocabulary};

/// A sequence's number in a context.
pub type SeqId = i32;

// A `TokenData` is passed to llama.cpp as it is.
const _: () = {
    use llama_cpp_sys_2::llama_token_data;
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<TokenData>() == size_of::<llama_token_data>());
    assert!(align_of::<TokenData>() == align_of::<llama_token_data>());
    assert!(offset_of!(TokenData, id) == offset_of!(llama_token_data, id));
    assert!(offset_of!(TokenData, logit) == offset_of!(llama_token_data, logit));
    assert!(offset_of!(TokenData, p) == offset_of!(llama_token_data, p));
};
