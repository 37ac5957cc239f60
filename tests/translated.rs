//! A draft model with another vocabulary: it drafts through text, and changes none.

mod common;

use common::other::Changed;
use common::{complete, drain, prompts, start, submit, text, with};
use foredraft::api::Family::{Completion, Speculative};
use foredraft::api::System;
use serde_json::{Value, json};

/// Target and draft of each kind of difference, and how much of what the shipped pair accepts they must at least.
fn pairs() -> Vec<(&'static str, Value, f64)> {
    let draft = |draft: String| json!({"model_draft": draft});
    vec![
        ("other numbers", draft(Changed::new("draft").shuffled().write("shuffled")), 0.95),
        ("fewer tokens", draft(Changed::new("draft").without_every(10).write("fewer")), 0.5),
        ("SentencePiece", draft(Changed::new("draft").sentence_piece().write("spm")), 0.5),
        ("for SentencePiece", json!({"model": Changed::new("target").sentence_piece().write("spm-target")}), 0.5),
    ]
}

fn load(init: &Value, more: Value) -> System {
    start(with(&with(&json!({"n_ctx": 512}), init.clone()), more))
}

fn essence(answer: &Value) -> Value {
    json!([answer["content"], answer["tokens"], answer["stop_type"], answer["tokens_predicted"]])
}

fn accepted(answer: &Value) -> u64 {
    let report = &answer["speculative"];
    assert_eq!(report.get("disabled"), None, "{report}");
    report["n_accepted"].as_u64().expect("a count")
}

fn eager() -> Value {
    json!({"speculative": {"type": "draft", "adaptive": false, "n_max": 5}})
}

#[test]
fn probe() {
    let greedy: Vec<Value> = prompts()
        .iter()
        .map(|prompt| json!({"prompt": prompt, "n_predict": 64, "temperature": 0, "repeat_penalty": 1, "return_tokens": true}))
        .collect();
    let mut inits = pairs();
    inits.insert(0, ("shipped", json!({}), 1.0));
    for (name, init, _) in inits {
        let system = load(&init, json!({}));
        let (mut a, mut d, mut n) = (0, 0, 0);
        for request in &greedy {
            let plain = complete(&system, Completion, request);
            let fast = complete(&system, Speculative, &with(request, eager()));
            assert_eq!(essence(&fast), essence(&plain), "{name} {request}");
            a += accepted(&fast);
            d += fast["speculative"]["n_drafted"].as_u64().unwrap();
            n += fast["tokens_predicted"].as_u64().unwrap();
        }
        eprintln!("{name}: accepted {a} of {d}, {n} tokens");
    }
}
