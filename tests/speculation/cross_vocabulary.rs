//! Cross-vocabulary drafting: a draft model with another vocabulary drafts through text and does not change the output.

use std::path::Path;

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::changed_vocabulary::ChangedVocabulary;
use crate::common::{
    Requests as _, cancelled, complete, drain, output_fields, prompts, start, submit, text, tiny_models, with,
};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

/// For each pair of models: its name, its `init` keys, those of a pair with one vocabulary, and the least share of the latter's
/// accepted tokens that the former must reach.
type Pairs = Vec<(&'static str, Value, Value, f64)>;

fn pairs() -> Pairs {
    let draft = |draft: String| json!({"model_draft": draft});
    let spm_target = ChangedVocabulary::new("target").sentence_piece().write("spm-target");
    let spm = ChangedVocabulary::new("draft").sentence_piece().write("spm");
    let both_spm = json!({"model": spm_target, "model_draft": spm});
    vec![
        ("other numbers", draft(ChangedVocabulary::new("draft").shuffled().write("shuffled")), json!({}), 0.95),
        // This draft must spell words that were single tokens, so it is less accurate.
        ("fewer tokens", draft(ChangedVocabulary::new("draft").without_every(40).write("fewer")), json!({}), 0.65),
        ("SentencePiece", draft(spm), json!({}), 0.9),
        ("for SentencePiece", json!({"model": spm_target}), both_spm, 0.9),
    ]
}

fn load(init: &Value, more: Value) -> JsonEngine {
    start(with(&with(&json!({"n_ctx": 512}), init.clone()), more))
}

fn accepted(answer: &Value) -> u64 {
    let report = &answer["speculative"];
    assert_eq!(report.get("disabled"), None, "{report}");
    report["n_accepted"].as_u64().expect("a count")
}

fn eager() -> Value {
    json!({"speculative": {"type": "draft", "adaptive": false, "n_max": 5}})
}

fn greedy(prompt: &str) -> Value {
    json!({"prompt": prompt, "n_predict": 64, "temperature": 0, "repeat_penalty": 1, "return_tokens": true})
}

#[test]
fn output_is_unchanged_and_drafts_are_accepted() {
    for (name, init, same_vocabulary, least) in pairs() {
        let (engine, other) = (load(&init, json!({})), load(&same_vocabulary, json!({})));
        let report = &engine.status()["draft"];
        assert_eq!((&report["compatible"], &report["translates_tokens"]), (&json!(true), &json!(true)), "{report}");
        assert_eq!(other.status()["draft"]["translates_tokens"], false);
        let (mut through_text, mut direct) = (0, 0);
        for prompt in prompts().iter().step_by(2) {
            let request = greedy(prompt);
            let plain = complete(&engine, Plain, &request);
            let fast = complete(&engine, Foredraft, &with(&request, eager()));
            assert_eq!(output_fields(&fast), output_fields(&plain), "{name} {prompt:?}");
            through_text += accepted(&fast);
            direct += accepted(&complete(&other, Foredraft, &with(&request, eager())));
        }
        assert!(direct > 200, "{name}: {direct}");
        assert!(through_text as f64 >= least * direct as f64, "{name}: {through_text} of {direct}");
    }
}

#[test]
fn output_is_unchanged_for_every_setting() {
    let settings = [
        json!({"temperature": 0.8}),
        json!({"temperature": 1.5, "top_k": 0, "top_p": 1}),
        json!({"temperature": 0.7, "stop": ["river", " and", "\n\n"]}),
        json!({"temperature": 0.9, "repeat_penalty": 1.5, "mirostat": 2}),
        json!({"temperature": 0.5, "grammar": "root ::= [A-Za-z ,.é日]{20,200}"}),
        json!({"temperature": 1, "logit_bias": [[" the", false], ["é", 9.0], ["日", 9.0]], "ignore_eos": true}),
    ];
    let ways = [
        json!({"adaptive": false, "n_max": 1, "verify": "match"}),
        json!({"adaptive": "heuristic", "n_max": 16}),
        json!({"adaptive": true, "n_max": 8, "p_min": 0.3, "n_min": 2}),
    ];
    let prompts = [
        "Once upon a time there was a child named",
        "Mia said: \u{201c}日本語 is über-naïve 😀",
        "<|im_start|>user\nRepeat after me: Zoë, 日本, 😀!<|im_end|>\n<|im_start|>assistant\nZoë, 日",
        "",
    ];
    for (name, init, ..) in pairs() {
        let engine = load(&init, json!({}));
        let mut drafted = 0;
        for (seed, setting) in settings.iter().enumerate() {
            for (index, prompt) in prompts.iter().enumerate() {
                let request = json!({"prompt": prompt, "n_predict": 48, "seed": seed, "return_tokens": true});
                let request = with(&request, setting.clone());
                let plain = complete(&engine, Plain, &request);
                let mut speculative = ways[(seed + index) % 3].clone();
                speculative["type"] = json!(if seed % 2 == 0 { json!("draft") } else { json!("auto") });
                let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
                assert_eq!(output_fields(&fast), output_fields(&plain), "{name} {setting} {prompt:?} {speculative}");
                drafted += fast["speculative"]["by_type"]["draft"]["n_drafted"].as_u64().unwrap_or(0);
            }
        }
        assert!(drafted > 200, "{name}: {drafted}");
    }
}

#[test]
fn drafts_stay_correct_after_context_shifts_and_cancels() {
    for (name, init, same_vocabulary, _) in pairs() {
        let more = json!({"n_ctx": 128, "n_parallel": 2});
        let (engine, other) = (load(&init, more.clone()), load(&same_vocabulary, more));
        // Tokens accepted after the first shift.
        let late = |answer: &Value| {
            let sources = answer["sources"].as_array().expect("sources");
            sources.iter().skip(120).filter(|source| **source == "draft").count()
        };
        let (mut through_text, mut direct) = (0, 0);
        for (prompt, n_keep) in [("Once upon a time", 0), ("Tom was 7 years old and lived near the hill.", 5)] {
            let more = json!({"n_predict": 240, "temperature": 0.4, "seed": 11, "ignore_eos": true, "n_keep": n_keep});
            let request = with(&greedy(prompt), more);
            let plain = complete(&engine, Plain, &request);
            assert_eq!(plain["truncated"], true);
            let fast = with(&request, eager());
            cancelled(&engine, Foredraft, &with(&fast, json!({"n_predict": -1, "id_slot": 0})));
            let answer = complete(&engine, Foredraft, &with(&fast, json!({"id_slot": 0})));
            assert_eq!(output_fields(&answer), output_fields(&plain), "{name} {n_keep}");
            through_text += late(&answer);
            direct += late(&complete(&other, Foredraft, &fast));
        }
        assert!(direct > 15 && 2 * through_text > direct, "{name}: {through_text} of {direct}");
    }
}

/// The text may have more tokens in the draft's vocabulary than its context holds; it then drafts from the end of the text.
#[test]
fn draft_with_a_short_context_reads_the_end_of_the_text() {
    let draft = ChangedVocabulary::new("draft").without_every(5).write("fewer-5");
    let engine = load(&json!({"model_draft": draft}), json!({"n_ctx_draft": 256}));
    let story = prompts()[..4].join(" ").repeat(6);
    for (prompt, n_predict) in [(story.as_str(), 40), ("Once upon a time", 400)] {
        let more = json!({"n_predict": n_predict, "ignore_eos": true, "cache_prompt": false});
        let request = with(&greedy(prompt), more);
        let plain = complete(&engine, Plain, &request);
        let fast = complete(&engine, Foredraft, &with(&request, eager()));
        assert_eq!(output_fields(&fast), output_fields(&plain));
        assert!(plain["tokens_evaluated"].as_u64().max(plain["tokens_predicted"].as_u64()) > Some(256));
        let late = fast["sources"].as_array().expect("sources").iter().rev().take(n_predict / 2);
        let late = late.filter(|source| **source == "draft").count();
        assert!(late > 0, "{}", fast["speculative"]);
        assert!(accepted(&fast) > 0);
    }
}

#[test]
fn concurrent_requests_match_each_alone() {
    for (name, init, ..) in pairs() {
        let engine = load(&init, json!({"n_parallel": 3, "n_ctx": 1024}));
        let requests: Vec<Value> = prompts()
            .iter()
            .step_by(7)
            .enumerate()
            .map(|(seed, prompt)| {
                let temperature = if seed % 2 == 0 { 0.0 } else { 0.7 };
                with(
                    &with(&greedy(prompt), eager()),
                    json!({"temperature": temperature, "seed": seed, "cache_prompt": seed % 3 == 0}),
                )
            })
            .collect();
        let alone: Vec<Value> = requests
            .iter()
            .map(|request| complete(&engine, Plain, &with(request, json!({"speculative": false}))))
            .collect();
        let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, Foredraft, request)).collect();
        let mut n_accepted = 0;
        for (id, alone) in ids.into_iter().zip(alone) {
            let updates = drain(&engine, Foredraft, id);
            n_accepted += accepted(updates.last().expect("a final response"));
            assert_eq!(json!(text(&updates)), alone["content"], "{name}");
        }
        assert!(n_accepted > 50, "{name}: {n_accepted}");
    }
}

#[test]
fn draft_only_mode_is_refused_with_another_vocabulary() {
    let engine = load(
        &json!({"model_draft": ChangedVocabulary::new("draft").without_every(40).write("fewer-alone")}),
        json!({}),
    );
    let request = json!({"prompt": "Once", "n_predict": 4, "speculative": {"model": "draft"}}).to_string();
    let error = engine.complete_as(Foredraft, request.as_bytes()).expect_err("refused");
    assert!(error.message().starts_with("speculative.model: the draft model's vocabulary"), "{error}");
}

#[test]
fn session_restores_the_drafts_tokens() {
    let init = json!({"model_draft": ChangedVocabulary::new("draft").without_every(40).write("fewer-session")});
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("translated.session");
    let request = with(&greedy("Once upon a time there was a child named Tom."), eager());
    let whole = complete(&load(&init, json!({})), Plain, &request);
    let half =
        complete(&load(&init, json!({})), Foredraft, &with(&request, json!({"n_predict": 30, "session_save": path})));
    assert!(half["session_save"]["n_saved_draft"].as_u64() > Some(30), "{half}");
    let tokens = |answer: &Value| answer["tokens"].as_array().expect("tokens").clone();
    let engine = load(&init, json!({}));
    let prompt = [vec![request["prompt"].clone()], tokens(&half)].concat();
    let rest = with(&request, json!({"prompt": prompt, "n_predict": 34, "session_load": path}));
    let rest = complete(&engine, Foredraft, &rest);
    assert_eq!([tokens(&half), tokens(&rest)].concat(), tokens(&whole));
    assert_eq!(rest["session_load"]["n_restored_draft"], half["session_save"]["n_saved_draft"], "{rest}");
    assert!(accepted(&rest) > 5, "{rest}");
}

/// Rejection and block verification treat the draft as deterministic: a token is accepted with its target probability.
#[test]
fn rejection_and_block_treat_mapped_drafts_as_deterministic() {
    for (name, init, ..) in pairs() {
        let engine = load(&init, json!({}));
        for verify in ["rejection", "block"] {
            let mut n_accepted = 0;
            for (seed, prompt) in prompts().iter().enumerate().step_by(12) {
                let more = json!({"seed": seed, "n_predict": 32});
                let speculative = json!({"type": "draft", "adaptive": false, "n_max": 5, "verify": verify});
                let request = with(&with(&greedy(prompt), more), json!({"speculative": speculative}));
                let fast = complete(&engine, Foredraft, &request);
                n_accepted += accepted(&fast);
                // Greedy decoding has only one output.
                let plain = complete(&engine, Plain, &with(&request, json!({"speculative": false})));
                assert_eq!(output_fields(&fast), output_fields(&plain), "{name} {verify}");
                accepted(&complete(&engine, Foredraft, &with(&request, json!({"temperature": 0.9}))));
            }
            assert!(n_accepted > 10, "{name} {verify}: {n_accepted}");
        }
    }
}

#[test]
fn unusable_draft_is_disabled_with_a_reason() {
    let engine = start(json!({"model_draft": tiny_models::without_vocabulary(), "n_ctx": 512}));
    let report = engine.status()["draft"].clone();
    assert_eq!((&report["compatible"], &report["translates_tokens"]), (&json!(false), &json!(false)), "{report}");
    let reason = report["reason"].as_str().expect("a reason");
    assert!(reason.contains("the draft's vocabulary is of type none"), "{reason}");
    let request = json!({"prompt": "Once upon a time", "n_predict": 6, "temperature": 0});
    let answer = complete(&engine, Foredraft, &request);
    assert_eq!(
        (&answer["speculative"]["disabled"], answer["speculative"]["by_type"].get("draft")),
        (&json!(reason), None)
    );
    let asked = complete(&engine, Plain, &with(&request, json!({"speculative": {"type": "draft"}})));
    assert_eq!((&asked["speculative"]["disabled"], &asked["speculative"]["n_drafted"]), (&json!(reason), &json!(0)));
    assert_eq!(asked["content"], answer["content"]);
}
