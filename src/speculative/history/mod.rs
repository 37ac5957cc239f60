//! Drafters that look at the text alone: no model, a microsecond a token.
//!
//! Each is a [`HistoryDrafter`](history_drafter::HistoryDrafter) in its own file; `rule` makes a [`Drafter`](super::Drafter) of it, for all slots.
//! llama.cpp's five are `ngram_cache` (with the shared `caches`), `ngram_simple`, `ngram_map` (both) and `ngram_mod`;
//! `suffix` follows the longest repetition, `prediction` what the request predicts.

mod caches;
mod history_drafter;
mod ngram_cache;
mod ngram_index;
mod ngram_map;
mod ngram_mod;
mod ngram_params;
mod ngram_simple;
mod prediction;
mod suffix;
mod suffix_answers;
mod suffix_confidence;
mod suffix_trace;
mod suffix_tree;

use super::{DrafterKind, Settings, SoFar, StopPolicy, drafter};

pub use caches::{CacheFile, CacheKind, Caches, read_cache};
pub use ngram_cache::NgramCache;
pub use ngram_map::{NgramMapK, NgramMapK4v};
pub use ngram_mod::NgramMod;
pub use ngram_params::{LookupParams, ModParams, NgramParams, SuffixParams};
pub use ngram_simple::NgramSimple;
pub use prediction::{Predicted, Prediction};
pub use suffix::Suffix;
