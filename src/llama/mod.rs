//! The only module that calls llama.cpp. Its types own llama.cpp's objects, and no call can throw into Rust or fail an assertion.
//!
//! `guard.cpp` catches exceptions. A failed assertion ends the process and cannot be caught, so each method validates in advance
//! what the call asserts. This module does not know requests, slots or JSON.

mod backend;
mod batch;
mod context;
mod cores;
mod cpu;
mod decode;
#[cfg(test)]
pub(crate) mod fake;
mod gguf_source;
mod governor;
mod guard;
mod identity;
mod interrupt;
pub mod log;
mod memory;
mod model;
mod mtp;
mod pacing;
mod padding;
mod params;
mod placement;
mod raw_params;
mod rpc;
mod schema;
mod shards;
mod shared;
mod special;
mod threads;
mod vocab;

pub use backend::{Device, Numa, devices, llama_version, max_sequences, set_numa, start, system_info};
pub use batch::Batch;
pub use context::Context;
pub use cores::default_threads_on;
pub use cpu::{attention_cost, barrier_sleeps};
pub use decode::DecodeError;
pub use gguf_source::GgufSource;
pub use interrupt::Interrupt;
pub use memory::Part;
pub use model::Model;
pub use pacing::{FrameBudget, working_time};
pub use params::{
    CacheType, ContextParams, FlashAttn, KvValue, LoraParams, ModelParams, Pooling, RopeScaling, SplitMode,
};
pub use placement::{CpuSet, KeepPlacement, ThreadPriority, ThreadSettings};
pub use raw_params::DEFAULT_N_CTX;
pub use rpc::use_rpc_servers;
pub use schema::schema_to_grammar;
pub use special::{ControlStarts, SpecialTokens};
pub use threads::ThreadPool;
pub use vocab::{Fim, Vocab, VocabKind};

/// A token's id in a vocabulary.
pub type Token = i32;
/// A candidate token as llama.cpp's samplers see it.
pub type TokenData = llama_cpp_sys_2::llama_token_data;
/// A sequence's number in a context.
pub type SeqId = i32;
