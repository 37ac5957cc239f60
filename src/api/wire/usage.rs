//! `usage` and `finish_reason`: what a completion cost and why it ended, under OpenAI's names.

use foredraft_chat::ChatMessage;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::api::wire::answer::with_fields;
use crate::engine::{Outcome, Stop};

/// Numbers of tokens, of one completion or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenUsage {
    prompt: usize,
    cached: usize,
    completion: usize,
    accepted: usize,
    drafted: usize,
}

impl TokenUsage {
    pub fn of(outcome: &Outcome) -> TokenUsage {
        let (drafted, accepted) =
            outcome.speculation.as_ref().map_or((0, 0), |stats| (stats.n_drafted, stats.n_accepted));
        TokenUsage {
            prompt: outcome
                .decisions
                .iter()
                .map(|scores| scores.n_tokens)
                .fold(outcome.prompt.n_prompt, usize::saturating_add),
            cached: outcome.prompt.n_cached,
            completion: outcome.n_predicted,
            accepted,
            drafted,
        }
    }

    /// The usage of prompts without a completion.
    pub fn of_prompts(prompt: usize) -> TokenUsage {
        TokenUsage { prompt, ..TokenUsage::default() }
    }

    /// Adds a completion. `is_copy`: of a prompt that is counted already.
    pub fn add(&mut self, outcome: &Outcome, is_copy: bool) {
        let other = TokenUsage::of(outcome);
        let counted = |count: usize| if is_copy { 0 } else { count };
        // The process of an isolated engine can send any numbers.
        self.prompt = self.prompt.saturating_add(counted(other.prompt));
        self.cached = self.cached.saturating_add(counted(other.cached));
        self.completion = self.completion.saturating_add(other.completion);
        self.accepted = self.accepted.saturating_add(other.accepted);
        self.drafted = self.drafted.saturating_add(other.drafted);
    }

    /// The usage of a decision, under TypeSafe's names too.
    pub fn of_decision(self) -> Value {
        let counts = [("input_tokens", self.prompt.into()), ("output_tokens", self.completion.into())];
        with_fields(self.to_json(), counts)
    }

    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt.saturating_add(self.completion),
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.drafted.saturating_sub(self.accepted),
            },
        })
    }
}

/// The usage of a request's completions that have ended.
#[derive(Debug, Default)]
pub struct EndedUsage(Mutex<(usize, TokenUsage)>);

impl EndedUsage {
    /// Adds a completion. Returns the usage of all if it is the last of `n`.
    pub fn add(&self, outcome: &Outcome, is_copy: bool, n: usize) -> Option<TokenUsage> {
        let (n_ended, usage) = &mut *self.0.lock();
        *n_ended += 1;
        usage.add(outcome, is_copy);
        (*n_ended == n).then_some(*usage)
    }
}

/// OpenAI's `finish_reason`; null if the completion was cancelled or failed. `message`: of a request with messages. `with_function_call`:
/// its calls are in OpenAI's older form.
pub fn finish_reason(stop: &Stop, message: Option<&ChatMessage>, with_function_call: bool) -> Value {
    let has_calls = message.is_some_and(|message| !message.calls.is_empty());
    match stop {
        Stop::Eos | Stop::Word(_) if has_calls && with_function_call => json!("function_call"),
        Stop::Eos | Stop::Word(_) if has_calls => json!("tool_calls"),
        Stop::Eos | Stop::Word(_) => json!("stop"),
        Stop::Limit | Stop::Timeout => json!("length"),
        Stop::Cancelled | Stop::Error(_) => Value::Null,
    }
}
