//! The answers that a host of the old server relies on: its documents (`rpcserver.cpp`) define each of them.

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::c_api::{Random, command, drop_line, endless, exclusive, shortened, wait_until};
use crate::c_functions::{COMMANDS, FUNCTIONS, WITHOUT_MODEL};
use crate::lifecycle::{GATE, debug_command};
use crate::malformed_json::broken;
use crate::old_names::{
    assert_finds_nothing, assert_works, call, call_bytes, deinit, error_of, free_null, init, init_async, last_update,
    loaded, set_log_callback, set_update_callback, status, submit, version, wait_for_state,
};
use crate::polling::slow_to_parse;
use crate::random_calls;
use crate::requests::{assert_refused, wrong_values};

const FAMILIES: [&str; 2] = ["async_completion", "speculative_completion"];

/// The loop of an old host: polls without an id until the request is finished. Returns the text, and the last update.
fn drain(family: &str) -> (String, Value) {
    let (mut text, mut last) = (String::new(), Value::Null);
    wait_until("the end", || {
        let answer = call_bytes(&format!("{family}_poll"), None);
        assert_eq!(answer["success"], true, "{answer}");
        for update in answer["completion_updates"].as_array().expect("updates") {
            text += update["content"].as_str().expect("content");
            last = update.clone();
        }
        answer["finished"] == true
    });
    (text, last)
}

fn load(more: Value) {
    assert_eq!(init(Some(command(more).to_string().as_bytes())), 0, "{}", status());
}

/// The text that is generated before `init` or `deinit` is not lost, and `while (!finished)` ends.
#[test]
fn last_request_stays_pollable_after_init_and_deinit() {
    let _turn = loaded(json!({}));
    type End = (&'static str, fn());
    let ends: [End; 5] = [
        ("deinit", deinit),
        ("deinit twice", || (deinit(), deinit()).0),
        ("init", || load(json!({}))),
        ("a failed init", || assert_eq!(init(Some(b"-m /nowhere.gguf")), 1)),
        ("init_async and deinit", || {
            init_async(Some(command(json!({})).to_string().as_bytes()));
            deinit();
        }),
    ];
    for (family, (name, end)) in FAMILIES.into_iter().flat_map(|family| ends.iter().map(move |end| (family, end))) {
        load(json!({}));
        let id = submit(&format!("{family}_init"), &endless());
        // A poll would take updates.
        wait_until("some text", || status()["slots"][0]["n_past"].as_u64() > Some(15));
        let (poll, cancel) = (format!("{family}_poll"), format!("{family}_cancel"));
        end();
        let (text, last) = drain(family);
        assert_eq!((&last["stop"], &last["stop_type"], &last["id"]), (&json!(true), &json!("cancelled"), &json!(id)));
        assert!(!text.is_empty() && last["content"] == "", "{name}: {last}");
        for _ in 0..2 {
            let answer = call_bytes(&poll, Some(b"{}"));
            assert_eq!((&answer["finished"], &answer["completion_updates"]), (&json!(true), &json!([])), "{answer}");
            assert_eq!(call_bytes(&cancel, None)["cancelled"], false);
        }
        // The other family is not affected.
        let other = FAMILIES.into_iter().find(|other| *other != family).expect("two families");
        assert_ne!(call_bytes(&format!("{other}_poll"), None)["id"], id);
        // The answer stays until the next request.
        load(json!({}));
        assert_eq!(call_bytes(&poll, None)["finished"], true, "{name}");
        let next = submit(&format!("{family}_init"), &json!({"prompt": "Once", "n_predict": 2}));
        let (_, last) = drain(family);
        assert_eq!((&last["id"], &last["stop_type"]), (&json!(next), &json!("limit")), "{name}");
        // A request that had ended and was polled stays finished, too.
        deinit();
        assert_eq!(call_bytes(&poll, None)["finished"], true, "{name}");
    }
}

/// Polls that run while `init` and `deinit` replace the engine lose and double no update.
#[test]
fn no_update_is_lost_or_doubled_while_the_engine_is_replaced() {
    let _turn = loaded(json!({}));
    let request = json!({"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": true, "temperature": 0});
    let whole = call("get_completion", &request)["content"].as_str().expect("content").to_owned();
    for round in 0..6 {
        let id = submit("async_completion_init", &request);
        wait_until("some text", || status()["slots"][0]["n_past"].as_u64() > Some(15));
        let (text, last) = std::thread::scope(|scope| {
            let polling = scope.spawn(|| drain("async_completion"));
            if round % 2 == 0 {
                load(json!({}))
            } else {
                deinit()
            }
            polling.join().expect("the loop ends")
        });
        assert!(whole.starts_with(&text), "{text}");
        assert_eq!((&last["stop"], &last["id"]), (&json!(true), &json!(id)));
        load(json!({}));
    }
}

/// A host reads `total_prompt_tokens` as a number, whatever the length of the prompt.
#[test]
fn prompt_stats_are_complete_when_a_submit_returns() {
    let _turn = loaded(json!({"max_queue": 100}));
    let long = "Tom had a hat and a drum. ".repeat(300);
    let messages = json!([{"role": "user", "content": long}]);
    for family in FAMILIES {
        for request in [
            json!({"prompt": "Tom"}),
            json!({"prompt": long}),
            json!({"prompt": [long, 5, long]}),
            json!({"prompt": vec![300; 700]}),
            json!({"messages": messages, "on_overflow": "truncate"}),
            json!({"prompts": [long, "Tom"]}),
            json!({"prompt": "Tom", "prediction": {"type": "content", "content": long}}),
        ] {
            let mut request = request;
            request["n_predict"] = 1.into();
            let answer = call(&format!("{family}_init"), &request);
            let stats = match &answer["prompt_stats"] {
                Value::Array(all) => all.clone(),
                one => vec![one.clone()],
            };
            for stats in &stats {
                for key in ["n_ctx", "total_prompt_tokens", "n_past"] {
                    assert!(stats[key].is_u64(), "{family} {key}: {stats}");
                }
                assert!(stats["truncated"].is_boolean() && stats["cached"].is_string() && stats["to_eval"].is_string());
                assert!(stats["pending"].is_null(), "{stats}");
            }
            let last = last_update(family, answer["id"].as_u64().expect("an id"));
            if stats.len() == 1 {
                assert_eq!(stats[0]["total_prompt_tokens"], last["tokens_evaluated"], "{family}");
            }
        }
    }
    // Through the new functions a submit may still answer before that.
    let answer = call("foredraft_submit", &json!({"prompt": long, "n_predict": 1}));
    assert_eq!(answer["prompt_stats"]["pending"], true, "{answer}");
    call("foredraft_cancel", &json!({"id": answer["id"]}));
}

/// There, each request overwrote `seed` and `n_keep` of `init`, with llama.cpp's defaults if it did not have them.
#[test]
fn seed_and_n_keep_of_init_do_not_reach_requests_of_the_old_names() {
    let _turn = exclusive();
    let request = json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 1.5, "top_k": 0, "top_p": 1});
    for line in [
        command(json!({"seed": 42, "n_keep": 3})).to_string(),
        format!("-m {} -c 512 -t 1 -s 42 --keep 3", crate::c_api::model("target")),
    ] {
        assert_eq!(init(Some(line.as_bytes())), 0, "{}", status());
        let warned = status()["warnings"].as_array().cloned().unwrap_or_default();
        for key in ["seed", "n_keep"] {
            let of_key = |warning: &&Value| warning.as_str().expect("text").starts_with(&format!("{key}: "));
            assert_eq!(warned.iter().filter(of_key).count(), 1, "{key}: {warned:?}");
        }
        let mut seeds = Vec::new();
        for name in ["get_completion", "speculative_completion", "async_completion", "speculative_completion"] {
            let answer = match name {
                "get_completion" => call(name, &request),
                _ => last_update(name, submit(&format!("{name}_init"), &request)),
            };
            let settings = &answer["generation_settings"];
            assert_ne!(settings["seed"], 42, "{name}");
            assert_eq!(settings["n_keep"], 0, "{name}");
            seeds.push(settings["seed"].clone());
            let warnings = answer["warnings"].to_string();
            assert!(warnings.contains("seed: ") && warnings.contains("n_keep: "), "{name}: {warnings}");
        }
        seeds.dedup();
        assert!(seeds.len() > 1, "{seeds:?}");
        // A request's own values count, without a warning.
        let mut own = request.clone();
        (own["seed"], own["n_keep"]) = (7.into(), 2.into());
        let answer = call("get_completion", &own);
        let settings = &answer["generation_settings"];
        assert_eq!((&settings["seed"], &settings["n_keep"]), (&json!(7), &json!(2)));
        assert!(answer["warnings"].is_null(), "{}", answer["warnings"]);
        // They count for the new functions.
        let answer = call("foredraft_complete", &request);
        let settings = &answer["generation_settings"];
        assert_eq!((&settings["seed"], &settings["n_keep"]), (&json!(42), &json!(3)));
        assert!(answer["warnings"].is_null(), "{}", answer["warnings"]);
    }
    // No warning without them.
    load(json!({}));
    assert!(status()["warnings"].as_array().is_none_or(Vec::is_empty));
    assert!(call("get_completion", &request)["warnings"].is_null());
}

/// `get_completion` erased a stop word that had begun at the end of the text.
#[test]
fn stop_word_that_has_begun_is_cut_from_get_completion() {
    let _turn = loaded(json!({}));
    let request = |n: usize, stop: Value| json!({"prompt": "Once upon a time", "n_predict": n, "temperature": 0, "stop": stop, "ignore_eos": true});
    for n in [1, 4, 9] {
        let whole = call("get_completion", &request(n, json!([])))["content"].as_str().expect("content").to_owned();
        let ends: Vec<usize> = whole.char_indices().map(|(at, _)| at).skip(1).collect();
        for at in ends {
            let (kept, begun) = whole.split_at(at);
            // Skips positions where the word begins earlier as well.
            if (0..at).any(|other| whole.as_bytes()[other..].starts_with(begun.as_bytes())) {
                continue;
            }
            for stop in [json!([format!("{begun}\u{1F600}")]), json!(["no", format!("{begun}xyz"), "nothing"])] {
                for name in ["get_completion", "speculative_completion"] {
                    let answer = call(name, &request(n, stop.clone()));
                    assert_eq!(answer["content"], kept, "{name} {n} {stop}");
                    assert_eq!((&answer["stop_type"], &answer["stopped_word"]), (&json!("limit"), &json!(false)));
                    assert_eq!(answer["tokens_predicted"], n);
                }
                // Streams keep the begun stop word, and so does `foredraft_complete`, as llama-server does.
                submit("async_completion_init", &request(n, stop.clone()));
                assert_eq!(drain("async_completion").0, whole, "{stop}");
                assert_eq!(call("foredraft_complete", &request(n, stop.clone()))["content"], whole);
            }
        }
    }
}

/// Old hosts do not look at the answer of a submit. They poll until `finished`, and must get neither silence nor the request before.
#[test]
fn refused_request_is_the_newest_and_has_ended() {
    let _turn = loaded(json!({"max_queue": 1}));
    let refused = |family: &str, request: Option<&[u8]>, code: &str| {
        let answer = call_bytes(&format!("{family}_init"), request);
        assert_eq!((&answer["success"], &answer["code"]), (&json!(false), &json!(code)), "{answer}");
        let poll = call_bytes(&format!("{family}_poll"), Some(b"{}"));
        assert_eq!((&poll["success"], &poll["finished"]), (&json!(true), &json!(true)), "{poll}");
        let updates = poll["completion_updates"].as_array().expect("updates");
        let [update] = updates.as_slice() else { panic!("one update: {poll}") };
        assert_eq!((&update["stop"], &update["content"]), (&json!(true), &json!("")), "{update}");
        assert_eq!((&update["stop_type"], &update["error"]), (&json!("error"), &answer["error"]), "{update}");
        for _ in 0..2 {
            let poll = call_bytes(&format!("{family}_poll"), None);
            assert_eq!((&poll["finished"], &poll["completion_updates"]), (&json!(true), &json!([])), "{poll}");
        }
    };
    for family in FAMILIES {
        for (request, code) in [
            (Some(&br#"{"prompt": "a", "grammar": "root ::= ("}"#[..]), "invalid_request"),
            (Some(br#"{"prompt": "a", "n_predict": "x"}"#), "invalid_request"),
            (Some(br#"{"prompt": "a", "json_schema": {"type": "no type"}}"#), "invalid_request"),
            (Some(br#"{"prompt": 7}"#), "invalid_request"),
            (Some(b"no JSON"), "invalid_json"),
            (None, "invalid_json"),
        ] {
            // The refused request is the first one, or follows another, which is polled by its id alone.
            refused(family, request, code);
            let before = submit(&format!("{family}_init"), &json!({"prompt": "Once", "n_predict": 2}));
            refused(family, request, code);
            assert_eq!(last_update(family, before)["stop_type"], "limit");
            // The other family is not affected.
            let other = FAMILIES.into_iter().find(|other| *other != family).expect("two families");
            assert_ne!(call_bytes(&format!("{other}_poll"), None)["completion_updates"][0]["stop_type"], "error");
        }
        assert_eq!(call_bytes(&format!("{family}_cancel"), None)["success"], true);
        // The next request is the newest one.
        let next = submit(&format!("{family}_init"), &json!({"prompt": "Once", "n_predict": 2}));
        assert_eq!(drain(family).1["id"], next);
    }
    // A full queue, and no model.
    let first = submit("async_completion_init", &endless());
    wait_for_state("async_completion", first, "generating");
    let running = [first, submit("async_completion_init", &endless())];
    refused("async_completion", Some(endless().to_string().as_bytes()), "queue_full");
    call_bytes("async_completion_cancel", None);
    for id in running {
        assert_eq!(last_update("async_completion", id)["stop_type"], "cancelled");
    }
    for end in [deinit, || assert_eq!(init(Some(b"-m /nowhere.gguf")), 1)] {
        end();
        for family in FAMILIES {
            refused(family, Some(br#"{"prompt": "a"}"#), "not_initialized");
            refused(family, None, "not_initialized");
        }
    }
    // Requests of the new functions have ids, and those of other engines are not of the old names.
    load(json!({}));
    let id = submit("async_completion_init", &json!({"prompt": "Once", "n_predict": 2}));
    assert_eq!(call("foredraft_submit", &json!({"prompt": 7}))["success"], false);
    assert_eq!(drain("async_completion").1["id"], id);
}

/// `foredraft_cancel` ends every request of the engine, whichever function began it.
#[test]
fn cancel_of_all_reaches_requests_of_the_old_names() {
    let _turn = loaded(json!({"n_parallel": 2, "n_ctx": 1024}));
    let endless = json!({"prompt": "Once", "n_predict": 100_000, "ignore_eos": true});
    let waiting = std::thread::spawn({
        let endless = endless.clone();
        move || call("get_completion", &endless)["stop_type"].clone()
    });
    wait_until("the call", || status()["slots"][0]["state"] != "idle" || status()["slots"][1]["state"] != "idle");
    let ids = FAMILIES.map(|family| submit(&format!("{family}_init"), &endless));
    let new = submit("foredraft_submit", &endless);
    let answer = call("foredraft_cancel", &json!({"all": true}));
    assert_eq!(answer["ids"].as_array().map(Vec::len), Some(4), "{answer}");
    for (family, id) in FAMILIES.into_iter().zip(ids) {
        assert_eq!(last_update(family, id)["stop_type"], "cancelled");
    }
    assert_eq!(last_update("foredraft", new)["stop_type"], "cancelled");
    assert_eq!(waiting.join().expect("an answer"), "cancelled");
}

/// One endless request must not block those after it.
#[test]
fn cancel_without_an_id_ends_all_requests_of_its_family() {
    let _turn = loaded(json!({"n_parallel": 2, "n_ctx": 1024}));
    for family in FAMILIES {
        let other = FAMILIES.into_iter().find(|other| *other != family).expect("two families");
        let (begin, cancel) = (format!("{family}_init"), format!("{family}_cancel"));
        for document in [None, Some(&b""[..]), Some(b"{}"), Some(b"stop!"), Some(br#"{"all": true}"#)] {
            let unaffected = submit(&format!("{other}_init"), &endless());
            let ids: Vec<u64> = (0..5).map(|_| submit(&begin, &endless())).collect();
            wait_for_state(family, ids[0], "generating");
            let answer = call_bytes(&cancel, document);
            assert_eq!((&answer["success"], &answer["cancelled"]), (&json!(true), &json!(true)), "{answer}");
            let mut ended = answer["ids"].as_array().expect("ids").clone();
            ended.sort_by_key(Value::as_u64);
            assert_eq!(ended, ids.iter().map(|id| json!(id)).collect::<Vec<_>>());
            for id in ids {
                assert_eq!(last_update(family, id)["stop_type"], "cancelled");
            }
            let answer = call_bytes(&cancel, document);
            assert_eq!((&answer["success"], &answer["cancelled"]), (&json!(true), &json!(false)), "{answer}");
            assert_eq!(call(&format!("{other}_poll"), &json!({"id": unaffected}))["finished"], false);
            call(&format!("{other}_cancel"), &json!({"id": unaffected}));
            last_update(other, unaffected);
        }
    }
    // As in the old server, the cancel does not end a call that waits.
    let waiting = std::thread::spawn(|| {
        call("get_completion", &json!({"prompt": "Once", "n_predict": 200, "ignore_eos": true}))["stop_type"].clone()
    });
    wait_until("the call", || status()["slots"][0]["state"] != "idle" || status()["slots"][1]["state"] != "idle");
    assert_eq!(call_bytes("async_completion_cancel", None)["cancelled"], false);
    assert_eq!(waiting.join().expect("an answer"), "limit");
    assert_eq!(call("async_completion_cancel", &json!({"all": true, "id": 1}))["code"], "invalid_request");
    assert_eq!(call("async_completion_cancel", &json!({"all": 1}))["code"], "invalid_request");
    assert_works();
}

/// The settings in an answer are those that were used.
#[test]
fn settings_are_echoed_as_used() {
    let _turn = loaded(json!({}));
    let base = json!({"prompt": "Once upon a time", "n_predict": 3, "temperature": 0});
    let n_prompt = call("tokenize", &json!({"text": "Once upon a time"}))["length"].clone();
    let eos = call("tokenize", &json!({"text": "<|im_end|>", "add_special": false}))["ids"][0].clone();
    for (sent, used) in [
        // min(n_ctx - 4, n_keep), and the whole prompt below 0.
        (json!({"n_keep": 1_000_000}), json!({"n_keep": 508})),
        (json!({"n_keep": -1}), json!({"n_keep": n_prompt})),
        (json!({"n_keep": -7}), json!({"n_keep": n_prompt})),
        (json!({"n_keep": 2}), json!({"n_keep": 2})),
        (json!({"n_keep": -1, "prompt": vec![300; 800]}), json!({"n_keep": 508})),
        // JSON's form of minus infinity.
        (json!({"logit_bias": [[5, false], [6, 1.5]]}), json!({"logit_bias": [[5, null], [6, 1.5]]})),
        (json!({"logit_bias": []}), json!({"logit_bias": [], "ignore_eos": false})),
        (json!({"top_p": 1.5}), json!({"top_p": 1.0})),
    ] {
        let mut request = base.clone();
        request.as_object_mut().expect("an object").extend(sent.as_object().expect("an object").clone());
        for family in FAMILIES {
            let waiting = if family == "async_completion" { "get_completion" } else { family };
            let answers = [call(waiting, &request), last_update(family, submit(&format!("{family}_init"), &request))];
            for (answer, streams) in answers.iter().zip([false, true]) {
                let settings = &answer["generation_settings"];
                assert_eq!(settings["stream"], streams, "{family}");
                assert_eq!(answer["prompt"], request["prompt"], "{family}");
                assert_eq!(answer.get("speculative").is_some(), family == "speculative_completion", "{answer}");
                for (key, value) in used.as_object().expect("an object") {
                    assert_eq!(&settings[key], value, "{family} {sent} {key}");
                }
            }
        }
    }
    // The function decides whether it streams.
    for stream in [true, false] {
        let mut request = base.clone();
        request["stream"] = stream.into();
        assert_eq!(call("get_completion", &request)["generation_settings"]["stream"], false);
        let last = last_update("async_completion", submit("async_completion_init", &request));
        assert_eq!(last["generation_settings"]["stream"], true);
    }
    // All that ends a completion is banned, and echoed with what else is.
    let answer = call("get_completion", &json!({"prompt": "Once", "n_predict": 2, "ignore_eos": true}));
    let settings = &answer["generation_settings"];
    assert_eq!(settings["ignore_eos"], true);
    let bans = settings["logit_bias"].as_array().expect("a list").clone();
    assert!(bans.contains(&json!([eos, null])), "{bans:?}");
    let answer = call("get_completion", &json!({"prompt": "Once", "n_predict": 2, "logit_bias": bans}));
    assert_eq!(answer["generation_settings"]["ignore_eos"], true, "the bias bans it: {answer}");
    assert_eq!(answer["generation_settings"]["logit_bias"], json!(bans), "a settings object is a request");
    let answer = call(
        "get_completion",
        &json!({"prompt": "Once", "n_predict": 2, "ignore_eos": true, "logit_bias": [[eos, 0]]}),
    );
    assert_eq!(answer["generation_settings"]["ignore_eos"], false, "the bias allows it again");
}

/// A token with only the first bytes of a character.
fn lead_byte() -> Value {
    let tokens = call("tokenize", &json!({"text": "\u{1F600}", "add_special": false}));
    let (ids, pieces) = (&tokens["ids"], &tokens["pieces"]);
    assert_eq!(pieces[0], json!([0xF0, 0x9F]), "{tokens}");
    ids[0].clone()
}

/// The packages end a completion at the context's limit instead.
#[test]
fn old_names_have_no_limit_without_n_predict() {
    let _turn = loaded(json!({}));
    let request = json!({"prompt": "Once upon a time", "temperature": 0, "stop": ["."]});
    for family in FAMILIES {
        let answer = last_update(family, submit(&format!("{family}_init"), &request));
        let settings = &answer["generation_settings"];
        assert_eq!((&settings["n_predict"], &settings["ctx_shift"]), (&json!(-1), &json!(true)), "{family}: {answer}");
        assert_eq!(answer["stop_type"], "word", "{family}: {answer}");
    }
}

/// Tokens of an incomplete character count, although its text is withheld.
#[test]
fn n_predict_is_never_exceeded() {
    let _turn = loaded(json!({}));
    let token = lead_byte();
    for n in 1..6 {
        let request = json!({"prompt": "Tom", "n_predict": n, "temperature": 0, "logit_bias": [[token, 1e6]],
            "return_tokens": true, "repeat_penalty": 1});
        for name in ["get_completion", "speculative_completion", "foredraft_complete"] {
            let answer = call(name, &request);
            assert_eq!((&answer["tokens_predicted"], &answer["stop_type"]), (&json!(n), &json!("limit")), "{name}");
            assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(n), "{name}");
            // A byte that a further one has made invalid is shown as U+FFFD; the last one may become a character.
            assert_eq!(answer["content"], "\u{FFFD}".repeat(n - 1), "{name}");
        }
        submit("async_completion_init", &request);
        let (text, last) = drain("async_completion");
        assert_eq!((text, &last["tokens_predicted"]), ("\u{FFFD}".repeat(n - 1), &json!(n)));
        submit("speculative_completion_init", &request);
        assert_eq!(drain("speculative_completion").0, "\u{FFFD}".repeat(n - 1));
    }
}

/// Half a character is withheld at every end.
#[test]
fn half_a_character_is_withheld_at_every_end() {
    let _turn = loaded(json!({}));
    let (lead, eos) =
        (lead_byte(), call("tokenize", &json!({"text": "<|im_end|>", "add_special": false}))["ids"][0].clone());
    let request = json!({"prompt": "Tom", "temperature": 0, "n_predict": 40, "logit_bias": [[lead, 1e6], [eos, 1e6]],
        "presence_penalty": 0, "frequency_penalty": 1e4, "samplers": ["penalties", "temperature"], "return_tokens": true});
    for name in ["get_completion", "foredraft_complete"] {
        let answer = call(name, &request);
        assert_eq!(answer["stop_type"], "eos", "{answer}");
        assert!(!answer["content"].as_str().expect("content").ends_with('\u{FFFD}'), "{answer}");
    }
    let mut endless = endless();
    endless["logit_bias"] = json!([[lead, 1e6]]);
    let id = submit("async_completion_init", &endless);
    // A poll would take updates.
    wait_until("some text", || {
        let slot = &status()["slots"][0];
        slot["request_id"] == id && slot["state"] == "generating"
    });
    call_bytes("async_completion_cancel", None);
    let (text, last) = drain("async_completion");
    let n = last["tokens_predicted"].as_u64().expect("a number") as usize;
    assert_eq!(text, "\u{FFFD}".repeat(n - 1));
}

static LOG: Mutex<Vec<(i32, String)>> = Mutex::new(Vec::new());

extern "C" fn collect(level: i32, text: *const c_char, _user: *mut c_void) {
    // SAFETY: the library passes a NUL-terminated string.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    LOG.lock().expect("not poisoned").push((level, text));
}

fn logged() -> Vec<String> {
    let lines = std::mem::take(&mut *LOG.lock().expect("not poisoned"));
    lines.into_iter().filter(|(level, _)| *level == 1).map(|(_, line)| line.trim_end().to_owned()).collect()
}

/// Old hosts look at the log alone.
#[test]
fn failed_init_is_logged_as_an_error() {
    let _turn = exclusive();
    set_log_callback(Some(collect), 0);
    assert_eq!(init(Some(b"-m /nowhere.gguf")), 1);
    let lines = std::mem::take(&mut *LOG.lock().expect("not poisoned"));
    assert!(lines.iter().any(|(level, text)| *level == 4 && text.contains("/nowhere.gguf")), "{lines:?}");
}

/// The log has `speculative.cpp`'s lines: drafted tokens, what became of each, and at the end the counts and the timings of both models.
#[test]
fn drafts_and_timings_are_logged_at_debug() {
    let _turn = loaded(json!({"log_level": "debug"}));
    set_log_callback(Some(collect), 0);
    let request = json!({"prompt": "Once upon a time", "n_predict": 60, "temperature": 1.5, "seed": 3, "top_k": 0,
        "top_p": 1, "ignore_eos": true, "speculative": {"type": "draft", "adaptive": false, "n_max": 4, "verify": "match"}});
    let answer = call("speculative_completion", &request);
    let lines = logged();
    let with = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let stats = &answer["speculative"];
    let n = |key: &str| stats[key].as_u64().expect("a number") as usize;
    assert_eq!(with(" - accepted"), n("n_accepted"), "{lines:#?}");
    assert!(with(" - rejected") > 0 && with("drafted: [") > 0, "{lines:#?}");
    let drafted: usize =
        lines.iter().filter(|line| line.contains("drafted: [")).map(|line| line.matches(':').count() - 2).sum();
    assert!(drafted >= n("n_drafted"), "{drafted} {lines:#?}");
    for line in [
        format!("n_predict = {}", answer["tokens_predicted"]),
        format!("n_drafted = {}", n("n_drafted")),
        format!("n_accept  = {}", n("n_accepted")),
        "n_draft   = ".to_owned(),
        "accept    = ".to_owned(),
        "encoded".to_owned(),
        "decoded".to_owned(),
        "draft: ".to_owned(),
        "target: ".to_owned(),
    ] {
        assert_eq!(with(&line), 1, "{line}: {lines:#?}");
    }
    // A newline in a token breaks no line.
    let mut newlines = request.clone();
    newlines["logit_bias"] = json!([["\n", 100]]);
    call("speculative_completion", &newlines);
    let lines = logged();
    assert!(lines.iter().any(|line| line.contains("'\\n'")), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains('\n')), "{lines:#?}");
    // A request without speculation has the target's timings alone.
    call("get_completion", &json!({"prompt": "Once upon a time", "n_predict": 4}));
    let lines = logged();
    let with = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!((with("target: "), with("draft: "), with("drafted: [")), (1, 0, 0), "{lines:#?}");
    // At the level info, none of these lines appear.
    load(json!({"log_level": "info"}));
    set_log_callback(Some(collect), 0);
    call("speculative_completion", &request);
    assert!(LOG.lock().expect("not poisoned").iter().all(|(_, line)| !line.contains("accept")));
    set_log_callback(Some(drop_line), 0);
    load(json!({}));
    LOG.lock().expect("not poisoned").clear();
}

/// The text of control tokens, as with llama.cpp's `--special`.
#[test]
fn special_shows_control_tokens_in_the_text() {
    let _turn = loaded(json!({}));
    let chat = "<|im_start|>user\nCount from 3 to 5.<|im_end|>\n<|im_start|>assistant\n";
    let request = json!({"prompt": chat, "n_predict": 100, "temperature": 0, "return_tokens": true});
    let mut special = request.clone();
    special["special"] = true.into();
    for name in ["get_completion", "speculative_completion", "foredraft_complete"] {
        let (plain, shown) = (call(name, &request), call(name, &special));
        assert_eq!((&plain["stop_type"], &shown["stop_type"]), (&json!("eos"), &json!("eos")));
        assert_eq!(plain["tokens"], shown["tokens"], "{name}");
        let text = call("detokenize", &json!({"tokens": shown["tokens"], "special": true}))["content"].clone();
        assert_eq!(shown["content"], text, "{name}");
        assert_ne!(plain["content"], shown["content"]);
        assert!(shown["warnings"].is_null(), "{shown}");
        assert_eq!(
            (&shown["generation_settings"]["special"], &plain["generation_settings"]["special"]),
            (&json!(true), &json!(false))
        );
    }
    let id = submit("async_completion_init", &special);
    let mut text = String::new();
    wait_until("the end", || {
        let answer = call("async_completion_poll", &json!({"id": id}));
        answer["completion_updates"]
            .as_array()
            .expect("some")
            .iter()
            .for_each(|it| text += it["content"].as_str().expect("text"));
        answer["finished"] == true
    });
    assert!(text.ends_with("<|im_end|>") || text.ends_with("<|endoftext|>"), "{text}");
    // A stop string can then name one.
    special["stop"] = json!(["<|im_end|>"]);
    special["ignore_eos"] = false.into();
    assert_eq!(call("get_completion", &special)["content"], call("get_completion", &request)["content"]);
}

/// The warning about a misplaced key of `speculative` suggests its full name.
#[test]
fn speculative_keys_at_the_top_level_are_named() {
    let _turn = loaded(json!({}));
    for (key, value, meant) in [
        ("n_draft", json!(5), "speculative.n_draft"),
        ("draft", json!(5), "speculative.n_draft"),
        ("n_max", json!(5), "speculative.n_max"),
        ("n_min", json!(1), "speculative.n_min"),
        ("p_min", json!(0.5), "speculative.p_min"),
        ("p_split", json!(0.5), "speculative.p_split"),
        ("verify", json!("match"), "speculative.verify"),
        ("adaptive", json!(false), "speculative.adaptive"),
        ("n_branches", json!(2), "speculative.n_branches"),
        ("lookup_cache_dynamic", json!("x"), "speculative.lookup_cache_dynamic"),
    ] {
        let mut request = json!({"prompt": "Once", "n_predict": 1});
        request[key] = value;
        for name in ["get_completion", "speculative_completion", "foredraft_complete"] {
            let warnings = call(name, &request)["warnings"].clone();
            assert_eq!(warnings, json!([format!("unknown key {key:?} (did you mean {meant:?}?)")]), "{name}");
        }
    }
}

/// The blocks of JSON in a section of docs/migration.md: values that follow each other.
fn migration_blocks(heading: &str) -> Vec<Value> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/migration.md")).expect("the page");
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a later section");
    let blocks = section.split("```json\n").skip(1).filter_map(|rest| rest.split_once("```"));
    blocks
        .flat_map(|(block, _)| serde_json::Deserializer::from_str(block).into_iter::<Value>().collect::<Vec<_>>())
        .map(|value| value.expect("JSON"))
        .collect()
}

/// Asserts that the document shows what was answered: each of its fields, and nothing of times but that they are there.
fn assert_shown(shown: &Value, answered: &Value, place: &str) {
    match (shown, answered) {
        (Value::Object(shown), Value::Object(answered)) => {
            for (key, shown) in shown {
                let place = format!("{place}.{key}");
                let answered = answered.get(key).unwrap_or_else(|| panic!("{place} is not there"));
                if key.contains("_ms") {
                    assert!(shown.is_number() && answered.is_number(), "{place}");
                } else {
                    assert_shown(shown, answered, &place);
                }
            }
        }
        _ => assert_eq!(shown, answered, "{place}"),
    }
}

/// The example of docs/migration.md: the request, its answers, and the text of all updates.
#[test]
fn the_page_for_migration_shows_real_answers() {
    let _turn = exclusive();
    let models =
        json!({"model": crate::c_api::model("target"), "model_draft": crate::c_api::model("draft"), "n_ctx": 512});
    assert_eq!(init(Some(models.to_string().as_bytes())), 0, "{}", status());
    let blocks = migration_blocks("A speculative request with its answers");
    let [request, submitted, polls @ ..] = blocks.as_slice() else { panic!("a request and its answers: {blocks:?}") };
    let mut answer = call("speculative_completion_init", request);
    // Numbers of requests go on, and paths are the test's.
    answer["id"] = submitted["id"].clone();
    assert_shown(submitted, &answer, "submit");
    let (text, mut last) = drain("speculative_completion");
    let updates = polls.iter().flat_map(|poll| poll["completion_updates"].as_array().expect("updates"));
    let shown_text: String = updates.filter_map(|update| update["content"].as_str()).collect();
    assert_eq!(shown_text, text);
    let shown = polls.last().and_then(|poll| poll["completion_updates"].as_array()?.last()).expect("the last update");
    (last["id"], last["model"]) = (shown["id"].clone(), shown["model"].clone());
    assert_shown(shown, &last, "final response");
    assert_eq!(shown["stop"], true);
}

/// A request has no id while its JSON and its grammar are parsed. A cancel without an id then means the newest request that has
/// one. It does not wait, and the new request is cancelled if and only if a cancel reported its id.
#[test]
fn cancel_during_parsing_does_not_wait_or_hit_the_wrong_request() {
    let _guard = loaded(json!({"n_ctx": 256}));
    let request = slow_to_parse();
    for endpoint in FAMILIES {
        let (start, cancel) = (format!("{endpoint}_init"), format!("{endpoint}_cancel"));
        let cancels_before = |_| {
            let earlier = submit(&start, &json!({"prompt": "Once", "n_predict": 1}));
            last_update(endpoint, earlier);
            let (mut cancels_before, mut cancelled) = (0, Vec::new());
            let id = std::thread::scope(|scope| {
                let reading = scope.spawn(|| submit(&start, &request));
                while !reading.is_finished() {
                    let answer = call_bytes(&cancel, None);
                    cancels_before += usize::from(answer["id"] == earlier);
                    assert!(answer["id"] != earlier || answer["cancelled"] == false, "{answer}");
                    cancelled.extend(answer["id"].as_u64().filter(|_| answer["cancelled"] == true));
                }
                reading.join().expect("a number")
            });
            assert!(cancelled.iter().all(|cancelled| *cancelled == id), "{cancelled:?} {id}");
            let expected = if cancelled.is_empty() { "limit" } else { "cancelled" };
            assert_eq!(last_update(endpoint, id)["stop_type"], expected, "{cancelled:?}");
            wait_until("free slots", || status()["queue"] == 0 && status()["slots"][0]["state"] == "idle");
            cancels_before
        };
        // On a machine that is busy this thread can sleep while the request is parsed.
        assert!(
            (0..50).map(cancels_before).any(|n| n > 3),
            "{endpoint}: the request was parsed too fast for this test"
        );
    }
    // A request in this stage does not delay `deinit`, and is gone afterwards.
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| call("async_completion_init", &request));
        while status()["state"] == "ready" {
            deinit();
        }
        let answer = reading.join().expect("an answer");
        let code = answer["code"].as_str().unwrap_or_default();
        assert!(answer["id"].is_u64() || ["cancelled", "not_initialized"].contains(&code), "{answer}");
        assert_eq!(init(Some(command(json!({})).to_string().as_bytes())), 0);
        let id = answer["id"].as_u64().unwrap_or(1);
        assert_eq!(error_of("async_completion_poll", &json!({"id": id})).0, "not_found");
    });
    assert_works();
}

/// The library clamps or ignores what the old server clamped or ignored, with warnings.
#[test]
fn values_that_the_old_server_tolerated() {
    let _turn = loaded(json!({}));
    let plain = json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0});
    let expected = call("get_completion", &plain)["content"].clone();
    for (key, value, warned) in [
        ("top_p", json!(1.1), 1),
        ("tfs_z", json!(7), 1),
        ("n_predict", json!(12.9), 1),
        ("n_keep", json!(-2), 1),
        ("repeat_last_n", json!(64.5), 1),
        ("mirostat", json!(3), 1),
        ("logit_bias", json!([[99_999_999, 1], [5], "x", [-1, 2], [5, true]]), 5),
        ("logit_bias", json!("none"), 1),
        ("stop", json!({}), 1),
    ] {
        let mut request = plain.clone();
        request[key] = value;
        for name in ["get_completion", "speculative_completion"] {
            let answer = call(name, &request);
            assert_eq!((&answer["success"], &answer["content"]), (&json!(true), &expected), "{request}: {answer}");
            let warnings = answer["warnings"].as_array().unwrap_or_else(|| panic!("{request}: {answer}"));
            assert_eq!(warnings.len(), warned, "{request}: {warnings:?}");
            assert!(warnings.iter().all(|warning| warning.as_str().expect("text").starts_with(key)), "{warnings:?}");
        }
    }
    // Below -1 there is no limit.
    let id = submit("async_completion_init", &json!({"prompt": "Once", "n_predict": -2, "ignore_eos": true}));
    wait_for_state("async_completion", id, "generating");
    assert_eq!(call_bytes("async_completion_cancel", Some(b"{}"))["cancelled"], true);
    assert_eq!(last_update("async_completion", id)["generation_settings"]["n_predict"], -1);
    // init's beams are get_completion's, as in the old server.
    assert_eq!(init(Some(command(json!({"n_beams": 3})).to_string().as_bytes())), 0);
    assert_eq!(call("get_completion", &plain)["generation_settings"]["n_beams"], 3);
    assert_eq!(call("speculative_completion", &plain)["generation_settings"]["n_beams"], 0);
    let id = submit("async_completion_init", &plain);
    assert_eq!(last_update("async_completion", id)["generation_settings"]["n_beams"], 0);
}

/// Whether the old server clamped or ignored such a value of this field.
fn tolerated(key: &str, value: &Value) -> bool {
    let clamped = [
        "temperature",
        "top_k",
        "top_p",
        "tfs_z",
        "typical_p",
        "repeat_last_n",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "mirostat",
        "mirostat_tau",
        "mirostat_eta",
        "n_probs",
        "n_predict",
        "n_keep",
        "seed",
    ];
    let is_number = value.is_number() || value.is_boolean();
    key == "logit_bias" || (key == "stop" && !value.is_array()) || (clamped.contains(&key) && is_number)
}

#[test]
fn values_that_the_old_server_refused_are_refused() {
    let _turn = loaded(json!({}));
    for (key, value) in wrong_values().iter().filter(|(key, value)| !tolerated(key, value)) {
        assert_refused(error_of, &["get_completion", "speculative_completion_init"], key, value);
    }
    assert_works();
}

/// Without an id, the newest request of the family is meant, whatever else the document is.
#[test]
fn command_without_an_id_means_the_newest_request() {
    let _turn = loaded(json!({}));
    for family in FAMILIES {
        let id = submit(&format!("{family}_init"), &endless());
        assert_eq!(call(&format!("{family}_cancel"), &json!({"id": id}))["cancelled"], true);
        assert_eq!(last_update(family, id)["stop_type"], "cancelled");
        for document in [None, Some(&b""[..]), Some(b"{}"), Some(b" "), Some(b"7"), Some(b"no JSON")] {
            assert_eq!(call_bytes(&format!("{family}_poll"), document)["id"], id);
            assert_eq!(call_bytes(&format!("{family}_cancel"), document)["cancelled"], false);
        }
    }
}

/// The [`FUNCTIONS`] that need a document.
fn functions() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.into_iter().filter(|name| !COMMANDS.contains(name))
}

#[test]
fn old_names_refuse_malformed_arguments() {
    let _turn = loaded(json!({}));
    free_null();
    assert_eq!((version(), &json!(version().1)), (version(), &status()["version"]));
    for (what, document) in broken() {
        for name in functions() {
            let answer = call_bytes(name, Some(&document));
            assert_eq!(answer["code"], "invalid_json", "{name}, {what}: {answer}");
        }
    }
    for document in [None, Some(&b""[..]), Some(b" \n\t")] {
        for name in functions() {
            assert_eq!(call_bytes(name, document)["code"], "invalid_json", "{name} {document:?}");
        }
    }
    let request = "\u{feff}{\"prompt\": \"Once\", \"n_predict\": 2}";
    assert_eq!(call_bytes("get_completion", Some(request.as_bytes()))["success"], true);
    assert_works();
}

#[test]
fn old_names_report_the_state_without_a_model() {
    let _turn = exclusive();
    let refused = |code: &str| {
        for name in functions().filter(|name| !WITHOUT_MODEL.contains(name)) {
            assert_eq!(call(name, &json!({"prompt": "a", "id": 1}))["code"], code, "{name}");
        }
    };
    refused("not_initialized");
    assert_finds_nothing("uninitialized");
    assert_eq!((init(None), init(Some(b"[")), init(Some(b"{}"))), (2, 2, 3));
    assert_eq!(init(Some(b"-m /nowhere.gguf")), 1);
    refused("not_initialized");
    assert_finds_nothing("failed");
    GATE.close();
    init_async(Some(debug_command().as_bytes()));
    GATE.wait_for_a_caller();
    refused("loading");
    assert_finds_nothing("loading");
    GATE.open();
    wait_until("the load's end", || status()["state"] == "ready");
    set_log_callback(Some(drop_line), 0);
    assert_finds_nothing("idle");
    assert_works();
    deinit();
    deinit();
    refused("not_initialized");
    assert_finds_nothing("uninitialized");
}

/// The answers of the calls made inside a callback.
static ANSWERS: Mutex<Vec<(String, Value)>> = Mutex::new(Vec::new());
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Calls every function in the first callback.
extern "C" fn call_everything(_id: u64, _user: *mut c_void) {
    if CALLS.fetch_add(1, Ordering::SeqCst) > 0 {
        return;
    }
    let request =
        json!({"prompt": "a", "content": "a", "text": "a", "tokens": [1], "n_predict": 1, "timeout_ms": 1000});
    let mut answers: Vec<_> = FUNCTIONS.into_iter().map(|name| (name.to_owned(), call(name, &request))).collect();
    answers.push(("init".into(), json!(init(Some(b"-m /nowhere.gguf")))));
    ANSWERS.lock().expect("not poisoned").extend(answers);
}

#[test]
fn update_callback_may_call_every_old_name() {
    let _turn = loaded(json!({"max_queue": 64}));
    set_update_callback(Some(call_everything), 0);
    let id = submit("async_completion_init", &json!({"prompt": "Once", "n_predict": 8}));
    last_update("async_completion", id);
    wait_until("the calls from inside", || !ANSWERS.lock().expect("not poisoned").is_empty());
    let waiting = HashSet::from([
        "get_completion",
        "speculative_completion",
        "get_embedding",
        "session_save",
        "session_load",
        "async_completion_poll",
        "speculative_completion_poll",
    ]);
    for (name, answer) in std::mem::take(&mut *ANSWERS.lock().expect("not poisoned")) {
        match name.as_str() {
            "init" => assert_eq!(answer, 5),
            name => assert_eq!(answer["code"] == "would_deadlock", waiting.contains(name), "{name}: {answer}"),
        }
    }
    set_update_callback(None, 0);
    assert_works();
}

#[test]
fn threads_call_random_old_names() {
    let _turn = loaded(json!({"n_parallel": 2}));
    let step = |random: &mut Random| {
        let name = *random.of(&FUNCTIONS);
        match random.below(40) {
            0 => assert!([0, 4].contains(&init(Some(command(json!({"n_parallel": 2})).to_string().as_bytes())))),
            1 => init_async(Some(command(json!({})).to_string().as_bytes())),
            2 => deinit(),
            3..=5 => drop(call_bytes(name, *random.of(&random_calls::DOCUMENTS))),
            6..=9 => {
                let family = *random.of(&FAMILIES);
                call(&format!("{family}_init"), &endless());
                call_bytes(&format!("{family}_cancel"), None);
                call_bytes(&format!("{family}_poll"), None);
            }
            _ => {
                let request = random_calls::request(random);
                let answer = call(name, &request);
                assert!(answer["success"].is_boolean(), "{name} {}: {answer}", shortened(&request));
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..8 {
            scope.spawn(move || (0..60).fold(Random::new(seed + 100), |mut random, _| (step(&mut random), random).1));
        }
    });
    assert_eq!(init(Some(command(json!({})).to_string().as_bytes())), 0);
    assert_works();
}
