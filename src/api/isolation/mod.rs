//! Isolation: an engine in a process of its own, `foredraft-engine`, behind the functions of the interface. On Linux.
//!
//! An isolated engine survives what a library in the host's process cannot: an assertion in a driver, memory that runs out, a model file
//! that is cut while it is mapped. The host's process keeps its requests with the tokens that have arrived. When the engine's process dies,
//! another one is started, prompt and tokens are decoded again, and the random numbers go on, so a completion is the same as without the
//! death, and no update is lost or repeated.
//!
//! - `settings`, `launch`: a load's keys; finding and starting the program.
//! - `protocol`, `connection`: frames with JSON documents through a socket that only both processes have.
//! - `remote`, `remote_request`, `delivered`, `updates`, `shared`: the host's side.
//! - `supervisor`: starts the process, again and again. `watch`: ends it if it does not answer. `trial`: finds the request that ends it.
//! - The engine's side is [`engine_process`](super::engine_process).

mod connection;
mod delivered;
mod launch;
mod protocol;
mod remote;
mod remote_request;
mod settings;
mod shared;
mod supervisor;
mod trial;
mod updates;
mod watch;

pub(super) use self::protocol::{Frame, FrameKind, FrameSender, LogitsRow, RequestHead, floats};
pub(super) use self::remote::RemoteEngine;
pub(super) use self::settings::IsolationSettings;
