//! Drafters that use only token histories: no model, about a microsecond per token.
//!
//! Each implements [`HistoryDrafter`](history_drafter::HistoryDrafter) for one slot; [`SlotDrafters`](history_drafter::SlotDrafters) makes a
//! [`Drafter`](super::Drafter) for all slots of it. llama.cpp's drafters are `ngram-cache` ([`NgramCache`]), and
//! `ngram-simple`, `ngram-map-k`, `ngram-map-k4v` and `ngram-mod` (`ngram_lookup`). [`Suffix`] follows the longest
//! repetition, [`Prediction`] the request's predicted output.

mod history_drafter;
mod ngram_cache;
mod ngram_index;
mod ngram_lookup;
mod params;
mod prediction;
mod suffix;
mod suffix_tree;

pub use ngram_cache::{CacheKind, Caches, NgramCache, read_cache};
pub use ngram_index::Predicted;
pub use ngram_lookup::{NgramMapK, NgramMapK4v, NgramMod, NgramSimple};
pub use params::{CacheFile, LookupParams, ModParams, NgramParams, SuffixParams};
pub use prediction::Prediction;
pub use suffix::Suffix;
