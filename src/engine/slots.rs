//! The slots: sequences of the target's KV cache, with the requests that use them now.

use super::pacing;
use super::step::plan::{SlotState, StepLimits};
use super::task::Task;
use crate::llama::{Context, Token};
use crate::session::{self, SeedOrigin, SelfExtend, Sequence};
use crate::speculative::{Drafters, RequestDrafts};

/// A sequence of the KV cache, and the request that uses it.
pub(super) struct Slot {
    pub(super) index: usize,
    /// The tokens in the KV cache; they stay when a request ends, for the next one to reuse.
    pub(super) cache: Sequence,
    /// The LoRA scales that the cache was decoded with, which are those of the task.
    pub(super) lora: Vec<f32>,
    pub(super) task: Option<Task>,
    /// The seed of the last request, or of the loaded session, and from where its noise is counted.
    pub(super) seed: Option<SeedOrigin>,
    /// The tokens of the session that was loaded, until a request begins.
    pub(super) loaded: Option<Vec<Token>>,
    /// When a request last began or ended here, counted in admissions.
    pub(super) last_used: u64,
    /// Its last turn, counted in turns.
    pub(super) last_turn: u64,
    /// The last step in which it took part.
    pub(super) last_step: u64,
}

impl Slot {
    pub(super) fn new(index: usize, extend: Option<SelfExtend>) -> Slot {
        Slot {
            index,
            cache: Sequence::new(index, extend),
            lora: Vec::new(),
            task: None,
            seed: None,
            loaded: None,
            last_used: 0,
            last_turn: 0,
            last_step: 0,
        }
    }

    /// The drafting state of its request, if drafters draft for it.
    pub(super) fn drafts_mut(&mut self) -> Option<&mut RequestDrafts> {
        self.task.as_mut()?.speculation.as_mut()?.drafts.as_mut()
    }

    /// How many tokens at the start of `tokens` are in the cache, decoded with these LoRA scales.
    pub(super) fn common_prefix(&self, tokens: &[Token], lora: &[f32]) -> usize {
        if self.lora == lora { session::common_prefix(&self.cache, tokens) } else { 0 }
    }

    fn state(&self) -> SlotState {
        let own = SlotState {
            n_cached: self.cache.len(),
            tokens_until_group: self.cache.tokens_until_group(),
            last_used: self.last_used,
            last_turn: self.last_turn,
            last_step: self.last_step,
            ..SlotState::default()
        };
        let Some(task) = &self.task else { return own };
        SlotState {
            has_request: true,
            is_paused: task.paused,
            is_generating: task.completion.has_begun(),
            n_tokens: task.tokens.len(),
            n_remaining: task.completion.remaining(),
            n_max_draft: task.speculation.as_ref().map_or(0, |speculation| speculation.n_max),
            ..own
        }
    }
}

/// The target's context with its slots, and the drafters that serve them.
pub(super) struct SlotPool {
    pub(super) context: Context,
    pub(super) slots: Vec<Slot>,
    pub(super) drafters: Drafters,
    /// Cells that all slots share; `None`: each slot has its own.
    pub(super) shared_cells: Option<usize>,
    /// Whether a full context drops its middle and goes on.
    pub(super) ctx_shift: bool,
    /// Counts admissions: the order of requests, and of the slots' last use.
    pub(super) tick: u64,
}

impl SlotPool {
    /// The slots with a request.
    pub(super) fn running(&self) -> impl Iterator<Item = (&Slot, &Task)> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref().map(|task| (slot, task)))
    }

    pub(super) fn is_free(&self, index: usize) -> bool {
        self.slots.get(index).is_none_or(|slot| slot.task.is_none())
    }

    /// Writes down what is known of each slot.
    pub(super) fn states(&self, states: &mut Vec<SlotState>) {
        states.clear();
        states.extend(self.slots.iter().map(|slot| {
            let adapters = self.slots.iter().position(|other| other.lora == slot.lora).unwrap_or(slot.index);
            SlotState { adapters, ..slot.state() }
        }));
    }

    /// What limits a step.
    pub(super) fn limits(&self) -> StepLimits {
        let context = &self.context;
        StepLimits {
            n_ctx: context.n_ctx(),
            n_batch: context.n_batch(),
            n_ubatch: context.n_ubatch(),
            shared_cells: self.shared_cells,
            max_invariant_tokens: context.max_invariant_tokens(),
            n_budgeted_tokens: pacing::most_tokens(context, &self.drafters.controller.costs),
            is_batch_invariant: context.is_batch_invariant(),
            can_roll_back: context.model().can_roll_back(),
            needs_checkpoints: Sequence::needs_checkpoints(context),
            pads_single_tokens: context.pads_single_tokens(),
        }
    }

    /// Empties a slot's cache.
    pub(super) fn clear_cache(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.cache.clear(&mut self.context);
        }
    }

    /// Counts an admission.
    pub(super) fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }
}
