//! A loaded server: takes requests, hands out their results.

use std::sync::Arc;

use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use serde_json::{Value, json};

use super::init::RequestDefaults;
use super::lookup::cache::CacheFiles;
use super::news::{News, announcing};
use super::preparer::Preparer;
use super::registry::{Record, RequestRegistry, Text};
use super::response::success;
use super::serving_model::Templates;
use super::status::Status;
use super::{Endpoint, InitRequest, response};
use crate::engine::{self, Config, Engine, Models};
use crate::error::{Code, Error, Result};
use crate::host;
use crate::llama::Vocab;
use crate::session;

/// Models in memory and the engine that runs them. Usable from all threads at once; an ordinary value, of which a
/// program may have several.
pub struct Server {
    models: Models,
    /// `None` with `vocab_only`.
    engine: Option<Engine>,
    init: InitRequest,
    pub(super) templates: Templates,
    pub(super) cache_files: CacheFiles,
    pub(super) preparer: Preparer,
    requests: RequestRegistry,
    pub(super) news: Arc<News>,
    status: OnceCell<Status>,
    /// Read-locked by those who are inside [`Server::during`].
    in_use: RwLock<()>,
}

impl Server {
    /// Loads the models and starts the engine. `notify` gets the number of each request that has news, on the engine's
    /// thread; `progress` gets 0..=1 and aborts by returning false.
    ///
    /// # Errors
    /// A model cannot be loaded or used, or the load was aborted.
    pub fn start(init: InitRequest, notify: Arc<engine::Notify>, progress: impl FnMut(f32) -> bool) -> Result<Server> {
        let news = Arc::default();
        let (models, engine) = engine::load(&init.config, announcing(&news, notify), progress)?;
        let server = Server {
            models,
            engine,
            init,
            templates: Templates::default(),
            cache_files: CacheFiles::default(),
            preparer: Preparer::default(),
            requests: RequestRegistry::default(),
            news,
            status: OnceCell::new(),
            in_use: RwLock::new(()),
        };
        server.fixed_status();
        Ok(server)
    }

    /// Begins to end everything that runs.
    pub(super) fn begin_stop(&self) {
        if let Some(engine) = &self.engine {
            engine.begin_stop();
        }
    }

    /// Ends everything that runs and waits until nobody uses the server any more.
    pub(super) fn stop(&self) {
        if let Some(engine) = &self.engine {
            engine.stop();
        }
        self.preparer.stop();
        drop(self.in_use.write());
    }

    /// Runs `call`; [`Server::stop`] waits for it.
    pub(super) fn during<R>(&self, call: impl FnOnce(&Server) -> Result<R>) -> Result<R> {
        // Recursive: a callback inside of a call may call again while `stop` waits.
        let _in_use = self.in_use.read_recursive();
        call(self)
    }

    /// The models.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// What the server was started with.
    pub fn config(&self) -> &Config {
        &self.init.config
    }

    /// What requests leave open.
    pub(super) fn defaults(&self) -> &RequestDefaults {
        &self.init.defaults
    }

    /// What `init` did not understand.
    pub fn warnings(&self) -> &[String] {
        &self.init.warnings
    }

    /// The name that answers give the model.
    pub fn alias(&self) -> String {
        self.init.model_alias.clone().unwrap_or_else(|| self.init.config.model.source.to_string())
    }

    pub(super) fn engine(&self) -> Result<&Engine> {
        let only_tokenizes = || Error::invalid("the model was loaded with vocab_only: it tokenizes and nothing else");
        self.engine.as_ref().ok_or_else(only_tokenizes)
    }

    pub(super) fn engine_status(&self) -> engine::EngineStatus {
        self.engine.as_ref().map(Engine::status).unwrap_or_default()
    }

    pub(super) fn fixed_status(&self) -> &Status {
        self.status.get_or_init(|| Status::fixed(self))
    }

    /// `init`'s chat template.
    pub(super) fn chat_template(&self) -> Option<String> {
        self.init.chat_template.clone()
    }

    /// Queues a request and answers with its number and what of its prompt is cached.
    ///
    /// # Errors
    /// The request is wrong, or too many wait.
    pub fn submit(&self, family: Endpoint, request: &[u8]) -> Result<Value> {
        let record = self.enqueue(family, request, false)?;
        let mut stats = record.texts.iter().map(|text| self.expected_prompt_stats(&record, text));
        let stats = if record.has_results { stats.collect() } else { stats.next().unwrap_or_default() };
        Ok(success(json!({"id": record.handle.id(), "prompt_stats": stats}), record.warnings()))
    }

    /// Generates and answers with the final response. Waits until the request has finished.
    ///
    /// # Errors
    /// The request is wrong, or too many wait.
    pub fn complete(&self, family: Endpoint, request: &[u8]) -> Result<Value> {
        if host::inside() {
            return Err(Error::would_deadlock(family.that_waits()));
        }
        let record = self.enqueue(family, request, true)?;
        let events = record.handle.wait();
        self.requests.ended(record.handle.id());
        let answer = response::whole(&record, events, self.vocab(record.draft_only))
            .ok_or_else(|| Error::new(Code::Internal, "the engine ended without a result"))?;
        response::debug(&record, &answer);
        Ok(answer)
    }

    /// Keeps what the answers to a request need.
    pub(super) fn remember(&self, record: Record) -> Arc<Record> {
        let record = Arc::new(record);
        self.requests.add(Arc::clone(&record));
        record
    }

    pub(super) fn requests(&self) -> &RequestRegistry {
        &self.requests
    }

    /// Refuses the number of a slot that is not there.
    pub(super) fn check_slot(&self, slot: usize) -> Result<()> {
        let n_parallel = self.init.config.n_parallel;
        if slot < n_parallel {
            return Ok(());
        }
        Err(Error::invalid(format!("id_slot: there is no slot {slot}, only {n_parallel} of them, from 0")))
    }

    /// The vocabulary of the model that answers.
    pub(super) fn vocab(&self, draft_only: bool) -> &Vocab {
        self.models.draft.as_ref().filter(|_| draft_only).unwrap_or(&self.models.target).vocab()
    }

    /// `prompt_stats` as far as can be told before the request has a slot: by the free slot whose cache fits best.
    fn expected_prompt_stats(&self, record: &Record, text: &Text) -> Value {
        if !record.is_prepared {
            return response::pending_prompt_stats(record);
        }
        let n_prompt = text.tokens().len();
        let left_out = session::prompt_truncation(
            n_prompt,
            session::effective_n_keep(record.n_keep, n_prompt, record.n_ctx),
            record.n_ctx,
        );
        let mut prompt = text.tokens().to_vec();
        if let Some(range) = left_out {
            prompt.drain(range);
        }
        let slots = self.engine_status().slots.into_iter().enumerate();
        let suits = |index| text.reuses && text.slot.is_none_or(|only| only == index);
        let slots = slots.filter(|(index, slot)| suits(*index) && slot.lora == text.lora);
        let caches = slots.filter_map(|(_, slot)| slot.cache);
        // A preview's slots are not told of.
        let caches = caches.filter(|_| !record.draft_only);
        let common = caches.map(|cache| session::common_prefix(&cache, &prompt)).max().unwrap_or(0);
        let cached = common.min(prompt.len().saturating_sub(1));
        response::prompt_stats(self.vocab(record.draft_only), record, text, cached)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
