//! Sessions: saving a slot's KV cache to a file, and loading it.

use std::path::PathBuf;

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Requests as _, cancel, complete, drain, model, prompts, results, start, submit, text, with};
use foredraft::api::JsonEngine;
use foredraft::error::{Code, Error};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

/// A session file for one test.
fn file(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sessions");
    std::fs::create_dir_all(&folder).expect("target/ is writable");
    folder.join(format!("{name}.session"))
}

fn save(engine: &JsonEngine, slot: usize, path: &PathBuf) -> Result<Value, Error> {
    let request = json!({"id_slot": slot, "filename": path}).to_string();
    engine.with_loaded(|loaded| loaded.session_save(request.as_bytes()))
}

fn load(engine: &JsonEngine, slot: usize, path: &PathBuf) -> Result<Value, Error> {
    let request = json!({"id_slot": slot, "filename": path}).to_string();
    engine.with_loaded(|loaded| loaded.session_load(request.as_bytes()))
}

fn n_past(engine: &JsonEngine, slot: usize) -> u64 {
    engine.status()["slots"][slot]["n_past"].as_u64().expect("a number")
}

/// A familiar prompt of more than 200 tokens.
fn long_prompt() -> String {
    prompts().iter().take(14).cloned().collect::<Vec<_>>().join("\n")
}

fn request(prompt: &str) -> Value {
    json!({"prompt": prompt, "n_predict": 24, "temperature": 0, "ignore_eos": true, "return_tokens": true})
}

const STEADY: &str = r#"{"type": "draft", "adaptive": false, "n_max": 4}"#;

fn steady() -> Value {
    json!({"speculative": serde_json::from_str::<Value>(STEADY).expect("JSON")})
}

#[test]
fn loaded_session_decodes_only_new_tokens() {
    let path = file("continued");
    let first = request(&long_prompt());
    let (second, expected) = {
        let engine = start(json!({"n_ctx": 1024, "n_ubatch": 32}));
        let answer = complete(&engine, Foredraft, &with(&first, steady()));
        let saved = save(&engine, 0, &path).expect("saved");
        assert_eq!(saved["n_saved"], n_past(&engine, 0), "{saved}");
        assert_eq!(saved["n_written"], std::fs::metadata(&path).expect("the file exists").len(), "{saved}");
        assert!(saved["n_saved_draft"].as_u64() > Some(150), "{saved}");
        let prompt = long_prompt() + answer["content"].as_str().expect("content") + "\nOnce upon a time";
        let second = request(&prompt);
        let expected = complete(&engine, Plain, &with(&second, json!({"cache_prompt": false})));
        (second, expected)
    };
    let fresh = || start(json!({"n_ctx": 1024, "n_ubatch": 32}));
    let without = complete(&fresh(), Foredraft, &with(&second, steady()));
    for endpoint in [Plain, Foredraft] {
        let engine = fresh();
        let loaded = load(&engine, 0, &path).expect("loaded");
        assert_eq!(loaded["n_restored"], n_past(&engine, 0), "{loaded}");
        assert!(loaded["n_restored_draft"].as_u64() > Some(150), "{loaded}");
        let more = if endpoint == Foredraft { steady() } else { json!({}) };
        let answer = complete(&engine, endpoint, &with(&second, more));
        assert_eq!(answer["content"], expected["content"]);
        let (new, cached) = (answer["timings"]["prompt_n"].as_u64(), answer["timings"]["cache_n"].as_u64());
        assert!(new < Some(20) && cached > Some(200), "{}", answer["timings"]);
        if endpoint == Foredraft {
            // The draft's cache is restored too; otherwise it would catch up over several batches of 32 tokens.
            let steps = |answer: &Value| answer["speculative"]["n_steps"].as_u64().expect("a number");
            assert!(steps(&answer) + 3 < steps(&without), "{} {}", steps(&answer), steps(&without));
        }
    }
}

#[test]
fn session_can_be_loaded_into_another_slot_after_a_shift() {
    let path = file("any-slot");
    let engine = start(json!({"n_ctx": 128, "n_parallel": 2}));
    let first =
        with(&request("Once upon a time"), json!({"n_predict": 300, "id_slot": 0, "temperature": 0.7, "seed": 5}));
    let answer = complete(&engine, Foredraft, &with(&first, steady()));
    assert_eq!(answer["truncated"], true, "the context must have shifted");
    // The draft's keys still have to be rotated after a shift, because nothing was decoded since.
    let plain = json!({"prompt": "Once upon a time", "n_predict": 200, "ignore_eos": true, "id_slot": 1});
    complete(&engine, Plain, &with(&plain, json!({"temperature": 0.7})));
    complete(&engine, Plain, &with(&first, json!({"n_predict": 150})));
    assert!(save(&engine, 1, &path).is_ok());
    let answer = complete(&engine, Foredraft, &with(&first, steady()));
    save(&engine, 0, &path).expect("saved");
    load(&engine, 1, &path).expect("loaded");
    assert_eq!(n_past(&engine, 0), n_past(&engine, 1));
    // Both continue from the slot's contents, so the prompt consists of the tokens that are left: the last ones of the text.
    let tokens: Vec<i64> = answer["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_i64).collect();
    let kept = usize::try_from(n_past(&engine, 0)).expect("small");
    let bos = engine.status()["draft"]["target"]["bos"].as_i64().expect("a BOS token, which stays in the context");
    let prompt = [&[bos], &tokens[tokens.len() - kept..]].concat();
    let texts = [0, 1].map(|slot| {
        let next = json!({"prompt": prompt, "n_predict": 20, "temperature": 0, "id_slot": slot});
        let answer = complete(&engine, Foredraft, &with(&next, steady()));
        assert_eq!(answer["timings"]["prompt_n"], 1, "{}", answer["timings"]);
        answer["content"].clone()
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn seed_continues_across_a_session() {
    let engine = start(json!({"n_ctx": 512}));
    let path = file("seed");
    let prompt = "Once upon a time there was a child named Tom.";
    let sampled =
        json!({"temperature": 1.0, "top_k": 0, "top_p": 1, "seed": 77, "ignore_eos": true, "return_tokens": true});
    let whole = with(&sampled, json!({"prompt": prompt, "n_predict": 60, "cache_prompt": false}));
    let whole = complete(&engine, Plain, &whole);
    let tokens = |answer: &Value| answer["tokens"].as_array().expect("tokens").clone();
    for (first, second) in [(Plain, Foredraft), (Foredraft, Plain)] {
        let half = with(&sampled, json!({"prompt": prompt, "n_predict": 25, "session_save": path}));
        let half = complete(&engine, first, &half);
        assert_eq!(half["session_save"]["success"], true, "{half}");
        assert_eq!(tokens(&half), tokens(&whole)[..25]);
        let pieces = [vec![json!(prompt)], tokens(&half)].concat();
        let rest = with(&sampled, json!({"prompt": pieces, "n_predict": 35, "session_load": path}));
        let answer = complete(&engine, second, &rest);
        assert_eq!(tokens(&answer), tokens(&whole)[25..], "{answer}");
        assert_eq!(answer["generation_settings"]["seed_position"], 25);
        assert_eq!(answer["timings"]["prompt_n"], 1, "{}", answer["timings"]);
        // The reported settings reproduce the output without the session.
        let again =
            with(&answer["generation_settings"], json!({"prompt": pieces, "n_predict": 35, "return_tokens": true}));
        let again = complete(&engine, Plain, &with(&again, json!({"cache_prompt": false})));
        assert_eq!(tokens(&again), tokens(&answer));
        // Another seed or another text starts its random numbers from the beginning.
        for other in [json!({"seed": 78}), json!({"prompt": prompt})] {
            let answer = complete(&engine, Plain, &with(&rest, other));
            assert_eq!(answer["generation_settings"]["seed_position"], 0, "{answer}");
        }
    }
}

#[test]
fn failed_session_fields_report_an_error() {
    let engine = start(json!({"n_ctx": 512}));
    let first = complete(&engine, Plain, &request(&long_prompt()));
    let before = n_past(&engine, 0);
    let missing = file("missing");
    let bytes = with(&request("x"), json!({"session_load": missing})).to_string();
    let answer = engine.complete_as(Plain, bytes.as_bytes()).expect("an answer");
    assert_eq!(
        (&answer["success"], &answer["code"], &answer["stop_type"]),
        (&json!(false), &json!("not_found"), &json!("error"))
    );
    assert!(
        answer["error"].as_str().is_some_and(|error| error.starts_with("session_load: ") && error.contains("missing"))
    );
    assert_eq!(n_past(&engine, 0), before, "the slot is unchanged");
    let nowhere = file("no-folder/a");
    let answer = complete(&engine, Plain, &with(&request(&long_prompt()), json!({"session_save": nowhere})));
    assert_eq!(answer["content"], first["content"], "the completion is returned all the same");
    assert_eq!(answer["session_save"]["code"], "not_found", "{answer}");
    assert_eq!(answer["timings"]["prompt_n"], 1);
}

#[test]
fn session_save_waits_for_earlier_requests() {
    let engine = start(json!({"n_ctx": 1024}));
    let path = file("busy");
    let long = with(&request("Once upon a time"), json!({"n_predict": 300}));
    let id = submit(&engine, Plain, &long);
    let queued = submit(&engine, Plain, &with(&request("Tom was 7 years old"), json!({"n_predict": 5})));
    let saved = save(&engine, 0, &path).expect("saved");
    let (updates, others) = (drain(&engine, Plain, id), drain(&engine, Plain, queued));
    let last = others.last().expect("a final response");
    assert_eq!((&saved["n_saved"], &last["tokens_predicted"]), (&last["tokens_cached"], &json!(5)), "{saved}");
    let id = submit(&engine, Plain, &long);
    let loaded = load(&engine, 0, &path).expect("loaded");
    assert_eq!(loaded["n_restored"], saved["n_saved"]);
    assert_eq!(n_past(&engine, 0), saved["n_saved"].as_u64().expect("a number"), "the load ran last");
    assert_eq!(text(&drain(&engine, Plain, id)), text(&updates));
}

/// Behind an endless request, the functions give up after `timeout_ms`, and do nothing later.
#[test]
fn session_functions_give_up_after_timeout_ms() {
    let engine = start(json!({"n_ctx": 512}));
    let (path, other) = (file("timeout"), file("timeout-other"));
    complete(&engine, Plain, &with(&request("Once upon a time"), json!({"n_predict": 5})));
    save(&engine, 0, &path).expect("saved");
    let endless = json!({"prompt": "Tom", "n_predict": -1, "ignore_eos": true});
    let id = submit(&engine, Plain, &endless);
    let queued = submit(&engine, Plain, &endless);
    type Function = fn(&foredraft::api::LocalEngine, &[u8]) -> Result<Value, Error>;
    let functions: [(&str, Function); 2] = [
        ("session_save", foredraft::api::LocalEngine::session_save),
        ("session_load", foredraft::api::LocalEngine::session_load),
    ];
    for (name, function) in functions {
        let path = if name == "session_save" { &other } else { &path };
        for timeout in [1, 50] {
            let request = json!({"id_slot": 0, "filename": path, "timeout_ms": timeout}).to_string();
            let error = engine.with_loaded(|loaded| function(loaded, request.as_bytes())).expect_err("busy");
            let expected = format!("{name}: timeout_ms: slot 0 was busy for {timeout} ms");
            assert_eq!((error.code().as_str(), error.message()), ("timeout", expected.as_str()));
        }
        for wrong in [json!(-2), json!("long"), json!(1e300)] {
            let request = json!({"filename": path, "timeout_ms": wrong}).to_string();
            let error = engine.with_loaded(|loaded| function(loaded, request.as_bytes())).expect_err("wrong");
            assert!(error.message().starts_with("timeout_ms: expected"), "{error}");
        }
    }
    for id in [id, queued] {
        cancel(&engine, Plain, id);
        drain(&engine, Plain, id);
    }
    // The calls that timed out did nothing: the slot has the last request's tokens, and there is no file.
    let n = n_past(&engine, 0);
    let after = complete(&engine, Plain, &json!({"prompt": "Tom", "n_predict": 1}));
    assert!(!other.exists() && n != 0, "{n}");
    assert!(after["timings"]["cache_n"].as_u64() > Some(0), "{after}");
    // A free slot is served at once.
    for (_, function) in functions {
        let request = json!({"filename": path, "timeout_ms": 60_000}).to_string();
        let answer = engine.with_loaded(|loaded| function(loaded, request.as_bytes())).expect("served");
        assert!(answer["warnings"].is_null(), "{answer}");
    }
}

/// The error of a load that must be refused and must leave the slot unchanged.
fn refused(engine: &JsonEngine, path: &PathBuf) -> Error {
    let before = n_past(engine, 0);
    let error = load(engine, 0, path).expect_err("it must not fit");
    assert_eq!(n_past(engine, 0), before, "{error}");
    error
}

#[test]
fn session_of_another_model_or_context_is_refused() {
    let path = file("other");
    let tokens = complete_and_save(&json!({"n_ctx": 512}), &path);
    let differing = [
        (json!({"model": model("draft"), "model_draft": null}), "parameters"),
        (json!({"cache_type_k": "f32"}), "cache_type_k: F16 there, F32 here"),
        (json!({"rope_freq_base": 20000}), "rope_*"),
        (json!({"n_parallel": 2}), "n_parallel"),
        (json!({"grp_attn_n": 2, "grp_attn_w": 64}), "grp_attn_n"),
    ];
    for (init, part) in differing {
        let engine = start(with(&json!({"n_ctx": 512}), init.clone()));
        complete(&engine, Plain, &request("Once upon a time"));
        let error = refused(&engine, &path);
        assert!(error.message().contains(part), "{init}: {error}");
        assert!(error.message().contains("other.session"), "{error}");
        let again = complete(&engine, Plain, &request("Once upon a time"));
        assert_eq!(again["timings"]["prompt_n"], 1, "the slot's cache is unchanged");
    }
    let engine = start(json!({"n_ctx": 64}));
    assert_eq!(refused(&engine, &path).code(), Code::ContextFull);
    // Without its draft, or with another draft, the target's part can still be loaded.
    for draft in [Value::Null, json!(model("target"))] {
        let engine = start(json!({"n_ctx": 512, "model_draft": draft}));
        let loaded = load(&engine, 0, &path).expect("loaded");
        assert_eq!((&loaded["n_restored"], &loaded["n_restored_draft"]), (&tokens, &json!(0)), "{loaded}");
    }
}

fn complete_and_save(init: &Value, path: &PathBuf) -> Value {
    let engine = start(init.clone());
    complete(&engine, Foredraft, &with(&request(&long_prompt()), steady()));
    save(&engine, 0, path).expect("saved")["n_saved"].clone()
}

#[test]
fn damaged_session_files_are_refused_and_the_slot_is_unchanged() {
    let (path, damaged) = (file("whole"), file("damaged"));
    let engine = start(json!({"n_ctx": 512}));
    let first = complete(&engine, Foredraft, &with(&request(&long_prompt()), steady()));
    save(&engine, 0, &path).expect("saved");
    let whole = std::fs::read(&path).expect("the file exists");
    for n in 0..60 {
        let mut bytes = whole.clone();
        let at = n * n * n * 31 % bytes.len();
        bytes[at] ^= 1 << (n % 8);
        std::fs::write(&damaged, &bytes).expect("writable");
        let error = refused(&engine, &damaged);
        assert!(error.message().contains("byte ") && error.message().contains("damaged.session"), "{at}: {error}");
        std::fs::write(&damaged, &whole[..at]).expect("writable");
        refused(&engine, &damaged);
    }
    assert_eq!(save(&engine, 0, &damaged).map(|saved| saved["n_written"].clone()).ok(), Some(json!(whole.len())));
    assert!(
        std::fs::read(&damaged).expect("the file exists") == whole,
        "the file is replaced by what the slot still holds"
    );
    let again = complete(&engine, Plain, &request(&long_prompt()));
    assert_eq!((&again["content"], &again["timings"]["prompt_n"]), (&first["content"], &json!(1)));
}

/// The sections of a session file: the range of each one's length, checksum and content.
fn sections(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut at = 48;
    let mut sections = Vec::new();
    while at < bytes.len() {
        let len = usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))).expect("small");
        sections.push(at + 16..at + 16 + len);
        at += 16 + len;
    }
    sections
}

/// Damaged states with a valid checksum reach llama.cpp, which must either refuse or load them.
#[test]
fn damaged_states_with_valid_checksums_are_handled_safely() {
    let (path, forged) = (file("true"), file("forged"));
    let engine = start(json!({"n_ctx": 256}));
    let prompt = request("Once upon a time there was a child named Tom.");
    let first = complete(&engine, Foredraft, &with(&prompt, steady()));
    save(&engine, 0, &path).expect("saved");
    let whole = std::fs::read(&path).expect("the file exists");
    let sections = sections(&whole);
    assert_eq!(sections.len(), 3);
    let mut refusals = 0;
    // The state of the target, and that of the draft.
    for section in [&sections[1], &sections[2]] {
        // Most numbers are at the head of a state; keys and values follow.
        for at in (0..160).chain((160..section.len()).step_by(section.len() / 40 + 1)) {
            if at + 4 > section.len() {
                break;
            }
            for value in [u32::MAX, 1 << 31, 0, 7] {
                let mut bytes = whole.clone();
                let place = section.start + at;
                bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
                let sum = xxh3_64(&bytes[section.clone()]).to_le_bytes();
                bytes[section.start - 8..section.start].copy_from_slice(&sum);
                std::fs::write(&forged, bytes).expect("writable");
                refusals += u32::from(load(&engine, 0, &forged).is_err());
            }
        }
    }
    assert!(refusals > 100, "most damage to the first bytes must be refused: {refusals}");
    load(&engine, 0, &path).expect("the undamaged session");
    let again = complete(&engine, Foredraft, &with(&prompt, steady()));
    assert_eq!((&again["content"], &again["timings"]["prompt_n"]), (&first["content"], &json!(1)));
}

/// NaN in the cells of a session would spoil every later request that only masks them.
#[test]
fn session_with_numbers_that_are_not_finite_is_refused() {
    let (path, forged) = (file("finite"), file("not-finite"));
    for more in [json!({}), json!({"n_parallel": 2, "kv_unified": true})] {
        let engine = start(with(&json!({"n_ctx": 256}), more));
        let prompt = with(&request("Once upon a time there was a child named Tom."), json!({"id_slot": 0}));
        let first = complete(&engine, Foredraft, &prompt);
        save(&engine, 0, &path).expect("saved");
        let mut bytes = std::fs::read(&path).expect("the file exists");
        let state = sections(&bytes)[1].clone();
        // The end of the state is values in half precision.
        let values = state.end - state.len() / 20 / 2 * 2;
        bytes[values..state.end].chunks_exact_mut(2).for_each(|half| half.copy_from_slice(&[0xFF, 0x7F]));
        let sum = xxh3_64(&bytes[state.clone()]).to_le_bytes();
        bytes[state.start - 8..state.start].copy_from_slice(&sum);
        std::fs::write(&forged, bytes).expect("writable");
        let error = load(&engine, 0, &forged).expect_err("refused");
        assert!(error.message().contains("not finite"), "{error}");
        let short = with(&request("Mia was 7 years old"), json!({"id_slot": 0}));
        let expected = complete(&start(json!({"n_ctx": 256})), Foredraft, &short);
        assert_eq!(complete(&engine, Foredraft, &short)["content"], expected["content"]);
        assert_eq!(complete(&engine, Foredraft, &prompt)["content"], first["content"]);
    }
}

#[test]
fn several_completions_start_from_one_session() {
    let path = file("several");
    let engine = start(json!({"n_ctx": 512, "n_parallel": 3}));
    let first = complete(&engine, Plain, &with(&request(&long_prompt()), json!({"session_save": path})));
    let prompt = long_prompt() + first["content"].as_str().expect("content") + " Once";
    let three = json!({"n_cmpl": 3, "session_load": path, "temperature": 0.8, "seed": 4});
    let three = with(&request(&prompt), three);
    let answer = complete(&engine, Plain, &three);
    for (index, result) in results(&answer, 3).iter().enumerate() {
        let seed = result["generation_settings"]["seed"].clone();
        let alone = json!({"n_cmpl": 1, "session_load": "", "seed": seed});
        let alone = complete(&engine, Plain, &with(&three, alone));
        assert_eq!(result["content"], alone["content"], "{index}");
        assert!(result["timings"]["prompt_n"].as_u64() < Some(10), "{index}: {}", result["timings"]);
    }
    for (more, part) in [
        (json!({"n_cmpl": 2, "session_save": path}), "session_save: expected one completion, got 2"),
        (json!({"n_beams": 2, "session_save": path}), "session_save: not available with n_beams"),
        (json!({"n_beams": 2, "session_load": path}), "session_load: not available with n_beams"),
    ] {
        let bytes = with(&request("x"), more).to_string();
        let error = engine.complete_as(Plain, bytes.as_bytes()).expect_err("refused");
        assert!(error.message().contains(part), "{error}");
    }
}

#[test]
fn invalid_session_requests_are_refused() {
    let engine = start(json!({"n_ctx": 256}));
    for (body, part) in [
        (json!({}), "filename: expected a path, got nothing"),
        (json!({"filename": ""}), "filename: expected a path, got nothing"),
        (json!({"filename": 5}), "filename"),
        (json!({"filename": "a", "id_slot": 1}), "id_slot: expected a slot from 0 to 0, got 1"),
        (json!({"filename": "a", "id_slot": -1}), "id_slot"),
        (json!({"filename": "/tmp"}), ""),
    ] {
        let bytes = body.to_string();
        for function in [foredraft::api::LocalEngine::session_save, foredraft::api::LocalEngine::session_load] {
            let error = engine.with_loaded(|loaded| function(loaded, bytes.as_bytes())).expect_err("refused");
            assert!(error.message().contains(part), "{body}: {error}");
        }
    }
    let error = save(&engine, 0, &file("empty")).expect_err("nothing to save");
    assert!(error.message().contains("slot 0 has no tokens"), "{error}");
    complete(&engine, Plain, &request("Once"));
    let warned = json!({"filename": file("warned"), "id_slott": 0}).to_string();
    let answer = engine.with_loaded(|loaded| loaded.session_save(warned.as_bytes())).expect("saved");
    assert!(answer["warnings"][0].as_str().is_some_and(|warning| warning.contains("id_slot")), "{answer}");
}

#[test]
fn erased_slot_has_no_tokens_of_target_and_draft() {
    let path = file("erased");
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let erase = |request: Value| engine.with_loaded(|loaded| loaded.session_erase(request.to_string().as_bytes()));
    let prompt = with(&request(&long_prompt()), with(&steady(), json!({"id_slot": 1})));
    let first = complete(&engine, Foredraft, &prompt);
    save(&engine, 1, &path).expect("saved");
    let n = n_past(&engine, 1);
    let erased = erase(json!({"id_slot": 1})).expect("erased");
    assert_eq!((&erased["id_slot"], &erased["n_erased"]), (&json!(1), &json!(n)), "{erased}");
    assert!(n > 200 && erased["n_erased_draft"].as_u64() > Some(150), "{erased}");
    assert!(erased["timings"]["erase_ms"].is_number() && erased["filename"].is_null(), "{erased}");
    assert!(save(&engine, 1, &file("nothing")).is_err(), "nothing is left to save");
    let again = erase(json!({"id_slot": 1})).expect("an empty slot");
    assert_eq!((&again["n_erased"], &again["n_erased_draft"]), (&json!(0), &json!(0)));
    // The next request decodes its prompt anew; files are left unchanged.
    let second = complete(&engine, Foredraft, &prompt);
    assert_eq!((&second["content"], &second["timings"]["cache_n"]), (&first["content"], &json!(0)));
    load(&engine, 1, &path).expect("the file is there");

    let endless = json!({"prompt": "Once", "n_predict": -1, "ignore_eos": true, "id_slot": 1});
    let id = submit(&engine, Plain, &endless);
    let error = erase(json!({"id_slot": 1, "timeout_ms": 50})).expect_err("it is busy");
    assert_eq!(error.code(), Code::Timeout, "{error}");
    assert!(cancel(&engine, Plain, id));
    drain(&engine, Plain, id);
    for (request, part) in [
        (json!({"id_slot": 2}), "id_slot: expected a slot from 0 to 1, got 2"),
        (json!({"id_slot": "all"}), "id_slot: expected a whole number"),
    ] {
        let error = erase(request).expect_err("refused");
        assert!(error.message().contains(part), "{error}");
    }
    let warned = erase(json!({"filename": path})).expect("erased");
    assert_eq!(warned["warnings"], json!(["unknown key \"filename\""]));
}

/// Other slots take the cells of a loaded session; its remains must not affect later requests.
#[test]
fn session_seed_continues_only_with_its_own_text() {
    let path = file("seed-of-a-text");
    let drawn = |prompt: &str| with(&request(prompt), json!({"temperature": 1.2, "seed": 42}));
    let engine = start(json!({"n_ctx": 300, "n_parallel": 2, "kv_unified": true}));
    // A prompt longer than the session.
    let other = &prompts()[10..14].concat();
    let expected = complete(&engine, Plain, &with(&drawn(other), json!({"id_slot": 1})))["tokens"].clone();
    complete(&engine, Plain, &with(&drawn("Once upon a time there was a child named Mia."), json!({"id_slot": 1})));
    save(&engine, 1, &path).expect("saved");
    load(&engine, 1, &path).expect("loaded");
    complete(&engine, Plain, &with(&request(&long_prompt()), json!({"id_slot": 0, "n_predict": 60})));
    assert_eq!(n_past(&engine, 1), 0, "other slots took its cells");
    let answer = complete(&engine, Plain, &with(&drawn(other), json!({"id_slot": 1})));
    assert!(answer["tokens_evaluated"].as_u64() > Some(50), "{answer}");
    assert_eq!(answer["tokens"], expected);
}

/// The last token of a completion is decoded only if it was drafted; saved sessions must not differ.
#[test]
fn saved_tokens_do_not_depend_on_whether_the_last_was_drafted() {
    let (path, engine) = (file("end"), start(json!({"n_ctx": 512})));
    let mut drafted = 0;
    for prompt in prompts().iter().step_by(3) {
        let ask = json!({
            "prompt": prompt, "n_predict": 60, "temperature": 0, "stop": ["."], "session_save": path, "return_tokens": true,
        });
        let plain = complete(&engine, Plain, &ask);
        let fast = complete(&engine, Foredraft, &with(&ask, steady()));
        assert_eq!(fast["session_save"]["n_saved"], plain["session_save"]["n_saved"], "{prompt}");
        assert_eq!(fast["tokens_cached"], plain["tokens_cached"], "{prompt}");
        let ended_by = fast["sources"].as_array().and_then(|sources| sources.last()).cloned();
        drafted += usize::from(fast["stop_type"] == "word" && ended_by == Some(json!("draft")));
    }
    assert!(drafted > 2, "{drafted}");
}
