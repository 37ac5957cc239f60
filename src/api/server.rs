//! A loaded server: takes requests, hands out their results.

use std::sync::Arc;
use std::time::Duration;

use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use serde_json::{Value, json};

use super::fields::{Fields, int_in, parse_object};
use super::init::RequestDefaults;
use super::lookup::cache::CacheFiles;
use super::preparer::Preparer;
use super::registry::{Found, Record, RequestRegistry, Text};
use super::response::success;
use super::serving_model::Templates;
use super::status::Status;
use super::system::would_deadlock;
use super::{Endpoint, InitRequest, response};
use crate::engine::{self, Config, Engine, Models, Phase};
use crate::error::{Code, Error, Result};
use crate::host;
use crate::llama::Vocab;
use crate::llama::log::{self, Level};
use crate::session;

/// The longest that a poll may wait; a host that wants more polls again.
const MAX_POLL_MS: i64 = 24 * 60 * 60 * 1000;

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
        let (models, engine) = engine::load(&init.config, notify, progress)?;
        let server = Server {
            models,
            engine,
            init,
            templates: Templates::default(),
            cache_files: CacheFiles::default(),
            preparer: Preparer::default(),
            requests: RequestRegistry::default(),
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
        let path = || self.init.config.model.path.to_string_lossy().into_owned();
        self.init.model_alias.clone().unwrap_or_else(path)
    }

    pub(super) fn engine(&self) -> Result<&Engine> {
        let only_tokenizes = || Error::invalid("the model was loaded with vocab_only: it tokenizes and nothing else");
        self.engine.as_ref().ok_or_else(only_tokenizes)
    }

    pub(super) fn engine_status(&self) -> engine::Status {
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
            return Err(would_deadlock(family.that_waits()));
        }
        let record = self.enqueue(family, request, true)?;
        let events = record.handle.wait();
        self.requests.ended(record.handle.id());
        let answer = response::whole(&record, events, self.vocab(record.draft_only))
            .ok_or_else(|| Error::new(Code::Internal, "the engine ended without a result"))?;
        debug(&record, &answer);
        Ok(answer)
    }

    /// Keeps what the answers to a request need.
    pub(super) fn remember(&self, record: Record) -> Arc<Record> {
        let record = Arc::new(record);
        self.requests.add(Arc::clone(&record));
        record
    }

    /// Takes a request's updates since the last poll. Of one that somebody waits for in [`Server::complete`] it only tells how far it
    /// is.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn poll(&self, family: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let (id, wait, warnings) = read_command(command)?;
        if !wait.is_zero() && host::inside() {
            return Err(would_deadlock("timeout_ms: a poll that waits"));
        }
        let (id, updates, phase) = match self.requests.find(family, id)? {
            Found::Ended(id) => (id, Vec::new(), Phase::Finished),
            Found::Here(record) if record.awaited => (record.handle.id(), Vec::new(), record.handle.watch(wait)),
            Found::Here(record) => {
                let (events, phase) = record.handle.take(wait);
                let updates: Vec<Value> = events
                    .into_iter()
                    .filter_map(|(index, event)| response::event(&record, index, event, self.vocab(record.draft_only)))
                    .collect();
                for update in &updates {
                    debug(&record, update);
                }
                if phase == Phase::Finished {
                    self.requests.ended(record.handle.id());
                }
                (record.handle.id(), updates, phase)
            }
        };
        let answer = json!({
            "id": id,
            "completion_updates": updates,
            "finished": phase == Phase::Finished,
            "state": phase.as_str(),
        });
        Ok(success(answer, warnings))
    }

    /// Ends a request within one evaluation. One that has ended already is left as it is.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn cancel(&self, family: Endpoint, command: Option<&[u8]>) -> Result<Value> {
        let (id, _, warnings) = read_command(command)?;
        let (id, cancelled) = match self.requests.find(family, id)? {
            Found::Ended(id) => (id, false),
            Found::Here(record) => (record.handle.id(), self.engine()?.cancel(&record.handle)),
        };
        Ok(success(json!({"id": id, "cancelled": cancelled}), warnings))
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
    fn vocab(&self, draft_only: bool) -> &Vocab {
        self.models.draft.as_ref().filter(|_| draft_only).unwrap_or(&self.models.target).vocab()
    }

    /// `prompt_stats` as far as can be told before the request has a slot: by the free slot whose cache fits best.
    fn expected_prompt_stats(&self, record: &Record, text: &Text) -> Value {
        if !record.is_prepared {
            return response::pending_prompt_stats(record);
        }
        let n_prompt = text.tokens().len();
        let left_out = session::leave_out(n_prompt, session::keep(record.n_keep, n_prompt, record.n_ctx), record.n_ctx);
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

/// The command of a poll or cancel: the request's number, how long to wait, and warnings.
fn read_command(command: Option<&[u8]>) -> Result<(Option<u64>, Duration, Vec<String>)> {
    let command = command.unwrap_or_default();
    if command.iter().all(u8::is_ascii_whitespace) {
        return Ok((None, Duration::ZERO, Vec::new()));
    }
    let object = parse_object(command)?;
    let mut fields = Fields::new(&object);
    let number = |value: &Value| value.as_u64().map_or_else(|| int_in("id", value, 0..=i64::MAX), Ok);
    let id = fields.get("id").map(number).transpose()?;
    let wait: i64 = fields.int("timeout_ms", 0..=MAX_POLL_MS)?.unwrap_or(0);
    Ok((id, Duration::from_millis(u64::try_from(wait).unwrap_or(0)), fields.finish()))
}

/// `__debug`: the answer into the log.
fn debug(record: &Record, answer: &Value) {
    if record.reply.debug {
        log::always(Level::Info, &format!("answer: {answer}"));
    }
}
