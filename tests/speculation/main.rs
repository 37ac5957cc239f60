//! Every drafter, through the whole engine.

#[path = "../common/mod.rs"]
mod common;
mod cross_vocabulary;
mod draft_only;
mod drafters;
mod lookup_cache;
mod mtp;
#[path = "../common/vocabulary.rs"]
mod vocabulary;
mod vocabulary_map;
