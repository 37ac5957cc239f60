//! The only crate that calls llama.cpp, beside the C++ code in `foredraft-native`. Its types own llama.cpp's objects, and no call throws into Rust.
//!
//! `guard.cpp` catches exceptions, and makes an exception of an assertion that fails on the calling thread. One that fails on another thread of a
//! decode ends the process. So each method validates in advance what the call asserts. This crate does not know requests, slots or JSON.
//!
//! The folders, from the top to the bottom. Each imports only those below it (`tests/architecture.rs`):
//!
//! | folder | has |
//! | --- | --- |
//! | `media` | the encoder of an mmproj file, and pictures and sounds as its input |
//! | `context` | the KV cache and decodes of a model, what both have on each device, heads and MTP layers, batch invariance |
//! | `model` | weights, vocabulary, adapters |
//! | `sources` | the files, descriptors and memory that a model is read from, and the checks of its head |
//! | `kernels` | ours in place of ggml's: which are used, layouts of weights (the code is `foredraft-native`'s) |
//! | `params` | validated parameters of models and contexts |
//! | `threads` | the pool that decodes run on, how many of its threads, their pauses and pacing, large stacks |
//! | `backend` | llama.cpp's start, devices, levels of instructions, modules of GPUs, RPC servers |
//! | `platform` | what differs between operating systems; `process`: that of an isolated engine, on Linux |
//! | `guard`, `log`, `unrecoverable` | calls that can throw; the log; failures that end the process of an isolated engine |
//!
//! `builtin_templates` has the chat templates that llama.cpp has in C++. `fake` (the feature `fake`, for tests) is a context without llama.cpp.
#![allow(unsafe_code)]

mod backend;
mod builtin_templates;
mod context;
#[cfg(any(test, feature = "fake"))]
#[path = "tests/fake/mod.rs"]
pub mod fake;
mod guard;
mod kernels;
pub mod log;
mod media;
mod model;
mod params;
mod platform;
mod sources;
mod threads;
mod unrecoverable;

pub use backend::devices::{Device, available_memory, devices};
pub use backend::levels::{CpuLevel, choose_default_level, level, levels};
pub use backend::module::BackendModule;
pub use backend::modules::modules;
pub use backend::rpc::{hurry_rpc_servers, use_rpc_servers};
pub use backend::{Numa, llama_version, max_sequences, set_numa, start, system_info};
pub use builtin_templates::{apply_template, template_names};
pub use context::Context;
pub use context::attention::attention_cost;
pub use context::batch::{Batch, BatchInput, DecodeError, RowPlace, SeqId};
pub use context::heads::DraftBlock;
pub use context::memory::Part;
pub use context::raw_params::{DEFAULT_N_CTX, most_rollback, n_ctx as context_length, text_pooling};
pub use context::rollback::Rollback;
pub use context::token_subset::TokenSubset;
pub use kernels::{
    KernelCalls, LayoutCost, LayoutReason, Replacements, SMALLER as SMALLER_PANELS, WeightLayout,
    are_used as kernels_are_used, barrier_sleeps, calls as kernel_calls, replacements,
};
pub use media::bitmap::Bitmap;
pub use media::cache::{EncodedMedia, MediaCache, NumberedMedia};
pub use media::projector::{CutMedia, MediaPiece, MediaRows, Projector, ProjectorParams};
pub use model::Model;
pub use model::device_use::{DevicePlacement, DeviceUse};
pub use model::pieces::TokenPieces;
pub use model::special::{GuardedTokens, SpecialTokens, TokenStarts};
pub use model::tensor_placement::check_tensor_pattern;
pub use model::vocab::{Fim, Vocab, VocabKind};
pub use params::{
    CacheType, ContextParams, FlashAttn, KvValue, LoraParams, ModelParams, RopeScaling, SplitMode, TextPooling,
};
pub use platform::cpus::{CpuSet, ThreadPriority};
pub use platform::keep_loaded;
#[cfg(target_os = "linux")]
pub use platform::process;
pub use sources::gguf_source::{DraftKind, GgufSource, WeightType};
pub use threads::ThreadPool;
pub use threads::cores::{default_threads_on, usable_cores};
pub use threads::interrupt::{Interrupt, PausableLoad};
pub use threads::large_stack;
pub use threads::pacing::{FrameBudget, working_time};
pub use threads::pause::PauseGate;
pub use threads::placement::{KeepPlacement, ThreadSettings, run_when_idle};
pub use unrecoverable::end_process_on_loss;

pub use foredraft_base::work::StopSignal;
pub use foredraft_base::{Token, TokenData, TokenTree, Vocabulary};

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
