//! The tokens of a slot's KV cache sequence: prefix reuse, prompt truncation, context shifts, self-extend, checkpoints,
//! and session files. [`Sequence`] applies these to the contexts of target and draft.

mod extend;
mod file;
mod prompt_fit;
mod sequence;

pub use extend::SelfExtend;
pub use file::{SeedOrigin, Session};
pub use prompt_fit::{common_prefix, effective_n_keep, prompt_truncation, shift};
pub use sequence::{Sequence, Snapshot, branches};
