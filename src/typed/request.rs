//! Requests for completions.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::completion::Message;
use super::media::HostMedia;

/// A request for a completion: the keys of `foredraft_complete`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct HostRequest(Map<String, Value>);

impl HostRequest {
    /// Continues a text.
    pub fn prompt(text: impl Into<String>) -> Self {
        Self(Map::new()).set("prompt", text.into())
    }

    /// Answers messages, rendered by the model's chat template.
    pub fn messages<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Self {
        let messages: Vec<Value> = messages.into_iter().map(|message| json!(message)).collect();
        Self(Map::new()).set("messages", messages)
    }

    /// Puts pictures and sounds before the text of the last message.
    #[must_use]
    pub fn media(mut self, media: &[HostMedia<'_>]) -> Self {
        let last = self.0.get_mut("messages").and_then(Value::as_array_mut).and_then(|all| all.last_mut());
        if let Some(content) = last.and_then(|message| message.get_mut("content")) {
            let text = match content.take() {
                Value::Array(parts) => parts,
                text => vec![json!({"type": "text", "text": text})],
            };
            *content = media.iter().map(HostMedia::part).chain(text).collect();
        }
        self
    }

    /// The maximum number of tokens to generate.
    #[must_use]
    pub fn n_predict(self, n_predict: u32) -> Self {
        self.set("n_predict", n_predict)
    }

    /// The temperature; 0 always takes the most probable token.
    #[must_use]
    pub fn temperature(self, temperature: f64) -> Self {
        self.set("temperature", temperature)
    }

    /// Makes the random choices repeatable.
    #[must_use]
    pub fn seed(self, seed: u32) -> Self {
        self.set("seed", seed)
    }

    /// The conversation whose state the request continues and leaves.
    #[must_use]
    pub fn conversation(self, name: impl Into<String>) -> Self {
        self.set("conversation", name.into())
    }

    /// From -10 to 10: requests of a higher priority get slots first, and preempt others.
    #[must_use]
    pub fn priority(self, priority: i8) -> Self {
        self.set("priority", priority)
    }

    /// When the completion should have ended, from its submission on: among requests of a priority the earliest deadline comes first.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.set("deadline_ms", u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX).max(1))
    }

    /// Texts before which the completion ends.
    #[must_use]
    pub fn stop<T: Into<String>>(self, texts: impl IntoIterator<Item = T>) -> Self {
        let texts: Vec<String> = texts.into_iter().map(Into::into).collect();
        self.set("stop", texts)
    }

    /// The schema that the completion, a JSON document, follows.
    #[must_use]
    pub fn json_schema(self, schema: Value) -> Self {
        self.set("json_schema", schema)
    }

    /// Whether the model of a chat sees the schema, or a text that it sees instead. Without this call, it does not.
    #[must_use]
    pub fn schema_in_prompt(self, shown: impl Into<Value>) -> Self {
        self.set("schema_in_prompt", shown)
    }

    /// The functions that the model may call, in OpenAI's form.
    #[must_use]
    pub fn tools(self, tools: Value) -> Self {
        self.set("tools", tools)
    }

    /// Whether to speculate. Without this call, the engine does.
    #[must_use]
    pub fn speculative(self, speculative: bool) -> Self {
        self.set("speculative", speculative)
    }

    /// Whether the engine's logits callback changes the logits.
    #[must_use]
    pub fn logits_callback(self, logits_callback: bool) -> Self {
        self.set("logits_callback", logits_callback)
    }

    /// Any other key of `foredraft_complete`.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }
}
