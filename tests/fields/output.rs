//! Response fields: updates, final responses, timings, and the request fields that add or remove some.

use serde_json::{Value, json};

use crate::common::{n, start};
use crate::table::{CallMode, Response, Row, float, row, run};

/// Every field of a plain final response, in any order.
const FINAL: [&str; 24] = [
    "success",
    "status",
    "content",
    "stop",
    "id",
    "id_slot",
    "model",
    "tokens_predicted",
    "tokens_evaluated",
    "generation_settings",
    "truncated",
    "stopped_eos",
    "stopped_word",
    "stopped_limit",
    "stopping_word",
    "stop_type",
    "tokens_cached",
    "timings",
    "prompt_stats",
    "finish_reason",
    "usage",
    "tokens",
    "sources",
    "speculative",
];

pub fn rows() -> Vec<Row> {
    vec![
        row(&["success", "status", "id", "model", "stop", "generation_settings"], json!({}), |response| {
            let mut keys: Vec<&str> =
                response.answer.as_object().expect("an object").keys().map(String::as_str).collect();
            let mut expected = FINAL.to_vec();
            keys.sort();
            expected.sort();
            assert_eq!(keys, expected);
            assert_eq!(
                (&response.answer["success"], &response.answer["status"], &response.answer["model"]),
                (&json!(true), &json!(200), &json!("stories"))
            );
            assert!(response.answer["id"].as_u64() < response.ask(json!({})).answer["id"].as_u64());
            assert_eq!((response.setting("model"), response.setting("n_ctx")), (&json!("stories"), &json!(256)));
            for (i, update) in response.updates.iter().enumerate() {
                let last = i + 1 == response.updates.len();
                assert_eq!((&update["stop"], &update["id"]), (&json!(last), &response.answer["id"]));
                assert!(last || update["success"].is_null(), "a partial update has few fields: {update}");
            }
        }),
        row(&["return_tokens", "tokens", "sources"], json!({"return_tokens": true}), |response| {
            let tokens = response.tokens();
            let request = json!({"tokens": tokens}).to_string();
            let text = response.engine.with_loaded(|loaded| loaded.detokenize(request.as_bytes())).expect("text");
            assert_eq!((text["content"].as_str(), tokens.len()), (Some(response.content()), 16));
            let sources: Vec<&str> = response.answer["sources"]
                .as_array()
                .expect("sources")
                .iter()
                .map(|source| source.as_str().expect("a name"))
                .collect();
            let drafted = sources.iter().filter(|source| **source != "target").count() as u64;
            assert_eq!(sources.len(), 16);
            if response.mode == CallMode::Speculative {
                assert_eq!(response.answer["speculative"]["n_accepted"].as_u64(), Some(drafted));
            } else {
                assert_eq!(drafted, 0);
            }
            let without = response.ask(json!({"return_tokens": false}));
            assert!(without.answer["tokens"].is_null() && without.answer["sources"].is_null());
            assert!(without.updates.iter().all(|update| update["tokens"].is_null()));
        }),
        row(&["finish_reason", "usage"], json!({}), |response| {
            let usage = |answer: &Value| {
                let (prompt, completion) = (n(&answer["tokens_evaluated"]), n(&answer["tokens_predicted"]));
                let drafts = ["n_drafted", "n_accepted"].map(|key| answer["speculative"][key].as_u64().unwrap_or(0));
                json!({
                    "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                    "prompt_tokens_details": {"cached_tokens": answer["timings"]["cache_n"]},
                    "completion_tokens_details":
                        {"accepted_prediction_tokens": drafts[1], "rejected_prediction_tokens": drafts[0] - drafts[1]},
                })
            };
            assert_eq!(response.answer["usage"], usage(&response.answer));
            assert_eq!(response.answer["finish_reason"], "length");
            let word = response.content().split_whitespace().next().expect("a word").to_owned();
            let stopped = response.ask(json!({"stop": [word], "cache_prompt": true}));
            assert_eq!(
                (&stopped.answer["finish_reason"], &stopped.answer["usage"]),
                (&json!("stop"), &usage(&stopped.answer))
            );
            // Only the first copy of a prompt counts it.
            let several = response.ask(json!({"prompt": null, "prompts": ["Tom", "Once upon a time"], "n_cmpl": 2}));
            let results = several.answer["results"].as_array().expect("results");
            assert!(
                results.iter().all(|result| result["usage"] == usage(result) && result["finish_reason"] == "length")
            );
            if response.mode != CallMode::Polled {
                let all = &several.answer["usage"];
                let prompts = n(&results[0]["tokens_evaluated"]) + n(&results[2]["tokens_evaluated"]);
                assert_eq!((n(&all["prompt_tokens"]), n(&all["completion_tokens"])), (prompts, 4 * 16));
                assert_eq!(n(&all["total_tokens"]), prompts + 4 * 16);
            }
        }),
        row(&["stream_options"], json!({"stream_options": {"include_usage": true}}), |response| {
            let plain = response.without("stream_options");
            assert_eq!(response.answer["usage"], plain.answer["usage"]);
            assert!(response.answer["warnings"].is_null());
            let (last, earlier) = response.updates.split_last().unwrap_or((&response.answer, &[]));
            assert!(
                last["usage"].is_object() && earlier.iter().all(|update| update.get("usage") == Some(&Value::Null))
            );
            let (_, earlier) = plain.updates.split_last().unwrap_or((&plain.answer, &[]));
            assert!(earlier.iter().all(|update| update.get("usage").is_none()));
            assert!(response.ask(json!({"response_fields": ["content"]})).answer["usage"].is_object());
            // The usage of the whole request is in its last update alone.
            let several = response.ask(json!({"n_cmpl": 3}));
            if let Some((last, earlier)) = several.updates.split_last() {
                assert!(earlier.iter().all(|update| update.get("usage") == Some(&Value::Null)));
                assert_eq!(n(&last["usage"]["completion_tokens"]), 3 * 16);
                assert_eq!(last["usage"]["prompt_tokens"], plain.answer["usage"]["prompt_tokens"]);
            }
            for (wrong, message) in [
                (json!(true), "stream_options: expected {\"include_usage\": ...}, got true"),
                (json!({"include_usage": 1}), "stream_options.include_usage: expected true or false, got 1"),
            ] {
                assert_eq!(response.refused(json!({"stream_options": wrong})), message);
            }
            let unknown = response.ask(json!({"stream_options": {"include_usages": true}}));
            assert!(
                unknown.answer["warnings"][0].as_str().expect("a warning").contains("stream_options.include_usage")
            );
        }),
        row(&["timings", "timings_per_token"], json!({"timings_per_token": true}), |response| {
            let timings = &response.answer["timings"];
            let n = |key: &str| float(&timings[key]);
            assert_eq!(
                (n("prompt_n"), n("predicted_n"), n("cache_n")),
                (float(&response.answer["tokens_evaluated"]), 16.0, 0.0)
            );
            for kind in ["prompt", "predicted"] {
                let (count, ms) = (n(&format!("{kind}_n")), n(&format!("{kind}_ms")));
                assert!(ms > 0.0 && (n(&format!("{kind}_per_token_ms")) - ms / count).abs() < 1e-6, "{timings}");
                assert!((n(&format!("{kind}_per_second")) - 1e3 * count / ms).abs() < 1e-3, "{timings}");
            }
            assert_eq!(timings["draft_n"].is_u64(), response.mode == CallMode::Speculative);
            if response.mode == CallMode::Speculative {
                let stats = &response.answer["speculative"];
                assert_eq!(
                    (&timings["draft_n"], &timings["draft_n_accepted"]),
                    (&stats["n_drafted"], &stats["n_accepted"])
                );
            }
            let has = |response: &Response| {
                response
                    .updates
                    .iter()
                    .take(response.updates.len().saturating_sub(1))
                    .all(|update| update["timings"].is_object())
            };
            assert!(has(response));
            assert!(response.mode != CallMode::Polled || !has(&response.ask(json!({"timings_per_token": false}))));
        }),
        row(
            &["return_progress", "prompt_progress"],
            json!({"return_progress": true, "prompt": "Tom had a hat. ".repeat(30)}),
            |response| {
                let of = |update: &Value| update.get("prompt_progress").cloned();
                let progress: Vec<Value> = response.updates.iter().filter_map(of).collect();
                assert!(response.answer["prompt_progress"].is_null(), "not in the final response");
                if response.mode != CallMode::Polled {
                    return; // only polled requests get progress
                }
                let total = &response.answer["tokens_evaluated"];
                let done: Vec<u64> = progress.iter().map(|step| step["processed"].as_u64().expect("a count")).collect();
                assert!(
                    done.len() > 3 && done.is_sorted(),
                    "progress at the start, every 32 tokens, and at the end: {done:?}"
                );
                assert_eq!((done[0], done.last().map(|done| json!(done)).as_ref()), (0, Some(total)));
                for step in &progress {
                    assert_eq!((&step["total"], &step["cache"]), (total, &json!(0)));
                    assert!(float(&step["time_ms"]) >= 0.0);
                }
                assert!(
                    response.updates[..progress.len()]
                        .iter()
                        .all(|update| update["content"] == "" && update["stop"] == false)
                );
                assert!(
                    response.ask(json!({"return_progress": false})).updates.iter().all(|update| of(update).is_none())
                );
            },
        ),
        row(
            &["response_fields"],
            json!({"response_fields": ["content", "generation_settings/n_predict", "timings/cache_n", "no/such", "tokens"]}),
            |response| {
                let mut answer = response.answer.clone();
                let object = answer.as_object_mut().expect("an object");
                let all = response.without("response_fields");
                assert_eq!(object.remove("content"), Some(json!(all.content())));
                assert_eq!(object.remove("tokens"), Some(json!(all.tokens())));
                // By these a host tells answers and updates apart.
                assert_eq!(object.remove("stop"), Some(json!(true)));
                assert!(object.remove("id").is_some_and(|id| id.is_u64()));
                assert!(response.updates.iter().all(|update| update["id"] == response.answer["id"]));
                let warning = "response_fields: the answer has no field \"no/such\"";
                assert_eq!(
                    answer,
                    json!({"generation_settings/n_predict": 16, "timings/cache_n": 0, "success": true, "warnings": [warning]})
                );
            },
        ),
        row(&["stream"], json!({"stream": true}), |response| {
            // The function decides whether it streams.
            let other = response.ask(json!({"stream": false}));
            assert_eq!((response.content(), response.setting("stream")), (other.content(), other.setting("stream")));
        }),
        row(&["tag"], json!({"tag": {"a": [1, null]}}), |response| {
            assert_eq!(response.answer["tag"], response.request["tag"]);
            assert!(response.updates.iter().all(|update| update["tag"] == response.request["tag"]));
            assert_eq!(response.ask(json!({"tag": false})).answer["tag"], false);
            assert!(response.without("tag").answer.get("tag").is_none());
            let several = response.ask(json!({"n_cmpl": 2}));
            assert!((0..2).all(|index| several.answer["results"][index]["tag"] == response.request["tag"]));
        }),
        row(&["__debug"], json!({"__debug": true}), |response| {
            assert_eq!(response.content(), response.ask(json!({"__debug": false})).content());
            assert!(response.answer["warnings"].is_null());
        }),
        row(&["warnings"], json!({"temprature": 1}), |response| {
            assert_eq!(
                response.answer["warnings"],
                json!(["unknown key \"temprature\" (did you mean \"temperature\"?)"])
            );
        }),
        row(&["speculative"], json!({"temperature": 0, "n_predict": 40}), |response| {
            let stats = &response.answer["speculative"];
            let asked = response
                .ask(json!({"speculative": {"type": "draft", "adaptive": false, "n_max": 4, "verify": "match"}}));
            assert_eq!(asked.tokens(), response.tokens());
            let found = &asked.answer["speculative"];
            assert_eq!(
                (&found["type"], &found["verify"], &found["n_max_final"]),
                (&json!("draft"), &json!("match"), &json!(4))
            );
            let n = |key: &str| float(&found[key]);
            assert!(n("n_accepted") > 10.0 && n("n_accepted") <= n("n_drafted"));
            assert!((n("accept_rate") - n("n_accepted") / n("n_drafted")).abs() < 1e-9);
            assert!(
                (n("tokens_per_step") - 40.0 / n("n_steps")).abs() < 1e-9
                    && n("t_draft_ms") > 0.0
                    && n("t_verify_ms") > 0.0
            );
            let per_position: Vec<f64> =
                found["accepted_per_position"].as_array().expect("a list").iter().map(float).collect();
            assert_eq!((per_position.iter().sum::<f64>(), per_position.len()), (n("n_accepted"), 4));
            assert_eq!(
                found["by_type"]["draft"],
                json!({"n_drafted": found["n_drafted"], "n_accepted": found["n_accepted"]})
            );
            let off = response.ask(json!({"speculative": false}));
            assert_eq!(off.tokens(), response.tokens());
            match response.mode {
                CallMode::Speculative => {
                    assert!(stats["n_drafted"].as_u64() > Some(0), "{stats}");
                    assert_eq!(off.answer["speculative"]["disabled"], "speculative is false");
                }
                _ => assert_eq!(stats["disabled"], "speculative is false"),
            }
            let flat =
                response.without("speculative").ask(json!({"speculative.n_max": 2, "speculative.adaptive": false}));
            assert_eq!((&flat.answer["speculative"]["n_max_final"], flat.tokens()), (&json!(2), response.tokens()));
        }),
        row(&["generation_settings"], json!({"temperature": 1.1, "stop": ["zz"], "tag": 1}), |response| {
            for (key, value) in
                [("temperature", json!(1.1)), ("stop", json!(["zz"])), ("seed", json!(7)), ("n_predict", json!(16))]
            {
                assert_eq!(response.setting(key), &value);
            }
        }),
    ]
}

#[test]
fn response_fields_have_the_documented_values() {
    run(&start(json!({"n_ctx": 256, "n_parallel": 2, "n_batch": 32, "model_alias": "stories"})), &rows());
}

/// Request settings of many kinds, including contradictory ones.
fn settings() -> Vec<Value> {
    let mut all = vec![
        json!({}),
        json!({"temperature": 0}),
        json!({"temperature": 1.3, "top_k": 0, "top_p": 0.9}),
        json!({"temperature": 0.7, "dynatemp_range": 0.4, "dynatemp_exponent": 1.5}),
        json!({"min_p": 0.05, "top_p": 1, "top_k": 0}),
        json!({"tfs_z": 0.9, "typical_p": 0.8}),
        json!({"top_n_sigma": 1.5, "temperature": 2}),
        json!({"xtc_probability": 0.7, "xtc_threshold": 0.05}),
        json!({"dry_multiplier": 0.8, "dry_base": 1.4, "dry_allowed_length": 1, "dry_sequence_breakers": ["\n", "Tom"]}),
        json!({"repeat_penalty": 1.4, "repeat_last_n": 16, "presence_penalty": 0.3, "frequency_penalty": 0.2, "penalize_nl": false}),
        json!({"mirostat": 1, "mirostat_tau": 3}),
        json!({"mirostat": 2, "mirostat_tau": 2, "mirostat_eta": 0.3}),
        json!({"samplers": ["temperature", "top_k", "min_p"], "top_k": 7, "min_keep": 3}),
        json!({"samplers": "kt"}),
        json!({"ignore_eos": true, "n_predict": 60}),
        json!({"logit_bias": {" the": -5, "65": false}}),
        json!({"logit_bias": [[" a", 2], [70, 0.5]]}),
        json!({"stop": ["Tom", "."]}),
        json!({"grammar": "root ::= [A-Z] [a-z ]{5,40} \".\""}),
        json!({"n_probs": 4, "post_sampling_probs": true}),
        json!({"n_keep": 4, "n_predict": 200, "ignore_eos": true}),
        json!({"timeout_ms": 100_000, "t_max_predict_ms": 100_000, "id_slot": 1}),
        json!({"return_progress": true, "timings_per_token": true, "stream": true}),
        json!({"speculative": {"n_max": 2, "verify": "match", "adaptive": false}}),
        json!({"seed": -1}),
        json!({"n_cmpl": 2, "temperature": 1.4}),
    ];
    let half = all.clone();
    all.extend(half.iter().zip(half.iter().skip(5)).map(|(a, b)| crate::common::with(a, b.clone())));
    all
}

#[test]
fn generation_settings_reproduce_the_output() {
    let engine = start(json!({"n_ctx": 128, "n_parallel": 2}));
    let all = settings();
    assert!(all.len() > 40);
    for (index, sent) in all.iter().enumerate() {
        let mode = crate::table::MODES[index % 3];
        let request = crate::common::with(&crate::table::base(mode), sent.clone());
        let first = Response::of(&engine, mode, request.clone());
        let answers: Vec<Value> = match first.answer.get("results") {
            Some(results) => results.as_array().expect("results").clone(),
            None => vec![first.answer.clone()],
        };
        for answer in answers {
            let mut again = answer["generation_settings"].clone();
            again["prompt"] = request["prompt"].clone();
            let again = Response::of(&engine, mode, again);
            assert_eq!(
                (again.content(), again.tokens()),
                (answer["content"].as_str().expect("content"), crate::table::numbers(&answer["tokens"])),
                "{sent}"
            );
            assert_eq!(again.answer["generation_settings"], answer["generation_settings"], "{sent}");
            assert!(again.answer["warnings"].is_null());
        }
    }
}
