//! Decisions (`choices`) through the whole engine.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Requests as _, cancel, complete, drain, start, submit, text, tiny_models, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

fn ids(engine: &JsonEngine, text: &str) -> Vec<Value> {
    let request = json!({"text": text, "add_special": false}).to_string();
    let answer = engine.with_loaded(|loaded| loaded.tokenize(request.as_bytes())).expect("tokens");
    answer["ids"].as_array().expect("ids").clone()
}

/// The tokens of a text that follows another one: without the space that a vocabulary puts before a text.
fn following(engine: &JsonEngine, text: &str) -> Vec<Value> {
    let (before, both) = (ids(engine, "\n"), ids(engine, &format!("\n{text}")));
    both.strip_prefix(before.as_slice()).map_or_else(|| ids(engine, text), <[Value]>::to_vec)
}

/// The log-probability of a choice after a prompt at a temperature, by one request for each token.
fn logprob_alone(engine: &JsonEngine, prompt: &Value, choice: &str, temperature: f64) -> f64 {
    let mut context = match prompt {
        Value::Array(pieces) => pieces.clone(),
        text => vec![text.clone()],
    };
    let mut sum = 0.0;
    for token in following(engine, choice) {
        let request = json!({
            "prompt": context, "n_predict": 1, "n_probs": 100_000, "temperature": 0, "repeat_penalty": 1, "cache_prompt": false,
        });
        let answer = complete(engine, Plain, &request);
        let top = answer["completion_probabilities"][0]["top_logprobs"].as_array().expect("all tokens").clone();
        let weight = |entry: &Value| (entry["logprob"].as_f64().expect("a number") / temperature).exp();
        let total: f64 = top.iter().map(weight).sum();
        let own = top.iter().find(|entry| entry["id"] == token).expect("all tokens are listed");
        sum += (weight(own) / total).ln();
        context.push(token);
    }
    sum
}

/// The answer to a request that fails in the engine.
fn failed(engine: &JsonEngine, request: &Value) -> Value {
    let bytes = request.to_string();
    let answer = engine.complete_as(Plain, bytes.as_bytes()).expect("it is queued");
    assert_eq!(answer["success"], false, "{answer}");
    answer
}

fn floats(answer: &Value, field: &str) -> Vec<f64> {
    let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("choices: {answer}"));
    choices.iter().map(|choice| choice[field].as_f64().expect("a number")).collect()
}

fn assert_close(found: &[f64], expected: &[f64], most: f64) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < most, "{found} {expected}");
    }
}

#[test]
fn a_decision_agrees_with_scoring_each_choice_alone() {
    let choices = [" Mia", " Tom and Nora", " Tom", " Karl.", ". The whistle", "\n\nOnce upon a time", "é"];
    for config in [
        json!({"n_ctx": 256}),
        json!({"n_ctx": 768, "n_parallel": 3}),
        json!({"n_ctx": 768, "n_parallel": 3, "kv_unified": true}),
    ] {
        let engine = start(config);
        for (prompt, temperature) in [
            (json!("Once upon a time there was a child named"), 1.0),
            (json!(["Tom was 7 years old and lived near", 300]), 0.6),
        ] {
            let request =
                json!({"prompt": prompt, "choices": choices, "temperature": temperature, "top_k": 1, "n_predict": 1});
            let answer = complete(&engine, Plain, &request);
            let expected: Vec<f64> =
                choices.iter().map(|choice| logprob_alone(&engine, &prompt, choice, temperature)).collect();
            assert_close(&floats(&answer, "logprob"), &expected, 5e-3);
            let total: f64 = expected.iter().map(|logprob| logprob.exp()).sum();
            let probs: Vec<f64> = expected.iter().map(|logprob| logprob.exp() / total).collect();
            assert_close(&floats(&answer, "prob"), &probs, 5e-3);
            let choice = usize::try_from(answer["choice"].as_u64().expect("an index")).expect("small");
            assert!((0..choices.len()).all(|other| expected[choice] > expected[other] - 1e-2));
            assert_eq!(answer["content"], choices[choice]);
            assert_eq!(answer["choices"][choice]["text"], choices[choice]);
            assert_eq!((&answer["stop_type"], &answer["success"]), (&json!("eos"), &json!(true)));
            // The same from the cache, and polled, with speculation asked for.
            for endpoint in [Plain, Foredraft] {
                let updates = drain(&engine, endpoint, submit(&engine, endpoint, &request));
                let last = updates.last().expect("an end");
                assert_eq!(text(&updates), choices[choice]);
                assert_eq!(last["choice"], choice);
                assert_close(&floats(last, "logprob"), &expected, 5e-3);
            }
        }
    }
}

#[test]
fn decisions_run_beside_other_requests_and_change_none() {
    let engine = start(json!({"n_ctx": 1024, "n_parallel": 4}));
    let story = json!({"prompt": "Once upon a time there was a child named", "n_predict": 60, "temperature": 0});
    let expected = complete(&engine, Plain, &story)["content"].clone();
    let names: Vec<String> = (0..100).map(|n| format!(" child number {n}")).collect();
    let chat = json!({"messages": [{"role": "user", "content": "Who is it?"}], "choices": names, "seed": 1});
    let alone = floats(&complete(&engine, Foredraft, &chat), "logprob");
    let stories: Vec<u64> = (0..2).map(|_| submit(&engine, Foredraft, &story)).collect();
    let decisions: Vec<u64> = (0..3).map(|_| submit(&engine, Foredraft, &chat)).collect();
    let ended = submit(&engine, Foredraft, &chat);
    cancel(&engine, Foredraft, ended);
    for id in stories {
        assert_eq!(text(&drain(&engine, Foredraft, id)), expected.as_str().expect("text"));
    }
    for id in decisions {
        let updates = drain(&engine, Foredraft, id);
        assert_close(&floats(updates.last().expect("an end"), "logprob"), &alone, 1e-2);
    }
    let cancelled = drain(&engine, Foredraft, ended);
    let last = cancelled.last().expect("an end");
    assert!(last["stop_type"] == "cancelled" && last.get("choice").is_none() || last["choice"].is_u64(), "{last}");
}

#[test]
fn every_completion_of_a_request_decides() {
    let engine = start(json!({"n_ctx": 256}));
    let request = json!({"prompts": ["Tom had a", "Once upon a"], "choices": [{"text": " time", "route": 5}, " kite"]});
    let answer = complete(&engine, Foredraft, &request);
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 2);
    assert_eq!(results[1]["choice"], 0, "{answer}");
    assert_eq!(results[1]["choices"][0]["route"], 5, "what else is in a choice is given back");
    for result in results {
        assert!((floats(result, "prob").iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    // generation_settings has them, so that it is a request for the same decision.
    let settings = &results[1]["generation_settings"];
    let again = complete(&engine, Foredraft, &with(settings, json!({"prompt": "Once upon a"})));
    assert_close(&floats(&again, "logprob"), &floats(&results[1], "logprob"), 1e-3);
}

#[test]
fn bad_choices_are_refused_or_warned_of() {
    let engine = start(json!({"n_ctx": 128}));
    let long = "word ".repeat(200);
    for (choices, why) in [
        (json!([]), "choices: expected 1 to 1000 texts, got 0"),
        (json!(vec!["a"; 1001]), "choices: expected 1 to 1000 texts, got 1001"),
        (json!(["yes", "no", "yes"]), "choices[2]: the same text as choices[0]"),
        (json!(["yes", {"text": "yes"}]), "choices[1]: the same text as choices[0]"),
        (json!(["yes", ""]), "choices[1]: expected a text that is not empty"),
        (json!(["yes", 5]), "choices[1]: expected a text, or an object with a text, got 5"),
        (json!([{"name": "yes"}]), "choices[0].text: expected a text"),
        (json!([{"text": 5}]), "choices[0].text: expected a string, got 5"),
        (json!("yes"), "choices: expected an array of texts"),
    ] {
        let request = json!({"prompt": "a", "choices": choices}).to_string();
        let error = engine.complete_as(Plain, request.as_bytes()).expect_err(why);
        assert!(error.message().contains(why), "{error}");
    }
    for (other, name) in [
        (json!({"grammar": "root ::= \"a\""}), "grammar"),
        (json!({"json_schema": {"type": "null"}}), "json_schema"),
        (json!({"n_beams": 2}), "n_beams"),
    ] {
        let request = with(&json!({"prompt": "a", "choices": ["yes"]}), other).to_string();
        let error = engine.complete_as(Plain, request.as_bytes()).expect_err(name);
        assert!(error.message().contains(&format!("expected either choices or {name}, got both")), "{error}");
    }
    let request = json!({"prompt": "a", "choices": ["yes", long]});
    let answer = failed(&engine, &request);
    assert_eq!((&answer["success"], &answer["code"]), (&json!(false), &json!("context_full")), "{answer}");
    assert_eq!(answer["n_ctx"], 128, "{answer}");
    assert!(answer["n_prompt_tokens"].as_u64() > Some(128), "{answer}");
    assert!(answer["error"].as_str().expect("why").starts_with("choices[1]: its "), "{answer}");
    // Prefixes are allowed: the shorter text is at least as probable, because the longer one begins with it.
    let request = json!({"prompt": "She said", "choices": [" no", " no one", " yes", " nobody"], "n_probs": 3});
    let answer = complete(&engine, Plain, &request);
    let warnings: Vec<&str> =
        answer["warnings"].as_array().expect("warnings").iter().filter_map(Value::as_str).collect();
    assert!(warnings.iter().any(|warning| warning.starts_with("choices[1]: begins with choices[0]")), "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.starts_with("choices[3]: begins with choices[0]")), "{warnings:?}");
    assert!(warnings.iter().any(|warning| warning.starts_with("n_probs: ignored")), "{warnings:?}");
    assert_eq!(floats(&answer, "prob").len(), 4);
    let bans: Value =
        ["b", "c"].iter().flat_map(|text| following(&engine, text)).map(|id| json!([id, false])).collect();
    let banned = json!({"prompt": "a", "choices": ["b", "c"], "logit_bias": bans});
    let answer = failed(&engine, &banned);
    assert_eq!(answer["error"], "choices: logit_bias bans all of them", "{answer}");
}

/// Where decoded tokens cannot be removed, each choice is decoded after the prompt.
#[test]
fn models_without_rollback_decide_as_well() {
    for model in [tiny_models::recurrent(), tiny_models::hybrid(), tiny_models::sliding_window()] {
        let engine = start(json!({"model": model, "n_ctx": 256}));
        let choices = [" Mia", " Tom and Nora", "x y z", "."];
        let request = json!({"prompt": "Once upon a time", "choices": choices, "temperature": 1});
        let answer = complete(&engine, Plain, &request);
        let expected: Vec<f64> =
            choices.iter().map(|choice| logprob_alone(&engine, &json!("Once upon a time"), choice, 1.0)).collect();
        assert_close(&floats(&answer, "logprob"), &expected, 5e-3);
        // The slot can be used again.
        let again = complete(&engine, Plain, &request);
        assert_close(&floats(&again, "logprob"), &expected, 5e-3);
    }
}
