//! The message of an answer as JSON.

use foredraft_chat::{ChatMessage, ToolCall};
use serde_json::{Map, Value, json};

pub fn call_json(call: &ToolCall) -> Value {
    json!({"type": "function", "function": {"name": call.name, "arguments": call.arguments}, "id": call.id})
}

/// OpenAI's form, with the fields that llama-server has. `with_function_call`: the first call also in OpenAI's older form.
pub fn message_json(message: &ChatMessage, with_function_call: bool) -> Value {
    let mut answer = Map::from_iter([
        ("role".to_owned(), Value::from("assistant")),
        ("content".to_owned(), message.content.as_str().into()),
    ]);
    if !message.reasoning.is_empty() {
        answer.insert("reasoning_content".to_owned(), message.reasoning.as_str().into());
    }
    if !message.calls.is_empty() {
        answer.insert("tool_calls".to_owned(), message.calls.iter().map(call_json).collect());
    }
    if let (Some(call), true) = (message.calls.first(), with_function_call) {
        answer.insert("function_call".to_owned(), json!({"name": call.name, "arguments": call.arguments}));
    }
    Value::Object(answer)
}
