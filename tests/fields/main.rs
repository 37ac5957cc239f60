//! The contract's fields, one row each: what is sent and what must be seen, by `get_completion`, by polling and by
//! `speculative_completion`.

#[path = "../common/mod.rs"]
mod common;
mod frame;
mod infill;
mod limits;
mod lora;
mod output;
mod prompts;
mod sampling;
mod text;
