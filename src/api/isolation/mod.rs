//! Isolation: an engine in a process of its own, `foredraft-engine`, behind the functions of the interface. On Linux.
//!
//! An isolated engine survives what a library in the host's process cannot: an assertion in a driver, memory that runs out, a model file
//! that is cut while it is mapped. The host's process keeps its requests with the tokens that have arrived. When the engine's process dies,
//! another one is started, prompt and tokens are decoded again, and the random numbers go on, so a completion is the same as without the
//! death, and no update is lost or repeated.
//!
//! Both processes read a request, as an engine in one process does. Where the model is, it becomes a prompt and a completion, and the
//! engine's events (tokens, text, ends) come back. The host's process puts them into the request's handle, so polls are answered by the
//! same code wherever the engine is.
//!
//! - `settings`, `launch`: a load's keys; finding and starting the program.
//! - `protocol`, `connection`: frames through a socket that only both processes have. `events`: the events in them, and their checks.
//! - `remote`, `remote_request`, `shared`: the host's side.
//! - `supervisor`: starts the process, again and again. `watch`: ends it if it does not answer. `trial`: finds the request that ends it.
//! - The engine's side is [`engine_process`](crate::api::life_cycle::engine_process).

mod connection;
mod events;
mod launch;
mod protocol;
mod remote;
mod remote_request;
mod settings;
mod shared;
mod supervisor;
mod trial;
mod watch;

pub use self::events::{MessageParts, RequestEvent};
pub use self::protocol::{Frame, FrameKind, FrameSender, LogitsRow, RequestHead, floats};
pub use self::remote::start;
