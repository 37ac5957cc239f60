//! Metadata of a model file: suppressed tokens, a template for tool use, an encoder without generation.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Requests as _, complete, n, start, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

fn load(init: &Value, more: Value) -> JsonEngine {
    let base = json!({"model_draft": null, "n_ctx": 1024});
    start(with(&with(&base, init.clone()), more))
}

/// At this temperature any difference in the logits soon changes the output.
fn request(prompt: &[usize]) -> Value {
    json!({
        "prompt": prompt, "n_predict": 40, "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": 8, "ignore_eos": true,
        "return_tokens": true,
    })
}

/// llama-server bans the tokens of `tokenizer.ggml.suppress_tokens` in every request.
#[test]
fn suppressed_tokens_are_never_sampled() {
    let plain = load(&json!({"model": tiny_models::sliding_window()}), json!({}));
    let ask = |engine: &JsonEngine, more: Value| {
        let answer = complete(engine, Plain, &with(&request(&tokens(3, 30)), more));
        answer["tokens"].as_array().expect("tokens").iter().map(n).collect::<Vec<_>>()
    };
    let generated = ask(&plain, json!({"temperature": 0}));
    let first = i32::try_from(generated[0]).expect("a token");
    let silent = load(&json!({"model": tiny_models::with_suppressed_tokens(&[first, 300, -5, i32::MAX])}), json!({}));
    for more in [json!({"temperature": 0}), json!({"logit_bias": [[first, 100.0]]}), json!({})] {
        let generated = ask(&silent, more);
        assert!(
            generated.len() == 40 && !generated.contains(&usize::try_from(first).expect("a token")),
            "{first}: {generated:?}"
        );
    }
}

/// As in llama.cpp.
#[test]
fn requests_with_tools_use_the_tool_use_template() {
    let model = tiny_models::with_template("tokenizer.chat_template.tool_use", "tools {{ tools[0].function.name }}");
    let engine = load(&json!({"model": model}), json!({}));
    let tools = json!([{"type": "function", "function": {"name": "dig", "parameters": {}}}]);
    let prompt = |more: Value| {
        let request = with(&json!({"messages": [{"role": "user", "content": "hi"}]}), more).to_string();
        let answer = engine.with_loaded(|loaded| loaded.apply_template(request.as_bytes())).expect("a prompt");
        answer["prompt"].as_str().expect("a text").to_owned()
    };
    assert!(prompt(json!({})).contains("hi"), "the default template");
    assert_eq!(prompt(json!({"tools": tools})), "tools dig");
    let own = json!({"tools": tools, "chat_template": "{{ 'own' }}"});
    assert_eq!(prompt(own), "own");
}

/// A model without a KV cache cannot generate.
#[test]
fn encoder_model_only_makes_embeddings() {
    let model = tiny_models::encoder();
    let init = json!({"model": model, "n_threads": 1, "n_ctx": 256, "log_level": "error"});
    let refused = JsonEngine::new().load(init.to_string().as_bytes()).expect_err("an encoder does not generate");
    assert!(refused.message().contains("\"embedding\": true loads it"), "{refused}");

    let engine = start(json!({"model": model, "model_draft": null, "n_ctx": 256, "embedding": true}));
    let embed = |content: Value| {
        let request = json!({ "content": content }).to_string();
        let answer = engine.with_loaded(|loaded| loaded.embed(request.as_bytes())).expect("an embedding");
        answer["embedding"].as_array().expect("numbers").iter().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    let (one, again, other) = (embed(json!(tokens(1, 40))), embed(json!(tokens(1, 40))), embed(json!(tokens(2, 40))));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert_eq!((one.len(), &one), (32, &again));
    assert!((product(&one, &one) - 1.0).abs() < 1e-4 && product(&one, &other) < 0.999, "{}", product(&one, &other));
    // Attention is bidirectional: the embedding of the first token depends on the last.
    let turned: Vec<usize> = tokens(1, 40).into_iter().rev().collect();
    assert!(product(&one, &embed(json!(turned))) < 0.9999);

    let request = json!({"prompt": "a"}).to_string();
    for endpoint in [Plain, Foredraft] {
        let refused = engine.complete_as(endpoint, request.as_bytes()).expect_err("no text");
        assert_eq!(refused.message(), "the model generates no text");
    }
    assert_eq!(engine.status()["slots"], json!([]));
}
