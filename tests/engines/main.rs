//! The `foredraft_*` functions: engine handles, several engines in one process.

#[path = "../../examples/host/mod.rs"]
mod host;

#[path = "../c_functions/mod.rs"]
mod c_functions;

mod exit;
mod handles;
mod independence;
mod library;
mod polling;
mod sharing;
#[cfg(target_os = "linux")]
mod threads;
