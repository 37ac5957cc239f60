//! Long prompts: they are rendered and tokenized after the call that queued them has returned.

use std::time::{Duration, Instant};

use crate::common::Endpoint::Foredraft;
use crate::common::{Requests as _, cancel, complete, drain, poll, start, submit, with};
use foredraft::api::JsonEngine;
use serde_json::{Value, json};

/// A prompt of a few megabytes, which takes a while to tokenize.
fn huge() -> String {
    "Tom had a hat and a drum, and Mia had a kite. ".repeat(60_000)
}

/// A prompt that is just long enough not to be tokenized at once.
fn long() -> String {
    "Tom had a hat and a drum, and Mia had a kite. ".repeat(100)
}

fn queued(engine: &JsonEngine, request: &Value) -> Value {
    let answer = engine.submit_as(Foredraft, request.to_string().as_bytes());
    answer.unwrap_or_else(|error| panic!("{request}: {error}"))
}

fn last(updates: &[Value]) -> &Value {
    updates.last().expect("a final response")
}

#[test]
fn a_long_prompt_is_pending_at_first_and_answered_as_any_other() {
    let engine = start(json!({"n_ctx": 256}));
    let settings = json!({"n_predict": 8, "seed": 1, "cache_prompt": false});
    let messages = json!([{"role": "user", "content": long()}]);
    for input in [
        json!({"prompt": long()}),
        json!({"prompt": [long(), 5, "and"]}),
        json!({"messages": messages, "on_overflow": "truncate"}),
        json!({"prompts": [long(), "Tom"], "n_cmpl": 2}),
        json!({"prompt": "Tom", "prediction": {"type": "content", "content": long()}, "speculative": true}),
    ] {
        let request = with(&settings, input);
        let answer = queued(&engine, &request);
        let stats = &answer["prompt_stats"];
        let pending = json!({"n_ctx": 256, "pending": true});
        match stats.as_array() {
            Some(all) => assert!(all.len() == 4 && all.iter().all(|stats| *stats == pending), "{stats}"),
            None => assert_eq!(*stats, pending),
        }
        let updates = drain(&engine, Foredraft, answer["id"].as_u64().expect("an id"));
        let expected = complete(&engine, Foredraft, &request);
        let expected = expected["results"].as_array().cloned().unwrap_or_else(|| vec![expected]);
        for expected in expected {
            let own: Vec<Value> = updates.iter().filter(|it| it["index"] == expected["index"]).cloned().collect();
            assert_eq!(crate::common::text(&own), expected["content"].as_str().expect("content"));
            for key in ["prompt", "prompt_stats", "tokens_evaluated", "truncated"] {
                assert_eq!(last(&own)[key], expected[key], "{key}");
            }
        }
    }
    // A short one is known at once.
    assert!(queued(&engine, &with(&settings, json!({"prompt": "Tom"})))["prompt_stats"]["n_past"].is_u64());
}

#[test]
fn requests_are_served_in_the_order_in_which_they_came() {
    let engine = start(json!({"n_ctx": 256, "n_parallel": 1}));
    let ids: Vec<u64> =
        (0..3).map(|_| submit(&engine, Foredraft, &json!({"prompt": long(), "n_predict": 4}))).collect();
    let last_one = submit(&engine, Foredraft, &json!({"prompt": "Tom", "n_predict": 4}));
    assert_eq!(last(&drain(&engine, Foredraft, last_one))["success"], true);
    for id in ids {
        assert_eq!(poll(&engine, Foredraft, id, 0)["finished"], true, "{id}");
    }
}

/// With one slot, whether they are prepared by the caller's thread or by another one.
#[test]
fn requests_whose_preparation_takes_long_hold_no_others() {
    let engine = start(json!({"n_ctx": 256, "n_parallel": 1}));
    // Some seconds each.
    let slow = json!({"prompts": vec![huge(); 8], "n_predict": 4});
    let slow: Vec<u64> = (0..3).map(|_| submit(&engine, Foredraft, &slow)).collect();
    for prompt in ["Tom".to_owned(), long()] {
        let id = submit(&engine, Foredraft, &json!({"prompt": prompt, "n_predict": 4}));
        assert_eq!(last(&drain(&engine, Foredraft, id))["success"], true);
        for id in &slow {
            assert_eq!(poll(&engine, Foredraft, *id, 0)["finished"], false, "{id}");
        }
    }
    for id in slow {
        cancel(&engine, Foredraft, id);
    }
}

#[test]
fn a_request_can_be_cancelled_and_time_out_while_its_prompt_is_prepared() {
    let engine = start(json!({"n_ctx": 256}));
    let endless = json!({"prompt": huge(), "n_predict": -1, "ignore_eos": true});
    let ids: Vec<u64> = (0..3).map(|_| submit(&engine, Foredraft, &endless)).collect();
    let late = submit(&engine, Foredraft, &json!({"prompt": huge(), "n_predict": 4, "timeout_ms": 1}));
    let end = drain(&engine, Foredraft, late);
    assert_eq!(last(&end)["stop_type"], "timeout", "{end:?}");
    for id in ids {
        assert!(cancel(&engine, Foredraft, id));
        let updates = drain(&engine, Foredraft, id);
        assert_eq!(last(&updates)["stop_type"], "cancelled");
    }
    // The engine goes on.
    assert_eq!(complete(&engine, Foredraft, &json!({"prompt": "Tom", "n_predict": 2}))["tokens_predicted"], 2);
}

#[test]
fn what_is_wrong_with_a_long_prompt_ends_the_request() {
    let engine = start(json!({"n_ctx": 256}));
    let chat = json!([{"role": "user", "content": long()}]);
    for (request, code, message) in [
        (json!({"prompt": [long(), 99999]}), "invalid_request", "prompt[1]: token 99999 is not in the vocabulary"),
        (json!({"prompt": huge(), "on_overflow": "error"}), "context_full", "prompt: "),
        (json!({"messages": chat}), "context_full", "messages: the system message and the last turn have"),
        (
            json!({"messages": chat, "chat_template": "{{ raise_exception('no') }}"}),
            "invalid_request",
            "chat_template: no (line 1)",
        ),
        (json!({"prompts": [long(), ["a", 99999]]}), "invalid_request", "prompts[1][1]: token 99999 is not in"),
    ] {
        let id = submit(&engine, Foredraft, &request);
        let updates = drain(&engine, Foredraft, id);
        for end in updates.iter().filter(|update| update["stop"] == true) {
            assert_eq!(
                (&end["success"], &end["stop_type"], &end["code"]),
                (&json!(false), &json!("error"), &json!(code))
            );
            assert!(end["error"].as_str().expect("a message").starts_with(message), "{}", end["error"]);
            assert_eq!(end["prompt_stats"], json!({"n_ctx": 256, "pending": true}));
        }
        assert_eq!(updates.len(), if request.get("prompts").is_some() { 2 } else { 1 });
    }
    // The answer of the submit has errors that are known at once.
    for (request, message) in [
        (json!({"prompt": huge(), "n_predict": "a"}), "n_predict: expected"),
        (json!({"messages": [{"role": 5, "content": huge()}]}), "messages[0].role: expected a string"),
        (json!({"prompt": huge(), "grammar": "root ::= ("}), "grammar: "),
    ] {
        let refused = engine.submit_as(Foredraft, request.to_string().as_bytes());
        let refused = refused.expect_err("refused");
        assert!(refused.message().starts_with(message), "{refused}");
    }
}

#[test]
fn a_queue_of_long_prompts_is_bounded_and_ends_with_the_engine() {
    let engine = start(json!({"n_ctx": 256, "n_parallel": 1, "max_queue": 3}));
    let request = json!({"prompt": huge(), "n_predict": -1, "ignore_eos": true});
    let ids: Vec<u64> = (0..4).map(|_| submit(&engine, Foredraft, &request)).collect();
    let refused = engine.submit_as(Foredraft, request.to_string().as_bytes());
    assert_eq!(refused.expect_err("full").code().as_str(), "queue_full");
    // Cancelled requests leave the queue at once.
    for id in ids {
        assert!(cancel(&engine, Foredraft, id));
        assert!(cancel(&engine, Foredraft, submit(&engine, Foredraft, &request)));
    }
    for _ in 0..4 {
        submit(&engine, Foredraft, &request);
    }
    engine.unload();
    assert_eq!(engine.status()["state"], "uninitialized");
}

/// Prints what calls take while the engine generates, and, for comparison, what a loop of 10 µs takes that calls nothing: on cores that
/// are all busy, any work is interrupted for milliseconds now and then. `cargo test --release --test requests calls_while -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn calls_while_the_engine_generates() {
    let seconds = std::env::var("SECONDS_OF_LOAD").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let engine = start(json!({"n_ctx": 1024, "n_parallel": 2, "max_queue": 8}));
    let endless = json!({"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": true});
    let running = submit(&engine, Foredraft, &endless);
    let long = "Tom had a hat and a drum, and Mia had a kite. ".repeat(200 * 1024 / 46);
    let prompt = json!({"prompt": long, "n_predict": 4}).to_string();
    let turn = |text: &str| json!([{"role": "user", "content": text}, {"role": "assistant", "content": text}]);
    let turns: Vec<Value> = (0..100).flat_map(|_| turn(&long[..1000]).as_array().cloned().expect("two")).collect();
    let question = json!({"role": "user", "content": "And <|im_end|>?"});
    let messages: Vec<Value> = turns.into_iter().chain([question]).collect();
    let chat = json!({"messages": messages, "n_predict": 4}).to_string();

    let mut times: Vec<(&str, Vec<Duration>)> =
        ["submit of a prompt", "submit of a chat", "poll", "status", "cancel", "nothing"]
            .map(|name| (name, Vec::new()))
            .to_vec();
    let mut time = |name: &str, call: &mut dyn FnMut() -> String| {
        let start = Instant::now();
        let answer = call();
        let taken = start.elapsed();
        times.iter_mut().filter(|(of, _)| *of == name).for_each(|(_, times)| times.push(taken));
        answer
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut n, mut finished) = (0, 0);
    while Instant::now() < end {
        let (name, request) = if n % 2 == 0 { ("submit of a prompt", &prompt) } else { ("submit of a chat", &chat) };
        let answer = time(name, &mut || {
            let answer = engine.submit_as(Foredraft, request.as_bytes());
            answer.expect("space in the queue").to_string()
        });
        let id = serde_json::from_str::<Value>(&answer).expect("JSON")["id"].as_u64().expect("an id");
        // Every third one is cancelled at once.
        let mut command = json!({"id": id}).to_string();
        loop {
            for id in [id, running] {
                let poll = json!({"id": id}).to_string();
                let answer = time("poll", &mut || {
                    engine.poll_as(Foredraft, Some(poll.as_bytes())).expect("an answer").to_string()
                });
                if id != running && answer.contains("\"finished\":true") {
                    command.clear();
                    finished += 1;
                }
            }
            time("status", &mut || engine.status().to_string());
            for _ in 0..4 {
                time("nothing", &mut || {
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_micros(10) {
                        std::hint::spin_loop();
                    }
                    String::new()
                });
            }
            if command.is_empty() {
                break;
            }
            if n % 3 == 2 {
                time("cancel", &mut || {
                    engine.cancel_as(Foredraft, Some(command.as_bytes())).expect("an answer").to_string()
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        n += 1;
    }
    println!("{finished} requests of 200 KB in {seconds} s");
    for (name, mut times) in times {
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{name:20} {:6} calls, median {median:9.1?}, worst {worst:9.1?}", times.len());
    }
}

/// However fast the engine begins: it has often answered the first completions before the estimates of a thousand are made.
#[test]
fn a_submits_estimate_does_not_count_the_requests_own_prompt() {
    let engine = start(json!({"n_ctx": 256, "max_queue": 1000}));
    for round in 0..6 {
        let prompt = format!("{round} hats and a drum");
        let answer = queued(&engine, &json!({"prompt": prompt, "n_predict": 1, "n_cmpl": 1000}));
        let stats = answer["prompt_stats"].as_array().expect("several completions");
        assert!(stats.len() == 1000 && stats.iter().all(|stats| stats["n_to_eval"].as_u64() > Some(1)), "{stats:?}");
        drain(&engine, Foredraft, answer["id"].as_u64().expect("an id"));
    }
}

#[test]
fn response_fields_take_nothing_of_an_error_away() {
    let engine = start(json!({"n_ctx": 256}));
    for name in ["content", "timings/prompt_n"] {
        let request = json!({"prompt": long(), "on_overflow": "error", "response_fields": [name]});
        let updates = drain(&engine, Foredraft, submit(&engine, Foredraft, &request));
        let end = last(&updates);
        assert_eq!((&end["stop"], &end["code"]), (&json!(true), &json!("context_full")), "{end}");
        assert!(end["id"].is_u64() && end["error"].is_string() && end["status"].is_u64(), "{end}");
        assert!(end["n_prompt_tokens"].as_u64() > end["n_ctx"].as_u64() && end["n_ctx"] == 256, "{end}");
        assert!(end.get("model").is_none(), "{end}");
    }
}
