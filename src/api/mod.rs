//! The server that hosts talk to, in safe Rust, and the only room that knows JSON.
//!
//! [`System`] is what the C interface wraps: a life cycle around at most one [`Server`]. A Rust host may as well make
//! servers itself, and several of them. Every request is parsed once, into a validated type; every answer is made in
//! `response`.

mod args;
mod chat_template;
mod enqueue;
mod fields;
mod infill;
mod init;
mod json_schema;
mod lookup;
mod news;
mod overflow;
mod pieces;
mod poll;
mod preparer;
mod prompts;
mod registry;
mod request;
mod response;
mod server;
mod serving_model;
mod session;
mod speculative;
mod status;
mod suggest;
mod system;
mod text;

pub use self::chat_template::{ChatTemplate, RenderInput, Rendered};
pub use self::init::InitRequest;
pub use self::registry::{MAX_ENDED, MAX_UNPOLLED};
pub use self::request::CompletionRequest;
pub use self::response::error_json;
pub use self::server::Server;
pub use self::speculative::Endpoint;
pub use self::system::{Loaded, System};
