//! The drafters that run a model. All else of speculative decoding is in the crate `foredraft_speculation`, which this module re-exports.
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

/// Drafters of several tokens read the target's hidden states from its context.
impl HiddenStates for crate::llama::Context {
    fn hidden(&mut self, index: usize) -> Option<&[f32]> {
        crate::llama::Context::hidden(self, index)
    }
}
