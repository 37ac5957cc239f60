//! When a completion ends, what limits its output, and how the response reports that.

use serde_json::{Value, json};

use crate::common::{Requests as _, start};
use crate::table::{CallMode, Response, Row, float, row, run, tokenized};

/// Asserts `stop_type` and the old server's fields with the same meaning.
fn stopped(response: &Response, how: &str, word: &str) {
    let answer = &response.answer;
    let facts = ["stop_type", "stopping_word", "stopped_eos", "stopped_word", "stopped_limit", "stop"];
    let found: Vec<&Value> = facts.iter().map(|fact| &answer[fact]).collect();
    assert_eq!(
        json!(found),
        json!([how, word, how == "eos", how == "word", how == "limit", true]),
        "{}",
        response.request
    );
}

/// A prompt that the model completes by counting, with a natural end.
fn counting() -> Value {
    json!({"prompt": "<|im_start|>user\nCount from 1 to 5.<|im_end|>\n<|im_start|>assistant\n", "temperature": 0, "n_predict": 40})
}

pub fn rows() -> Vec<Row> {
    vec![
        row(&["n_predict", "tokens_predicted", "stopped_limit"], json!({"n_predict": 5}), |response| {
            stopped(response, "limit", "");
            assert_eq!((&response.answer["tokens_predicted"], response.tokens().len()), (&json!(5), 5));
            let more = response.ask(json!({"n_predict": 9}));
            assert!(more.content().starts_with(response.content()) && more.tokens().len() == 9);
            let none = response.ask(json!({"n_predict": 0}));
            assert_eq!((none.content(), &none.answer["tokens_predicted"]), ("", &json!(0)));
        }),
        row(&["ignore_eos", "stopped_eos"], counting(), |response| {
            stopped(response, "eos", "");
            let n = response.tokens().len();
            assert!(n < 40);
            let on = response.ask(json!({"ignore_eos": true}));
            stopped(&on, "limit", "");
            assert_eq!((on.tokens().len(), &on.tokens()[..n - 1]), (40, &response.tokens()[..n - 1]));
        }),
        row(&["stop", "stopped_word", "stopping_word", "content"], counting(), |response| {
            let cut = response.ask(json!({"stop": ["4,", "never", ", 3"]}));
            stopped(&cut, "word", ", 3");
            assert_eq!(cut.content(), response.content().split(", 3").next().expect("a beginning"));
            for update in &cut.updates {
                let text = update["content"].as_str().expect("content");
                assert!(!text.ends_with([',', ' ']), "text that may become a stop string is withheld: {update}");
            }
            stopped(&response.ask(json!({"stop": "2"})), "word", "2");
            assert_eq!(response.ask(json!({"stop": ["", "zzz"]})).content(), response.content());
        }),
        row(&["timeout_ms"], json!({"timeout_ms": 150, "n_predict": -1, "ignore_eos": true}), |response| {
            stopped(response, "timeout", "");
            assert_eq!(response.answer["success"], true);
            let unlimited = response.ask(json!({"timeout_ms": 0, "n_predict": 10}));
            stopped(&unlimited, "limit", "");
            assert_eq!(unlimited.setting("timeout_ms"), 0);
        }),
        row(&["conversation"], json!({"conversation": "Mia", "n_predict": 10}), |response| {
            assert_eq!(response.setting("conversation"), "Mia");
            let again = response.ask(json!({"conversation": "Mia"}));
            assert_eq!(again.content(), response.content());
            assert!(
                response
                    .refused(json!({"conversation": "a\nb"}))
                    .starts_with("conversation: expected a string of 1 to 256")
            );
            assert!(response.refused(json!({"n_beams": 2})).starts_with("conversation: not available with n_beams"));
            assert!(response.refused(json!({"n_cmpl": 2})).starts_with("conversation: expected one completion, got 2"));
        }),
        row(&["priority", "deadline_ms"], json!({"priority": 3, "deadline_ms": 1, "n_predict": 40}), |response| {
            assert_eq!((response.setting("priority"), response.setting("deadline_ms")), (&json!(3), &json!(1)));
            let timings = &response.answer["timings"];
            assert!(timings["deadline_missed_ms"].as_f64() > Some(0.0) && timings["preempted_n"] == 0, "{timings}");
            let early = response.ask(json!({"priority": -10, "deadline_ms": 3_600_000}));
            assert_eq!(
                (early.content(), &early.answer["timings"]["deadline_missed_ms"]),
                (response.content(), &json!(0.0))
            );
            let without = response.ask(json!({"priority": null, "deadline_ms": null}));
            assert!(
                without.setting("deadline_ms").is_null() && without.answer["timings"]["deadline_missed_ms"].is_null()
            );
            assert!(
                response.refused(json!({"priority": "high"})).starts_with("priority: expected a whole number from -10")
            );
            assert!(
                response.refused(json!({"priority": 11})).starts_with("priority: expected a whole number from -10")
            );
            assert!(
                response.refused(json!({"deadline_ms": 0})).starts_with("deadline_ms: expected a whole number from 1")
            );
        }),
        row(
            &["t_max_predict_ms"],
            json!({
                "t_max_predict_ms": 1, "n_predict": 120, "ignore_eos": true, "temperature": 0,
                "grammar": "root ::= ([a-z ]{5,15} \"\\n\")+",
            }),
            |response| {
                // The first newline after one millisecond ends the completion, which includes the token with the newline.
                stopped(response, "limit", "");
                let newlines = response.content().matches('\n').count();
                assert!((1..120).contains(&response.tokens().len()) && newlines >= 1, "{}", response.answer);
                let last = json!({"tokens": &response.tokens()[response.tokens().len() - 1..]}).to_string();
                let last = response.engine.with_loaded(|loaded| loaded.detokenize(last.as_bytes())).expect("text");
                assert!(last["content"].as_str().expect("text").contains('\n'), "{last}");
                let free = response.ask(json!({"t_max_predict_ms": 0}));
                assert_eq!((free.tokens().len(), free.content().starts_with(response.content())), (120, true));
                // Without a newline the time limit has no effect.
                let line = response.ask(json!({"grammar": "root ::= [a-z ]{200}", "n_predict": 30}));
                assert_eq!((line.tokens().len(), line.setting("t_max_predict_ms")), (30, &json!(1)));
            },
        ),
        row(&["grammar"], json!({"grammar": "root ::= \"yes\" | \"no\"", "temperature": 1.5}), |response| {
            assert!(["yes", "no"].contains(&response.content()), "{}", response.answer);
            stopped(response, "eos", "");
            assert!(response.refused(json!({"grammar": "root ::= ("})).contains("grammar"));
            assert_eq!(response.ask(json!({"grammar": ""})).content(), response.without("grammar").content());
        }),
        row(&["truncated", "tokens_predicted"], json!({"n_predict": 300, "ignore_eos": true}), |response| {
            // A context of 256 tokens, which is shifted.
            assert_eq!(
                (&response.answer["truncated"], &response.answer["tokens_predicted"]),
                (&json!(true), &json!(300))
            );
            assert_eq!(response.ask(json!({"n_predict": 20})).answer["truncated"], false);
        }),
        row(&["stop_type"], json!({"n_predict": 1, "seed": 3}), |response| {
            stopped(response, "limit", "");
            // The other stop types: eos, word and timeout above, cancelled in `cancelled_completion_reports_cancelled`, error here.
            let never = json!({"grammar": "root ::= \"\\u0001\" [a-z]", "logit_bias": bans(response)});
            let request = crate::common::with(&response.request, crate::common::with(&json!({"n_predict": 3}), never))
                .to_string();
            let answer = response.engine.complete_as(response.mode.endpoint(), request.as_bytes());
            let answer = answer.expect("a response with the error");
            assert_eq!((&answer["success"], &answer["stop_type"]), (&json!(false), &json!("error")), "{answer}");
            assert_eq!((&answer["status"], &answer["code"]), (&json!(400), &json!("invalid_request")));
            assert!(
                answer["error"].as_str().expect("a message").starts_with("grammar: no token can follow"),
                "{answer}"
            );
        }),
        row(&["json_schema"], json!({"json_schema": {"enum": ["Mia", 7]}}), |response| {
            assert!(["\"Mia\"", "7"].contains(&response.content()), "{}", response.content());
            assert_eq!(response.answer["stop_type"], "eos");
            assert_eq!(response.setting("json_schema"), &json!({"enum": ["Mia", 7]}));
            let as_text = response.ask(json!({"json_schema": "{\"const\": [1, null]}"}));
            let content: String = as_text.content().split_whitespace().collect();
            assert_eq!(content, "[1,null]");
            assert_eq!(as_text.setting("json_schema"), &json!({"const": [1, null]}));
            assert_eq!(as_text.setting("grammar"), "");
            let both = response.refused(json!({"grammar": "root ::= \"a\""}));
            assert!(both.starts_with("json_schema: expected either json_schema or grammar"), "{both}");
            // What a grammar cannot enforce is said.
            let warned = response.ask(json!({"json_schema": {"enum": ["Mia"], "$dynamicRef": "#x"}}));
            assert_eq!(warned.content(), "\"Mia\"");
            let warnings = warned.answer["warnings"].to_string();
            assert!(
                warnings.contains("json_schema: #: $dynamicRef beside enum or const cannot be enforced"),
                "{warnings}"
            );
        }),
        row(
            &["property_order"],
            json!({"json_schema": {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["a", "b"]},
                "property_order": "any", "n_predict": 200}),
            |response| {
                let orders = ["{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}"];
                let content: String = response.content().split_whitespace().collect();
                assert!(orders.contains(&content.as_str()), "{content}");
                assert_eq!(response.setting("property_order"), "any");
                assert!(response.refused(json!({"property_order": "none"})).starts_with("property_order: "));
            },
        ),
        row(
            &["additional_properties"],
            json!({"json_schema": {"type": "object", "properties": {"a": {"const": 1}}, "minProperties": 2, "maxProperties": 2,
                "propertyNames": {"enum": ["a", "b"]}}, "additional_properties": true, "n_predict": 200}),
            |response| {
                assert!(response.content().contains("\"b\""), "{}", response.content());
                assert_eq!(response.setting("additional_properties"), &json!(true));
            },
        ),
        row(
            &["schema_in_prompt"],
            json!({"prompt": null, "messages": [{"role": "user", "content": "Who?"}], "chat_template": "chatml",
                "json_schema": {"enum": ["Mia", 7]}, "schema_in_prompt": true, "response_fields": ["prompt", "content"]}),
            |response| {
                let shown = |answer: &Value| answer["prompt"].as_str().unwrap().contains(r#"{"enum":["Mia",7]}"#);
                assert!(shown(&response.answer), "{}", response.answer);
                assert!(!shown(&response.ask(json!({"schema_in_prompt": false})).answer));
                assert!(
                    response
                        .refused(json!({"schema_in_prompt": 1}))
                        .starts_with("schema_in_prompt: expected true, false or a text")
                );
            },
        ),
        row(&["choices", "choice"], json!({"choices": [" Mia", {"text": " x y", "tag": 5}]}), |response| {
            let (choice, choices) = (&response.answer["choice"], &response.answer["choices"]);
            assert_eq!((choice, response.content()), (&json!(0), " Mia"));
            assert_eq!(response.answer["stop_type"], "eos");
            assert_eq!((&choices[1]["text"], &choices[1]["tag"]), (&json!(" x y"), &json!(5)));
            let probs: Vec<f64> = choices.as_array().expect("two").iter().map(|one| float(&one["prob"])).collect();
            assert!((probs[0] + probs[1] - 1.0).abs() < 1e-9 && probs[0] > 0.5, "{probs:?}");
            let ratio = (float(&choices[1]["logprob"]) - float(&choices[0]["logprob"])).exp();
            assert!((ratio - probs[1] / probs[0]).abs() < 1e-6);
            assert_eq!(response.setting("choices"), &json!([{"text": " Mia"}, {"text": " x y", "tag": 5}]));
            assert!(response.refused(json!({"choices": []})).starts_with("choices: expected 1 to 1000 texts"));
        }),
    ]
}

/// Biases that ban every token with which that row's grammar can begin.
fn bans(response: &Response) -> Value {
    let ids = tokenized(response.engine, json!({"text": "\u{1}", "add_special": false}));
    ids.iter().map(|id| json!([id, false])).collect()
}

#[test]
fn stop_and_limit_fields_end_the_completion() {
    run(&start(json!({"n_ctx": 256})), &rows());
}

#[test]
fn cancelled_completion_reports_cancelled() {
    let engine = start(json!({"n_ctx": 256}));
    for mode in [CallMode::Polled, CallMode::Speculative] {
        let request =
            crate::common::with(&crate::table::base(mode), json!({"n_predict": -1, "ignore_eos": true, "tag": "t"}));
        let id = crate::common::submit(&engine, mode.endpoint(), &request);
        let cancel = json!({"id": id}).to_string();
        engine.cancel_as(mode.endpoint(), Some(cancel.as_bytes())).expect("a cancel");
        let updates = crate::common::drain(&engine, mode.endpoint(), id);
        let last = updates.last().expect("a final response");
        assert_eq!(
            (&last["stop_type"], &last["tag"], &last["success"]),
            (&json!("cancelled"), &json!("t"), &json!(true))
        );
    }
}
