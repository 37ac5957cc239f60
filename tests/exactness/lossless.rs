//! Speculation does not change the output: greedy, sampled, with every sampler, with concurrent requests.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{complete, drain, output_fields, prompts, start, submit, text, with};
use serde_json::{Value, json};

/// Speculative settings that together cover every option.
fn speculative_settings() -> Vec<Value> {
    vec![
        json!({"adaptive": false, "n_max": 1}),
        json!({"adaptive": false, "n_max": 5, "verify": "match"}),
        json!({"adaptive": "heuristic", "n_max": 16}),
        json!({"adaptive": true, "n_max": 8, "p_min": 0.3, "n_min": 2}),
        json!({"type": "draft", "adaptive": false, "n_max": 12, "n_branches": 4, "p_split": 0.05}),
        json!({"n_branches": 8, "p_split": 0.0, "verify": "match"}),
    ]
}

/// Settings of rejection and block verification, which preserve the distribution, and therefore greedy output.
fn sampling_rules() -> Vec<Value> {
    vec![
        json!({"adaptive": false, "n_max": 4, "verify": "rejection"}),
        json!({"adaptive": true, "verify": "rejection", "type": "auto", "n_min": 2}),
        json!({"adaptive": false, "n_max": 6, "verify": "block", "type": "draft", "p_min": 0.2}),
        json!({"adaptive": "heuristic", "verify": "block", "type": ["suffix", "draft"]}),
        json!({"adaptive": false, "n_max": 10, "n_branches": 4, "p_split": 0.05, "verify": "rejection", "type": "draft"}),
    ]
}

#[test]
fn greedy_output_is_unchanged_on_fifty_prompts() {
    let engine = start(json!({"n_ctx": 512}));
    let prompts = prompts();
    assert_eq!(prompts.len(), 50);
    let mut accepted = 0;
    for (index, prompt) in prompts.iter().enumerate() {
        let request =
            json!({"prompt": prompt, "n_predict": 64, "temperature": 0, "return_tokens": true, "cache_prompt": false});
        let plain = complete(&engine, Plain, &request);
        let speculative = &[speculative_settings(), sampling_rules()].concat()[index % 11];
        let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
        assert_eq!(output_fields(&fast), output_fields(&plain), "{prompt:?} {speculative}");
        accepted += fast["speculative"]["n_accepted"].as_u64().expect("a count");
        assert_eq!(plain["speculative"]["disabled"], "speculative is false", "{plain}");
    }
    assert!(accepted > 500, "the test needs accepted drafts: {accepted}");
}

/// Without flash attention, a single token is decoded by another kernel than several tokens, unless it is padded. The default
/// depends on the machine.
#[test]
fn speculation_is_exact_with_and_without_flash_attention() {
    for more in [
        json!({"flash_attn": "on"}),
        json!({"flash_attn": "off"}),
        json!({"flash_attn": "off", "n_parallel": 2}),
        json!({"flash_attn": "off", "n_parallel": 2, "kv_unified": true, "n_ctx": 1024}),
    ] {
        let engine = start(with(&json!({"n_ctx": 512}), more));
        let mut accepted = 0;
        for (seed, prompt) in prompts().iter().enumerate().skip(1).step_by(4) {
            let request = json!({
                "prompt": prompt, "n_predict": 120, "temperature": seed / 4 % 2, "seed": seed, "ignore_eos": true, "return_tokens": true,
                "cache_prompt": false,
            });
            let plain = complete(&engine, Plain, &request);
            let speculative = json!({"type": "draft", "adaptive": false, "n_max": 1 + seed % 7});
            let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
            assert_eq!(output_fields(&fast), output_fields(&plain), "{request} {speculative}");
            accepted += fast["speculative"]["n_accepted"].as_u64().expect("a count");
        }
        assert!(accepted > 100, "{accepted}");
    }
}

/// With many keys, several threads split those of a single query, so a token must not be alone in its batch.
#[test]
fn long_outputs_are_exact_with_several_threads() {
    let threads = json!({"n_ctx": 1024, "n_threads": 2, "n_threads_batch": 2});
    for more in [json!({}), json!({"n_parallel": 2}), json!({"flash_attn": "off"}), json!({"cache_type_v": "f32"})] {
        let engine = start(with(&threads, more.clone()));
        for (seed, temperature) in [(1, 0.0), (2, 1.0), (3, 1.5)] {
            let request = json!({
                "prompt": "Once upon a time there was a child named", "n_predict": 500, "temperature": temperature, "seed": seed,
                "top_k": 0, "top_p": 1, "repeat_penalty": 1, "ignore_eos": true, "return_tokens": true, "cache_prompt": false,
            });
            let plain = complete(&engine, Plain, &request);
            for speculative in
                [json!({"type": "auto"}), speculative_settings()[1].clone(), speculative_settings()[4].clone()]
            {
                let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
                assert_eq!(output_fields(&fast), output_fields(&plain), "{more} {seed} {speculative}");
            }
        }
    }
}

/// From 64 tokens of a sequence on, ggml's flash attention sums in another order.
#[test]
fn longest_drafts_do_not_change_output() {
    for more in [json!({}), json!({"n_parallel": 2}), json!({"flash_attn": "on", "n_threads": 1})] {
        let engine = start(with(&json!({"n_ctx": 1024, "n_threads": 2}), more.clone()));
        let mut accepted = 0;
        for seed in 0..4 {
            let request = json!({
                "prompt": "Once upon a time there was a child named", "n_predict": 300, "temperature": 1.5, "seed": seed,
                "top_k": 0, "top_p": 1, "repeat_penalty": 1, "ignore_eos": true, "return_tokens": true, "cache_prompt": false,
            });
            let plain = complete(&engine, Plain, &request);
            // The suffix drafter has learned the plain output.
            let speculative = json!({"speculative": {"type": "suffix", "adaptive": false, "n_max": 64}});
            let fast = complete(&engine, Foredraft, &with(&request, speculative));
            assert_eq!(output_fields(&fast), output_fields(&plain), "{more} {seed}");
            accepted += fast["speculative"]["n_accepted"].as_u64().expect("a count");
        }
        assert!(accepted > 600, "{more}: the test needs long drafts: {accepted}");
    }
}

#[test]
fn sampled_output_is_unchanged_for_a_seed() {
    let engine = start(json!({"n_ctx": 512}));
    for (index, prompt) in prompts().iter().enumerate().step_by(4) {
        for temperature in [0.5, 1.0, 1.5] {
            let request = json!({
                "prompt": prompt, "n_predict": 48, "temperature": temperature, "seed": 1000 + index,
                "return_tokens": true, "cache_prompt": false,
            });
            let plain = complete(&engine, Plain, &request);
            for (verify, n_branches) in [("coupled", 1), ("match", 1), ("coupled", 3), ("match", 4)] {
                let speculative = json!({"verify": verify, "adaptive": false, "n_max": 6, "n_branches": n_branches});
                let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
                assert_eq!(output_fields(&fast), output_fields(&plain), "{prompt:?} {temperature} {speculative}");
                assert!(fast["speculative"]["n_drafted"].as_u64() > Some(0), "{fast}");
            }
        }
    }
}

#[test]
fn coupled_accepts_at_least_as_many_as_match_when_sampling() {
    let engine = start(json!({"n_ctx": 512}));
    let mut accepted = [0, 0];
    for (seed, prompt) in prompts().iter().enumerate() {
        for (verify, accepted) in ["coupled", "match"].into_iter().zip(&mut accepted) {
            let speculative = json!({"type": "draft", "verify": verify, "adaptive": false, "n_max": 3});
            let request = json!({
                "prompt": prompt, "n_predict": 32, "temperature": 1.0, "top_k": 0, "top_p": 1, "seed": seed,
                "speculative": speculative,
            });
            let answer = complete(&engine, Foredraft, &request);
            *accepted += answer["speculative"]["n_accepted"].as_u64().expect("a count");
        }
    }
    assert!(accepted[0] >= accepted[1], "coupled {} match {}", accepted[0], accepted[1]);
}

/// Sampler settings of every kind.
fn samplings() -> Vec<Value> {
    vec![
        json!({"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repeat_last_n": -1}),
        json!({"mirostat": 1, "mirostat_tau": 3}),
        json!({"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.3}),
        json!({"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.4, "adaptive_decay": 0.7}),
        json!({"tfs_z": 0.9, "typical_p": 0.8, "top_k": 0}),
        json!({"min_p": 0.1, "top_p": 0.7, "penalize_nl": false}),
        json!({"xtc_probability": 0.5, "xtc_threshold": 0.1, "dynatemp_range": 0.5}),
        json!({"dry_multiplier": 0.8, "dry_allowed_length": 1}),
        json!({"grammar": "root ::= [A-Za-z ,.]{20,200}"}),
        json!({"logit_bias": [[" the", false], [" a", 3.0]], "n_probs": 3}),
        json!({"ignore_eos": true, "stop": ["\n\n", "Nora"]}),
    ]
}

#[test]
fn speculation_is_lossless_with_every_sampler() {
    let engine = start(json!({"n_ctx": 512}));
    let settings = samplings();
    let (mut drafted, mut accepted) = (0, 0);
    for (seed, setting) in settings.iter().enumerate() {
        let base = json!({
            "prompt": "Once upon a time there was a child named", "n_predict": 64, "temperature": 0.9, "seed": seed,
            "return_tokens": true, "cache_prompt": false,
        });
        let request = with(&base, setting.clone());
        let plain = complete(&engine, Plain, &request);
        for (verify, n_branches) in [("coupled", 1), ("match", 1), ("coupled", 4)] {
            let speculative = json!({"verify": verify, "adaptive": false, "n_max": 6, "n_branches": n_branches});
            let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
            assert_eq!(output_fields(&fast), output_fields(&plain), "{setting} {verify}");
            drafted += fast["speculative"]["n_drafted"].as_u64().expect("a count");
            accepted += fast["speculative"]["n_accepted"].as_u64().expect("a count");
        }
    }
    assert!(accepted > 300 && drafted > accepted, "{accepted} of {drafted}");
}

/// Another branch may be right where the first is wrong: of two drafts of equal depth, the one with branches gains more.
#[test]
fn tokens_on_draft_branches_are_accepted() {
    let engine = start(json!({"n_ctx": 512}));
    let per_step = |speculative: Value| {
        let (mut tokens, mut steps) = (0.0, 0.0);
        for (seed, prompt) in prompts().iter().enumerate().step_by(3) {
            let request = json!({
                "prompt": prompt, "n_predict": 48, "temperature": 1, "top_k": 0, "seed": seed, "speculative": speculative,
            });
            let answer = complete(&engine, Foredraft, &request);
            assert_eq!(answer["speculative"].get("disabled"), None, "{answer}");
            tokens += answer["tokens_predicted"].as_f64().expect("a count");
            steps += answer["speculative"]["n_steps"].as_f64().expect("a count");
        }
        tokens / steps
    };
    let chain = per_step(json!({"type": "draft", "adaptive": false, "n_max": 2}));
    let tree = per_step(json!({"type": "draft", "adaptive": false, "n_max": 10, "n_branches": 5, "p_split": 0.02}));
    let long = per_step(json!({"type": "draft", "adaptive": false, "n_max": 10}));
    assert!(tree > chain + 0.2, "a tree of depth 2 or more: {tree}, a chain of 2: {chain}, of 10: {long}");
}

/// Without a unified KV cache, branches cannot share the cells of their common prefix.
#[test]
fn response_reports_why_branches_are_unavailable() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let ask = |speculative: Value| {
        let request =
            json!({"prompt": "Once upon a time", "n_predict": 24, "temperature": 0, "speculative": speculative});
        complete(&engine, Foredraft, &request)
    };
    let answer = ask(json!({"type": "draft", "adaptive": false, "n_branches": 3}));
    let why = answer["speculative"]["disabled"].as_str().unwrap_or_default();
    assert!(why.starts_with("n_branches"), "{answer}");
    assert!(answer["speculative"]["n_accepted"].as_u64() > Some(0), "a single branch is still drafted: {answer}");
    assert_eq!(ask(json!({"type": "draft", "adaptive": false}))["speculative"].get("disabled"), None);
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2, "kv_unified": true}));
    let request = json!({
        "prompt": "Once upon a time", "n_predict": 60, "temperature": 1, "speculative": {"type": "draft", "adaptive": false, "n_branches": 3},
    });
    let ids = [(); 4].map(|()| submit(&engine, Foredraft, &request));
    for id in ids {
        let answer = drain(&engine, Foredraft, id).pop().expect("a final response");
        assert_eq!((&answer["success"], answer["speculative"].get("disabled")), (&json!(true), None), "{answer}");
    }
}

/// They also work with stateful samplers, grammars, context shifts and concurrent requests. `distribution.rs` and the tests of
/// `foredraft_speculation`'s `verify` test the output distribution itself.
#[test]
fn rejection_and_block_work_with_every_sampler() {
    let engine = start(json!({"n_ctx": 128, "n_parallel": 2}));
    let mut accepted = 0;
    for (seed, setting) in samplings().iter().enumerate() {
        let base = json!({
            "prompt": "Once upon a time there was a child named", "n_predict": 200, "temperature": 0.9, "seed": seed,
            "return_tokens": true, "cache_prompt": false, "n_probs": 2, "post_sampling_probs": seed % 2 == 0,
        });
        for speculative in sampling_rules() {
            let request = with(&with(&base, setting.clone()), json!({"speculative": speculative}));
            let ids = [(); 2].map(|()| submit(&engine, Foredraft, &request));
            let updates = ids.map(|id| drain(&engine, Foredraft, id));
            let probs = updates.each_ref().map(|updates| -> Vec<Value> {
                let of = |update: &Value| update["completion_probabilities"].as_array().cloned().unwrap_or_default();
                // The last update repeats the probabilities of the whole completion.
                updates.iter().filter(|update| update["stop"] == false).flat_map(of).collect()
            });
            let answers = updates.map(|mut updates| updates.pop().expect("a final response"));
            for (answer, probs) in answers.iter().zip(&probs) {
                assert_eq!(answer["success"], true, "{request}: {answer}");
                let given =
                    |probs: &Value| probs["prob"].as_f64() > Some(0.0) || probs["logprob"].as_f64() > Some(-60.0);
                // The tokens of a stop string are not reported.
                let n = answer["tokens_predicted"].as_u64().expect("a count") as usize;
                assert!(
                    probs.len() == n || answer["stop_type"] == "word" && (n - 3..n).contains(&probs.len()),
                    "{answer}"
                );
                assert!(probs.iter().all(given), "{request} {probs:?}");
                accepted += answer["speculative"]["n_accepted"].as_u64().expect("a count");
            }
            // History drafters learn from all requests, so their drafts differ between these two runs.
            if speculative["adaptive"] == false && speculative["type"] == "draft" {
                assert_eq!(
                    output_fields(&answers[0]),
                    output_fields(&answers[1]),
                    "the same seed must give the same output: {request}"
                );
            }
        }
    }
    assert!(accepted > 2000, "{accepted}");
}

#[test]
fn accepted_tokens_report_the_same_probabilities_as_sampled_ones() {
    let engine = start(json!({"n_ctx": 512}));
    let request = json!({"prompt": "Once upon a time there was a child named Tom.", "n_predict": 40, "temperature": 0, "n_probs": 4, "cache_prompt": false});
    let plain = complete(&engine, Plain, &request);
    let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": {"adaptive": false, "n_max": 5}})));
    assert!(fast["speculative"]["n_accepted"].as_u64() > Some(10), "{fast}");
    let probs = |answer: &Value| answer["completion_probabilities"].as_array().expect("probabilities").clone();
    let (plain, fast) = (probs(&plain), probs(&fast));
    assert_eq!(plain.len(), fast.len());
    for (a, b) in plain.iter().zip(&fast) {
        assert_eq!(a, b);
        assert!(a["logprob"].as_f64() <= Some(0.0), "{a}");
        let sum: f64 =
            a["probs"].as_array().expect("probs").iter().map(|p| p["prob"].as_f64().expect("a number")).sum();
        assert!(sum > 0.0 && sum <= 1.0 + 1e-5, "{a}");
        assert_eq!(a["top_logprobs"].as_array().map(Vec::len), Some(4));
    }
}

#[test]
fn eight_concurrent_requests_match_each_alone() {
    let engine = start(json!({"n_ctx": 2048, "n_parallel": 4}));
    let requests: Vec<Value> = prompts()
        .iter()
        .step_by(6)
        .take(8)
        .enumerate()
        .map(|(index, prompt)| {
            let speculative = if index % 2 == 0 { json!(false) } else { speculative_settings()[index % 4].clone() };
            json!({
                "prompt": prompt, "n_predict": 60, "temperature": if index % 3 == 0 { 0.0 } else { 0.8 }, "seed": index,
                "cache_prompt": false, "return_tokens": true, "speculative": speculative,
            })
        })
        .collect();
    assert_eq!(requests.len(), 8);
    let alone: Vec<String> = requests
        .iter()
        .map(|request| complete(&engine, Plain, request)["content"].as_str().expect("content").to_owned())
        .collect();
    for _ in 0..3 {
        let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, Plain, request)).collect();
        for (id, alone) in ids.into_iter().zip(&alone) {
            assert_eq!(&text(&drain(&engine, Plain, id)), alone);
        }
    }
}

/// ggml's flash attention processes these prompts in tiles, but not if they are split to fit into a batch beside others.
#[test]
fn concurrent_long_prompts_match_each_alone() {
    for more in [json!({}), json!({"flash_attn": "on", "n_threads": 1})] {
        let engine = start(with(&json!({"n_ctx": 1024, "n_parallel": 3, "n_threads": 2}), more.clone()));
        let mut requests: Vec<Value> = (0..8)
            .map(|seed| {
                // Between 70 and 600 tokens.
                let prompt =
                    prompts().iter().cycle().skip(5 * seed).take(5 + 4 * seed).cloned().collect::<Vec<_>>().join(" ");
                json!({
                    "prompt": prompt, "n_predict": 120, "temperature": 1.5, "seed": seed, "top_k": 0, "top_p": 1,
                    "ignore_eos": true, "cache_prompt": false,
                })
            })
            .collect();
        let alone: Vec<Value> = requests.iter().map(|request| complete(&engine, Plain, request)).collect();
        let lengths: Vec<u64> = alone.iter().map(|answer| answer["tokens_evaluated"].as_u64().unwrap()).collect();
        assert!(lengths.iter().all(|n| (64..900).contains(n)) && lengths.iter().any(|n| *n > 300), "{lengths:?}");
        for (index, request) in requests.iter_mut().enumerate() {
            request["speculative"] = speculative_settings()[index % 4].clone();
        }
        let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, Foredraft, request)).collect();
        for (id, alone) in ids.into_iter().zip(&alone) {
            assert_eq!(text(&drain(&engine, Foredraft, id)), alone["content"].as_str().unwrap(), "{more}");
        }
    }
}

/// The unified KV cache has space for one of the requests; the engine pauses the others and resumes them.
#[test]
fn requests_sharing_too_few_cells_all_finish() {
    let engine = start(json!({"n_ctx": 256, "n_parallel": 4, "kv_unified": true}));
    let requests: Vec<Value> = (0..6)
        .map(|seed| {
            json!({
                "prompt": "Once upon a time", "n_predict": 200, "ignore_eos": true, "seed": seed, "temperature": 0.5,
                "speculative": if seed % 2 == 0 { json!(false) } else { json!({"adaptive": false, "n_max": 4}) },
            })
        })
        .collect();
    let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, Plain, request)).collect();
    for id in ids {
        let updates = drain(&engine, Plain, id);
        let last = updates.last().expect("a final response");
        assert_eq!((&last["success"], &last["tokens_predicted"]), (&json!(true), &json!(200)), "{last}");
        assert_eq!(last["truncated"], false, "{last}");
        assert!(
            matches!(last["speculative"]["disabled"].as_str(), None | Some("speculative is false")),
            "waiting requests take no space from the drafts of others: {last}"
        );
    }
}

#[test]
fn context_shifts_do_not_change_speculative_output() {
    let engine = start(json!({"n_ctx": 128}));
    for (prompt, n_keep) in [("Once upon a time", 0), ("Tom was 7 years old and lived near the hill.", 5)] {
        let request = json!({
            "prompt": prompt, "n_predict": 400, "temperature": 0.7, "seed": 11, "ignore_eos": true, "n_keep": n_keep,
            "return_tokens": true, "cache_prompt": false,
        });
        let plain = complete(&engine, Plain, &request);
        assert_eq!(plain["tokens_predicted"], 400);
        assert_eq!(plain["truncated"], true);
        for speculative in speculative_settings() {
            let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
            assert_eq!(output_fields(&fast), output_fields(&plain), "{speculative}");
            // With adaptive lengths, whether drafting pays depends on the machine.
            let accepted = fast["speculative"]["n_accepted"].as_u64();
            assert!(speculative["adaptive"] != false || accepted > Some(0), "{fast}");
        }
    }
}

/// Text that may become part of a stop string is withheld, also inside an accepted draft; so are its probabilities.
#[test]
fn polled_probabilities_match_the_polled_text() {
    let engine = start(json!({"n_ctx": 512}));
    let mut held = 0;
    for prompt in prompts() {
        let request = json!({"prompt": prompt, "n_predict": 40, "temperature": 0, "n_probs": 1});
        let whole = complete(&engine, Foredraft, &request);
        let content = whole["content"].as_str().expect("text");
        // A stop string that begins and ends inside tokens.
        for from in (5..content.len().saturating_sub(12)).step_by(29) {
            let Some(stop) = content.get(from..from + 9) else { continue };
            let request = with(&request, json!({"stop": [stop]}));
            let expected = complete(&engine, Foredraft, &request);
            let updates = drain(&engine, Foredraft, submit(&engine, Foredraft, &request));
            let (last, partial) = updates.split_last().expect("a final response");
            let ids = |updates: &[Value]| -> Vec<Value> {
                let probs = updates.iter().filter_map(|update| update["completion_probabilities"].as_array());
                probs.flatten().map(|entry| entry["id"].clone()).collect()
            };
            let expected = ids(std::slice::from_ref(&expected));
            assert_eq!(ids(partial), expected, "{prompt:?} {stop:?}");
            // The last update has the probabilities of the whole completion.
            assert_eq!(ids(std::slice::from_ref(last)), expected, "{prompt:?} {stop:?}");
            held += usize::from(updates.len() > 1);
        }
    }
    assert!(held > 10, "{held}");
}
