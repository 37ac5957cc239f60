//! Drafting with a model's own multi-token prediction (MTP) layers, on tiny models that have them: output does not change, drafts
//! use the right hidden states, and inconsistent model files are refused or disable MTP with a reason.

mod against_llama;
mod context;

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::tiny_models::MtpInput;
use crate::common::{Requests as _, complete, drain, n, poll, start, submit, text, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

/// Models with MTP layers.
fn models() -> [String; 5] {
    [
        tiny_models::mtp(MtpInput::Token, 0.4),
        tiny_models::mtp(MtpInput::Hidden, 0.4),
        tiny_models::mtp(MtpInput::Random, 0.4),
        tiny_models::mtp_layers(),
        tiny_models::delta_net_mtp(),
    ]
}

fn load(model: &str, more: Value) -> JsonEngine {
    let base = json!({
        "model": model, "model_draft": null, "n_ctx": 1024,
        "speculative": {"type": "mtp", "adaptive": false, "n_max": 3},
    });
    start(with(&base, more))
}

/// Loads a model without its MTP layers.
fn load_plain(model: &str, more: Value) -> JsonEngine {
    load(model, with(&json!({"speculative": false}), more))
}

fn request(prompt: &[usize], temperature: f64) -> Value {
    json!({
        "prompt": prompt, "n_predict": 50, "temperature": temperature, "top_k": 0, "top_p": 1, "seed": 8,
        "ignore_eos": true, "return_tokens": true,
    })
}

#[test]
fn output_is_unchanged_by_mtp() {
    for model in models() {
        let (plain, engine) = (load_plain(&model, json!({})), load(&model, json!({})));
        // The second prompt spans several batches.
        for (temperature, length) in [(0.0, 20), (0.8, 300), (1.2, 60)] {
            let request = request(&tokens(1, length), temperature);
            let expected = complete(&plain, Plain, &request);
            let own = complete(&engine, Plain, &request);
            assert_eq!(own["tokens"], expected["tokens"], "{model}: a request that does not speculate");
            for more in [
                json!({"n_max": 1}),
                json!({"n_max": 3}),
                json!({"n_max": 64, "verify": "match"}),
                json!({"n_max": 8, "p_min": 0.3}),
                json!({"adaptive": "heuristic"}),
                json!({"adaptive": true}),
                json!({"type": ["suffix", "mtp"], "adaptive": true, "n_max": 16}),
            ] {
                let more = json!({"cache_prompt": false, "speculative": more});
                let answer = complete(&engine, Foredraft, &with(&request, more.clone()));
                let report = &answer["speculative"];
                assert_eq!(answer["tokens"], expected["tokens"], "{model} {temperature} {more}: {report}");
                let why = report["disabled"].as_str().unwrap_or_default();
                let did_not_pay = report["n_drafted"] == 0 && more["speculative"]["adaptive"] == true;
                assert_eq!(why.starts_with("it did not pay"), did_not_pay, "{model}: {report}");
                assert!(did_not_pay || why.is_empty(), "{model}: {report}");
                // With other settings drafting may not pay, or tokens may be below `p_min`.
                if more["speculative"].as_object().is_some_and(|speculative| speculative.keys().eq(["n_max"])) {
                    assert!(n(&report["n_drafted"]) > 15, "{model}: {report}");
                    assert_eq!(report["by_type"]["mtp"]["n_drafted"], report["n_drafted"], "{model}");
                    assert_eq!(report["by_type"]["mtp"]["n_accepted"], report["n_accepted"], "{model}");
                }
            }
        }
    }
}

#[test]
fn correct_predictions_are_accepted() {
    // Two MTP layers draft two tokens.
    for (model, least, last) in [
        (tiny_models::mtp(MtpInput::Token, 0.4), 30, 2),
        (tiny_models::mtp_layers(), 15, 1),
        (tiny_models::delta_net_mtp(), 20, 2),
    ] {
        let answer = complete(&load(&model, json!({})), Foredraft, &request(&tokens(2, 50), 0.0));
        let report = &answer["speculative"];
        assert!(n(&report["n_accepted"]) >= least, "{model}: {report}");
        // The last position of a draft is accepted, too.
        assert!(n(&report["accepted_per_position"][last]) > 3, "{model}: {report}");
        assert_eq!(report["accepted_per_position"].as_array().expect("an array").len(), last + 1, "{model}: {report}");
    }
}

/// Layers that predict from the hidden state only are right if and only if it belongs to the token before the last.
#[test]
fn each_token_is_paired_with_its_hidden_state() {
    let model = tiny_models::mtp(MtpInput::Hidden, 0.02);
    for more in [
        json!({}),
        json!({"n_parallel": 3}),
        json!({"n_parallel": 3, "kv_unified": true}),
        json!({"n_batch": 64, "n_ubatch": 16}),
        json!({"n_batch": 512, "n_ubatch": 512}),
        json!({"n_ctx": 128}),
    ] {
        let engine = load(&model, more.clone());
        let check = |answer: &Value, what: &str| {
            let report = &answer["speculative"];
            assert!(n(&report["n_drafted"]) >= 20, "{more} {what}: {report}");
            assert_eq!(report["n_accepted"], report["n_drafted"], "{more} {what}");
        };
        let greedy = |prompt: &[usize]| with(&request(prompt, 0.0), json!({"speculative": {"n_max": 1}}));
        let prompt = tokens(3, 100);
        let answer = complete(&engine, Foredraft, &greedy(&prompt));
        check(&answer, "first");
        check(&complete(&engine, Foredraft, &greedy(&prompt)), "the same again");
        let generated: Vec<usize> = answer["tokens"].as_array().expect("tokens").iter().map(n).collect();
        check(
            &complete(&engine, Foredraft, &greedy(&[&prompt, &generated[..], &tokens(4, 5)].concat())),
            "a continued prompt",
        );
        check(&complete(&engine, Foredraft, &greedy(&[&prompt[..70], &tokens(5, 30)].concat())), "another end");
        check(&complete(&engine, Foredraft, &greedy(&tokens(6, 40))), "another prompt");
        // Cells that other requests decoded without hidden states cannot be reused by this one.
        complete(&engine, Plain, &greedy(&tokens(7, 90)));
        check(&complete(&engine, Foredraft, &greedy(&[tokens(7, 90), tokens(8, 3)].concat())), "behind a gap");
        check(&complete(&engine, Foredraft, &with(&greedy(&prompt), json!({"n_predict": 300}))), "full contexts");
        if more["n_parallel"] == 3 {
            let requests: Vec<u64> =
                (0..3).map(|index| submit(&engine, Foredraft, &greedy(&tokens(9 + index, 30 * (index + 1))))).collect();
            for id in requests {
                check(drain(&engine, Foredraft, id).last().expect("updates"), "together");
            }
        }
    }
}

#[test]
fn concurrent_requests_do_not_change_output() {
    for model in models() {
        for more in [json!({}), json!({"kv_unified": true, "n_ctx": 2048})] {
            let plain = load_plain(&model, json!({}));
            let engine = load(&model, with(&json!({"n_parallel": 3}), more.clone()));
            for temperature in [0.0, 0.9] {
                let requests: Vec<Value> = (0..5).map(|i| request(&tokens(i, 20 + 60 * i), temperature)).collect();
                let ids: Vec<u64> = requests
                    .iter()
                    .zip([Foredraft, Foredraft, Plain, Foredraft, Foredraft])
                    .map(|(request, endpoint)| submit(&engine, endpoint, request))
                    .collect();
                for ((index, id), request) in ids.into_iter().enumerate().zip(&requests) {
                    let endpoint = if index == 2 { Plain } else { Foredraft };
                    let updates = drain(&engine, endpoint, id);
                    let generated = text(&updates);
                    let expected = complete(&plain, Plain, request);
                    let predicted = |answer: &Value| answer["tokens_predicted"].clone();
                    assert_eq!(
                        updates.last().map(predicted),
                        Some(predicted(&expected)),
                        "{model} {index} {temperature}"
                    );
                    // Cells of a unified cache are summed in the order in which they were allocated.
                    if more.get("kv_unified").is_none() {
                        assert_eq!(
                            generated,
                            expected["content"].as_str().expect("content"),
                            "{model} {index} {temperature}"
                        );
                    }
                }
            }
        }
    }
}

/// Paused requests take no space from the drafts of others, and draft again when they resume.
#[test]
fn requests_sharing_too_few_cells_keep_drafting() {
    for model in [tiny_models::mtp(MtpInput::Token, 0.4), tiny_models::mtp_layers()] {
        let engine = load(&model, json!({"n_parallel": 3, "kv_unified": true, "n_ctx": 192}));
        let long = |seed| with(&request(&tokens(seed, 40), 0.0), json!({"n_predict": 110}));
        let requests: Vec<u64> = (0..6).map(|seed| submit(&engine, Foredraft, &long(seed))).collect();
        for id in requests {
            let updates = drain(&engine, Foredraft, id);
            let last = updates.last().expect("a final response");
            assert_eq!((&last["success"], n(&last["tokens_predicted"])), (&json!(true), 110), "{model}: {last}");
            let report = &last["speculative"];
            assert!(report["disabled"].is_null() && n(&report["n_drafted"]) > 60, "{model}: {report}");
        }
    }
}

#[test]
fn cancels_and_prefix_reuse_do_not_change_output() {
    for model in models() {
        let (plain, engine) = (load_plain(&model, json!({})), load(&model, json!({"n_parallel": 2})));
        let base = tokens(1, 200);
        let long = with(&request(&base, 0.7), json!({"n_predict": 100, "id_slot": 0}));
        let expected = complete(&plain, Plain, &long);
        for round in 0..3 {
            let id = submit(&engine, Foredraft, &long);
            let mut updates = Vec::new();
            loop {
                let answer = poll(&engine, Foredraft, id, 5);
                updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
                if answer["finished"] == true {
                    break;
                }
                let prompt = tokens(8 + round, 300);
                let other = submit(&engine, Foredraft, &with(&request(&prompt, 0.7), json!({"id_slot": 1})));
                let command = json!({"id": other}).to_string();
                engine.cancel_as(Foredraft, Some(command.as_bytes())).expect("cancelled");
            }
            assert_eq!(text(&updates), expected["content"].as_str().expect("content"), "{model} {round}");
        }
        for (kept, more) in [(200, 20), (150, 40), (3, 90), (199, 0), (1, 1)] {
            let prompt = [&base[..kept], &tokens(2, more)].concat();
            let request = request(&prompt, 0.7);
            let expected = complete(&plain, Plain, &with(&request, json!({"cache_prompt": false})));
            let answer = complete(&engine, Foredraft, &with(&request, json!({"id_slot": 0})));
            assert_eq!(answer["tokens"], expected["tokens"], "{model} {kept}: {}", answer["timings"]);
        }
    }
}

/// Sampled drafts: with a greedy target, every verification rule must give the greedy output.
#[test]
fn rejection_and_block_accept_sampled_drafts() {
    for model in [tiny_models::mtp(MtpInput::Token, 0.4), tiny_models::mtp_layers()] {
        let engine = load(&model, json!({}));
        for verify in ["rejection", "block"] {
            let rule = json!({"speculative": {"verify": verify}});
            let greedy = with(&request(&tokens(5, 60), 0.0), rule.clone());
            let expected = complete(&engine, Plain, &with(&greedy, json!({"speculative": false})));
            let answer = complete(&engine, Foredraft, &greedy);
            assert_eq!(answer["tokens"], expected["tokens"], "{model} {verify}");
            assert!(n(&answer["speculative"]["n_accepted"]) > 10, "{model}: {}", answer["speculative"]);
            let answer = complete(&engine, Foredraft, &with(&request(&tokens(5, 60), 0.9), rule));
            let by_type = &answer["speculative"]["by_type"]["mtp"];
            assert!(n(&by_type["n_drafted"]) > 20 && n(&by_type["n_accepted"]) > 3, "{model} {verify}: {by_type}");
        }
    }
}

#[test]
fn drafting_continues_after_context_shifts() {
    // llama.cpp does not move keys that are rotated by several positions, as the delta net's are.
    for model in models().into_iter().filter(|model| !model.contains("delta-net")) {
        let (plain, engine) = (load_plain(&model, json!({"n_ctx": 96})), load(&model, json!({"n_ctx": 96})));
        for n_keep in [0, 10, 80] {
            let long =
                with(&request(&tokens(3, 60), 0.6), json!({"n_predict": 260, "cache_prompt": false, "n_keep": n_keep}));
            let expected = complete(&plain, Plain, &long);
            let answer = complete(&engine, Foredraft, &long);
            assert_eq!(answer["tokens"], expected["tokens"], "{model} {n_keep}");
            assert_eq!((n(&answer["tokens_predicted"]), &answer["truncated"]), (260, &json!(true)), "{model}");
            assert!(n(&answer["speculative"]["n_drafted"]) > 200, "{model} {n_keep}: {}", answer["speculative"]);
        }
        let strict = load(&model, json!({"n_ctx": 96, "ctx_shift": false}));
        let answer = complete(&strict, Foredraft, &with(&request(&tokens(3, 60), 0.6), json!({"n_predict": 260})));
        assert_eq!(answer["truncated"], true, "{model}: {answer}");
    }
}

#[test]
fn self_extend_and_cache_reuse_keep_drafting() {
    let model = tiny_models::mtp(MtpInput::Token, 0.4);
    let group = json!({"grp_attn_n": 2, "grp_attn_w": 64, "n_ctx": 512});
    let (plain, engine) = (load_plain(&model, group.clone()), load(&model, group));
    let long = with(&request(&tokens(3, 200), 0.6), json!({"n_predict": 100, "cache_prompt": false}));
    let expected = complete(&plain, Plain, &long);
    let answer = complete(&engine, Foredraft, &long);
    assert_eq!(answer["tokens"], expected["tokens"]);
    assert!(n(&answer["speculative"]["n_drafted"]) > 50);
    // Moved chunks of the cache change the output; the engine must not crash and must keep drafting.
    let engine = load(&model, json!({}));
    complete(&engine, Foredraft, &request(&tokens(4, 200), 0.0));
    let moved = with(&request(&tokens(4, 200)[40..], 0.0), json!({"n_cache_reuse": 20}));
    let answer = complete(&engine, Foredraft, &moved);
    assert!(n(&answer["timings"]["cache_n"]) > 100, "{}", answer["timings"]);
    assert!(n(&answer["speculative"]["n_drafted"]) > 20, "{}", answer["speculative"]);
}

#[test]
fn drafting_continues_after_a_session_load() {
    let model = tiny_models::mtp(MtpInput::Token, 0.4);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("mtp.session");
    let prompt = tokens(9, 120);
    let whole = complete(&load_plain(&model, json!({})), Plain, &request(&prompt, 0.0));
    let generated: Vec<usize> = whole["tokens"].as_array().expect("tokens").iter().map(n).collect();
    let half = with(&request(&prompt, 0.0), json!({"n_predict": 25, "session_save": path}));
    complete(&load(&model, json!({})), Foredraft, &half);
    let rest = [&prompt, &generated[..25]].concat();
    let rest = with(&request(&rest, 0.0), json!({"n_predict": 25, "session_load": path}));
    let answer = complete(&load(&model, json!({})), Foredraft, &rest);
    let tokens: Vec<usize> = answer["tokens"].as_array().expect("tokens").iter().map(n).collect();
    assert_eq!((n(&answer["timings"]["prompt_n"]), &tokens[..]), (1, &generated[25..]));
    assert!(n(&answer["speculative"]["n_drafted"]) > 10, "{}", answer["speculative"]);
}

#[test]
fn response_reports_missing_mtp_layers() {
    let check = |init: Value, types: Value, expected: &str| {
        let engine = start(with(&json!({"n_ctx": 256}), init.clone()));
        let request = with(&request(&tokens(1, 20), 0.0), json!({"speculative": {"type": types, "n_max": 4}}));
        let answer = complete(&engine, Foredraft, &request);
        let plain = complete(&engine, Plain, &with(&request, json!({"speculative": false})));
        assert_eq!(answer["tokens"], plain["tokens"]);
        let why = answer["speculative"]["disabled"].as_str().unwrap_or_default();
        assert!(why.contains(expected), "{init} {types}: {}", answer["speculative"]);
        assert!(answer["speculative"]["by_type"].get("mtp").is_none(), "{}", answer["speculative"]);
    };
    let asks = json!({"speculative": {"type": "mtp"}});
    let tiny = json!({"model": tiny_models::mtp(MtpInput::Token, 0.4), "model_draft": null});
    check(json!({}), json!("mtp"), "the model has no layers for multi-token prediction");
    check(asks.clone(), json!("draft-mtp"), "the model has no layers for multi-token prediction");
    check(json!({}), json!(["suffix", "mtp", "draft"]), "the model has no layers for multi-token prediction");
    check(tiny.clone(), json!("mtp"), "only if the load's speculative.type names mtp");
    check(
        with(&json!({"model": tiny_models::hybrid(), "model_draft": null}), asks.clone()),
        json!("mtp"),
        "the model has no layers for multi-token prediction",
    );
    // A draft model may be loaded as well.
    let both = start(with(
        &tiny,
        json!({"n_ctx": 256, "model_draft": tiny["model"], "speculative": {"type": ["mtp", "draft"]}}),
    ));
    for types in [json!("mtp"), json!("draft"), json!(["draft", "mtp"]), json!(["mtp", "draft", "suffix"])] {
        let request =
            with(&request(&tokens(1, 20), 0.0), json!({"speculative": {"type": types, "adaptive": false, "n_max": 4}}));
        let answer = complete(&both, Foredraft, &request);
        let plain = complete(&both, Plain, &with(&request, json!({"speculative": false})));
        assert_eq!(answer["tokens"], plain["tokens"], "{types}");
        assert!(n(&answer["speculative"]["n_accepted"]) > 20, "{types}: {}", answer["speculative"]);
        assert!(answer["speculative"].get("disabled").is_none(), "{types}: {}", answer["speculative"]);
    }
}

/// An inconsistent file fails to load, or loads without MTP; the process never aborts.
#[test]
fn inconsistent_model_files_are_refused_or_load_without_mtp() {
    let try_model = |model: &str, more: Value| {
        let engine = JsonEngine::new();
        let mut init = json!({
            "model": model, "n_ctx": 256, "n_threads": 1, "log_level": "none", "speculative": {"type": "mtp", "adaptive": false},
        });
        crate::common::merge(&mut init, &more);
        let loaded = engine.load(init.to_string().as_bytes());
        loaded.map(|_| {
            let answer = complete(&engine, Foredraft, &request(&tokens(1, 50), 0.0));
            answer["speculative"]["disabled"].as_str().map(str::to_owned)
        })
    };
    const ERROR: &str = "error: ";
    let check = |name: &str, expected: &str, result: Result<Option<String>, foredraft::error::Error>| {
        let result = result.unwrap_or_else(|error| Some(format!("{ERROR}{}", error.message()))).unwrap_or_default();
        assert!(result.starts_with(expected) && result.is_empty() == expected.is_empty(), "{name}: {result}");
    };
    let not_possible = "multi-token prediction is not possible with this model: ";
    for (name, numbers, missing, expected) in [
        ("consistent", &[][..], "", ""),
        ("two-layers", &[("nextn_predict_layers", 2)], "", not_possible),
        ("all-layers", &[("nextn_predict_layers", 4)], "", ERROR),
        ("more-layers", &[("nextn_predict_layers", 5)], "", ERROR),
        ("no-layers", &[("nextn_predict_layers", 0)], "", ERROR),
        ("many-layers", &[("nextn_predict_layers", u64::from(u32::MAX))], "", ERROR),
        ("missing-layer", &[], "blk.3.", not_possible),
        ("no-nextn", &[], "nextn", not_possible),
        ("no-eh_proj", &[], "eh_proj", not_possible),
        // Without these tensors llama.cpp does not load the model at all.
        ("no-enorm", &[], "enorm", ERROR),
        ("no-experts", &[], "blk.3.ffn_gate_inp", ERROR),
        ("no-attention", &[], "blk.3.attn_q", not_possible),
        ("short-states", &[("embedding_length_out", 8)], "", not_possible),
        ("no-length", &[("embedding_length_out", 0)], "", ""),
        ("long-states", &[("embedding_length_out", 64)], "", not_possible),
        ("pooled", &[("pooling_type", 1)], "", not_possible),
        ("ranked", &[("pooling_type", 4)], "", not_possible),
    ] {
        check(name, expected, try_model(&tiny_models::mtp_with_metadata(name, numbers, missing), json!({})));
    }
    // A model without MTP layers whose metadata declares its last layers as such.
    for layers in [1, 2, 3, 4, 5, 100] {
        let override_kv = json!({"override_kv": [format!("llama.nextn_predict_layers=int:{layers}")]});
        check(&format!("{layers} layers"), ERROR, try_model(&crate::common::model("target"), override_kv));
    }
}
