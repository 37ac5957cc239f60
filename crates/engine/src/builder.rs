//! Builds the contexts of an engine, and the slots, drafters and beams that work on them.

use std::sync::Arc;
use std::time::Duration;

use super::attention::with_best_attention;
use super::beams::Beams;
use super::draft_only::DraftOnly;
use super::embedder::{self, Embedder};
use super::load_progress::LoadMeter;
use super::measure::{AT_LOAD, IdleMeasuring, measure, warm_up};
use super::rollback::{with_less_rollback, with_rollback};
use super::scheduler::BatchScheduler;
use super::self_check::self_check;
use super::slots::SlotPool;
use super::{Config, Models};
use crate::drafters::{Assistant, BlockHead, Compatibility, CrossVocabulary, DraftModel, Head, frequent_tokens};
use crate::session::SelfExtend;
use foredraft_base::error::{Error, Result};
use foredraft_llama as llama;
use foredraft_llama::log::{self, Level};
use foredraft_llama::{Context, ContextParams, DraftKind, Interrupt, Model, Rollback, ThreadPool, TokenSubset};
use foredraft_speculation::{
    Caches, Costs, Drafter, DrafterKind, Drafters, GrammarDrafter, MAX_BRANCHES, NgramCache, Prediction, Suffix,
    sizes_to_measure,
};

/// The schedulers of an engine, and what its thread measures for them.
pub(super) struct BuiltSchedulers {
    /// The target's.
    pub(super) target: Box<BatchScheduler>,
    /// The draft model's in draft-only mode, if both models have the same vocabulary.
    pub(super) draft_only: Option<DraftOnly>,
    pub(super) measuring: IdleMeasuring,
}

/// Builds the parts of an engine. The fields are common to all its contexts.
pub(super) struct Builder<'a> {
    config: &'a Config,
    pub(super) threads: Arc<ThreadPool>,
    pub(super) interrupt: Arc<Interrupt>,
}

impl Builder<'_> {
    pub(super) fn new(config: &Config, interrupt: Arc<Interrupt>) -> Result<Builder<'_>> {
        let most = config.contexts().map(|context| context.n_threads.max(context.n_threads_batch)).max();
        let settings: Vec<_> = config.thread_settings().collect();
        let threads = Arc::new(ThreadPool::with_settings(most.unwrap_or(1), &settings, config.frame_budget)?);
        Ok(Builder { config, threads, interrupt })
    }

    /// The context for embeddings.
    pub(super) fn embedder(&self, models: &mut Models) -> Result<Embedder> {
        let params = embedder::context_params(&self.config.context, &models.target);
        let context = Context::new(&models.target, &params, &self.threads, &self.interrupt)?;
        models.placement.add_context(&context);
        Ok(Embedder::new(context))
    }

    /// The schedulers of the target and of the draft model alone; `None`: the target has no KV cache, so it cannot generate.
    ///
    /// The target's is boxed, because it is large and moves several times, on the host's stack.
    pub(super) fn schedulers(
        &self,
        models: &mut Models,
        mtp_failure: Option<Error>,
        caches: &Arc<Caches>,
        progress: &mut LoadMeter<'_>,
    ) -> Result<Option<BuiltSchedulers>> {
        let config = self.config;
        let params = self.for_slots(&config.context);
        let shared = sequences(&params, self.n_parallel(), &models.target, config.self_extend);
        let shared = with_rollback(shared, &models.target);
        let make = |params: &ContextParams| Context::for_text(&models.target, params, &self.threads, &self.interrupt);
        let best =
            |params: &ContextParams| with_best_attention(&models.target, params, &self.threads, config.warmup, make);
        let made = with_less_rollback(shared, best)?;
        let Some((mut context, attention)) = made else { return Ok(None) };
        models.attention = Some(attention);
        progress.step();
        progress.check()?;
        models.self_check = self_check(&mut context);
        progress.check()?;
        let mtp = self.mtp_context(&mut context, mtp_failure, &params);
        let head = self.head_context(&mut context, models, &params)?;
        let mut costs = Costs::default();
        if context.pads_single_tokens() {
            costs.pad();
        }
        if context.rollback() == Rollback::Never {
            costs.repeat();
        }
        let (mut measuring, mut time_left) = (IdleMeasuring::none(), AT_LOAD);
        if config.warmup {
            warm_up(&mut context);
            progress.step();
            let becomes_cheaper = models.target.pending_panel_bytes() > 0;
            if becomes_cheaper {
                costs.become_cheaper();
            }
            let mut sizes = sizes_to_measure(self.n_parallel());
            sizes.retain(|n| *n <= context.n_batch());
            let n_measured = measure(&mut context, &sizes, &mut time_left, |n, time| costs.record_target(n, time));
            if becomes_cheaper || n_measured < sizes.len() {
                let all = [&models.target].into_iter().chain(&models.draft).cloned().collect();
                measuring = IdleMeasuring::new(&sizes, n_measured, all);
            }
            progress.step();
            progress.check()?;
        }
        (models.n_ctx, models.rollback) = (context.n_ctx(), context.rollback());
        models.placement.add_context(&context);
        if config.self_extend.is_some() && !(context.can_shift() && context.cuts_anywhere()) {
            return Err(Error::invalid("grp_attn_n: this model's memory cannot move positions"));
        }
        let beams = Beams::new(&models.target, &config.context, &self.threads, &self.interrupt);
        let mut scheduler = Box::new(BatchScheduler::new(context, beams, config));
        scheduler.pool.reuses_prompts = models.self_check.reuses_prompts;
        if let Some(why) = models.self_check.without_drafts() {
            scheduler.pool.drafters.forbid(why);
        }
        let draft_only = match head {
            Some(head) => {
                self.add_head(head, &mut scheduler.pool, models, &mut costs, &mut time_left, progress)?;
                None
            }
            None => {
                let drafters = &mut scheduler.pool.drafters;
                self.add_draft_model(drafters, models, caches, &mut costs, &mut time_left, progress)?
            }
        };
        match mtp {
            Ok(context) => {
                let context = self.measured(context, &mut costs, &mut time_left, progress)?;
                models.placement.add_context(&context);
                let head = Head::new(context, self.n_parallel(), DrafterKind::Mtp, true);
                scheduler.pool.drafters.add_model(Box::new(head));
            }
            // A request for it drafts with the head.
            Err(_) if models.draft.as_ref().is_some_and(|draft| draft.draft_kind().reads_hidden()) => {}
            Err(why) => scheduler.pool.drafters.mark_unavailable(DrafterKind::Mtp, why),
        }
        costs.set_split(scheduler.pool.drafters.controller.costs.split());
        scheduler.pool.drafters.controller.costs = costs;
        add_text_drafters(&mut scheduler.pool.drafters, self.n_parallel(), caches);
        Ok(Some(BuiltSchedulers { target: scheduler, draft_only, measuring }))
    }

    /// Adds the draft model as a drafter, if there is one that fits. Returns the scheduler of the draft model alone, if both models have
    /// the same vocabulary.
    fn add_draft_model(
        &self,
        drafters: &mut Drafters,
        models: &mut Models,
        caches: &Caches,
        costs: &mut Costs,
        time_left: &mut Duration,
        progress: &mut LoadMeter<'_>,
    ) -> Result<Option<DraftOnly>> {
        let (Some(draft), Some((model, params))) = (&models.draft, &self.config.draft) else { return Ok(None) };
        let n_parallel = self.n_parallel();
        let n_ctx = params.n_ctx.or(u32::try_from(models.n_ctx).ok());
        let params = ContextParams { n_ctx, ..self.for_slots(params) };
        let alone = Config { model: model.clone(), context: params.clone(), draft: None, ..self.config.clone() };
        let params = ContextParams { drafts: true, ..sequences(&params, n_parallel, draft, self.config.self_extend) };
        let make = |params: &ContextParams| Context::new(draft, params, &self.threads, &self.interrupt).map(Some);
        let made = with_best_attention(draft, &params, &self.threads, self.config.warmup, make);
        let Some((mut context, attention)) = made.map_err(|error| error.within("model_draft"))? else {
            return Ok(None);
        };
        models.attention_draft = Some(attention);
        let frequent = frequent_tokens(&mut context, self.config.draft_vocab, caches);
        context.score_only(frequent.as_ref());
        let context = self.measured(context, costs, time_left, progress)?;
        models.placement_draft.add_context(&context);
        let target = &models.target;
        let report = Compatibility {
            n_scored: frequent.as_ref().map(TokenSubset::len),
            ..Compatibility::of((target, models.rollback), (draft, context.rollback()), context.n_ctx())
        };
        let mut draft_only = None;
        if let Some(reason) = &report.reason {
            log::write(Level::Warn, &format!("model_draft: not used: {reason}"));
            drafters.mark_unavailable(DrafterKind::Draft, reason.clone());
        } else {
            let extend = self.config.self_extend.filter(|_| context.can_shift() && context.cuts_anywhere());
            if report.is_cross_vocabulary {
                drafters.add_model(Box::new(CrossVocabulary::new(context, n_parallel, target, extend, frequent)?));
            } else {
                let n_vocab = target.vocab().n_tokens();
                let drafter = DraftModel::new(context, n_parallel, n_vocab, extend, frequent);
                drafters.add_model(Box::new(drafter));
                draft_only = Some(DraftOnly::new(draft, alone, &self.threads, &self.interrupt));
            }
        }
        models.compatibility = Some(report);
        Ok(draft_only)
    }

    /// The context of the draft model's file, if that is a head, which reads states of the target.
    fn head_context(&self, target: &mut Context, models: &Models, params: &ContextParams) -> Result<Option<Context>> {
        let Some(draft) = models.draft.as_ref().filter(|draft| draft.draft_kind().is_head()) else { return Ok(None) };
        let of_draft = self.config.draft.as_ref().map_or(params, |(_, params)| params);
        let n_ctx = u32::try_from(target.n_ctx()).ok();
        let params = ContextParams { n_ctx, swa_full: true, kv_unified: params.kv_unified, ..self.for_slots(of_draft) };
        let made = Context::head(draft, target, &params, &self.threads, &self.interrupt);
        made.map(Some).map_err(|error| {
            let source = self.config.draft.as_ref().map(|(model, _)| model.source.to_string()).unwrap_or_default();
            error.within(&format!("model_draft: {source}"))
        })
    }

    /// Adds a head as the draft model.
    fn add_head(
        &self,
        context: Context,
        pool: &mut SlotPool,
        models: &mut Models,
        costs: &mut Costs,
        time_left: &mut Duration,
        progress: &mut LoadMeter<'_>,
    ) -> Result<()> {
        let context = self.measured(context, costs, time_left, progress)?;
        models.placement_draft.add_context(&context);
        let (head, target) = (Arc::clone(context.model()), &models.target);
        models.compatibility =
            Some(Compatibility::of((target, models.rollback), (&head, context.rollback()), context.n_ctx()));
        let reads_hidden = head.draft_kind().reads_hidden() || pool.context.reads_hidden();
        let drafter: Box<dyn Drafter + Send> = match head.draft_kind() {
            kind if kind.drafts_blocks() => {
                costs.draft_blocks();
                Box::new(BlockHead::new(context, self.n_parallel(), reads_hidden)?)
            }
            DraftKind::Assistant => Box::new(Assistant::new(context, self.n_parallel())),
            _ => Box::new(Head::new(context, self.n_parallel(), DrafterKind::Draft, reads_hidden)),
        };
        pool.drafters.add_model(drafter);
        Ok(())
    }

    /// The context of the target's layers for multi-token prediction, or why there is none.
    fn mtp_context(
        &self,
        target: &mut Context,
        failure: Option<Error>,
        params: &ContextParams,
    ) -> std::result::Result<Context, String> {
        let model = Arc::clone(target.model());
        if model.n_mtp_layers() == 0 {
            return Err("the model has no layers for multi-token prediction".into());
        }
        if !self.config.mtp {
            return Err(
                "the layers for multi-token prediction are loaded only if the load's speculative.type names mtp".into(),
            );
        }
        // As for every drafter: see `admission::speculate`.
        if target.rollback() == Rollback::Never {
            return Err("the target's memory cannot be cut back after a rejected draft".into());
        }
        let made = failure.map_or(Ok(()), Err).and_then(|()| {
            target.test_hidden()?;
            let n_ctx = u32::try_from(target.n_ctx()).ok();
            let params = ContextParams { n_ctx, swa_full: true, ..params.clone() };
            Context::mtp(&model, &params, &self.threads, &self.interrupt)
        });
        made.map_err(|error| {
            log::write(Level::Warn, &format!("multi-token prediction: not used: {}", error.message()));
            format!("multi-token prediction is not possible with this model: {}", error.message())
        })
    }

    /// The context of a drafter, warmed up, and measured in the time that is left.
    fn measured(
        &self,
        mut context: Context,
        costs: &mut Costs,
        time_left: &mut Duration,
        progress: &mut LoadMeter<'_>,
    ) -> Result<Context> {
        progress.step();
        progress.check()?;
        if self.config.warmup {
            warm_up(&mut context);
            progress.step();
            // A pass of each slot: a token, or a block of them.
            let kind = context.model().draft_kind();
            let n_tokens = if kind.drafts_blocks() { context.model().block()?.size } else { 1 };
            let n_parallel = self.n_parallel();
            let mut sizes = if n_parallel > 1 { vec![n_tokens, n_parallel * n_tokens] } else { vec![n_tokens] };
            sizes.retain(|n| *n <= context.n_batch());
            measure(&mut context, &sizes, time_left, |n, time| costs.record_drafts(|_| n / n_tokens, 1, 0, time));
            progress.step();
            progress.check()?;
        }
        Ok(context)
    }

    fn n_parallel(&self) -> usize {
        self.config.n_parallel.max(1)
    }

    /// A sequence for each slot.
    fn for_slots(&self, params: &ContextParams) -> ContextParams {
        let n_seq_max = u32::try_from(self.n_parallel()).unwrap_or(u32::MAX);
        ContextParams { n_seq_max, embeddings: false, ..params.clone() }
    }
}

/// The steps of a load after the files are read, which [`LoadMeter`] is given: the n-gram caches, the contexts with their warm-ups and
/// measurements, and the rest.
pub(super) fn n_steps(config: &Config) -> usize {
    let n_contexts = 1 + usize::from(config.draft.is_some()) + usize::from(config.mtp);
    2 + n_contexts * if config.warmup { 3 } else { 1 }
}

/// The sequences of a context: one for each slot and, where they can share a buffer, some for the branches of its drafts.
pub(super) fn sequences(
    params: &ContextParams,
    n_parallel: usize,
    model: &Model,
    extend: Option<SelfExtend>,
) -> ContextParams {
    let shares = (n_parallel == 1 || params.kv_unified) && !model.has_recurrent_states() && extend.is_none();
    // llama.cpp asserts that a token of each fits into a batch, and that is no larger than the context.
    let n_batch = params.n_batch.min(params.n_ctx.filter(|n_ctx| *n_ctx > 0).unwrap_or(u32::MAX));
    let most = usize::try_from(n_batch).unwrap_or(usize::MAX).min(llama::max_sequences());
    let each = if shares { MAX_BRANCHES.min(most / n_parallel).max(1) } else { 1 };
    let n_seq_max = u32::try_from(n_parallel * each).unwrap_or(u32::MAX);
    ContextParams { n_seq_max, kv_unified: params.kv_unified || each > 1, ..params.clone() }
}

/// The drafters that need no model, in the order in which equals are preferred.
pub(super) fn add_text_drafters(drafters: &mut Drafters, n_slots: usize, caches: &Arc<Caches>) {
    drafters.add(Box::new(Prediction::new(n_slots)));
    drafters.add(Box::new(GrammarDrafter));
    drafters.add(Box::new(Suffix::new(n_slots)));
    drafters.add(Box::new(NgramCache::with(n_slots, Arc::clone(caches))));
}
