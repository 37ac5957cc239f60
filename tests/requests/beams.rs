//! Beam search (`n_beams`) through the whole engine.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Requests as _, cancel, complete, drain, poll, prompts, start, submit, text, tiny_models, with};
use serde_json::{Value, json};

/// The sum of a response's log-probabilities.
fn logprob(answer: &Value) -> f64 {
    let tokens = answer["completion_probabilities"].as_array().expect("probabilities");
    assert_eq!(tokens.len(), usize::try_from(answer["tokens_predicted"].as_u64().expect("a count")).expect("small"));
    tokens.iter().map(|token| token["logprob"].as_f64().expect("a number")).sum()
}

#[test]
fn beam_search_finds_more_probable_outputs_than_greedy() {
    let engine = start(json!({"n_ctx": 512}));
    let (mut better, mut worse) = (0, 0);
    for prompt in prompts().iter().step_by(3) {
        let request = json!({"prompt": prompt, "n_predict": 10, "n_probs": 1, "temperature": 0, "repeat_penalty": 1});
        let greedy = logprob(&complete(&engine, Plain, &request));
        for n_beams in [2, 4, 12] {
            let answer = complete(&engine, Plain, &with(&request, json!({"n_beams": n_beams})));
            let found = logprob(&answer);
            better += usize::from(found > greedy + 0.001);
            worse += usize::from(found < greedy - 0.001);
        }
    }
    // A narrow search may drop a prefix of the greedy output.
    assert!(better > 10 && worse * 2 < better, "{better} better, {worse} worse");
}

#[test]
fn beam_probabilities_match_the_output() {
    let engine = start(json!({"n_ctx": 512}));
    let prompt = "Once upon a time there was a child named";
    let request = json!({"prompt": prompt, "n_predict": 8, "n_probs": 1, "n_beams": 5, "return_tokens": true});
    let answer = complete(&engine, Plain, &request);
    // Decode the same tokens again, forced one by one.
    let mut context = vec![json!(prompt)];
    assert_eq!(
        [&answer["tokens"], &answer["completion_probabilities"]].map(|list| list.as_array().unwrap().len()),
        [8, 8]
    );
    for (token, probs) in
        answer["tokens"].as_array().unwrap().iter().zip(answer["completion_probabilities"].as_array().unwrap())
    {
        let forced = json!({"prompt": context, "n_predict": 1, "n_probs": 300, "temperature": 0, "repeat_penalty": 1});
        let top = complete(&engine, Plain, &forced);
        let top = top["completion_probabilities"][0]["top_logprobs"].as_array().unwrap().clone();
        let known = top.iter().find(|entry| entry["id"] == *token).expect("listed among the most probable");
        let difference = known["logprob"].as_f64().unwrap() - probs["logprob"].as_f64().unwrap();
        assert!(difference.abs() < 1e-3, "{token}: {difference}");
        context.push(token.clone());
    }
}

#[test]
fn beam_updates_add_up_and_other_requests_are_unaffected() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let plain = json!({"prompt": "Tom had a drum.", "n_predict": 40, "temperature": 0, "cache_prompt": false});
    let alone = complete(&engine, Plain, &plain);
    let beams = json!({"prompt": "Once upon a time", "n_predict": 40, "n_beams": 4});
    let expected = complete(&engine, Plain, &beams);
    let ids: Vec<u64> = [&beams, &plain, &beams].iter().map(|request| submit(&engine, Plain, request)).collect();
    let texts: Vec<Vec<Value>> = ids.iter().map(|id| drain(&engine, Plain, *id)).collect();
    for (updates, expected) in texts.iter().zip([&expected, &alone, &expected]) {
        assert_eq!(text(updates), expected["content"]);
        assert_eq!(updates.last().unwrap()["stop_type"], expected["stop_type"]);
    }
    // When the beams agree on a prefix depends on the text, and on the last bits of the logits.
    let before_the_end = |prompt: &String| {
        let request = with(&beams, json!({"prompt": prompt}));
        drain(&engine, Plain, submit(&engine, Plain, &request)).len() - 1
    };
    let counts: Vec<usize> = prompts().iter().step_by(2).map(before_the_end).collect();
    let some = counts.iter().filter(|count| **count > 0).count();
    assert!(
        some * 2 > counts.len() && counts.iter().any(|count| *count > 2),
        "text that all beams share must be sent before the end: {counts:?}"
    );
}

#[test]
fn beam_search_handles_stops_limits_cancels_and_conflicting_fields() {
    let engine = start(json!({"n_ctx": 256}));
    let request = json!({"prompt": "Once upon a time", "n_predict": 60, "n_beams": 3});
    let whole = complete(&engine, Plain, &request);
    let content = whole["content"].as_str().unwrap();
    let word = content.split_whitespace().nth(5).unwrap();
    let stopped = complete(&engine, Plain, &with(&request, json!({"stop": [word]})));
    assert!(!stopped["content"].as_str().unwrap().contains(word), "{stopped}");
    // Longer than the context: the search ends at its limit.
    let long = complete(&engine, Plain, &with(&request, json!({"n_predict": -1, "ignore_eos": true})));
    assert_eq!((&long["stop_type"], &long["truncated"]), (&json!("limit"), &json!(true)));
    assert_eq!(complete(&engine, Plain, &with(&request, json!({"n_predict": 0})))["content"], "");
    let late = complete(&engine, Plain, &with(&request, json!({"n_predict": -1, "timeout_ms": 1, "ignore_eos": true})));
    assert_eq!(late["stop_type"], "timeout");
    let speculating = complete(&engine, Foredraft, &request);
    assert_eq!(speculating["content"], content);
    assert_eq!(speculating["speculative"]["disabled"], "a beam search does not speculate");
    let ignored = complete(&engine, Plain, &with(&request, json!({"t_max_predict_ms": 1, "return_progress": true})));
    let warnings = ignored["warnings"].as_array().expect("warnings");
    for (warning, key) in warnings.iter().zip(["t_max_predict_ms", "return_progress"]) {
        assert!(warning.as_str().expect("text").starts_with(key), "{ignored}");
    }
    assert_eq!(warnings.len(), 2, "{ignored}");
    let long = start(json!({"n_ctx": 4096}));
    let id = submit(&long, Plain, &with(&request, json!({"n_predict": -1, "ignore_eos": true})));
    while poll(&long, Plain, id, 100)["state"] != "generating" {}
    assert!(cancel(&long, Plain, id));
    let last = drain(&long, Plain, id);
    assert_eq!(last.last().unwrap()["stop_type"], "cancelled");
    for (more, expected) in [
        (json!({"n_beams": 65}), "n_beams: expected a whole number from 0 to 64"),
        (json!({"grammar": "root ::= \"a\""}), "n_beams: a beam search cannot use a grammar"),
    ] {
        let bytes = with(&request, more).to_string();
        let error = engine.complete_as(Plain, bytes.as_bytes()).unwrap_err();
        assert!(error.message().contains(expected), "{error}");
    }
    let greedy = json!({"prompt": "Once upon a time", "n_predict": 20, "temperature": 0});
    let one = complete(&engine, Plain, &with(&greedy, json!({"n_beams": 1})));
    assert_eq!(one["content"], complete(&engine, Plain, &greedy)["content"], "one beam is greedy decoding");
}

/// Cancelling another request interrupts the decode, and recurrent memory cannot be truncated.
#[test]
fn beam_search_on_recurrent_models_survives_cancels_of_other_requests() {
    for model in [tiny_models::recurrent(), tiny_models::hybrid()] {
        let init =
            json!({"model": model, "model_draft": null, "n_ctx": 1024, "n_parallel": 2, "n_ubatch": 32, "n_batch": 32});
        let engine = start(init);
        // Most of its time goes into the prompt.
        let prompt: Vec<usize> = (0..900).map(|n| 300 + n * n % 1000).collect();
        let search = json!({"prompt": prompt, "n_beams": 2, "n_predict": 20, "ignore_eos": true});
        let alone = complete(&engine, Plain, &search);
        let mut cancelled = 0;
        // More on a machine where this thread is late.
        for round in 0..200 {
            if round >= 10 && cancelled > 10 {
                break;
            }
            let id = submit(&engine, Plain, &search);
            let mut updates = Vec::new();
            loop {
                let answer = poll(&engine, Plain, id, 0);
                updates.extend(answer["completion_updates"].as_array().expect("updates").iter().cloned());
                if answer["finished"] == true {
                    break;
                }
                let other = json!({"prompt": &prompt[..20], "n_predict": -1, "ignore_eos": true});
                let other = submit(&engine, Plain, &other);
                while poll(&engine, Plain, other, 0)["state"] == "queued" {}
                assert!(cancel(&engine, Plain, other));
                drain(&engine, Plain, other);
                cancelled += 1;
            }
            let last = updates.last().expect("an end");
            assert_eq!((&last["stop_type"], &alone["stop_type"]), (&json!("limit"), &json!("limit")), "{last}");
            assert_eq!(alone["content"], text(&updates));
        }
        assert!(cancelled > 10, "{cancelled}");
    }
}
