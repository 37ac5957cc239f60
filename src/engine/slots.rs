//! A slot: a sequence of the KV cache, and the request that uses it now.

use super::task::Task;
use crate::session::{SeedOrigin, SelfExtend, Sequence};

pub(super) struct Slot {
    pub(super) index: usize,
    /// The tokens in the KV cache; they stay when a request ends, for the next one to reuse.
    pub(super) cache: Sequence,
    pub(super) task: Option<Task>,
    /// The seed of the last request, or of the loaded session, and from where its noise is counted.
    pub(super) seed: Option<SeedOrigin>,
    /// A session was loaded and no request has begun since.
    pub(super) loaded: bool,
    /// When a request last began or ended here, counted in admissions.
    pub(super) last_used: u64,
    /// This slot's part of the batch being evaluated.
    pub(super) in_batch: Option<InBatch>,
}

/// A slot's part of a batch.
pub(super) struct InBatch {
    /// Tokens of the context.
    pub(super) chunk: usize,
    /// Drafted tokens behind them.
    pub(super) draft: usize,
    /// Index of the first token with logits: the context's last one. `None` while a prompt goes on.
    pub(super) row: Option<usize>,
}

impl Slot {
    pub(super) fn new(index: usize, extend: Option<SelfExtend>) -> Slot {
        Slot {
            index,
            cache: Sequence::new(index, extend),
            task: None,
            seed: None,
            loaded: false,
            last_used: 0,
            in_batch: None,
        }
    }
}
