//! Fields with tests of their own (`tests/beams.rs`, `tests/sessions.rs`, ...): here, that each is served in every way.

use serde_json::json;

use crate::common::{model, start, with};
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
        row(&["speculative.model"], json!({"temperature": 1.2, "n_predict": 40, "ignore_eos": true}), |seen| {
            let preview = seen.ask(json!({"speculative.model": "draft"}));
            assert_eq!(preview.answer["model"], model("draft"));
            assert_ne!(preview.tokens(), seen.tokens());
            let why = &preview.answer["speculative"]["disabled"];
            assert!(why.as_str().is_some_and(|why| why.starts_with("speculative.model is draft")), "{why}");
            assert_eq!(preview.setting("speculative")["model"], "draft");
            let target = seen.ask(json!({"speculative.model": "target"}));
            assert_eq!((target.tokens(), &target.answer["model"]), (seen.tokens(), &seen.answer["model"]));
            let wrong = seen.refused(json!({"speculative.model": "both"}));
            assert!(wrong.starts_with("speculative.model: expected one of \"target\", \"draft\""), "{wrong}");
        }),
        row(&["speculative.verify"], json!({"temperature": 0, "n_predict": 40}), |seen| {
            for verify in ["coupled", "match", "rejection", "block"] {
                let speculative = json!({"type": "draft", "adaptive": false, "n_max": 4, "verify": verify});
                let other = seen.ask(json!({"speculative": speculative}));
                assert_eq!(other.tokens(), seen.tokens(), "{verify}");
                let stats = &other.answer["speculative"];
                assert_eq!(
                    (&stats["verify"], stats["n_accepted"].as_u64() > Some(10)),
                    (&json!(verify), true),
                    "{stats}"
                );
            }
            // Where there is a choice, chance of its own makes it.
            let sampled = |verify: &str| {
                seen.ask(
                    json!({"temperature": 1, "speculative": {"type": "draft", "adaptive": false, "verify": verify}}),
                )
                .tokens()
            };
            assert_eq!(sampled("coupled"), sampled("match"));
            assert_eq!(sampled("rejection"), sampled("rejection"));
            assert_ne!(sampled("rejection"), sampled("coupled"));
            let wrong = seen.refused(json!({"speculative.verify": "exact"}));
            assert!(wrong.starts_with("speculative.verify: expected one of \"coupled\""), "{wrong}");
        }),
        row(&["speculative.n_branches", "speculative.p_split"], json!({"temperature": 0.9, "n_predict": 40}), |seen| {
            let draft = |n_branches: i32, p_split: f64| {
                let speculative = json!({"type": "draft", "adaptive": false, "n_max": 12, "n_branches": n_branches, "p_split": p_split});
                let other = seen.ask(json!({"speculative": speculative}));
                assert_eq!(other.tokens(), seen.tokens());
                let setting = other.setting("speculative");
                assert_eq!(
                    (&setting["n_branches"], setting["p_split"].as_f64().expect("a number")),
                    (&json!(n_branches), p_split)
                );
                other.answer["speculative"]["accepted_per_position"].as_array().expect("a list").len()
            };
            let chain = draft(1, 0.0);
            assert_eq!((chain, draft(8, 1.0)), (12, 12), "a token that is sure has no others beside it");
            let wrong = seen.refused(json!({"speculative.n_branches": 9}));
            assert!(wrong.starts_with("speculative.n_branches: expected a whole number from 0 to 8"), "{wrong}");
            let wrong = seen.refused(json!({"speculative.p_split": 2}));
            assert!(wrong.starts_with("speculative.p_split: expected a number from 0 to 1"), "{wrong}");
        }),
        row(&["speculative.compare"], json!({"temperature": 0.7}), |seen| {
            assert!(seen.answer["speculative"].get("first_difference").is_none());
            let compared = seen.ask(json!({"speculative.compare": true}));
            assert_eq!(compared.tokens(), seen.tokens());
            let stats = &compared.answer["speculative"];
            assert_eq!(stats.get("first_difference"), Some(&json!(null)), "{stats}");
            assert_eq!(compared.setting("speculative")["compare"], true);
            // The second run is nowhere to be seen.
            assert_eq!(compared.answer["timings"]["predicted_n"], compared.answer["tokens_predicted"]);
            assert!(
                seen.refused(json!({"speculative.compare": 1})).starts_with("speculative.compare: expected true or")
            );
            let off = seen.without("speculative").ask(json!({"speculative.compare": true, "speculative.type": "none"}));
            let stats = off.answer["speculative"].as_object().expect("an object");
            assert!(stats.contains_key("compare_skipped") && !stats.contains_key("first_difference"), "{stats:?}");
        }),
    ]
}

#[test]
fn the_rest_is_served_in_every_way() {
    run(&start(json!({"n_ctx": 256})), &rows());
}
