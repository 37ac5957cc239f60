//! Turns a [`Config`] into models in memory and a running engine.

use std::collections::VecDeque;
use std::fs;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::builder::{self, Builder, BuiltSchedulers};
use super::embedder::Embedder;
use super::fit::fit;
use super::load_progress::LoadMeter;
use super::measure::IdleMeasuring;
use super::report::StepReport;
use super::self_check::SelfCheck;
use super::worker::Worker;
use super::{Config, Models, Notify, Shared, SlotStatus, WorkerHandle};
use foredraft_base::atomic_write;
use foredraft_base::error::{Code, Error, Result};
use foredraft_host::forks;
use foredraft_llama as llama;
use foredraft_llama::{Interrupt, Model, ModelParams, PausableLoad, PauseGate, Rollback};
use foredraft_speculation::{CacheKind, Caches, read_cache};

/// The stack in bytes that a load needs: three times what llama.cpp was seen to use. A caller's thread can have less, and signal handlers of
/// the host run on it, too.
pub const LOAD_STACK: usize = 384 << 10;

/// Loads the models and starts the engine. `report` is called with the progress, 0..=1, and aborts by returning false.
/// The engine is `None` for a model that was loaded with `vocab_only`. The load and the engine sleep while `pauses` is closed.
///
/// # Errors
/// An RPC server does not answer, a model or an n-gram cache cannot be loaded, no context can be made of a model, or the
/// load was aborted ([`Code::Cancelled`]).
pub fn load(
    config: &Config,
    pauses: &Arc<PauseGate>,
    notify: Arc<Notify>,
    report: impl FnMut(f32) -> bool + Send,
) -> Result<(Models, Option<WorkerHandle>)> {
    if !config.is_idle() {
        return load_here(config, pauses, notify, report);
    }
    // On a thread of its own: without a privilege, the calling one could not leave Linux's SCHED_IDLE. The threads that it starts inherit it.
    let load = || {
        llama::run_when_idle();
        load_here(config, pauses, notify, report)
    };
    forks::run_with_stack("foredraft-load", LOAD_STACK, load)
        .map_err(|error| Error::exhausted(format!("load: no thread of idle priority: {error}")))?
        .unwrap_or_else(|panic| resume_unwind(panic))
}

fn load_here(
    config: &Config,
    pauses: &Arc<PauseGate>,
    notify: Arc<Notify>,
    mut report: impl FnMut(f32) -> bool,
) -> Result<(Models, Option<WorkerHandle>)> {
    if let Some(numa) = config.numa {
        llama::set_numa(numa);
    }
    let mut progress = LoadMeter::new(&mut report, Arc::clone(pauses), config.warmup, builder::n_steps(config));
    let interrupt = Arc::new(Interrupt::new(Arc::clone(pauses)));
    let pausable = Arc::clone(&interrupt);
    let _pausable = PausableLoad::begin(&pausable);
    llama::use_rpc_servers(&config.rpc, config.rpc_timeout, || progress.read(0.0))?;
    if let Some(folder) = &config.cache_dir {
        fs::create_dir_all(folder).map_err(|error| atomic_write::failed(folder, &error).within("cache_dir"))?;
    }
    let mut config = config.clone();
    let fit = fit(&mut config);
    let config = &config;
    // The draft is loaded after the target; its share of the bar is by its size.
    let size = |model: &ModelParams| model.source.len_estimate() as f32;
    let draft_size = config.draft.as_ref().map_or(0.0, |(model, _)| size(model));
    let target_size = size(&config.model).max(1.0);
    let target_part = target_size / (target_size + draft_size);
    let (target, mtp_failure) = load_target(config, |part| progress.read(part * target_part))?;
    let draft = match &config.draft {
        Some((params, _)) => {
            let progress = |part| progress.read(target_part + part * (1.0 - target_part));
            Some(Model::shared(params, progress, Model::load_draft)?)
        }
        None => None,
    };
    let placement_draft = draft.as_ref().map(|draft| draft.placement()).unwrap_or_default();
    let mut models = Models {
        placement: target.placement(),
        placement_draft,
        target,
        draft,
        compatibility: None,
        n_ctx: 0,
        rollback: Rollback::default(),
        attention: None,
        attention_draft: None,
        fit,
        self_check: SelfCheck::default(),
    };
    if config.model.vocab_only {
        return Ok((models, None));
    }
    let engine = start(config, interrupt, &mut models, mtp_failure, notify, &mut progress)?;
    progress.finish()?;
    Ok((models, Some(engine)))
}

/// Loads the target. If it cannot be loaded with its layers for multi-token prediction, loads it without them, and returns the error.
fn load_target(config: &Config, mut progress: impl FnMut(f32) -> bool) -> Result<(Arc<Model>, Option<Error>)> {
    let with = ModelParams { mtp: config.mtp, ..config.model.clone() };
    match Model::shared(&with, &mut progress, Model::load) {
        Err(error) if config.mtp && error.code() != Code::Cancelled => {
            let without = ModelParams { mtp: false, ..with };
            Ok((Model::shared(&without, progress, Model::load)?, Some(error)))
        }
        loaded => Ok((loaded?, None)),
    }
}

fn start(
    config: &Config,
    interrupt: Arc<Interrupt>,
    models: &mut Models,
    mtp_failure: Option<Error>,
    notify: Arc<Notify>,
    progress: &mut LoadMeter<'_>,
) -> Result<WorkerHandle> {
    // The host's thread, which decodes while costs are measured, unless the load has its own.
    let keep = (!config.is_idle()).then(llama::KeepPlacement::default);
    let builder = Builder::new(config, interrupt)?;
    let caches = Arc::new(read_caches(config, &models.target)?);
    progress.step();
    let mut made = None;
    if models.target.can_generate() {
        made = builder.schedulers(models, mtp_failure, &caches, progress)?;
    }
    let embeds = config.embedding || models.target.scores_decisions();
    if made.is_none() && !embeds {
        let decides = models.target.metadata_of_kind("decision.type");
        let decides = decides
            .map(|kind| format!(" It is a decision model of type {kind}, whose heads this version does not have."));
        let message = "model: it generates no text; \"embedding\": true loads it for embeddings.";
        return Err(Error::model(format!("{message}{}", decides.unwrap_or_default())));
    }
    let (scheduler, draft_only, measuring) = match made {
        Some(BuiltSchedulers { target, draft_only, measuring }) => (Some(target), draft_only, measuring),
        None => (None, None, IdleMeasuring::none()),
    };
    let embedder = embeds.then(|| builder.embedder(models)).transpose()?;
    progress.step();
    progress.check()?;
    drop(keep);
    // Not earlier: the load's own decodes would be slower beside it.
    models.target.make_panels(None);
    // Those of a draft model may be quantized, which takes longer.
    if let Some(draft) = &models.draft {
        draft.make_panels(Some(&models.target));
    }

    let media = scheduler.as_ref().map(|scheduler| Arc::clone(&scheduler.pool.media)).unwrap_or_default();
    let slots = scheduler.as_ref().map_or(0, |scheduler| scheduler.pool.slots.len());
    let shared = Arc::new(Shared {
        interrupt: builder.interrupt,
        threads: builder.threads,
        stopping: AtomicBool::new(false),
        closed: Mutex::new(false),
        is_interruptible: Mutex::new(false),
        slots: Mutex::new(vec![SlotStatus::default(); slots]),
        queue_order: Mutex::default(),
        conversations: Mutex::default(),
    });
    let embedding_limits = embedder.as_ref().map(Embedder::limits);
    let (sender, commands) = crossbeam_channel::unbounded();
    let worker = Worker {
        commands,
        scheduler,
        draft_only,
        embedder,
        measuring,
        shared: Arc::clone(&shared),
        notify,
        postponed: VecDeque::new(),
        report: StepReport::default(),
        changed: Vec::new(),
    };
    let thread = forks::spawn("foredraft-work", move || worker.run())
        .map_err(|error| Error::exhausted(format!("the engine's thread cannot be started: {error}")))?;
    Ok(WorkerHandle {
        commands: sender,
        shared,
        thread: Mutex::new(Some(thread)),
        counts: Arc::default(),
        preparations: Arc::default(),
        caches,
        embedding_limits,
        n_slots: slots,
        max_queue: config.max_queue,
        media,
    })
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
