//! The fields of a request that say what its answers have.

use serde_json::Value;

use super::options::{flag, own_text};
use crate::api::wire::fields::{Fields, did_you_mean, show, unexpected};
use crate::error::Result;

/// The fields of a final response that the answer of a decision has.
const DECISION_FIELDS: [&str; 6] = ["status", "model", "answers", "usage", "stop_type", "timings"];

/// The fields that a final response can have.
const ANSWER_FIELDS: [&str; 46] = [
    "answers",
    "success",
    "status",
    "error",
    "code",
    "missing_file",
    "content",
    "stop",
    "id",
    "id_slot",
    "index",
    "model",
    "tokens_predicted",
    "tokens_evaluated",
    "tokens_cached",
    "generation_settings",
    "truncated",
    "stopped_eos",
    "stopped_word",
    "stopped_limit",
    "stopping_word",
    "stop_type",
    "timings",
    "prompt_stats",
    "prompt",
    "speculative",
    "choice",
    "choices",
    "session_load",
    "session_save",
    "completion_probabilities",
    "message",
    "finish_reason",
    "usage",
    "reasoning_format",
    "logprobs",
    "prompt_logprobs",
    "tokens",
    "sources",
    "warnings",
    "tag",
    "results",
    "delta",
    "role",
    "reasoning_content",
    "tool_calls",
];

/// The contents of the answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The fields of the final response, by name (`a/b` is `b` in `a`). Empty: all.
    pub response_fields: Vec<String>,
    /// Updates have `tokens` and `sources`.
    pub return_tokens: bool,
    /// Updates have `timings`.
    pub timings_per_token: bool,
    /// `stream_options.include_usage`: all updates have `usage`, which is null but in the request's last one.
    pub include_usage: bool,
    /// Returned in every update.
    pub tag: Option<Value>,
    /// The request and its answers are logged.
    pub debug: bool,
}

impl Reply {
    /// Whether the answers have the field `name` of the object `parent`.
    pub fn wants(&self, parent: &str, name: &str) -> bool {
        let is_named = |field: &String| field == parent || field.split_once('/') == Some((parent, name));
        self.response_fields.is_empty() || self.response_fields.iter().any(is_named)
    }
}

/// Reads them. `is_decision`: the answer is that of a decision.
pub(super) fn reply(fields: &mut Fields, is_decision: bool) -> Result<Reply> {
    let mut response_fields = response_fields(fields)?;
    if is_decision && response_fields.is_empty() {
        response_fields = DECISION_FIELDS.map(str::to_owned).to_vec();
    }
    Ok(Reply {
        response_fields,
        return_tokens: flag(fields, "return_tokens", false)?,
        timings_per_token: flag(fields, "timings_per_token", false)?,
        include_usage: include_usage(fields)?,
        tag: fields.get_any("tag").cloned(),
        debug: flag(fields, "__debug", false)?,
    })
}

/// Reads OpenAI's `stream_options`. Its `include_obfuscation` is for streams that others can watch.
fn include_usage(fields: &mut Fields) -> Result<bool> {
    let Some(value) = fields.get("stream_options") else { return Ok(false) };
    let Value::Object(map) = value else {
        return Err(unexpected("stream_options", r#"{"include_usage": ...}"#, value));
    };
    let mut inner = Fields::nested("stream_options.", map);
    inner.flag("include_obfuscation")?;
    let include_usage = flag(&mut inner, "include_usage", false)?;
    fields.absorb(inner);
    Ok(include_usage)
}

/// Reads `response_fields`. A name that no answer has is named in a warning.
fn response_fields(fields: &mut Fields) -> Result<Vec<String>> {
    let names = fields.list("response_fields", "an array of names", own_text)?.unwrap_or_default();
    for name in &names {
        let first = name.split('/').next().unwrap_or_default();
        if !ANSWER_FIELDS.contains(&first) {
            let hint = did_you_mean(first, ANSWER_FIELDS.iter().copied());
            fields.warn(format!("response_fields: the answer has no field {}{hint}", show(&name.as_str().into())));
        }
    }
    Ok(names)
}
