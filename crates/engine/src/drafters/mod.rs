//! The drafters that run a model. All else of speculative decoding is in the crate `foredraft_speculation`.
//!
//! - `draft_model`, `draft_branch`: a draft model, as a chain or a tree of branches. `cross_vocabulary`, `vocabulary_map`, `compat`: one
//!   with another vocabulary. `draft_vocabulary`: the tokens that it scores.
//! - `head`, `block_head`, `assistant`, `head_cache`, `states`: heads that draft with hidden states of the target. Layers for multi-token
//!   prediction (of the target's file or of one of their own) and EAGLE-3 predict token by token, DFlash and DSpark a block in one pass.
//!   Assistants of Gemma 4 also read the target's KV cache.

mod assistant;
mod block_head;
mod compat;
mod cross_vocabulary;
mod draft_branch;
mod draft_model;
mod draft_vocabulary;
mod head;
mod head_cache;
mod states;
mod vocabulary_map;

pub use assistant::Assistant;
pub use block_head::BlockHead;
pub use compat::{Compatibility, VocabSummary};
pub use cross_vocabulary::CrossVocabulary;
pub use draft_model::DraftModel;
pub(crate) use draft_vocabulary::frequent_tokens;
pub use head::Head;
pub use vocabulary_map::{Dictionary, VocabularyMap};
