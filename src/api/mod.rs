//! The engine that hosts talk to, in safe Rust. The only layer that knows JSON.
//!
//! [`System`] is what the C interface wraps: the life cycle of at most one loaded [`Server`]. A Rust host can create servers
//! directly, and any number of them.
//!
//! A call passes these modules, from the top to the bottom:
//!
//! ```text
//! system      load, unload; finds the loaded server
//! calls       the functions of a loaded server: completions, polls, text, sessions     lookup   n-gram caches
//! server      the loaded models, the engine and the registry of requests
//! request     JSON to a validated request                                              init     the same for a load
//! prompts     prompts to tokens                                                        chat     messages to a prompt
//! chat_format completions to messages: reasoning, tool calls
//! registry    live requests by id                                                      schema   JSON schema to grammar
//! response    the engine's events to JSON                                              status
//! fields      reading JSON objects
//! ```

mod calls;
mod chat;
mod chat_format;
#[cfg(target_os = "linux")]
mod engine_process;
mod fields;
mod function;
mod init;
#[cfg(target_os = "linux")]
mod isolation;
mod lookup;
mod prompts;
mod registry;
mod request;
mod response;
mod schema;
mod server;
mod status;
mod system;

pub use self::chat::{ChatTemplate, RenderInput, Rendered};
#[cfg(target_os = "linux")]
pub use self::engine_process::serve as serve_isolated;
pub use self::function::Function;
pub use self::init::InitRequest;
pub use self::registry::{MAX_ENDED, MAX_UNPOLLED};
pub use self::request::{CompletionRequest, Endpoint};
pub use self::response::error_json;
pub use self::server::Server;
pub(crate) use self::system::stop_all;
pub use self::system::{LlamaStage, System};
