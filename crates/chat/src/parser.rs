//! The message of a completion, read piece by piece with the tree of its turn.

use std::sync::Arc;

use foredraft_base::error::{Error, Result};
use foredraft_base::work::Work;
use foredraft_grammar::tree::Mark;
use foredraft_grammar::{CompletionReader, ReadEvent};

use crate::format::{CallObject, CallPart, Calls, ChatFormat, TurnStart};
use crate::message::{ChatMessage, MessageDelta, MessageExtent, ToolCall};
use crate::tool::Tool;
use crate::turn::{self, TurnGrammar, TurnRequest};

/// Reads the messages of completions of one format, with certain tools.
#[derive(Debug)]
pub struct MessageReader {
    /// A parser at the beginning of a completion.
    begun: MessageParser,
    has_ids: bool,
}

/// The known properties of the completions that are read.
#[derive(Debug, Clone, Default)]
pub struct ReaderOptions {
    /// The end of the prompt that belongs to the turn.
    pub opened: String,
    /// The prompt has a part of the message, which is not repeated.
    pub is_continued: bool,
    /// A grammar makes sure that calls are complete and valid, so they are reported while they are read. Otherwise they are reported once
    /// they are complete, and what is no call is content.
    pub is_enforced: bool,
    /// The grammar allows calls only.
    pub is_required: bool,
    /// The grammar that makes sure. `None`: that of a turn with these tools.
    pub grammar: Option<TurnGrammar>,
}

impl MessageReader {
    /// A reader for completions in this format that call these tools. `work` counts the steps.
    ///
    /// # Errors
    /// `work` has ended.
    pub fn new(format: ChatFormat, tools: Vec<Tool>, options: ReaderOptions, work: &Work) -> Result<MessageReader> {
        let has_ids = format.calls.iter().any(Calls::has_ids);
        Ok(MessageReader { begun: MessageParser::begun(&format, tools, &options, work)?, has_ids })
    }

    /// Whether the model writes ids of calls.
    #[must_use]
    pub fn has_ids(&self) -> bool {
        self.has_ids
    }
}

/// The message of one completion. It depends on the text alone, not on how the text was cut, and nothing that a delta had is taken back.
#[derive(Debug, Clone)]
pub struct MessageParser {
    /// `None`: the completion is over.
    reader: Option<CompletionReader>,
    state: MessageState,
    /// The lengths of what was sent.
    sent: MessageExtent,
    /// The part of the message that the prompt has.
    given: ChatMessage,
}

/// The message, as far as it is decided.
#[derive(Debug, Clone)]
struct MessageState {
    tools: Arc<[Tool]>,
    message: ChatMessage,
    warnings: Vec<String>,
    /// The call that is read.
    call: Option<OpenCall>,
    /// The template prints ids behind arguments.
    has_late_ids: bool,
}

#[derive(Debug, Clone, Default)]
struct OpenCall {
    call: ToolCall,
    is_foreign: bool,
    is_in_id: bool,
    /// The name is complete.
    has_name: bool,
    /// It is a part of the message.
    is_reported: bool,
}

impl MessageParser {
    /// An empty message.
    #[must_use]
    pub fn new(reader: Arc<MessageReader>) -> MessageParser {
        reader.begun.clone()
    }

    fn begun(format: &ChatFormat, tools: Vec<Tool>, options: &ReaderOptions, work: &Work) -> Result<MessageParser> {
        let is_late = |part: &CallPart| matches!(part, CallPart::Object(CallObject { id: Some((_, false)), .. }));
        let has_late_ids = format.calls.iter().flat_map(|calls| &calls.call).any(is_late);
        let reader = reader(format, &tools, options, work);
        // Without one, the grammar has said why; but nothing is said of an interrupt.
        work.step(1).map_err(|end| Error::new(end.code(), format!("message: {end}")))?;
        let (message, tools) = (ChatMessage::default(), tools.into());
        let state = MessageState { tools, message, warnings: Vec::new(), call: None, has_late_ids };
        let (sent, given) = (MessageExtent::default(), ChatMessage::default());
        let mut parser = MessageParser { reader, state, sent, given };
        let MessageParser { reader, state, .. } = &mut parser;
        if let Some(reader) = reader {
            reader.push_within(options.opened.as_bytes(), work, &mut |event| state.take(event))?;
        }
        if options.is_continued {
            // Nothing of it is undecided: the space at its end is part of it, too.
            let mut given = parser.clone();
            given.finish();
            parser.given = given.state.message;
            parser.sent.content = parser.given.content.len();
            parser.sent.reasoning = parser.given.reasoning.len();
        }
        Ok(parser)
    }

    /// Reads more of the completion.
    pub fn push(&mut self, text: &str) {
        let state = &mut self.state;
        if let Some(reader) = &mut self.reader {
            reader.push(text.as_bytes(), &mut |event| state.take(event));
        }
    }

    /// Ends the completion.
    pub fn finish(&mut self) {
        let state = &mut self.state;
        if let Some(reader) = self.reader.take() {
            reader.finish(&mut |event| state.take(event));
            if state.call.as_ref().is_some_and(|call| call.is_foreign) {
                state.end_call();
            }
        }
    }

    /// Whether the tree reads all of the completion so far, and it may end here.
    #[cfg(test)]
    pub(crate) fn may_end(&self) -> bool {
        self.reader.as_ref().is_some_and(|reader| !reader.is_lost() && reader.may_end())
    }

    /// The parts of the message that are new since the last call.
    pub fn delta(&mut self) -> MessageDelta {
        self.sent.advance(&self.state.message)
    }

    /// The message so far, without the part that the prompt has.
    #[must_use]
    pub fn message(&self) -> ChatMessage {
        let after = |text: &str, given: &str| text.get(given.len()..).unwrap_or_default().to_owned();
        let message = &self.state.message;
        ChatMessage {
            content: after(&message.content, &self.given.content),
            reasoning: after(&message.reasoning, &self.given.reasoning),
            calls: message.calls.clone(),
        }
    }

    /// The part of the message that the prompt has.
    #[must_use]
    pub fn given(&self) -> &ChatMessage {
        &self.given
    }

    /// Calls that are not valid, each with the reason.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.state.warnings
    }
}

/// The reader of a turn's tree. `None`: no tree can be made, which its grammar has said.
fn reader(format: &ChatFormat, tools: &[Tool], options: &ReaderOptions, work: &Work) -> Option<CompletionReader> {
    let start = TurnStart { opened: options.opened.clone() };
    let request = TurnRequest { tools, is_required: options.is_required, parallel: true, document: None };
    let strict = match &options.grammar {
        None if options.is_enforced => format.grammar(&request, &start, work).ok()?,
        known => known.clone(),
    };
    let (tree, root) = match strict.filter(|strict| strict.is_begun) {
        Some(strict) => (strict.tree, strict.root),
        None => turn::lenient(format, tools).or_else(|_| turn::lenient(format, &[])).ok()?,
    };
    CompletionReader::new(tree, root, work).ok()
}

impl MessageState {
    fn take(&mut self, event: ReadEvent<'_>) {
        match (event, &mut self.call) {
            (ReadEvent::Open(mark @ (Mark::Call | Mark::Foreign)), call) => {
                *call = Some(OpenCall { is_foreign: mark == Mark::Foreign, ..OpenCall::default() });
            }
            (ReadEvent::Close(Mark::Call | Mark::Foreign), _) => self.end_call(),
            (ReadEvent::Text(Mark::Reasoning, text), _) => self.message.reasoning += text,
            (ReadEvent::Text(Mark::Content, text), _) => self.message.content += text,
            (ReadEvent::Open(Mark::CallId), Some(call)) => call.is_in_id = true,
            (ReadEvent::Close(Mark::CallId), Some(call)) => call.is_in_id = false,
            (ReadEvent::Close(Mark::Name), Some(call)) => call.has_name = true,
            (ReadEvent::Text(Mark::CallId, text), Some(call)) => call.call.id += text,
            (ReadEvent::Text(Mark::Name, text), Some(call)) => {
                // A second name repeats the first one.
                if !call.has_name {
                    call.call.name += text;
                }
                if call.is_in_id {
                    call.call.id += text;
                }
            }
            (ReadEvent::Arguments(text), Some(call)) => {
                call.call.arguments += text;
                self.report_call();
            }
            _ => {}
        }
    }

    /// Makes a call a part of the message, as far as it is known.
    fn report_call(&mut self) {
        let Some(call) = self.call.as_mut().filter(|call| call.has_name && !call.is_foreign && !self.has_late_ids)
        else {
            return;
        };
        if !std::mem::replace(&mut call.is_reported, true) {
            self.message.calls.push(ToolCall { arguments: String::new(), ..call.call.clone() });
        }
        if let Some(last) = self.message.calls.last_mut() {
            last.arguments.push_str(call.call.arguments.get(last.arguments.len()..).unwrap_or_default());
        }
    }

    fn end_call(&mut self) {
        let Some(OpenCall { mut call, is_foreign, is_reported, .. }) = self.call.take() else { return };
        if is_foreign {
            self.warnings
                .push(format!("tool_calls: {} is not a tool of the request, so its call is left out", call.name));
            return;
        }
        if call.arguments.is_empty() {
            call.arguments.push_str("{}");
        }
        let tool = self.tools.iter().find(|tool| tool.name == call.name);
        let is_valid = |tool: &Tool| serde_json::from_str(&call.arguments).is_ok_and(|it| tool.schema.is_valid(&it));
        if !tool.is_some_and(is_valid) {
            self.warnings
                .push(format!("tool_calls: the arguments of {} are not valid under its parameters", call.name));
        }
        if !is_reported {
            self.message.calls.push(call);
        }
    }
}
