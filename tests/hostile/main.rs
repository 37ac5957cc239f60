//! A host that does everything wrong, through the C interface: whatever it passes, in whatever order and from whatever
//! thread, it gets the contract's error or answer, the process lives, and the next request works.
//!
//! The library has one system a process, so tests take turns: each holds [`c::turn`].

mod c;
mod callbacks;
mod documents;
mod files;
mod gguf;
mod grammars;
mod lifecycle;
mod lookups;
mod memory;
#[cfg(target_os = "linux")]
mod notify_fd;
mod polling;
mod process;
mod requests;
mod storm;

#[path = "../contract/mod.rs"]
mod contract;
#[path = "../../examples/host/mod.rs"]
mod host;
