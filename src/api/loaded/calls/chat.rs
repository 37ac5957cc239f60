//! Requests with messages: the format of the answer, and what the request needs for it.

use std::ops::Range;
use std::sync::Arc;

use foredraft_base::work::Work;
use foredraft_chat::MessageReader;
use parking_lot::Mutex;

use crate::api::prompts::chat_format::{AnswerFormat, FormatRequest, MessageStream, seen_messages, text_of};
use crate::api::prompts::{self, PromptInterrupt, ServingModel};
use crate::api::wire::request::{ChatInput, CompletionRequest, ContinuedTurn, Prompt, RequestGrammar, draw_id_seed};
use crate::error::{Code, Error, Result};

/// The parts of the answer to a request with messages.
pub(super) struct PreparedChat {
    /// Reads the answer.
    pub(super) reader: Arc<MessageReader>,
    /// The length of the prompt in bytes, or 0 if the template fails.
    pub(super) prompt_len: usize,
}

/// Finds the format of the answer to a request with messages, and sets in the request what the format needs. `None`: the request has no
/// messages.
///
/// # Errors
/// A tool is invalid, the template fails, or `work` ended.
pub(super) fn prepare(
    request: &mut CompletionRequest,
    serving: &ServingModel,
    interrupt: &PromptInterrupt,
    work: &Work,
) -> Result<Option<PreparedChat>> {
    let is_unconstrained = has_other_grammar(request)?;
    let CompletionRequest { inputs, chat: Some(options), json_schema, schema_options, .. } = &mut *request else {
        return Ok(None);
    };
    let Some(Prompt::Messages(chat)) = inputs.all.first_mut().map(|input| &mut input.prompt) else { return Ok(None) };
    // The template is checked with the messages before a continued one, because the format has the beginning of that.
    let n_before = chat.messages.len() - usize::from(options.continuation.is_some()).min(chat.messages.len());
    let before = chat.messages.get(..n_before).unwrap_or_default();
    let mut seen = ChatInput { messages: seen_messages(before), add_generation_prompt: true, ..chat.clone() };
    let mut checked = prompts::check_template(serving, &seen, interrupt);
    let mut fails_with_tools = None;
    if let (Err(error), false) = (&checked, seen.tools.is_empty())
        && error.code() == Code::InvalidRequest
    {
        seen.tools.clear();
        if let Ok(without_tools) = prompts::check_template(serving, &seen, interrupt) {
            fails_with_tools = Some(error.message().to_owned());
            checked = Ok(without_tools);
        }
    }
    let added = checked.as_ref().ok().and_then(|checked| checked.generation_prompt.as_deref());
    let added = added.filter(|_| chat.add_generation_prompt || options.continuation.is_some());
    let prompt_len = checked.as_ref().map_or(0, |checked| checked.prompt_len);
    let known = checked.as_ref().map_err(Error::clone).and_then(|_| interrupt.template(serving, &seen));
    let uses_default = chat.chat_template.is_none();
    let fallback_warning = uses_default.then(|| serving.fallback_warning(!seen.tools.is_empty())).flatten();
    let mut format = match &known {
        Ok(known) => AnswerFormat::new(&FormatRequest {
            template: &known.format,
            fails_with_tools: fails_with_tools.as_deref(),
            generation_prompt: added.unwrap_or_default(),
            chat,
            options,
            json_schema: json_schema.as_ref(),
            schema_options: *schema_options,
            is_unconstrained,
            work,
        })?,
        Err(error) if options.tool_choice.is_required => return Err(error.clone()),
        Err(error) => {
            let continued = chat.messages.last().filter(|_| options.continuation.is_some());
            let continued = continued.map_or(String::new(), |last| text_of(last, "content"));
            AnswerFormat::plain(error.message(), continued, work)?
        }
    };
    if let Some(messages) = format.messages.take() {
        chat.messages = messages;
    }
    if fails_with_tools.is_some() {
        chat.tools.clear();
    }
    if options.continuation.is_some() {
        let is_begun = added.is_some_and(|text| !text.is_empty());
        continue_last_message(chat, &format, is_begun);
    }
    // A schema's own grammar is enough where the answer begins with the content.
    let is_needed = json_schema.is_none() || !chat.tools.is_empty() || format.has_frame;
    if let Some(grammar) = format.grammar.take().filter(|_| is_needed) {
        request.grammar = Some(RequestGrammar::Tree(grammar.tree, grammar.root));
        request.constraint.grammar_lazy = false;
        request.constraint.grammar_triggers = Vec::new();
        request.constraint.grammar_prefix = grammar.prefix;
    } else if !request.constraint.grammar_lazy && request.constraint.grammar_prefix.is_empty() {
        // The host's own grammar is that of the answer.
        request.constraint.is_behind_reasoning = request.grammar.is_some() && format.opens_reasoning;
    }
    request.warnings.extend(fallback_warning);
    // The schema's own grammar has some of the same.
    format.warnings.retain(|warning| !request.warnings.contains(warning));
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
    Ok(Some(PreparedChat { reader: format.reader, prompt_len }))
}

/// Whether the request has another grammar than that of its format, or no grammar can apply.
///
/// # Errors
/// A call is required, which needs the format's grammar.
fn has_other_grammar(request: &CompletionRequest) -> Result<bool> {
    let is_required = request.chat.as_ref().is_some_and(|options| options.tool_choice.is_required);
    // The choices are all that the answer can be, whatever a grammar would begin with.
    let other = if request.choices.is_some() {
        "tool_choice: a required call cannot be combined with choices"
    } else if request.grammar.is_some() && request.json_schema.is_none() {
        "tool_choice: a required call cannot be combined with grammar"
    } else if request.options.n_beams > 1 {
        "n_beams: a beam search cannot be combined with a required call"
    } else if is_required && request.json_schema.is_some() {
        "tool_choice: a required call cannot be combined with a JSON schema"
    } else {
        return Ok(false);
    };
    if is_required { Err(Error::invalid(other)) } else { Ok(true) }
}

/// Moves the last message out of the messages, to the end of the prompt. `is_begun`: the format's end of the prompt has the beginning of
/// the turn. Otherwise the template adds it.
fn continue_last_message(chat: &mut ChatInput, format: &AnswerFormat, is_begun: bool) {
    let Some(last) = chat.messages.pop() else { return };
    let turn = format.generation_prompt.clone();
    chat.add_generation_prompt = !is_begun;
    let range = |data: &str| -> Option<Range<usize>> {
        let start = turn.rfind(data).filter(|_| !data.is_empty())?;
        Some(start..start + data.len())
    };
    let texts = ["reasoning_content", "content"].map(|key| text_of(&last, key));
    let mut data: Vec<Range<usize>> = texts.iter().filter_map(|data| range(data)).collect();
    data.sort_by_key(|range| range.start);
    chat.continued = Some(ContinuedTurn { text: turn, data });
}

/// The messages of a request's completions, none if it is no chat. `reader`: how they are read; absent if another process reads them.
pub fn messages(
    request: &CompletionRequest,
    reader: Option<&Arc<MessageReader>>,
    n_completions: usize,
) -> Vec<Mutex<MessageStream>> {
    let Some(options) = &request.chat else { return Vec::new() };
    let id_seed = draw_id_seed();
    let message = |index: usize| {
        Mutex::new(MessageStream::new(reader, options.with_function_call, id_seed.wrapping_add(index as u64)))
    };
    (0..n_completions).map(message).collect()
}
