//! The slots: sequences of the target's KV cache, with the requests that use them now.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::begun::{BegunAnswer, BegunAnswers};
use super::completion::Completion;
use super::conversation_store::ConversationStore;
use super::decision::ChoiceDecision;
use super::edited_rows::EditedRows;
use super::event::{
    Outcome, PromptProbs, PromptProgress, PromptStats, Restored, SpeculationStats, Stop, Timings, Update,
};
use super::media::{media_of, next_medium};
use super::pacing;
use super::priority::Rank;
use super::request::RequestOptions;
use super::request_handle::{CompletionSink, Phase};
use super::step::input::{SlotState, StepLimits};
use crate::session::{ConversationRecord, SeedOrigin, SelfExtend, Sequence};
use foredraft_base::error::Result;
use foredraft_llama::{Context, EncodedMedia, MediaCache, Token};
use foredraft_sampling::Sampler;
use foredraft_speculation::verify::Residual;
use foredraft_speculation::{Adaptive, DrafterKind, Drafters, DraftingState, Settings, Verify, text_of};

/// A sequence of the KV cache, and the request that uses it.
pub(super) struct Slot {
    pub(super) index: usize,
    /// The tokens in the KV cache; they stay when a request ends, for the next one to reuse.
    pub(super) cache: Sequence,
    /// The LoRA scales that the cache was decoded with, which are those of the task.
    pub(super) lora: Vec<f32>,
    pub(super) task: Option<Task>,
    /// The conversation whose state the cache has.
    pub(super) conversation: Option<ConversationRecord>,
    /// The seed of the last request, or of the loaded session, and its RNG counter.
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
            conversation: None,
            seed: None,
            loaded: None,
            last_used: 0,
            last_turn: 0,
            last_step: 0,
        }
    }

    /// How many tokens of `prompt` a request with these LoRA scales finds in the cache. `min_len`: see [`RequestOptions::n_cache_reuse`].
    pub(super) fn reusable(&self, context: &Context, prompt: &[Token], lora: &[f32], min_len: usize) -> usize {
        if self.lora == lora { self.cache.reusable(context, prompt, min_len) } else { 0 }
    }

    /// Whether the cache has the state of the conversation `name`.
    pub(super) fn has_conversation(&self, name: &str) -> bool {
        self.conversation.as_ref().is_some_and(|conversation| conversation.name == name)
    }

    fn state(&self, now: Instant) -> SlotState {
        let own = SlotState {
            n_cached: self.cache.len(),
            tokens_until_group: self.cache.tokens_until_group(),
            last_used: self.last_used,
            last_turn: self.last_turn,
            last_step: self.last_step,
            ..SlotState::default()
        };
        let Some(task) = &self.task else { return own };
        let (of_medium, until_medium) = task.next_medium(self.cache.len());
        SlotState {
            has_request: true,
            is_preempted: task.is_preempted,
            is_suspect: task.is_suspect,
            is_preparation: task.options.is_preparation(),
            level: task.rank.level(now),
            may_be_preempted: task.may_be_preempted(),
            is_generating: task.completion.has_begun(),
            scores_prompt: task.prompt_probs.is_some() && !task.completion.has_begun(),
            n_tokens: task.tokens.len(),
            n_rows: of_medium.map_or(0, |(n, _)| n),
            n_whole: of_medium.map_or(0, |(n, is_whole)| if is_whole { n } else { 0 }),
            tokens_until_group: own.tokens_until_group.min(until_medium),
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
    /// The conversations that no slot holds.
    pub(super) conversations: ConversationStore,
    /// The answers that preparations have begun.
    pub(super) begun: BegunAnswers,
    /// Cells that all slots share; `None`: each slot has its own.
    pub(super) shared_cells: Option<usize>,
    /// Those of them that are left free, because a decode has found too few cells: until one succeeds.
    pub(super) n_withheld: usize,
    /// Whether a full context drops its middle and goes on.
    pub(super) ctx_shift: bool,
    /// Whether a prompt can begin with what a slot has in its cache.
    pub(super) reuses_prompts: bool,
    /// See [`Model::decodes_sequences_together`](foredraft_llama::Model::decodes_sequences_together).
    pub(super) decodes_slots_together: bool,
    /// Counts admissions: the order of requests, and of the slots' last use.
    pub(super) n_admissions: u64,
    /// The numbers of pictures and sounds in token lists. Empty: the engine takes none.
    pub(super) media: Arc<OnceLock<Arc<MediaCache>>>,
}

impl SlotPool {
    /// The slots with a request.
    pub(super) fn running(&self) -> impl Iterator<Item = (&Slot, &Task)> {
        self.slots.iter().filter_map(|slot| slot.task.as_ref().map(|task| (slot, task)))
    }

    pub(super) fn is_free(&self, index: usize) -> bool {
        self.slots.get(index).is_none_or(|slot| slot.task.is_none())
    }

    /// Writes the state of each slot to `states`.
    pub(super) fn states(&self, states: &mut Vec<SlotState>) {
        let now = Instant::now();
        states.clear();
        states.extend(self.slots.iter().map(|slot| {
            let adapters = self.slots.iter().position(|other| other.lora == slot.lora).unwrap_or(slot.index);
            SlotState { adapters, ..slot.state(now) }
        }));
    }

    /// Returns the limits of a step.
    pub(super) fn limits(&self) -> StepLimits {
        let context = &self.context;
        StepLimits {
            n_ctx: context.n_ctx(),
            n_batch: context.n_batch(),
            n_ubatch: context.n_ubatch(),
            shared_cells: self.shared_cells.map(|cells| cells.saturating_sub(self.n_withheld)),
            max_invariant_tokens: context.max_invariant_tokens(),
            n_budgeted_tokens: pacing::most_tokens(context, &self.drafters.controller.costs),
            is_batch_invariant: context.is_batch_invariant(),
            branches_are_invariant: context.sums_by_position(),
            rollback: context.rollback(),
            has_pending_moves: context.has_pending_moves(),
            needs_checkpoints: Sequence::needs_checkpoints(context),
            pads_single_tokens: context.pads_single_tokens(),
            decodes_slots_together: self.decodes_slots_together,
        }
    }

    /// Empties a slot's cache.
    pub(super) fn clear_cache(&mut self, index: usize) {
        if let Some(slot) = self.slots.get_mut(index) {
            slot.cache.clear(&mut self.context);
        }
    }

    /// Overwrites all cells, which may contain NaN, and empties all caches. Running requests are decoded again.
    pub(super) fn wipe(&mut self) {
        self.context.reset();
        (0..self.slots.len()).for_each(|index| self.clear_cache(index));
    }

    /// Makes the context anew after a decode that has left it unusable. Returns whether that was necessary; all caches are then empty.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn renew(&mut self) -> Result<bool> {
        let has_heads = self.context.feeds_head() || self.drafters.has(DrafterKind::Mtp);
        let is_renewed = self.context.renew()?;
        if is_renewed {
            self.wipe();
        }
        if is_renewed && has_heads {
            self.drafters.forbid("a decode failed, and the draft head read the context that failed".to_owned());
            self.slots.iter_mut().filter_map(|slot| slot.task.as_mut()).for_each(|task| task.speculation = None);
        }
        Ok(is_renewed)
    }

    /// Counts an admission.
    pub(super) fn count_admission(&mut self) -> u64 {
        self.n_admissions += 1;
        self.n_admissions
    }
}

/// The most tokens dropped by shifts that are kept for drafters that learn from outputs; when there are more, the older half is forgotten.
const MAX_DROPPED: usize = 1 << 20;

/// A request that runs in a slot.
pub(super) struct Task {
    pub(super) sink: CompletionSink,
    /// The whole context: prompt and generated tokens. Those beyond the slot's cache are to be decoded.
    pub(super) tokens: Vec<Token>,
    /// The pictures and sounds whose rows are in it, as negative numbers. Such a context never shifts.
    pub(super) media: Arc<[Arc<EncodedMedia>]>,
    pub(super) sampler: Sampler,
    /// The rows that the host's logits callback has changed, if the request has one.
    pub(super) edited_rows: Option<EditedRows>,
    pub(super) completion: Completion,
    /// The request's options, except for `stop`, which the completion has.
    pub(super) options: RequestOptions,
    /// Tokens that a context shift keeps.
    pub(super) n_keep: usize,
    pub(super) deadline: Option<Instant>,
    /// See [`Request::identity`](super::Request::identity).
    pub(super) identity: u64,
    pub(super) rank: Rank,
    /// How often it has made way for another request in its slot.
    pub(super) n_preempted: usize,
    /// Tokens of the answer that a preparation had begun.
    pub(super) n_begun: usize,
    pub(super) speculation: Option<RequestSpeculation>,
    /// The decision that is made instead of a completion.
    pub(super) decision: Option<ChoiceDecision>,
    pub(super) prompt: PromptStats,
    /// See [`RequestOptions::prompt_probs`].
    pub(super) prompt_probs: Option<PromptProbs>,
    pub(super) session_load: Option<Restored>,
    pub(super) truncated: bool,
    /// Whether logits were not finite, perhaps because of its cells, so that it is decoded again alone.
    pub(super) is_suspect: bool,
    /// Waits for cells in the KV cache: older requests got its own.
    pub(super) is_preempted: bool,
    /// Where in `tokens` the generated ones begin, as far as they are still in the context.
    pub(super) output: usize,
    pub(super) dropped: DroppedTokens,
}

/// The tokens of a task that shifts dropped.
#[derive(Default)]
pub(super) struct DroppedTokens {
    /// The last of them, in their order.
    tokens: Vec<Token>,
    /// Their number in all.
    n: usize,
    /// The index in the task's tokens where they were.
    at: usize,
}

/// A request's speculation: rule, drafting state, statistics.
pub(super) struct RequestSpeculation {
    /// Whether the request asks for speculation. Otherwise there are only free draft tokens (see [`Drafters::offer_free_tokens`]), and no
    /// statistics are reported.
    ///
    /// [`Drafters::offer_free_tokens`]: foredraft_speculation::Drafters::offer_free_tokens
    pub(super) is_requested: bool,
    pub(super) rule: Verify,
    adaptive: Adaptive,
    /// Most tokens of a draft.
    pub(super) n_max: usize,
    pub(super) drafting: DraftingState,
    pub(super) stats: SpeculationStats,
    /// The buffers of a stochastic rule.
    pub(super) scratch: Option<StochasticScratch>,
}

/// See [`RequestSpeculation::scratch`].
pub(super) struct StochasticScratch {
    /// The request's sampler, in the state that it would have after drafted tokens.
    pub(super) ahead: Sampler,
    pub(super) residual: Residual,
    /// The weight of each drafted token in its row in the last step.
    pub(super) listed: Vec<f32>,
}

impl Task {
    /// See [`media_of`].
    pub(super) fn media_of(&self, token: Token) -> Option<&EncodedMedia> {
        media_of(&self.media, token)
    }

    /// The picture or sound that comes next after `known` tokens: see [`next_medium`].
    fn next_medium(&self, known: usize) -> (Option<(usize, bool)>, usize) {
        let rest = self.tokens.get(known..).filter(|_| !self.media.is_empty());
        rest.map_or((None, usize::MAX), |rest| next_medium(&self.media, rest))
    }

    /// The generated tokens that are still in the context.
    pub(super) fn output(&self) -> &[Token] {
        self.tokens.get(self.output..).unwrap_or(&[])
    }

    /// The text of the context as if no shift had dropped tokens (of very long ones the end), and how many tokens of it were generated.
    pub(super) fn whole_context(&self) -> (Cow<'_, [Token]>, usize) {
        if self.dropped.tokens.is_empty() {
            let text = if self.media.is_empty() { Cow::from(&self.tokens) } else { text_of(&self.tokens).collect() };
            return (text, self.output().len());
        }
        let (kept, rest) = self.tokens.split_at(self.dropped.at.min(self.tokens.len()));
        let kept = if self.dropped.n > self.dropped.tokens.len() { &[] } else { kept };
        let whole = [kept, &self.dropped.tokens, rest].concat();
        let generated = self.completion.n_predicted().min(whole.len());
        (Cow::Owned(whole), generated)
    }

    /// Removes the positions by which the context has shifted. They always begin at the same one.
    pub(super) fn shift(&mut self, gone: Range<usize>) {
        let before_output = gone.start.min(self.output)..gone.end.min(self.output);
        self.output -= before_output.len();
        self.dropped.at = gone.start;
        self.dropped.n += gone.len();
        self.dropped.tokens.extend(self.tokens.drain(gone));
        if self.dropped.tokens.len() > MAX_DROPPED {
            self.dropped.tokens.drain(..MAX_DROPPED / 2);
        }
        self.truncated = true;
    }

    /// Whether another request may take its slot: not if something is to be done there at its end, or it is looked at for a fault.
    fn may_be_preempted(&self) -> bool {
        !self.is_suspect && self.completion.compare.is_none() && self.options.session_save.is_none()
    }

    /// Whether its cells may differ from those of its tokens in a decode: they were moved, or come from a file.
    pub(super) fn has_irreplaceable_cells(&self) -> bool {
        self.dropped.n > 0 || self.session_load.is_some() || self.options.n_cache_reuse > 0
    }

    /// The answer that it has begun for another request; `None`: it is no preparation.
    pub(super) fn begun_answer(&self) -> Option<BegunAnswer> {
        let place = self.options.place().filter(|_| self.options.is_preparation())?;
        Some(BegunAnswer { place, identity: self.identity, tokens: self.output().to_vec() })
    }

    /// The phase of its completion.
    pub(super) fn phase(&self) -> Phase {
        let generates = self.completion.has_begun() || self.completion.is_repeated();
        if generates { Phase::Generating } else { Phase::Prompt }
    }

    /// The drafting state, if drafters draft for the request.
    pub(super) fn drafting(&self) -> Option<&DraftingState> {
        self.speculation.as_ref().map(|speculation| &speculation.drafting)
    }

    /// The progress when `processed` tokens of the prompt are in the cache, if requested.
    pub(super) fn progress(&self, processed: usize) -> Option<PromptProgress> {
        self.options.progress.then(|| PromptProgress {
            total: self.prompt.n_prompt,
            cached: self.prompt.n_cached,
            processed,
            time: self.completion.elapsed(),
        })
    }

    /// Takes the text that may be sent, with its tokens; `None`: there is none.
    pub(super) fn take_update(&mut self) -> Option<Update> {
        if self.completion.is_repeated() {
            return None;
        }
        let (text, tokens) = self.completion.take()?;
        Some(Update { text, tokens, timings: self.timings() })
    }

    /// The outcome of the request, which ends in `slot` with `n_cached` tokens in its cache. `truncated`: the context is full.
    pub(super) fn finish(
        mut self,
        stop: Stop,
        slot: usize,
        n_cached: usize,
        truncated: bool,
    ) -> (CompletionSink, Outcome) {
        let timings = self.timings();
        let (text, tokens, text_end) = self.completion.take_rest();
        let outcome = Outcome {
            stop,
            text,
            tokens,
            text_end,
            slot: Some(slot),
            prompt: self.prompt,
            prompt_probs: self.prompt_probs,
            n_predicted: self.completion.n_predicted(),
            n_cached,
            truncated: self.truncated || truncated,
            timings,
            speculation: self
                .speculation
                .take()
                .filter(|speculation| speculation.is_requested)
                .map(RequestSpeculation::finish),
            seed_position: self.completion.seed_position,
            decisions: self.decision.map(ChoiceDecision::into_scores).unwrap_or_default(),
            session_load: self.session_load,
            session_save: None,
        };
        (self.sink, outcome)
    }

    fn timings(&self) -> Timings {
        let (prompt, predicted) = self.completion.times();
        let requested = self.speculation.as_ref().filter(|speculation| speculation.is_requested);
        Timings {
            prompt_n: self.prompt.n_prompt - self.prompt.n_cached.min(self.prompt.n_prompt),
            prompt,
            predicted_n: self.completion.n_predicted(),
            predicted,
            cache_n: self.prompt.n_cached,
            n_preempted: self.n_preempted,
            n_begun: self.n_begun,
            deadline_missed: self.sink.deadline_missed(),
            draft: requested.map(|speculation| (speculation.stats.n_drafted, speculation.stats.n_accepted)),
        }
    }
}

impl RequestSpeculation {
    pub(super) fn new(
        settings: &Settings,
        is_requested: bool,
        sampler: &Sampler,
        drafting: DraftingState,
        disabled: Option<String>,
    ) -> RequestSpeculation {
        let scratch = settings.verify.draws().then(|| StochasticScratch {
            ahead: sampler.for_draft(false),
            residual: Residual::default(),
            listed: Vec::new(),
        });
        RequestSpeculation {
            is_requested,
            rule: settings.verify,
            adaptive: settings.adaptive,
            n_max: settings.n_max,
            drafting,
            stats: SpeculationStats { disabled, ..SpeculationStats::default() },
            scratch,
        }
    }

    /// The statistics when the request has ended. If nothing was drafted because it would not have paid, they say so.
    fn finish(self) -> SpeculationStats {
        let RequestSpeculation { mut stats, adaptive, drafting, .. } = self;
        stats.n_max_final = drafting.length();
        // Nothing is drafted in the first step, which is the prompt's, nor in the last one, whose token ends the completion.
        let could_draft = adaptive == Adaptive::Auto && stats.n_steps > 2;
        if could_draft && stats.n_drafted == 0 && stats.disabled.is_none() {
            stats.disabled = Some("it did not pay: no draft was found that promised to save time".to_owned());
        }
        stats
    }
}
