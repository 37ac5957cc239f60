//! Misuse of the C interface: whatever a host passes, in any order and from any thread, it gets the documented answer or error,
//! the process survives, and the next request works.
//!
//! Each test holds the lock [`c_api::exclusive`], because all of them use the default engine, which the old server's functions have too.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod c_api;
mod callbacks;
mod files;
#[path = "../common/gguf.rs"]
mod gguf;
mod grammars;
mod lifecycle;
mod lookup_functions;
mod malformed_json;
mod memory;
#[cfg(target_os = "linux")]
mod notify_fd;
mod old_names;
mod old_server;
mod polling;
mod process;
mod random_calls;
mod requests;
#[cfg(target_os = "linux")]
mod sources;

#[path = "../c_functions/mod.rs"]
mod c_functions;
#[path = "../../examples/host/mod.rs"]
mod host;
