//! Speculative decoding as plain data and functions: drafters that look at the token history, verification rules, and the controller that
//! decides draft lengths. No model and no llama.cpp: drafters that run a model implement [`Drafter`] elsewhere.
//!
//! With `coupled` and `match`, the target's output depends only on its logits and the request's seed (see [`foredraft_sampling`]). The target
//! chooses each token independently, and a drafted token is accepted if it is the same. So no drafter, draft length or stopping rule can
//! change the output. With `coupled`, the draft model samples with the target's Gumbel noise, so both agree as often as their distributions
//! do. With `match`, it proposes its most probable token. `rejection` and `block` compare probabilities, and preserve the output
//! distribution; see [`verify`].
//!
//! - [`Drafter`], [`DraftRequest`], [`Draft`]: the interface of all drafters. [`Drafters`]: those of an engine.
//! - `history`: drafters that use the token history: n-grams, suffix automata, predicted outputs.
//! - `controller`: how much to draft, from measured costs and acceptance.
//! - `tests`: with a simulator, which runs the controller against recorded texts on machines given by their costs.

mod controller;
mod drafter;
mod drafters;
mod forced;
mod history;
mod settings;
#[cfg(test)]
mod tests;
pub mod verify;

pub use controller::{
    BatchSplit, Bias, Calibration, Choice, Controller, Costs, DraftPasses, DraftPrices, GrowingDraft, Length,
    MAX_MEASURED, Prices, SequencePadding, SoFar, StepSlot, StopPolicy, another_round_pays, sizes_to_measure,
};
pub use drafter::{DecodedTokens, Draft, DraftRequest, Drafter, Drawing};
pub use drafters::{
    ChosenDraft, DraftOutcome, Drafters, DraftingSlot, DraftingSlots, DraftingState, SlotDrafts, text_of,
};
pub use forced::GrammarDrafter;
pub use history::{CacheFile, CacheKind, Caches, NgramCache, Predicted, Prediction, Suffix, SuffixParams, read_cache};
pub use settings::{Adaptive, DrafterKind, HEURISTIC_MAX, MAX_BRANCHES, MAX_DRAFT, Settings, Verify};
