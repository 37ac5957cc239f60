//! A loaded server: takes requests, hands out their results.

use std::sync::Arc;
use std::time::Duration;

use once_cell::sync::OnceCell;
use parking_lot::RwLock;
use serde_json::{Map, Value, json};

use super::fields::{Fields, parse_object, show};
use super::request::{BiasTarget, CompletionRequest, generation_settings};
use super::requests::{Found, Record, Requests};
use super::system::would_deadlock;
use super::{ChatTemplate, Family, InitRequest, prompts, response, status};
use crate::engine::{self, Config, Engine, Models, Phase, Request};
use crate::error::{Code, Error, Result};
use crate::grammar::Grammar;
use crate::host;
use crate::llama::log::{self, Level};
use crate::llama::{Token, Vocab};
use crate::session;

/// A poll that waits for longer waits for this long; a host that wants more polls again.
const MAX_POLL_MS: i64 = 24 * 60 * 60 * 1000;

/// Models in memory and the engine that runs them. Usable from all threads at once; an ordinary value, of which a
/// program may have several.
pub struct Server {
    models: Models,
    /// `None` with `vocab_only`.
    engine: Option<Engine>,
    init: InitRequest,
    template: OnceCell<ChatTemplate>,
    requests: Requests,
    status: OnceCell<Map<String, Value>>,
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
            template: OnceCell::new(),
            requests: Requests::default(),
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
        drop(self.in_use.write());
    }

    /// Runs `call`; [`Server::stop`] waits for it.
    pub(super) fn during(&self, call: impl FnOnce(&Server) -> Result<Value>) -> Result<Value> {
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

    pub(super) fn fixed_status(&self) -> &Map<String, Value> {
        self.status.get_or_init(|| status::fixed(self))
    }

    /// `init`'s chat template, or the model's.
    pub(super) fn template(&self) -> Result<&ChatTemplate> {
        self.template.get_or_try_init(|| {
            let own = self.init.chat_template.clone().or_else(|| self.models.target.chat_template());
            let source =
                own.ok_or_else(|| Error::invalid("messages: the model has no chat template; give chat_template"))?;
            ChatTemplate::parse(&source)
        })
    }

    /// Queues a request and answers with its number and what of its prompt is cached.
    ///
    /// # Errors
    /// The request is wrong, or too many wait.
    pub fn submit(&self, family: Family, request: &[u8]) -> Result<Value> {
        let record = self.enqueue(family, request)?;
        self.requests.add(Arc::clone(&record), true);
        let mut answer = json!({
            "success": true,
            "id": record.ticket.id(),
            "prompt_stats": self.expected_prompt_stats(&record),
        });
        if let (Value::Object(answer), false) = (&mut answer, record.warnings.is_empty()) {
            answer.insert("warnings".into(), record.warnings.clone().into());
        }
        Ok(answer)
    }

    /// Generates and answers with the final response. Waits until the request has finished.
    ///
    /// # Errors
    /// The request is wrong, or too many wait.
    pub fn complete(&self, family: Family, request: &[u8]) -> Result<Value> {
        if host::inside() {
            return Err(would_deadlock("get_completion"));
        }
        let record = self.enqueue(family, request)?;
        self.requests.add(Arc::clone(&record), false);
        let events = record.ticket.wait();
        self.requests.ended(record.ticket.id());
        let answer = response::whole(&record, &events, self.vocab())
            .ok_or_else(|| Error::new(Code::Internal, "the request's result was taken by a poll"))?;
        debug(&record, &answer);
        Ok(answer)
    }

    /// Takes a request's updates since the last poll.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn poll(&self, family: Family, command: Option<&[u8]>) -> Result<Value> {
        let (id, wait, warnings) = read_command(command)?;
        if !wait.is_zero() && host::inside() {
            return Err(would_deadlock("timeout_ms: a poll that waits"));
        }
        let (id, updates, phase) = match self.requests.find(family, id)? {
            Found::Ended(id) => (id, Vec::new(), Phase::Finished),
            Found::Here(record) => {
                let (events, phase) = record.ticket.take(wait);
                let updates: Vec<Value> =
                    events.into_iter().map(|event| response::event(&record, event, self.vocab())).collect();
                for update in &updates {
                    debug(&record, update);
                }
                if phase == Phase::Finished {
                    self.requests.ended(record.ticket.id());
                }
                (record.ticket.id(), updates, phase)
            }
        };
        let mut answer = Map::new();
        answer.insert("success".into(), true.into());
        answer.insert("id".into(), id.into());
        answer.insert("completion_updates".into(), updates.into());
        answer.insert("finished".into(), (phase == Phase::Finished).into());
        answer.insert("state".into(), phase.as_str().into());
        if !warnings.is_empty() {
            answer.insert("warnings".into(), warnings.into());
        }
        Ok(Value::Object(answer))
    }

    /// Ends a request within one evaluation. One that has ended already is left as it is.
    ///
    /// # Errors
    /// The command is wrong, or there is no such request.
    pub fn cancel(&self, family: Family, command: Option<&[u8]>) -> Result<Value> {
        let (id, _, warnings) = read_command(command)?;
        let (id, cancelled) = match self.requests.find(family, id)? {
            Found::Ended(id) => (id, false),
            Found::Here(record) => (record.ticket.id(), self.engine()?.cancel(&record.ticket)),
        };
        let mut answer = json!({"success": true, "id": id, "cancelled": cancelled});
        if let (Value::Object(answer), false) = (&mut answer, warnings.is_empty()) {
            answer.insert("warnings".into(), warnings.into());
        }
        Ok(answer)
    }

    fn vocab(&self) -> &Vocab {
        self.models.target.vocab()
    }

    /// Parses a request, makes tokens of its prompt and hands it to the engine.
    fn enqueue(&self, family: Family, request: &[u8]) -> Result<Arc<Record>> {
        let engine = self.engine()?;
        let object = parse_object(request)?;
        let request = CompletionRequest::from_object(&object, family, &self.init.defaults)?;
        if request.debug {
            log::always(Level::Info, &format!("request: {}", Value::Object(object)));
        }
        if !self.models.target.can_generate() {
            return Err(Error::invalid("the model generates no text"));
        }
        let n_parallel = self.init.config.n_parallel;
        if let Some(slot) = request.id_slot.filter(|slot| *slot >= n_parallel) {
            return Err(Error::invalid(format!("id_slot: there is no slot {slot}, only {n_parallel} of them, from 0")));
        }
        let (prompt, shown_prompt) = prompts::tokens(self, &request.prompt, request.prompt_given.clone())?;
        let mut settings = request.sampling.clone();
        settings.logit_bias = self.logit_bias(&request)?;
        let grammar = request.grammar.as_ref().map(|text| Grammar::new(&self.models.target, text)).transpose()?;
        let record = |ticket, prompt| Record {
            ticket,
            family,
            prompt,
            shown_prompt,
            settings: generation_settings(
                &request,
                &settings,
                u32::try_from(self.models.n_ctx).unwrap_or(0),
                &self.alias(),
            ),
            model: self.alias(),
            n_ctx: self.models.n_ctx,
            n_keep: request.n_keep,
            return_tokens: request.return_tokens,
            with_probs: settings.n_probs > 0,
            timings_per_token: request.timings_per_token,
            debug: request.debug,
            tag: request.tag.clone(),
            speculation: request.speculative.settings.clone(),
            not_speculating: request.speculative.disabled.map(str::to_owned),
            warnings: request.warnings.clone(),
        };
        let ticket = engine.submit(Request {
            prompt: prompt.clone(),
            n_predict: request.n_predict,
            n_keep: request.n_keep,
            stop: request.stop.clone(),
            cache_prompt: request.cache_prompt,
            slot: request.id_slot,
            timeout: request.timeout,
            sampling: settings.clone(),
            grammar,
            speculative: request.speculative.settings.clone(),
        })?;
        Ok(Arc::new(record(ticket, prompt)))
    }

    /// Biases by token, one entry each, sorted. A text's bias goes to each of its tokens, as in llama-server.
    fn logit_bias(&self, request: &CompletionRequest) -> Result<Vec<(Token, f32)>> {
        let vocab = self.vocab();
        let mut biases = std::collections::BTreeMap::new();
        if request.ignore_eos {
            biases.extend(vocab.eog_tokens().map(|token| (token, f32::NEG_INFINITY)));
        }
        for entry in &request.logit_bias {
            match &entry.target {
                BiasTarget::Token(token) if vocab.contains(*token) => {
                    biases.insert(*token, entry.bias);
                }
                BiasTarget::Token(token) => {
                    let n = vocab.n_tokens();
                    return Err(Error::invalid(format!("logit_bias: {token} is not in the vocabulary of {n} tokens")));
                }
                BiasTarget::Text(text) => {
                    let tokens = vocab.tokenize(text.as_bytes(), false, false)?;
                    biases.extend(tokens.into_iter().map(|token| (token, entry.bias)));
                }
            }
        }
        Ok(biases.into_iter().collect())
    }

    /// `prompt_stats` as far as can be told before the request has a slot: by the free slot whose cache fits best.
    fn expected_prompt_stats(&self, record: &Record) -> Value {
        let n_keep = session::keep(record.n_keep, record.prompt.len(), record.n_ctx);
        let left_out = session::leave_out(record.prompt.len(), n_keep, record.n_ctx);
        let mut prompt = record.prompt.clone();
        if let Some(range) = left_out {
            prompt.drain(range);
        }
        let caches = self.engine_status().slots.into_iter().filter_map(|slot| slot.cache);
        let common = caches.map(|cache| session::common_prefix(&cache, &prompt)).max().unwrap_or(0);
        let cached = common.min(prompt.len().saturating_sub(1));
        response::prompt_stats(self.vocab(), &record.prompt, record.n_ctx, n_keep, cached)
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
    let id = match fields.get("id") {
        None => None,
        Some(value) => Some(
            value
                .as_u64()
                .ok_or_else(|| Error::invalid(format!("id: expected a request's number, got {}", show(value))))?,
        ),
    };
    let wait: i64 = fields.int("timeout_ms", 0..=MAX_POLL_MS)?.unwrap_or(0);
    Ok((id, Duration::from_millis(u64::try_from(wait).unwrap_or(0)), fields.finish()))
}

/// `__debug`: the answer into the log.
fn debug(record: &Record, answer: &Value) {
    if record.debug {
        log::always(Level::Info, &format!("answer: {answer}"));
    }
}
