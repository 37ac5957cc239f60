//! What requests, sessions and the status do, beyond single fields (see `tests/fields`).

mod beams;
#[path = "../common/mod.rs"]
mod common;
mod schema;
mod sessions;
mod shards;
mod status;
mod templates;
