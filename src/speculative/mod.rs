//! Speculative decoding: everything of the crate `foredraft_speculation`, and the drafters that run a model.
//!
//! - `draft_model`, `draft_branch`: a draft model, as a chain or a tree of branches. `cross_vocabulary`, `vocabulary_map`, `compat`: one
//!   with another vocabulary.
//! - `mtp`, `states`: the target's own layers for multi-token prediction.

mod compat;
mod cross_vocabulary;
mod draft_branch;
mod draft_model;
mod mtp;
mod states;
mod vocabulary_map;

pub use foredraft_speculation::*;

pub use compat::{Compatibility, VocabSummary};
pub use cross_vocabulary::CrossVocabulary;
pub use draft_model::DraftModel;
pub use mtp::Mtp;
pub use vocabulary_map::{Dictionary, VocabularyMap};

impl HiddenStates for crate::llama::Context {
    fn hidden(&mut self, index: usize) -> Option<&[f32]> {
        crate::llama::Context::hidden(self, index)
    }
}
