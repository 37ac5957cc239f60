//! Full contexts end the request, shift, or group positions (self-extend), with the same output with speculation as without.

use std::sync::Arc;

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Requests as _, complete, n, output_fields, poll, prompts, start, submit, text, with};
use foredraft::api::JsonEngine;
use foredraft::engine::session::SelfExtend;
use foredraft::llama::{Batch, CacheType, Context, ContextParams, Interrupt, Model, ModelParams, ThreadPool};
use serde_json::{Value, json};

fn steady(n_max: usize) -> Value {
    json!({"speculative": {"type": "draft", "adaptive": false, "n_max": n_max}})
}

/// The tokens of a familiar prompt that has at least `n_tokens`.
fn long_prompt(engine: &JsonEngine, n_tokens: usize) -> Vec<i64> {
    let text = prompts().iter().filter(|prompt| !prompt.contains("<|")).cycle().take(200).cloned().collect::<Vec<_>>();
    let request = json!({"text": text.join("\n"), "add_special": true}).to_string();
    let answer = engine.with_loaded(|loaded| loaded.tokenize(request.as_bytes())).expect("tokens");
    let ids: Vec<i64> = answer["ids"].as_array().expect("ids").iter().filter_map(Value::as_i64).collect();
    assert!(ids.len() >= n_tokens, "{}", ids.len());
    ids[..n_tokens].to_vec()
}

#[test]
fn full_context_ends_the_request_when_shifts_are_off() {
    let engine = start(json!({"n_ctx": 96, "ctx_shift": false}));
    let request = json!({
        "prompt": "Once upon a time there was a child named Mia.", "temperature": 0.6, "seed": 3, "ignore_eos": true,
        "return_tokens": true, "cache_prompt": false,
    });
    let plain = complete(&engine, Plain, &request);
    assert_eq!((&plain["stop_type"], &plain["truncated"]), (&json!("limit"), &json!(true)), "{plain}");
    assert_eq!((&plain["stopped_limit"], &plain["stopped_eos"]), (&json!(true), &json!(false)));
    assert_eq!(n(&plain["tokens_predicted"]) + n(&plain["tokens_evaluated"]), 96, "every cell was used");
    for n_max in [1, 2, 3, 5, 8, 12] {
        let fast = complete(&engine, Foredraft, &with(&request, steady(n_max)));
        assert_eq!(output_fields(&fast), output_fields(&plain), "{n_max}");
        assert!(n(&fast["speculative"]["n_accepted"]) > 0, "{fast}");
    }
    let long = json!({"prompt": vec![5; 96], "n_predict": 1}).to_string();
    let answer = engine.complete_as(Plain, long.as_bytes()).expect("an answer");
    assert_eq!((&answer["success"], &answer["code"]), (&json!(false), &json!("context_full")), "{answer}");
    // A limit that is reached first does not count as a full context.
    let short = complete(&engine, Foredraft, &with(&request, json!({"n_predict": 5})));
    assert_eq!((&short["stop_type"], &short["truncated"]), (&json!("limit"), &json!(false)));
}

/// Each draft length reaches the end of the context at a different point of a step.
#[test]
fn context_shift_inside_a_step_does_not_change_output() {
    let engine = start(json!({"n_ctx": 80}));
    for n_keep in [0, 7, -1] {
        let request = json!({
            "prompt": "Nora was 7 years old and lived near the cave.", "n_predict": 200, "temperature": 0.6, "seed": 21,
            "ignore_eos": true, "n_keep": n_keep, "return_tokens": true, "cache_prompt": false,
        });
        let plain = complete(&engine, Plain, &request);
        assert_eq!(plain["truncated"], true);
        assert!(n(&plain["tokens_predicted"]) >= 200, "more tokens only to complete the last character");
        for n_max in [1, 3, 8] {
            let fast = complete(&engine, Foredraft, &with(&request, steady(n_max)));
            assert_eq!(output_fields(&fast), output_fields(&plain), "{n_keep} {n_max}");
            assert_eq!(fast["speculative"].get("disabled"), None, "{fast}");
            let sources = fast["sources"].as_array().expect("sources");
            // The first shift happens after about 66 tokens.
            let late = sources.iter().skip(90).filter(|source| **source == "draft").count();
            assert!(late > 0, "{late}: drafts must be accepted after shifts, too");
        }
    }
}

/// Decodes of the other slot are interrupted while this slot's keys are rotated to their new positions.
#[test]
fn cancelling_another_slot_does_not_spoil_a_shift() {
    let engine = start(json!({"n_ctx": 64, "n_parallel": 2}));
    let request = json!({
        "prompt": "Once upon a time there was a child named Tom.", "n_predict": 500, "temperature": 0.6, "seed": 4,
        "ignore_eos": true, "cache_prompt": false, "id_slot": 0,
    });
    let alone = complete(&engine, Plain, &request);
    let id = submit(&engine, Plain, &request);
    let (mut cancelled, mut updates) = (0, Vec::new());
    loop {
        let answer = poll(&engine, Plain, id, 3);
        updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
        if answer["finished"] == true {
            break;
        }
        let other = json!({"prompt": "Karl", "ignore_eos": true, "id_slot": 1});
        let other = json!({"id": submit(&engine, Plain, &other)}).to_string();
        let answer = engine.cancel_as(Plain, Some(other.as_bytes()));
        cancelled += u32::from(answer.expect("an answer")["cancelled"] == true);
    }
    assert!(cancelled > 5, "{cancelled}");
    assert_eq!(text(&updates), alone["content"].as_str().expect("content"));
}

/// A system with self-extend; the prompts below contain 4 groups of 48 tokens.
fn extended(more: Value) -> JsonEngine {
    start(with(&json!({"n_ctx": 700, "grp_attn_n": 4, "grp_attn_w": 48}), more))
}

#[test]
fn self_extend_output_does_not_depend_on_batch_size_and_draft() {
    let engine = extended(json!({}));
    let prompt = long_prompt(&engine, 200);
    let request = json!({
        "prompt": prompt, "n_predict": 150, "temperature": 0.7, "seed": 9, "ignore_eos": true, "return_tokens": true,
        "cache_prompt": false,
    });
    let plain = complete(&engine, Plain, &request);
    // Generation continues until a character that the last token began is complete.
    assert!((150..=153).contains(&n(&plain["tokens_predicted"])), "{plain}");
    assert_eq!(plain["truncated"], false);
    for n_max in [1, 4, 16] {
        let fast = complete(&engine, Foredraft, &with(&request, steady(n_max)));
        assert_eq!(output_fields(&fast), output_fields(&plain), "{n_max}");
        assert_eq!(fast["speculative"].get("disabled"), None);
        assert!(n(&fast["speculative"]["n_accepted"]) > 0, "{}", fast["speculative"]);
    }
    drop(engine);
    let ungrouped = complete(&start(json!({"n_ctx": 700})), Plain, &request);
    assert_ne!(ungrouped["content"], plain["content"], "self-extend changes the output");
    for batches in [json!({"n_batch": 7}), json!({"n_batch": 64, "n_ubatch": 16}), json!({"n_parallel": 3})] {
        let other = complete(&extended(batches.clone()), Foredraft, &with(&request, steady(3)));
        assert_eq!(output_fields(&other), output_fields(&plain), "{batches}");
    }
}

#[test]
fn self_extend_cache_is_reused_as_far_as_positions_match() {
    let engine = extended(json!({}));
    let prompt = long_prompt(&engine, 260);
    let extend = SelfExtend::new(4, 48).expect("it comes out even");
    let cold = |prompt: &[i64], more: &Value| {
        let request = json!({"prompt": prompt, "n_predict": 12, "temperature": 0, "cache_prompt": false});
        complete(&engine, Plain, &with(&request, more.clone()))
    };
    for common in [259, 258, 245, 241, 240, 239, 200, 192, 100, 48, 47, 3] {
        for more in [json!({}), steady(4)] {
            let mut other = prompt[..common].to_vec();
            other.extend(prompt[100..].iter().rev().take(20));
            let expected = cold(&other, &json!({}));
            let first = cold(&prompt, &more);
            // 260 prompt tokens, and 11 of the 12 generated tokens were decoded.
            let cached = 260 + n(&first["tokens_predicted"]) - 1;
            let shared = common + prompt[common..].iter().zip(&other[common..]).take_while(|(a, b)| a == b).count();
            let reused = extend.cut(extend.blocks(cached - 1), shared);
            let request = json!({"prompt": other, "n_predict": 12, "temperature": 0});
            let answer = complete(&engine, Foredraft, &with(&request, more.clone()));
            assert_eq!(answer["content"], expected["content"], "{common} {more}");
            assert_eq!(n(&answer["timings"]["cache_n"]), reused, "{common}");
        }
    }
}

#[test]
fn self_extend_context_ends_when_full_and_can_be_saved() {
    let engine = extended(json!({"n_ctx": 256}));
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("grouped.session");
    let request = json!({
        "prompt": long_prompt(&engine, 120), "temperature": 0.7, "seed": 10, "ignore_eos": true, "return_tokens": true,
    });
    let plain = complete(&engine, Plain, &request);
    assert_eq!((&plain["stop_type"], &plain["truncated"]), (&json!("limit"), &json!(true)), "{plain}");
    assert_eq!(n(&plain["tokens_predicted"]), 256 - 120);
    let fast = complete(&engine, Foredraft, &with(&with(&request, steady(5)), json!({"cache_prompt": false})));
    assert_eq!(output_fields(&fast), output_fields(&plain));
    let half = with(&request, json!({"n_predict": 60, "session_save": path}));
    let half = complete(&engine, Foredraft, &with(&half, steady(5)));
    assert_eq!(half["session_save"]["success"], true, "{half}");
    drop(engine);
    let engine = extended(json!({"n_ctx": 256}));
    let tokens = [
        long_prompt(&engine, 120),
        half["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_i64).collect(),
    ];
    let rest = with(&request, json!({"prompt": tokens.concat(), "session_load": path}));
    let answer = complete(&engine, Foredraft, &with(&rest, steady(5)));
    assert_eq!(answer["timings"]["prompt_n"], 1, "{}", answer["timings"]);
    let whole = half["content"].as_str().expect("content").to_owned() + answer["content"].as_str().expect("content");
    assert_eq!(Some(whole.as_str()), plain["content"].as_str());
}

#[test]
fn cache_reuse_moves_chunks_after_a_difference_when_enabled() {
    let pieces = |engine: &JsonEngine| {
        let tokens = long_prompt(engine, 240);
        let [a, b, c] = [&tokens[..80], &tokens[80..140], &tokens[140..]];
        ([a, b, c].concat(), [a, c].concat(), [a, &b[..5], &b[50..], c].concat())
    };
    let mut answers = Vec::new();
    for (init, request, moves) in [
        (json!({}), json!({}), false),
        (json!({}), json!({"n_cache_reuse": 30}), true),
        (json!({"n_cache_reuse": 30}), json!({}), true),
        (json!({"n_cache_reuse": 30}), json!({"n_cache_reuse": 0}), false),
        (json!({}), json!({"n_cache_reuse": 150}), false),
        (json!({"n_cache_reuse": 30}), json!({"cache_prompt": false}), false),
        (json!({"n_cache_reuse": 30, "grp_attn_n": 2, "grp_attn_w": 64}), json!({}), false),
    ] {
        let engine = start(with(&json!({"n_ctx": 512}), init.clone()));
        let (whole, less, little_less) = pieces(&engine);
        for (prompt, moved) in [(&less, less.len() - 1), (&little_less, 80 + 5)] {
            complete(&engine, Foredraft, &with(&json!({"prompt": whole, "n_predict": 8, "temperature": 0}), steady(3)));
            let second = with(
                &json!({"prompt": prompt, "n_predict": 20, "temperature": 0, "ignore_eos": true}),
                request.clone(),
            );
            let answer = complete(&engine, Foredraft, &with(&second, steady(3)));
            let cached = n(&answer["timings"]["cache_n"]);
            assert_eq!(cached >= moved.max(86), moves, "{init} {request} {cached}");
            assert_eq!(n(&answer["tokens_predicted"]), 20);
            let again = complete(&engine, Plain, &second);
            if request["cache_prompt"] != false {
                let whole = again["timings"]["prompt_n"] == 1;
                assert!(
                    whole || init["grp_attn_n"] == 2,
                    "the slot must hold the whole prompt now: {}",
                    again["timings"]
                );
                assert_eq!(again["content"], answer["content"], "{init} {request}");
            }
            answers.push(answer["content"].clone());
        }
    }
    assert_eq!(answers[2..4], answers[4..6], "init and the request must have the same effect");
    assert_eq!(answers[..2], answers[6..8]);
}

/// llama.cpp cannot rotate some of these keys, because heads have 32 numbers or ggml's rotation does not support the type. What stays of the
/// context is then decoded again; the process must not abort.
#[test]
fn contexts_with_keys_that_cannot_be_rotated_shift() {
    for kind in ["f16", "f32", "bf16", "q8_0", "q4_0"] {
        let engine = start(json!({"n_ctx": 96, "cache_type_k": kind, "cache_type_k_draft": kind}));
        let request = json!({"prompt": "Once upon a time", "n_predict": 200, "temperature": 0, "ignore_eos": true});
        for endpoint in [Plain, Foredraft] {
            let answer = complete(&engine, endpoint, &request);
            let n = answer["tokens_predicted"].as_u64().expect("a count");
            assert_eq!((n, &answer["truncated"]), (200, &json!(true)), "{kind}");
        }
    }
}

/// The positions of Qwen3.5's keys have several dimensions, so llama.cpp cannot move them.
#[test]
fn models_whose_memory_cannot_shift_decode_the_rest_again() {
    let model = crate::common::tiny_models::delta_net();
    let engine = start(json!({"model": model, "model_draft": null, "n_ctx": 96, "n_parallel": 2}));
    let prompt = long_prompt(&engine, 20);
    let request = json!({"prompt": prompt, "n_predict": 150, "temperature": 0, "ignore_eos": true, "return_tokens": true,
        "cache_prompt": false});
    let plain = complete(&engine, Plain, &request);
    assert_eq!((&plain["tokens_predicted"], &plain["truncated"]), (&json!(150), &json!(true)), "{plain}");
    let drafted = with(&request, json!({"speculative": {"type": "suffix", "adaptive": false, "n_max": 3}}));
    assert_eq!(complete(&engine, Foredraft, &drafted)["tokens"], plain["tokens"]);
    // The tokens after a shift are those of a context that never had more.
    let tokens: Vec<i64> = plain["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_i64).collect();
    let first = 96 - prompt.len();
    let full = [&prompt, &tokens[..first]].concat();
    // BOS is kept.
    let kept = [&full[..1], &full[1 + (full.len() - 2) / 2..]].concat();
    let kept = with(&request, json!({"prompt": kept, "n_predict": 8}));
    assert_eq!(complete(&engine, Plain, &kept)["tokens"], json!(tokens[first..first + 8]));
}

/// llama.cpp fails an assertion where it moves positions in a cache without layers.
#[test]
fn models_with_windows_alone_go_on_after_a_shift() {
    let model = crate::common::tiny_models::hybrid_with_windows();
    let engine = start(json!({"model": model, "model_draft": null, "n_ctx": 96}));
    let request = json!({"prompt": long_prompt(&engine, 20), "n_predict": 300, "temperature": 0, "ignore_eos": true});
    for _ in 0..2 {
        let answer = complete(&engine, Plain, &request);
        assert_eq!((&answer["tokens_predicted"], &answer["truncated"]), (&json!(300), &json!(true)), "{answer}");
    }
}

/// A key whose position was divided equals one that was decoded at its new position, but for the rounding of its second rotation.
#[test]
fn divided_keys_are_rotated_to_their_new_positions() {
    let model = Arc::new(Model::load(&ModelParams::new(crate::common::model("target")), |_| true).expect("it loads"));
    let threads = Arc::new(ThreadPool::new(1).expect("a thread"));
    let keys = CacheType::F32;
    let params =
        ContextParams { n_ctx: Some(128), type_k: keys, n_threads: 1, n_threads_batch: 1, ..ContextParams::default() };
    let logits = |first: usize, divided: Option<usize>| {
        let mut context = Context::new(&model, &params, &threads, &Arc::new(Interrupt::default())).expect("it fits");
        let mut decode = |token: i32, position: usize, divided: Option<usize>| {
            let mut batch = Batch::new();
            batch.push(token, position, 0, true);
            context.decode(&batch).expect("decoded");
            assert!(divided.is_none_or(|by| context.divide(0, position..position + 1, by)));
            context.logits(0).expect("a row").to_vec()
        };
        decode(300, first, divided);
        decode(301, first / divided.unwrap_or(1) + 1, None)
    };
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let (there, near) = (logits(5, None), logits(40, Some(8)));
    assert!(distance(&there, &near) < 1e-3, "{}", distance(&there, &near));
}
