//! `session_save` and `session_load` in a request, on every endpoint. Session files themselves: `tests/requests/sessions.rs`.

use serde_json::json;

use crate::common::{Requests as _, start, with};
use crate::table::{Row, row, run};

/// Path of a session file of this process.
fn session() -> String {
    std::env::temp_dir().join(format!("foredraft-{}-fields.session", std::process::id())).to_string_lossy().into_owned()
}

pub fn rows() -> Vec<Row> {
    vec![row(&["session_save", "session_load"], json!({"session_save": session(), "cache_prompt": true}), |response| {
        let saved = &response.answer["session_save"];
        assert_eq!((&saved["success"], &saved["n_saved"]), (&json!(true), &response.answer["tokens_cached"]));
        assert_eq!(saved["n_written"].as_u64(), std::fs::metadata(session()).ok().map(|file| file.len()));
        // Another prompt takes the slot. Then the session is loaded, and only new tokens are decoded.
        let other = response.without("session_save").ask(json!({"prompt": "<|im_start|>user\nCount from 1 to 9."}));
        let back = other.ask(json!({"prompt": response.request["prompt"], "session_load": session(), "n_predict": 4}));
        assert_eq!(back.answer["session_load"]["n_restored"], saved["n_saved"]);
        let cached = back.answer["timings"]["cache_n"].as_u64();
        assert_eq!(cached, response.answer["tokens_evaluated"].as_u64().map(|n| n - 1));
        assert_eq!(back.tokens(), response.tokens()[..4]);
        let missing = with(&other.request, json!({"session_load": "/no/such.session"})).to_string();
        let answer = response.engine.complete_as(response.mode.endpoint(), missing.as_bytes());
        let error = answer.map_or_else(|error| error.message().to_owned(), |answer| answer["error"].to_string());
        assert!(error.contains("/no/such.session"), "{error}");
        std::fs::remove_file(session()).expect("the file");
    })]
}

#[test]
fn session_fields_work_on_every_endpoint() {
    run(&start(json!({"n_ctx": 256})), &rows());
}
