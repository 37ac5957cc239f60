//! Speculative decoding: who proposes tokens, how many, and what became of them.
//!
//! The target's text depends on its own logits and the request's seed alone (see [`crate::sampling`]), so a proposal
//! is checked by letting the target choose and comparing: no drafter, draft length or stopping rule can change the
//! text. `coupled` lets the draft choose with the target's Gumbel noise, which makes them agree as often as their
//! distributions do; `match` lets it propose its most probable token.

mod caches;
mod calibration;
mod compat;
mod costs;
mod draft_model;
mod drafter;
mod ngram_cache;
mod ngram_index;
mod ngram_map;
mod ngram_mod;
mod ngram_params;
mod ngram_simple;
mod policy;
mod prediction;
mod settings;
mod suffix;
mod suffix_answers;
mod suffix_confidence;
mod suffix_trace;
mod suffix_tree;
mod team;
mod text_drafter;

pub use caches::{CacheFile, CacheKind, Caches, read_cache};
pub use calibration::{Bias, Calibration};
pub use compat::{Compatibility, VocabSummary};
pub use costs::{Costs, MAX_MEASURED};
pub use draft_model::DraftModel;
pub use drafter::{Ask, Draft, Drafter};
pub use ngram_cache::NgramCache;
pub use ngram_map::{NgramMapK, NgramMapK4v};
pub use ngram_mod::NgramMod;
pub use ngram_params::{LookupParams, ModParams, NgramParams, SuffixParams};
pub use ngram_simple::NgramSimple;
pub use policy::{Length, Pace, Plan};
pub use prediction::Prediction;
pub use settings::{Adaptive, MAX_DRAFT, Settings, Source, Verify};
pub use suffix::Suffix;
pub use team::{Checked, Team, Wish};
