//! The fields of chats beside the messages: tools, reasoning, and the form of the answer, under OpenAI's and llama-server's names.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::api::wire::fields::{Fields, c_text_in, unexpected};
use crate::api::wire::schema;
use crate::error::{Error, Result};

/// The longest name of a tool, in bytes.
const MAX_TOOL_NAME: usize = 128;
/// The form of a tool.
const TOOL: &str = r#"{"type": "function", "function": {"name", ...}}"#;
/// The forms of `tool_choice`.
const TOOL_CHOICE: &str = r#""auto", "none", "required", a tool's name, {"type": "function", "function": {"name": ...}} or {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [...]}}"#;
/// The most tools in a request.
const MAX_TOOLS: usize = 4096;
/// The maximum `top_logprobs`, as in OpenAI's interface.
const MAX_TOP_LOGPROBS: i64 = 20;

/// Which tools the model may call, and whether it must.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolChoice {
    /// The answer has at least one call.
    pub is_required: bool,
    /// The names of the tools that the model may call. `None`: all tools.
    pub only: Option<BTreeSet<String>>,
}

impl ToolChoice {
    /// Whether the model must call this one tool.
    pub fn names_one(&self) -> bool {
        self.is_required && self.only.as_ref().is_some_and(|only| only.len() == 1)
    }

    /// Whether the model may call the tool with this name.
    pub fn allows(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(name))
    }
}

foredraft_base::words! {
    /// The place of reasoning in the answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ReasoningFormat {
        /// llama.cpp decides; it is split off.
        Auto => "auto",
        /// It stays in the content.
        Inline => "none",
        /// It is split off.
        DeepSeek => "deepseek",
    }
}

/// Which part of the last message is continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuation {
    /// The content, or the reasoning if there is no content.
    Auto,
    /// The content.
    Content,
    /// The reasoning.
    Reasoning,
}

/// The options of a request with messages.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatOptions {
    /// Which tools the model may call, and whether it must.
    pub tool_choice: ToolChoice,
    /// Whether the model may call several at once. `None`: if the template can show several.
    pub parallel_tool_calls: Option<bool>,
    /// The request has OpenAI's older `functions` or `function_call`, so the answer has `function_call`.
    pub with_function_call: bool,
    /// The place of reasoning in the answer.
    pub reasoning_format: ReasoningFormat,
    /// The schema of the content, from `response_format`.
    pub response_schema: Option<Value>,
    /// The last message is continued.
    pub continuation: Option<Continuation>,
    /// The answer has log-probabilities in OpenAI's form, with this number of alternatives.
    pub logprobs: Option<usize>,
}

impl ChatOptions {
    /// Reads the fields. `is_chat`: the request has messages. Otherwise each given field is named in a warning, and the result is `None`.
    ///
    /// # Errors
    /// A field has the wrong type or value.
    pub fn read(fields: &mut Fields, is_chat: bool) -> Result<Option<ChatOptions>> {
        let choice = fields.get("tool_choice").map(|value| tool_choice("tool_choice", value)).transpose()?;
        let old_choice = fields.get("function_call").map(|value| tool_choice("function_call", value)).transpose()?;
        let has_functions = fields.get("functions").is_some();
        let parallel_tool_calls = fields.flag("parallel_tool_calls")?;
        let reasoning_format = fields.word("reasoning_format", &ReasoningFormat::WORDS)?;
        let response_format = fields.get("response_format");
        let response_schema = response_format.map(response_schema).transpose()?.flatten();
        let continues = fields.get("continue_final_message");
        let continuation = continues.map(continuation).transpose()?.flatten();
        // In OpenAI's older interface without messages it is a number.
        let logprobs = match fields.get("logprobs") {
            Some(Value::Number(_)) if !is_chat => Some(false),
            _ => fields.flag("logprobs")?,
        };
        let top_logprobs = fields.int("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
        if !is_chat {
            fields.warn_without_messages(&[
                "tool_choice",
                "function_call",
                "functions",
                "parallel_tool_calls",
                "reasoning_format",
                "response_format",
                "continue_final_message",
                "logprobs",
                "top_logprobs",
            ]);
            return Ok(None);
        }
        let logprobs = match (logprobs.unwrap_or(false), top_logprobs) {
            (true, top) => Some(top.unwrap_or(0)),
            (false, top) => {
                if top.is_some_and(|top| top > 0) {
                    fields.warn("top_logprobs: ignored without logprobs");
                }
                None
            }
        };
        Ok(Some(ChatOptions {
            with_function_call: has_functions || old_choice.is_some(),
            tool_choice: choice.or(old_choice).unwrap_or_default(),
            parallel_tool_calls: parallel_tool_calls.or(has_functions.then_some(false)),
            reasoning_format: reasoning_format.unwrap_or(ReasoningFormat::Auto),
            response_schema,
            continuation,
            logprobs,
        }))
    }

    /// Refuses to continue a message that is not the assistant's.
    ///
    /// # Errors
    /// The last message has another role.
    pub fn validate_continuation(&self, messages: &[Value]) -> Result<()> {
        let role = messages.last().and_then(|message| message.get("role")).and_then(Value::as_str).unwrap_or_default();
        match self.continuation {
            Some(_) if role != "assistant" => Err(Error::invalid(format!(
                "continue_final_message: expected the last message to be the assistant's, got the role {role:?}"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a choice that the tools do not allow.
    ///
    /// # Errors
    /// The choice names a tool that is not there, or a call is required and there are no tools.
    pub fn validate_choice(&self, tools: &[Value]) -> Result<()> {
        let given: BTreeSet<&str> = tools.iter().filter_map(tool_name).collect();
        if let Some(name) = self.tool_choice.only.iter().flatten().find(|name| !given.contains(name.as_str())) {
            return Err(Error::invalid(format!("tool_choice: there is no tool {name:?}")));
        }
        match self.tool_choice.is_required && tools.is_empty() {
            true => Err(Error::invalid("tool_choice: \"required\" needs tools, and there are none")),
            false => Ok(()),
        }
    }
}

/// The name of a tool that [`read_tools`] has read.
pub fn tool_name(tool: &Value) -> Option<&str> {
    tool.get("function")?.get("name")?.as_str()
}

/// Reads `tools`, or OpenAI's older `functions`, each in the form of `tools`.
///
/// # Errors
/// A tool is not an object, or a function is invalid.
pub fn read_tools(fields: &mut Fields) -> Result<Option<Vec<Value>>> {
    let tools = fields.list("tools", "an array of objects", tool)?;
    let functions = fields.list("functions", "an array of objects", |name, value| {
        validate_function(name, value)?;
        Ok(json!({"type": "function", "function": value}))
    })?;
    let tools = match (tools, functions) {
        (Some(tools), Some(functions)) if !tools.is_empty() && !functions.is_empty() => {
            return Err(Error::invalid("functions: expected either tools or functions, got both"));
        }
        (Some(tools), functions) if tools.is_empty() => functions.or(Some(tools)),
        (tools, functions) => tools.or(functions),
    };
    if let Some(tools) = tools.as_ref().filter(|tools| tools.len() > MAX_TOOLS) {
        let n = tools.len();
        return Err(Error::invalid(format!("tools: expected at most {MAX_TOOLS} tools, got {n}")));
    }
    Ok(tools)
}

/// Validates the tools that the model may call. (A template can show objects of any form.)
///
/// # Errors
/// A tool has no valid name, or two cannot be told apart.
pub fn validate_tools(tools: &[Value]) -> Result<()> {
    for (index, tool) in tools.iter().enumerate() {
        validate_tool(&format!("tools[{index}]"), tool)?;
    }
    // llama.cpp's rules for tools have names of letters, digits and hyphens.
    let rule = |name: &str| name.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let mut names: Vec<(String, usize)> =
        tools.iter().enumerate().filter_map(|(index, tool)| Some((rule(tool_name(tool)?), index))).collect();
    names.sort_unstable();
    for pair in names.windows(2) {
        if let [(one, first), (other, second)] = pair
            && one == other
        {
            let name = |index: &usize| tools.get(*index).and_then(tool_name).unwrap_or_default();
            let (first, last) = (name(first), name(second));
            let message = format!("tools[{second}].function.name: {last:?} cannot be told apart from {first:?}");
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// Reads a tool: an object. A function gets the `type` that it may lack.
fn tool(name: &str, value: &Value) -> Result<Value> {
    let Value::Object(map) = value else { return Err(unexpected(name, TOOL, value)) };
    let mut tool = Map::new();
    if map.contains_key("function") {
        tool.insert("type".to_owned(), "function".into());
    }
    tool.extend(map.clone());
    Ok(Value::Object(tool))
}

/// Validates a tool: `{"type": "function", "function": {"name", "description", "parameters"}}`.
fn validate_tool(name: &str, tool: &Value) -> Result<()> {
    let is_function = tool.get("type").is_some_and(|kind| kind == "function");
    match tool.get("function").filter(|_| is_function) {
        Some(function) => validate_function(&format!("{name}.function"), function),
        None => Err(unexpected(name, TOOL, tool)),
    }
}

/// Validates a function's name, description and parameters. The name becomes a part of grammars, of prompts and of calls.
fn validate_function(name: &str, function: &Value) -> Result<()> {
    let Value::Object(map) = function else {
        return Err(unexpected(name, r#"{"name", "description", "parameters"}"#, function));
    };
    let given = map.get("name").unwrap_or(&Value::Null);
    let is_allowed = |c: char| c.is_alphanumeric() || "_-./:".contains(c);
    let text = c_text_in(&format!("{name}.name"), given)?;
    if text.is_empty() || text.len() > MAX_TOOL_NAME || !text.chars().all(is_allowed) {
        let expected = format!("1 to {MAX_TOOL_NAME} letters, digits or _ - . / :");
        return Err(unexpected(&format!("{name}.name"), &expected, given));
    }
    match map.get("description") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(other) => return Err(unexpected(&format!("{name}.description"), "a string", other)),
    }
    match map.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(()),
        Some(other) => Err(unexpected(&format!("{name}.parameters"), "a JSON schema", other)),
    }
}

/// Reads `tool_choice`, or OpenAI's older `function_call`. Which tools there are is checked later.
fn tool_choice(key: &str, value: &Value) -> Result<ToolChoice> {
    let is_new = key == "tool_choice";
    let only = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    let name = |value: &Value| -> Option<String> {
        value.get("function").unwrap_or(value).get("name")?.as_str().map(str::to_owned)
    };
    let choice = match value {
        Value::String(word) => match word.as_str() {
            "auto" => Some((false, None)),
            "none" => Some((false, only(&[]))),
            "required" if is_new => Some((true, None)),
            word if is_new && !word.is_empty() => Some((true, only(&[word]))),
            _ => None,
        },
        _ => match value.get("allowed_tools").filter(|_| is_new) {
            Some(allowed) => {
                let tools = allowed.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty());
                let names = tools.and_then(|tools| tools.iter().map(name).collect::<Option<BTreeSet<_>>>());
                match (allowed.get("mode").and_then(Value::as_str), names) {
                    (Some(mode @ ("auto" | "required")), Some(names)) => Some((mode == "required", Some(names))),
                    _ => None,
                }
            }
            None => name(value).map(|name| (true, Some(BTreeSet::from([name])))),
        },
    };
    match choice {
        Some((is_required, only)) => Ok(ToolChoice { is_required, only }),
        None if is_new => Err(unexpected(key, TOOL_CHOICE, value)),
        None => Err(unexpected(key, r#""auto", "none" or {"name": ...}"#, value)),
    }
}

/// Reads `response_format`: the schema of the content. Also llama-server's older forms, with `schema` in place of `json_schema.schema`.
pub(super) fn response_schema(value: &Value) -> Result<Option<Value>> {
    let expected =
        r#"{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": ...}}"#;
    let wrong = || unexpected("response_format", expected, value);
    let given = value.get("json_schema").and_then(|inner| inner.get("schema")).or_else(|| value.get("schema"));
    let given = given.filter(|schema| !schema.is_null());
    match value.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(given.cloned().unwrap_or_else(|| json!({"type": "object"})))),
        Some("json_schema") => schema::parse(given.ok_or_else(wrong)?).map(Some),
        _ => Err(wrong()),
    }
}

fn continuation(value: &Value) -> Result<Option<Continuation>> {
    match value {
        Value::Bool(false) => Ok(None),
        Value::Bool(true) => Ok(Some(Continuation::Auto)),
        value if value == "content" => Ok(Some(Continuation::Content)),
        value if value == "reasoning_content" => Ok(Some(Continuation::Reasoning)),
        _ => Err(unexpected("continue_final_message", r#"true, false, "content" or "reasoning_content""#, value)),
    }
}
