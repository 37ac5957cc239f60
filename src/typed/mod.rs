//! The library for hosts in Rust: engines with typed configurations, requests and answers.
//!
//! [`Engine`] wraps what the `foredraft_*` functions of C call. So every key of docs/reference.md can be given (`set`) and every field read
//! (`fields`); those that most hosts need have methods and types.

mod completion;
mod config;
mod decision;
mod engine;
mod load;
mod loaded;
mod media;
mod request;
mod stream;

pub use self::completion::{
    ConversationInfo, FinalResponse, FunctionCall, Message, RankedDocument, SpeculationReport, StopType, StreamUpdate,
    ToolFunction, Usage,
};
pub use self::config::HostConfig;
pub use self::decision::{DecisionAnswer, HostQuestion};
pub use self::engine::{Engine, EnginePause};
pub use self::load::EngineLoad;
pub use self::media::HostMedia;
pub use self::request::HostRequest;
pub use self::stream::CompletionStream;
