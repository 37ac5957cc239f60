//! The parts of a completion that have arrived, and those that arrive again because a new process continues it.

use serde_json::{Map, Value, json};

use crate::llama::Token;

/// A completion, as far as it has arrived.
#[derive(Default)]
pub(super) struct DeliveredCompletion {
    tokens: Vec<Token>,
    /// The number of these that will arrive again.
    n_repeated: usize,
    /// The length of the text. The process skips it when it continues the completion.
    text_len: usize,
    shown_tokens: Extent,
    probabilities: Extent,
    logprobs: Extent,
    message: DeliveredMessage,
    is_finished: bool,
}

/// A delivered length, and the part of it that will be skipped.
#[derive(Debug, Default, Clone, Copy)]
struct Extent {
    delivered: usize,
    repeated: usize,
}

/// The message of a chat's completion, as the deltas so far give it.
#[derive(Debug, Default)]
struct DeliveredMessage {
    has_role: bool,
    content: DeliveredText,
    reasoning: DeliveredText,
    calls: Vec<DeliveredCall>,
}

/// A call of a tool.
#[derive(Debug)]
struct DeliveredCall {
    id: Value,
    name: Value,
    arguments: DeliveredText,
}

/// A text of a message.
#[derive(Debug, Default)]
struct DeliveredText {
    text: String,
    /// How many bytes of it will arrive again.
    n_repeated: usize,
}

impl DeliveredCompletion {
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub(super) fn text_len(&self) -> usize {
        self.text_len
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Marks it as finished. Returns whether it was before.
    pub(super) fn finish(&mut self) -> bool {
        std::mem::replace(&mut self.is_finished, true)
    }

    /// A new process continues it: everything that has arrived arrives again, except for the text.
    pub(super) fn repeat(&mut self) {
        self.n_repeated = self.tokens.len();
        self.shown_tokens.repeat();
        self.probabilities.repeat();
        self.logprobs.repeat();
        self.message.repeat();
    }

    /// Appends tokens that arrived. Returns whether one of them is new.
    pub(super) fn add_tokens(&mut self, tokens: Vec<Token>) -> bool {
        let before = self.tokens.len();
        let n_repeated = self.n_repeated.min(tokens.len());
        self.n_repeated -= n_repeated;
        self.tokens.extend(tokens.into_iter().skip(n_repeated));
        self.tokens.len() > before
    }

    /// Removes from a partial update what has arrived before. Returns whether anything is left.
    pub(super) fn trim(&mut self, update: &mut Map<String, Value>) -> bool {
        let text_len = update.get("content").and_then(Value::as_str).unwrap_or_default().len();
        self.text_len += text_len;
        let mut is_left = text_len > 0 || update.contains_key("prompt_progress");
        if let Some(Value::Object(delta)) = update.get_mut("delta") {
            self.message.trim(delta);
            is_left |= !delta.is_empty();
        }
        let n_shown = len(update.get("tokens"));
        let n_skipped = self.shown_tokens.skip(n_shown);
        for key in ["tokens", "sources"] {
            is_left |= skip_items(update.get_mut(key), n_skipped);
        }
        let lists = [("completion_probabilities", &mut self.probabilities), ("logprobs", &mut self.logprobs)];
        for (key, extent) in lists {
            let list = update.get_mut(key);
            let list = list.and_then(|list| if list.is_array() { Some(list) } else { list.get_mut("content") });
            let n_skipped = extent.skip(len(list.as_deref()));
            is_left |= skip_items(list, n_skipped);
        }
        is_left
    }

    /// The message of a chat, as far as it has arrived.
    pub(super) fn message(&self, with_function_call: bool) -> Value {
        self.message.to_json(with_function_call)
    }
}

impl Extent {
    fn repeat(&mut self) {
        self.repeated = self.delivered;
    }

    /// Takes `len` items that arrived. Returns how many are repeated.
    fn skip(&mut self, len: usize) -> usize {
        let skipped = len.min(self.repeated);
        self.repeated -= skipped;
        self.delivered += len - skipped;
        skipped
    }
}

impl DeliveredMessage {
    fn repeat(&mut self) {
        let arguments = self.calls.iter_mut().map(|call| &mut call.arguments);
        let texts = [&mut self.content, &mut self.reasoning];
        texts.into_iter().chain(arguments).for_each(DeliveredText::repeat);
    }

    /// Removes from a delta what has arrived before.
    fn trim(&mut self, delta: &mut Map<String, Value>) {
        for (key, text) in [("content", &mut self.content), ("reasoning_content", &mut self.reasoning)] {
            text.trim(delta, key);
        }
        let Some(Value::Array(calls)) = delta.get_mut("tool_calls") else { return self.trim_role(delta) };
        calls.retain_mut(|call| self.trim_call(call));
        let first = calls.iter().find(|call| call.get("index") == Some(&json!(0)));
        let first = first.and_then(|call| call.get("function")).cloned();
        if calls.is_empty() {
            delta.shift_remove("tool_calls");
        }
        if delta.contains_key("function_call") {
            match first {
                Some(first) => delta.insert("function_call".into(), first),
                None => delta.shift_remove("function_call"),
            };
        }
        self.trim_role(delta);
    }

    /// The role is in the first delta.
    fn trim_role(&mut self, delta: &mut Map<String, Value>) {
        if delta.contains_key("role") && std::mem::replace(&mut self.has_role, true) {
            delta.shift_remove("role");
        }
    }

    /// Removes from a call what has arrived before. Returns whether anything is left.
    fn trim_call(&mut self, call: &mut Value) -> bool {
        let index = call.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        let (Some(index), Some(fields)) = (index, call.as_object_mut()) else { return true };
        let id = fields.get("id").cloned();
        let Some(Value::Object(function)) = fields.get_mut("function") else { return true };
        if index >= self.calls.len() {
            let name = function.get("name").cloned().unwrap_or_default();
            let mut arguments = DeliveredText::default();
            arguments.append(function.get("arguments").and_then(Value::as_str).unwrap_or_default());
            self.calls.push(DeliveredCall { id: id.unwrap_or_default(), name, arguments });
            return true;
        }
        let Some(known) = self.calls.get_mut(index) else { return true };
        function.shift_remove("name");
        known.arguments.trim(function, "arguments");
        let is_left = !function.is_empty();
        for key in ["id", "type"] {
            fields.shift_remove(key);
        }
        is_left
    }

    fn to_json(&self, with_function_call: bool) -> Value {
        let mut message = Map::from_iter([
            ("role".to_owned(), Value::from("assistant")),
            ("content".to_owned(), self.content.text.as_str().into()),
        ]);
        if !self.reasoning.text.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.text.as_str().into());
        }
        let function = |call: &DeliveredCall| json!({"name": call.name, "arguments": call.arguments.text});
        let calls =
            self.calls.iter().map(|call| json!({"type": "function", "function": function(call), "id": call.id}));
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            message.insert("tool_calls".into(), calls.into());
        }
        if let (Some(call), true) = (self.calls.first(), with_function_call) {
            message.insert("function_call".into(), function(call));
        }
        Value::Object(message)
    }
}

impl DeliveredText {
    fn repeat(&mut self) {
        self.n_repeated = self.text.len();
    }

    fn append(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Removes from a field what has arrived before, and the field if nothing is left.
    fn trim(&mut self, fields: &mut Map<String, Value>, key: &str) {
        let Some(Value::String(text)) = fields.get_mut(key) else { return };
        let n_repeated = self.n_repeated.min(text.len());
        self.n_repeated -= n_repeated;
        // Both processes cut between characters of the same text.
        let new = text.get(n_repeated..).unwrap_or_default().to_owned();
        self.append(&new);
        if new.is_empty() {
            fields.shift_remove(key);
        } else {
            *text = new;
        }
    }
}

fn len(list: Option<&Value>) -> usize {
    list.and_then(Value::as_array).map_or(0, Vec::len)
}

/// Removes items at the beginning of an array. Returns whether there are others.
fn skip_items(array: Option<&mut Value>, n: usize) -> bool {
    let Some(Value::Array(items)) = array else { return false };
    items.drain(..n.min(items.len()));
    !items.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trimmed(completion: &mut DeliveredCompletion, update: Value) -> (bool, Value) {
        let Value::Object(mut update) = update else { panic!("an object") };
        (completion.trim(&mut update), update.into())
    }

    #[test]
    fn deltas_that_arrive_again_are_removed() {
        let mut completion = DeliveredCompletion::default();
        let call = |arguments: &str| json!({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let first =
            json!({"content": "x", "delta": {"role": "assistant", "content": "x", "tool_calls": [call("{\"a")]}});
        assert_eq!(trimmed(&mut completion, first.clone()), (true, first.clone()));
        completion.repeat();
        // The new process skips the text, and has the rest again: less than before, then more.
        let shorter = json!({"content": "", "delta": {"role": "assistant", "content": "x", "tool_calls": [call("{")]}});
        assert_eq!(trimmed(&mut completion, shorter), (false, json!({"content": "", "delta": {}})));
        let more =
            json!({"content": "", "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "\"a\":1}"}}]}});
        let rest = json!({"tool_calls": [{"index": 0, "function": {"arguments": "\":1}"}}]});
        assert_eq!(trimmed(&mut completion, more), (true, json!({"content": "", "delta": rest})));
        let message = completion.message(true);
        assert_eq!(message["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"a\":1}"}));
        assert_eq!(message["function_call"], message["tool_calls"][0]["function"]);
        assert_eq!((&message["content"], completion.text_len()), (&json!("x"), 1));
    }

    #[test]
    fn lists_that_arrive_again_are_removed() {
        let mut completion = DeliveredCompletion::default();
        assert!(completion.add_tokens(vec![1, 2]));
        let update = |items: Value| {
            json!({"content": "", "tokens": items, "sources": items, "completion_probabilities": items,
                "logprobs": {"content": items}})
        };
        assert!(trimmed(&mut completion, update(json!([1, 2]))).0);
        completion.repeat();
        assert!(!completion.add_tokens(vec![1]));
        assert_eq!(trimmed(&mut completion, update(json!([1]))), (false, update(json!([]))));
        assert!(completion.add_tokens(vec![2, 3]));
        assert_eq!(trimmed(&mut completion, update(json!([2, 3]))), (true, update(json!([3]))));
        assert_eq!(completion.tokens(), [1, 2, 3]);
    }
}
