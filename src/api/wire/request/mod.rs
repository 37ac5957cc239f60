//! The completion request: JSON to a validated type.

mod bias;
mod chat;
mod choices;
mod combinations;
mod constraint;
mod decision_model;
mod defaults;
mod media;
mod options;
mod preparation;
mod prompt;
mod questions;
mod reply;
mod sampling;
mod settings;
mod speculative;
mod translation;

use std::sync::Arc;

use foredraft_base::work::Work;
use foredraft_grammar::tree::{NodeId, Tree};
use foredraft_schema::CompileOptions;
use serde_json::{Map, Value};

pub use self::bias::{BiasTarget, LogitBias};
pub use self::chat::{ChatOptions, Continuation, ReasoningFormat, tool_name, validate_tools};
pub use self::choices::Choices;
pub use self::constraint::{ConstraintOptions, TriggerKind};
pub use self::decision_model::{DecisionModel, MAX_LABELS};
pub use self::defaults::{RequestDefaults, draw_id_seed, draw_seed, read_seed};
pub use self::media::{
    MediaKind, MediaSource, embed as embed_media, ends_with_mark, file as media_file, from_base64, is_mark, mark_of,
    marks_in,
};
use self::options::flag;
pub use self::options::{conversation_name, duration};
pub use self::preparation::identity;
pub use self::prompt::{
    ChatInput, ContinuedTurn, Infill, Input, Inputs, Overflow, Piece, Prompt, QUESTION_MARK, ShownSchema, pieces,
};
pub use self::questions::{AnswerKind, AskedQuestion};
pub use self::reply::Reply;
pub use self::sampling::MAX_WINDOW;
#[cfg(test)]
pub use self::sampling::tests::sampler_fields;
pub use self::settings::{UsedValues, generation_settings};
pub use self::speculative::{SpeculationRequest, SpeculativeOptions};
pub use self::translation::{IsolatedArguments, RequestArguments, Translation};
use super::fields::{Fields, int_in, number_in, parse_object, unexpected};
use super::schema;
use crate::engine::RequestOptions;
use crate::error::{Error, Result};
use crate::llama::log::{self, Level};
use crate::sampling::SamplingSettings;

/// The maximum `n_cmpl`. (`max_queue` limits it further.)
const MAX_COMPLETIONS: i64 = 1 << 16;
/// The maximum scale of a LoRA adapter, as in a load.
const MAX_LORA: f32 = 1000.0;

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

    /// Gives the questions the form of a native decision model. `native`: its type, as the model's file has it.
    ///
    /// # Errors
    /// Its type is none that this version has, or an encoder's. `waits`: the caller takes the answers of an encoder.
    pub fn set_decision_model(&mut self, native: Option<&str>, waits: bool) -> Result<()> {
        let Some(native) = native.filter(|_| !self.questions.is_empty()) else { return Ok(()) };
        let refused = |why| Error::invalid(format!("questions: the model is a decision model of type {native}, {why}"));
        let model = DecisionModel::named(native).ok_or_else(|| refused("whose heads this version does not have"))?;
        if model.is_encoder() && !waits {
            return Err(refused("which answers foredraft_decide alone"));
        }
        let mut questions = self.questions.to_vec();
        questions.iter_mut().for_each(|question| question.set_model(model));
        self.questions = questions.into();
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
            logit_bias: bias::logit_bias(fields)?,
            ignore_eos: flag(fields, "ignore_eos", false)?,
            grammar,
            logits_callback: flag(fields, "logits_callback", false)?,
            constraint: ConstraintOptions::read(fields)?,
            choices: choices::read(fields)?,
            questions: questions.into(),
            json_schema,
            schema_options: schema::read_options(fields)?,
            options: options::options(fields, translation.cuts_begun_stop, isolated.elapsed, defaults)?,
            chat,
            reply: reply::reply(fields, translation.is_decision)?,
            lora: lora(fields)?,
            speculative: SpeculationRequest::read(fields, translation.speculates_if_asked, &defaults.speculative)?,
            prediction: prediction(fields)?,
            translation,
            isolated,
            warnings: Vec::new(),
        };
        let request = request.with_valid_combinations()?;
        if is_preparation { request.into_preparation(begins) } else { Ok(request) }
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

/// Reads `n_cmpl`, or OpenAI's name `n`.
fn n_cmpl(fields: &mut Fields) -> Result<usize> {
    let other = fields.int("n", 1..=MAX_COMPLETIONS)?;
    Ok(fields.int("n_cmpl", 1..=MAX_COMPLETIONS)?.or(other).unwrap_or(1))
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

/// Reads `lora` in llama-server's form: `[{"id": 0, "scale": 0.5}]`.
fn lora(fields: &mut Fields) -> Result<Option<Vec<(usize, f32)>>> {
    fields.list("lora", "an array of {\"id\", \"scale\"}", |name, value| {
        let entry = value.get("id").zip(value.get("scale"));
        let (id, scale) = entry.ok_or_else(|| unexpected(name, "{\"id\", \"scale\"}", value))?;
        let id = int_in(&format!("{name}.id"), id, 0..=i64::from(i32::MAX))?;
        Ok((id, number_in(&format!("{name}.scale"), scale, -MAX_LORA..=MAX_LORA)?))
    })
}

#[cfg(test)]
mod tests;
