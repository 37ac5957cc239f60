//! Chat formats: what a model writes in its turn under a chat template.
//!
//! A [`ChatFormat`] is one description of a turn: what surrounds reasoning, content and calls, and how a call is written. A tree of rules
//! follows from it, which is both
//!
//! - the grammar of a turn ([`ChatFormat::grammar`]);
//! - the reader of its message ([`MessageParser`]): what is allowed is what is read. A lenient tree reads what no grammar allowed.
//!
//! The format also says what the prompt has already begun ([`ChatFormat::turn_start`]).
//!
//! [`detect`] finds the format of a template by rendering a few conversations with marked names, arguments and texts, and comparing the
//! results. Templates whose format does not show in this way have a description of their own (`families`), and are recognized by what they
//! render. Nothing here knows a model or a renderer: the caller passes a function that renders.
//!
//! - `format`: the description. `turn`: a tree of rules from it. `parser`: reads messages with the tree. `message`: what it yields.
//! - `tool`: a tool and its schema. `detect`, `probes`, `families`: how a template's format is found.

mod detect;
mod families;
mod format;
mod message;
mod parser;
mod probes;
mod tool;
mod turn;

pub use detect::detect;
pub use format::{
    Block, CallArguments, CallObject, CallPart, Calls, ChatFormat, KEY, TagKind, TaggedValue, Tags, TurnStart,
};
pub use message::{CallDelta, ChatMessage, MessageDelta, MessageExtent, ToolCall};
pub use parser::{MessageParser, MessageReader, ReaderOptions};
pub use probes::Conversation;
pub use tool::Tool;
pub use turn::{TurnGrammar, TurnRequest};

#[cfg(test)]
mod tests;
