//! The library as hosts see it: header, symbols, examples and the README, in each language.

#[path = "../c_functions/mod.rs"]
mod c_functions;
mod examples;
mod header;
#[path = "../../examples/host/mod.rs"]
mod host;
mod lookup_examples;
mod readme;
mod symbols;
#[path = "../toolchain/mod.rs"]
mod toolchain;
