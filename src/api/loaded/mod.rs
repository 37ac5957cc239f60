//! A loaded engine in this process, and the requests that it has.
//!
//! - `local_engine`: the models, the worker's handle and the registry, behind the trait that an engine in another process has as well. Its methods
//!   are in `calls`, and `lookup_cache` for n-gram caches. `pauses`: the host's.
//! - `registry`: live requests by id. `preparer`: the threads that make long prompts. `preparations`: of requests that may come.
//! - `response`, `chat_answer`, `status`: the worker's events, and the engine's state, as JSON. `devices`: the machine's, before a load.

pub mod calls;
mod chat_answer;
pub mod devices;
pub mod local_engine;
pub mod lookup_cache;
mod lookup_files;
pub mod pauses;
mod preparations;
mod preparer;
pub mod registry;
pub mod response;
pub mod status;
