//! The completion request: the one object that `get_completion`, `async_completion_init` and `speculative_*` take.

mod prompt;
mod sampling;
mod settings;
mod tolerance;

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

pub use self::prompt::{Chat, Infill, Input, Inputs, Overflow, Piece, Prompt, pieces};
pub use self::settings::generation_settings;
pub use self::tolerance::tolerate;
use super::fields::{Fields, c_text_in, int_in, number_in, show, text_in, unexpected};
use super::init::{RequestDefaults, read_seed};
use super::json_schema;
use super::speculative::{Endpoint, Speculation};
use crate::engine::{MAX_BEAMS, RequestOptions};
use crate::error::{Error, Result};
use crate::llama::Token;
use crate::sampling::SamplingSettings;

/// The longest time limit: a year. Longer ones could not be added to a clock.
const MAX_TIMEOUT_MS: i64 = 365 * 24 * 60 * 60 * 1000;
/// The largest `n_cmpl`; as many as may wait (`max_queue`) is the limit that matters.
const MAX_COMPLETIONS: i64 = 1 << 16;
/// The largest scale of a LoRA adapter, as in `init`.
const MAX_LORA: f32 = 1000.0;
/// The largest `logit_bias`; a sum of a few, divided by a small temperature, still is an `f32`.
const MAX_BIAS: f32 = 1e9;

/// A validated completion request. What needs the vocabulary is left to the caller: strings are not tokenized
/// yet, token ids are not negative but may be too large, the grammar is not compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// What to continue.
    pub inputs: Inputs,
    /// How many texts each prompt gets; at least 1.
    pub n_cmpl: usize,
    /// How tokens are chosen, the seed drawn. `logit_bias` is empty: see [`CompletionRequest::logit_bias`].
    pub sampling: SamplingSettings,
    /// Whether the seed was drawn rather than given.
    pub seed_is_drawn: bool,
    /// Biases in the order given; of several for one token, the last counts.
    pub logit_bias: Vec<LogitBias>,
    /// Whether all tokens that end a text are banned (before `logit_bias`, which may allow them again).
    pub ignore_eos: bool,
    /// GBNF, not empty; given, or made of `json_schema`.
    pub grammar: Option<String>,
    /// A JSON schema that the text must be valid under.
    pub json_schema: Option<Value>,
    /// What the engine takes as it is. The slot may not exist.
    pub options: RequestOptions,
    /// The form of the answers.
    pub reply: Reply,
    /// Accepted for the old server's sake: the function called says whether updates come.
    pub stream: bool,
    /// Whether and how to speculate.
    pub speculative: Speculation,
    /// Text that the answer will probably repeat: a draft, when the request speculates.
    pub prediction: Option<String>,
    /// LoRA adapters by number, which may not exist, with their scales; all others are off. `None`: as in `init`.
    pub lora: Option<Vec<(usize, f32)>>,
    /// Unknown keys, and what is not possible.
    pub warnings: Vec<String>,
}

/// What the answers to a request contain.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// What of the final response is wanted, by names (`a/b` is `b` in `a`); empty: everything.
    pub response_fields: Vec<String>,
    /// Whether updates carry `tokens` and `sources`.
    pub return_tokens: bool,
    /// Whether updates carry `timings`.
    pub timings_per_token: bool,
    /// Given back in every update.
    pub tag: Option<Value>,
    /// Whether the request and its answers are logged.
    pub debug: bool,
}

impl Reply {
    /// Whether the answers are to have the field `name` of the object `parent`.
    pub fn wants(&self, parent: &str, name: &str) -> bool {
        let is_named = |field: &String| field == parent || field.split_once('/') == Some((parent, name));
        self.response_fields.is_empty() || self.response_fields.iter().any(is_named)
    }
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

impl CompletionRequest {
    /// Reads a request that came through a function of `family`, with `init`'s defaults.
    ///
    /// # Errors
    /// A field of the wrong type, out of range, or not available in this version.
    pub fn from_object(
        object: &Map<String, Value>,
        family: Endpoint,
        defaults: &RequestDefaults,
    ) -> Result<CompletionRequest> {
        let mut fields = Fields::new(object);
        let request = CompletionRequest::read(&mut fields, family, defaults)?;
        Ok(CompletionRequest { warnings: [request.warnings, fields.finish()].concat(), ..request })
    }

    /// The sampler's fields as a Markdown table, for docs/reference.md: name, default, least, largest, meaning.
    pub fn sampler_table() -> String {
        sampling::table()
    }

    /// What to continue, which is then gone from the request.
    pub fn take_inputs(&mut self) -> Inputs {
        let nothing = Inputs { all: Vec::new(), ..self.inputs };
        std::mem::replace(&mut self.inputs, nothing)
    }

    /// Whether the answer is `results`, one for each text.
    pub fn has_results(&self) -> bool {
        self.inputs.listed || self.n_cmpl > 1
    }

    /// The seed of a text: the `copy`-th (from 0) of the `prompt`-th prompt. As llama-server, a given seed begins anew with
    /// each prompt and is counted up for its further texts; drawn ones all differ.
    pub fn seed(&self, prompt: usize, copy: usize) -> u32 {
        let place = if self.seed_is_drawn { prompt * self.n_cmpl + copy } else { copy };
        // The largest number is no seed: it means "draw one".
        let seed = (u64::from(self.sampling.seed) + place as u64) % u64::from(u32::MAX);
        u32::try_from(seed).unwrap_or(0)
    }

    fn read(fields: &mut Fields, family: Endpoint, defaults: &RequestDefaults) -> Result<CompletionRequest> {
        // What generation_settings reports and no request sets.
        fields.get("model");
        fields.get("n_ctx");
        let inputs = prompt::read(fields)?;
        let (grammar, json_schema) = grammar(fields)?;
        let mut sampling = sampling::read(fields)?;
        let seed = read_seed(fields)?.unwrap_or(defaults.seed);
        sampling.seed = seed.unwrap_or_else(draw_seed);
        let request = CompletionRequest {
            inputs,
            n_cmpl: n_cmpl(fields)?,
            sampling,
            seed_is_drawn: seed.is_none(),
            logit_bias: logit_bias(fields)?,
            ignore_eos: flag(fields, "ignore_eos", false)?,
            grammar,
            json_schema,
            options: options(fields, defaults)?,
            reply: reply(fields)?,
            stream: flag(fields, "stream", false)?,
            lora: lora(fields)?,
            speculative: Speculation::read(fields, family, &defaults.speculative)?,
            prediction: prediction(fields)?,
            warnings: Vec::new(),
        };
        request.with_beams()
    }

    /// What a beam search does not go with.
    fn with_beams(mut self) -> Result<CompletionRequest> {
        if self.options.n_beams > 1 {
            if self.grammar.is_some() {
                return Err(Error::invalid("n_beams: a beam search follows no grammar"));
            }
            self.speculative.forgo("a beam search does not speculate");
            let unavailable = [
                (
                    self.options.t_max_predict.is_some(),
                    "t_max_predict_ms: ignored: a beam search ends by its own rules or `timeout_ms`",
                ),
                (self.options.progress, "return_progress: ignored: a beam search reports none"),
            ];
            self.warnings.extend(unavailable.iter().filter(|(asked, _)| *asked).map(|(_, why)| (*why).to_owned()));
        }
        Ok(self)
    }
}

fn options(fields: &mut Fields, defaults: &RequestDefaults) -> Result<RequestOptions> {
    Ok(RequestOptions {
        n_predict: n_predict(fields)?,
        n_keep: count_or_all(fields, "n_keep")?.unwrap_or(defaults.n_keep),
        stop: stop(fields)?,
        timeout: duration(fields, "timeout_ms")?,
        t_max_predict: duration(fields, "t_max_predict_ms")?,
        n_beams: fields.int("n_beams", 0..=MAX_BEAMS as i64)?.unwrap_or(0),
        slot: count_or_all(fields, "id_slot")?.flatten(),
        cache_prompt: flag(fields, "cache_prompt", true)?,
        n_cache_reuse: fields.int("n_cache_reuse", 0..=i64::from(i32::MAX))?.unwrap_or(defaults.n_cache_reuse),
        session_load: fields.c_text("session_load")?.map(PathBuf::from),
        session_save: fields.c_text("session_save")?.map(PathBuf::from),
        seed_position: fields.int("seed_position", 0..=i64::from(u32::MAX))?,
        post_sampling_probs: flag(fields, "post_sampling_probs", false)?,
        progress: flag(fields, "return_progress", false)?,
    })
}

fn reply(fields: &mut Fields) -> Result<Reply> {
    Ok(Reply {
        response_fields: fields.list("response_fields", "an array of names", own_text)?.unwrap_or_default(),
        return_tokens: flag(fields, "return_tokens", false)?,
        timings_per_token: flag(fields, "timings_per_token", false)?,
        tag: fields.get_any("tag").cloned(),
        debug: flag(fields, "__debug", false)?,
    })
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

/// A limit in milliseconds; 0 and -1 are none.
fn duration(fields: &mut Fields, key: &'static str) -> Result<Option<Duration>> {
    let limit: Option<i64> = fields.int(key, -1..=MAX_TIMEOUT_MS)?;
    Ok(limit.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0).map(Duration::from_millis))
}

/// `n_cmpl`, or OpenAI's other name for it.
fn n_cmpl(fields: &mut Fields) -> Result<usize> {
    let other = fields.int("n", 1..=MAX_COMPLETIONS)?;
    Ok(fields.int("n_cmpl", 1..=MAX_COMPLETIONS)?.or(other).unwrap_or(1))
}

fn own_text(name: &str, value: &Value) -> Result<String> {
    text_in(name, value).map(str::to_owned)
}

/// An array of strings, or one; empty ones are dropped, as the old server did.
fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let words = match fields.get("stop") {
        Some(Value::String(word)) => vec![word.clone()],
        _ => fields.list("stop", "an array of strings", own_text)?.unwrap_or_default(),
    };
    Ok(words.into_iter().filter(|word| !word.is_empty()).collect())
}

/// OpenAI's predicted output: `{"type": "content", "content": "..."}`, where the content may also be an array of text
/// parts. An empty one is none.
fn prediction(fields: &mut Fields) -> Result<Option<String>> {
    let name = "prediction";
    let value = match fields.get(name) {
        None => return Ok(None),
        Some(Value::Object(map)) if map.is_empty() => return Ok(None),
        Some(value) => value,
    };
    let wrong = || unexpected(name, r#"{"type": "content", "content": "..."}"#, value);
    let map = value.as_object().ok_or_else(wrong)?;
    let mut inner = Fields::nested("prediction.", map);
    if inner.get("type").is_some_and(|kind| kind != "content") {
        return Err(wrong());
    }
    let text = match inner.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| part.get("text").and_then(Value::as_str).ok_or_else(wrong));
            texts.collect::<Result<String>>()?
        }
        _ => return Err(wrong()),
    };
    fields.absorb(inner);
    Ok(Some(text).filter(|text| !text.is_empty()))
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

/// llama-server's form: `[{"id": 0, "scale": 0.5}]`.
fn lora(fields: &mut Fields) -> Result<Option<Vec<(usize, f32)>>> {
    fields.list("lora", "an array of {\"id\", \"scale\"}", |name, value| {
        let entry = value.get("id").zip(value.get("scale"));
        let (id, scale) = entry.ok_or_else(|| unexpected(name, "{\"id\", \"scale\"}", value))?;
        let id = int_in(&format!("{name}.id"), id, 0..=i64::from(i32::MAX))?;
        Ok((id, number_in(&format!("{name}.scale"), scale, -MAX_LORA..=MAX_LORA)?))
    })
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
mod tests;
