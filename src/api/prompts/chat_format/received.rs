//! A message whose parts another process reads and sends, again from the beginning when a new process continues it.

use foredraft_chat::{CallDelta, ChatMessage, MessageDelta, MessageExtent, ToolCall};

/// A message, as far as its parts have arrived.
#[derive(Debug, Default)]
pub(super) struct ReceivedMessage {
    message: ChatMessage,
    /// The length of what this process has sent. What lies below the message's length is known already.
    arrived: MessageExtent,
    /// The length of what deltas have had.
    taken: MessageExtent,
    pub(super) warnings: Vec<String>,
}

impl ReceivedMessage {
    /// A new process begins again.
    pub(super) fn repeat(&mut self) {
        self.arrived = MessageExtent::default();
    }

    /// Appends parts. Returns false if they do not continue the message: they have a call whose beginning is missing.
    pub(super) fn append(&mut self, delta: MessageDelta) -> bool {
        let (message, arrived) = (&mut self.message, &mut self.arrived);
        append(&mut message.content, &mut arrived.content, &delta.content);
        append(&mut message.reasoning, &mut arrived.reasoning, &delta.reasoning);
        delta.calls.into_iter().all(|CallDelta { index, begun, arguments }| {
            if let Some((name, id)) = begun {
                if index != arrived.calls.len() {
                    return false;
                }
                arrived.calls.push(0);
                if index == message.calls.len() {
                    message.calls.push(ToolCall { name, id, arguments: String::new() });
                }
            }
            let (Some(call), Some(arrived)) = (message.calls.get_mut(index), arrived.calls.get_mut(index)) else {
                return false;
            };
            append(&mut call.arguments, arrived, &arguments);
            true
        })
    }

    /// The parts that no delta has had.
    pub(super) fn delta(&mut self) -> MessageDelta {
        self.taken.advance(&self.message)
    }

    pub(super) fn message(&self) -> ChatMessage {
        self.message.clone()
    }
}

/// Appends the part of a piece that the text has not. `arrived`: the length of the text before the piece, as its process counts it.
fn append(text: &mut String, arrived: &mut usize, piece: &str) {
    let known = text.len().saturating_sub(*arrived).min(piece.len());
    *arrived += piece.len();
    // Both processes cut between characters of the same text.
    text.push_str(piece.get(known..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, name: Option<&str>, arguments: &str) -> CallDelta {
        CallDelta { index, begun: name.map(|name| (name.to_owned(), "a".to_owned())), arguments: arguments.to_owned() }
    }

    fn parts(content: &str, calls: Vec<CallDelta>) -> MessageDelta {
        MessageDelta { content: content.to_owned(), calls, ..MessageDelta::default() }
    }

    #[test]
    fn parts_that_arrive_again_are_skipped() {
        let mut message = ReceivedMessage::default();
        let first = parts("x", vec![call(0, Some("f"), "{\"a")]);
        assert!(message.append(first.clone()));
        assert_eq!(message.delta(), first);
        message.repeat();
        // Less than before, then more.
        assert!(message.append(parts("x", vec![call(0, Some("f"), "{")])));
        assert_eq!(message.delta(), MessageDelta::default());
        assert!(message.append(parts("", vec![call(0, None, "\"a\":1}"), call(1, Some("g"), "")])));
        assert_eq!(message.delta(), parts("", vec![call(0, None, "\":1}"), call(1, Some("g"), "")]));
        let calls = message.message().calls;
        assert_eq!((calls[0].arguments.as_str(), calls[1].name.as_str()), ("{\"a\":1}", "g"));
        assert_eq!(message.message().content, "x");
    }

    #[test]
    fn call_without_a_beginning_is_refused() {
        for index in [0, 1, usize::MAX] {
            assert!(!ReceivedMessage::default().append(parts("", vec![call(index, None, "x")])));
        }
        assert!(!ReceivedMessage::default().append(parts("", vec![call(1, Some("f"), "x")])));
        let mut message = ReceivedMessage::default();
        assert!(message.append(parts("", vec![call(0, Some("f"), "")])));
        assert!(!message.append(parts("", vec![call(0, Some("f"), "")])), "a call begins once");
    }
}
