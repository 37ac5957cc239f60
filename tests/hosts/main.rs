//! The library as hosts see it, in each language: headers, exported symbols, examples and the README.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

#[path = "../c_functions/mod.rs"]
mod c_functions;
#[path = "../common/mod.rs"]
mod common;
mod examples;
#[cfg(target_os = "linux")]
mod faults;
mod guide;
pub mod header;
#[path = "../../examples/host/mod.rs"]
mod host;
mod install;
mod lookup_examples;
mod ngram_peer;
mod old_life;
mod packages;
mod processors;
mod readme;
mod symbols;
#[path = "../toolchain/mod.rs"]
mod toolchain;
#[cfg(target_os = "linux")]
mod window;
