//! From a [`Config`] to models in memory and a running engine.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::beams::Beams;
use super::embedder::Embedder;
use super::generation::Generation;
use super::preview::Preview;
use super::worker::Worker;
use super::{Config, Engine, Notify, Shared, SlotStatus, Status};
use crate::error::{Code, Error, Result};
use crate::llama::log::{self, Level};
use crate::llama::{self, Batch, Context, ContextParams, Interrupt, Model, ModelParams, ThreadPool, Token};
use crate::session::SelfExtend;
use crate::speculative::{
    CacheKind, Caches, Compatibility, Costs, DraftModel, MAX_BRANCHES, Mtp, NgramCache, NgramMapK, NgramMapK4v,
    NgramMod, NgramSimple, Prediction, Suffix, Team, Translated, read_cache,
};

/// The models of a running engine.
#[derive(Debug, Clone)]
pub struct Models {
    /// The target.
    pub target: Arc<Model>,
    /// The draft.
    pub draft: Option<Arc<Model>>,
    /// Whether the draft can serve the target.
    pub compatibility: Option<Compatibility>,
    /// Tokens that one request's context may hold.
    pub n_ctx: usize,
}

/// Loads the models and starts the engine. `progress` is called with 0..=1 and aborts by returning false.
/// The engine is `None` for a model that was loaded with `vocab_only`.
pub fn load(
    config: &Config,
    notify: Arc<Notify>,
    mut progress: impl FnMut(f32) -> bool,
) -> Result<(Models, Option<Engine>)> {
    if let Some(numa) = config.numa {
        llama::set_numa(numa);
    }
    llama::use_rpc_servers(&config.rpc, || progress(0.0))?;
    // The draft is loaded after the target; its share of the bar is by its size.
    let size = |path: &std::path::Path| std::fs::metadata(path).map_or(1, |file| file.len()) as f32;
    let draft_size = config.draft.as_ref().map_or(0.0, |(model, _)| size(&model.path));
    let target_part = size(&config.model.path) / (size(&config.model.path) + draft_size);
    let (target, mtp_failure) = load_target(config, |part| progress(part * target_part))?;
    let draft = match &config.draft {
        Some((params, _)) => {
            Some(Arc::new(Model::load_draft(params, |part| progress(target_part + part * (1.0 - target_part)))?))
        }
        None => None,
    };
    let mut models = Models { target, draft, compatibility: None, n_ctx: 0 };
    if config.model.vocab_only {
        return Ok((models, None));
    }
    let engine = start(config, &mut models, mtp_failure, notify)?;
    if !progress(1.0) {
        return Err(Error::new(Code::Cancelled, "the load was aborted"));
    }
    Ok((models, Some(engine)))
}

/// Loads the target, without its layers for multi-token prediction when it cannot be loaded with them; then says why.
fn load_target(config: &Config, mut progress: impl FnMut(f32) -> bool) -> Result<(Arc<Model>, Option<Error>)> {
    let with = ModelParams { mtp: config.mtp, ..config.model.clone() };
    match Model::load(&with, &mut progress) {
        Err(error) if config.mtp && error.code() != Code::Cancelled => {
            let without = ModelParams { mtp: false, ..with };
            Ok((Arc::new(Model::load(&without, progress)?), Some(error)))
        }
        loaded => Ok((Arc::new(loaded?), None)),
    }
}

fn start(config: &Config, models: &mut Models, mtp_failure: Option<Error>, notify: Arc<Notify>) -> Result<Engine> {
    let interrupt = Arc::new(Interrupt::default());
    let contexts = [Some(&config.context), config.draft.as_ref().map(|(_, context)| context)];
    let most = contexts.iter().flatten().map(|context| context.n_threads.max(context.n_threads_batch)).max();
    let threads = Arc::new(ThreadPool::new(most.unwrap_or(1))?);

    let caches = Arc::new(read_caches(config, &models.target)?);
    let (mut generation, mut preview) = (None, None);
    if models.target.can_generate() {
        let generator = generator(config, models, mtp_failure, &caches, &threads, &interrupt)?;
        (generation, preview) = generator.map_or((None, None), |(generation, preview)| (Some(generation), preview));
    }
    if generation.is_none() && !config.embedding {
        return Err(Error::model("model: it generates no text; \"embedding\": true loads it for embeddings"));
    }
    let mut embedder = None;
    if config.embedding {
        let params = ContextParams {
            embeddings: true,
            n_seq_max: 1,
            n_ubatch: config.context.n_batch,
            n_ctx: config.context.n_ctx,
            ..config.context.clone()
        };
        embedder = Some(Embedder::new(Context::new(&models.target, &params, &threads, &interrupt)?));
    }

    let slots = generation.as_ref().map_or(0, |generation| generation.slots.len());
    let shared = Arc::new(Shared {
        interrupt,
        stopping: AtomicBool::new(false),
        closed: Mutex::new(false),
        status: Mutex::new(Status { slots: vec![SlotStatus::default(); slots], queue: 0 }),
    });
    let (sender, commands) = crossbeam_channel::unbounded();
    let worker = Worker { commands, generation, preview, embedder, shared: Arc::clone(&shared), notify };
    let thread = std::thread::Builder::new()
        .name("foredraft-engine".into())
        .spawn(move || worker.run())
        .map_err(|error| Error::new(Code::Internal, format!("the engine's thread cannot be started: {error}")))?;
    Ok(Engine {
        commands: sender,
        shared,
        thread: Mutex::new(Some(thread)),
        unfinished: Arc::default(),
        caches,
        n_slots: slots,
        max_queue: config.max_queue,
    })
}

/// What writes texts; `None`: the model has no KV cache for that.
fn generator(
    config: &Config,
    models: &mut Models,
    mtp_failure: Option<Error>,
    caches: &Arc<Caches>,
    threads: &Arc<ThreadPool>,
    interrupt: &Arc<Interrupt>,
) -> Result<Option<(Generation, Option<Preview>)>> {
    let n_parallel = config.n_parallel.max(1);
    let n_seq_max = u32::try_from(n_parallel).unwrap_or(u32::MAX);
    let slots_alone = ContextParams { n_seq_max, embeddings: false, ..config.context.clone() };
    let params = sequences(&slots_alone, n_parallel, &models.target, config.self_extend);
    let Some(mut context) = Context::for_text(&models.target, &params, threads, interrupt)? else { return Ok(None) };
    let mtp = mtp_context(config, &mut context, mtp_failure, &slots_alone, threads, interrupt);
    let mut costs = Costs::default();
    if context.keeps_company() {
        costs.pair();
    }
    if config.warmup {
        warm_up(&mut context);
        let most = if config.draft.is_some() || mtp.is_ok() { MEASURING } else { MEASURING / 4 };
        measure(&mut context, TARGET_SIZES, most, |n, time| _ = costs.saw_target(n, time));
    }
    models.n_ctx = context.n_ctx();
    let extend = config.self_extend;
    if extend.is_some() && !(context.can_shift() && context.cuts_anywhere()) {
        return Err(Error::invalid("grp_attn_n: this model's memory cannot move positions"));
    }
    let beams = Beams::new(&models.target, &config.context, threads, interrupt);
    let mut generation = Generation::new(context, beams, config);
    let mut preview = None;
    if let (Some(draft), Some((model, params))) = (&models.draft, &config.draft) {
        let n_ctx = params.n_ctx.or(u32::try_from(models.n_ctx).ok());
        let params = ContextParams { n_ctx, n_seq_max, embeddings: false, ..params.clone() };
        let alone = Config { model: model.clone(), context: params.clone(), draft: None, ..config.clone() };
        let params = ContextParams { drafts: true, ..sequences(&params, n_parallel, draft, config.self_extend) };
        let context = Context::new(draft, &params, threads, interrupt);
        let mut context = context.map_err(|error| error.within("model_draft"))?;
        if config.warmup {
            warm_up(&mut context);
            measure(&mut context, &[1], MEASURING, |n, time| costs.saw_draft(n, time));
        }
        let report = Compatibility::of(&models.target, draft, context.n_ctx());
        match &report.reason {
            Some(reason) => log::write(Level::Warn, &format!("model_draft: not used: {reason}")),
            None => {
                let extend = extend.filter(|_| context.can_shift() && context.cuts_anywhere());
                let target = &models.target;
                generation.team.add_model(match report.translates {
                    true => Box::new(Translated::new(context, n_parallel, target, extend)?),
                    false => Box::new(DraftModel::new(context, n_parallel, target.vocab().n_tokens(), extend)),
                });
                // Prompts are the target's tokens.
                preview = (!report.translates).then(|| Preview::new(draft, alone, threads, interrupt));
            }
        }
        generation.draft_obstacle = report.reason.clone();
        models.compatibility = Some(report);
    }
    match mtp {
        Ok(mut context) => {
            if config.warmup {
                warm_up(&mut context);
                measure(&mut context, &[1], MEASURING, |n, time| costs.saw_draft(n, time));
            }
            generation.team.add_model(Box::new(Mtp::new(context, n_parallel)));
        }
        Err(why) => generation.mtp_obstacle = Some(why),
    }
    generation.team.costs = costs;
    add_text_drafters(&mut generation.team, n_parallel, caches);
    Ok(Some((generation, preview)))
}

/// The sequences of a context: one for each slot and, where they can share a buffer, some for the branches of its drafts.
pub(super) fn sequences(
    params: &ContextParams,
    n_parallel: usize,
    model: &Model,
    extend: Option<SelfExtend>,
) -> ContextParams {
    let shares = (n_parallel == 1 || params.kv_unified) && model.can_roll_back() && extend.is_none();
    // llama.cpp asserts that a token of each fits into a batch, and that is no larger than the context.
    let n_batch = params.n_batch.min(params.n_ctx.filter(|n_ctx| *n_ctx > 0).unwrap_or(u32::MAX));
    let most = usize::try_from(n_batch).unwrap_or(usize::MAX).min(llama::max_sequences());
    let each = if shares { MAX_BRANCHES.min(most / n_parallel).max(1) } else { 1 };
    let n_seq_max = u32::try_from(n_parallel * each).unwrap_or(u32::MAX);
    ContextParams { n_seq_max, kv_unified: params.kv_unified || each > 1, ..params.clone() }
}

/// The context of the target's layers for multi-token prediction, or why there is none.
fn mtp_context(
    config: &Config,
    target: &mut Context,
    failure: Option<Error>,
    params: &ContextParams,
    threads: &Arc<ThreadPool>,
    interrupt: &Arc<Interrupt>,
) -> std::result::Result<Context, String> {
    let model = Arc::clone(target.model());
    if model.n_mtp_layers() == 0 {
        return Err("the model has no layers for multi-token prediction".into());
    }
    if !config.mtp {
        return Err("the layers for multi-token prediction are loaded only if init's speculative.type names mtp".into());
    }
    // As for every drafter: see `admission`.
    if !model.can_roll_back() {
        return Err("the target's memory cannot be cut back after a rejected draft".into());
    }
    let made = failure.map_or(Ok(()), Err).and_then(|()| {
        target.prove_hidden()?;
        let n_ctx = u32::try_from(target.n_ctx()).ok();
        Context::mtp(&model, &ContextParams { n_ctx, swa_full: true, ..params.clone() }, threads, interrupt)
    });
    made.map_err(|error| {
        log::write(Level::Warn, &format!("multi-token prediction: not used: {}", error.message()));
        format!("multi-token prediction is not possible with this model: {}", error.message())
    })
}

/// The drafters that need no model, in the order in which equals are preferred.
pub(super) fn add_text_drafters(team: &mut Team, n_slots: usize, caches: &Arc<Caches>) {
    team.add(Box::new(Prediction::new(n_slots)));
    team.add(Box::new(Suffix::new(n_slots)));
    team.add(Box::new(NgramCache::with(n_slots, Arc::clone(caches))));
    team.add(Box::new(NgramMapK4v::new(n_slots)));
    team.add(Box::new(NgramMapK::new(n_slots)));
    team.add(Box::new(NgramSimple::new(n_slots)));
    team.add(Box::new(NgramMod::new(n_slots)));
}

fn read_caches(config: &Config, model: &Model) -> Result<Caches> {
    let (caches, n_vocab) = (Caches::default(), model.vocab().n_tokens());
    if let Some(path) = &config.lookup_static {
        caches.set(CacheKind::Static, read_cache("lookup_cache_static", path, n_vocab, false)?);
    }
    if let Some(path) = &config.lookup_dynamic {
        caches.set(CacheKind::Dynamic, read_cache("lookup_cache_dynamic", path, n_vocab, true)?);
    }
    Ok(caches)
}

/// Sizes of target batches that are measured before the first request, as far as [`MEASURING`] allows; those between
/// are measured when they are used. CPUs multiply by four rows at a time, so steps are looked for at both ends; first of all, how
/// long drafts may become.
const TARGET_SIZES: &[usize] = &[1, 2, 4, 8, 16, 3, 6, 12, 5, 9, 24, 13, 32, 48, 62];
/// How long measuring may take; a size that was begun is measured to its end.
const MEASURING: Duration = Duration::from_millis(1600);
/// The best of so many evaluations counts, unless a single one takes so long that little disturbs it.
const TIMES: u32 = 3;
const LONG: Duration = Duration::from_millis(20);

/// Tells what evaluations of these sizes cost, so that the first request already drafts as much as pays.
fn measure(context: &mut Context, sizes: &[usize], most: Duration, mut saw: impl FnMut(usize, Duration)) {
    let (n_tokens, n_batch) = (context.model().vocab().n_tokens(), context.n_batch());
    let begin = Instant::now();
    let mut batch = Batch::new();
    for n in sizes.iter().copied().filter(|n| *n <= n_batch) {
        let mut best: Option<Duration> = None;
        for _ in 0..TIMES {
            batch.clear();
            for position in 0..n {
                let token = Token::try_from((position * 31 + 7) % n_tokens.max(1)).unwrap_or(0);
                batch.push(token, position, 0, true);
            }
            context.pad_hidden(&mut batch);
            let start = Instant::now();
            let result = context.decode(&batch);
            let time = start.elapsed();
            context.truncate(0, 0);
            if result.is_err() {
                return;
            }
            best = Some(best.map_or(time, |best| best.min(time)));
            if time > LONG {
                break;
            }
        }
        if let Some(best) = best {
            saw(n, best);
        }
        if begin.elapsed() > most {
            return;
        }
    }
}

/// Evaluates one token, so that the first request does not pay for what is done once.
fn warm_up(context: &mut Context) {
    let vocab = context.model().vocab();
    let token = vocab.bos().or(vocab.eos()).unwrap_or(0);
    let mut batch = Batch::new();
    batch.push(token, 0, 0, true);
    context.pad_hidden(&mut batch);
    if let Err(error) = context.decode(&batch) {
        log::write(Level::Warn, &format!("warm-up: {error:?}"));
    }
    context.truncate(0, 0);
}
