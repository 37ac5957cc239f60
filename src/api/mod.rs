//! The engine that hosts talk to, in safe Rust. The only layer that knows JSON.
//!
//! [`JsonEngine`] is what the C interface wraps: the life cycle of at most one loaded [`LocalEngine`]. A Rust host can create any number of
//! them.
//!
//! A call passes these modules, from the top to the bottom:
//!
//! ```text
//! life_cycle    load, unload; finds the loaded engine                                    isolation  an engine in a process of its own
//! calls         the functions of a loaded engine: completions, polls, text, sessions     lookup     n-gram caches
//! local_engine  the loaded models, the worker and the registry of requests
//! request       JSON to a validated request                                              load       the same for a load
//! legacy        the old server's functions, in front of all: translates their calls to the engine's
//! prompts       prompts to tokens                                                        chat       messages to a prompt
//! chat_format   completions to messages: reasoning, tool calls
//! registry      live requests by id                                                      schema     JSON schema to grammar
//! response      the worker's events to JSON                                              status
//! fields        reading JSON objects
//! ```
// Isolation calls some functions that nothing else does.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports))]

mod calls;
mod chat;
mod chat_format;
#[cfg(target_os = "linux")]
mod engine_process;
mod fields;
mod function;
#[cfg(target_os = "linux")]
mod isolation;
mod legacy;
mod life_cycle;
mod load;
mod local_engine;
mod lookup;
#[cfg(not(target_os = "linux"))]
mod no_isolation;
mod prompts;
mod registry;
mod request;
mod response;
mod schema;
mod status;
#[cfg(test)]
mod tests;
mod usage;

#[cfg(not(target_os = "linux"))]
use self::no_isolation as isolation;

pub use self::chat::{ChatTemplate, RenderInput, Rendered};
#[cfg(target_os = "linux")]
pub use self::engine_process::serve as serve_isolated;
pub use self::function::Function;
pub use self::legacy::{Endpoint, OldServer};
pub use self::life_cycle::{JsonEngine, LlamaStage};
pub(crate) use self::life_cycle::{cut_off, stop_all};
pub use self::load::LoadRequest;
pub use self::local_engine::LocalEngine;
pub use self::registry::{MAX_ENDED, MAX_UNPOLLED};
pub use self::request::CompletionRequest;
pub use self::response::error_json;
