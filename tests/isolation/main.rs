//! Isolated engines: the functions of the interface with the engine in another process, which is killed at random moments.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]

mod chat;
#[path = "../common/mod.rs"]
mod common;
mod conversations;
mod deaths;
mod hangs;
mod interface;
mod logits;
mod model_file;
mod pauses;
mod pictures;
mod process;
mod rpc;
#[path = "../common/rpc_server.rs"]
mod rpc_server;
#[path = "../toolchain/mod.rs"]
mod toolchain;
