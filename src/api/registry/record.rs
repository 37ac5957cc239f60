//! What the answers to a request need besides the engine's events.

use std::collections::BTreeMap;
use std::sync::Arc;

use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use serde_json::Value;

use crate::api::prompts::PreparedPrompt;
use crate::api::request::{Endpoint, Reply};
use crate::engine::{Generated, RequestHandle};
use crate::llama::Token;
use crate::speculative;

/// One request.
pub(in crate::api) struct RequestRecord {
    pub(in crate::api) handle: Arc<RequestHandle>,
    pub(in crate::api) endpoint: Endpoint,
    /// Its caller waits for the final response, so polls take no updates.
    pub(in crate::api) is_awaited: bool,
    pub(in crate::api) completions: Vec<CompletionRecord>,
    /// Its prompts were tokenized before it was queued.
    pub(in crate::api) is_prepared: bool,
    /// The answer has `results`, and updates have an `index`.
    pub(in crate::api) has_results: bool,
    pub(in crate::api) model: String,
    pub(in crate::api) n_ctx: usize,
    /// Draft-only mode: the draft model generates.
    pub(in crate::api) draft_only: bool,
    pub(in crate::api) n_keep: Option<usize>,
    pub(in crate::api) with_probs: bool,
    /// The probabilities are taken after the sampler chain.
    pub(in crate::api) post_sampling_probs: bool,
    pub(in crate::api) reply: Reply,
    /// The `type` that it speculates with, and its verification rule.
    pub(in crate::api) speculation: Option<(Value, speculative::Verify)>,
    /// Why the request does not speculate, if its answer has to say so.
    pub(in crate::api) not_speculating: Option<String>,
    /// Its completions are compared with those without speculation.
    pub(in crate::api) compare: bool,
    pub(in crate::api) warnings: Vec<String>,
    /// With `n_probs`: the tokens that polls have taken.
    pub(in crate::api) polled: PolledTokens,
}

/// One completion of a request.
pub(in crate::api) struct CompletionRecord {
    /// Set when the prompt is tokenized.
    pub(in crate::api) prompt: OnceCell<Arc<PreparedPrompt>>,
    /// The prompt as given in the request; null for messages and infill.
    pub(in crate::api) given: Arc<Value>,
    /// The LoRA scales. A cached prompt must have been decoded with the same ones.
    pub(in crate::api) lora: Vec<f32>,
    /// It may reuse a slot's cached prompt.
    pub(in crate::api) reuses_cache: bool,
    /// `id_slot`, if given.
    pub(in crate::api) slot: Option<usize>,
    /// `generation_settings`.
    pub(in crate::api) settings: Value,
}

/// The tokens that polls have taken of each completion. The last update needs them, because it has the probabilities of all tokens.
#[derive(Default)]
pub(in crate::api) struct PolledTokens(Mutex<BTreeMap<usize, Vec<Generated>>>);

impl PolledTokens {
    /// Appends tokens of a completion.
    pub(in crate::api) fn add(&self, completion: usize, tokens: Vec<Generated>) {
        self.0.lock().entry(completion).or_default().extend(tokens);
    }

    /// Removes and returns all tokens of a completion.
    pub(in crate::api) fn take(&self, completion: usize) -> Vec<Generated> {
        self.0.lock().remove(&completion).unwrap_or_default()
    }
}

impl RequestRecord {
    /// Sets the prompts of all completions.
    pub(in crate::api) fn set_prompts(&self, prompts: Vec<Arc<PreparedPrompt>>) {
        for (completion, prompt) in self.completions.iter().zip(prompts) {
            // Called once for each request, so the cell is empty.
            let _ = completion.prompt.set(prompt);
        }
    }

    /// The warnings known so far.
    pub(in crate::api) fn warnings(&self) -> Vec<String> {
        // Only messages give a warning, and all completions of a request share its messages.
        let of_prompt = self.completions.first().and_then(|completion| completion.prompt.get()?.warning.clone());
        self.warnings.iter().cloned().chain(of_prompt).collect()
    }
}

impl CompletionRecord {
    /// The prompt's tokens before truncation; empty until it is tokenized.
    pub(in crate::api) fn tokens(&self) -> &[Token] {
        self.prompt.get().map_or(&[], |prompt| &prompt.tokens)
    }

    /// The prompt as the answer shows it.
    pub(in crate::api) fn shown_prompt(&self) -> Value {
        let rendered = self.prompt.get().and_then(|prompt| prompt.text.clone());
        rendered.unwrap_or_else(|| self.given.as_ref().clone())
    }
}
