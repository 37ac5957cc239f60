//! Every way to draft, through the whole engine.

#[path = "../common/mod.rs"]
mod common;
mod cross_vocabulary;
mod draft_only;
mod drafters;
mod mtp;
mod mtp_llama;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
mod vocabulary_map;
