//! The requests of an engine by id: running ones, and finished ones that have not been polled to their end. Each has the data that its
//! answers need besides the engine's events. A signal wakes polls of several requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::prompts::PreparedPrompt;
use crate::api::prompts::chat_format::MessageStream;
use crate::api::wire::request::{AskedQuestion, CompletionRequest, ReasoningFormat, Reply};
use crate::api::wire::usage::EndedUsage;
use crate::engine::{Generated, Notify, Phase, RequestHandle};
use crate::error::{Code, Error, Result};
use crate::llama::{Token, TokenPieces};
use crate::speculative;

/// The maximum number of finished requests whose results wait to be polled. Beyond it, those that finished first are dropped.
pub const MAX_UNPOLLED: usize = 256;
/// The maximum number of requests that were polled to their end and are still reported as `finished`, without results.
pub const MAX_ENDED: usize = 4096;

/// All requests of an engine.
#[derive(Default)]
pub struct RequestRegistry {
    entries: Mutex<RegistryEntries>,
}

#[derive(Default)]
struct RegistryEntries {
    /// The requests by id. Ids ascend in the order of submission.
    records: BTreeMap<u64, Arc<RequestRecord>>,
    /// Ids of requests that were polled to their end.
    ended: VecDeque<u64>,
}

/// The result of looking up a request.
pub enum FoundRequest {
    /// Its updates can be taken.
    Live(Arc<RequestRecord>),
    /// It was polled to its end.
    Ended,
}

impl RequestRegistry {
    /// Adds a request.
    pub fn add(&self, record: Arc<RequestRecord>) {
        let mut entries = self.entries.lock();
        entries.records.insert(record.handle.id(), record);
        let mut ended: Vec<_> =
            entries.records.iter().filter_map(|(id, record)| Some((record.handle.ended()?, *id))).collect();
        let surplus = ended.len().saturating_sub(MAX_UNPOLLED);
        if surplus > 0 {
            ended.sort_unstable();
        }
        for (_, id) in ended.iter().take(surplus) {
            entries.records.remove(id);
        }
    }

    /// The ids of the requests that have not finished, the newest first.
    pub fn unfinished(&self) -> Vec<u64> {
        let is_unfinished = |(_, record): &(&u64, &Arc<RequestRecord>)| record.handle.phase() != Phase::Finished;
        self.entries.lock().records.iter().rev().filter(is_unfinished).map(|(id, _)| *id).collect()
    }

    /// The ids of the requests whose updates polls can take.
    pub fn pollable(&self) -> Vec<u64> {
        let entries = self.entries.lock();
        entries.records.iter().filter(|(_, record)| !record.is_awaited).map(|(id, _)| *id).collect()
    }

    /// Finds a request.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub fn find(&self, id: u64) -> Result<FoundRequest> {
        let entries = self.entries.lock();
        if let Some(record) = entries.records.get(&id) {
            return Ok(FoundRequest::Live(Arc::clone(record)));
        }
        if entries.ended.contains(&id) {
            return Ok(FoundRequest::Ended);
        }
        Err(no_such_request(id))
    }

    /// Marks a request as polled to its end and drops its results.
    pub fn end(&self, id: u64) {
        let mut entries = self.entries.lock();
        if entries.records.remove(&id).is_some() {
            entries.ended.push_back(id);
        }
        while entries.ended.len() > MAX_ENDED {
            entries.ended.pop_front();
        }
    }
}

/// The error for an id that no request of this engine has, or no longer has.
pub fn no_such_request(id: u64) -> Error {
    Error::new(Code::NotFound, format!("id: there is no request {id}"))
}

/// The error for a request with `logits_callback` whose host has set none.
pub fn no_logits_callback() -> Error {
    Error::invalid("logits_callback: no callback is set; call foredraft_set_logits_callback first")
}

/// One request.
pub struct RequestRecord {
    pub handle: Arc<RequestHandle>,
    /// Its caller waits for the final response, so polls take no updates.
    pub is_awaited: bool,
    pub completions: Vec<CompletionRecord>,
    /// The findings of the engine's process, where that is another one.
    pub accepted: OnceCell<AcceptedRequest>,
    /// Warnings that come while it runs.
    pub late_warnings: Mutex<Vec<String>>,
    /// The tokens of the model that generates.
    pub pieces: Arc<TokenPieces>,
    /// Its prompts were tokenized before it was queued.
    pub is_prepared: bool,
    /// The answer has `results`, and updates have an `index`.
    pub has_results: bool,
    pub model: String,
    pub n_ctx: usize,
    /// Draft-only mode: the draft model generates.
    pub draft_only: bool,
    /// The choices of a decision, as they are given back.
    pub choices: Vec<Map<String, Value>>,
    /// The questions of a decision, which have the answers.
    pub questions: Arc<[AskedQuestion]>,
    pub n_keep: Option<usize>,
    pub with_probs: bool,
    /// The probabilities are taken after the sampler chain.
    pub post_sampling_probs: bool,
    pub reply: Reply,
    /// The final response has the prompt.
    pub shows_prompt: bool,
    /// The `type` that it speculates with, and its verification rule.
    pub speculation: Option<(Value, speculative::Verify)>,
    /// Why the request does not speculate, if its answer has to say so.
    pub not_speculating: Option<String>,
    /// Its completions are compared with those without speculation.
    pub compare: bool,
    /// How the messages of a chat's answer are read.
    pub chat: Option<ChatRecord>,
    pub warnings: Vec<String>,
    /// The tokens that polls have taken, with `n_probs`.
    pub polled: PolledTokens,
    /// The usage of the completions whose ends polls have taken.
    pub ended_usage: EndedUsage,
}

/// The findings of the engine's process about a request in another one.
#[derive(Debug, Serialize, Deserialize)]
pub struct AcceptedRequest {
    /// `generation_settings` of each completion.
    pub settings: Vec<Value>,
    pub warnings: Vec<String>,
}

/// Where a request runs, and which model generates it.
pub struct RecordPlace {
    pub handle: Arc<RequestHandle>,
    pub is_awaited: bool,
    pub is_prepared: bool,
    pub model: String,
    pub n_ctx: usize,
    pub pieces: Arc<TokenPieces>,
}

/// One completion of a request.
pub struct CompletionRecord {
    /// Another completion of the prompt of the one before it (`n_cmpl`).
    pub is_copy: bool,
    /// Set when the prompt is tokenized.
    pub prompt: OnceCell<Arc<PreparedPrompt>>,
    /// The prompt as given in the request; null for messages and infill.
    pub given: Arc<Value>,
    /// The LoRA scales. A cached prompt must have been decoded with the same ones.
    pub lora: Vec<f32>,
    /// It may reuse a slot's cached prompt.
    pub reuses_cache: bool,
    /// `id_slot`, if given.
    pub slot: Option<usize>,
    /// `generation_settings`.
    pub settings: Value,
}

/// The data for the answers to a request with messages.
pub struct ChatRecord {
    pub reasoning_format: ReasoningFormat,
    /// The answers have log-probabilities in OpenAI's form, with this number of alternatives.
    pub logprobs: Option<usize>,
    /// The answers have OpenAI's older `function_call`.
    pub with_function_call: bool,
    /// The message of each completion, as far as polls have taken its text.
    pub messages: Vec<Mutex<MessageStream>>,
}

/// The tokens that polls have taken of each completion. The last update needs them, because it has the probabilities of all tokens.
#[derive(Default)]
pub struct PolledTokens(Mutex<BTreeMap<usize, Vec<Generated>>>);

impl PolledTokens {
    /// Appends tokens of a completion.
    pub fn add(&self, completion: usize, tokens: Vec<Generated>) {
        self.0.lock().entry(completion).or_default().extend(tokens);
    }

    /// Removes and returns all tokens of a completion.
    pub fn take(&self, completion: usize) -> Vec<Generated> {
        self.0.lock().remove(&completion).unwrap_or_default()
    }
}

impl RequestRecord {
    /// The record of a request whose prompts are not known yet.
    pub fn new(
        request: CompletionRequest,
        place: RecordPlace,
        completions: Vec<CompletionRecord>,
        chat: Option<ChatRecord>,
    ) -> RequestRecord {
        let RecordPlace { handle, is_awaited, is_prepared, model, n_ctx, pieces } = place;
        let reply = &request.reply;
        RequestRecord {
            handle,
            is_awaited,
            completions,
            accepted: OnceCell::new(),
            late_warnings: Mutex::default(),
            pieces,
            is_prepared,
            has_results: request.has_results(),
            model,
            n_ctx,
            draft_only: request.speculative.draft_only,
            n_keep: request.options.n_keep,
            with_probs: request.sampling.n_probs > 0,
            post_sampling_probs: request.options.post_sampling_probs,
            shows_prompt: request.translation.shows_prompt
                || reply.response_fields.iter().any(|field| field == "prompt"),
            speculation: request
                .speculative
                .settings
                .as_ref()
                .map(|settings| (request.speculative.kind(), settings.verify)),
            compare: request.speculative.compare,
            chat,
            choices: request.choices.map(|choices| choices.given).unwrap_or_default(),
            questions: request.questions,
            not_speculating: request.speculative.disabled.map(str::to_owned),
            reply: request.reply,
            warnings: request.warnings,
            polled: PolledTokens::default(),
            ended_usage: EndedUsage::default(),
        }
    }

    /// Sets the prompts of all completions.
    pub fn set_prompts(&self, prompts: Vec<Arc<PreparedPrompt>>) {
        for (completion, prompt) in self.completions.iter().zip(prompts) {
            // Called once for each request, so the cell is empty.
            let _ = completion.prompt.set(prompt);
        }
    }

    /// The `generation_settings` of a completion.
    pub fn settings(&self, index: usize) -> Value {
        let accepted = self.accepted.get().and_then(|accepted| accepted.settings.get(index));
        accepted.or(self.completions.get(index).map(|completion| &completion.settings)).cloned().unwrap_or_default()
    }

    /// The warnings known so far.
    pub fn warnings(&self) -> Vec<String> {
        let prompts = self.completions.iter().filter_map(|completion| completion.prompt.get());
        let mut warnings = self.accepted.get().map_or(&self.warnings, |accepted| &accepted.warnings).clone();
        warnings.extend(self.late_warnings.lock().iter().cloned());
        for warning in prompts.flat_map(|prompt| prompt.warnings.iter()) {
            // Several completions can share a prompt.
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        warnings
    }
}

impl CompletionRecord {
    /// The prompt's tokens before truncation; empty until it is tokenized.
    pub fn tokens(&self) -> &[Token] {
        self.prompt.get().map_or(&[], |prompt| &prompt.tokens)
    }

    /// The prompt as the answer shows it.
    pub fn shown_prompt(&self) -> Value {
        let rendered = self.prompt.get().and_then(|prompt| prompt.text.clone());
        rendered.unwrap_or_else(|| self.given.as_ref().clone())
    }
}

/// A counter of updates of any request, with a condition variable.
#[derive(Default)]
pub struct UpdateSignal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl UpdateSignal {
    fn signal(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// The number of updates so far.
    pub fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until the count differs from `seen`, but not beyond `deadline`, and at most 50 ms.
    pub fn wait(&self, seen: u64, deadline: Instant) {
        // If another thread ends a queued request, the engine signals it only when it next looks at its queue.
        const MAX_WAIT: Duration = Duration::from_millis(50);
        let deadline = deadline.min(Instant::now() + MAX_WAIT);
        let mut count = self.count.lock();
        while *count == seen {
            if self.changed.wait_until(&mut count, deadline).timed_out() {
                return;
            }
        }
    }
}

/// A callback for the engine that signals, and then calls `notify`.
pub fn notify_and_signal(signal: &Arc<UpdateSignal>, notify: Arc<Notify>) -> Arc<Notify> {
    let signal = Arc::clone(signal);
    Arc::new(move |id| {
        signal.signal();
        notify(id);
    })
}
