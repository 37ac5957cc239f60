//! The library as hosts see it: header, symbols, examples and the README, in each language.

#[path = "../contract/mod.rs"]
mod contract;
mod examples;
mod header;
#[path = "../../examples/host/mod.rs"]
mod host;
mod lookup_examples;
mod readme;
mod symbols;
#[path = "../toolbox/mod.rs"]
mod toolbox;
