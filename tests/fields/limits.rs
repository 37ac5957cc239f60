//! When a text ends, and what is said about it.

use serde_json::{Value, json};

use crate::common::start;
use crate::frame::{Row, Seen, Way, row, run, tokenized};

/// `stop_type` and the fields of the old server that say the same.
fn stopped(seen: &Seen, how: &str, word: &str) {
    let answer = &seen.answer;
    let facts = ["stop_type", "stopping_word", "stopped_eos", "stopped_word", "stopped_limit", "stop"];
    let found: Vec<&Value> = facts.iter().map(|fact| &answer[fact]).collect();
    assert_eq!(json!(found), json!([how, word, how == "eos", how == "word", how == "limit", true]), "{}", seen.request);
}

/// A text with an end: the model counts, and says so.
fn counting() -> Value {
    json!({"prompt": "<|im_start|>user\nCount from 1 to 5.<|im_end|>\n<|im_start|>assistant\n", "temperature": 0, "n_predict": 40})
}

pub fn rows() -> Vec<Row> {
    vec![
        row(&["n_predict", "tokens_predicted", "stopped_limit"], json!({"n_predict": 5}), |seen| {
            stopped(seen, "limit", "");
            assert_eq!((&seen.answer["tokens_predicted"], seen.tokens().len()), (&json!(5), 5));
            let more = seen.ask(json!({"n_predict": 9}));
            assert!(more.content().starts_with(seen.content()) && more.tokens().len() == 9);
            let none = seen.ask(json!({"n_predict": 0}));
            assert_eq!((none.content(), &none.answer["tokens_predicted"]), ("", &json!(0)));
        }),
        row(&["ignore_eos", "stopped_eos"], counting(), |seen| {
            stopped(seen, "eos", "");
            let n = seen.tokens().len();
            assert!(n < 40);
            let on = seen.ask(json!({"ignore_eos": true}));
            stopped(&on, "limit", "");
            assert_eq!((on.tokens().len(), &on.tokens()[..n - 1]), (40, &seen.tokens()[..n - 1]));
        }),
        row(&["stop", "stopped_word", "stopping_word", "content"], counting(), |seen| {
            let cut = seen.ask(json!({"stop": ["4,", "never", ", 3"]}));
            stopped(&cut, "word", ", 3");
            assert_eq!(cut.content(), seen.content().split(", 3").next().expect("a beginning"));
            for update in &cut.updates {
                let text = update["content"].as_str().expect("content");
                assert!(!text.ends_with([',', ' ']), "what may become a stop string is held back: {update}");
            }
            stopped(&seen.ask(json!({"stop": "2"})), "word", "2");
            assert_eq!(seen.ask(json!({"stop": ["", "zzz"]})).content(), seen.content());
        }),
        row(&["timeout_ms"], json!({"timeout_ms": 150, "n_predict": -1, "ignore_eos": true}), |seen| {
            stopped(seen, "timeout", "");
            assert_eq!(seen.answer["success"], true);
            let unlimited = seen.ask(json!({"timeout_ms": 0, "n_predict": 10}));
            stopped(&unlimited, "limit", "");
            assert_eq!(unlimited.setting("timeout_ms"), 0);
        }),
        row(
            &["t_max_predict_ms"],
            json!({
                "t_max_predict_ms": 1, "n_predict": 120, "ignore_eos": true, "temperature": 0,
                "grammar": "root ::= ([a-z ]{5,15} \"\\n\")+",
            }),
            |seen| {
                // The first newline after a millisecond ends the text; the token with it belongs to it.
                stopped(seen, "limit", "");
                let newlines = seen.content().matches('\n').count();
                assert!((1..120).contains(&seen.tokens().len()) && newlines >= 1, "{}", seen.answer);
                let last = json!({"tokens": &seen.tokens()[seen.tokens().len() - 1..]}).to_string();
                let last = seen.system.with_server(|server| server.detokenize(last.as_bytes())).expect("text");
                assert!(last["content"].as_str().expect("text").contains('\n'), "{last}");
                let free = seen.ask(json!({"t_max_predict_ms": 0}));
                assert_eq!((free.tokens().len(), free.content().starts_with(seen.content())), (120, true));
                // Without a newline the time does not matter.
                let line = seen.ask(json!({"grammar": "root ::= [a-z ]{200}", "n_predict": 30}));
                assert_eq!((line.tokens().len(), line.setting("t_max_predict_ms")), (30, &json!(1)));
            },
        ),
        row(&["grammar"], json!({"grammar": "root ::= \"yes\" | \"no\"", "temperature": 1.5}), |seen| {
            assert!(["yes", "no"].contains(&seen.content()), "{}", seen.answer);
            stopped(seen, "eos", "");
            assert!(seen.refused(json!({"grammar": "root ::= ("})).contains("grammar"));
            assert_eq!(seen.ask(json!({"grammar": ""})).content(), seen.without("grammar").content());
        }),
        row(&["truncated", "tokens_predicted"], json!({"n_predict": 300, "ignore_eos": true}), |seen| {
            // 256 tokens of context, which shifts.
            assert_eq!((&seen.answer["truncated"], &seen.answer["tokens_predicted"]), (&json!(true), &json!(300)));
            assert_eq!(seen.ask(json!({"n_predict": 20})).answer["truncated"], false);
        }),
        row(&["stop_type"], json!({"n_predict": 1, "seed": 3}), |seen| {
            stopped(seen, "limit", "");
            // The others: eos, word and timeout above, cancelled in `cancelled_completion_reports_cancelled`, error here.
            let never = json!({"grammar": "root ::= \"\\u0001\" [a-z]", "logit_bias": bans(seen)});
            let request =
                crate::common::with(&seen.request, crate::common::with(&json!({"n_predict": 3}), never)).to_string();
            let answer = seen.system.with_server(|server| server.complete(seen.way.family(), request.as_bytes()));
            let answer = answer.expect("an answer that says what failed");
            assert_eq!((&answer["success"], &answer["stop_type"]), (&json!(false), &json!("error")), "{answer}");
            assert_eq!((&answer["status"], &answer["code"]), (&json!(400), &json!("invalid_request")));
            assert!(
                answer["error"].as_str().expect("a message").starts_with("grammar: no token can follow"),
                "{answer}"
            );
        }),
    ]
}

/// Biases against every token that the grammar of that row begins with.
fn bans(seen: &Seen) -> Value {
    let ids = tokenized(seen.system, json!({"text": "\u{1}", "add_special": false}));
    ids.iter().map(|id| json!([id, false])).collect()
}

#[test]
fn stop_and_limit_fields_end_the_completion() {
    run(&start(json!({"n_ctx": 256})), &rows());
}

#[test]
fn cancelled_completion_reports_cancelled() {
    let system = start(json!({"n_ctx": 256}));
    for way in [Way::Polled, Way::Speculative] {
        let request =
            crate::common::with(&crate::frame::base(way), json!({"n_predict": -1, "ignore_eos": true, "tag": "t"}));
        let id = crate::common::submit(&system, way.family(), &request);
        let cancel = json!({"id": id}).to_string();
        system.with_server(|server| server.cancel(way.family(), Some(cancel.as_bytes()))).expect("a cancel");
        let updates = crate::common::drain(&system, way.family(), id);
        let last = updates.last().expect("a final response");
        assert_eq!(
            (&last["stop_type"], &last["tag"], &last["success"]),
            (&json!("cancelled"), &json!("t"), &json!(true))
        );
    }
}
