//! The `foredraft_*` functions: engines by handle, several in one process.

#[path = "../../examples/host/mod.rs"]
mod host;

#[path = "../contract/mod.rs"]
mod contract;

mod handles;
mod independence;
mod library;
mod polling;
mod sharing;
