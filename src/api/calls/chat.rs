//! Requests with messages: the format of the answer, and what the request needs for it.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::api::chat_format::{ChatFormat, FormatRequest, MessageReader, MessageStream, seen_messages};
use crate::api::prompts::{self, ServingModel};
use crate::api::registry::ChatRecord;
use crate::api::request::{
    ChatInput, ChatOptions, CompletionRequest, ContinuedTurn, GrammarTrigger, Prompt, ToolChoice, TriggerKind,
};
use crate::error::{Code, Error, Result};

/// Finds the format of the answer to a request with messages, and sets in the request what the format needs. Returns what reads the
/// answer; `None`: the request has no messages.
///
/// # Errors
/// A tool is invalid, or the template fails.
pub(super) fn prepare(request: &mut CompletionRequest, serving: &ServingModel) -> Result<Option<Arc<MessageReader>>> {
    let timeout = request.options.timeout;
    let CompletionRequest { inputs, chat: Some(options), json_schema, .. } = &mut *request else { return Ok(None) };
    let Some(Prompt::Messages(chat)) = inputs.all.first_mut().map(|input| &mut input.prompt) else { return Ok(None) };
    let is_required = matches!(options.tool_choice, ToolChoice::Required | ToolChoice::Function(_));
    let own;
    // The renderer has limits on time and memory, and llama.cpp has none: so it is asked first, with the same messages. If the template
    // fails, preparing the prompt says so.
    let mut seen = ChatInput { messages: seen_messages(&chat.messages), ..chat.clone() };
    let mut checked = prompts::check_template(serving, &seen, timeout);
    let mut fails_with_tools = None;
    if let (Err(error), false) = (&checked, seen.tools.is_empty())
        && error.code() == Code::InvalidRequest
    {
        seen.tools.clear();
        if let Ok(without_tools) = prompts::check_template(serving, &seen, timeout) {
            fails_with_tools = Some(error.message().to_owned());
            checked = Ok(without_tools);
        }
    }
    let template = match (&chat.chat_template, &checked) {
        (_, Err(error)) => Err(error.message()),
        (Some(source), Ok(_)) => {
            own = serving.request_format(source);
            own.as_deref().map_err(|error| error.message())
        }
        (None, Ok(_)) => serving.format_template(!seen.tools.is_empty())?.map_err(String::as_str),
    };
    let mut format = match template {
        Ok(template) => {
            let generation_prompt = checked.as_ref().ok().and_then(|text| text.as_deref());
            let json_schema = json_schema.as_ref();
            let fails_with_tools = fails_with_tools.as_deref();
            ChatFormat::detect(&FormatRequest {
                template,
                fails_with_tools,
                generation_prompt,
                chat,
                options,
                json_schema,
            })?
        }
        Err(why) if is_required => return Err(Error::invalid(why)),
        Err(why) => ChatFormat::plain(options, why)?,
    };
    if let Some(messages) = format.messages.take() {
        chat.messages = messages;
    }
    if fails_with_tools.is_some() {
        chat.tools.clear();
    }
    if options.continuation.is_some() {
        continue_last_message(chat, &mut format);
    }
    set_grammar(request, &mut format, is_required)?;
    request.options.stop.append(&mut format.stops);
    request.warnings.append(&mut format.warnings);
    let constraint = &mut request.constraint;
    constraint.preserved_tokens.append(&mut format.preserved);
    if let Some(tags) = format.thinking.filter(|_| constraint.reasoning_start.is_empty()) {
        constraint.reasoning_start = tags.start;
        constraint.reasoning_ends = tags.ends;
    }
    if constraint.generation_prompt.is_empty() {
        constraint.generation_prompt = format.generation_prompt;
    }
    Ok(Some(format.reader))
}

/// Sets the grammar of the format, unless the request has its own.
fn set_grammar(request: &mut CompletionRequest, format: &mut ChatFormat, is_required: bool) -> Result<()> {
    if request.choices.is_some() {
        return match is_required {
            true => Err(Error::invalid("tool_choice: a required call cannot be combined with choices")),
            // The choices are all that the answer can be, whatever a grammar would begin with.
            false => Ok(()),
        };
    }
    let has_own = request.grammar.is_some() && request.json_schema.is_none();
    if is_required && (has_own || request.json_schema.is_some()) {
        let what = if has_own { "grammar" } else { "a JSON schema" };
        return Err(Error::invalid(format!("tool_choice: a required call cannot be combined with {what}")));
    }
    let Some(grammar) = format.grammar.take() else {
        if is_required {
            return Err(Error::invalid("tool_choice: llama.cpp has no grammar for calls in this template's format"));
        }
        return Ok(());
    };
    if request.options.n_beams > 1 {
        if is_required {
            return Err(Error::invalid("n_beams: a beam search cannot be combined with a required call"));
        }
        return Ok(());
    }
    // A schema's own grammar is enough where the answer begins with the content.
    if has_own || (request.json_schema.is_some() && format.thinking.is_none()) {
        return Ok(());
    }
    request.grammar = Some(grammar.text);
    let constraint = &mut request.constraint;
    constraint.grammar_lazy = grammar.lazy;
    constraint.grammar_prefix = if grammar.has_prefix { format.generation_prompt.clone() } else { String::new() };
    constraint.grammar_triggers = grammar
        .triggers
        .into_iter()
        .filter_map(|trigger| {
            Some(GrammarTrigger { kind: TriggerKind::named(&trigger.kind)?, value: trigger.value, token: None })
        })
        .collect();
    Ok(())
}

/// Moves the last message out of the messages, to the end of the prompt.
fn continue_last_message(chat: &mut ChatInput, format: &mut ChatFormat) {
    let Some(last) = chat.messages.pop() else { return };
    let text_of = |key: &str| match last.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            texts.join("\n\n")
        }
        _ => String::new(),
    };
    let (content, reasoning) = (text_of("content"), text_of("reasoning_content"));
    let turn = if format.is_known {
        chat.add_generation_prompt = false;
        format.generation_prompt.clone()
    } else {
        content.clone()
    };
    let range = |data: &str| -> Option<Range<usize>> {
        let start = turn.rfind(data).filter(|_| !data.is_empty())?;
        Some(start..start + data.len())
    };
    let mut data: Vec<Range<usize>> = [reasoning, content].iter().filter_map(|data| range(data)).collect();
    data.sort_by_key(|range| range.start);
    chat.continued = Some(ContinuedTurn { text: turn, data });
}

/// What the answers to a request with messages need.
pub(super) fn record(
    options: Option<&ChatOptions>,
    reader: Option<&Arc<MessageReader>>,
    n_completions: usize,
) -> Option<ChatRecord> {
    let (options, reader) = options.zip(reader)?;
    let message = |_| {
        let seed = RandomState::new().hash_one(0_u64);
        Mutex::new(MessageStream::new(Arc::clone(reader), seed))
    };
    Some(ChatRecord {
        reasoning_format: options.reasoning_format,
        logprobs: options.logprobs,
        with_function_call: options.with_function_call,
        messages: (0..n_completions).map(message).collect(),
    })
}
