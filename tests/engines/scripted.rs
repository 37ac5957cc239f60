//! Texts that a model would write, said by a logits callback: what constraints let through, and the messages that come of it.

use std::ffi::c_void;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::library::{Engine, exclusive, with_draft};

/// What the model would write: tokens, and how many stand before them.
type Script = Mutex<(Vec<i32>, Option<usize>)>;

/// Gives the token at this position, and at last an end, far more weight than any other.
unsafe extern "C" fn say(_: u64, logits: *mut f32, n_vocab: i32, _: *const i32, n_tokens: i32, user: *mut c_void) {
    let (n_vocab, n_tokens) = (usize::try_from(n_vocab).unwrap(), usize::try_from(n_tokens).unwrap());
    // SAFETY: the library passes an array of this length, and the script, which outlives the engine's use of it.
    let (logits, script) = unsafe { (std::slice::from_raw_parts_mut(logits, n_vocab), &*user.cast::<Script>()) };
    let mut script = script.lock().unwrap();
    let first = *script.1.get_or_insert(n_tokens);
    let token = script.0.get(n_tokens - first).or(script.0.last()).copied().unwrap();
    logits.fill(0.0);
    logits[usize::try_from(token).unwrap()] = 50.0;
}

/// The answers, with and without speculation, to a chat with this template in which the model would write `text`.
fn said(template: &str, text: &str, more: &Value) -> Vec<Value> {
    let engine = Engine::loaded("target", with_draft());
    let script = Script::default();
    engine.set_logits_callback(Some(say), &raw const script as usize);
    let eos = engine.call("model_info", &json!({}))["eos"].as_i64().expect("an id");
    let ids = engine.call("tokenize", &json!({"text": text, "add_special": false}))["ids"].clone();
    let tokens = ids.as_array().expect("ids").iter().map(|id| id.as_i64().expect("an id")).chain([eos]);
    let tokens: Vec<i32> = tokens.map(|id| i32::try_from(id).unwrap()).collect();
    [json!(false), json!({"type": "grammar"})]
        .into_iter()
        .map(|speculative| {
            *script.lock().unwrap() = (tokens.clone(), None);
            let mut request = json!({"messages": [{"role": "user", "content": "Hello"}], "chat_template": template, "temperature": 0,
                "n_predict": tokens.len() + 40, "logits_callback": true, "speculative": speculative});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let answer = engine.call("complete", &request);
            assert_eq!(answer["success"], true, "{answer}");
            answer
        })
        .collect()
}

/// Reasoning in `<think>`, which the prompt opens; calls as JSON in `<tool_call>`.
const OPEN: &str = r#"{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}<think>
{{ message.reasoning_content or '' }}
</think>

{% endif %}{{ message.content or '' }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"#;

#[test]
fn a_required_call_ends_reasoning_that_the_prompt_opens() {
    let _guard = exclusive();
    let parameters =
        json!({"type": "object", "properties": {"place": {"enum": ["river", "hill"]}}, "required": ["place"]});
    let tools = json!([{"type": "function", "function": {"name": "look", "parameters": parameters}}]);
    let text = "I call it.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"place\": \"hill\"}}\n</tool_call>";
    for choice in [json!("auto"), json!("required"), json!("look")] {
        for answer in said(OPEN, text, &json!({"tools": tools, "tool_choice": choice})) {
            assert_eq!((&answer["content"], &answer["stop_type"]), (&json!(text), &json!("eos")), "{choice}");
            assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
            let message = &answer["message"];
            assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("I call it."), &json!("")));
            let call = &message["tool_calls"][0]["function"];
            assert_eq!((&call["name"], &call["arguments"]), (&json!("look"), &json!("{\"place\": \"hill\"}")));
        }
    }
}

#[test]
fn a_grammar_of_the_host_holds_behind_reasoning_that_the_prompt_opens() {
    let _guard = exclusive();
    let grammar = json!({"grammar": "root ::= \"yes\" | \"no\""});
    for (text, content) in [("Hm.\n</think>\n\nyes", Some("yes")), ("Hm.\n</think>\n\nperhaps", None)] {
        for answer in said(OPEN, text, &grammar) {
            let message = &answer["message"];
            assert_eq!(
                (&message["reasoning_content"], &answer["stop_type"]),
                (&json!("Hm."), &json!("eos")),
                "{answer}"
            );
            let said = message["content"].as_str().unwrap();
            assert!(content.map_or(["yes", "no"].contains(&said), |content| said == content), "{answer}");
        }
    }
    // Without open reasoning it holds for the whole completion.
    let plain = OPEN.replace("assistant\n<think>\n", "assistant\n");
    for answer in said(&plain, "Hm.", &grammar) {
        assert!(["yes", "no"].contains(&answer["message"]["content"].as_str().unwrap()), "{answer}");
    }
}

/// The engine's threads make it.
#[test]
fn the_first_submit_with_a_grammar_waits_for_no_tree_of_tokens() {
    let engine = Engine::loaded("target", json!({}));
    let request = |more: Value| {
        let mut request = json!({"prompt": "Once upon a time", "n_predict": 2});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = engine.call("submit", &request);
        let (_, last) = engine.drain(answer["id"].as_u64().expect("an id"));
        assert_eq!(last["stop_type"], "limit", "{last}");
        answer["prompt_stats"]["pending"] == true
    };
    let grammar = json!({"grammar": "root ::= [a-z ]*"});
    assert_eq!([json!({}), grammar.clone(), grammar, json!({})].map(request), [false, true, false, false]);
}
