//! The whole engine with a script in llama.cpp's place (`llama::fake`), step by step and without threads.
//!
//! - `schedules`: what a request says is what the script alone says (`reference`), whatever else happens: other
//!   requests, cancels, drafts, shifts, reused and copied caches, sessions, evaluations that fail.
//! - `laws`: the rules that keep the distribution alone do so through the whole engine.
//! - `batches`: one evaluation checks the drafts of all slots, and each drafts for all of them.
//! - `memory`: a step, up to its evaluation, allocates nothing.
//! - `sessions`: one is put in whatever waits to be moved or copied.
//! - `turns`: whoever runs or waits gets on, whatever others do.

mod batches;
mod laws;
mod memory;
mod plans;
mod reference;
mod schedules;
mod scheduling;
mod sessions;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::beams::Beams;
use super::command::Submission;
use super::request_handle::Expected;
use super::scheduler::BatchScheduler;
use super::{Config, Options, Request, RequestHandle, builder};
use crate::llama::fake::{self, FakeBackend, FakeModel, Fault};
use crate::llama::{Context, ContextParams, FlashAttn, Interrupt, Model, ModelParams, ThreadPool, Token};
use crate::sampling;
use crate::speculative::DraftModel;

/// The model whose vocabulary the scripts speak.
static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/stories-draft.gguf");
    Arc::new(Model::load(&ModelParams::new(path), |_| true).unwrap())
});
static THREADS: LazyLock<Arc<ThreadPool>> = LazyLock::new(|| Arc::new(ThreadPool::new(1).unwrap()));

/// An engine to be tested.
#[derive(Debug, Clone)]
struct Setup {
    n_parallel: usize,
    kv_unified: bool,
    n_ctx: usize,
    n_ubatch: usize,
    /// Most tokens of a sequence that are evaluated as if they were fewer.
    max_invariant_tokens: usize,
    /// Whether no token is evaluated alone.
    padding: bool,
    ctx_shift: bool,
    target: FakeModel,
    /// What goes wrong, by the number of the evaluation.
    target_faults: BTreeMap<usize, Fault>,
    draft: Option<FakeModel>,
    draft_faults: BTreeMap<usize, Fault>,
    /// What a drafted token costs, in percent of a target's evaluation.
    draft_cost: u32,
    /// How many tokens the draft knows, where that is not all.
    draft_vocab: Option<usize>,
}

impl Setup {
    /// Without shared cells, shifts, a draft model and faults.
    fn plain(target: FakeModel, n_parallel: usize, n_ctx: usize, n_ubatch: usize) -> Setup {
        Setup {
            n_parallel,
            kv_unified: false,
            n_ctx,
            n_ubatch,
            max_invariant_tokens: 62,
            padding: true,
            ctx_shift: false,
            target,
            target_faults: BTreeMap::new(),
            draft: None,
            draft_faults: BTreeMap::new(),
            draft_cost: 0,
            draft_vocab: None,
        }
    }

    fn params(&self) -> ContextParams {
        ContextParams {
            // The script has less.
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

    /// A context in which `voice` speaks, whose evaluations cost `percent` of a target's.
    fn play(
        &self,
        voice: FakeModel,
        percent: u32,
        faults: &BTreeMap<usize, Fault>,
        interrupt: &Arc<Interrupt>,
    ) -> Context {
        let params = builder::sequences(&self.params(), self.n_parallel, &MODEL, None);
        let mut context = Context::new(&MODEL, &params, &THREADS, interrupt).unwrap();
        let cost = Duration::from_micros(100) * percent;
        context.play(FakeBackend::new(voice, self.n_ctx, self.n_ubatch, cost, faults.clone()));
        context
    }
}

/// A running engine.
struct Stage {
    scheduler: BatchScheduler,
    interrupt: Arc<Interrupt>,
    n_requests: u64,
}

impl Stage {
    fn new(setup: &Setup) -> Stage {
        let interrupt = Arc::new(Interrupt::default());
        let context = setup.params();
        let config = Config {
            model: ModelParams::new(""),
            context: context.clone(),
            draft: None,
            mtp: false,
            lookup_static: None,
            lookup_dynamic: None,
            n_parallel: setup.n_parallel,
            ctx_shift: setup.ctx_shift,
            self_extend: None,
            embedding: false,
            max_queue: usize::MAX,
            warmup: false,
            numa: None,
            rpc: Vec::new(),
        };
        let beams = Beams::new(&MODEL, &context, &THREADS, &interrupt);
        let mut target = setup.play(setup.target, 100, &setup.target_faults, &interrupt);
        target.play_alike(setup.max_invariant_tokens);
        let mut scheduler = BatchScheduler::new(target, beams, &config);
        if let Some(voice) = setup.draft {
            let context = setup.play(voice, setup.draft_cost, &setup.draft_faults, &interrupt);
            let n_vocab = setup.draft_vocab.unwrap_or(MODEL.vocab().n_tokens());
            scheduler.drafters.add_model(Box::new(DraftModel::new(context, setup.n_parallel, n_vocab, None)));
        }
        builder::add_text_drafters(&mut scheduler.drafters, setup.n_parallel, &Arc::default());
        scheduler.drafters.set_clock(fake::clock);
        Stage { scheduler, interrupt, n_requests: 0 }
    }

    /// Queues the texts of a request.
    fn submit(&mut self, requests: Vec<Request>) -> Arc<RequestHandle> {
        self.n_requests += 1;
        let expect =
            |request: &Request| Expected { n_prompt: request.prompt.len(), speculates: request.speculative.is_some() };
        let handle = RequestHandle::new(self.n_requests, requests.iter().map(expect).collect(), Arc::default());
        for (request, sink) in requests.into_iter().zip(handle.sinks()) {
            self.scheduler.queue.push_back(Submission { request, sink, deadline: None, found: None });
        }
        handle
    }

    fn advance(&mut self) {
        self.scheduler.open(&mut |_| {});
        self.scheduler.step(&self.interrupt, &mut |_| {});
        self.scheduler.outbox.deliver(&mut |_| {});
    }

    /// A step, after which the engine must know what is in its memory.
    fn step(&mut self) {
        self.advance();
        let (scheduler, script) = (&self.scheduler, self.scheduler.context.fake());
        let n_slots = scheduler.slots.len();
        for (id, slot) in (0..).zip(&scheduler.slots) {
            assert_eq!(script.tokens(id), slot.cache.to_vec(), "slot {id}: what is there, and what it thinks is there");
            if let Some(task) = &slot.task {
                assert!(task.tokens.starts_with(&slot.cache), "slot {id} holds something else than its text");
            }
        }
        let n_branches = scheduler.context.n_shared().saturating_sub(n_slots);
        for id in (0..).skip(n_slots).take(n_branches) {
            assert!(script.tokens(id).is_empty(), "a branch was left behind in sequence {id}");
        }
    }

    /// Faults of the target that are still to come and would end requests.
    fn failures_left(&self) -> usize {
        let faults = self.scheduler.context.fake().faults();
        faults.filter(|fault| !matches!(fault, Fault::Aborted(_))).count()
    }
}

/// A request for a text behind `prompt`, without anything special.
pub(super) fn request(prompt: Vec<Token>, n_predict: usize, sampling: sampling::SamplingSettings) -> Request {
    Request {
        prompt: prompt.into(),
        prompt_of: None,
        lora: Vec::new(),
        sampling,
        grammar: None,
        speculative: None,
        draft_only: false,
        compare: false,
        options: Options {
            n_predict: Some(n_predict),
            n_keep: Some(0),
            stop: Vec::new(),
            timeout: None,
            t_max_predict: None,
            n_beams: 1,
            slot: None,
            cache_prompt: true,
            n_cache_reuse: 0,
            session_load: None,
            session_save: None,
            // As if no session had been loaded.
            seed_position: Some(0),
            post_sampling_probs: false,
            progress: false,
        },
    }
}

/// The sequences for branches are no reason to refuse a small batch or context.
#[test]
fn small_contexts_can_be_made() {
    for (n_parallel, n_ctx, n_batch) in [(1, 4, 64), (1, 64, 4), (3, 16, 64), (3, 64, 7), (1, 0, 8)] {
        let params =
            ContextParams { n_ctx: Some(n_ctx), n_batch, kv_unified: n_parallel > 1, ..ContextParams::default() };
        let params = builder::sequences(&params, n_parallel, &MODEL, None);
        let made = Context::new(&MODEL, &params, &THREADS, &Arc::default());
        assert!(made.is_ok(), "{n_parallel} {n_ctx} {n_batch}: {made:?}");
    }
}
