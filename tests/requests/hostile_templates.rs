//! Chat templates that want to take all memory, the stack or forever; and the prompt that `apply_template` gives.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use foredraft::Function;
use foredraft::api::JsonEngine;
use foredraft::error::{Error, Result};
use serde_json::{Value, json};

use crate::common::Endpoint::Foredraft;
use crate::common::{cancel, complete, drain, start, submit, tiny_models};

/// Harmless with few messages.
const SLOW_WITH_MANY: &str = "{% if messages|length > 99 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}\
    {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";

fn many_messages() -> Value {
    vec![json!({"role": "user", "content": "u"}); 7000].into()
}

fn refused(answer: Result<Value>) -> Error {
    answer.expect_err("an error")
}

fn call(engine: &JsonEngine, function: &str, request: &Value) -> Result<Value> {
    let bytes = request.to_string();
    let function = match function {
        "complete" => Function::Complete,
        "submit" => Function::Submit,
        _ => Function::ApplyTemplate,
    };
    engine.call(function, Ok(bytes.as_bytes()))
}

#[test]
fn a_hostile_template_is_an_invalid_request() {
    let engine = start(json!({"n_ctx": 256}));
    let messages = json!([{"role": "user", "content": "go"}]);
    for template in [
        "{{ 'a'|indent(1000000000)|length }}",
        "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{{ ['a' * 1000000]|join('b' * 1000000000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        // Harmless until it gets this message.
        "{% if messages[0].content == 'go' %}{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}{% endif %}",
    ] {
        for function in ["complete", "submit", "apply_template"] {
            let request = json!({"messages": messages, "chat_template": template, "n_predict": 1});
            let error = refused(call(&engine, function, &request));
            assert_eq!(error.code().as_str(), "invalid_request", "{template}: {error}");
            assert!(error.message().starts_with("chat_template: "), "{error}");
        }
    }
    // Also as the model's own.
    let bomb = "{{ 'a' * 1000000000 }}";
    let with_bomb = start(json!({"n_ctx": 256, "chat_template": bomb}));
    let error = refused(call(&with_bomb, "complete", &json!({"messages": messages})));
    assert_eq!(error.code().as_str(), "invalid_request", "{error}");
    for engine in [engine, with_bomb] {
        assert_eq!(complete(&engine, Foredraft, &json!({"prompt": "Tom", "n_predict": 2}))["tokens_predicted"], 2);
    }
}

#[test]
fn a_hostile_template_in_a_model_file_leaves_the_model_usable() {
    for template in [
        "{{ 'a'|indent(1000000000)|length }}",
        "{% set ns = namespace(x=1) %}{% set ns.x = ns %}{{ ns }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% if %}",
    ] {
        let model = tiny_models::with_template("tokenizer.chat_template", template);
        let init = json!({"model": model, "n_ctx": 128, "n_threads": 1, "log_level": "none"});
        let engine = JsonEngine::new();
        engine.load(init.to_string().as_bytes()).expect("the template is not needed yet");
        let messages = json!({"messages": [{"role": "user", "content": "go"}], "n_predict": 1});
        for function in ["complete", "submit", "apply_template"] {
            let error = refused(call(&engine, function, &messages));
            assert!(error.message().starts_with("chat_template"), "{template}: {function}: {error}");
        }
        let answer = complete(&engine, Foredraft, &json!({"prompt": "Tom", "n_predict": 2, "ignore_eos": true}));
        assert_eq!(answer["tokens_predicted"], 2);
    }
}

/// A submit renders probe conversations to find the format of the template, within limits, and the messages once. A template that shows the
/// renderer's probes another face than the messages costs no more.
#[test]
fn a_submit_does_not_wait_for_a_hostile_template() {
    // Slow with tools, which only probes have here.
    let slow_with_probes = "{% if tools %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}\
        {% endfor %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}";
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let engine = start(json!({"n_ctx": 256}));
        let request = json!({"messages": [{"role": "user", "content": "Tom"}], "chat_template": slow_with_probes, "n_predict": 1});
        let answer = call(&engine, "complete", &request);
        // The format is found from the last message, so this one is rendered later, on another thread.
        let request = json!({"messages": many_messages(), "chat_template": SLOW_WITH_MANY, "n_predict": 1});
        let id = submit(&engine, Foredraft, &request);
        assert!(cancel(&engine, Foredraft, id));
        sender.send(answer).expect("the test waits");
    });
    let answer = receiver.recv_timeout(Duration::from_secs(300)).expect("an answer").expect("a completion");
    assert_eq!(answer["message"]["content"], answer["content"]);
}

#[test]
fn rendering_heeds_the_timeout_and_a_cancel() {
    let engine = start(json!({"n_ctx": 256}));
    let request = |timeout_ms: u64| json!({"messages": many_messages(), "chat_template": SLOW_WITH_MANY, "timeout_ms": timeout_ms});
    // On a machine that is busy a short time passes before the rendering begins.
    let is_rendering = |timeout_ms: &u64| {
        let error = refused(call(&engine, "complete", &request(*timeout_ms)));
        assert_eq!(error.code().as_str(), "invalid_request");
        assert!(error.message().starts_with("timeout_ms: passed before "), "{error}");
        error.message() == "timeout_ms: passed before the chat template had rendered the messages"
    };
    let timeout_ms = [50, 400, 3000].into_iter().find(is_rendering).expect("the rendering heeds the timeout");
    let request = request(timeout_ms);
    let id = submit(&engine, Foredraft, &request);
    let updates = drain(&engine, Foredraft, id);
    assert_eq!(updates.last().expect("an end")["stop_type"], "timeout");
    // A cancel interrupts it, too.
    let request = json!({"messages": many_messages(), "chat_template": SLOW_WITH_MANY});
    let id = submit(&engine, Foredraft, &request);
    assert!(cancel(&engine, Foredraft, id));
    let next =
        submit(&engine, Foredraft, &json!({"prompt": "Tom ".repeat(2000), "n_predict": 1, "timeout_ms": 600_000}));
    assert_eq!(drain(&engine, Foredraft, next).last().expect("an end")["stop_type"], "limit");
}

#[test]
fn unloading_interrupts_a_rendering() {
    let engine = Arc::new(start(json!({"n_ctx": 256})));
    let renderer = {
        let engine = Arc::clone(&engine);
        let request = json!({"messages": many_messages(), "chat_template": SLOW_WITH_MANY});
        thread::spawn(move || call(&engine, "apply_template", &request))
    };
    // Without an interrupt it would render for many seconds, and end with the limit of steps.
    thread::sleep(Duration::from_millis(200));
    engine.unload();
    let error = refused(renderer.join().expect("no panic"));
    assert!(["cancelled", "not_initialized"].contains(&error.code().as_str()), "{error}");
}

/// The models add BOS to every text. The template's own BOS is left out, so that there is one.
#[test]
fn the_prompt_of_apply_template_has_the_tokens_of_the_messages() {
    let engine = start(json!({"n_ctx": 256}));
    let template =
        "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tom had a hat"}]);
    let chat = json!({"messages": messages, "chat_template": template});
    let prompt = call(&engine, "apply_template", &chat).expect("a prompt")["prompt"].clone();
    assert!(prompt.as_str().is_some_and(|prompt| prompt.starts_with("<|im_start|>system\nBe brief.")), "{prompt}");
    let settings = json!({"n_predict": 8, "temperature": 0, "cache_prompt": false});
    let of = |input: Value| complete(&engine, Foredraft, &crate::common::with(&settings, input));
    let (by_messages, by_prompt) = (of(chat), of(json!({"prompt": prompt})));
    for key in ["tokens_evaluated", "content"] {
        assert_eq!(by_messages[key], by_prompt[key], "{key}");
    }
    // A message's text is not the template's BOS, and stays.
    let said = json!({"messages": [{"role": "user", "content": "<|endoftext|>a"}], "chat_template": "{{ messages[0].content }}"});
    let prompt = call(&engine, "apply_template", &said).expect("a prompt")["prompt"].clone();
    assert_eq!(prompt, "<|endoftext|>a");
}

#[test]
fn a_message_that_the_template_drops_is_a_warning() {
    let engine = start(json!({"n_ctx": 256}));
    let template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
    let messages = json!([{"role": "user", "content": "Tom"}, {"role": "tool", "content": "lost"}, {"role": "user", "content": "Mia"}]);
    let request = json!({"messages": messages, "chat_template": template, "n_predict": 1});
    let expected = "messages[1].content: the chat template does not print this";
    for function in ["complete", "apply_template"] {
        let answer = call(&engine, function, &request).expect("an answer");
        let warnings = answer["warnings"].as_array().cloned().unwrap_or_default();
        assert!(warnings.contains(&json!(expected)), "{function}: {warnings:?}");
    }
}
