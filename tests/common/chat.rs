//! Chat templates for tests, and what the deltas of an answer add up to.

use serde_json::{Value, json};

/// ChatML without a place for tools.
pub const PLAIN: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Reasoning in `<think>`, calls as JSON in `<tool_call>`.
pub const TOOLS: &str = r#"{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// The message that the deltas of a completion's updates give.
pub fn sum_of_deltas(updates: &[&Value]) -> Value {
    let append = |text: &mut Value, more: &Value| {
        let more = more.as_str().expect("a text");
        *text = (text.as_str().unwrap_or_default().to_owned() + more).into();
    };
    let mut message = json!({"content": ""});
    for delta in updates.iter().filter(|update| update["stop"] == false).map(|update| &update["delta"]) {
        let delta = delta.as_object().unwrap_or_else(|| panic!("every update has a delta: {updates:?}"));
        if let Some(role) = delta.get("role") {
            assert!(message.get("role").is_none(), "{updates:?}");
            message["role"] = role.clone();
        }
        for key in ["content", "reasoning_content"] {
            if let Some(more) = delta.get(key) {
                append(&mut message[key], more);
            }
        }
        if let Some(function) = delta.get("function_call") {
            append(&mut message["function_call"]["arguments"], &function["arguments"]);
            if let Some(name) = function.get("name") {
                assert!(message["function_call"].get("name").is_none(), "{updates:?}");
                message["function_call"]["name"] = name.clone();
            }
        }
        for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().expect("an index")).expect("a small number");
            let mut calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            match calls.get_mut(index) {
                Some(begun) => {
                    assert!(call.get("id").is_none() && call["function"].get("name").is_none(), "{updates:?}");
                    append(&mut begun["function"]["arguments"], &call["function"]["arguments"]);
                }
                None => {
                    assert!(call["id"].is_string() && call["function"]["name"].is_string(), "{updates:?}");
                    calls.push(json!({"type": call["type"], "function": call["function"], "id": call["id"]}));
                }
            }
            message["tool_calls"] = calls.into();
        }
    }
    if message.get("role").is_none() {
        message["role"] = "assistant".into();
    }
    message
}
