//! Drafts in requests with pictures and sounds: every drafter makes them, and they change no token.

use foredraft::api::{Function, JsonEngine};
use serde_json::{Value, json};

use crate::common::Endpoint::Foredraft;
use crate::common::changed_vocabulary::ChangedVocabulary;
use crate::common::pictures::{chat, rgb8};
use crate::common::sounds::sound;
use crate::common::tiny_models::heads::{assistant, dflash, eagle3, gemma4_target, head_target};
use crate::common::tiny_models::{delta_net, delta_net_mtp, mtp_layers, projectors, qwen_vl, sliding_window};
use crate::common::{cancel, complete, drain, model, n, poll, start, submit, with};

/// A drafter: its name, the type in requests, a load with it, whether it reads the rows of pictures (`None`: it has no cache of tokens), and
/// whether the target accepts some of its drafts.
type Drafting = (&'static str, &'static str, Value, Option<bool>, bool);

fn drafters() -> Vec<Drafting> {
    let shipped = |more: Value| with(&json!({"mmproj": model("vision")}), more);
    let pair =
        |target: String, draft: String, mmproj: &str| json!({"model": target, "model_draft": draft, "mmproj": mmproj});
    let mtp = |target: String, mmproj: &str| json!({"model": target, "model_draft": null, "mmproj": mmproj, "speculative": {"type": "mtp"}});
    let other = ChangedVocabulary::new("draft").shuffled().write("shuffled-for-pictures");
    let (lfm2, qwen, gemma) = (&projectors::lfm2(), &projectors::qwen("2"), &projectors::gemma3());
    let draft = || model("draft");
    // The outputs of these models walk through the vocabulary.
    let walk = || head_target(1.0);
    vec![
        ("draft model", "draft", shipped(json!({})), Some(false), false),
        ("few tokens", "draft", shipped(json!({"draft_vocab": 200})), Some(false), false),
        ("another vocabulary", "draft", shipped(json!({"model_draft": other})), Some(false), false),
        ("shared cells", "draft", shipped(json!({"kv_unified": true})), Some(false), false),
        ("four numbers a position", "draft", pair(qwen_vl("2"), draft(), qwen), Some(false), false),
        ("recurrent", "draft", pair(delta_net(), draft(), qwen), Some(false), false),
        ("not causal", "draft", pair(sliding_window(), draft(), gemma), Some(false), false),
        ("two walks", "draft", pair(walk(), head_target(0.5), lfm2), Some(false), true),
        ("history", "suffix", shipped(json!({"model_draft": null})), None, false),
        ("shipped EAGLE-3", "draft", shipped(json!({"model_draft": model("eagle3")})), Some(true), false),
        ("EAGLE-3, not causal", "draft", pair(head_target(0.1), eagle3("own", |_| ()), gemma), Some(true), true),
        (
            "EAGLE-3, sounds",
            "draft",
            pair(head_target(0.1), eagle3("own", |_| ()), &projectors::ultravox()),
            Some(true),
            true,
        ),
        ("two walks, sounds", "draft", pair(walk(), head_target(0.5), &projectors::ultravox()), Some(false), true),
        ("DFlash", "draft", pair(walk(), dflash("own", false, |_| ()), lfm2), Some(true), true),
        ("MTP, two layers", "mtp", mtp(mtp_layers(), lfm2), Some(true), true),
        ("MTP, four numbers a position", "mtp", mtp(delta_net_mtp(), qwen), Some(true), true),
        ("assistant", "draft", pair(gemma4_target(1.0, 0), assistant("right", 2, 0.02, |_| ()), lfm2), None, true),
    ]
}

fn load(init: &Value, more: Value) -> JsonEngine {
    let sizes = json!({"n_ctx": 512, "n_batch": 64, "n_ubatch": 64});
    start(with(&with(&sizes, init.clone()), more))
}

fn call(engine: &JsonEngine, function: Function, request: &Value) -> Value {
    engine.call(function, Ok(request.to_string().as_bytes())).expect("an answer")
}

fn tokens_of(updates: &[Value]) -> Value {
    updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect()
}

#[test]
fn every_drafter_drafts_after_pictures_and_changes_nothing() {
    let folder = std::env::temp_dir().join(format!("foredraft-drafts-of-pictures-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, kind, init, reads_rows, is_accepted) in drafters() {
        let sampled = json!({"temperature": 0.9, "seed": 3, "cache_prompt": true});
        let speculative = json!({"type": kind, "adaptive": false, "n_max": 4});
        let part = if name.ends_with("sounds") { sound } else { rgb8 };
        let ask = |numbers: [u32; 2]| {
            let request = with(&chat(&numbers.map(part)), sampled.clone());
            let plain = with(&request, json!({"speculative": false}));
            let expected = complete(&load(&init, json!({})), Foredraft, &plain)["tokens"].clone();
            (with(&request, json!({"speculative": speculative})), expected)
        };
        let [(seen, expected), (other, expected_other)] = [ask([1, 2]), ask([1, 4])];
        let engine = load(&init, json!({"n_parallel": 2}));
        let check = |engine: &JsonEngine, request: &Value, expected: &Value, how: &str| {
            let answer = complete(engine, Foredraft, request);
            let report = &answer["speculative"];
            assert_eq!(answer["tokens"], *expected, "{name}, {how}: {report}");
            // Texts that repeat nothing have no draft of the history.
            assert!(n(&report["n_drafted"]) > 5 || kind == "suffix", "{name}, {how}: {report}");
            assert!(n(&report["n_accepted"]) > 0 || !is_accepted, "{name}, {how}: {report}");
            assert!(report["disabled"].is_null(), "{name}, {how}: {report}");
            answer
        };
        let first = with(&seen, json!({"id_slot": 0}));
        check(&engine, &first, &expected, "new");
        let cached = n(&check(&engine, &first, &expected, "cached")["timings"]["cache_n"]);
        let adaptive = complete(&engine, Foredraft, &with(&first, json!({"speculative": {"type": "auto"}})));
        assert_eq!(adaptive["tokens"], expected, "{name}, adaptive");
        check(&engine, &with(&seen, json!({"id_slot": 1})), &expected, "in another slot");
        let both = [&seen, &other].map(|request| submit(&engine, Foredraft, request));
        let both = both.map(|id| tokens_of(&drain(&engine, Foredraft, id)));
        assert_eq!(both, [expected.clone(), expected_other.clone()], "{name}: side by side");
        let id = submit(&engine, Foredraft, &with(&other, json!({"id_slot": 0, "n_predict": 200})));
        // On a busy machine it may have ended.
        if poll(&engine, Foredraft, id, 60_000)["finished"] == false {
            cancel(&engine, Foredraft, id);
            drain(&engine, Foredraft, id);
        }
        check(&engine, &first, &expected, "after a cancel");
        let named = json!({"conversation": "a", "session_save": folder.join("saved"), "n_predict": 1});
        complete(&engine, Foredraft, &with(&seen, named));
        check(&engine, &with(&other, json!({"conversation": "b"})), &expected_other, "another conversation");
        check(&engine, &with(&seen, json!({"conversation": "a"})), &expected, "a conversation");
        let fresh = load(&init, json!({"n_parallel": 2}));
        check(&fresh, &with(&seen, json!({"session_load": folder.join("saved")})), &expected, "saved");
        check(&fresh, &other, &expected_other, "another picture after it");
        // The tokens in a drafter's cache.
        let all = call(&engine, Function::Tokenize, &json!({"messages": seen["messages"]}));
        let ids = all["ids"].as_array().expect("ids");
        let (n_all, n_text) = (ids.len(), ids.iter().filter(|id| id.as_i64() >= Some(0)).count());
        assert!(n_text + 8 <= n_all && cached > 0, "{name}: {n_text} of {n_all}");
        let fresh = load(&init, json!({}));
        complete(&fresh, Foredraft, &with(&seen, json!({"n_predict": 4})));
        let kept = n(&call(&fresh, Function::SessionErase, &json!({"id_slot": 0}))["n_erased_draft"]);
        let expected = reads_rows.map_or(0, |reads| if reads { n_all } else { n_text });
        assert!(kept.abs_diff(expected) <= 4, "{name}: {kept} of {n_all}, {n_text} of them text");
    }
    std::fs::remove_dir_all(folder).expect("the folder");
}
