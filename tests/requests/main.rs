//! Requests, sessions, model files and the status. Single request and response fields are tested in `tests/fields`.

mod beams;
#[path = "../common/mod.rs"]
mod common;
mod model_metadata;
mod preparation;
mod schema;
mod sessions;
mod shards;
mod status;
mod templates;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
