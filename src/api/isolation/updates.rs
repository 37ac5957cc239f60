//! The updates of a request that no poll has taken.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::engine::MAX_UPDATES;

/// The updates, at most [`MAX_UPDATES`] of them with text. Further ones are joined with the last one of their completion, so that nothing
/// is lost and memory only grows with the completion.
#[derive(Default)]
pub(super) struct UntakenUpdates(VecDeque<Value>);

impl UntakenUpdates {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn push(&mut self, update: Value) {
        let is_full = self.0.len() >= MAX_UPDATES;
        let is_of_it = |other: &&mut Value| other.get("index") == update.get("index");
        match self.0.iter_mut().rev().filter(|_| is_full).find(is_of_it) {
            Some(last) if is_partial(last) && is_partial(&update) => join(last, update),
            _ => self.0.push_back(update),
        }
    }

    pub(super) fn pop_last(&mut self) -> Option<Value> {
        self.0.pop_back()
    }

    pub(super) fn take(&mut self) -> Vec<Value> {
        self.0.drain(..).collect()
    }
}

/// Whether the update has a part of the completion, and nothing else.
fn is_partial(update: &Value) -> bool {
    let has_more = ["engine", "prompt_progress"].iter().any(|key| update.get(key).is_some());
    update.get("stop") == Some(&Value::Bool(false)) && !has_more
}

/// Appends the parts of an update to those of the one before it.
fn join(last: &mut Value, update: Value) {
    if let (Value::Object(last), Value::Object(update)) = (last, update) {
        join_fields(last, update, &["content", "reasoning_content", "arguments"]);
    }
}

/// Appends lists, objects, and the `texts` among the strings. Other fields get the later value.
fn join_fields(last: &mut Map<String, Value>, later: Map<String, Value>, texts: &[&str]) {
    for (key, later) in later {
        match (last.get_mut(&key), later) {
            (Some(Value::String(last)), Value::String(later)) if texts.contains(&key.as_str()) => last.push_str(&later),
            (Some(Value::Array(last)), Value::Array(later)) => last.extend(later),
            (Some(Value::Object(last)), Value::Object(later)) if key != "tag" => join_fields(last, later, texts),
            (_, later) => _ = last.insert(key, later),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn updates_beyond_the_limit_are_joined_with_the_last_one_of_their_completion() {
        let part = |index: usize, text: &str| {
            json!({"content": text, "stop": false, "id": 1, "index": index, "tag": {"a": [1]}, "tokens": [1],
                "logprobs": {"content": [text]},
                "delta": {"content": text, "tool_calls": [{"index": 0, "function": {"arguments": text}}]}})
        };
        let mut updates = UntakenUpdates::default();
        (0..MAX_UPDATES).for_each(|n| updates.push(part(n % 2, "a")));
        updates.push(part(0, "b"));
        updates.push(part(1, "c"));
        updates.push(part(0, "d"));
        updates.push(json!({"content": "", "stop": false, "index": 0, "engine": {}}));
        updates.push(json!({"content": "", "stop": true, "index": 0}));
        let updates = updates.take();
        assert_eq!(updates.len(), MAX_UPDATES + 2);
        let call = |text: &str| json!({"index": 0, "function": {"arguments": text}});
        assert_eq!(
            updates[MAX_UPDATES - 2],
            json!({"content": "abd", "stop": false, "id": 1, "index": 0, "tag": {"a": [1]}, "tokens": [1, 1, 1],
                "logprobs": {"content": ["a", "b", "d"]},
                "delta": {"content": "abd", "tool_calls": [call("a"), call("b"), call("d")]}})
        );
        assert_eq!(updates[MAX_UPDATES - 1]["content"], "ac");
    }
}
