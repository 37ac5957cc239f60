//! The tokens of a slot's KV cache sequence: prefix reuse, prompt truncation, context shifts, self-extend, checkpoints,
//! and session files. [`Sequence`] applies these to the contexts of target and draft.

mod context_window;
mod extend;
mod file;
mod reuse;
mod sequence;

pub use context_window::{effective_n_keep, prompt_truncation, shift};
pub use extend::SelfExtend;
pub use file::{SeedOrigin, Session};
pub use reuse::common_prefix;
pub use sequence::{Sequence, Snapshot, branches};
