//! The requests of an engine by id: running ones, and finished ones that have not been polled to their end. Each has the data that its
//! answers need besides the engine's events. A signal wakes polls of several requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use once_cell::sync::OnceCell;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::prompts::chat_format::MessageStream;
use crate::api::prompts::{PreparedPrompt, ServedModel};
use crate::api::wire::request::CompletionRequest;
use crate::api::wire::usage::EndedUsage;
use crate::engine::{Generated, Phase, RequestHandle};
use crate::error::{Code, Error, Result};
use crate::llama::Token;

/// The maximum number of finished requests whose results wait to be polled. Beyond it, those that finished first are dropped.
pub const MAX_UNPOLLED: usize = 256;
/// The maximum number of requests that were polled to their end and are still reported as `finished`, without results.
pub const MAX_ENDED: usize = 4096;

/// The requests of an engine, also those of models that were loaded before and have not been polled to their ends.
#[derive(Default)]
pub struct RequestRegistry {
    entries: Mutex<RegistryEntries>,
    /// Signals updates of any request.
    pub updates: UpdateSignal,
}

#[derive(Default)]
struct RegistryEntries {
    /// The requests by id. Ids ascend in the order of submission.
    records: BTreeMap<u64, Arc<RequestRecord>>,
    /// Ids of requests that were polled to their end.
    ended: VecDeque<u64>,
    /// Requests that stay known when later models are unloaded.
    kept: BTreeSet<u64>,
    /// The requests of the loaded models have no ids below this one.
    first: u64,
}

impl RegistryEntries {
    /// Marks a request as polled to its end and drops its results.
    fn end(&mut self, id: u64) {
        if self.records.remove(&id).is_some() {
            self.ended.push_back(id);
        }
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
    }
}

impl RequestRegistry {
    /// Adds a request.
    pub fn add(&self, record: Arc<RequestRecord>) {
        let mut entries = self.entries.lock();
        entries.records.insert(record.handle.id(), record);
        // A preparation has no results to poll.
        let is_over = |record: &RequestRecord| record.is_preparation() && record.handle.ended().is_some();
        let over = entries.records.iter().filter(|(_, record)| is_over(record)).map(|(id, _)| *id);
        over.collect::<Vec<u64>>().into_iter().for_each(|id| entries.end(id));
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

    /// Finds a request. `None`: it was polled to its end.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub fn find(&self, id: u64) -> Result<Option<Arc<RequestRecord>>> {
        let entries = self.entries.lock();
        match entries.records.get(&id) {
            None if !entries.ended.contains(&id) => {
                Err(Error::new(Code::NotFound, format!("id: there is no request {id}")))
            }
            record => Ok(record.cloned()),
        }
    }

    /// Marks a request as polled to its end and drops its results.
    pub fn end(&self, id: u64) {
        self.entries.lock().end(id);
    }

    /// Whether a request came after the newest unload.
    pub fn is_served(&self, id: u64) -> bool {
        self.find(id).is_ok() && id >= self.entries.lock().first
    }

    /// Keeps a request known after any number of loads and unloads. `released`: the request that was kept until now.
    pub fn keep(&self, id: u64, released: Option<u64>) {
        let kept = &mut self.entries.lock().kept;
        kept.insert(id);
        released.map(|released| kept.remove(&released));
    }

    /// The loaded models are unloaded, which has ended their requests. Those of the models before them are forgotten.
    pub fn unloaded(&self) {
        let RegistryEntries { records, ended, kept, first } = &mut *self.entries.lock();
        let stays = |id: &u64| *id >= *first || kept.contains(id);
        records.retain(|id, _| stays(id));
        ended.retain(stays);
        *first = records.keys().chain(ended.iter()).max().map_or(0, |newest| newest + 1).max(*first);
    }
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
    /// The request, without its prompts.
    pub request: CompletionRequest,
    /// The model that generates.
    pub model: ServedModel,
    pub completions: Vec<CompletionRecord>,
    /// The message of each completion of a chat, as far as polls have taken its text.
    pub messages: Vec<Mutex<MessageStream>>,
    /// The findings of the engine's process, where that is another one.
    pub accepted: OnceCell<AcceptedRequest>,
    /// Why that process has refused the request.
    pub refusal: OnceCell<Error>,
    /// Warnings that come while it runs.
    pub late_warnings: Mutex<Vec<String>>,
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

/// One completion of a request.
pub struct CompletionRecord {
    /// Another completion of the prompt of the one before it (`n_cmpl`).
    pub is_copy: bool,
    /// Set when the prompt is tokenized.
    pub prompt: OnceCell<Arc<PreparedPrompt>>,
    /// How many of the prompt's tokens were expected to be cached when the request was queued, if they were known then.
    pub expected_cached: Option<usize>,
    /// The prompt as given in the request; null for messages and infill.
    pub given: Arc<Value>,
    /// `generation_settings`.
    pub settings: Value,
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
    /// The record of a request that is to be queued.
    pub fn new(
        handle: Arc<RequestHandle>,
        is_awaited: bool,
        request: CompletionRequest,
        model: ServedModel,
        completions: Vec<CompletionRecord>,
        messages: Vec<Mutex<MessageStream>>,
    ) -> RequestRecord {
        RequestRecord {
            handle,
            is_awaited,
            request,
            model,
            completions,
            messages,
            accepted: OnceCell::new(),
            refusal: OnceCell::new(),
            late_warnings: Mutex::default(),
            polled: PolledTokens::default(),
            ended_usage: EndedUsage::default(),
        }
    }

    /// Whether it prepares another request, so that polls take no updates.
    pub fn is_preparation(&self) -> bool {
        self.request.options.is_preparation()
    }

    /// Whether the answers have the probabilities of tokens.
    pub fn with_probs(&self) -> bool {
        self.request.sampling.n_probs > 0
    }

    /// Whether the final response has the prompt.
    pub fn shows_prompt(&self) -> bool {
        let CompletionRequest { translation, reply, .. } = &self.request;
        translation.shows_prompt || reply.response_fields.iter().any(|field| field == "prompt")
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
        let mut warnings = self.accepted.get().map_or(&self.request.warnings, |accepted| &accepted.warnings).clone();
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
    /// There is an update.
    pub fn signal(&self) {
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
