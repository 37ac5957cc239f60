//! The answers of the engine.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use foredraft_base::error::{Code, Error, Result};

/// A message of a conversation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// The text; `None` in a message that only has calls.
    #[serde(default)]
    pub content: Option<String>,
    /// The reasoning before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The functions that the model calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<FunctionCall>,
    /// In a message with a function's result: the call's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message that tells the model its task.
    pub fn system(content: impl Into<String>) -> Message {
        Message::of("system", content.into())
    }

    /// A message of the user.
    pub fn user(content: impl Into<String>) -> Message {
        Message::of("user", content.into())
    }

    /// An earlier message of the model.
    pub fn assistant(content: impl Into<String>) -> Message {
        Message::of("assistant", content.into())
    }

    /// The result of a call.
    pub fn tool(call: &FunctionCall, content: impl Into<String>) -> Message {
        Message { tool_call_id: Some(call.id.clone()), ..Message::of("tool", content.into()) }
    }

    fn of(role: &str, content: String) -> Message {
        Message { role: role.to_owned(), content: Some(content), ..Message::default() }
    }
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Names the call; its result refers to it.
    #[serde(default)]
    pub id: String,
    /// `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// The function and its arguments.
    pub function: ToolFunction,
}

fn function() -> String {
    "function".to_owned()
}

/// The function of a [`FunctionCall`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolFunction {
    /// The function's name.
    pub name: String,
    /// Its arguments: the text of a JSON object.
    pub arguments: String,
}

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StopType {
    /// The model ended it.
    Eos,
    /// A text of `stop` came.
    Word,
    /// It has `n_predict` tokens, or the context is full.
    Limit,
    /// Its time was over.
    Timeout,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Error,
}

/// Numbers of tokens, as OpenAI counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Generated tokens.
    pub completion_tokens: usize,
}

/// A conversation of an engine, from [`conversations`](super::Engine::conversations).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ConversationInfo {
    /// Its name.
    pub conversation: String,
    /// Where its state is: `slot`, `preempted`, `memory` or `disk`.
    pub place: String,
    /// The slot that has its state.
    pub id_slot: Option<usize>,
    /// The tokens of its state.
    pub n_tokens: usize,
    /// Its turns.
    pub n_turns: usize,
    /// The bytes of its state in memory, or of its file.
    pub bytes: usize,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Whether a request of it runs.
    pub running: bool,
}

/// A document of [`rerank`](super::Engine::rerank).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct RankedDocument {
    /// Its index among the given ones.
    pub index: usize,
    /// Its score, which is larger for a better answer.
    pub relevance_score: f64,
}

/// How a completion was speculated.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct SpeculationReport {
    /// Drafted tokens that the target verified.
    pub n_drafted: usize,
    /// Those that it accepted.
    pub n_accepted: usize,
    /// Decodes of the target.
    pub n_steps: usize,
    /// Why speculation was off, for all or a part of the completion.
    #[serde(default)]
    pub disabled: Option<String>,
}

/// A new part of a completion.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct StreamUpdate {
    /// New text.
    pub content: String,
    /// The completion that it belongs to, of a request with several.
    #[serde(default)]
    pub index: usize,
    /// All other fields of an update (docs/reference.md): `delta`, `tokens`, ...
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// The end of a request: a completion, or several in `results`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct FinalResponse {
    /// The request's id.
    pub id: u64,
    /// The whole text.
    #[serde(default)]
    pub content: String,
    /// Why it ended. `None` if there are `results`.
    #[serde(default)]
    pub stop_type: Option<StopType>,
    /// The generated tokens.
    #[serde(default)]
    pub tokens_predicted: usize,
    /// The message that the text is, of a request with messages.
    #[serde(default)]
    pub message: Option<Message>,
    /// Numbers of tokens.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// How it was speculated. `None` if it was not.
    #[serde(default)]
    pub speculative: Option<SpeculationReport>,
    /// Warnings about the request.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The completions of a request with several prompts, or with `n_cmpl`.
    #[serde(default)]
    pub results: Vec<FinalResponse>,
    /// All other fields of a final response (docs/reference.md): `timings`, `generation_settings`, ...
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl FinalResponse {
    /// Reads a final response.
    ///
    /// # Errors
    /// The request failed.
    pub(super) fn read(answer: Value) -> Result<FinalResponse> {
        if answer.get("success") == Some(&Value::Bool(false)) {
            return Err(error_of(&answer));
        }
        serde_json::from_value(answer).map_err(unexpected)
    }
}

/// The error in an answer.
pub(super) fn error_of(answer: &Value) -> Error {
    let text = |key: &str| answer.get(key).and_then(Value::as_str).unwrap_or_default();
    let code = Code::named(text("code")).unwrap_or(Code::Internal);
    Error::new(code, text("error"))
}

/// The error for an answer that the types of this module do not describe: a bug.
pub(super) fn unexpected(error: serde_json::Error) -> Error {
    Error::new(Code::Internal, format!("an answer has another form than documented: {error}"))
}
