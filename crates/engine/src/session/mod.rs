//! The tokens of a slot's KV cache sequence: prefix reuse, prompt truncation, context shifts, self-extend, checkpoints,
//! and session files. [`Sequence`] applies these to the contexts of target and draft.

mod extend;
mod file;
mod sequence;

pub use extend::SelfExtend;
pub use file::{ConversationRecord, SeedOrigin, Session};
pub use sequence::{MAX_CHECKPOINTS, Sequence, branches};
