//! Fields with tests of their own (`tests/beams.rs`, `tests/sessions.rs`, ...): here, that each is served in every way.

use serde_json::json;

use crate::common::{start, with};
use crate::frame::{Row, Seen, Way, row, run};

/// A name for a session file of this process.
fn session() -> String {
    std::env::temp_dir().join(format!("foredraft-{}-fields.session", std::process::id())).to_string_lossy().into_owned()
}

pub fn rows() -> Vec<Row> {
    vec![
        row(&["n_beams"], json!({"n_beams": 3, "n_probs": 1, "temperature": 0, "repeat_penalty": 1}), |seen| {
            let logprob = |seen: &Seen| -> f64 {
                let tokens = seen.answer["completion_probabilities"].as_array().expect("probabilities");
                assert_eq!(tokens.len(), 16);
                tokens.iter().map(|token| token["logprob"].as_f64().expect("a number")).sum()
            };
            // Nothing is drawn, and the text is no less probable than the greedy one.
            assert_eq!(seen.ask(json!({"seed": 8, "temperature": 2})).tokens(), seen.tokens());
            let greedy = seen.ask(json!({"n_beams": 1}));
            assert!(logprob(seen) > logprob(&greedy) - 0.01, "{} {}", logprob(seen), logprob(&greedy));
            assert!(seen.refused(json!({"n_beams": 1000})).starts_with("n_beams: expected a whole number"));
        }),
        row(&["session_save", "session_load"], json!({"session_save": session(), "cache_prompt": true}), |seen| {
            let saved = &seen.answer["session_save"];
            assert_eq!((&saved["success"], &saved["n_saved"]), (&json!(true), &seen.answer["tokens_cached"]));
            assert_eq!(saved["n_written"].as_u64(), std::fs::metadata(session()).ok().map(|file| file.len()));
            // Another prompt takes the slot; then the session is back, and only what is new is evaluated.
            let other = seen.without("session_save").ask(json!({"prompt": "<|im_start|>user\nCount from 1 to 9."}));
            let back = other.ask(json!({"prompt": seen.request["prompt"], "session_load": session(), "n_predict": 4}));
            assert_eq!(back.answer["session_load"]["n_restored"], saved["n_saved"]);
            let cached = back.answer["timings"]["cache_n"].as_u64();
            assert_eq!(cached, seen.answer["tokens_evaluated"].as_u64().map(|n| n - 1));
            assert_eq!(back.tokens(), seen.tokens()[..4]);
            let missing = with(&other.request, json!({"session_load": "/no/such.session"})).to_string();
            let answer = seen.system.with_server(|server| server.complete(seen.way.family(), missing.as_bytes()));
            let said = answer.map_or_else(|error| error.message().to_owned(), |answer| answer["error"].to_string());
            assert!(said.contains("/no/such.session"), "{said}");
            std::fs::remove_file(session()).expect("the file");
        }),
        row(&["prediction"], json!({"temperature": 0, "n_predict": 40}), |seen| {
            let guess = json!({"prediction": {"type": "content", "content": seen.content()}});
            let predicted = seen.ask(guess);
            assert_eq!(predicted.tokens(), seen.tokens());
            if seen.way == Way::Speculative {
                let wrong = seen.ask(json!({"prediction": {"type": "content", "content": "1, 2, 3, 4"}}));
                assert_eq!(wrong.tokens(), seen.tokens());
            }
            assert!(seen.refused(json!({"prediction": {"type": "text"}})).starts_with("prediction: expected"));
        }),
        row(&["json_schema"], json!({"json_schema": {"enum": ["Mia", 7]}}), |seen| {
            assert!(["\"Mia\"", "7"].contains(&seen.content()), "{}", seen.content());
            assert_eq!(seen.answer["stop_type"], "eos");
            assert_eq!(seen.setting("json_schema"), &json!({"enum": ["Mia", 7]}));
            let as_text = seen.ask(json!({"json_schema": "{\"const\": [1, null]}"}));
            assert_eq!(as_text.content(), "[1,null]");
            assert_eq!(as_text.setting("json_schema"), &json!({"const": [1, null]}));
            // The grammar that it was made is the same request.
            let grammar = as_text.setting("grammar").clone();
            assert_eq!(seen.without("json_schema").ask(json!({"grammar": grammar})).content(), "[1,null]");
            let both = seen.refused(json!({"grammar": "root ::= \"a\""}));
            assert!(both.starts_with("json_schema: either json_schema or grammar"), "{both}");
            assert!(seen.refused(json!({"json_schema": {"not": {}}})).starts_with("json_schema: #: not cannot be"));
        }),
    ]
}

#[test]
fn beams_sessions_predictions_and_schemas_work_on_every_endpoint() {
    run(&start(json!({"n_ctx": 256})), &rows());
}
