//! A host that does everything wrong, through the C interface: whatever it passes, in whatever order and from whatever
//! thread, it gets the contract's error or answer, the process lives, and the next request works.
//!
//! The library has one system a process, so tests take turns: each holds [`c_api::exclusive`].

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
mod polling;
mod process;
mod random_calls;
mod requests;

#[path = "../c_functions/mod.rs"]
mod c_functions;
#[path = "../../examples/host/mod.rs"]
mod host;
