//! The format of a request's answer.

use std::sync::Arc;

use foredraft_base::work::Work;
use foredraft_chat::{
    CallObject, CallPart, Calls, ChatFormat, MessageReader, ReaderOptions, TurnGrammar, TurnRequest, TurnStart,
};
use foredraft_grammar::tree::{NodeId, Tree};
use foredraft_schema::{CompileOptions, Schema};
use serde_json::{Map, Value, json};

use super::tools::{callable_tools, described};
use crate::api::prompts::chat::add_to_system;
use crate::api::wire::answer::with_fields;
use crate::api::wire::request::{ChatInput, ChatOptions, Continuation, ReasoningFormat};
use crate::api::wire::schema::of_field;
use crate::error::Result;

/// A template is checked with all messages up to so many bytes, because that happens in the call that submits a request.
const MAX_SEEN: usize = 32 << 10;
/// The most messages that it is checked with. Templates that look at all messages for each message take quadratic time.
const MAX_SEEN_MESSAGES: usize = 64;
/// The longest text in a longer conversation, in bytes.
const MAX_SEEN_TEXT: usize = 4 << 10;

/// The parts of a request on which the format of its answer depends.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct FormatRequest<'a> {
    pub(in crate::api) template: &'a ChatFormat,
    /// The reason why the template fails with the tools, so that it does not get them.
    pub(in crate::api) fails_with_tools: Option<&'a str>,
    /// The text that `add_generation_prompt` adds to the prompt, or "" if it is unknown.
    pub(in crate::api) generation_prompt: &'a str,
    pub(in crate::api) chat: &'a ChatInput,
    pub(in crate::api) options: &'a ChatOptions,
    /// The schema of the content.
    pub(in crate::api) json_schema: Option<&'a Value>,
    /// How its grammar is written.
    pub(in crate::api) schema_options: CompileOptions,
    /// The format's grammar does not apply, because the request has another one, or is answered otherwise.
    pub(in crate::api) is_unconstrained: bool,
    /// Counts the steps of reading schemas and writing grammars.
    pub(in crate::api) work: &'a Work,
}

/// The format of an answer.
#[derive(Debug)]
pub(in crate::api) struct AnswerFormat {
    /// Reads the answer's message.
    pub(in crate::api) reader: Arc<MessageReader>,
    /// The grammar of the completion, if it needs one.
    pub(in crate::api) grammar: Option<FormatGrammar>,
    /// Texts of control tokens that are part of the completion.
    pub(in crate::api) preserved: Vec<String>,
    /// The tags around reasoning, if the model reasons.
    pub(in crate::api) thinking: Option<ThinkingTags>,
    /// The end of the prompt: the beginning of the assistant's turn, and what is continued.
    pub(in crate::api) generation_prompt: String,
    /// Content is not all that a turn begins with: the model reasons, or content has a beginning.
    pub(in crate::api) has_frame: bool,
    /// The completion begins inside of reasoning.
    pub(in crate::api) opens_reasoning: bool,
    /// The messages for the template, if they differ from the request's.
    pub(in crate::api) messages: Option<Vec<Value>>,
    pub(in crate::api) warnings: Vec<String>,
}

/// The grammar of a completion.
#[derive(Debug, Clone)]
pub(in crate::api) struct FormatGrammar {
    pub(in crate::api) tree: Arc<Tree>,
    /// The texts that it allows.
    pub(in crate::api) root: NodeId,
    /// The end of the prompt with which its texts begin.
    pub(in crate::api) prefix: String,
}

/// The tags around reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) struct ThinkingTags {
    pub(in crate::api) start: String,
    /// The first one is written to end reasoning.
    pub(in crate::api) ends: Vec<String>,
}

impl AnswerFormat {
    /// The format of the answer to a request.
    ///
    /// # Errors
    /// A tool's schema is invalid, or the schema of the content is.
    pub(in crate::api) fn new(request: &FormatRequest) -> Result<AnswerFormat> {
        let FormatRequest { template: known, fails_with_tools, chat, options, .. } = *request;
        options.validate_choice(&chat.tools)?;
        let mut warnings = Vec::new();
        let mut format = known.clone();
        let shows_tools = known.shows_tools && fails_with_tools.is_none();
        let is_required = options.tool_choice.is_required;
        let mut tools = callable_tools(chat, options, request.work)?;
        let can_be_several = fails_with_tools.is_none() && !known.is_generic && !options.tool_choice.names_one();
        let parallel = options.parallel_tool_calls.unwrap_or(can_be_several);
        let mut messages = None;
        if !tools.is_empty() && !shows_tools {
            let why =
                fails_with_tools.map_or("has no place for them".to_owned(), |why| format!("fails with them ({why})"));
            let so = match is_required {
                true => "they are in the system message",
                false => "the model does not see them",
            };
            warnings.push(format!("tools: the chat template {why}, so {so}"));
            if is_required {
                messages = Some(add_to_system(&chat.messages, &described(&chat.tools, parallel)));
                format.calls = vec![described_calls(parallel)];
            } else if known.is_generic {
                tools.clear();
            }
        } else if !tools.is_empty() && known.is_generic {
            warnings.push("tools: the chat template does not show how calls are written, so they are JSON with name and arguments".to_owned());
        }
        let document = request
            .json_schema
            .map(|schema| Schema::new(schema, request.work))
            .transpose()
            .map_err(|error| of_field(&error))?;
        let (generation_prompt, start) = turn(&format, request);
        let preserved = format.tags();
        let has_frame = format.reasoning.is_some() || format.content.is_some();
        let thinking = format
            .reasoning
            .as_ref()
            .map(|block| ThinkingTags { start: block.begin().trim().to_owned(), ends: format.reasoning_ends() });
        let opens_reasoning = format.opens_reasoning(&start);
        if options.reasoning_format == ReasoningFormat::Inline {
            format.keep_reasoning_in_content();
        }
        let wanted = TurnRequest {
            tools: &tools,
            is_required,
            parallel,
            document: document.as_ref().map(|schema| (schema, request.schema_options)),
        };
        let grammar = match request.is_unconstrained {
            true => None,
            false => format.grammar(&wanted, &start, request.work)?,
        };
        warnings.extend(grammar.iter().flat_map(|grammar| unenforced(grammar, chat)));
        let reader_options = ReaderOptions {
            opened: start.opened,
            is_continued: options.continuation.is_some(),
            is_enforced: grammar.is_some(),
            is_required: is_required && grammar.is_some(),
            grammar: grammar.clone(),
        };
        let reader = MessageReader::new(format, tools, reader_options, request.work)?;
        Ok(AnswerFormat {
            reader: Arc::new(reader),
            grammar: grammar.map(FormatGrammar::from),
            preserved,
            thinking: thinking.filter(|tags| !tags.start.is_empty() && !tags.ends.is_empty()),
            generation_prompt,
            has_frame,
            opens_reasoning,
            messages,
            warnings,
        })
    }
}

impl From<TurnGrammar> for FormatGrammar {
    fn from(TurnGrammar { tree, root, prefix, .. }: TurnGrammar) -> FormatGrammar {
        FormatGrammar { tree, root, prefix }
    }
}

/// The end of the prompt, and the part of it that belongs to the turn.
fn turn(format: &ChatFormat, request: &FormatRequest) -> (String, TurnStart) {
    let prompt = request.generation_prompt;
    let (Some(part), Some(last)) = (request.options.continuation, request.chat.messages.last()) else {
        return (prompt.to_owned(), format.turn_start(prompt));
    };
    let (content, reasoning) = (text_of(last, "content"), text_of(last, "reasoning_content"));
    let continues_reasoning = match part {
        Continuation::Reasoning => true,
        Continuation::Content => false,
        Continuation::Auto => content.is_empty() && !reasoning.is_empty(),
    };
    let content = (!continues_reasoning).then_some(content.as_str());
    let turn = format.continued(prompt, &reasoning, content);
    // The header of the turn is no part of the message.
    let header = prompt.strip_suffix(format.turn_start(prompt).opened.as_str()).unwrap_or(prompt);
    let opened = turn.strip_prefix(header).unwrap_or_default().to_owned();
    (turn, TurnStart { opened })
}

/// The text of a message's field.
pub(in crate::api) fn text_of(message: &Value, key: &str) -> String {
    match message.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            texts.join("\n\n")
        }
        _ => String::new(),
    }
}

/// Calls as the system message asks for them, if the template has no place for tools.
fn described_calls(parallel: bool) -> Calls {
    let object =
        CallObject { name: Some("name".to_owned()), arguments: "arguments".to_owned(), ..CallObject::default() };
    let around = |text: &str| if parallel { text.to_owned() } else { String::new() };
    Calls {
        begin: around("["),
        separator: around(", "),
        end: around("]"),
        call: vec![CallPart::Object(object)],
        is_single: !parallel,
        is_anchored: true,
        ..Calls::default()
    }
}

/// Warnings about keywords that the grammar does not enforce.
fn unenforced(grammar: &TurnGrammar, chat: &ChatInput) -> Vec<String> {
    let place = |tool: &Option<String>| match tool {
        None => "json_schema".to_owned(),
        Some(name) => {
            let named = |tool: &&Value| crate::api::wire::request::tool_name(tool) == Some(name.as_str());
            let index = chat.tools.iter().position(|tool| named(&tool)).unwrap_or_default();
            format!("tools[{index}].function.parameters")
        }
    };
    let line = |(tool, keyword): &(Option<String>, foredraft_schema::Unenforced)| {
        let name = tool.as_deref().map_or(String::new(), |name| format!(", so a call of {name} can violate it"));
        format!("{}: {}: {}{name}", place(tool), keyword.location, keyword.reason)
    };
    grammar.unenforced.iter().map(line).collect()
}

impl AnswerFormat {
    /// The format in which the whole completion is the content, because the template fails. `why`: the reason. `continued`: the
    /// content that is continued.
    ///
    /// # Errors
    /// `work` has ended.
    pub(in crate::api) fn plain(why: &str, continued: String, work: &Work) -> Result<AnswerFormat> {
        let reader = MessageReader::new(ChatFormat::default(), Vec::new(), ReaderOptions::default(), work)?;
        Ok(AnswerFormat {
            reader: Arc::new(reader),
            grammar: None,
            preserved: Vec::new(),
            thinking: None,
            generation_prompt: continued,
            has_frame: false,
            opens_reasoning: false,
            messages: None,
            warnings: vec![format!("message: the whole completion is its content, because the template fails: {why}")],
        })
    }
}

/// The messages that a template is checked with: a part of a long conversation.
pub(in crate::api) fn seen_messages(messages: &[Value]) -> Vec<Value> {
    shortened(messages, false)
}

/// Messages with the fields that formats depend on. A long conversation keeps only the system message and the last turn or its end, with
/// the ends of long texts: a format depends on the template, and hardly on them. `whole`: all of them.
fn shortened(messages: &[Value], whole: bool) -> Vec<Value> {
    let is = |message: &Value, roles: &[&str]| {
        message.get("role").and_then(Value::as_str).is_some_and(|role| roles.contains(&role))
    };
    let length = |message: &Value| text_len(message.get("content").unwrap_or(&Value::Null));
    let is_short = messages.len() <= MAX_SEEN_MESSAGES && messages.iter().map(length).sum::<usize>() <= MAX_SEEN;
    if whole || is_short {
        return messages.iter().map(|message| shortened_message(message, usize::MAX)).collect();
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
    seen.map(|(_, message)| shortened_message(message, MAX_SEEN_TEXT)).collect()
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
fn shortened_message(message: &Value, most: usize) -> Value {
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
    let calls: Vec<Value> = calls.into_iter().flatten().filter_map(shortened_call).collect();
    if !calls.is_empty() {
        result.insert("tool_calls".to_owned(), calls.into());
    }
    Value::Object(result)
}

fn shortened_call(call: &Value) -> Option<Value> {
    let function = call.get("function")?;
    let name = function.get("name")?.as_str()?;
    // Arguments that broke off would be an error where the template wants an object.
    let is_json = |value: &Value| value.as_str().is_none_or(|text| serde_json::from_str::<Value>(text).is_ok());
    let arguments = function.get("arguments").filter(|value| is_json(value)).cloned().unwrap_or_else(|| "{}".into());
    let id = call.get("id").filter(|id| id.is_string()).map(|id| ("id", id.clone()));
    Some(with_fields(json!({"type": "function", "function": {"name": name, "arguments": arguments}}), id))
}

#[cfg(test)]
pub(super) mod tests;
