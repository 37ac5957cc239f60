//! Every drafter proposes tokens on suitable text, and none changes the output.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{
    cancel, cancelled, complete, merge, model, n, output_fields, prompts, results, start, submit, with,
};
use serde_json::{Value, json};

const TYPES: [&str; 5] = ["draft", "ngram-cache", "suffix", "auto", "prediction"];

/// A prompt whose continuation repeats much of it.
const REPETITIVE: &str = "<|im_start|>user\nRepeat after me: Mia has a kite. Mia has a kite. Mia has a kite.<|im_end|>\n\
    <|im_start|>assistant\nMia has a kite. Mia has a kite. Mia has a";

/// Settings with which every drafter drafts on short texts.
fn eager(kind: &str) -> Value {
    // The drafter of a prediction is added to those of the list.
    let kind = if kind == "prediction" { "grammar" } else { kind };
    json!({"type": kind, "adaptive": false, "n_max": 6})
}

#[test]
fn drafters_do_not_change_output() {
    let engine = start(json!({"n_ctx": 512}));
    let mut accepted = json!({});
    let mut texts = prompts();
    texts.truncate(6);
    texts.push(REPETITIVE.into());
    for (index, prompt) in texts.iter().enumerate() {
        for temperature in [0.0, 0.8] {
            let request = json!({
                "prompt": prompt, "n_predict": 72, "temperature": temperature, "seed": index, "return_tokens": true,
                "repeat_penalty": 1, "cache_prompt": index % 2 == 0, "ignore_eos": true,
            });
            let plain = complete(&engine, Plain, &request);
            for kind in TYPES {
                for adaptive in [json!(true), json!(false)] {
                    let mut speculative = eager(kind);
                    merge(&mut speculative, &json!({"adaptive": adaptive}));
                    let mut fast = with(&request, json!({"speculative": speculative}));
                    if kind == "prediction" {
                        let mut predicted = plain["content"].as_str().unwrap().to_owned();
                        predicted.truncate(predicted.floor_char_boundary(predicted.len() * 3 / 4));
                        fast["prediction"] = json!({"type": "content", "content": predicted});
                    }
                    let fast = complete(&engine, Foredraft, &fast);
                    assert_eq!(
                        output_fields(&fast),
                        output_fields(&plain),
                        "{prompt:?} {temperature} {kind} {adaptive}"
                    );
                    for (source, counts) in fast["speculative"]["by_type"].as_object().unwrap() {
                        let before = accepted[source].as_u64().unwrap_or(0);
                        accepted[source] = json!(before + counts["n_accepted"].as_u64().unwrap());
                    }
                }
            }
        }
    }
    for source in ["draft", "ngram-cache", "suffix", "prediction"] {
        assert!(
            accepted[source].as_u64() > Some(20),
            "the test needs accepted tokens of every drafter: {source} {accepted}"
        );
    }
}

#[test]
fn drafter_list_attributes_tokens_to_their_drafter() {
    let engine = start(json!({"n_ctx": 512}));
    let request = json!({
        "prompt": "Mia had a red kite. Mia had a red kite. Mia had a", "n_predict": 60, "temperature": 0, "repeat_penalty": 1,
        "ignore_eos": true, "return_tokens": true,
        "speculative": {"type": ["ngram-cache", "suffix", "draft"], "adaptive": false, "n_max": 6},
    });
    let answer = complete(&engine, Foredraft, &request);
    let report = &answer["speculative"];
    assert_eq!(report["type"], json!(["ngram-cache", "suffix", "draft"]));
    let by_type = report["by_type"].as_object().unwrap();
    assert!(by_type.contains_key("suffix") && by_type.len() > 1, "{report}");
    let sum = |key: &str| by_type.values().map(|counts| counts[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (json!(sum("n_drafted")), json!(sum("n_accepted"))),
        (report["n_drafted"].clone(), report["n_accepted"].clone())
    );
    let sources = answer["sources"].as_array().unwrap();
    for (source, counts) in by_type {
        let accepted = sources.iter().filter(|other| *other == source).count();
        assert_eq!(json!(accepted), counts["n_accepted"], "{source}");
    }
}

#[test]
fn history_drafters_work_without_a_draft_model() {
    let engine = start(json!({"n_ctx": 512, "model_draft": null}));
    let request =
        json!({"prompt": REPETITIVE, "n_predict": 60, "temperature": 0, "repeat_penalty": 1, "ignore_eos": true});
    let answer = complete(&engine, Foredraft, &with(&request, json!({"speculative": {"adaptive": false}})));
    assert!(answer["speculative"]["n_accepted"].as_u64() > Some(10), "{}", answer["speculative"]);
    assert_eq!(answer["speculative"].get("disabled"), None);
    let asked = complete(&engine, Foredraft, &with(&request, json!({"speculative": {"type": "draft"}})));
    assert_eq!(asked["speculative"]["disabled"], "there is no draft model");
    assert_eq!(asked["content"], answer["content"]);
}

#[test]
fn drafts_stay_correct_after_context_shifts_and_cancels() {
    let engine = start(json!({"n_ctx": 128, "n_parallel": 2}));
    let request = json!({"prompt": REPETITIVE, "n_predict": 300, "temperature": 0.7, "seed": 5, "ignore_eos": true, "return_tokens": true});
    let plain = complete(&engine, Plain, &request);
    assert_eq!(plain["truncated"], true);
    for kind in ["auto", "suffix", "ngram-cache"] {
        let fast = with(&request, json!({"speculative": eager(kind)}));
        // In the slot of a cancelled request, and concurrently with another request.
        let endless = with(&fast, json!({"n_predict": -1, "id_slot": 0}));
        cancelled(&engine, Foredraft, &endless);
        let beside = submit(&engine, Foredraft, &with(&endless, json!({"id_slot": 1})));
        let answer = complete(&engine, Foredraft, &with(&fast, json!({"id_slot": 0})));
        assert!(cancel(&engine, Foredraft, beside), "{kind}");
        assert_eq!(output_fields(&answer), output_fields(&plain), "{kind}");
        assert!(answer["speculative"]["n_drafted"].as_u64() > Some(0), "{kind} {}", answer["speculative"]);
    }
}

/// Where a grammar leaves no choice, its text is drafted without a model.
#[test]
fn grammar_drafts_what_it_leaves_no_choice_of() {
    let engine = start(json!({"n_ctx": 512}));
    let schema = json!({
        "type": "object", "required": ["favourite_musical_instrument", "is_still_alive"], "properties": {
            "favourite_musical_instrument": {"enum": ["a very old wooden drum", "the whistle of the river"]},
            "is_still_alive": {"type": "boolean"},
        },
    });
    for (seed, temperature) in [(1, 0.0), (2, 0.8), (3, 1.5)] {
        let request = json!({
            "prompt": "Once upon a time there was a child named", "n_predict": 120, "json_schema": schema, "seed": seed,
            "temperature": temperature, "return_tokens": true, "cache_prompt": false,
        });
        let plain = complete(&engine, Plain, &request);
        for (kind, verify) in
            [("grammar", "coupled"), ("auto", "coupled"), ("grammar", "match"), ("grammar", "rejection")]
        {
            let speculative = json!({"type": kind, "adaptive": false, "n_max": 8, "verify": verify});
            let fast = complete(&engine, Foredraft, &with(&request, json!({"speculative": speculative})));
            if verify != "rejection" {
                assert_eq!(output_fields(&plain), output_fields(&fast), "{kind} {verify} {seed}");
            }
            let stats = &fast["speculative"];
            if kind == "grammar" {
                let accepted = stats["by_type"]["grammar"]["n_accepted"].as_u64().expect("a count");
                let predicted = fast["tokens_predicted"].as_u64().expect("a count");
                assert!(
                    accepted > 10 && stats["n_steps"].as_u64().expect("a count") + accepted == predicted,
                    "{stats}"
                );
                let sources = fast["sources"].as_array().expect("origins");
                let of_grammar = sources.iter().filter(|source| **source == "grammar").count() as u64;
                assert_eq!(of_grammar, accepted);
            }
        }
    }
    // Without a grammar there is nothing to draft.
    let request =
        json!({"prompt": "Once upon a time", "n_predict": 20, "speculative": {"type": "grammar", "adaptive": false}});
    let answer = complete(&engine, Foredraft, &request);
    assert_eq!(answer["speculative"]["n_drafted"], 0, "{answer}");
}

/// The draft model scores few tokens, so it must draft others than the target chooses.
#[test]
fn draft_vocabulary_does_not_change_output() {
    let same_file = json!({"model_draft": model("target")});
    for (more, n_slots) in [(json!({}), 1), (json!({"n_parallel": 3}), 3), (same_file, 1)] {
        let more = with(&more, json!({"n_ctx": 1024, "n_threads": 2, "n_threads_batch": 2}));
        let all = start(with(&more, json!({"draft_vocab": 0})));
        let few = start(with(&more, json!({"draft_vocab": 200})));
        assert_eq!(all.status()["draft"]["draft_vocab"], Value::Null);
        let n_scored = few.status()["draft"]["draft_vocab"].as_u64().expect("it is restricted");
        assert!((200..260).contains(&n_scored), "{n_scored}: whole groups, and the tokens that end a completion");
        let (mut drafted, mut accepted) = ([0, 0], [0, 0]);
        for (seed, temperature, verify) in [(1, 0.0, "coupled"), (2, 0.8, "coupled"), (3, 0.8, "match")] {
            let request = json!({
                "prompt": "Once upon a time there was a child named", "n_predict": 60, "temperature": temperature, "seed": seed,
                "return_tokens": true, "ignore_eos": true, "cache_prompt": false, "n": n_slots,
            });
            let results = |answer: &Value| match n_slots {
                1 => vec![answer.clone()],
                _ => results(answer, n_slots).to_vec(),
            };
            let plain = complete(&few, Plain, &request);
            let speculative = json!({"type": "draft", "adaptive": false, "n_max": 4, "verify": verify});
            for (index, engine) in [&all, &few].into_iter().enumerate() {
                let fast = complete(engine, Foredraft, &with(&request, json!({"speculative": speculative})));
                for (fast, plain) in results(&fast).iter().zip(&results(&plain)) {
                    assert_eq!(output_fields(fast), output_fields(plain), "{more} {temperature} {verify}");
                    let counts = &fast["speculative"]["by_type"]["draft"];
                    drafted[index] += n(&counts["n_drafted"]);
                    accepted[index] += n(&counts["n_accepted"]);
                }
            }
        }
        assert!(accepted[1] > 20, "{more}: {accepted:?} of {drafted:?}");
        assert_ne!((drafted[0], accepted[0]), (drafted[1], accepted[1]), "{more}: the drafts are others");
    }
}
