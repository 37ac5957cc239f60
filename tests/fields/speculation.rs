//! The fields of `speculative`.

use foredraft::ngram::{Cache, Sizes};
use serde_json::{Value, json};

use crate::common::{model, n, start, with};
use crate::table::{CallMode, Response, Row, row, run};

/// The `speculative` report of the same request with these settings, which must not change its output.
fn drafted(response: &Response, speculative: Value) -> Value {
    let other = response.ask(json!({"speculative": speculative}));
    assert_eq!(other.tokens(), response.tokens(), "{speculative}");
    other.answer["speculative"].clone()
}

/// As [`drafted`], with the draft model and fixed draft lengths.
fn by_model(response: &Response, more: Value) -> Value {
    drafted(response, with(&json!({"type": "draft", "adaptive": false}), more))
}

/// A repetitive prompt whose completions are repetitive, too.
const REPETITIVE: &str = "<|im_start|>user\nRepeat after me: Mia has a kite. Mia has a kite. Mia has a kite.<|im_end|>\n\
    <|im_start|>assistant\nMia has a kite. Mia has a kite. Mia has a";

fn greedy() -> Value {
    json!({"temperature": 0, "n_predict": 40, "repeat_penalty": 1, "ignore_eos": true})
}

pub fn rows() -> Vec<Row> {
    vec![
        row(&["speculative.type"], with(&greedy(), json!({"prompt": REPETITIVE})), |response| {
            let eager = json!({"adaptive": false, "n_max": 6});
            for name in ["ngram-cache", "suffix", "draft"] {
                let stats = drafted(response, with(&eager, json!({"type": name})));
                assert_eq!(stats["type"], name, "{stats}");
                let types: Vec<&String> = stats["by_type"].as_object().expect("an object").keys().collect();
                assert_eq!(types, [name], "{stats}");
            }
            let replaced = drafted(response, with(&eager, json!({"type": "ngram-mod", "ngram_mod_n_match": 4})));
            assert_eq!(replaced["type"], "suffix", "{replaced}");
            let both = drafted(response, with(&eager, json!({"type": ["suffix", "draft"]})));
            assert_eq!(both["type"], json!(["suffix", "draft"]));
            assert_eq!(drafted(response, json!({"type": "auto"}))["type"], "auto");
            let none = drafted(response, json!({"type": "none"}));
            assert_eq!((&none["n_drafted"], &none["disabled"]), (&json!(0), &json!("speculative.type is none")));
            let wrong = response.refused(json!({"speculative": {"type": "sufix"}}));
            assert!(wrong.starts_with("speculative.type: expected one of") && wrong.contains("suffix"), "{wrong}");
        }),
        row(&["speculative.n_max"], greedy(), |response| {
            for n_max in [1, 5, 16] {
                let stats = by_model(response, json!({"n_max": n_max}));
                assert_eq!(stats["accepted_per_position"].as_array().map(Vec::len), Some(n_max), "{stats}");
                assert_eq!(n(&stats["n_max_final"]), n_max);
                assert!(n(&stats["n_drafted"]) <= n_max * n(&stats["n_steps"]), "{stats}");
            }
            assert_eq!(by_model(response, json!({"n_max": 0}))["n_drafted"], 0);
            let wrong = response.refused(json!({"speculative": {"n_max": -1}}));
            assert!(wrong.starts_with("speculative.n_max: expected a whole number from 0 to "), "{wrong}");
        }),
        row(&["speculative.n_min", "speculative.p_min"], greedy(), |response| {
            let of = |n_min: usize, p_min: f64| by_model(response, json!({"n_max": 6, "n_min": n_min, "p_min": p_min}));
            let (all, sure, only_long) = (of(0, 0.0), of(0, 0.9), of(6, 0.9));
            assert!(n(&sure["n_drafted"]) < n(&all["n_drafted"]), "{sure} {all}");
            assert!(sure["accept_rate"].as_f64() > all["accept_rate"].as_f64(), "{sure} {all}");
            // A draft shorter than `n_min` is dropped.
            assert_eq!((n(&only_long["n_drafted"]) > 0, n(&only_long["n_drafted"]) % 6), (true, 0), "{only_long}");
            assert!(n(&only_long["n_drafted"]) < n(&sure["n_drafted"]), "{only_long} {sure}");
            let wrong = response.refused(json!({"speculative": {"n_max": 3, "n_min": 4}}));
            assert!(wrong.starts_with("speculative.n_min: expected a whole number from 0 to 3"), "{wrong}");
            let wrong = response.refused(json!({"speculative": {"p_min": 1.5}}));
            assert!(wrong.starts_with("speculative.p_min: expected a number from 0 to 1"), "{wrong}");
        }),
        row(&["speculative.adaptive"], greedy(), |response| {
            for (adaptive, final_lengths) in
                [(json!(false), 12..=12), (json!("heuristic"), 2..=12), (json!(true), 0..=12)]
            {
                let stats = drafted(response, json!({"type": "draft", "n_max": 12, "adaptive": adaptive}));
                assert!(final_lengths.contains(&n(&stats["n_max_final"])), "{adaptive} {stats}");
            }
            let fixed = by_model(response, json!({"n_max": 12}));
            let heuristic = drafted(response, json!({"type": "draft", "n_max": 12, "adaptive": "heuristic"}));
            assert!(n(&heuristic["n_drafted"]) < n(&fixed["n_drafted"]), "shorter drafts must follow rejected ones");
            let wrong = response.refused(json!({"speculative": {"adaptive": "sometimes"}}));
            assert!(wrong.starts_with("speculative.adaptive: expected true, false or \"heuristic\""), "{wrong}");
        }),
        row(&["speculative.lookup_cache_static", "speculative.lookup_cache_dynamic"], greedy(), |response| {
            let file = std::env::temp_dir().join(format!("foredraft-{}-fields.ngrams", std::process::id()));
            let text: Vec<i32> = response.tokens().iter().map(|token| i32::try_from(*token).expect("an id")).collect();
            let mut cache = Cache::new();
            (0..4).for_each(|_| cache.update(&text, text.len(), Sizes::ALL));
            let mut bytes = Vec::new();
            cache.write(&mut bytes).expect("memory");
            std::fs::write(&file, bytes).expect("a file");
            let of = |more: Value| {
                // Clear what the cache learned from its own outputs.
                let clear = json!({"action": "clear", "cache": "dynamic"}).to_string();
                response.engine.with_loaded(|loaded| loaded.lookup_cache(clear.as_bytes())).expect("cleared");
                n(&drafted(response, with(&json!({"type": "ngram-cache", "adaptive": false}), more))["n_accepted"])
            };
            let without = of(json!({}));
            for key in ["lookup_cache_static", "lookup_cache_dynamic"] {
                assert!(of(json!({key: file})) > without + 10, "{key}");
                let wrong = response.refused(json!({"speculative": {key: "/no/such.ngrams"}}));
                assert!(wrong.starts_with(&format!("speculative.{key}: ")), "{wrong}");
            }
            std::fs::remove_file(file).expect("the file");
        }),
        row(&["speculative.model"], json!({"temperature": 1.2, "n_predict": 40, "ignore_eos": true}), |response| {
            let answer_of_draft = response.ask(json!({"speculative.model": "draft"}));
            assert_eq!(answer_of_draft.answer["model"], model("draft"));
            assert_ne!(answer_of_draft.tokens(), response.tokens());
            let why = &answer_of_draft.answer["speculative"]["disabled"];
            assert!(why.as_str().is_some_and(|why| why.starts_with("speculative.model is draft")), "{why}");
            assert_eq!(answer_of_draft.setting("speculative")["model"], "draft");
            let target = response.ask(json!({"speculative.model": "target"}));
            assert_eq!((target.tokens(), &target.answer["model"]), (response.tokens(), &response.answer["model"]));
            let wrong = response.refused(json!({"speculative.model": "both"}));
            assert!(wrong.starts_with("speculative.model: expected one of \"target\", \"draft\""), "{wrong}");
        }),
        row(&["speculative.verify"], json!({"temperature": 0, "n_predict": 40}), |response| {
            for verify in ["coupled", "match", "rejection", "block"] {
                let speculative = json!({"type": "draft", "adaptive": false, "n_max": 4, "verify": verify});
                let other = response.ask(json!({"speculative": speculative}));
                assert_eq!(other.tokens(), response.tokens(), "{verify}");
                let stats = &other.answer["speculative"];
                assert_eq!(
                    (&stats["verify"], stats["n_accepted"].as_u64() > Some(10)),
                    (&json!(verify), true),
                    "{stats}"
                );
            }
            // When sampling, rejection draws its own random numbers.
            let sampled = |verify: &str| {
                response.ask(
                    json!({"temperature": 1, "speculative": {"type": "draft", "adaptive": false, "verify": verify}}),
                )
                .tokens()
            };
            assert_eq!(sampled("coupled"), sampled("match"));
            assert_eq!(sampled("rejection"), sampled("rejection"));
            assert_ne!(sampled("rejection"), sampled("coupled"));
            let wrong = response.refused(json!({"speculative.verify": "exact"}));
            assert!(wrong.starts_with("speculative.verify: expected one of \"coupled\""), "{wrong}");
        }),
        row(
            &["speculative.n_branches", "speculative.p_split"],
            json!({"temperature": 0.9, "n_predict": 40}),
            |response| {
                let draft = |n_branches: i32, p_split: f64| {
                    let speculative = json!({"type": "draft", "adaptive": false, "n_max": 12, "n_branches": n_branches, "p_split": p_split});
                    let other = response.ask(json!({"speculative": speculative}));
                    assert_eq!(other.tokens(), response.tokens());
                    let setting = other.setting("speculative");
                    assert_eq!(
                        (&setting["n_branches"], setting["p_split"].as_f64().expect("a number")),
                        (&json!(n_branches), p_split)
                    );
                    other.answer["speculative"]["accepted_per_position"].as_array().expect("a list").len()
                };
                let chain = draft(1, 0.0);
                assert_eq!((chain, draft(8, 1.0)), (12, 12), "a token above p_split gets no branches");
                let wrong = response.refused(json!({"speculative.n_branches": 9}));
                assert!(wrong.starts_with("speculative.n_branches: expected a whole number from 0 to 8"), "{wrong}");
                let wrong = response.refused(json!({"speculative.p_split": 2}));
                assert!(wrong.starts_with("speculative.p_split: expected a number from 0 to 1"), "{wrong}");
            },
        ),
        row(&["speculative.compare"], json!({"temperature": 0.7}), |response| {
            assert!(response.answer["speculative"].get("first_difference").is_none());
            let compared = response.ask(json!({"speculative.compare": true}));
            assert_eq!(compared.tokens(), response.tokens());
            let stats = &compared.answer["speculative"];
            assert_eq!(stats.get("first_difference"), Some(&json!(null)), "{stats}");
            assert_eq!(compared.setting("speculative")["compare"], true);
            // The second run does not show in the counts.
            assert_eq!(compared.answer["timings"]["predicted_n"], compared.answer["tokens_predicted"]);
            assert!(
                response
                    .refused(json!({"speculative.compare": 1}))
                    .starts_with("speculative.compare: expected true or")
            );
            let off =
                response.without("speculative").ask(json!({"speculative.compare": true, "speculative.type": "none"}));
            let stats = off.answer["speculative"].as_object().expect("an object");
            assert!(stats.contains_key("compare_skipped") && !stats.contains_key("first_difference"), "{stats:?}");
        }),
        row(&["prediction"], json!({"temperature": 0, "n_predict": 40}), |response| {
            let guess = json!({"prediction": {"type": "content", "content": response.content()}});
            let predicted = response.ask(guess);
            assert_eq!(predicted.tokens(), response.tokens());
            if response.mode == CallMode::Speculative {
                let wrong = response.ask(json!({"prediction": {"type": "content", "content": "1, 2, 3, 4"}}));
                assert_eq!(wrong.tokens(), response.tokens());
            }
            assert!(response.refused(json!({"prediction": {"type": "text"}})).starts_with("prediction: expected"));
        }),
    ]
}

#[test]
fn speculative_fields_work_on_every_endpoint() {
    run(&start(json!({"n_ctx": 256})), &rows());
}
