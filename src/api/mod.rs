//! The engine that hosts talk to, in safe Rust. The only layer that knows JSON.
//!
//! [`JsonEngine`] is what the C interface wraps: the life cycle of at most one loaded [`LocalEngine`]. A Rust host can create any number of
//! them.
//!
//! A call passes these rooms, from the top to the bottom. `tests/architecture.rs` holds their order.
//!
//! ```text
//! life_cycle   load, unload, pauses; the old server's functions (`legacy`); the program of isolated engines (`engine_process`)
//! isolation    an engine in a process of its own
//! loaded       the loaded models, the requests that they have, and the functions of a loaded engine
//! prompts      messages (`chat`) and texts to tokens, and completions to messages (`chat_format`); knows models, but no engine
//! wire         JSON objects to requests and loads; the outer form of answers
//! ```
// Isolation calls some functions that nothing else does.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports))]

#[cfg(target_os = "linux")]
mod isolation;
#[cfg(not(target_os = "linux"))]
#[path = "isolation/unavailable.rs"]
mod isolation;
mod life_cycle;
mod loaded;
mod prompts;
#[cfg(test)]
mod tests;
mod wire;

#[cfg(target_os = "linux")]
pub use self::life_cycle::engine_process::serve as serve_isolated;
pub use self::life_cycle::legacy::{Endpoint, OldServer};
pub use self::life_cycle::{JsonEngine, LlamaStage};
pub(crate) use self::life_cycle::{cut_off, stop_all};
pub use self::loaded::calls::PollCommand;
pub use self::loaded::devices::devices;
pub use self::loaded::local_engine::LocalEngine;
pub use self::loaded::registry::{MAX_ENDED, MAX_UNPOLLED};
pub use self::prompts::chat::{ChatTemplate, RenderInput, Rendered};
pub use self::wire::answer::error_json;
pub use self::wire::function::Function;
pub use self::wire::load::LoadRequest;
pub use self::wire::request::{CompletionRequest, RequestArguments};
