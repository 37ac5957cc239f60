//! The format of a request's answer.

use std::sync::Arc;

use once_cell::sync::OnceCell;
use serde_json::{Map, Value, json};

use super::applied::{AppliedFormat, FormatTrigger, read};
use super::cached::TemplateFormat;
use super::message::{ChatMessage, ParsedText};
use super::stream::MessageReader;
use super::tools::{describe_in_system, with_simple_schemas};
use crate::api::request::{ChatInput, ChatOptions, Continuation, ToolChoice, tool_name};
use crate::api::schema;
use crate::error::Result;
use crate::llama::{CompletionParser, generic_chat_format};

/// llama.cpp sees all messages up to so many bytes. It renders them several times, in the call that submits a request.
const MAX_SEEN: usize = 32 << 10;
/// The most messages that it sees. Templates that look at all messages for each message take quadratic time.
const MAX_SEEN_MESSAGES: usize = 64;
/// The longest text in a longer conversation, in bytes.
const MAX_SEEN_TEXT: usize = 4 << 10;

/// A model's templates, parsed on first use: for requests without tools, and for requests with tools. A message: llama.cpp cannot parse it.
pub(in crate::api) type TemplateFormats = [OnceCell<std::result::Result<TemplateFormat, String>>; 2];

/// What a chat format is found from.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct FormatRequest<'a> {
    pub(in crate::api) template: &'a TemplateFormat,
    /// The template fails with the tools, so it does not get them. The reason.
    pub(in crate::api) fails_with_tools: Option<&'a str>,
    /// What `add_generation_prompt` adds to the prompt, if it is known.
    pub(in crate::api) generation_prompt: Option<&'a str>,
    pub(in crate::api) chat: &'a ChatInput,
    pub(in crate::api) options: &'a ChatOptions,
    /// The schema of the content.
    pub(in crate::api) json_schema: Option<&'a Value>,
}

/// The format of an answer.
#[derive(Debug)]
pub(in crate::api) struct ChatFormat {
    /// Reads the answer's message.
    pub(in crate::api) reader: Arc<MessageReader>,
    /// The grammar of the completion, if it needs one.
    pub(in crate::api) grammar: Option<FormatGrammar>,
    /// Texts of control tokens that are part of the completion.
    pub(in crate::api) preserved: Vec<String>,
    /// Further stop strings.
    pub(in crate::api) stops: Vec<String>,
    /// The tags around reasoning, if the model reasons.
    pub(in crate::api) thinking: Option<ThinkingTags>,
    /// The end of the prompt: the beginning of the assistant's turn.
    pub(in crate::api) generation_prompt: String,
    /// The messages for the template, if they differ from the request's.
    pub(in crate::api) messages: Option<Vec<Value>>,
    /// llama.cpp has found the format. Otherwise the whole completion is the content.
    pub(in crate::api) is_known: bool,
    pub(in crate::api) warnings: Vec<String>,
}

/// The grammar of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct FormatGrammar {
    /// GBNF.
    pub(in crate::api) text: String,
    /// It applies from the first trigger on.
    pub(in crate::api) lazy: bool,
    pub(in crate::api) triggers: Vec<FormatTrigger>,
    /// It begins with the end of the prompt.
    pub(in crate::api) has_prefix: bool,
}

/// The tags around reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct ThinkingTags {
    pub(in crate::api) start: String,
    /// The first one is written to end reasoning.
    pub(in crate::api) ends: Vec<String>,
}

impl ChatFormat {
    /// Finds the format of the answer to a request.
    ///
    /// # Errors
    /// A tool's schema is invalid, or a call is required and llama.cpp cannot find a format for it.
    pub(in crate::api) fn detect(request: &FormatRequest) -> Result<ChatFormat> {
        let FormatRequest { template, fails_with_tools, generation_prompt, chat, options, json_schema } = *request;
        // What is continued is part of the format.
        let generation_prompt = generation_prompt.filter(|_| options.continuation.is_none());
        options.validate_choice(&chat.tools)?;
        let mut warnings = Vec::new();
        let mut can = template.capabilities()?;
        can.tools &= fails_with_tools.is_none();
        let parallel = options.parallel_tool_calls.unwrap_or(can.parallel);
        let is_callable = |tool: &Value| match &options.tool_choice {
            ToolChoice::Function(name) => tool_name(tool) == Some(name.as_str()),
            _ => true,
        };
        let callable = chat.tools.iter().enumerate().filter(|(_, tool)| is_callable(tool));
        let tools = with_simple_schemas(callable, &mut warnings)?;
        let is_required = matches!(options.tool_choice, ToolChoice::Required | ToolChoice::Function(_));
        let may_call = !tools.is_empty() && options.tool_choice != ToolChoice::Nothing;
        let mut messages = None;
        if may_call && !can.tools {
            let why =
                fails_with_tools.map_or("has no place for them".to_owned(), |why| format!("fails with them ({why})"));
            let so = match is_required {
                true => "they are in the system message",
                false => "the model does not see them",
            };
            warnings.push(format!("tools: the chat template {why}, so {so}"));
        }
        let apply = |messages: &[Value]| -> Result<Arc<AppliedFormat>> {
            let mut input = json!({
                "messages": messages_for_llama(messages, options.continuation.is_some()),
                "tool_choice": match options.tool_choice {
                    ToolChoice::Auto => "auto",
                    ToolChoice::Nothing => "none",
                    ToolChoice::Required | ToolChoice::Function(_) => "required",
                },
                "parallel_tool_calls": parallel,
                "reasoning_format": options.reasoning_format.as_str(),
                "enable_thinking": chat.chat_template_kwargs.get("enable_thinking") != Some(&Value::Bool(false)),
                "add_generation_prompt": chat.add_generation_prompt,
                "kwargs": chat.chat_template_kwargs,
            });
            if let Value::Object(input) = &mut input {
                if !tools.is_empty() && fails_with_tools.is_none() {
                    input.insert("tools".to_owned(), tools.as_slice().into());
                }
                if let Some(schema) = json_schema {
                    input.insert("json_schema".to_owned(), schema::simplified(schema, "")?);
                }
                if let Some(part) = options.continuation {
                    let part = match part {
                        Continuation::Auto => json!(true),
                        Continuation::Content => json!("content"),
                        Continuation::Reasoning => json!("reasoning_content"),
                    };
                    input.insert("continue_final_message".to_owned(), part);
                }
            }
            template.apply(&input, generation_prompt)
        };
        let applied = apply(&chat.messages);
        let has_grammar = applied.as_ref().is_ok_and(|applied| !applied.grammar.is_empty());
        let is_generic = is_required && json_schema.is_none() && !has_grammar;
        if is_required && (!can.tools || is_generic) {
            let mut described = chat.messages.clone();
            describe_in_system(&chat.tools, parallel && is_generic, &mut described);
            messages = Some(described);
        }
        let (applied, has_prefix) = if is_generic {
            let request = json!({"tools": tools, "parallel_tool_calls": parallel});
            (read(&generic_chat_format(&request.to_string())?)?, false)
        } else {
            match applied {
                Ok(applied) => (AppliedFormat::clone(&applied), true),
                Err(error) => {
                    let why = error.message().trim_start_matches("chat format: ");
                    warnings.push(format!("message: the whole completion is its content, because llama.cpp cannot find the template's format: {why}"));
                    (AppliedFormat::default(), false)
                }
            }
        };
        applied.into_format(options, has_prefix, messages, warnings)
    }

    /// The format in which the whole completion is the content. `why`: why the format is unknown.
    ///
    /// # Errors
    /// A bug.
    pub(in crate::api) fn plain(options: &ChatOptions, why: &str) -> Result<ChatFormat> {
        let warning =
            format!("message: the whole completion is its content, because llama.cpp cannot read the template: {why}");
        AppliedFormat::default().into_format(options, false, None, vec![warning])
    }
}

impl AppliedFormat {
    fn into_format(
        self,
        options: &ChatOptions,
        has_prefix: bool,
        messages: Option<Vec<Value>>,
        warnings: Vec<String>,
    ) -> Result<ChatFormat> {
        let parser = CompletionParser::new(&self.parser, self.format, &self.generation_prompt)?;
        let given = match options.continuation {
            Some(_) => ParsedText::read(&parser, "")?.message,
            None => ChatMessage::default(),
        };
        let reader = MessageReader {
            parser,
            delimiters: delimiters(&self.parser),
            thinking_ends: self.thinking_ends.clone(),
            given,
            has_ids: self.parser.contains("\"tool-id\""),
            with_function_call: options.with_function_call,
        };
        let grammar = (!self.grammar.is_empty()).then(|| FormatGrammar {
            text: schema::fix_grammar(&self.grammar),
            lazy: self.grammar_lazy,
            triggers: self.grammar_triggers,
            has_prefix: has_prefix && !self.grammar_lazy,
        });
        let reasons = self.supports_thinking && !self.thinking_ends.is_empty();
        let thinking = reasons.then_some(ThinkingTags { start: self.thinking_start, ends: self.thinking_ends });
        Ok(ChatFormat {
            reader: Arc::new(reader),
            grammar,
            preserved: self.preserved_tokens,
            stops: self.additional_stops,
            thinking: thinking.filter(|tags| !tags.start.is_empty()),
            generation_prompt: self.generation_prompt,
            messages,
            is_known: !self.parser.is_empty(),
            warnings,
        })
    }
}

/// The texts at which parts of a format end, from llama.cpp's serialization of its parser.
fn delimiters(parser: &str) -> Vec<String> {
    let parsed: Value = serde_json::from_str(parser).unwrap_or_default();
    let (mut open, mut found) = (vec![&parsed], Vec::new());
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                if fields.get("type").is_some_and(|kind| kind == "until") {
                    let texts = fields.get("delimiters").and_then(Value::as_array).into_iter().flatten();
                    found.extend(texts.filter_map(Value::as_str).map(str::to_owned));
                }
                open.extend(fields.values());
            }
            _ => {}
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The messages from which a format is found: of a long conversation a part.
pub(in crate::api) fn seen_messages(messages: &[Value]) -> Vec<Value> {
    messages_for_llama(messages, false)
}

/// The messages in the form that llama.cpp accepts. (The renderer accepts more.) Of a long conversation only the system message and the last
/// turn or its end, with the ends of long texts: a format depends on the template, and hardly on them. `whole`: all of them.
fn messages_for_llama(messages: &[Value], whole: bool) -> Vec<Value> {
    let is = |message: &Value, roles: &[&str]| {
        message.get("role").and_then(Value::as_str).is_some_and(|role| roles.contains(&role))
    };
    let length = |message: &Value| text_len(message.get("content").unwrap_or(&Value::Null));
    let is_short = messages.len() <= MAX_SEEN_MESSAGES && messages.iter().map(length).sum::<usize>() <= MAX_SEEN;
    if whole || is_short {
        return messages.iter().map(|message| message_for_llama(message, usize::MAX)).collect();
    }
    let first = messages.iter().take(MAX_SEEN_MESSAGES / 2);
    let n_system = first.take_while(|message| is(message, &["system", "developer"])).count();
    let last = messages.iter().rposition(|message| is(message, &["user"])).unwrap_or(n_system).max(n_system);
    // A long turn from a call on, because templates refuse results without their calls.
    let late = messages.len().saturating_sub(MAX_SEEN_MESSAGES / 2 - 1);
    let mut calls =
        messages.iter().enumerate().skip(late.max(last + 1)).filter(|(_, message)| is(message, &["assistant"]));
    let rest = if late <= last + 1 { last + 1 } else { calls.next().map_or(messages.len(), |(index, _)| index) };
    let seen = messages.iter().enumerate();
    let seen = seen.filter(|(index, _)| *index < n_system || *index == last || *index >= rest);
    seen.map(|(_, message)| message_for_llama(message, MAX_SEEN_TEXT)).collect()
}

/// The length of a message's content in bytes.
fn text_len(content: &Value) -> usize {
    match content {
        Value::String(text) => text.len(),
        Value::Array(parts) => parts.iter().filter_map(|part| part.get("text")).map(text_len).sum(),
        _ => 0,
    }
}

/// The end of a text, of at most `most` bytes.
fn end_of(text: &str, most: usize) -> &str {
    let mut starts = text.len().saturating_sub(most)..=text.len();
    starts.find_map(|start| text.get(start..)).unwrap_or_default()
}

/// `most`: of longer texts only the end, of so many bytes.
fn message_for_llama(message: &Value, most: usize) -> Value {
    let mut result = Map::new();
    for key in ["role", "reasoning_content", "name", "tool_call_id"] {
        if let Some(text) = message.get(key).filter(|value| value.is_string()) {
            result.insert(key.to_owned(), text.clone());
        }
    }
    let content = match message.get("content") {
        Some(Value::String(text)) => end_of(text, most).into(),
        Some(Value::Array(parts)) => {
            let text = |part: &Value| Some(json!({"type": "text", "text": end_of(part.get("text")?.as_str()?, most)}));
            parts.iter().filter_map(text).collect()
        }
        _ => Value::Null,
    };
    result.insert("content".to_owned(), content);
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let calls: Vec<Value> = calls.into_iter().flatten().filter_map(call_for_llama).collect();
    if !calls.is_empty() {
        result.insert("tool_calls".to_owned(), calls.into());
    }
    Value::Object(result)
}

fn call_for_llama(call: &Value) -> Option<Value> {
    let function = call.get("function")?;
    let name = function.get("name")?.as_str()?;
    // Arguments that broke off would be an error where the template wants an object.
    let is_json = |value: &Value| value.as_str().is_none_or(|text| serde_json::from_str::<Value>(text).is_ok());
    let arguments = function.get("arguments").filter(|value| is_json(value)).cloned().unwrap_or_else(|| "{}".into());
    let mut result = json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    if let (Some(id), Value::Object(result)) = (call.get("id").filter(|id| id.is_string()), &mut result) {
        result.insert("id".to_owned(), id.clone());
    }
    Some(result)
}

#[cfg(test)]
pub(super) mod tests;
