//! Drafting with a model's own layers for multi-token prediction, on tiny models that have some.

mod common;

use common::{complete, drain, start, submit, text, tiny, with};
use foredraft::api::Family::{Completion, Speculative};
use foredraft::api::System;
use serde_json::{Value, json};
use tiny::Guess;

fn n(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap_or_else(|| panic!("a number, not {value}"))).expect("small")
}

fn load(model: &str, more: Value) -> System {
    let base = json!({
        "model": model, "model_draft": null, "n_ctx": 1024, "n_batch": 32, "n_ubatch": 32,
        "speculative": {"type": "mtp", "adaptive": false, "n_max": 3},
    });
    start(with(&base, more))
}

/// Tokens that are not special.
fn tokens(seed: usize, count: usize) -> Vec<usize> {
    (0..count).map(|index| 300 + (seed * 7919 + index * index * 31 + index * 17) % 1000).collect()
}

fn request(prompt: &[usize], temperature: f64) -> Value {
    json!({
        "prompt": prompt, "n_predict": 60, "temperature": temperature, "top_k": 0, "top_p": 1, "seed": 8,
        "ignore_eos": true, "return_tokens": true,
    })
}

#[test]
fn drafts() {
    for (name, model) in [
        ("token", tiny::mtp(Guess::Token)),
        ("hidden", tiny::mtp(Guess::Hidden)),
        ("nothing", tiny::mtp(Guess::Nothing)),
        ("layers", tiny::mtp_layers()),
    ] {
        let system = load(&model, json!({}));
        for temperature in [0.0, 1.0] {
            let prompt = tokens(1, 100);
            let plain = complete(&system, Completion, &with(&request(&prompt, temperature), json!({"cache_prompt": false})));
            let answer = complete(&system, Speculative, &request(&prompt, temperature));
            eprintln!("{name} {temperature} {}", answer["speculative"]);
            eprintln!("{} {}", plain["tokens"], answer["tokens"]);
        }
    }
}
