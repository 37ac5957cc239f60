//! The fields that the engine gets as they are: limits, order, slots and sessions.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::defaults::RequestDefaults;
use crate::api::wire::fields::{Fields, text_in, unexpected};
use crate::engine::{MAX_BEAMS, RequestOptions};
use crate::error::Result;

/// The maximum time limit: a year. A larger one could overflow when added to a clock.
const MAX_TIMEOUT_MS: i64 = 365 * 24 * 60 * 60 * 1000;
/// The lowest and the highest `priority`.
const PRIORITIES: RangeInclusive<i64> = -10..=10;
/// The most bytes of the name of a conversation.
const MAX_CONVERSATION: usize = 256;
/// The maximum `prompt_logprobs`, as of `n_probs`.
const MAX_PROMPT_LOGPROBS: i64 = 1 << 20;

/// Reads them. `elapsed`: the time since the request came.
pub(super) fn options(
    fields: &mut Fields,
    cuts_begun_stop: bool,
    elapsed: Duration,
    defaults: &RequestDefaults,
) -> Result<RequestOptions> {
    let deadline: Option<u64> = fields.int("deadline_ms", 1..=MAX_TIMEOUT_MS)?;
    Ok(RequestOptions {
        n_predict: n_predict(fields)?,
        ends_when_full: !flag(fields, "ctx_shift", true)?,
        n_keep: count_or_all(fields, "n_keep")?.unwrap_or(defaults.n_keep),
        stop: stop(fields)?,
        cuts_begun_stop,
        special: flag(fields, "special", false)?,
        timeout: duration(fields, "timeout_ms")?,
        priority: fields.int("priority", PRIORITIES)?.unwrap_or(0),
        deadline: deadline.map(Duration::from_millis),
        elapsed,
        t_max_predict: duration(fields, "t_max_predict_ms")?,
        n_beams: fields.int("n_beams", 0..=MAX_BEAMS as i64)?.unwrap_or(0),
        slot: count_or_all(fields, "id_slot")?.flatten(),
        conversation: conversation_name(fields, "conversation")?,
        cache_prompt: flag(fields, "cache_prompt", true)?,
        n_cache_reuse: fields.int("n_cache_reuse", 0..=i64::from(i32::MAX))?.unwrap_or(defaults.n_cache_reuse),
        session_load: fields.c_text("session_load")?.map(PathBuf::from),
        session_save: fields.c_text("session_save")?.map(PathBuf::from),
        seed_position: fields.int("seed_position", 0..=i64::from(u32::MAX))?,
        post_sampling_probs: flag(fields, "post_sampling_probs", false)?,
        progress: flag(fields, "return_progress", false)?,
        preserved_tokens: Arc::default(),
        prompt_probs: fields.int("prompt_logprobs", 0..=MAX_PROMPT_LOGPROBS)?,
    })
}

/// Reads the name of a conversation.
///
/// # Errors
/// It is no text, too long, or has control characters.
pub fn conversation_name(fields: &mut Fields, key: &'static str) -> Result<Option<Arc<str>>> {
    let Some(value) = fields.get(key) else { return Ok(None) };
    let text = value.as_str().filter(|text| (1..=MAX_CONVERSATION).contains(&text.len()));
    let expected = format!("a string of 1 to {MAX_CONVERSATION} bytes without control characters");
    let text = text.filter(|text| !text.contains(char::is_control));
    text.map(|text| Some(Arc::from(text))).ok_or_else(|| unexpected(key, &expected, value))
}

pub(super) fn flag(fields: &mut Fields, key: &'static str, default: bool) -> Result<bool> {
    Ok(fields.flag(key)?.unwrap_or(default))
}

/// Reads a count. -1 (`Some(None)`) means all, any, or no limit.
fn count_or_all(fields: &mut Fields, key: &'static str) -> Result<Option<Option<usize>>> {
    let count: Option<i64> = fields.int(key, -1..=i64::from(i32::MAX))?;
    Ok(count.map(|count| usize::try_from(count).ok()))
}

/// Reads `n_predict`, or its aliases `max_tokens` and `max_completion_tokens`.
fn n_predict(fields: &mut Fields) -> Result<Option<usize>> {
    let others = [count_or_all(fields, "max_completion_tokens")?, count_or_all(fields, "max_tokens")?];
    Ok(count_or_all(fields, "n_predict")?.or(others.into_iter().flatten().next()).flatten())
}

/// Reads a limit in milliseconds. 0 and -1 mean no limit.
///
/// # Errors
/// It is not a whole number, or out of range.
pub fn duration(fields: &mut Fields, key: &'static str) -> Result<Option<Duration>> {
    let limit: Option<i64> = fields.int(key, -1..=MAX_TIMEOUT_MS)?;
    Ok(limit.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0).map(Duration::from_millis))
}

pub(super) fn own_text(name: &str, value: &Value) -> Result<String> {
    text_in(name, value).map(str::to_owned)
}

/// Reads `stop`: a string, or an array of strings. Empty strings are dropped, as in the old server.
fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let words = match fields.get("stop") {
        Some(Value::String(word)) => vec![word.clone()],
        _ => fields.list("stop", "an array of strings", own_text)?.unwrap_or_default(),
    };
    Ok(words.into_iter().filter(|word| !word.is_empty()).collect())
}
