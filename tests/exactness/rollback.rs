//! Speculation on recurrent and hybrid models, whose states can be rolled back by a few tokens or not at all: drafts change no output, rejected ones
//! leave no state, and what cannot be rolled back is refused.

use std::sync::Arc;

use crate::common::Endpoint::{Completion, Speculative};
use crate::common::{cancel, complete, drain, model, n, start, submit, text, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use foredraft::llama::{Batch, Context, ContextParams, Interrupt, Model, ModelParams, Part, Rollback, ThreadPool};
use serde_json::{Value, json};

/// Models that keep earlier states.
fn hybrids() -> [(&'static str, String); 2] {
    [("short convolutions", tiny_models::hybrid()), ("delta net", tiny_models::delta_net())]
}

/// The same, and a model that keeps none, so that tokens are decoded again.
fn all() -> [(&'static str, String); 3] {
    let [conv, net] = hybrids();
    [conv, net, ("mamba", tiny_models::recurrent())]
}

/// Loads a hybrid with the shipped draft model, whose drafts are mostly wrong for it.
fn load(path: &str, more: Value) -> JsonEngine {
    let base = json!({"model": path, "model_draft": model("draft"), "n_ctx": 1024, "n_batch": 64, "n_ubatch": 32});
    start(with(&base, more))
}

fn request(seed: usize, temperature: f64) -> Value {
    json!({
        "prompt": tokens(seed, 40), "n_predict": 60, "temperature": temperature, "top_k": 0, "top_p": 1, "seed": seed, "ignore_eos": true,
        "return_tokens": true, "cache_prompt": false,
    })
}

/// Drafts that are mostly wrong, and drafts that are mostly right where the same output was made before.
fn drafting() -> [(&'static str, Value); 4] {
    [
        ("wrong", json!({"type": "draft", "adaptive": false, "n_max": 3})),
        ("longer than the rollback", json!({"type": "draft", "adaptive": false, "n_max": 16, "verify": "match"})),
        ("right", json!({"type": "suffix", "adaptive": false, "n_max": 8})),
        ("adaptive", json!({"type": ["draft", "suffix", "ngram-simple", "ngram-cache"]})),
    ]
}

#[test]
fn drafts_do_not_change_the_output() {
    for (kind, path) in all() {
        for slots in [json!({}), json!({"n_parallel": 3}), json!({"n_parallel": 3, "kv_unified": true})] {
            let engine = load(&path, slots.clone());
            assert_eq!(n(&engine.status()["n_rollback"]) > 0, kind != "mamba", "{kind} {slots}");
            let (mut drafted, mut accepted) = (0, 0);
            for (seed, temperature) in [(1, 0.0), (2, 0.8), (3, 0.8)] {
                let request = request(seed, temperature);
                let plain = complete(&engine, Completion, &request);
                for (name, speculative) in drafting() {
                    let speculative = with(&speculative, json!({"compare": true}));
                    let fast = complete(&engine, Speculative, &with(&request, json!({"speculative": speculative})));
                    assert_eq!(fast["tokens"], plain["tokens"], "{kind} {slots} {name} {temperature}");
                    let report = &fast["speculative"];
                    assert_eq!(report["first_difference"], Value::Null, "{kind} {slots} {name}: {report}");
                    assert!(report.get("compare_skipped").is_none(), "{kind} {slots} {name}: {report}");
                    drafted += n(&report["n_drafted"]);
                    accepted += n(&report["n_accepted"]);
                }
            }
            assert!(accepted > 20 && drafted > 2 * accepted, "{kind} {slots}: {accepted} of {drafted}");
        }
    }
}

#[test]
fn concurrent_drafts_of_different_lengths_do_not_change_the_output() {
    for (kind, path) in all() {
        for unified in [false, true] {
            let engine = load(&path, json!({"n_parallel": 3, "kv_unified": unified}));
            let plain: Vec<Value> = (0..9).map(|seed| complete(&engine, Completion, &request(seed, 0.8))).collect();
            let ids: Vec<u64> = (0..9)
                .map(|seed| {
                    let speculative =
                        json!({"type": ["suffix", "draft"], "adaptive": seed % 3 == 0, "n_max": 1 + seed});
                    submit(&engine, Speculative, &with(&request(seed, 0.8), json!({"speculative": speculative})))
                })
                .collect();
            for (id, plain) in ids.into_iter().zip(&plain) {
                let updates = drain(&engine, Speculative, id);
                assert_eq!(text(&updates), plain["content"].as_str().unwrap(), "{kind}, unified: {unified}");
            }
        }
    }
}

/// After rejected drafts, a cancel, or another slot's request, the cache of a slot is reused as if nothing had been drafted.
#[test]
fn rejected_drafts_leave_no_state_behind() {
    for (kind, path) in all() {
        let engine = load(&path, json!({"n_parallel": 2}));
        let speculative = json!({"speculative": {"type": "draft", "adaptive": false, "n_max": 5}, "cache_prompt": true, "id_slot": 0});
        for seed in 0..6 {
            let first = complete(&engine, Speculative, &with(&request(seed, 0.8), speculative.clone()));
            if seed % 2 == 1 {
                complete(&engine, Speculative, &with(&request(seed + 50, 0.8), json!({"id_slot": 1})));
            }
            if seed % 3 == 2 {
                let id = submit(
                    &engine,
                    Speculative,
                    &with(&with(&first_prompt(seed, &first), speculative.clone()), json!({"n_predict": 500})),
                );
                std::thread::sleep(std::time::Duration::from_millis(3));
                cancel(&engine, Speculative, id);
                drain(&engine, Speculative, id);
            }
            let next = first_prompt(seed, &first);
            let reused = complete(&engine, Completion, &with(&next, json!({"cache_prompt": true, "id_slot": 0})));
            let cold = complete(&engine, Completion, &with(&next, json!({"id_slot": 1})));
            assert_eq!(reused["tokens"], cold["tokens"], "{kind} {seed}");
        }
    }
}

/// A request whose prompt is another request's prompt and output.
fn first_prompt(seed: usize, answer: &Value) -> Value {
    let generated: Vec<usize> = answer["tokens"].as_array().unwrap().iter().map(n).collect();
    let prompt = [tokens(seed, 40), generated, tokens(seed + 9, 3)].concat();
    with(&request(seed, 0.8), json!({"prompt": prompt}))
}

/// A slot of three has fewer earlier states than a slot alone may have, and a session has none.
#[test]
fn sessions_are_saved_between_drafts_and_loaded_by_engines_with_another_rollback() {
    for (kind, path) in all() {
        let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("rollback-{}.session", kind.replace(' ', "-")));
        let whole = complete(&load(&path, json!({"model_draft": null})), Completion, &request(4, 0.8));
        let speculative = json!({"type": "draft", "adaptive": false, "n_max": 5});
        let half = json!({"n_predict": 30, "session_save": file, "speculative": speculative});
        complete(&load(&path, json!({})), Speculative, &with(&request(4, 0.8), half));
        let generated: Vec<usize> = whole["tokens"].as_array().unwrap().iter().map(n).collect();
        let rest = [tokens(4, 40), generated[..30].to_vec()].concat();
        let rest = json!({"prompt": rest, "n_predict": 30, "session_load": file, "cache_prompt": true, "speculative": speculative});
        // The least batch leaves no room for earlier states, so that engine drafts nothing.
        for more in [json!({"n_ubatch": 8}), json!({"n_ubatch": 2, "n_batch": 2})] {
            let answer = complete(&load(&path, more.clone()), Speculative, &with(&request(4, 0.8), rest.clone()));
            let tokens: Vec<usize> = answer["tokens"].as_array().unwrap().iter().map(n).collect();
            assert_eq!(tokens, generated[30..], "{kind} {more}");
            // Tokens behind a rejected draft that were to be decoded again are not in the session.
            let most = if kind == "mamba" { 1 + 5 } else { 1 };
            assert!(n(&answer["timings"]["prompt_n"]) <= most, "{kind} {more}: {}", answer["timings"]);
        }
    }
}

#[test]
fn drafts_continue_past_a_full_context() {
    for (kind, path) in all() {
        let engine = load(&path, json!({"n_ctx": 96}));
        let long = with(&request(3, 0.8), json!({"n_predict": 160}));
        let plain = complete(&engine, Completion, &long);
        let speculative = json!({"speculative": {"type": ["suffix", "draft"], "adaptive": false, "n_max": 5}});
        let fast = complete(&engine, Speculative, &with(&long, speculative));
        assert_eq!(fast["tokens"], plain["tokens"], "{kind}");
        assert!(n(&fast["speculative"]["n_drafted"]) > 50, "{kind}: {}", fast["speculative"]);
    }
}

fn context(path: &str, n_rollback: u32, n_seq_max: u32) -> Context {
    let model = Arc::new(Model::load(&ModelParams::new(path), |_| true).unwrap());
    let params = ContextParams {
        n_ctx: Some(256),
        n_batch: 64,
        n_ubatch: 16,
        n_threads: 1,
        n_threads_batch: 1,
        n_rollback,
        n_seq_max,
        ..ContextParams::default()
    };
    Context::new(&model, &params, &Arc::new(ThreadPool::new(1).unwrap()), &Arc::new(Interrupt::default())).unwrap()
}

/// Decodes tokens of a sequence from a position on, and returns the logits of each.
fn decode(context: &mut Context, sequence: i32, at: usize, tokens: &[usize]) -> Vec<Vec<u32>> {
    let mut batch = Batch::new();
    for (offset, token) in tokens.iter().enumerate() {
        batch.push(i32::try_from(*token).unwrap(), at + offset, sequence, true);
    }
    context.decode(&batch).unwrap();
    (0..tokens.len()).map(|row| context.logits(row).unwrap().iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// llama.cpp itself returns to a state that another decode has overwritten, and to one that the last batch never had.
#[test]
fn only_tokens_whose_state_is_kept_are_removed() {
    for (kind, path) in hybrids() {
        let text = tokens(1, 60);
        let mut alone = context(&path, 0, 1);
        assert_eq!(alone.rollback(), Rollback::Never, "{kind}");
        let expected: Vec<Vec<u32>> = (0..60).flat_map(|at| decode(&mut alone, 0, at, &text[at..=at])).collect();
        assert!(!alone.truncate(0, 59), "{kind}");

        let mut context = context(&path, 4, 2);
        assert_eq!(context.rollback(), Rollback::Recent(4), "{kind}");
        let wrong = tokens(2, 8);
        assert_eq!(decode(&mut context, 0, 0, &text[..20]), expected[..20], "{kind}: a prompt");
        assert!(!context.truncate(0, 15) && context.len(0) == 20, "{kind}: five tokens");
        assert!(context.truncate(0, 16) && context.len(0) == 16, "{kind}: four");
        assert!(!context.truncate(0, 15) && context.len(0) == 16, "{kind}: once only");
        assert!(context.truncate(0, 16), "{kind}: nothing");
        // A draft of which one token is right.
        let draft = [&text[16..18], &wrong[..3]].concat();
        assert_eq!(decode(&mut context, 0, 16, &draft)[..2], expected[16..18], "{kind}");
        assert!(context.truncate(0, 18), "{kind}");
        // The whole batch cannot be removed: the state before it was replaced.
        assert_eq!(decode(&mut context, 0, 18, &text[18..21]), expected[18..21], "{kind}");
        assert!(!context.truncate(0, 18) && context.len(0) == 21, "{kind}: the state before the batch");
        // Another sequence's decode can move states.
        decode(&mut context, 1, 0, &wrong);
        assert!(!context.truncate(0, 20), "{kind}: after a decode of another sequence");
        assert_eq!(decode(&mut context, 0, 21, &text[21..24]), expected[21..24], "{kind}");
        // A state is that of the tokens that are left, whose rollback is then over.
        assert!(context.truncate(0, 22), "{kind}");
        let state = context.state(0, Part::Whole).unwrap();
        decode(&mut context, 0, 22, &wrong);
        for damaged in [&state[..state.len() - 1], &state[..state.len() / 2], &[]] {
            assert!(context.set_state(0, damaged, Part::Whole).is_err() && context.len(0) == 0, "{kind}");
        }
        context.set_state(0, &state, Part::Whole).unwrap();
        assert!(!context.truncate(0, 21) && context.len(0) == 22, "{kind}: a restored state has none before it");
        assert!(!context.copy(0, 1), "{kind}: llama.cpp copies no earlier state");
        assert_eq!(decode(&mut context, 0, 22, &text[22..30]), expected[22..30], "{kind}");
        for sequence in [-1, 2, i32::MAX] {
            assert!(!context.truncate(sequence, 1), "{kind} {sequence}");
        }
    }
}

/// More states than a physical batch has tokens would fail an assertion of llama.cpp.
#[test]
fn rollback_is_limited_by_the_physical_batch_and_the_architecture() {
    let hybrid = tiny_models::hybrid();
    assert_eq!(context(&hybrid, u32::MAX, 1).rollback(), Rollback::Recent(14));
    assert_eq!(context(&tiny_models::recurrent(), 4, 1).rollback(), Rollback::Never, "mamba keeps no earlier states");
    assert_eq!(context(&model("draft"), 4, 1).rollback(), Rollback::Anywhere);
}
