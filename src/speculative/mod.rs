//! Speculative decoding: drafters, draft lengths, and verification.
//!
//! With `coupled` and `match`, the target's output depends only on its logits and the request's seed (see [`crate::sampling`]). The target
//! chooses each token independently, and a drafted token is accepted if it is the same. So no drafter, draft length or stopping rule can
//! change the output. With `coupled`, the draft model samples with the target's Gumbel noise, so both agree as often as their distributions
//! do. With `match`, it proposes its most probable token. `rejection` and `block` compare probabilities, and preserve the output
//! distribution; see [`verify`].

mod batch_split;
mod calibration;
mod compat;
mod controller;
mod costs;
mod cross_vocabulary;
mod draft_branch;
mod draft_model;
mod drafter;
mod drafters;
mod exploration;
mod history;
mod kalman;
mod mtp;
mod policy;
mod settings;
#[cfg(test)]
mod simulator;
mod states;
pub mod verify;
mod vocabulary_map;

pub use batch_split::{BatchSplit, SequencePadding};
pub use calibration::{Bias, Calibration, Choice};
pub use compat::{Compatibility, VocabSummary};
pub use controller::{Controller, Prices, StepSlot};
pub use costs::{Costs, MAX_MEASURED, sizes_to_measure};
pub use cross_vocabulary::CrossVocabulary;
pub use draft_model::DraftModel;
pub use drafter::{DecodedTokens, Draft, DraftRequest, Drafter, Drawing};
pub use drafters::{ChosenDraft, DraftOutcome, Drafters, DraftingSlot, RequestDrafts};
pub use history::{
    CacheFile, CacheKind, Caches, LookupParams, ModParams, NgramCache, NgramMapK, NgramMapK4v, NgramMod, NgramParams,
    NgramSimple, Predicted, Prediction, Suffix, SuffixParams, read_cache,
};
pub use mtp::Mtp;
pub use policy::{Length, Plan, SoFar, StopPolicy};
pub use settings::{Adaptive, DrafterKind, HEURISTIC_MAX, MAX_BRANCHES, MAX_DRAFT, Settings, Verify};
pub use vocabulary_map::{Dictionary, VocabularyMap};
