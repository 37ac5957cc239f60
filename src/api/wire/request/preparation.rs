//! Preparations of requests that may come.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::{CompletionRequest, Input, Prompt};
use crate::engine::PREPARATION;
use crate::error::{Error, Result};

/// The keys that change no token of a completion: how long it becomes, when it is served, and how it is reported.
const OTHER_KEYS: [&str; 19] = [
    "begin",
    "ctx_shift",
    "n_predict",
    "max_tokens",
    "max_completion_tokens",
    "priority",
    "deadline_ms",
    "timeout_ms",
    "stream",
    "stream_options",
    "tag",
    "response_fields",
    "return_tokens",
    "return_progress",
    "timings_per_token",
    "t_max_predict_ms",
    "stop",
    "seed",
    "__debug",
];

/// A number that the requests of a process share whose completions have the same tokens, because prompt and settings are the same.
pub fn identity(object: &Map<String, Value>, request: &CompletionRequest) -> u64 {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let kept: Map<String, Value> = object
        .iter()
        .filter(|(key, _)| !OTHER_KEYS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    // Without a temperature nothing is drawn.
    let seed = (request.sampling.temperature > 0.0).then_some(request.sampling.seed);
    HASHER.hash_one((kept, seed))
}

impl CompletionRequest {
    /// Makes a preparation of the request. It generates nothing, unless it `begins` the answer.
    ///
    /// # Errors
    /// The request names no place for its state, has several completions, or what cannot be prepared.
    pub(super) fn into_preparation(mut self, begins: bool) -> Result<CompletionRequest> {
        let options = &self.options;
        if options.place().is_none() {
            return Err(Error::invalid("conversation: expected the conversation to prepare, or id_slot, got nothing"));
        }
        if self.n_completions() > 1 {
            let n = self.n_completions();
            let key = if self.n_cmpl > 1 { "n_cmpl" } else { "prompts" };
            return Err(Error::invalid(format!("{key}: expected one completion to prepare, got {n}")));
        }
        let others = [
            ("session_load", options.session_load.is_some()),
            ("session_save", options.session_save.is_some()),
            ("prompt_logprobs", options.prompt_probs.is_some()),
            ("n_beams", options.n_beams > 1),
            ("speculative.model \"draft\"", self.speculative.draft_only),
            ("cache_prompt false", !options.cache_prompt),
        ];
        if let Some((name, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
            return Err(Error::invalid(format!("{name}: cannot be prepared")));
        }
        // A path or an address may have another picture or sound when the request comes.
        let may_change = |input: &Input| match &input.prompt {
            Prompt::Messages(chat) => chat.media.iter().any(|given| !given.source.is_in_request()),
            Prompt::Text(_) | Prompt::Infill(_) => false,
        };
        let others = [
            ("pictures or sounds at a path or an address", self.inputs.all.iter().any(may_change)),
            ("logits_callback", self.logits_callback),
            ("choices", self.choices.is_some()),
            ("questions", !self.questions.is_empty()),
        ];
        if let Some((name, _)) = others.into_iter().find(|(_, is_given)| begins && *is_given) {
            return Err(Error::invalid(format!("begin: not available with {name}")));
        }
        if begins && self.seed_is_drawn && self.sampling.temperature > 0.0 {
            let warning =
                "begin: the request has no seed, so a later request has another one and does not take over the answer";
            self.warnings.push(warning.to_owned());
        }
        (self.logits_callback, self.choices, self.speculative.compare) = (false, None, false);
        let options = &mut self.options;
        (options.priority, options.deadline, options.timeout) = (PREPARATION, None, None);
        (options.ends_when_full, options.progress) = (true, false);
        if !begins {
            options.n_predict = Some(0);
        }
        Ok(self)
    }
}
