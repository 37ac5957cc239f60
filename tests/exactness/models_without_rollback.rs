//! Models whose memory cannot be truncated, or only by a few tokens: recurrent models, hybrids, and sliding windows in a small cache. Prompt
//! reuse, speculation, cancels and sessions do not change their output.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{complete, drain, n, start, submit, text, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

/// Each kind of model, with its `init` keys.
fn kinds() -> [(&'static str, Value); 5] {
    let window = tiny_models::sliding_window();
    [
        ("recurrent", json!({"model": tiny_models::recurrent()})),
        ("hybrid", json!({"model": tiny_models::hybrid()})),
        ("hybrid, delta net", json!({"model": tiny_models::delta_net()})),
        ("sliding window", json!({"model": window, "swa_full": false})),
        ("sliding window, full cache", json!({"model": window})),
    ]
}

/// Loads a model with small batches: recurrent states are kept at the ends of batches, so short prompts have some to go back to.
fn load(init: &Value, more: Value) -> JsonEngine {
    let base = json!({"model_draft": null, "n_ctx": 1024, "n_batch": 32, "n_ubatch": 32});
    start(with(&with(&base, init.clone()), more))
}

/// At this temperature any difference in the logits soon changes the output.
fn request(prompt: &[usize]) -> Value {
    json!({
        "prompt": prompt, "n_predict": 40, "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": 8, "ignore_eos": true,
        "return_tokens": true,
    })
}

fn cold(engine: &JsonEngine, prompt: &[usize]) -> Value {
    complete(engine, Plain, &with(&request(prompt), json!({"cache_prompt": false})))
}

#[test]
fn prompt_reuse_does_not_change_output() {
    for (kind, init) in kinds() {
        let engine = load(&init, json!({}));
        // Longer than the smallest cache that llama.cpp creates for a sliding window, 256 cells.
        let base = tokens(1, 450);
        let answer = cold(&engine, &base);
        let other = cold(&engine, &[&base[..449], &[777]].concat());
        assert_ne!(answer["tokens"], other["tokens"], "{kind}: the output must depend on the prompt's last token");
        let other = cold(&engine, &[&base[..447], &[777], &base[448..]].concat());
        assert_ne!(answer["tokens"], other["tokens"], "{kind}: and on the tokens before it");
        let generated: Vec<usize> = answer["tokens"].as_array().expect("tokens").iter().map(n).collect();
        let prompts: [(&str, Vec<usize>, usize); 6] = [
            ("the same prompt", base.clone(), 449),
            ("the prompt and its output, continued", [base.as_slice(), &generated, &tokens(2, 30)].concat(), 480),
            ("continued after part of the output", [base.as_slice(), &generated[..9], &tokens(3, 30)].concat(), 449),
            ("a shared beginning", [&base[..320], &tokens(4, 40)].concat(), 200),
            ("an unrelated prompt", tokens(5, 100), 0),
            ("a prefix of the prompt", base[..140].to_vec(), 60),
        ];
        for (name, prompt, least) in prompts {
            let expected = cold(&engine, &prompt);
            cold(&engine, &base);
            let answer = complete(&engine, Plain, &request(&prompt));
            assert_eq!(answer["tokens"], expected["tokens"], "{kind}: {name}");
            let reused = n(&answer["timings"]["cache_n"]);
            assert!(reused >= least, "{kind}: {name}: {reused}");
            let again = complete(&engine, Plain, &request(&prompt));
            assert_eq!(again["tokens"], expected["tokens"], "{kind}: {name}, again");
            assert!(n(&again["timings"]["cache_n"]) + 1 >= prompt.len(), "{kind}: {name}, again: {}", again["timings"]);
        }
    }
}

#[test]
fn speculation_is_exact() {
    for (kind, init) in kinds() {
        // The model is its own draft, so most drafts are right.
        let engine = load(&with(&init, json!({"model_draft": init["model"]})), json!({"n_parallel": 2}));
        let prompt = tokens(6, 290);
        let expected = cold(&engine, &prompt);
        for n_max in [1, 3, 8] {
            let more =
                json!({"cache_prompt": false, "speculative": {"type": "draft", "adaptive": false, "n_max": n_max}});
            let answer = complete(&engine, Foredraft, &with(&request(&prompt), more));
            assert_eq!(answer["tokens"], expected["tokens"], "{kind} {n_max}");
            let report = &answer["speculative"];
            assert!(n(&report["n_accepted"]) > 10 && report.get("disabled").is_none(), "{kind}: {report}");
        }
        // Concurrent requests with drafts of different lengths.
        let ids = [2, 5].map(|n_max| {
            let more =
                json!({"cache_prompt": false, "speculative": {"adaptive": false, "n_max": n_max, "verify": "match"}});
            submit(&engine, Foredraft, &with(&request(&prompt), more))
        });
        for id in ids {
            assert_eq!(text(&drain(&engine, Foredraft, id)), expected["content"].as_str().expect("content"), "{kind}");
        }
    }
}

#[test]
fn cancelling_another_slot_keeps_recurrent_state_intact() {
    for (kind, init) in kinds() {
        let engine = load(&init, json!({"n_parallel": 2}));
        let long = with(&request(&tokens(7, 260)), json!({"n_predict": 100, "cache_prompt": false, "id_slot": 0}));
        let alone = complete(&engine, Plain, &long);
        let id = submit(&engine, Plain, &long);
        let mut updates = Vec::new();
        loop {
            let answer = crate::common::poll(&engine, Plain, id, 5);
            updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
            if answer["finished"] == true {
                break;
            }
            let other = submit(&engine, Plain, &with(&request(&tokens(8, 300)), json!({"id_slot": 1})));
            crate::common::cancel(&engine, Plain, other);
        }
        assert_eq!(text(&updates), alone["content"].as_str().expect("content"), "{kind}");
    }
}

/// llama.cpp swaps recurrent state cells before it moves their contents, including cells of sequences that are not in the batch.
/// With a unified cache it does so whenever other cells lie between those in the batch.
#[test]
fn cancels_in_other_slots_keep_idle_recurrent_state_intact() {
    for (kind, init) in kinds() {
        let engine = load(&init, json!({"n_parallel": 4, "kv_unified": true}));
        let on = |slot: usize, prompt: &[usize]| with(&request(prompt), json!({"id_slot": slot}));
        let base = tokens(7, 60);
        let next = [base.as_slice(), &tokens(8, 20)].concat();
        let expected = complete(&engine, Plain, &with(&on(1, &next), json!({"cache_prompt": false})));
        for round in 0..40 {
            // Each time other sequences lie between those in the batch.
            let [idle, first, second, stopped] = [0, 1, 3, 2].map(|place| (place + round) % 4);
            complete(&engine, Plain, &with(&on(idle, &base), json!({"n_predict": 1})));
            let fresh = |slot| with(&on(slot, &tokens(20 + slot, 30)), json!({"cache_prompt": false}));
            let ids = [first, second].map(|slot| submit(&engine, Plain, &fresh(slot)));
            // Each cancel interrupts a running decode.
            while ids.iter().any(|id| crate::common::poll(&engine, Plain, *id, 0)["finished"] != true) {
                let other = with(&on(stopped, &tokens(9, 10)), json!({"cache_prompt": false}));
                let other = submit(&engine, Plain, &other);
                std::thread::sleep(std::time::Duration::from_micros(200));
                crate::common::cancel(&engine, Plain, other);
                drain(&engine, Plain, other);
            }
            let answer = complete(&engine, Plain, &on(idle, &next));
            assert_eq!(answer["tokens"], expected["tokens"], "{kind}, round {round}");
        }
    }
}

#[test]
fn sessions_resume_on_models_without_rollback() {
    for (kind, init) in kinds() {
        let path =
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.session", kind.replace(' ', "-")));
        let prompt = tokens(9, 300);
        let whole = cold(&load(&init, json!({})), &prompt);
        let generated: Vec<usize> = whole["tokens"].as_array().expect("tokens").iter().map(n).collect();
        {
            let engine = load(&init, json!({}));
            let half = with(&request(&prompt), json!({"n_predict": 15, "session_save": path}));
            let half = complete(&engine, Plain, &half);
            assert_eq!(half["session_save"]["n_saved"], 314, "{kind}: {half}");
        }
        let engine = load(&init, json!({}));
        let rest = [prompt.as_slice(), &generated[..15]].concat();
        let rest = with(&request(&rest), json!({"n_predict": 25, "session_load": path}));
        let answer = complete(&engine, Plain, &rest);
        assert_eq!(answer["timings"]["prompt_n"], 1, "{kind}: {}", answer["timings"]);
        let tokens: Vec<usize> = answer["tokens"].as_array().expect("tokens").iter().map(n).collect();
        assert_eq!(tokens, generated[15..], "{kind}");
        // A prompt that ends before the session does, which a recurrent state cannot be rolled back to.
        let shorter = cold(&engine, &prompt[..150]);
        engine
            .with_loaded(|loaded| loaded.session_load(json!({"filename": path}).to_string().as_bytes()))
            .expect("loaded");
        let answer = complete(&engine, Plain, &request(&prompt[..150]));
        assert_eq!(answer["tokens"], shorter["tokens"], "{kind}");
    }
}

/// The file has the checkpoints of the sequence. (One can be dropped for the state at the end of the session.)
#[test]
fn restored_sessions_reuse_the_beginning_of_other_prompts() {
    for (kind, init) in kinds().into_iter().filter(|(kind, _)| !kind.starts_with("sliding window")) {
        let path =
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-reuse.session", kind.replace(' ', "-")));
        let command = json!({"filename": path}).to_string();
        let prompt = tokens(9, 300);
        // It has the prompt, and not what was generated after it.
        let other = request(&[prompt.as_slice(), &tokens(4, 20)].concat());
        let engine = load(&init, json!({}));
        complete(&engine, Plain, &with(&request(&prompt), json!({"n_predict": 15})));
        engine.with_loaded(|loaded| loaded.session_save(command.as_bytes())).expect("saved");
        let expected = complete(&engine, Plain, &other);
        let engine = load(&init, json!({}));
        engine.with_loaded(|loaded| loaded.session_load(command.as_bytes())).expect("loaded");
        let answer = complete(&engine, Plain, &other);
        assert_eq!(answer["tokens"], expected["tokens"], "{kind}");
        let [reused, before] = [&answer, &expected].map(|answer| n(&answer["timings"]["cache_n"]));
        assert!(before > 0 && reused > before / 2, "{kind}: {reused} of {before}");
    }
}

#[test]
fn generation_continues_past_a_full_context() {
    for (kind, init) in kinds() {
        let engine = load(&init, json!({"n_ctx": 96}));
        let long = with(&request(&tokens(3, 60)), json!({"n_predict": 160, "cache_prompt": false}));
        let first = complete(&engine, Plain, &long);
        assert_eq!((n(&first["tokens_predicted"]), &first["truncated"]), (160, &json!(true)), "{kind}");
        let again = complete(&engine, Plain, &long);
        assert_eq!(again["tokens"], first["tokens"], "{kind}");
    }
}

/// When the small cache still has a truncation point, it may have lost the beginning of the window before it.
#[test]
fn partly_evicted_window_is_not_reused() {
    let (_, init) = kinds().into_iter().find(|(kind, _)| *kind == "sliding window").expect("it is one of them");
    let engine = load(&init, json!({}));
    let (base, end) = (tokens(1, 450), tokens(2, 3));
    let few = json!({"n_predict": 5, "n_probs": 1});
    let mut reused = 0;
    for kept in (160..300).step_by(3) {
        let prompt = [&base[..kept], &end].concat();
        let expected =
            complete(&engine, Plain, &with(&with(&request(&prompt), few.clone()), json!({"cache_prompt": false})));
        complete(&engine, Plain, &with(&with(&request(&base), few.clone()), json!({"cache_prompt": false})));
        let answer = complete(&engine, Plain, &with(&request(&prompt), few.clone()));
        // The cells of a small cache are ordered differently each time.
        let probabilities = &answer["completion_probabilities"];
        assert_eq!(probabilities.as_array().map(Vec::len), Some(5), "{answer}");
        assert_eq!(*probabilities, expected["completion_probabilities"], "{kept}: {}", answer["timings"]["cache_n"]);
        reused += n(&answer["timings"]["cache_n"]);
    }
    assert!(reused > 40 * 100, "checkpoints must be reused: {reused}");
}

/// llama.cpp asserts on most of these calls, which would abort the process.
#[test]
fn context_refuses_calls_llama_cpp_would_assert_on() {
    use foredraft::llama::{Batch, Context, ContextParams, Interrupt, Model, ModelParams, Part, ThreadPool};
    use std::sync::Arc;
    let threads = Arc::new(ThreadPool::new(1).expect("threads"));
    let params = ContextParams { n_ctx: Some(256), n_threads: 1, n_threads_batch: 1, ..ContextParams::default() };
    for (kind, init) in kinds() {
        let path = init["model"].as_str().expect("a path");
        let model = Arc::new(Model::load(&ModelParams::new(path), |_| true).expect("it loads"));
        let params = ContextParams { swa_full: init["swa_full"] != false, ..params.clone() };
        let mut context = Context::new(&model, &params, &threads, &Arc::new(Interrupt::default())).expect("it fits");
        let mut batch = Batch::new();
        for position in 0..20 {
            batch.push(300, position, 0, position == 19);
        }
        context.decode(&batch).expect("decoded");
        for sequence in [-1, 1, i32::MAX] {
            assert!(!context.move_by(sequence, 0..5, 1) && !context.divide(sequence, 0..5, 2), "{kind}");
            assert!(!context.remove(sequence, 0, None) && !context.reaches(sequence, 5), "{kind}");
            assert!(context.state(sequence, Part::Whole).is_err(), "{kind}");
            assert!(context.set_state(sequence, &[0; 64], Part::Whole).is_err(), "{kind}");
        }
        assert!(!context.divide(0, 0..5, 0) && !context.divide(0, 0..5, usize::MAX), "{kind}");
        assert!(!context.move_by(0, 5..10, -6) && !context.move_by(0, 5..10, isize::MAX), "{kind}");
        assert!(!context.move_by(0, 0..usize::MAX, 1), "{kind}");
        assert!(context.reaches(0, 20) && !context.reaches(0, 21) && !context.reaches(0, 19), "{kind}");
        let state = context.state(0, Part::Whole).expect("a state");
        for garbage in [&[][..], &[0], &[0xFF; 1000], &state[..state.len() - 1], &state[..state.len() / 2]] {
            assert!(context.set_state(0, garbage, Part::Whole).is_err(), "{kind}");
            assert_eq!(context.len(0), 0, "{kind}: empty after an error");
        }
        context.set_state(0, &state, Part::Whole).expect("the complete state");
        assert!(context.reaches(0, 20), "{kind}");
        context.reset();
        assert_eq!(context.len(0), 0, "{kind}");
    }
}

/// A copied small cache is restored from a checkpoint if its window has moved on; llama.cpp makes the copy at the next decode.
#[test]
fn copied_prompt_gives_the_same_output_as_a_request_alone() {
    for (kind, init) in kinds() {
        let engine = load(&init, json!({"n_parallel": 2}));
        let first = submit(&engine, Plain, &with(&request(&tokens(2, 20)), json!({"n_predict": 320})));
        let both = with(&request(&tokens(1, 450)), json!({"n_cmpl": 2, "n_predict": 480, "seed": 8}));
        let both = submit(&engine, Plain, &both);
        drain(&engine, Plain, first);
        let updates = drain(&engine, Plain, both);
        let last = |index: usize| {
            let mut ends = updates.iter().filter(|update| update["index"] == index && update["stop"] == true);
            ends.next().unwrap_or_else(|| panic!("{kind}: no end of {index}")).clone()
        };
        for index in 0..2 {
            let seed = last(index)["generation_settings"]["seed"].clone();
            let alone = with(&request(&tokens(1, 450)), json!({"n_predict": 480, "seed": seed, "cache_prompt": false}));
            let alone = complete(&engine, Plain, &alone);
            let content: String = updates
                .iter()
                .filter(|update| update["index"] == index)
                .map(|update| update["content"].as_str().expect("content"))
                .collect();
            assert_eq!(alone["content"], content.as_str(), "{kind}: text {index}");
        }
    }
}

/// Prompts at once that are equal, and one that shares their beginning only.
#[test]
fn equal_beginnings_at_once_give_the_output_of_each_alone() {
    for (kind, init) in kinds() {
        let engine = load(&init, json!({"n_parallel": 4}));
        let base = tokens(1, 450);
        let prompts = [base.clone(), base.clone(), base.clone(), [&base[..400], &tokens(4, 30)].concat()];
        let alone = prompts.clone().map(|prompt| cold(&engine, &prompt)["content"].clone());
        let engine = load(&init, json!({"n_parallel": 4}));
        for round in 0..2 {
            let ids = prompts.clone().map(|prompt| submit(&engine, Plain, &request(&prompt)));
            let updates = ids.map(|id| drain(&engine, Plain, id));
            assert_eq!(updates.clone().map(|updates| json!(text(&updates))), alone, "{kind}, round {round}");
            let cached = updates.map(|updates| n(&updates.last().expect("an end")["timings"]["cache_n"]));
            assert!(cached[1..].iter().all(|cached| *cached >= 256), "{kind}, round {round}: {cached:?}");
        }
    }
}

/// In a small sliding-window cache, llama.cpp never reuses a cell that several beams share.
#[test]
fn beam_search_continues_past_the_sliding_window() {
    for (kind, init) in kinds() {
        let engine = load(&init, json!({}));
        let search = with(&request(&tokens(1, 600)), json!({"n_beams": 4, "n_predict": 40}));
        let answer = complete(&engine, Plain, &search);
        assert_eq!((n(&answer["tokens_predicted"]), &answer["truncated"]), (40, &json!(false)), "{kind}");
    }
}
