//! A slot: a sequence of the KV cache, and the request that uses it now.

use super::branches::Branches;
use super::task::Task;
use crate::llama::{SeqId, Token};
use crate::session::{self, SeedOrigin, SelfExtend, Sequence};

/// A draft follows no more tokens than these that are not evaluated yet: the one sampled last, and those of a branch that was
/// right (see [`super::branches`]).
pub(super) const MAX_PENDING: usize = 16;

pub(super) struct Slot {
    pub(super) index: usize,
    /// The tokens in the KV cache; they stay when a request ends, for the next one to reuse.
    pub(super) cache: Sequence,
    /// Where drafts with branches are evaluated.
    pub(super) branches: Branches,
    /// The LoRA scales that the cache was made with, which are those of the task.
    pub(super) lora: Vec<f32>,
    pub(super) task: Option<Task>,
    /// The seed of the last request, or of the loaded session, and from where its noise is counted.
    pub(super) seed: Option<SeedOrigin>,
    /// The tokens of the session that was loaded, as long as no request has begun since.
    pub(super) loaded: Option<Vec<Token>>,
    /// When a request last began or ended here, counted in admissions.
    pub(super) last_used: u64,
    /// Its last turn, counted in turns.
    pub(super) last_turn: u64,
    /// The last step in which it took part.
    pub(super) last_step: u64,
    /// Whether the scheduler chose it for this step.
    pub(super) is_scheduled: bool,
    /// This slot's part of the batch being evaluated.
    pub(super) in_batch: Option<InBatch>,
}

/// A slot's part of a batch.
pub(super) struct InBatch {
    /// Index of the first of its tokens.
    pub(super) first: usize,
    /// Tokens of the context.
    pub(super) chunk: usize,
    /// Drafted tokens behind them.
    pub(super) draft: usize,
    /// Filler behind those.
    pub(super) filler: usize,
    /// Index of the first token with logits: the context's last one. `None` while a prompt goes on.
    pub(super) row: Option<usize>,
}

impl Slot {
    /// `spare`: sequences for branches.
    pub(super) fn new(index: usize, extend: Option<SelfExtend>, spare: Vec<SeqId>) -> Slot {
        let cache = Sequence::new(index, extend);
        Slot {
            index,
            branches: Branches::new(cache.id(), spare),
            cache,
            task: None,
            seed: None,
            loaded: None,
            lora: Vec::new(),
            last_used: 0,
            last_turn: 0,
            last_step: 0,
            is_scheduled: true,
            in_batch: None,
        }
    }

    /// The request that it works on in this step: not one that waits for cells, or for its turn.
    pub(super) fn working(&self) -> Option<&Task> {
        self.task.as_ref().filter(|task| !task.paused && self.is_scheduled)
    }

    /// How many tokens of its request are not evaluated yet.
    pub(super) fn pending(&self) -> usize {
        self.task.as_ref().map_or(0, |task| task.tokens.len().saturating_sub(self.cache.len()))
    }

    /// How many of them it needs evaluated in this step to get on.
    pub(super) fn due(&self) -> usize {
        self.working().map_or(0, |_| self.pending().min(MAX_PENDING))
    }

    /// How many tokens at the start of `tokens` are in the cache, as evaluated with these LoRA scales.
    pub(super) fn common_prefix(&self, tokens: &[Token], lora: &[f32]) -> usize {
        if self.lora == lora { session::common_prefix(&self.cache, tokens) } else { 0 }
    }
}
