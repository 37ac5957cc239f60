//! Tests of the whole engine on a fake backend (`llama::fake`), step by step and without threads.
//!
//! - `random_scenarios`: every output equals that of a naive loop over the fake model (`reference`), in random scenarios
//!   (`scenario`) of requests, cancels, drafts, context shifts, reused and copied caches, sessions, and failing decodes.
//! - `distribution`: every verification rule preserves the output distribution through the whole engine.
//! - `batches`: one decode of the target verifies the drafts of all slots, and one decode of the draft drafts for all.
//! - `allocations`: a step does not allocate before its decode.
//! - `conversations`: conversations change slots and go to memory, and their outputs stay the same.
//! - `decisions`: choices are as probable as each of them alone.
//! - `delivery`: the scheduler alone delivers the changes of steps, after the step.
//! - `instructions`: steps whose instructions a script counts.
//! - `logits`: the host's logits callback sees each position once, and decides as without speculation.
//! - `measuring`: an idle engine measures what decodes cost, until its slots are used.
//! - `prefixes`: requests whose prompts begin alike read the common beginning once.
//! - `preparations`: requests that may come are prepared, and their outputs stay the same.
//! - `priorities`: requests of higher priorities preempt others, whose outputs stay the same.
//! - `sessions`: a session can be loaded while cells wait to be moved or copied.
//! - `draft_vocabulary`: drafts have only tokens that the draft model scores.
//! - `scheduling`: no request starves, whatever others do.

mod allocations;
mod batches;
mod conversations;
mod decisions;
mod delivery;
mod distribution;
mod draft_vocabulary;
mod instructions;
mod logits;
mod measuring;
mod prefixes;
mod preparations;
mod priorities;
mod prompt_probs;
mod random_scenarios;
mod reference;
mod scenario;
mod scheduling;
mod sessions;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::beams::Beams;
use super::request::Submission;
use super::request_handle::Expected;
use super::scheduler::BatchScheduler;
use super::step::input::StepLimits;
use super::{Config, Event, Outcome, Phase, Request, RequestHandle, RequestOptions, builder};
use crate::drafters::DraftModel;
use foredraft_llama::fake::{self, FakeBackend, FakeModel, Fault};
use foredraft_llama::{
    Context, ContextParams, FlashAttn, Interrupt, Model, ModelParams, Rollback, ThreadPool, Token, TokenSubset,
};
use foredraft_sampling as sampling;

/// The limits of a step in tests of its parts, which need no context.
pub(super) const STEP_LIMITS: StepLimits = StepLimits {
    n_ctx: 100,
    n_batch: 64,
    n_ubatch: 32,
    shared_cells: None,
    max_invariant_tokens: 62,
    n_budgeted_tokens: usize::MAX,
    is_batch_invariant: true,
    branches_are_invariant: false,
    rollback: Rollback::Anywhere,
    has_pending_moves: false,
    needs_checkpoints: false,
    pads_single_tokens: false,
    decodes_slots_together: true,
};

/// The model whose vocabulary the fake models use.
static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-draft.gguf");
    Arc::new(Model::load(&ModelParams::new(path), |_| true).unwrap())
});
static THREADS: LazyLock<Arc<ThreadPool>> = LazyLock::new(|| Arc::new(ThreadPool::new(1).unwrap()));

/// The configuration of an engine under test.
#[derive(Debug, Clone)]
struct Setup {
    n_parallel: usize,
    kv_unified: bool,
    n_ctx: usize,
    n_ubatch: usize,
    /// The most tokens of a sequence in a batch whose logits do not depend on their number.
    max_invariant_tokens: usize,
    /// Whether single tokens are padded, which needs unlimited rollback.
    padding: bool,
    /// How far the target's memory can be rolled back.
    rollback: Rollback,
    ctx_shift: bool,
    target: FakeModel,
    /// The target's errors, by the number of the decode.
    target_faults: BTreeMap<usize, Fault>,
    draft: Option<FakeModel>,
    draft_faults: BTreeMap<usize, Fault>,
    /// The time to draft a token, in percent of a target decode.
    draft_cost: u32,
    /// The size of the draft's vocabulary, if smaller than the target's.
    draft_vocab: Option<usize>,
    /// The tokens that the draft scores, beside those of the context. `None`: all.
    draft_scores: Option<usize>,
    /// The most bytes of conversations in memory.
    cache_ram: usize,
    /// The folder of those that memory does not hold.
    cache_dir: Option<std::path::PathBuf>,
    /// The most bytes of its files.
    cache_dir_limit: Option<u64>,
}

impl Setup {
    /// A configuration without a unified cache, context shifts, a draft model and faults.
    fn plain(target: FakeModel, n_parallel: usize, n_ctx: usize, n_ubatch: usize) -> Setup {
        Setup {
            n_parallel,
            kv_unified: false,
            n_ctx,
            n_ubatch,
            max_invariant_tokens: 62,
            padding: true,
            rollback: Rollback::Anywhere,
            ctx_shift: false,
            target,
            target_faults: BTreeMap::new(),
            draft: None,
            draft_faults: BTreeMap::new(),
            draft_cost: 0,
            draft_vocab: None,
            draft_scores: None,
            cache_ram: 1 << 20,
            cache_dir: None,
            cache_dir_limit: None,
        }
    }

    fn params(&self) -> ContextParams {
        ContextParams {
            // The fake backend has fewer cells.
            n_ctx: Some(256),
            n_batch: 64,
            n_ubatch: 32,
            kv_unified: self.kv_unified,
            flash_attn: if self.padding { FlashAttn::Off } else { FlashAttn::On },
            n_threads: 1,
            n_threads_batch: 1,
            n_seq_max: u32::try_from(self.n_parallel).unwrap(),
            ..ContextParams::default()
        }
    }

    /// A context on a fake backend with this model, whose decodes take `percent` of a target's.
    fn fake_context(
        &self,
        model: FakeModel,
        rollback: Rollback,
        percent: u32,
        faults: &BTreeMap<usize, Fault>,
        interrupt: &Arc<Interrupt>,
    ) -> Context {
        let params = match rollback {
            Rollback::Anywhere => builder::sequences(&self.params(), self.n_parallel, &MODEL, None),
            _ => self.params(),
        };
        let mut context = Context::new(&MODEL, &params, &THREADS, interrupt).unwrap();
        let cost = Duration::from_micros(100) * percent;
        let backend = FakeBackend::new(model, self.n_ctx, self.n_ubatch, cost, faults.clone());
        context.set_fake(backend.with_rollback(rollback));
        context
    }
}

/// An engine under test.
struct TestEngine {
    scheduler: BatchScheduler,
    interrupt: Arc<Interrupt>,
    n_requests: u64,
    /// The requests that have an event since the last step.
    changed: Vec<u64>,
}

impl TestEngine {
    fn new(setup: &Setup) -> TestEngine {
        let interrupt = Arc::new(Interrupt::default());
        let context = setup.params();
        let config = Config {
            model: ModelParams::new(""),
            context: context.clone(),
            draft: None,
            draft_vocab: None,
            mtp: false,
            lookup_static: None,
            lookup_dynamic: None,
            fit: None,
            n_parallel: setup.n_parallel,
            ctx_shift: setup.ctx_shift,
            self_extend: None,
            embedding: false,
            max_queue: usize::MAX,
            cache_ram: setup.cache_ram,
            cache_dir: setup.cache_dir.clone(),
            cache_dir_limit: setup.cache_dir_limit,
            warmup: false,
            numa: None,
            frame_budget: None,
            rpc: Vec::new(),
            rpc_timeout: None,
        };
        let beams = Beams::new(&MODEL, &context, &THREADS, &interrupt);
        let mut target = setup.fake_context(setup.target, setup.rollback, 100, &setup.target_faults, &interrupt);
        target.set_fake_invariant_tokens(setup.max_invariant_tokens);
        let mut scheduler = BatchScheduler::new(target, beams, &config);
        if let Some(model) = setup.draft {
            let context =
                setup.fake_context(model, Rollback::Anywhere, setup.draft_cost, &setup.draft_faults, &interrupt);
            let n_vocab = setup.draft_vocab.unwrap_or(MODEL.vocab().n_tokens());
            let frequent = setup.draft_scores.map(|n| TokenSubset::first(n, MODEL.vocab().n_tokens()));
            let drafter = DraftModel::new(context, setup.n_parallel, n_vocab, None, frequent);
            scheduler.pool.drafters.add_model(Box::new(drafter));
        }
        builder::add_text_drafters(&mut scheduler.pool.drafters, setup.n_parallel, &Arc::default());
        scheduler.pool.drafters.clock = fake::clock;
        TestEngine { scheduler, interrupt, n_requests: 0, changed: Vec::new() }
    }

    /// Queues a request of several completions.
    fn submit(&mut self, requests: Vec<Request>) -> Arc<RequestHandle> {
        self.n_requests += 1;
        let expect = |request: &Request| Expected::new(request.prompt.len(), request.speculative.is_some());
        let handle = RequestHandle::new(self.n_requests, requests.iter().map(expect).collect(), Arc::default());
        for (request, sink) in requests.into_iter().zip(handle.sinks()) {
            let due = request.options.deadline.map(|deadline| Instant::now() + deadline);
            handle.set_due(due);
            self.scheduler.queue.push_back(Submission::new(request, crate::PromptState::Known, sink, None));
        }
        handle
    }

    fn advance(&mut self) {
        // So that what happens in a step does not depend on the disk.
        if let Some(disk) = &mut self.scheduler.pool.conversations.disk {
            disk.wait();
        }
        self.advance_beside_disk();
    }

    /// Runs a step, whatever the disk does.
    fn advance_beside_disk(&mut self) {
        self.scheduler.serve_conversations();
        self.scheduler.prepare();
        self.scheduler.step(&self.interrupt);
        self.changed.clear();
        self.scheduler.deliver(&mut self.changed);
    }

    /// Runs a step, after which each slot's bookkeeping must match the cells of the backend.
    fn step(&mut self) {
        self.advance();
        let (scheduler, backend) = (&self.scheduler, self.scheduler.pool.context.fake());
        let n_slots = scheduler.pool.slots.len();
        for (id, slot) in (0..).zip(&scheduler.pool.slots) {
            assert_eq!(backend.tokens(id), slot.cache.to_vec(), "slot {id}: the cells and the slot's bookkeeping");
            if let Some(task) = &slot.task {
                assert!(task.tokens.starts_with(&slot.cache), "slot {id} must hold a prefix of its context");
            }
        }
        let n_branches = scheduler.pool.context.n_shared().saturating_sub(n_slots);
        for id in (0..).skip(n_slots).take(n_branches) {
            assert!(backend.tokens(id).is_empty(), "a branch was left behind in sequence {id}");
        }
    }

    /// The number of the target's remaining faults that would end requests.
    fn failures_left(&self) -> usize {
        let faults = self.scheduler.pool.context.fake().faults();
        faults.filter(|fault| !matches!(fault, Fault::Aborted(_))).count()
    }
}

/// The tokens of a request that has ended, and its outcome.
pub(super) fn output(handle: &RequestHandle) -> (Vec<Token>, Outcome) {
    assert_eq!(handle.phase(), Phase::Finished);
    let mut tokens = Vec::new();
    for (_, event) in handle.take(Duration::ZERO).0 {
        match event {
            Event::Update(update) => tokens.extend(update.tokens.iter().map(|token| token.token)),
            Event::Finished(outcome) => {
                tokens.extend(outcome.tokens.iter().map(|token| token.token));
                return (tokens, *outcome);
            }
            Event::Progress(_) | Event::Restarted { .. } => {}
        }
    }
    unreachable!("each request ends with its outcome");
}

/// A request to continue `prompt`, with default options.
pub(super) fn request(prompt: Vec<Token>, n_predict: usize, sampling: sampling::SamplingSettings) -> Request {
    Request {
        prompt: prompt.into(),
        media: Arc::default(),
        prefix: Arc::default(),
        identity: 0,
        lora: Vec::new(),
        sampling,
        logits_editor: None,
        constraint: None,
        questions: None,
        speculative: None,
        draft_only: false,
        compare: false,
        options: RequestOptions {
            cuts_begun_stop: false,
            special: false,
            n_predict: Some(n_predict),
            ends_when_full: false,
            n_keep: Some(0),
            stop: Vec::new(),
            timeout: None,
            priority: 0,
            deadline: None,
            elapsed: Duration::ZERO,
            t_max_predict: None,
            n_beams: 1,
            slot: None,
            conversation: None,
            cache_prompt: true,
            n_cache_reuse: 0,
            session_load: None,
            session_save: None,
            // Not continued from a session.
            seed_position: Some(0),
            post_sampling_probs: false,
            progress: false,
            preserved_tokens: Arc::default(),
            prompt_probs: None,
        },
    }
}

/// The sequences reserved for branches must not make a small batch or context fail.
#[test]
fn small_contexts_can_be_created() {
    for (n_parallel, n_ctx, n_batch) in [(1, 4, 64), (1, 64, 4), (3, 16, 64), (3, 64, 7), (1, 0, 8)] {
        let params =
            ContextParams { n_ctx: Some(n_ctx), n_batch, kv_unified: n_parallel > 1, ..ContextParams::default() };
        let params = builder::sequences(&params, n_parallel, &MODEL, None);
        let made = Context::new(&MODEL, &params, &THREADS, &Arc::default());
        assert!(made.is_ok(), "{n_parallel} {n_ctx} {n_batch}: {made:?}");
    }
}
