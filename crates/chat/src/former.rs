//! The streaming parser of formats that have no tree yet.

use std::sync::Arc;

use crate::call::{CallReader, Progress};
use crate::format::ChatFormat;
use crate::message::{CallDelta, ChatMessage, MessageDelta, ToolCall};
use crate::scan::{TextMatch, compare, find};
use crate::tool::Tool;

/// How often a text may look like calls and be none, until the rest of the completion is content. Each time costs reading the text again.
const MAX_GIVEN_UP: usize = 256;

/// Reads the messages of completions of one format, with certain tools.
#[derive(Debug, Clone)]
pub(crate) struct FormerReader {
    format: ChatFormat,
    tools: Vec<Tool>,
    options: FormerOptions,
    /// The texts that mean something outside of blocks.
    outside: Vec<(String, TurnMark)>,
    /// The texts that mean something in content's block.
    in_content: Vec<(String, TurnMark)>,
    in_reasoning: Vec<(String, TurnMark)>,
}

/// The known properties of the completions that are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FormerOptions {
    /// The end of the prompt that belongs to the turn.
    pub(crate) opened: String,
    /// The prompt has a part of the message, which is not repeated.
    pub(crate) is_continued: bool,
    /// A grammar makes sure that calls are complete and valid, so they are reported while they are read. Otherwise they are reported once
    /// they are complete and valid, and what is not is content.
    pub(crate) is_enforced: bool,
    /// The grammar allows calls only.
    pub(crate) is_required: bool,
}

/// The meaning of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnMark {
    Reasoning,
    Content,
    /// The end of a block.
    End,
    /// The end of reasoning that has not begun: it means nothing at the beginning, and is text elsewhere.
    BareEnd,
    /// A text without meaning.
    Between,
    /// Calls, by the index of the way to write them.
    Calls(usize),
}

impl FormerReader {
    /// A reader for completions in this format that call these tools.
    pub(crate) fn new(mut format: ChatFormat, tools: Vec<Tool>, options: FormerOptions) -> FormerReader {
        if format.is_reasoning_content {
            format.reasoning = None;
        }
        let texts = |texts: &[String], mark: TurnMark| -> Vec<(String, TurnMark)> {
            let marks = texts.iter().map(|text| (text.trim_matches(['\n', '\r', '\t']).trim_end().to_owned(), mark));
            marks.filter(|(text, _)| !text.is_empty()).collect()
        };
        let mut outside = Vec::new();
        let begins = |mark: TurnMark| match mark {
            TurnMark::Reasoning => format.reasoning.iter().flat_map(|block| texts(&block.begins, mark)).collect(),
            _ => format.content.iter().flat_map(|block| texts(&block.begins, mark)).collect::<Vec<_>>(),
        };
        outside.extend(begins(TurnMark::Reasoning));
        let between = texts(&format.between, TurnMark::Between);
        // An end that models repeat means nothing anywhere.
        let is_repeated = |end: &str| between.iter().any(|(text, _)| text == end);
        let ends = format.reasoning.iter().flat_map(|block| texts(&block.ends, TurnMark::BareEnd));
        outside.extend(ends.filter(|(end, _)| !is_repeated(end)));
        outside.extend(begins(TurnMark::Content));
        outside.extend(between);
        outside.extend(texts(std::slice::from_ref(&format.turn_end), TurnMark::Between));
        let mut called = Vec::new();
        if !tools.is_empty() {
            for (index, calls) in format.calls.iter().enumerate() {
                // Where nothing but calls may come, JSON may have space behind its first brace.
                let is_bare = calls.is_anchored && calls.begin.is_empty() && options.is_required;
                let triggers = if is_bare { vec!["{".to_owned()] } else { calls.triggers() };
                called.extend(texts(&triggers, TurnMark::Calls(index)));
            }
        }
        outside.extend(called.clone());
        let mut in_content =
            format.content.iter().flat_map(|block| texts(&block.ends, TurnMark::End)).collect::<Vec<_>>();
        in_content.extend(outside.clone());
        let mut in_reasoning: Vec<_> =
            format.reasoning.iter().flat_map(|block| texts(&block.ends, TurnMark::End)).collect();
        let anchored = |index: usize| format.calls.get(index).is_some_and(|calls| calls.is_anchored);
        in_reasoning.extend(called.into_iter().filter(|(_, mark)| match mark {
            TurnMark::Calls(index) => !anchored(*index),
            _ => false,
        }));
        FormerReader { format, tools, options, outside, in_content, in_reasoning }
    }
}

/// The message of one completion. It depends on the text alone, not on how the text was cut, and nothing that a delta had is taken back.
#[derive(Debug, Clone)]
pub(crate) struct FormerParser {
    reader: Arc<FormerReader>,
    /// Text that is not decided yet.
    pending: String,
    state: TurnState,
    /// White space at the end of a text, which belongs to it only if more text follows.
    space: String,
    message: ChatMessage,
    sent: Sent,
    /// The part of the message that the prompt has.
    given: ChatMessage,
    warnings: Vec<String>,
    /// How often a text looked like calls and was none.
    n_given_up: usize,
}

/// How much of the message was sent.
#[derive(Debug, Clone, Default)]
struct Sent {
    content: usize,
    reasoning: usize,
    /// The bytes of each call's arguments.
    calls: Vec<usize>,
}

#[derive(Debug, Clone)]
enum TurnState {
    Text { is_reasoning: bool, in_block: bool, trims_start: bool, is_begin: bool },
    Calls(Box<OpenCalls>),
}

#[derive(Debug, Clone)]
struct OpenCalls {
    which: usize,
    phase: CallsPhase,
    /// Everything since the call's beginning, for the case that it is none.
    raw: String,
    /// They began inside of reasoning that has not ended. They are calls only if the turn ends with them, because models also reason about
    /// calls: the calls so far.
    in_reasoning: Option<Vec<ToolCall>>,
}

#[derive(Debug, Clone)]
enum CallsPhase {
    Begin,
    /// A call, and whether it was reported.
    Call(Box<CallReader>, bool),
    After,
    /// After all calls in reasoning.
    End,
}

impl FormerParser {
    /// An empty message.
    pub(crate) fn new(reader: Arc<FormerReader>) -> FormerParser {
        let opened = reader.options.opened.clone();
        let mut parser = FormerParser {
            reader,
            pending: String::new(),
            state: TurnState::Text { is_reasoning: false, in_block: false, trims_start: false, is_begin: true },
            space: String::new(),
            message: ChatMessage::default(),
            sent: Sent::default(),
            given: ChatMessage::default(),
            warnings: Vec::new(),
            n_given_up: 0,
        };
        parser.push(&opened);
        if parser.reader.options.is_continued {
            // Nothing of it is undecided: the space at its end is part of it, too.
            let space = std::mem::take(&mut parser.space);
            match parser.state {
                TurnState::Text { is_reasoning: true, trims_start: false, .. } => parser.message.reasoning += &space,
                TurnState::Text { is_reasoning: false, trims_start: false, .. } => parser.message.content += &space,
                _ => {}
            }
            parser.given = parser.message.clone();
            parser.sent.content = parser.message.content.len();
            parser.sent.reasoning = parser.message.reasoning.len();
        }
        parser
    }

    /// Reads more of the completion.
    pub(crate) fn push(&mut self, text: &str) {
        self.pending.push_str(text);
        while self.step(false) {}
    }

    /// Ends the completion.
    pub(crate) fn finish(&mut self) {
        if self.reader.options.is_required
            && self.message.calls.is_empty()
            && matches!(self.state, TurnState::Text { is_reasoning: false, .. })
        {
            // The beginning of a call that broke off.
            self.pending.clear();
            self.space.clear();
        }
        while self.step(true) {}
        if let TurnState::Text { is_reasoning: false, trims_start: false, .. } = self.state {
            let space = std::mem::take(&mut self.space);
            self.message.content.push_str(&space);
        }
    }

    /// The parts of the message that are new.
    pub(crate) fn delta(&mut self) -> MessageDelta {
        let take = |text: &str, sent: &mut usize| {
            let more = text.get(*sent..).unwrap_or_default().to_owned();
            *sent = text.len();
            more
        };
        let content = take(&self.message.content, &mut self.sent.content);
        let reasoning = take(&self.message.reasoning, &mut self.sent.reasoning);
        let mut calls = Vec::new();
        for (index, call) in self.message.calls.iter().enumerate() {
            match self.sent.calls.get_mut(index) {
                Some(sent) => {
                    let arguments = take(&call.arguments, sent);
                    if !arguments.is_empty() {
                        calls.push(CallDelta { index, begun: None, arguments });
                    }
                }
                None => {
                    let begun = Some((call.name.clone(), call.id.clone()));
                    calls.push(CallDelta { index, begun, arguments: call.arguments.clone() });
                    self.sent.calls.push(call.arguments.len());
                }
            }
        }
        MessageDelta { content, reasoning, calls }
    }

    /// The message so far, without the part that the prompt has.
    pub(crate) fn message(&self) -> ChatMessage {
        let after = |text: &str, given: &str| text.get(given.len()..).unwrap_or_default().to_owned();
        ChatMessage {
            content: after(&self.message.content, &self.given.content),
            reasoning: after(&self.message.reasoning, &self.given.reasoning),
            calls: self.message.calls.clone(),
        }
    }

    /// The part of the message that the prompt has.
    pub(crate) fn given(&self) -> &ChatMessage {
        &self.given
    }

    /// Calls that are not valid, each with the reason.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn consume(&mut self, n: usize) {
        self.pending.drain(..n.min(self.pending.len()));
    }

    /// Decides about a piece of text. Whether there may be more to decide.
    fn step(&mut self, is_final: bool) -> bool {
        match std::mem::replace(
            &mut self.state,
            TurnState::Text { is_reasoning: false, in_block: false, trims_start: false, is_begin: false },
        ) {
            TurnState::Text { is_reasoning, in_block, trims_start, is_begin } => {
                self.text_step(is_reasoning, in_block, trims_start, is_begin, is_final)
            }
            TurnState::Calls(calls) => self.calls_step(calls, is_final),
        }
    }

    fn text_step(
        &mut self,
        is_reasoning: bool,
        in_block: bool,
        trims_start: bool,
        is_begin: bool,
        is_final: bool,
    ) -> bool {
        let reader = Arc::clone(&self.reader);
        let marks = match (is_reasoning, in_block) {
            (true, _) => &reader.in_reasoning,
            (false, true) => &reader.in_content,
            (false, false) => &reader.outside,
        };
        self.state = TurnState::Text { is_reasoning, in_block, trims_start, is_begin };
        if self.pending.is_empty() {
            return false;
        }
        let words = marks.iter().map(|(text, _)| text.as_str());
        let (mut found, mut kept) = find(&self.pending, words);
        if is_final {
            kept = 0;
        }
        // A longer text may begin where this one does.
        if let Some((at, index)) = found {
            let rest = self.pending.get(at..).unwrap_or_default();
            let word = marks.get(index).map_or("", |(text, _)| text.as_str());
            let may_be_longer =
                |text: &str| text.len() > rest.len() && text.len() > word.len() && text.starts_with(rest);
            if !is_final && marks.iter().any(|(text, _)| may_be_longer(text)) {
                found = None;
                kept = self.pending.len() - at;
            }
        }
        let end = found.map_or(self.pending.len() - kept, |(at, _)| at);
        let text = self.pending.get(..end).unwrap_or_default().to_owned();
        self.consume(end);
        let is_blank = text.trim().is_empty();
        self.add_text(&text, is_reasoning);
        let Some((_, index)) = found else { return false };
        let Some((word, mark)) = marks.get(index) else { return false };
        let word_len = word.len();
        let at_begin = is_begin && is_blank && self.is_blank();
        let is_text = match mark {
            TurnMark::Calls(which) => !self.may_call(*which, at_begin),
            TurnMark::BareEnd => !at_begin,
            _ => false,
        };
        let mark = match mark {
            _ if is_text => {
                // It is text here.
                let first = self.pending.chars().next().map_or(0, char::len_utf8);
                let text = self.pending.get(..first).unwrap_or_default().to_owned();
                self.consume(first);
                self.add_text(&text, is_reasoning);
                return true;
            }
            mark => *mark,
        };
        match mark {
            TurnMark::Calls(which) => {
                let phase = CallsPhase::Begin;
                let in_reasoning = is_reasoning.then(Vec::new);
                let calls = OpenCalls { which, phase, raw: String::new(), in_reasoning };
                self.state = TurnState::Calls(Box::new(calls));
            }
            TurnMark::Reasoning | TurnMark::Content => {
                self.space.clear();
                self.consume(word_len);
                let is_reasoning = mark == TurnMark::Reasoning;
                self.state =
                    TurnState::Text { is_reasoning, in_block: true, trims_start: is_reasoning, is_begin: false };
            }
            TurnMark::End | TurnMark::BareEnd | TurnMark::Between => {
                self.space.clear();
                self.consume(word_len);
                self.state = TurnState::Text {
                    is_reasoning: false,
                    in_block: false,
                    trims_start: true,
                    is_begin: is_begin || is_reasoning,
                };
            }
        }
        true
    }

    /// Whether calls may begin here.
    fn may_call(&self, which: usize, at_begin: bool) -> bool {
        let is_anchored = self.reader.format.calls.get(which).is_some_and(|calls| calls.is_anchored);
        self.n_given_up < MAX_GIVEN_UP && (at_begin || !is_anchored)
    }

    /// Whether there is no content yet.
    fn is_blank(&self) -> bool {
        self.message.content.trim().is_empty() && self.message.calls.is_empty()
    }

    /// Adds text to the content or the reasoning, but keeps back the space at its end.
    fn add_text(&mut self, text: &str, is_reasoning: bool) {
        let TurnState::Text { trims_start, is_begin, .. } = &mut self.state else { return };
        let body = text.trim_end();
        let tail = text.get(body.len()..).unwrap_or_default();
        let into = if is_reasoning { &mut self.message.reasoning } else { &mut self.message.content };
        if !body.is_empty() {
            if *trims_start {
                into.push_str(body.trim_start());
            } else {
                into.push_str(&self.space);
                into.push_str(body);
            }
            self.space.clear();
            *trims_start = false;
            if !is_reasoning {
                *is_begin = false;
            }
        }
        if !*trims_start {
            self.space.push_str(tail);
        }
    }

    fn calls_step(&mut self, mut calls: Box<OpenCalls>, is_final: bool) -> bool {
        let reader = Arc::clone(&self.reader);
        let Some(format) = reader.format.calls.get(calls.which) else { return false };
        let mut took = 0;
        let mut more = true;
        let rest = self.pending.as_str();
        match &mut calls.phase {
            CallsPhase::Begin => match compare(&format.begin, rest) {
                TextMatch::Full(n) => {
                    took = n;
                    calls.phase = CallsPhase::Call(Box::new(CallReader::new(format)), false);
                }
                TextMatch::Partial if !is_final => more = false,
                _ => return self.give_up(&calls, false, is_final),
            },
            CallsPhase::Call(call, is_open) => match call.step(format, &reader.tools, rest, is_final) {
                Progress::Read(n) => {
                    took = n;
                    let may_open = reader.options.is_enforced && calls.in_reasoning.is_none();
                    if may_open && !*is_open && call.has_begun() {
                        *is_open = true;
                        self.message.calls.push(ToolCall {
                            name: tool_name(&reader, call),
                            arguments: String::new(),
                            id: call.id.clone(),
                        });
                    }
                    if let (true, Some(last)) = (*is_open, self.message.calls.last_mut()) {
                        last.arguments.push_str(call.arguments.get(last.arguments.len()..).unwrap_or_default());
                    }
                }
                Progress::More => more = false,
                Progress::Bad => {
                    let is_open = *is_open;
                    return self.give_up(&calls, is_open, is_final);
                }
                Progress::Done => {
                    let (is_open, name) = (*is_open, tool_name(&reader, call));
                    let is_valid = is_valid_call(&reader, call);
                    if !is_valid && calls.in_reasoning.is_none() {
                        self.warnings
                            .push(format!("tool_calls: the arguments of {name} are not valid under its parameters"));
                    }
                    if !is_valid && !is_open {
                        return self.give_up(&calls, false, is_final);
                    }
                    if !is_open {
                        let arguments = std::mem::take(&mut call.arguments);
                        let call = ToolCall { name, arguments, id: std::mem::take(&mut call.id) };
                        calls.in_reasoning.as_mut().unwrap_or(&mut self.message.calls).push(call);
                    }
                    if calls.in_reasoning.is_none() {
                        calls.raw.clear();
                    }
                    calls.phase = CallsPhase::After;
                }
            },
            CallsPhase::After => {
                let next = match format.call.first() {
                    Some(crate::format::CallPart::Text(text)) => text.as_str(),
                    _ => "",
                };
                let another = format!("{}{next}", format.separator);
                if !format.end.trim().is_empty() {
                    match (compare(&format.end, rest), compare(&format.separator, rest)) {
                        (TextMatch::Full(n), _) => return self.leave_calls(calls, n),
                        (TextMatch::Partial, _) | (_, TextMatch::Partial) if !is_final => more = false,
                        (_, TextMatch::Full(n)) if !rest.trim().is_empty() => {
                            took = n;
                            calls.phase = CallsPhase::Call(Box::new(CallReader::new(format)), false);
                        }
                        _ => return self.leave_calls(calls, 0),
                    }
                } else if another.trim().is_empty() {
                    return self.leave_calls(calls, 0);
                } else {
                    match compare(&another, rest) {
                        TextMatch::Full(_) => {
                            if let TextMatch::Full(n) = compare(&format.separator, rest) {
                                took = n;
                            }
                            calls.phase = CallsPhase::Call(Box::new(CallReader::new(format)), false);
                        }
                        TextMatch::Partial if !is_final => more = false,
                        _ => return self.leave_calls(calls, 0),
                    }
                }
            }
            CallsPhase::End => {
                let turn_end = match compare(&reader.format.turn_end, rest) {
                    TextMatch::Full(n) => n,
                    TextMatch::Partial if !is_final => rest.len(),
                    _ => 0,
                };
                if rest.get(turn_end..).is_some_and(|rest| !rest.trim().is_empty()) {
                    return self.give_up(&calls, false, is_final);
                }
                if is_final {
                    self.message.calls.extend(calls.in_reasoning.take().unwrap_or_default());
                    let n = rest.len();
                    return self.leave_calls(calls, n);
                }
                more = false;
            }
        }
        calls.raw.push_str(self.pending.get(..took).unwrap_or_default());
        self.consume(took);
        self.state = TurnState::Calls(calls);
        more
    }

    /// Goes on with text after calls, whose end has `n` bytes. Calls in reasoning wait for the end of the turn.
    fn leave_calls(&mut self, mut calls: Box<OpenCalls>, n: usize) -> bool {
        if calls.in_reasoning.is_some() {
            calls.raw.push_str(self.pending.get(..n).unwrap_or_default());
            self.consume(n);
            calls.phase = CallsPhase::End;
            self.state = TurnState::Calls(calls);
            return true;
        }
        self.consume(n);
        self.space.clear();
        self.state = TurnState::Text { is_reasoning: false, in_block: false, trims_start: true, is_begin: false };
        true
    }

    /// Takes what looked like a call as text. `is_open`: a part of the call was reported, so only the rest is text.
    fn give_up(&mut self, calls: &OpenCalls, is_open: bool, is_final: bool) -> bool {
        let is_reasoning = calls.in_reasoning.is_some();
        self.state = TurnState::Text { is_reasoning, in_block: is_reasoning, trims_start: false, is_begin: false };
        let is_cut = is_final && self.reader.options.is_enforced && !is_reasoning;
        if is_open || is_cut {
            if is_final {
                self.pending.clear();
            }
            return true;
        }
        self.n_given_up += 1;
        // The first character is text, and the rest is looked at again.
        self.pending.insert_str(0, &calls.raw);
        let first = self.pending.chars().next().map_or(0, char::len_utf8);
        let text = self.pending.get(..first).unwrap_or_default().to_owned();
        self.consume(first);
        self.add_text(&text, is_reasoning);
        true
    }
}

fn tool_name(reader: &FormerReader, call: &CallReader) -> String {
    call.tool.and_then(|index| reader.tools.get(index)).map(|tool| tool.name.clone()).unwrap_or_default()
}

/// Whether the arguments of a complete call are valid.
fn is_valid_call(reader: &FormerReader, call: &CallReader) -> bool {
    let Some(tool) = call.tool.and_then(|index| reader.tools.get(index)) else { return false };
    serde_json::from_str(&call.arguments).is_ok_and(|arguments| tool.schema.is_valid(&arguments))
}
