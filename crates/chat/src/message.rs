//! An assistant's message, and the parts of it that are new.

use serde::{Deserialize, Serialize};

/// An assistant's message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// The text that the user sees.
    pub content: String,
    /// The model's reasoning.
    pub reasoning: String,
    /// Calls of tools.
    pub calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// JSON text. It is incomplete if the completion broke off inside of it.
    pub arguments: String,
    /// Empty: the model gave none.
    pub id: String,
}

/// The parts of a message that were not taken before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageDelta {
    /// More content.
    pub content: String,
    /// More reasoning.
    pub reasoning: String,
    /// New calls, and more arguments of known ones.
    pub calls: Vec<CallDelta>,
}

/// A new part of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDelta {
    /// The index of the call in the message.
    pub index: usize,
    /// Name and id, when the call is new.
    pub begun: Option<(String, String)>,
    /// More arguments.
    pub arguments: String,
}

impl MessageDelta {
    /// Whether nothing is new.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }
}

/// Lengths of the texts of a message. A call that has no length here has not begun.
#[derive(Debug, Clone, Default)]
pub struct MessageExtent {
    /// The content's length.
    pub content: usize,
    /// The reasoning's length.
    pub reasoning: usize,
    /// The lengths of the arguments of each call.
    pub calls: Vec<usize>,
}

impl MessageExtent {
    /// The rest of the message beyond these lengths, which become the message's.
    pub fn advance(&mut self, message: &ChatMessage) -> MessageDelta {
        let take = |text: &str, taken: &mut usize| {
            let more = text.get(*taken..).unwrap_or_default().to_owned();
            *taken = text.len().max(*taken);
            more
        };
        let mut calls = Vec::new();
        for (index, call) in message.calls.iter().enumerate() {
            let begun = (index == self.calls.len()).then(|| (call.name.clone(), call.id.clone()));
            if begun.is_some() {
                self.calls.push(0);
            }
            let arguments = self.calls.get_mut(index).map(|taken| take(&call.arguments, taken)).unwrap_or_default();
            if begun.is_some() || !arguments.is_empty() {
                calls.push(CallDelta { index, begun, arguments });
            }
        }
        MessageDelta {
            content: take(&message.content, &mut self.content),
            reasoning: take(&message.reasoning, &mut self.reasoning),
            calls,
        }
    }
}
