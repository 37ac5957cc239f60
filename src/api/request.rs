//! The completion request: the one object that `get_completion`, `async_completion_init` and `speculative_*` take.

mod prompt;
mod sampling;
mod settings;

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde_json::{Map, Value};

pub use self::prompt::{Chat, Piece, Prompt};
pub use self::settings::generation_settings;
use super::fields::{Fields, c_text_in, int_in, number_in, show, text_in, unexpected};
use super::init::{RequestDefaults, read_seed};
use super::json_schema;
use super::speculative::{Family, Speculation};
use crate::error::{Error, Result};
use crate::llama::Token;
use crate::sampling::Settings;

/// The longest `timeout_ms`: a year. Longer ones could not be added to a clock.
const MAX_TIMEOUT_MS: i64 = 365 * 24 * 60 * 60 * 1000;
/// The largest `logit_bias`; a sum of a few, divided by a small temperature, still is an `f32`.
const MAX_BIAS: f32 = 1e9;

/// A validated completion request. What needs the vocabulary is left to the caller: strings are not tokenized
/// yet, token ids are not negative but may be too large, the grammar is not compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// What to continue.
    pub prompt: Prompt,
    /// `prompt` as it was given, for the answer; null with `messages`.
    pub prompt_given: Value,
    /// How tokens are chosen, the seed drawn. `logit_bias` is empty: see [`CompletionRequest::logit_bias`].
    pub sampling: Settings,
    /// Biases in the order given; of several for one token, the last counts.
    pub logit_bias: Vec<LogitBias>,
    /// Whether all tokens that end a text are banned (before `logit_bias`, which may allow them again).
    pub ignore_eos: bool,
    /// Texts that end the generation; none of them is empty.
    pub stop: Vec<String>,
    /// GBNF, not empty; given, or made of `json_schema`.
    pub grammar: Option<String>,
    /// A JSON schema that the text must be valid under.
    pub json_schema: Option<Value>,
    /// Most tokens to generate; `None`: until the model ends the text.
    pub n_predict: Option<usize>,
    /// Tokens that a shortened prompt keeps; `None`: the whole prompt.
    pub n_keep: Option<usize>,
    /// Whether a slot's cached prefix may be reused.
    pub cache_prompt: bool,
    /// The slot to run in, which may not exist; `None`: any.
    pub id_slot: Option<usize>,
    /// The hard limit on the time.
    pub timeout: Option<Duration>,
    /// Accepted for the old server's sake: the function called says whether updates come.
    pub stream: bool,
    /// Whether updates carry `tokens` and `sources`.
    pub return_tokens: bool,
    /// Whether updates carry `timings`.
    pub timings_per_token: bool,
    /// Whether the request and its answer are logged.
    pub debug: bool,
    /// Given back in every update.
    pub tag: Option<Value>,
    /// Whether and how to speculate.
    pub speculative: Speculation,
    /// Unknown keys.
    pub warnings: Vec<String>,
}

/// An entry of `logit_bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitBias {
    /// What gets it.
    pub target: BiasTarget,
    /// Added to the logit; `-inf` bans.
    pub bias: f32,
}

/// What an entry of `logit_bias` is about.
#[derive(Debug, Clone, PartialEq)]
pub enum BiasTarget {
    /// A token, by its id.
    Token(Token),
    /// Every token of this text.
    Text(String),
}

type AsksForNothing = fn(&Value) -> bool;

/// Fields that another version serves, each with the values that ask for nothing.
const TO_COME: [(&str, AsksForNothing); 16] = [
    ("prompts", is_empty),
    ("n_beams", is_at_most_one),
    ("n_cmpl", is_at_most_one),
    ("t_max_predict_ms", |value| value.as_f64().is_some_and(|ms| ms <= 0.0)),
    ("post_sampling_probs", is_false),
    ("return_progress", is_false),
    ("response_fields", is_empty),
    ("lora", is_empty),
    ("input_prefix", is_empty),
    ("input_suffix", is_empty),
    ("input_extra", is_empty),
    ("session_load", is_empty),
    ("session_save", is_empty),
    ("prediction", is_empty),
    ("lookup_cache_static", is_empty),
    ("lookup_cache_dynamic", is_empty),
];

fn is_false(value: &Value) -> bool {
    *value == false
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn is_at_most_one(value: &Value) -> bool {
    matches!(value.as_f64(), Some(0.0 | 1.0))
}

impl CompletionRequest {
    /// Reads a request that came through a function of `family`, with `init`'s defaults.
    ///
    /// # Errors
    /// A field of the wrong type, out of range, or not available in this version.
    pub fn from_object(
        object: &Map<String, Value>,
        family: Family,
        defaults: &RequestDefaults,
    ) -> Result<CompletionRequest> {
        let mut fields = Fields::new(object);
        let request = CompletionRequest::read(&mut fields, family, defaults)?;
        Ok(CompletionRequest { warnings: fields.finish(), ..request })
    }

    /// The sampler's fields as a Markdown table, for the README: name, default, least, largest, meaning.
    pub fn sampler_table() -> String {
        sampling::table()
    }

    fn read(fields: &mut Fields, family: Family, defaults: &RequestDefaults) -> Result<CompletionRequest> {
        for (key, asks_for_nothing) in TO_COME {
            fields.unavailable(key, asks_for_nothing)?;
        }
        // What generation_settings reports and no request sets.
        fields.get("model");
        fields.get("n_ctx");
        let (prompt, prompt_given) = prompt::read(fields)?;
        let (grammar, json_schema) = grammar(fields)?;
        let mut sampling = sampling::read(fields)?;
        sampling.seed = match read_seed(fields)? {
            Some(Some(seed)) => seed,
            Some(None) => draw_seed(),
            None => defaults.seed.unwrap_or_else(draw_seed),
        };
        Ok(CompletionRequest {
            prompt,
            prompt_given,
            sampling,
            logit_bias: logit_bias(fields)?,
            ignore_eos: flag(fields, "ignore_eos", false)?,
            stop: stop(fields)?,
            grammar,
            json_schema,
            n_predict: n_predict(fields)?,
            n_keep: count_or_all(fields, "n_keep")?.unwrap_or(defaults.n_keep),
            cache_prompt: flag(fields, "cache_prompt", true)?,
            id_slot: count_or_all(fields, "id_slot")?.flatten(),
            timeout: timeout(fields)?,
            stream: flag(fields, "stream", false)?,
            return_tokens: flag(fields, "return_tokens", false)?,
            timings_per_token: flag(fields, "timings_per_token", false)?,
            debug: flag(fields, "__debug", false)?,
            tag: fields.get("tag").cloned(),
            speculative: Speculation::read(fields, family, &defaults.speculative)?,
            warnings: Vec::new(),
        })
    }
}

/// `grammar` and `json_schema`. Both only together where one is what the other gives, as in `generation_settings`.
fn grammar(fields: &mut Fields) -> Result<(Option<String>, Option<Value>)> {
    let grammar = fields.c_text("grammar")?;
    let Some(given) = fields.get("json_schema").filter(|value| **value != "") else { return Ok((grammar, None)) };
    let schema = json_schema::read(given)?;
    let made = json_schema::to_grammar(&schema)?;
    if grammar.is_some_and(|grammar| grammar != made) {
        return Err(Error::invalid("json_schema: either json_schema or grammar can be specified, but not both"));
    }
    Ok((Some(made), Some(schema)))
}

fn flag(fields: &mut Fields, key: &'static str, default: bool) -> Result<bool> {
    Ok(fields.flag(key)?.unwrap_or(default))
}

/// A number of something, where -1 (`Some(None)`) means all, any, or no limit.
fn count_or_all(fields: &mut Fields, key: &'static str) -> Result<Option<Option<usize>>> {
    let count: Option<i64> = fields.int(key, -1..=i64::from(i32::MAX))?;
    Ok(count.map(|count| usize::try_from(count).ok()))
}

/// `n_predict`, or llama-server's other name for it.
fn n_predict(fields: &mut Fields) -> Result<Option<usize>> {
    let other = count_or_all(fields, "max_tokens")?;
    Ok(count_or_all(fields, "n_predict")?.or(other).flatten())
}

/// `timeout_ms`; 0 and -1 are no limit.
fn timeout(fields: &mut Fields) -> Result<Option<Duration>> {
    let timeout: Option<i64> = fields.int("timeout_ms", -1..=MAX_TIMEOUT_MS)?;
    Ok(timeout.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0).map(Duration::from_millis))
}

/// An array of strings, or one; empty ones are dropped, as the old server did.
fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let words = match fields.get("stop") {
        Some(Value::String(word)) => vec![word.clone()],
        _ => fields
            .list("stop", "an array of strings", |name, word| text_in(name, word).map(str::to_owned))?
            .unwrap_or_default(),
    };
    Ok(words.into_iter().filter(|word| !word.is_empty()).collect())
}

/// All of llama-server's forms: pairs `[id or text, bias]`, objects `{"token", "bias"}` as its
/// `generation_settings` has them, or one object `{"id or text": bias}`.
fn logit_bias(fields: &mut Fields) -> Result<Vec<LogitBias>> {
    let bias = |name: &str, value: &Value| match value {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        Value::Number(_) => number_in(name, value, -MAX_BIAS..=MAX_BIAS),
        _ => Err(unexpected(name, "a number or false", value)),
    };
    let target = |name: &str, value: &Value| match value {
        Value::String(_) => Ok(BiasTarget::Text(c_text_in(name, value)?.to_owned())),
        Value::Number(_) => token(name, value).map(BiasTarget::Token),
        _ => Err(unexpected(name, "a token id or a string", value)),
    };
    let name = "logit_bias";
    match fields.get(name) {
        Some(Value::Object(map)) => map
            .iter()
            .map(|(key, value)| {
                let key = Value::from(key.as_str());
                let id = key.as_str().and_then(|key| key.parse::<i64>().ok()).map(Value::from);
                let name = format!("{name}.{}", show(&key));
                Ok(LogitBias { target: target(&name, id.as_ref().unwrap_or(&key))?, bias: bias(&name, value)? })
            })
            .collect(),
        _ => {
            let entries = fields.list(name, "an array of [token, bias], or an object", |name, entry| {
                let (of, value) = match entry {
                    Value::Array(pair) => match pair.as_slice() {
                        [of, value] => Some((of, value)),
                        _ => None,
                    },
                    Value::Object(map) => map.get("token").zip(map.get("bias")),
                    _ => None,
                }
                .ok_or_else(|| unexpected(name, "[token, bias]", entry))?;
                Ok(LogitBias { target: target(name, of)?, bias: bias(name, value)? })
            })?;
            Ok(entries.unwrap_or_default())
        }
    }
}

/// A token id; whether the vocabulary has it is checked later.
fn token(name: &str, value: &Value) -> Result<Token> {
    int_in(name, value, 0..=i64::from(Token::MAX))
}

/// A seed nobody can foretell. The standard library draws the keys of its hash maps from the operating system
/// and makes them differ from call to call; hashing nothing with them gives a number that needs no other crate.
/// Never 4294967295, which means "draw one".
fn draw_seed() -> u32 {
    let random = RandomState::new().hash_one(0u64);
    u32::try_from(random % u64::from(u32::MAX)).unwrap_or(0)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
