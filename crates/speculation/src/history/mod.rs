//! Drafters that use only token histories: no model, about a microsecond per token.
//!
//! Each implements [`HistoryDrafter`](history_drafter::HistoryDrafter) for one slot; [`SlotDrafters`](history_drafter::SlotDrafters) makes a
//! [`Drafter`](super::Drafter) for all slots of it. [`Suffix`] follows the longest repetition, [`NgramCache`] llama.cpp's n-gram
//! caches, [`Prediction`] the request's predicted output. llama.cpp's `ngram-simple`, `ngram-map-k`, `ngram-map-k4v` and `ngram-mod`
//! needed 1.3 to 6 times as many steps as `suffix` on repetitive texts.

mod history_drafter;
mod ngram_cache;
mod params;
mod predicted;
mod prediction;
mod suffix;
mod suffix_tree;

pub use ngram_cache::{CacheKind, Caches, NgramCache, read_cache};
pub use params::{CacheFile, SuffixParams};
pub use predicted::Predicted;
pub use prediction::Prediction;
pub use suffix::Suffix;
