//! foredraft: llama.cpp in your process, with speculative decoding, behind a C ABI that speaks JSON.
//!
//! Hosts in Rust need the items at this crate's root: [`Engine`], [`Config`], [`Request`] and what they return. The modules are public for this
//! repository's own tests and programs, and change without notice.

#[doc(hidden)]
pub mod api;
#[allow(unsafe_code)]
mod ffi;
mod typed;

pub use self::api::{Function, devices};
pub use self::engine::LogitsCallback;
pub use self::typed::{
    CompletionStream, ConversationInfo, DecisionAnswer, Engine, EngineLoad, EnginePause, FinalResponse, FunctionCall,
    HostConfig as Config, HostMedia as Media, HostQuestion as Question, HostRequest as Request, Message,
    RankedDocument, SpeculationReport, StopType, StreamUpdate, ToolFunction, Usage,
};
pub use foredraft_base::error::{Code, Error, Result};

/// Downloads of models.
#[cfg(feature = "hub")]
pub use foredraft_hub as hub;

// The crates under crates/ are layers of this one, under these names.
#[doc(hidden)]
pub use foredraft_base::error;
#[doc(hidden)]
pub use foredraft_engine as engine;
#[doc(hidden)]
pub use foredraft_grammar as grammar;
#[doc(hidden)]
pub use foredraft_host::{self as host, forks, thread_state};
#[doc(hidden)]
pub use foredraft_llama as llama;
#[doc(hidden)]
pub use foredraft_ngram as ngram;
#[doc(hidden)]
pub use foredraft_sampling as sampling;
#[doc(hidden)]
pub use foredraft_speculation as speculative;
