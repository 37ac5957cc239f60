//! Chat formats: what a model writes in its turn under a chat template.
//!
//! A [`ChatFormat`] is one description of a turn: what surrounds reasoning, content and calls, and how a call is written. From it follow
//!
//! - the grammar of a turn ([`ChatFormat::grammar`]): from the beginning, or from the text on with which calls begin;
//! - the streaming parser ([`MessageParser`]), which reads what the grammar allows;
//! - what the prompt has already begun ([`ChatFormat::turn_start`]).
//!
//! [`detect`] finds the format of a template by rendering a few conversations with marked names, arguments and texts, and comparing the
//! results. Templates whose format does not show in this way have a description of their own (`families`), and are recognized by what they
//! render. Nothing here knows a model or a renderer: the caller passes a function that renders.
//!
//! - `format`: the description. `turn`: a tree of rules from it. `reader`: reads messages with the tree. `message`: what it yields.
//! - `grammar`, `former`, `call`, `value`, `elements`, `scan`: grammar and parser of formats that have no tree yet.
//! - `tool`: a tool and its schema. `detect`, `probes`, `families`: how a template's format is found.

mod call;
mod detect;
mod elements;
mod families;
mod format;
mod former;
mod grammar;
mod message;
mod probes;
mod reader;
mod scan;
mod tool;
mod turn;
mod value;

pub use detect::detect;
pub use format::{
    Block, CallArguments, CallObject, CallPart, Calls, ChatFormat, KEY, TagKind, TaggedValue, Tags, TurnStart,
};
pub use message::{CallDelta, ChatMessage, MessageDelta, ToolCall};
pub use probes::Conversation;
pub use reader::{MessageParser, MessageReader, ReaderOptions};
pub use tool::Tool;
pub use turn::{TurnGrammar, TurnRequest, TurnTrigger};

#[cfg(test)]
mod tests;
