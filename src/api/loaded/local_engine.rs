//! A loaded engine, and that in this process: the models, the worker that runs them, and the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foredraft_jinja::StopSignal;
use parking_lot::RwLock;
use serde_json::Value;

use super::preparations::Preparations;
use super::registry::{RequestRecord, no_logits_callback};
use super::status::EngineStatus;
use crate::api::loaded::lookup_files::CacheFiles;
use crate::api::loaded::preparer::Preparer;
use crate::api::prompts::{ChatTemplates, ServingModel, TemplatesByTools};
use crate::api::wire::function::Function;
use crate::api::wire::load::{LoadRequest, ProjectorSettings};
use crate::api::wire::request::{DecisionModel, RequestArguments, RequestDefaults};
use crate::engine::{self, Config, LogitsCallback, LogitsEditor, Models, WorkerHandle};
use crate::error::{Error, Result};
use crate::host::Hook;
use crate::llama::large_stack::KeptThreads;
use crate::llama::log::{self, Level};
use crate::llama::{MediaCache, Model, PauseGate, Projector, ProjectorParams};

/// A loaded engine, in whatever process it is.
pub trait LoadedEngine: Send + Sync {
    /// The engine in this process. `None`: it is in another one.
    fn local(&self) -> Option<&LocalEngine> {
        None
    }

    /// Begins to end all running requests, and returns at once.
    fn begin_stop(&self);

    /// Ends all running requests, and waits until no thread uses the engine any more.
    fn stop(&self);

    /// `foredraft_status`.
    fn status(&self) -> Value;

    /// Begins a completion request. `is_awaited`: the caller waits for the final response. `announce` gets the record before the engine has
    /// the request.
    ///
    /// # Errors
    /// The request is invalid, or the queue is full.
    fn begin(
        &self,
        request: &[u8],
        arguments: RequestArguments,
        is_awaited: bool,
        announce: &dyn Fn(&Arc<RequestRecord>),
    ) -> Result<Arc<RequestRecord>>;

    /// Whether its model is an encoder of decisions, so that `Function::Decide` is a call and no request.
    fn decides_by_encoder(&self) -> bool;

    /// Calls another function of a loaded engine.
    ///
    /// # Errors
    /// Those of the function.
    fn call(&self, function: Function, request: &[u8]) -> Result<Value>;

    /// Ends a request. Returns whether it had not finished.
    ///
    /// # Errors
    /// The model generates no text.
    fn cancel(&self, record: &RequestRecord) -> Result<bool>;

    /// Lets the reasoning of a request end with the next token.
    ///
    /// # Errors
    /// The model generates no text.
    fn end_reasoning(&self, record: &RequestRecord) -> Result<()>;

    /// The values that a request gets for absent fields.
    fn defaults(&self) -> &RequestDefaults;
}

/// Loaded models and the engine that runs them. All threads can use it at the same time, and a program can have several.
///
/// The functions of the interface are `impl LocalEngine` blocks in `calls` and `lookup`.
pub struct LocalEngine {
    models: Models,
    /// `None` with `vocab_only`.
    worker: Option<WorkerHandle>,
    load: LoadRequest,
    status: EngineStatus,
    templates: ChatTemplates,
    media: Option<Arc<MediaCache>>,
    pub cache_files: CacheFiles,
    pub preparer: Preparer,
    pub preparations: Preparations,
    _large_stacks: Arc<KeptThreads>,
    logits_hook: Arc<Hook<LogitsCallback>>,
    /// The engine is being unloaded, so that no chat template is rendered to its end.
    stopping: Arc<AtomicBool>,
    /// Read-locked inside [`LocalEngine::during`].
    running: RwLock<()>,
}

impl LocalEngine {
    /// Loads the models and starts the engine. Both sleep while `pauses` is closed. `notify` gets the id of each request that has an
    /// update, and `logits_hook` changes the logits of requests that ask for it, on the engine's thread. `progress` gets 0..=1 and aborts
    /// the load by returning false. `is_aborted` is asked while chat templates are rendered.
    ///
    /// # Errors
    /// A model cannot be loaded or used, or the load was aborted.
    pub fn start(
        mut load: LoadRequest,
        pauses: &Arc<PauseGate>,
        notify: Arc<engine::Notify>,
        logits_hook: Arc<Hook<LogitsCallback>>,
        progress: impl FnMut(f32) -> bool + Send,
        is_aborted: &StopSignal,
    ) -> Result<LocalEngine> {
        let (models, worker) = engine::load(&load.config, pauses, notify, progress)?;
        let mut media = None;
        if let (Some(worker), Some((projector, most))) = (&worker, projector(&load, &models)?) {
            let made = Arc::new(MediaCache::new(projector, most, pauses, worker.threads()));
            worker.set_media(Arc::clone(&made));
            media = Some(made);
        }
        let n_logged = load.warnings.len();
        load.warn_about_missing_devices();
        load.warn_about_models(&models);
        load.warn_about_projector(media.as_ref().map(|media| media.projector()));
        for warning in load.warnings.iter().skip(n_logged) {
            log::write(Level::Warn, &format!("load: {warning}"));
        }
        let engine = LocalEngine {
            status: EngineStatus::loaded(&models, &load, media.as_deref()),
            models,
            worker,
            load,
            templates: ChatTemplates::default(),
            media,
            cache_files: CacheFiles::default(),
            preparations: Preparations::default(),
            preparer: Preparer::new(Arc::clone(pauses)),
            _large_stacks: KeptThreads::keep(),
            logits_hook,
            stopping: Arc::default(),
            running: RwLock::default(),
        };
        engine.target().find_templates(is_aborted)?;
        Ok(engine)
    }

    /// Runs `call`. [`LoadedEngine::stop`] waits for it.
    pub fn during<R>(&self, call: impl FnOnce(&LocalEngine) -> Result<R>) -> Result<R> {
        // Recursive, because a callback inside a call can call again while `stop` waits for the write lock.
        let _running = self.running.read_recursive();
        call(self)
    }

    /// The models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// The configuration that the engine was started with.
    pub fn config(&self) -> &Config {
        &self.load.config
    }

    /// The warnings of the load.
    pub fn warnings(&self) -> &[String] {
        &self.load.warnings
    }

    /// The engine.
    ///
    /// # Errors
    /// The model was loaded with `vocab_only`.
    pub fn worker(&self) -> Result<&WorkerHandle> {
        self.worker.as_ref().ok_or_else(vocab_only)
    }

    /// The logits callback of a request. `number`: that of the request in the host's process, if that is another one.
    ///
    /// # Errors
    /// The host has set no callback.
    pub fn logits_editor(&self, number: Option<u64>) -> Result<LogitsEditor> {
        if !self.logits_hook.is_set() {
            return Err(no_logits_callback());
        }
        let hook = Arc::clone(&self.logits_hook);
        Ok(LogitsEditor::new(move |id, logits, tokens| {
            let mut result = Err(Error::invalid("logits_callback: the callback was removed while the request ran"));
            hook.with(|callback| result = callback(number.unwrap_or(id), logits, tokens));
            result
        }))
    }

    pub fn engine_status(&self) -> engine::WorkerStatus {
        self.worker.as_ref().map(WorkerHandle::status).unwrap_or_default()
    }

    /// Refuses a slot number that does not exist.
    pub fn validate_slot(&self, slot: usize) -> Result<()> {
        validate_slot(slot, self.load.config.n_parallel)
    }

    /// The target as the model that generates.
    pub fn target(&self) -> ServingModel {
        let n_ctx = self.models.n_ctx;
        let target = self.serving_model(&self.models.target, self.load.alias(), n_ctx, &self.templates.target);
        ServingModel { media: self.media.clone(), ..target }
    }

    /// The draft model as the model that generates (draft-only mode).
    ///
    /// # Errors
    /// There is none, or its vocabulary is not the target's.
    pub fn draft_only(&self) -> Result<ServingModel> {
        let refused = |reason: &str| Error::invalid(format!("speculative.model: {reason}"));
        let (models, config) = (&self.models, &self.load.config);
        let ((Some(model), Some(report)), Some((params, _))) = ((&models.draft, &models.compatibility), &config.draft)
        else {
            return Err(refused("there is no draft model; load one with model_draft"));
        };
        if let Some(reason) = &report.reason {
            return Err(refused(&format!("the draft model is not used: {reason}")));
        }
        if report.is_cross_vocabulary {
            return Err(refused("the draft model's vocabulary differs from the target's, so it can only draft"));
        }
        let name = params.source.to_string();
        Ok(self.serving_model(model, name, report.n_ctx, &self.templates.draft))
    }

    fn serving_model(
        &self,
        model: &Arc<Model>,
        name: String,
        n_ctx: usize,
        templates: &Arc<TemplatesByTools>,
    ) -> ServingModel {
        ServingModel {
            model: Arc::clone(model),
            name,
            n_ctx,
            ctx_shift: self.load.config.ctx_shift,
            templates: Arc::clone(templates),
            chat_template: self.load.chat_template.clone(),
            media: None,
            stopping: Arc::clone(&self.stopping),
            target: Arc::clone(&self.models.target),
        }
    }
}

/// Loads the encoder of pictures and sounds, if the load has one. Also returns the most bytes of what is encoded.
///
/// # Errors
/// It cannot be loaded, or needs what is not available yet.
fn projector(load: &LoadRequest, models: &Models) -> Result<Option<(Projector, usize)>> {
    let Some(settings) = load.projector.clone() else { return Ok(None) };
    let ProjectorSettings { source, weights, min_tokens, max_tokens, cache } = settings;
    if models.target.vocab_only() || !models.target.can_generate() {
        return Err(Error::invalid("mmproj: not available with a model that generates no text"));
    }
    let n_threads = load.config.context.n_threads_batch;
    let params = ProjectorParams { source, weights, n_threads, min_tokens, max_tokens };
    let projector = Projector::load(&models.target, &params)?;
    let lacks = [
        (!projector.has_vision() && !projector.has_audio(), "encodes neither pictures nor sounds"),
        (
            projector.uses_mrope() != models.target.uses_mrope(),
            "it was made for a model of another kind of positions (M-RoPE)",
        ),
    ];
    match lacks.into_iter().find(|(lacks, _)| *lacks) {
        Some((_, why)) => Err(Error::model(format!("mmproj: {}: {why}", params.source))),
        None => Ok(Some((projector, cache))),
    }
}

impl LoadedEngine for LocalEngine {
    fn local(&self) -> Option<&LocalEngine> {
        Some(self)
    }

    fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(worker) = &self.worker {
            worker.begin_stop();
        }
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(worker) = &self.worker {
            worker.stop();
        }
        self.preparer.stop();
        drop(self.running.write());
    }

    fn status(&self) -> Value {
        self.status.now(&self.models, &self.engine_status()).to_json()
    }

    fn begin(
        &self,
        request: &[u8],
        arguments: RequestArguments,
        is_awaited: bool,
        announce: &dyn Fn(&Arc<RequestRecord>),
    ) -> Result<Arc<RequestRecord>> {
        self.during(|_| self.enqueue(request, arguments, is_awaited, announce))
    }

    fn decides_by_encoder(&self) -> bool {
        DecisionModel::is_encoder_named(self.target().decision().as_deref())
    }

    fn call(&self, function: Function, request: &[u8]) -> Result<Value> {
        self.during(|_| match function {
            Function::Tokenize => self.tokenize(request),
            Function::Detokenize => self.detokenize(request),
            Function::ApplyTemplate => self.apply_template(request),
            Function::ModelInfo => self.model_info(request),
            Function::Embed => self.embed(request),
            Function::Decide => self.decide_by_encoder(request),
            Function::Rerank => self.rerank(request),
            Function::SessionSave => self.session_save(request),
            Function::SessionLoad => self.session_load(request),
            Function::SessionErase => self.session_erase(request),
            Function::Conversation => self.conversation(request),
            Function::LookupCache => self.lookup_cache(request),
            Function::Complete
            | Function::Prepare
            | Function::Submit
            | Function::LookupCreate
            | Function::LookupMerge
            | Function::LookupStats => {
                Err(Error::invalid(format!("{}: is no function of a loaded engine alone", function.as_str())))
            }
        })
    }

    fn cancel(&self, record: &RequestRecord) -> Result<bool> {
        self.during(|engine| Ok(engine.worker()?.cancel(&record.handle)))
    }

    fn end_reasoning(&self, record: &RequestRecord) -> Result<()> {
        self.worker()?.end_reasoning(&record.handle);
        Ok(())
    }

    fn defaults(&self) -> &RequestDefaults {
        &self.load.defaults
    }
}

/// The error for a request to an engine that has no model to decode with.
pub fn vocab_only() -> Error {
    Error::invalid("the model was loaded with vocab_only, so it can only tokenize")
}

/// Refuses a slot number of an engine with `n_parallel` slots that does not exist.
pub fn validate_slot(slot: usize, n_parallel: usize) -> Result<()> {
    if slot < n_parallel {
        return Ok(());
    }
    Err(Error::invalid(format!("id_slot: expected a slot from 0 to {}, got {slot}", n_parallel.saturating_sub(1))))
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::Code;

    /// A load of copies of the shipped models, which no other test has loaded.
    fn load_of_copies(name: &str) -> LoadRequest {
        let folder = std::env::temp_dir().join(format!("foredraft-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let copy = |role: &str| {
            let from = format!("{}/models/stories-{role}.gguf", env!("CARGO_MANIFEST_DIR"));
            let to = folder.join(format!("{role}.gguf"));
            fs::copy(from, &to).expect("a shipped model");
            to
        };
        let config =
            serde_json::json!({"model": copy("target"), "model_draft": copy("draft"), "n_ctx": 256, "n_threads": 1});
        LoadRequest::parse(config.to_string().as_bytes()).expect("a valid request")
    }

    fn start(load: LoadRequest, mut wanted: impl FnMut(f32) -> bool + Send) -> (Vec<f32>, Result<LocalEngine>) {
        let mut reported = Vec::new();
        let report = |done| {
            reported.push(done);
            wanted(done)
        };
        let goes_on: StopSignal = Arc::new(|| false);
        let loaded = LocalEngine::start(load, &Arc::default(), Arc::new(|_| ()), Arc::default(), report, &goes_on);
        (reported, loaded)
    }

    #[test]
    fn progress_of_a_load_follows_the_bytes_of_both_models_and_the_warm_up() {
        let (mut reported, loaded) = start(load_of_copies("progress"), |_| true);
        loaded.expect("it loads");
        assert!(reported.is_sorted() && reported.last() == Some(&1.0), "{reported:?}");
        reported.dedup();
        let within = |from: f32, to: f32| reported.iter().filter(|done| (from..to).contains(*done)).count();
        // The target has most of the bytes, the draft model the rest, and the warm-up comes last.
        assert!(within(0.0, 0.5) > 5 && within(0.5, 0.6) > 1 && within(0.6, 1.0) > 5, "{reported:?}");
        let most = reported.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f32::max);
        assert!(most < 0.25, "it must not stand still: {reported:?}");
    }

    #[test]
    fn load_is_aborted_in_every_part() {
        for (name, limit) in [("reading", 0.1), ("draft", 0.55), ("warm-up", 0.7)] {
            let (reported, loaded) = start(load_of_copies(name), |done| done < limit);
            let code = loaded.err().map(|error| error.code());
            assert_eq!(code, Some(Code::Cancelled), "{name}");
            assert!(reported.iter().filter(|done| **done >= limit).count() == 1, "{name}: {reported:?}");
        }
    }
}
