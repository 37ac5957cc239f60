//! The `foredraft_*` functions: engine handles, several engines in one process.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

#[path = "../../examples/host/mod.rs"]
mod host;

#[path = "../c_functions/mod.rs"]
mod c_functions;

mod exit;
mod handles;
mod independence;
mod library;
mod logits;
#[cfg(target_os = "linux")]
mod measuring;
#[cfg(target_os = "linux")]
mod pauses;
mod polling;
mod scripted;
mod sharing;
#[cfg(target_os = "linux")]
mod threads;
