//! The completion request: JSON to a validated type.

mod chat;
mod choices;
mod constraint;
mod defaults;
mod preparation;
mod prompt;
mod questions;
mod sampling;
mod settings;
mod speculative;
mod translation;

use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use foredraft_base::work::Work;
use foredraft_grammar::tree::{NodeId, Tree};
use foredraft_schema::CompileOptions;
use serde_json::{Map, Value};

pub use self::chat::{ChatOptions, Continuation, ReasoningFormat, tool_name, validate_tools};
pub use self::choices::Choices;
pub use self::constraint::{ConstraintOptions, TriggerKind};
pub use self::defaults::RequestDefaults;
pub use self::defaults::read_seed;
pub use self::preparation::identity;
pub use self::prompt::{
    ChatInput, ContinuedTurn, Infill, Input, Inputs, Overflow, Piece, Prompt, QUESTION_MARK, ShownSchema, pieces,
};
pub use self::questions::AskedQuestion;
pub use self::sampling::MAX_WINDOW;
#[cfg(test)]
pub use self::sampling::tests::sampler_fields;
pub use self::settings::{UsedValues, generation_settings};
pub use self::speculative::{SpeculationRequest, SpeculativeOptions};
pub use self::translation::{IsolatedArguments, RequestArguments, Translation};
use super::fields::{Fields, c_text_in, did_you_mean, int_in, number_in, parse_object, show, text_in, unexpected};
use super::schema;
use crate::engine::{MAX_BEAMS, RequestOptions};
use crate::error::{Error, Result};
use crate::llama::Token;
use crate::llama::log::{self, Level};
use crate::sampling::SamplingSettings;
use crate::speculative::Verify;

/// The maximum time limit: a year. A larger one could overflow when added to a clock.
const MAX_TIMEOUT_MS: i64 = 365 * 24 * 60 * 60 * 1000;
/// The lowest and the highest `priority`.
const PRIORITIES: RangeInclusive<i64> = -10..=10;
/// The maximum `n_cmpl`. (`max_queue` limits it further.)
const MAX_COMPLETIONS: i64 = 1 << 16;
/// The most bytes of the name of a conversation.
const MAX_CONVERSATION: usize = 256;
/// The maximum `prompt_logprobs`, as of `n_probs`.
const MAX_PROMPT_LOGPROBS: i64 = 1 << 20;
/// The maximum scale of a LoRA adapter, as in a load.
const MAX_LORA: f32 = 1000.0;
/// The maximum `logit_bias`. A sum of a few, divided by a small temperature, still fits into an `f32`.
const MAX_BIAS: f32 = 1e9;

/// The grammar of a completion.
#[derive(Debug, Clone)]
pub enum RequestGrammar {
    /// GBNF, not empty.
    Gbnf(String),
    /// The texts of a node: of a schema, or of a chat's format.
    Tree(Arc<Tree>, NodeId),
}

impl PartialEq for RequestGrammar {
    fn eq(&self, other: &RequestGrammar) -> bool {
        match (self, other) {
            (RequestGrammar::Gbnf(one), RequestGrammar::Gbnf(other)) => one == other,
            (RequestGrammar::Tree(one, root), RequestGrammar::Tree(other, other_root)) => {
                Arc::ptr_eq(one, other) && root == other_root
            }
            _ => false,
        }
    }
}

/// A validated completion request, except for what needs the model: strings are not tokenized, token ids may exceed the
/// vocabulary, and the grammar is not compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// The prompts.
    pub inputs: Inputs,
    /// The number of completions of each prompt; at least 1.
    pub n_cmpl: usize,
    /// The sampler settings, with the seed drawn. `logit_bias` is empty: see [`CompletionRequest::logit_bias`].
    pub sampling: SamplingSettings,
    /// The request did not give a seed.
    pub seed_is_drawn: bool,
    /// Biases in the given order. If a token has several, the last one is used.
    pub logit_bias: Vec<LogitBias>,
    /// End-of-generation tokens are banned. `logit_bias` is applied afterwards and can allow them again.
    pub ignore_eos: bool,
    /// The given grammar. [`CompletionRequest::compile_schema`] and the format of a chat's answer replace it.
    pub grammar: Option<RequestGrammar>,
    /// The host's logits callback changes the logits of each position.
    pub logits_callback: bool,
    /// When the grammar begins, and how long the model may reason.
    pub constraint: ConstraintOptions,
    /// The texts among which the request decides, instead of a completion.
    pub choices: Option<Choices>,
    /// The questions that the request decides, instead of a completion. None: it has no `questions`.
    pub questions: Arc<[AskedQuestion]>,
    /// The JSON schema of the completion.
    pub json_schema: Option<Value>,
    /// How the grammar of `json_schema` is written.
    pub schema_options: CompileOptions,
    /// The fields that are passed to the engine unchanged. The slot may not exist, and `preserved_tokens` is empty.
    pub options: RequestOptions,
    /// The options of a chat; `None`: the request has no messages.
    pub chat: Option<ChatOptions>,
    /// The form of the answer.
    pub reply: Reply,
    /// The settings of speculation.
    pub speculative: SpeculationRequest,
    /// The predicted output. It is drafted if the request speculates.
    pub prediction: Option<String>,
    /// LoRA adapters by number, with their scales; all others are off. The numbers may not exist. `None`: as in a load.
    pub lora: Option<Vec<(usize, f32)>>,
    /// How an adaptor translated it.
    pub translation: Translation,
    /// The host's process's part of it, if that is another one.
    pub isolated: IsolatedArguments,
    /// Unknown keys and ignored fields.
    pub warnings: Vec<String>,
}

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

/// An entry of `logit_bias`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitBias {
    /// The token or text.
    pub target: BiasTarget,
    /// Added to the logit. `-inf` bans the token.
    pub bias: f32,
}

/// The token or text of a `logit_bias` entry.
#[derive(Debug, Clone, PartialEq)]
pub enum BiasTarget {
    /// A token, by its id.
    Token(Token),
    /// Every token of this text.
    Text(String),
}

/// Reads the object of a request.
///
/// # Errors
/// It is no JSON object, or its questions have a name twice.
pub fn parse_request(bytes: &[u8]) -> Result<Map<String, Value>> {
    let object = parse_object(bytes)?;
    if object.contains_key("questions") {
        questions::refuse_repeated_keys(bytes)?;
    }
    Ok(object)
}

impl CompletionRequest {
    /// Parses a request, with the load's defaults, and with what comes beside its text.
    ///
    /// # Errors
    /// A field has the wrong type, is out of range, or is not available in this version.
    pub fn from_object(
        object: &Map<String, Value>,
        defaults: &RequestDefaults,
        arguments: RequestArguments,
    ) -> Result<CompletionRequest> {
        let mut fields = Fields::new(object);
        let mut request = CompletionRequest::read(&mut fields, defaults, arguments)?;
        let translated = std::mem::take(&mut request.translation.warnings);
        Ok(CompletionRequest { warnings: [translated, request.warnings, fields.finish()].concat(), ..request })
    }

    /// Logs the request, which was read from this object, if it has `__debug`.
    pub fn log(&self, object: Map<String, Value>) {
        if self.reply.debug && !self.translation.is_logged {
            log::always(Level::Info, &format!("request: {}", Value::Object(object)));
        }
    }

    /// Compiles `json_schema` to a grammar.
    ///
    /// # Errors
    /// It is no schema, nothing satisfies it, or `work` ended.
    pub fn compile_schema(&mut self, work: &Work) -> Result<()> {
        if let Some(schema) = &self.json_schema {
            let (tree, root, mut warnings) = schema::to_grammar(schema, &self.schema_options, work)?;
            self.grammar = Some(RequestGrammar::Tree(Arc::new(tree), root));
            self.warnings.append(&mut warnings);
        }
        Ok(())
    }

    /// Moves the prompts out of the request.
    pub fn take_inputs(&mut self) -> Inputs {
        let nothing = Inputs { all: Vec::new(), ..self.inputs };
        std::mem::replace(&mut self.inputs, nothing)
    }

    /// Whether the answer has `results`, one for each completion.
    pub fn has_results(&self) -> bool {
        self.inputs.listed || self.n_cmpl > 1
    }

    /// The number of completions.
    pub fn n_completions(&self) -> usize {
        self.inputs.all.len().saturating_mul(self.n_cmpl)
    }

    /// The seed of a completion; `number` counts the `n_cmpl` completions of all prompts from 0. As in llama-server, a given seed is used for
    /// the first completion of each prompt and incremented for its further ones. With a drawn seed, the seeds of all completions differ.
    pub fn seed(&self, number: usize) -> u32 {
        let offset = if self.seed_is_drawn { number } else { number % self.n_cmpl };
        // 4294967295 is not a seed: it means "draw one".
        let seed = (u64::from(self.sampling.seed) + offset as u64) % u64::from(u32::MAX);
        u32::try_from(seed).unwrap_or(0)
    }

    fn read(
        fields: &mut Fields,
        defaults: &RequestDefaults,
        RequestArguments { translation, isolated }: RequestArguments,
    ) -> Result<CompletionRequest> {
        // Reported by generation_settings, so known, but not settings of a request.
        fields.get("model");
        fields.get("n_ctx");
        // Whether there are updates depends on the function.
        flag(fields, "stream", false)?;
        let questions = questions::read(fields)?;
        if questions.is_empty() && translation.is_decision {
            return Err(Error::invalid("questions: expected an object of questions, got nothing"));
        }
        let inputs = prompt::read(fields, !questions.is_empty())?;
        // The answer to questions is no message.
        let has_messages = inputs.all.iter().any(|input| matches!(input.prompt, Prompt::Messages(_)));
        let is_chat = has_messages && questions.is_empty();
        let chat = ChatOptions::read(fields, is_chat)?;
        for input in &inputs.all {
            if let (Prompt::Messages(input), Some(chat)) = (&input.prompt, &chat) {
                validate_tools(&input.tools)?;
                chat.validate_continuation(&input.messages)?;
            }
        }
        let (grammar, json_schema) = grammar(fields, chat.as_ref().and_then(|chat| chat.response_schema.as_ref()))?;
        let mut sampling = sampling::read(fields)?;
        if let Some(top) = chat.as_ref().and_then(|chat| chat.logprobs) {
            // The engine reports the chosen token's log-probability with an alternative at least.
            sampling.n_probs = sampling.n_probs.max(top).max(1);
        }
        let seed = read_seed(fields)?.unwrap_or(defaults.seed);
        sampling.seed = seed.or(isolated.drawn_seed).unwrap_or_else(draw_seed);
        for (used, others) in OTHER_NAMES {
            fields.warn_of_other_names(used, others);
        }
        if questions.is_empty() && !PROMPT_KEYS.iter().any(|key| fields.is_given(key)) {
            fields.warn("prompt: neither prompt nor messages is given, so the completion continues an empty text");
        }
        let is_preparation = translation.is_preparation;
        let begins = is_preparation && flag(fields, "begin", false)?;
        let request = CompletionRequest {
            inputs,
            n_cmpl: n_cmpl(fields)?,
            sampling,
            seed_is_drawn: seed.is_none(),
            logit_bias: logit_bias(fields)?,
            ignore_eos: flag(fields, "ignore_eos", false)?,
            grammar,
            logits_callback: flag(fields, "logits_callback", false)?,
            constraint: ConstraintOptions::read(fields)?,
            choices: choices::read(fields)?,
            questions: questions.into(),
            json_schema,
            schema_options: schema::read_options(fields)?,
            options: options(fields, translation.cuts_begun_stop, isolated.elapsed, defaults)?,
            chat,
            reply: reply(fields, translation.is_decision)?,
            lora: lora(fields)?,
            speculative: SpeculationRequest::read(fields, translation.speculates_if_asked, &defaults.speculative)?,
            prediction: prediction(fields)?,
            translation,
            isolated,
            warnings: Vec::new(),
        };
        let request = request.validate_choices()?.validate_beams()?.validate_logits_callback()?;
        if is_preparation { request.into_preparation(begins) } else { Ok(request) }
    }

    /// Refuses or disables what a decision cannot be combined with.
    fn validate_choices(mut self) -> Result<CompletionRequest> {
        let name = match (self.choices.is_some(), self.questions.is_empty()) {
            (false, true) => return Ok(self),
            (true, true) => "choices",
            (given, false) if given || self.n_cmpl > 1 => {
                let name = if given { "choices" } else { "n_cmpl" };
                return Err(Error::invalid(format!("questions: expected either questions or {name}, got both")));
            }
            (_, false) => "questions",
        };
        let others = [
            ("n_beams", self.options.n_beams > 1),
            ("json_schema", self.json_schema.is_some()),
            ("grammar", self.grammar.is_some()),
            ("prompt_logprobs", self.options.prompt_probs.is_some()),
        ];
        if let Some((other, _)) = others.into_iter().find(|(_, given)| *given) {
            return Err(Error::invalid(format!("{name}: expected either {name} or {other}, got both")));
        }
        if self.sampling.n_probs > 0 {
            self.warnings.push(format!("n_probs: ignored with {name}, whose probabilities are in the answer"));
            self.sampling.n_probs = 0;
        }
        self.speculative.disable("nothing is drafted for a decision");
        Ok(self)
    }

    /// Refuses or disables what a beam search cannot be combined with.
    fn validate_beams(mut self) -> Result<CompletionRequest> {
        if self.options.n_beams > 1 {
            if self.grammar.is_some() || self.json_schema.is_some() {
                return Err(Error::invalid("n_beams: a beam search cannot use a grammar"));
            }
            if self.options.prompt_probs.is_some() {
                return Err(Error::invalid("prompt_logprobs: not available with n_beams"));
            }
            self.speculative.disable("a beam search does not speculate");
            let ignored = [
                (self.options.t_max_predict.is_some(), "t_max_predict_ms: ignored by a beam search; use timeout_ms"),
                (self.options.progress, "return_progress: ignored by a beam search"),
            ];
            self.warnings.extend(ignored.iter().filter(|(given, _)| *given).map(|(_, warning)| (*warning).to_owned()));
        }
        Ok(self)
    }

    /// Refuses or replaces what a logits callback cannot be combined with.
    fn validate_logits_callback(mut self) -> Result<CompletionRequest> {
        if !self.logits_callback {
            return Ok(self);
        }
        let others = [
            ("choices", self.choices.is_some()),
            ("questions", !self.questions.is_empty()),
            ("n_beams", self.options.n_beams > 1),
        ];
        if let Some((name, _)) = others.into_iter().find(|(_, given)| *given) {
            return Err(Error::invalid(format!("logits_callback: not available with {name}")));
        }
        if let Some(settings) = self.speculative.settings.as_mut().filter(|settings| settings.verify == Verify::Block) {
            settings.verify = Verify::Rejection;
            let warning = "speculative.verify: rejection instead of block, which reads the logits of rejected tokens";
            self.warnings.push(format!("{warning}, with logits_callback"));
        }
        Ok(self)
    }

    /// Refuses `session_load`, `session_save` and `conversation` where they are impossible.
    ///
    /// # Errors
    /// The request uses draft-only mode or beams, or would keep the states of several completions under one name.
    pub fn validate_sessions(&self) -> Result<()> {
        let completions = self.n_completions();
        let RequestOptions { session_load, session_save, conversation, .. } = &self.options;
        let all = [
            ("session_load", session_load.is_some()),
            ("session_save", session_save.is_some()),
            ("conversation", conversation.is_some()),
        ];
        for (name, _) in all.into_iter().filter(|(_, is_given)| *is_given) {
            if self.speculative.draft_only {
                return Err(Error::invalid(format!("{name}: not available with speculative.model \"draft\"")));
            }
            if self.options.n_beams > 1 {
                return Err(Error::invalid(format!("{name}: not available with n_beams")));
            }
            if name != "session_load" && completions > 1 {
                return Err(Error::invalid(format!(
                    "{name}: expected one completion, got {completions} for one state"
                )));
            }
        }
        Ok(())
    }
}

/// Keys with one meaning: the one that counts, and the others in the order in which they count.
const OTHER_NAMES: [(&str, &[&str]); 5] = [
    ("temperature", &["temp"]),
    ("n_predict", &["max_completion_tokens", "max_tokens"]),
    ("max_completion_tokens", &["max_tokens"]),
    ("n_cmpl", &["n"]),
    ("tool_choice", &["function_call"]),
];
/// The keys that give a completion something to continue.
pub const PROMPT_KEYS: [&str; 6] = ["prompt", "prompts", "messages", "input_prefix", "input_suffix", "input_extra"];

fn options(
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

fn reply(fields: &mut Fields, is_decision: bool) -> Result<Reply> {
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

/// The fields of a final response that the answer of a decision has.
const DECISION_FIELDS: [&str; 6] = ["status", "model", "answers", "usage", "stop_type", "timings"];

/// The fields that a final response can have.
pub const ANSWER_FIELDS: [&str; 46] = [
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

/// Reads `grammar` and `json_schema`. `response_schema`: the schema of `response_format`.
fn grammar(fields: &mut Fields, response_schema: Option<&Value>) -> Result<(Option<RequestGrammar>, Option<Value>)> {
    let grammar = fields.c_text("grammar")?.map(RequestGrammar::Gbnf);
    let given = fields.get("json_schema").filter(|value| **value != "");
    let schema = match (given, response_schema) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid("response_format: expected either json_schema or response_format, got both"));
        }
        (Some(given), None) => schema::parse(given)?,
        (None, Some(schema)) => schema.clone(),
        (None, None) => return Ok((grammar, None)),
    };
    if grammar.is_some() {
        return Err(Error::invalid("json_schema: expected either json_schema or grammar, got both"));
    }
    Ok((None, Some(schema)))
}

fn flag(fields: &mut Fields, key: &'static str, default: bool) -> Result<bool> {
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

/// Reads `n_cmpl`, or OpenAI's name `n`.
fn n_cmpl(fields: &mut Fields) -> Result<usize> {
    let other = fields.int("n", 1..=MAX_COMPLETIONS)?;
    Ok(fields.int("n_cmpl", 1..=MAX_COMPLETIONS)?.or(other).unwrap_or(1))
}

fn own_text(name: &str, value: &Value) -> Result<String> {
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

/// Reads OpenAI's predicted output: `{"type": "content", "content": "..."}`. The content can also be an array of text parts.
/// Empty content counts as absent.
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

/// Reads `logit_bias` in all of llama-server's forms: pairs `[id or text, bias]`, objects `{"token", "bias"}` as in its
/// `generation_settings`, or one object `{"id or text": bias}`.
fn logit_bias(fields: &mut Fields) -> Result<Vec<LogitBias>> {
    let bias = |name: &str, value: &Value| match value {
        // null is minus infinity in `generation_settings`, as the old server and llama-server write it.
        Value::Bool(false) | Value::Null => Ok(f32::NEG_INFINITY),
        Value::Number(_) => number_in(name, value, -MAX_BIAS..=MAX_BIAS),
        _ => Err(unexpected(name, "a number or false", value)),
    };
    let target = |name: &str, value: &Value| match value {
        Value::String(_) => Ok(BiasTarget::Text(c_text_in(name, value)?.to_owned())),
        Value::Number(_) => prompt::token(name, value).map(BiasTarget::Token),
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
                if value.is_null() {
                    return Err(unexpected(&name, "a number or false", value));
                }
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

/// Reads `lora` in llama-server's form: `[{"id": 0, "scale": 0.5}]`.
fn lora(fields: &mut Fields) -> Result<Option<Vec<(usize, f32)>>> {
    fields.list("lora", "an array of {\"id\", \"scale\"}", |name, value| {
        let entry = value.get("id").zip(value.get("scale"));
        let (id, scale) = entry.ok_or_else(|| unexpected(name, "{\"id\", \"scale\"}", value))?;
        let id = int_in(&format!("{name}.id"), id, 0..=i64::from(i32::MAX))?;
        Ok((id, number_in(&format!("{name}.scale"), scale, -MAX_LORA..=MAX_LORA)?))
    })
}

/// Draws an unpredictable seed. The standard library takes the keys of its hash maps from the operating system and varies them from
/// call to call, so hashing a constant gives a random number without another crate. Never 4294967295, which means "draw one".
pub fn draw_seed() -> u32 {
    let random = RandomState::new().hash_one(0u64);
    u32::try_from(random % u64::from(u32::MAX)).unwrap_or(0)
}

/// Draws an unpredictable number from 0 to `i64::MAX`, see [`draw_seed`].
pub fn draw_id_seed() -> u64 {
    RandomState::new().hash_one(0u64) >> 1
}

#[cfg(test)]
mod tests;
