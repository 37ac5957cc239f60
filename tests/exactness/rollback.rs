//! Speculation on recurrent and hybrid models, whose states can be rolled back by a few tokens or not at all: drafts change no output, rejected ones
//! leave no state, and what cannot be rolled back is refused.

use std::sync::Arc;

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{cancel, complete, drain, model, n, start, submit, text, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use foredraft::engine::session::Session;
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
        ("adaptive", json!({"type": ["draft", "suffix", "ngram-cache"]})),
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
                let plain = complete(&engine, Plain, &request);
                for (name, speculative) in drafting() {
                    let speculative = with(&speculative, json!({"compare": true}));
                    let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
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
            let plain: Vec<Value> = (0..9).map(|seed| complete(&engine, Plain, &request(seed, 0.8))).collect();
            let ids: Vec<u64> = (0..9)
                .map(|seed| {
                    let speculative =
                        json!({"type": ["suffix", "draft"], "adaptive": seed % 3 == 0, "n_max": 1 + seed});
                    submit(&engine, Foredraft, &with(&request(seed, 0.8), json!({"speculative": speculative})))
                })
                .collect();
            for (id, plain) in ids.into_iter().zip(&plain) {
                let updates = drain(&engine, Foredraft, id);
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
            let first = complete(&engine, Foredraft, &with(&request(seed, 0.8), speculative.clone()));
            if seed % 2 == 1 {
                complete(&engine, Foredraft, &with(&request(seed + 50, 0.8), json!({"id_slot": 1})));
            }
            if seed % 3 == 2 {
                let id = submit(
                    &engine,
                    Foredraft,
                    &with(&with(&first_prompt(seed, &first), speculative.clone()), json!({"n_predict": 500})),
                );
                std::thread::sleep(std::time::Duration::from_millis(3));
                cancel(&engine, Foredraft, id);
                drain(&engine, Foredraft, id);
            }
            let next = first_prompt(seed, &first);
            let reused = complete(&engine, Plain, &with(&next, json!({"cache_prompt": true, "id_slot": 0})));
            let cold = complete(&engine, Plain, &with(&next, json!({"id_slot": 1})));
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
        let whole = complete(&load(&path, json!({"model_draft": null})), Plain, &request(4, 0.8));
        let speculative = json!({"type": "draft", "adaptive": false, "n_max": 5});
        let half = json!({"n_predict": 30, "session_save": file, "speculative": speculative});
        complete(&load(&path, json!({})), Foredraft, &with(&request(4, 0.8), half));
        let generated: Vec<usize> = whole["tokens"].as_array().unwrap().iter().map(n).collect();
        let rest = [tokens(4, 40), generated[..30].to_vec()].concat();
        let rest = json!({"prompt": rest, "n_predict": 30, "session_load": file, "cache_prompt": true, "speculative": speculative});
        // The least batch leaves no room for earlier states, so that engine drafts nothing.
        for more in [json!({"n_ubatch": 8}), json!({"n_ubatch": 2, "n_batch": 2})] {
            let answer = complete(&load(&path, more.clone()), Foredraft, &with(&request(4, 0.8), rest.clone()));
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
        let plain = complete(&engine, Plain, &long);
        let speculative = json!({"speculative": {"type": ["suffix", "draft"], "adaptive": false, "n_max": 5}});
        let fast = complete(&engine, Foredraft, &with(&long, speculative));
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

/// llama.cpp puts the states of a physical batch's sequences side by side. It moves others, but not their earlier states, not even those
/// of an earlier physical batch of the same decode.
#[test]
fn earlier_states_that_a_later_physical_batch_moves_are_not_returned_to() {
    for (kind, path) in hybrids() {
        let texts = [tokens(1, 30), tokens(2, 30), tokens(3, 30)];
        let mut alone = context(&path, 0, 1);
        let expected = decode(&mut alone, 0, 0, &texts[0][..16]).pop().unwrap();
        let mut context = context(&path, 4, 3);
        // The states of the sequences are in another order than the sequences.
        for sequence in [2, 0, 1] {
            decode(&mut context, sequence, 0, &texts[sequence as usize][..12]);
        }
        let mut batch = Batch::new();
        for (sequence, n) in [(0, 5), (1, 3), (2, 3)] {
            for (at, token) in (12..12 + n).zip(&texts[sequence as usize][12..]) {
                batch.push(i32::try_from(*token).unwrap(), at, sequence, true);
            }
        }
        context.decode(&batch).unwrap();
        assert!(context.truncate(2, 13), "{kind}: in the last physical batch");
        // Where the states before the last two tokens are lost, only the whole sequence can be removed.
        let next = if context.truncate(0, 15) { 15 } else { context.truncate(0, 0).then_some(0).unwrap() };
        let logits = decode(&mut context, 0, next, &texts[0][next..16]).pop().unwrap();
        assert_eq!(logits, expected, "{kind}");
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

/// Sessions of hybrids and of targets with a head, as another version, another engine or damage would have left them.
#[test]
fn sessions_that_do_not_fit_are_refused_with_a_reason_and_change_nothing() {
    let [mtp_main, mtp_layer] = tiny_models::heads::mtp_in_two_files(0.4);
    let head = (tiny_models::heads::head_target(1.0), tiny_models::heads::eagle3("own", |_| {}));
    let mut engines: Vec<_> = all().into_iter().map(|(kind, path)| (kind, load(&path, json!({})))).collect();
    engines.push(("EAGLE-3", load(&head.0, json!({"model_draft": head.1}))));
    engines.push(("MTP", load(&mtp_main, json!({"model_draft": mtp_layer}))));
    let speculative = json!({"speculative": {"type": "draft", "adaptive": false, "n_max": 5}, "cache_prompt": true});
    for (kind, engine) in engines {
        let file = |name: &str| {
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.session", kind.replace(' ', "-")))
        };
        let path = file("whole");
        let first = request(4, 0.8);
        let plain = complete(&engine, Plain, &first);
        let saved = with(&with(&first, speculative.clone()), json!({"n_predict": 30, "session_save": path}));
        complete(&engine, Foredraft, &saved);
        let session = Session::read(&path).expect("it was saved");
        let n_tokens = session.target.tokens.len();
        let longer = format!("positions long, not {}", n_tokens - 12);
        let n_state = session.target.state.len();
        let damaged = |damage: &dyn Fn(&mut Session)| {
            let mut session = session.clone();
            damage(&mut session);
            session
        };
        let changes = [
            ("half", damaged(&|session| session.target.state.truncate(n_state / 2)), "state"),
            ("shorter", damaged(&|session| session.target.state.truncate(n_state - 1)), "state"),
            ("empty", damaged(&|session| session.target.state.clear()), "state"),
            // More than the memory could remove again.
            ("fewer", damaged(&|session| session.target.tokens.truncate(n_tokens - 12)), &longer),
            ("more", damaged(&|session| session.target.tokens.push(300)), "positions long"),
            (
                "other",
                damaged(&|session| session.target.identity.truncate(1)),
                "was saved with another model or context",
            ),
        ];
        let check = |path: &std::path::Path, why: &str| {
            let request = json!({"filename": path}).to_string();
            let error = engine.with_loaded(|loaded| loaded.session_load(request.as_bytes())).expect_err(why);
            assert!(error.message().contains(why), "{kind} {}: {}", path.display(), error.message());
            let again = complete(&engine, Foredraft, &with(&first, speculative.clone()));
            assert_eq!(again["tokens"], plain["tokens"], "{kind} {}", path.display());
        };
        for (name, changed, why) in changes {
            let path = file(name);
            changed.write(&path).expect("writable");
            check(&path, why);
        }
        let older = file("older");
        let mut bytes = std::fs::read(&path).expect("it was saved");
        bytes[16..20].copy_from_slice(&0_u32.to_le_bytes());
        std::fs::write(&older, bytes).expect("writable");
        check(&older, "the file has format 0, where this version reads");
        // A draft model's part that is not this head's is left out.
        let mut foreign = session.clone();
        foreign.draft = Some(session.target.clone());
        let other = file("foreign");
        foreign.write(&other).expect("writable");
        for path in [path, other] {
            let request = json!({"filename": path}).to_string();
            engine.with_loaded(|loaded| loaded.session_load(request.as_bytes())).expect("it fits");
            let again = complete(&engine, Foredraft, &with(&first, speculative.clone()));
            assert_eq!(again["tokens"], plain["tokens"], "{kind} {}", path.display());
        }
    }
}
