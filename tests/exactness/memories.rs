//! Models whose memory cannot be cut back: recurrent ones, hybrids, and sliding windows in a small cache. What is reused
//! of earlier prompts changes no text.

use crate::common::{complete, drain, n, start, submit, text, tiny, tokens, with};
use foredraft::api::Endpoint::{Completion, Speculative};
use foredraft::api::System;
use serde_json::{Value, json};

/// Each kind, with what its `init` needs.
fn kinds() -> [(&'static str, Value); 4] {
    let window = tiny::sliding_window();
    [
        ("recurrent", json!({"model": tiny::recurrent()})),
        ("hybrid", json!({"model": tiny::hybrid()})),
        ("sliding window", json!({"model": window, "swa_full": false})),
        ("sliding window, full cache", json!({"model": window})),
    ]
}

/// Small batches, which are all computed in the same way, to the last bit.
fn load(init: &Value, more: Value) -> System {
    let base = json!({"model_draft": null, "n_ctx": 1024, "n_batch": 32, "n_ubatch": 32});
    start(with(&with(&base, init.clone()), more))
}

/// At this temperature, whatever differs in the logits soon differs in the text.
fn request(prompt: &[usize]) -> Value {
    json!({
        "prompt": prompt, "n_predict": 40, "temperature": 1.5, "top_k": 0, "top_p": 1, "seed": 8, "ignore_eos": true,
        "return_tokens": true,
    })
}

fn cold(system: &System, prompt: &[usize]) -> Value {
    complete(system, Completion, &with(&request(prompt), json!({"cache_prompt": false})))
}

#[test]
fn what_is_reused_changes_no_text() {
    for (kind, init) in kinds() {
        let system = load(&init, json!({}));
        // Longer than the smallest cache that llama.cpp makes for a window, 256 cells.
        let base = tokens(1, 450);
        let answer = cold(&system, &base);
        let other = cold(&system, &[&base[..449], &[777]].concat());
        assert_ne!(answer["tokens"], other["tokens"], "{kind}: the text depends on the prompt's end");
        let other = cold(&system, &[&base[..447], &[777], &base[448..]].concat());
        assert_ne!(answer["tokens"], other["tokens"], "{kind}: and on what is before it");
        let said: Vec<usize> = answer["tokens"].as_array().expect("tokens").iter().map(n).collect();
        let prompts: [(&str, Vec<usize>, usize); 6] = [
            ("the same again", base.clone(), 449),
            ("goes on", [base.as_slice(), &said, &tokens(2, 30)].concat(), 480),
            ("goes on in another way", [base.as_slice(), &said[..9], &tokens(3, 30)].concat(), 449),
            ("another end", [&base[..320], &tokens(4, 40)].concat(), 200),
            ("another beginning", tokens(5, 100), 0),
            ("a part", base[..140].to_vec(), 60),
        ];
        for (name, prompt, least) in prompts {
            let expected = cold(&system, &prompt);
            cold(&system, &base);
            let answer = complete(&system, Completion, &request(&prompt));
            assert_eq!(answer["tokens"], expected["tokens"], "{kind}: {name}");
            let reused = n(&answer["timings"]["cache_n"]);
            assert!(reused >= least, "{kind}: {name}: {reused}");
            let again = complete(&system, Completion, &request(&prompt));
            assert_eq!(again["tokens"], expected["tokens"], "{kind}: {name}, again");
            assert!(n(&again["timings"]["cache_n"]) + 1 >= prompt.len(), "{kind}: {name}, again: {}", again["timings"]);
        }
    }
}

#[test]
fn speculation_is_right_or_off_with_the_reason() {
    for (kind, init) in kinds() {
        // The model drafts for itself, which it does well.
        let system = load(&with(&init, json!({"model_draft": init["model"]})), json!({"n_parallel": 2}));
        let prompt = tokens(6, 290);
        let expected = cold(&system, &prompt);
        for n_max in [1, 3, 8] {
            let more =
                json!({"cache_prompt": false, "speculative": {"type": "draft", "adaptive": false, "n_max": n_max}});
            let answer = complete(&system, Speculative, &with(&request(&prompt), more));
            assert_eq!(answer["tokens"], expected["tokens"], "{kind} {n_max}");
            let report = &answer["speculative"];
            if kind.starts_with("sliding") {
                assert!(n(&report["n_accepted"]) > 10 && report.get("disabled").is_none(), "{kind}: {report}");
            } else {
                let why = report["disabled"].as_str().unwrap_or_default();
                assert!(why.contains("cannot be cut back"), "{kind}: {report}");
                assert_eq!(report["n_drafted"], 0);
            }
        }
        // Several at once, with drafts of different lengths.
        let ids = [2, 5].map(|n_max| {
            let more =
                json!({"cache_prompt": false, "speculative": {"adaptive": false, "n_max": n_max, "verify": "match"}});
            submit(&system, Speculative, &with(&request(&prompt), more))
        });
        for id in ids {
            assert_eq!(
                text(&drain(&system, Speculative, id)),
                expected["content"].as_str().expect("content"),
                "{kind}"
            );
        }
    }
}

#[test]
fn cancels_next_door_leave_memories_whole() {
    for (kind, init) in kinds() {
        let system = load(&init, json!({"n_parallel": 2}));
        let long = with(&request(&tokens(7, 260)), json!({"n_predict": 100, "cache_prompt": false, "id_slot": 0}));
        let alone = complete(&system, Completion, &long);
        let id = submit(&system, Completion, &long);
        let mut updates = Vec::new();
        loop {
            let answer = crate::common::poll(&system, Completion, id, 5);
            updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
            if answer["finished"] == true {
                break;
            }
            let other = submit(&system, Completion, &with(&request(&tokens(8, 300)), json!({"id_slot": 1})));
            crate::common::cancel(&system, Completion, other);
        }
        assert_eq!(text(&updates), alone["content"].as_str().expect("content"), "{kind}");
    }
}

/// llama.cpp exchanges the cells of states before it moves what is in them, also of those that are not evaluated; with one buffer
/// for all whenever those that are have others between them.
#[test]
fn cancels_all_around_leave_an_idle_memory_whole() {
    for (kind, init) in kinds() {
        let system = load(&init, json!({"n_parallel": 4, "kv_unified": true}));
        let on = |slot: usize, prompt: &[usize]| with(&request(prompt), json!({"id_slot": slot}));
        let base = tokens(7, 60);
        let next = [base.as_slice(), &tokens(8, 20)].concat();
        let expected = complete(&system, Completion, &with(&on(1, &next), json!({"cache_prompt": false})));
        for round in 0..40 {
            // Each time others lie between others.
            let [idle, first, second, stopped] = [0, 1, 3, 2].map(|place| (place + round) % 4);
            complete(&system, Completion, &with(&on(idle, &base), json!({"n_predict": 1})));
            let fresh = |slot| with(&on(slot, &tokens(20 + slot, 30)), json!({"cache_prompt": false}));
            let ids = [first, second].map(|slot| submit(&system, Completion, &fresh(slot)));
            // Each cancel stops what is being evaluated.
            while ids.iter().any(|id| crate::common::poll(&system, Completion, *id, 0)["finished"] != true) {
                let other = with(&on(stopped, &tokens(9, 10)), json!({"cache_prompt": false}));
                let other = submit(&system, Completion, &other);
                std::thread::sleep(std::time::Duration::from_micros(200));
                crate::common::cancel(&system, Completion, other);
                drain(&system, Completion, other);
            }
            let answer = complete(&system, Completion, &on(idle, &next));
            assert_eq!(answer["tokens"], expected["tokens"], "{kind}, round {round}");
        }
    }
}

#[test]
fn sessions_of_such_models_go_on() {
    for (kind, init) in kinds() {
        let path =
            std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.session", kind.replace(' ', "-")));
        let prompt = tokens(9, 300);
        let whole = cold(&load(&init, json!({})), &prompt);
        let said: Vec<usize> = whole["tokens"].as_array().expect("tokens").iter().map(n).collect();
        {
            let system = load(&init, json!({}));
            let half = with(&request(&prompt), json!({"n_predict": 15, "session_save": path}));
            let half = complete(&system, Completion, &half);
            assert_eq!(half["session_save"]["n_saved"], 314, "{kind}: {half}");
        }
        let system = load(&init, json!({}));
        let rest = [prompt.as_slice(), &said[..15]].concat();
        let rest = with(&request(&rest), json!({"n_predict": 25, "session_load": path}));
        let answer = complete(&system, Completion, &rest);
        assert_eq!(answer["timings"]["prompt_n"], 1, "{kind}: {}", answer["timings"]);
        let tokens: Vec<usize> = answer["tokens"].as_array().expect("tokens").iter().map(n).collect();
        assert_eq!(tokens, said[15..], "{kind}");
        // Back before its end, where the state alone cannot go.
        let shorter = cold(&system, &prompt[..150]);
        system
            .with_server(|server| server.session_load(json!({"filename": path}).to_string().as_bytes()))
            .expect("loaded");
        let answer = complete(&system, Completion, &request(&prompt[..150]));
        assert_eq!(answer["tokens"], shorter["tokens"], "{kind}");
    }
}

#[test]
fn full_contexts_go_on() {
    for (kind, init) in kinds() {
        let system = load(&init, json!({"n_ctx": 96}));
        let long = with(&request(&tokens(3, 60)), json!({"n_predict": 160, "cache_prompt": false}));
        let first = complete(&system, Completion, &long);
        assert_eq!((n(&first["tokens_predicted"]), &first["truncated"]), (160, &json!(true)), "{kind}");
        let again = complete(&system, Completion, &long);
        assert_eq!(again["tokens"], first["tokens"], "{kind}");
    }
}

/// Where a cut falls among the positions that the small cache still has, the window before it may lack its beginning.
#[test]
fn windows_that_are_lost_in_part_are_not_used() {
    let (_, init) = kinds().into_iter().find(|(kind, _)| *kind == "sliding window").expect("it is one of them");
    let system = load(&init, json!({}));
    let (base, end) = (tokens(1, 450), tokens(2, 3));
    let few = json!({"n_predict": 5, "n_probs": 1});
    let mut reused = 0;
    for kept in (160..300).step_by(3) {
        let prompt = [&base[..kept], &end].concat();
        let expected =
            complete(&system, Completion, &with(&with(&request(&prompt), few.clone()), json!({"cache_prompt": false})));
        complete(&system, Completion, &with(&with(&request(&base), few.clone()), json!({"cache_prompt": false})));
        let answer = complete(&system, Completion, &with(&request(&prompt), few.clone()));
        let logprobs = |answer: &Value| -> Vec<f64> {
            let probs = answer["completion_probabilities"].as_array().expect("probabilities").iter();
            let logprobs: Vec<f64> = probs.map(|token| token["logprob"].as_f64().expect("a number")).collect();
            assert_eq!(logprobs.len(), 5, "{answer}");
            logprobs
        };
        // The cells of a small cache lie in another order each time, and last bits depend on that.
        let pairs = logprobs(&answer).into_iter().zip(logprobs(&expected));
        let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(largest < 0.1, "{kept}: {largest} {}", answer["timings"]["cache_n"]);
        reused += n(&answer["timings"]["cache_n"]);
    }
    assert!(reused > 40 * 100, "checkpoints are of use: {reused}");
}

/// llama.cpp asserts on most of these, which would end the process.
#[test]
fn impossible_calls_of_a_context_are_refused() {
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
        context.decode(&batch).expect("evaluated");
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
        context.set_state(0, &state, Part::Whole).expect("the whole one");
        assert!(context.reaches(0, 20), "{kind}");
        context.reset();
        assert_eq!(context.len(0), 0, "{kind}");
    }
}

/// A copy of a small cache whose window has gone on is put back to a checkpoint, and the copy itself is made by the next evaluation.
#[test]
fn a_text_that_copies_anothers_prompt_is_what_it_is_alone() {
    for (kind, init) in kinds() {
        let system = load(&init, json!({"n_parallel": 2}));
        let first = submit(&system, Completion, &with(&request(&tokens(2, 20)), json!({"n_predict": 320})));
        let both = with(&request(&tokens(1, 450)), json!({"n_cmpl": 2, "n_predict": 480, "seed": 8}));
        let both = submit(&system, Completion, &both);
        drain(&system, Completion, first);
        let updates = drain(&system, Completion, both);
        let last = |index: usize| {
            let mut ends = updates.iter().filter(|update| update["index"] == index && update["stop"] == true);
            ends.next().unwrap_or_else(|| panic!("{kind}: no end of {index}")).clone()
        };
        for index in 0..2 {
            let seed = last(index)["generation_settings"]["seed"].clone();
            let alone = with(&request(&tokens(1, 450)), json!({"n_predict": 480, "seed": seed, "cache_prompt": false}));
            let alone = complete(&system, Completion, &alone);
            let content: String = updates
                .iter()
                .filter(|update| update["index"] == index)
                .map(|update| update["content"].as_str().expect("content"))
                .collect();
            assert_eq!(alone["content"], content.as_str(), "{kind}: text {index}");
        }
    }
}

/// In a small cache for windows, no cell that several beams share would be used again.
#[test]
fn searches_go_on_behind_a_window() {
    for (kind, init) in kinds() {
        let system = load(&init, json!({}));
        let search = with(&request(&tokens(1, 600)), json!({"n_beams": 4, "n_predict": 40}));
        let answer = complete(&system, Completion, &search);
        assert_eq!((n(&answer["tokens_predicted"]), &answer["truncated"]), (40, &json!(false)), "{kind}");
    }
}

/// `tokenizer.ggml.suppress_tokens`, which llama-server bans in every request.
#[test]
fn what_a_model_is_not_to_say_it_does_not_say() {
    let plain = load(&json!({"model": tiny::sliding_window()}), json!({}));
    let ask = |system: &System, more: Value| {
        let answer = complete(system, Completion, &with(&request(&tokens(3, 30)), more));
        answer["tokens"].as_array().expect("tokens").iter().map(n).collect::<Vec<_>>()
    };
    let said = ask(&plain, json!({"temperature": 0}));
    let first = i32::try_from(said[0]).expect("a token");
    let silent = load(&json!({"model": tiny::suppressing(&[first, 300, -5, i32::MAX])}), json!({}));
    for more in [json!({"temperature": 0}), json!({"logit_bias": [[first, 100.0]]}), json!({})] {
        let said = ask(&silent, more);
        assert!(said.len() == 40 && !said.contains(&usize::try_from(first).expect("a token")), "{first}: {said:?}");
    }
}

/// llama.cpp's choice, too.
#[test]
fn requests_with_tools_have_their_own_template() {
    let model = tiny::with_tool_template("tools {{ tools[0].function.name }}");
    let system = load(&json!({"model": model}), json!({}));
    let tools = json!([{"type": "function", "function": {"name": "dig", "parameters": {}}}]);
    let prompt = |more: Value| {
        let request = with(&json!({"messages": [{"role": "user", "content": "hi"}]}), more).to_string();
        let answer = system.with_server(|server| server.apply_template(request.as_bytes())).expect("a prompt");
        answer["prompt"].as_str().expect("a text").to_owned()
    };
    assert!(prompt(json!({})).contains("hi"), "the usual one");
    assert_eq!(prompt(json!({"tools": tools})), "tools dig");
    let own = json!({"tools": tools, "chat_template": "{{ 'own' }}"});
    assert_eq!(prompt(own), "own");
}

/// A model that has no memory at all writes nothing, and makes embeddings.
#[test]
fn a_model_without_memory_is_for_embeddings() {
    let model = tiny::encoder();
    let init = json!({"model": model, "n_threads": 1, "n_ctx": 256, "log_level": "error"});
    let refused = System::new().init(init.to_string().as_bytes()).expect_err("it generates no text");
    assert!(refused.message().contains("\"embedding\": true loads it"), "{refused}");

    let system = start(json!({"model": model, "model_draft": null, "n_ctx": 256, "embedding": true}));
    let embed = |content: Value| {
        let request = json!({ "content": content }).to_string();
        let answer = system.with_server(|server| server.get_embedding(request.as_bytes())).expect("an embedding");
        answer["embedding"].as_array().expect("numbers").iter().filter_map(Value::as_f64).collect::<Vec<_>>()
    };
    let (one, again, other) = (embed(json!(tokens(1, 40))), embed(json!(tokens(1, 40))), embed(json!(tokens(2, 40))));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    assert_eq!((one.len(), &one), (32, &again));
    assert!((product(&one, &one) - 1.0).abs() < 1e-4 && product(&one, &other) < 0.999, "{}", product(&one, &other));
    // The first token sees the last one.
    let turned: Vec<usize> = tokens(1, 40).into_iter().rev().collect();
    assert!(product(&one, &embed(json!(turned))) < 0.9999);

    let request = json!({"prompt": "a"}).to_string();
    for family in [Completion, Speculative] {
        let refused = system.with_server(|server| server.complete(family, request.as_bytes())).expect_err("no text");
        assert_eq!(refused.message(), "the model generates no text");
    }
    assert_eq!(system.status()["slots"], json!([]));
}
