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
//! - `controller`, `costs`, `calibration`, `policy`, `exploration`: how much to draft, from measured costs and acceptance.
//! - `simulator` (tests only): the controller against recorded texts on machines given by their costs.

mod batch_split;
mod calibration;
mod controller;
mod costs;
mod drafter;
mod drafters;
mod exploration;
#[cfg(test)]
mod fakes;
mod history;
mod kalman;
mod policy;
mod settings;
#[cfg(test)]
mod simulator;
pub mod verify;

pub use batch_split::{BatchSplit, SequencePadding};
pub use calibration::{Bias, Calibration, Choice};
pub use controller::{Controller, Prices, StepSlot};
pub use costs::{Costs, MAX_MEASURED, sizes_to_measure};
pub use drafter::{DecodedTokens, Draft, DraftRequest, Drafter, Drawing, HiddenStates};
pub use drafters::{ChosenDraft, DraftOutcome, Drafters, DraftingSlot, DraftingSlots, DraftingState, SlotDrafts};
pub use history::{
    CacheFile, CacheKind, Caches, LookupParams, ModParams, NgramCache, NgramMapK, NgramMapK4v, NgramMod, NgramParams,
    NgramSimple, Predicted, Prediction, Suffix, SuffixParams, read_cache,
};
pub use policy::{GrowingDraft, Length, Plan, SoFar, StopPolicy, another_round_pays};
pub use settings::{Adaptive, DrafterKind, HEURISTIC_MAX, MAX_BRANCHES, MAX_DRAFT, Settings, Verify};
