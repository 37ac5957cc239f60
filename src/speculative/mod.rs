//! Speculative decoding: who proposes tokens, how many, and what became of them.
//!
//! The target's text depends on its own logits and the request's seed alone (see [`crate::sampling`]), so a proposal
//! is checked by letting the target choose and comparing: no drafter, draft length or stopping rule can change the
//! text. `coupled` lets the draft choose with the target's Gumbel noise, which makes them agree as often as their
//! distributions do; `match` lets it propose its most probable token.

mod compat;
mod draft_model;
mod drafter;
mod policy;
mod settings;

pub use compat::{Compatibility, VocabSummary};
pub use draft_model::DraftModel;
pub use drafter::{Ask, Draft, Drafter};
pub use policy::{Costs, Length};
pub use settings::{Adaptive, MAX_DRAFT, Settings, Source, Verify};
