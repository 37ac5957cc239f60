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
mod devices;
#[cfg(test)]
pub(crate) mod fake;
mod gguf_source;
mod governor;
mod guard;
mod hidden;
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

pub use backend::{Numa, llama_version, max_sequences, set_numa, start, system_info};
pub use batch::{Batch, DecodeError};
pub use context::Context;
pub use cores::default_threads_on;
pub use cpu::{attention_cost, barrier_sleeps};
pub use devices::{Device, devices};
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

pub use foredraft_base::{Token, TokenData, Vocabulary};

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
