//! Conversations: many more than slots, in random order. Each output is that of a fresh engine, whatever the memory.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{complete, drain, model, n, start, submit, tiny_models, tokens, with};
use foredraft::api::JsonEngine;
use foredraft::{Code, Function, Result};
use serde_json::{Value, json};

fn drafting(number: usize) -> Value {
    match number % 3 {
        0 => json!(false),
        1 => json!({"type": "draft", "adaptive": false, "n_max": 3}),
        _ => json!({"type": "auto"}),
    }
}

fn call(engine: &JsonEngine, request: &Value) -> Result<Value> {
    engine.call(Function::Conversation, Ok(request.to_string().as_bytes()))
}

/// Forks, rewinds, pins or drops a conversation, as the host's prompts.
fn change(engine: &JsonEngine, prompts: &mut [Vec<usize>], random: usize) {
    let (from, to) = (random % prompts.len(), random / 100 % prompts.len());
    let (name, other) = (format!("character {from}"), format!("character {to}"));
    let action = match random / 10_000 % 6 {
        0 | 1 => json!({"action": "fork", "to": other}),
        2 => json!({"action": "rewind", "token": random / 60_000 % 70}),
        3 => json!({"action": "rewind", "turn": random / 60_000 % 4}),
        4 => json!({"action": if (random / 60_000).is_multiple_of(2) { "pin" } else { "unpin" }}),
        _ => json!({"action": "drop"}),
    };
    match call(engine, &with(&action, json!({"conversation": name}))) {
        Ok(after) if action["action"] == "rewind" => {
            let n_tokens = n(&after["n_tokens"]);
            assert!(n_tokens <= prompts[from].len(), "{after}");
            prompts[from].truncate(n_tokens.max(50));
        }
        Ok(_) if action["action"] == "fork" => prompts[to] = prompts[from].clone(),
        Ok(_) => {}
        // It was not there, had fewer turns, was itself, or memory has no room.
        Err(error) => assert!(
            matches!(error.code(), Code::NotFound | Code::InvalidRequest | Code::ResourceExhausted),
            "{action}: {error}"
        ),
    }
}

/// The number of turns for each kind of memory, if a check sets it.
fn n_turns() -> Option<usize> {
    std::env::var("FOREDRAFT_TURNS").ok().map(|n| n.parse().expect("a number"))
}

/// How the turns of conversations went.
#[derive(Debug)]
struct Talk {
    /// The share of the prompts' tokens that was cached.
    cached: f64,
    /// Turns after the first of a conversation that found a state, and those that found none.
    n_found: usize,
    n_missed: usize,
    /// The most bytes in memory, and how often they were read.
    most: usize,
    n_samples: usize,
}

/// Runs turns of conversations in random order, two at a time, each with the prompt so far and a few new tokens, while a thread reads how much
/// memory they take.
fn talk(kind: &str, init: &Value, n_conversations: usize, n_turns: usize) -> Talk {
    let limit = init["cache_ram_mb"].as_u64().map_or(256, |mb| usize::try_from(mb).expect("small")) << 20;
    let fresh = start(with(init, json!({"n_parallel": 1, "kv_unified": false})));
    let engine = start(with(init, json!({"n_parallel": 2})));
    let has_ended = AtomicBool::new(false);
    let sample = || {
        let (mut most, mut n_samples) = (0, 0);
        while !has_ended.load(Ordering::Acquire) {
            let bytes = n(&engine.status()["conversations"]["bytes"]);
            assert!(bytes <= limit, "{kind}: {bytes} of {limit} bytes");
            (most, n_samples) = (most.max(bytes), n_samples + 1);
            std::thread::sleep(Duration::from_micros(500));
        }
        (most, n_samples)
    };
    std::thread::scope(|scope| {
        let sampler = scope.spawn(sample);
        // Also after a failure, which would wait for the thread otherwise.
        let talked = catch_unwind(AssertUnwindSafe(|| take_turns(kind, &engine, &fresh, n_conversations, n_turns)));
        has_ended.store(true, Ordering::Release);
        let (most, n_samples) = sampler.join().expect("within the limit");
        let talk = Talk { n_samples, ..talked.unwrap_or_else(|failed| resume_unwind(failed)) };
        let talk = Talk { most: talk.most.max(most), ..talk };
        let Talk { cached, n_found, n_missed, most, n_samples } = &talk;
        eprintln!("\n| {kind} | {} | {cached:.2} | {n_found} | {n_missed} | {most} | {n_samples} |", 2 * (n_turns / 2));
        talk
    })
}

fn take_turns(kind: &str, engine: &JsonEngine, fresh: &JsonEngine, n_conversations: usize, n_turns: usize) -> Talk {
    let mut prompts: Vec<Vec<usize>> = (0..n_conversations).map(|name| tokens(name, 60 + name)).collect();
    let mut is_known = vec![false; n_conversations];
    let mut talk = Talk { cached: 0.0, n_found: 0, n_missed: 0, most: 0, n_samples: 0 };
    let (mut n_cached, mut n_prompt) = (0, 0);
    let mut random = 5_usize;
    for round in 0..n_turns / 2 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let first = (random >> 33) % n_conversations;
        let both = [first, (first + 1 + (random >> 45) % (n_conversations - 1)) % n_conversations];
        let turns = both.map(|name| {
            prompts[name].extend(tokens(round + 100, 6));
            let request = json!({
                "prompt": prompts[name], "n_predict": 8, "temperature": 0.9, "top_k": 0, "top_p": 1, "seed": round, "ignore_eos": true,
                "return_tokens": true, "speculative": drafting(round), "conversation": format!("character {name}"),
                "priority": round % 2,
            });
            (name, submit(engine, Foredraft, &request), request)
        });
        for (name, id, request) in turns {
            let updates = drain(engine, Foredraft, id);
            let found: Vec<Value> =
                updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect();
            let alone = json!({"cache_prompt": false, "speculative": false, "conversation": null, "priority": 0});
            let expected = complete(fresh, Plain, &with(&request, alone));
            assert_eq!(json!(found), expected["tokens"], "{kind}, round {round}, conversation {name}");
            let own = n(&updates.last().expect("an end")["timings"]["cache_n"]);
            (n_cached, n_prompt) = (n_cached + own, n_prompt + prompts[name].len());
            match std::mem::replace(&mut is_known[name], true) {
                true if own > 0 => talk.n_found += 1,
                true => talk.n_missed += 1,
                false => {}
            }
            prompts[name].extend(found.iter().map(n));
            if prompts[name].len() > 300 {
                prompts[name].truncate(70); // it rewinds
            }
            talk.most = talk.most.max(n(&engine.status()["conversations"]["bytes"]));
        }
        change(engine, &mut prompts, random >> 20);
    }
    Talk { cached: n_cached as f64 / n_prompt as f64, ..talk }
}

#[test]
fn a_hundred_conversations_have_the_outputs_of_a_fresh_engine() {
    let talk = talk("drafts", &json!({"n_ctx": 512}), 100, n_turns().unwrap_or(600));
    assert!(talk.cached > 0.7 && talk.most > 1 << 20, "{talk:?}");
}

#[test]
fn conversations_on_other_memories_have_the_outputs_of_a_fresh_engine() {
    for (kind, init) in [
        ("disk", json!({"cache_ram_mb": 0, "cache_dir": path("talk")})),
        // As much as the states take, so they are cut into chunks.
        ("chunks", json!({"cache_ram_mb": if n_turns().is_some() { 72 } else { 5 }})),
        ("shared cells", json!({"kv_unified": true, "n_ctx": 700})),
        ("hybrid", json!({"model": tiny_models::hybrid(), "model_draft": model("draft")})),
        ("delta net with its own head", json!({"model": tiny_models::delta_net_mtp(), "model_draft": null})),
        ("recurrent", json!({"model": tiny_models::recurrent(), "model_draft": null})),
        ("sliding window", json!({"model": tiny_models::sliding_window(), "model_draft": null, "swa_full": false})),
    ] {
        let init = with(&json!({"n_ctx": 512, "n_batch": 64, "n_ubatch": 32}), init);
        let talk = match n_turns() {
            Some(n_turns) => talk(kind, &init, 100, n_turns),
            None => talk(kind, &init, 8, 80),
        };
        assert!(talk.cached > 0.4 && (talk.most > 0) == (init["cache_ram_mb"] != 0), "{kind}: {talk:?}");
    }
}

#[test]
fn conversations_are_listed_and_bad_input_is_an_error() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2, "cache_ram_mb": 1}));
    let ask = |name: &str| {
        complete(&engine, Plain, &json!({"prompt": tokens(name.len(), 40), "n_predict": 4, "conversation": name}))
    };
    for name in ["a", "bb", "ccc"] {
        ask(name);
    }
    let all = call(&engine, &json!({"action": "list"})).expect("a list")["conversations"].clone();
    let shown = |name: &str| all.as_array().expect("a list").iter().find(|one| one["conversation"] == name).cloned();
    assert_eq!(shown("a").expect("listed")["place"], "memory", "{all}");
    assert_eq!(shown("ccc").expect("listed")["n_turns"], 1, "{all}");
    let one = call(&engine, &json!({"action": "list", "conversation": "a"})).expect("one");
    assert_eq!(one["conversations"].as_array().map(Vec::len), Some(1), "{one}");
    let long = "a".repeat(1 << 20);
    for (request, part) in [
        (json!({}), "action: expected list"),
        (json!({"action": "lists"}), "action: expected list"),
        (json!({"action": 5}), "action"),
        (json!({"action": "drop"}), "conversation: expected a name"),
        (json!({"action": "drop", "conversation": long}), "conversation: expected a string of 1 to 256 bytes"),
        (json!({"action": "drop", "conversation": "a\nb"}), "conversation: expected a string"),
        (json!({"action": "drop", "conversation": ""}), "conversation: expected a string"),
        (json!({"action": "fork", "conversation": "a"}), "to: expected a name"),
        (json!({"action": "fork", "conversation": "a", "to": long}), "to: expected a string"),
        (json!({"action": "fork", "conversation": "a", "to": "a"}), "to: expected another name"),
        (json!({"action": "rewind", "conversation": "a"}), "either turn or token"),
        (json!({"action": "rewind", "conversation": "a", "turn": 1, "token": 1}), "either turn or token"),
        (json!({"action": "rewind", "conversation": "a", "turn": -1}), "turn"),
        (json!({"action": "rewind", "conversation": "a", "turn": 2}), "turn: expected 0 to 1, got 2"),
        (json!({"action": "rewind", "conversation": "a", "token": 1000}), "token: expected 0 to 43, got 1000"),
    ] {
        let error = call(&engine, &request).expect_err("it is wrong");
        assert_eq!(error.code(), Code::InvalidRequest, "{error}");
        assert!(error.message().contains(part), "{part}: {error}");
    }
    let missing = call(&engine, &json!({"action": "pin", "conversation": "nobody"})).expect_err("nobody");
    assert_eq!(missing.code(), Code::NotFound, "{missing}");
    let answer = call(&engine, &json!({"action": "drop", "conversation": "a", "tturn": 5})).expect("dropped");
    assert!(answer["warnings"][0].as_str().is_some_and(|text| text.contains("tturn")), "{answer}");
}

/// A new path of this test.
fn path(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("foredraft-conversation-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    let _ = std::fs::remove_file(&path);
    path.to_str().expect("a path").to_owned()
}

#[test]
fn conversations_on_disk_serve_later_engines_of_the_same_model() {
    let folder = path("folder");
    let init = json!({"n_ctx": 512, "n_parallel": 2, "cache_dir": folder});
    let request = |name: usize| json!({"prompt": tokens(name, 60), "n_predict": 6, "seed": name, "conversation": format!("character {name}")});
    let engine = start(init.clone());
    let first: Vec<Value> =
        (0..4).map(|name| complete(&engine, Foredraft, &request(name))["content"].clone()).collect();
    engine.unload();
    let engine = start(init.clone());
    let listed = call(&engine, &json!({"action": "list"})).expect("a list");
    let places = listed["conversations"].as_array().expect("a list").iter().map(|one| &one["place"]);
    assert_eq!(places.collect::<Vec<_>>(), ["disk"; 4], "{listed}");
    for (name, first) in first.iter().enumerate() {
        let answer = complete(&engine, Plain, &request(name));
        assert_eq!((&answer["content"], &answer["timings"]["cache_n"]), (first, &json!(59)), "{answer}");
    }
    // Other models and contexts have other files.
    for other in [json!({"model": model("draft"), "model_draft": null}), json!({"cache_type_k": "f32"})] {
        let other = start(with(&init, other));
        assert_eq!(call(&other, &json!({"action": "list"})).expect("a list")["conversations"], json!([]));
        assert_eq!(complete(&other, Plain, &request(0))["timings"]["cache_n"], 0);
    }
    let wrong =
        JsonEngine::new().load(json!({"model": model("target"), "cache_dir": model("target")}).to_string().as_bytes());
    assert!(wrong.expect_err("a file").message().starts_with("cache_dir: "));
}

#[test]
fn conversations_are_saved_and_loaded() {
    let file = path("file");
    let init = json!({"n_ctx": 512, "n_parallel": 2});
    let request = json!({"prompt": tokens(1, 60), "n_predict": 6, "seed": 5, "conversation": "a"});
    let engine = start(init.clone());
    let first = complete(&engine, Foredraft, &request)["content"].clone();
    let saved = call(&engine, &json!({"action": "save", "conversation": "a", "filename": file})).expect("saved");
    assert!(saved["n_written"].as_u64() > Some(1000) && saved["n_tokens"] == 65, "{saved}");
    let engine = start(init.clone());
    let loaded = call(&engine, &json!({"action": "load", "conversation": "b", "filename": file})).expect("loaded");
    assert_eq!(
        (&loaded["place"], &loaded["n_tokens"], &loaded["n_turns"]),
        (&json!("memory"), &json!(65), &json!(1)),
        "{loaded}"
    );
    let answer = complete(&engine, Foredraft, &with(&request, json!({"conversation": "b"})));
    assert_eq!((&answer["content"], &answer["timings"]["cache_n"]), (&first, &json!(59)), "{answer}");
    // Damaged, foreign, missing, and without room.
    let whole = std::fs::read(&file).expect("the file");
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        std::fs::write(&file, damaged).expect("writable");
        let error =
            call(&engine, &json!({"action": "load", "conversation": "b", "filename": file})).expect_err("damaged");
        assert!(error.message().contains("byte "), "{at}: {error}");
    }
    std::fs::write(&file, whole).expect("writable");
    let load = json!({"action": "load", "conversation": "c", "filename": file});
    let other = start(with(&init, json!({"model": model("draft"), "model_draft": null})));
    assert!(call(&other, &load).expect_err("another model").message().contains("another model or context"));
    let none = start(with(&init, json!({"cache_ram_mb": 0})));
    assert_eq!(call(&none, &load).expect_err("no room").code(), Code::ResourceExhausted);
    let missing = json!({"action": "load", "conversation": "c", "filename": "/no/such"});
    assert_eq!(call(&engine, &missing).expect_err("missing").code(), Code::NotFound);
    assert!(
        call(&engine, &json!({"action": "save", "conversation": "b"}))
            .expect_err("no path")
            .message()
            .contains("filename")
    );
}

#[test]
fn actions_wait_for_no_request() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 1}));
    let endless =
        json!({"prompt": tokens(1, 40), "n_predict": -1, "ignore_eos": true, "conversation": "a", "ctx_shift": true});
    let id = submit(&engine, Foredraft, &endless);
    let running = loop {
        let all = call(&engine, &json!({"action": "list"})).expect("a list");
        if all["conversations"][0]["n_tokens"].as_u64() > Some(40) {
            break all;
        }
    };
    assert_eq!(running["conversations"][0]["running"], true, "{running}");
    let fork = call(&engine, &json!({"action": "fork", "conversation": "a", "to": "b"})).expect("a fork");
    assert!(fork["n_tokens"].as_u64() > Some(40), "{fork}");
    call(&engine, &json!({"action": "rewind", "conversation": "a", "token": 1})).expect_err("it runs");
    // A pause stops steps, and no action.
    engine.pause().expect("paused");
    call(&engine, &json!({"action": "rewind", "conversation": "b", "token": 41})).expect("rewound");
    call(&engine, &json!({"action": "drop", "conversation": "a"})).expect("dropped");
    engine.resume().expect("resumed");
    engine.cancel(Some(json!({"id": id}).to_string().as_bytes())).expect("cancelled");
    drain(&engine, Foredraft, id);
    let request = json!({"prompt": tokens(1, 60), "n_predict": 4, "seed": 3, "conversation": "b"});
    let answer = complete(&engine, Plain, &request);
    assert_eq!(answer["timings"]["cache_n"], 40, "{answer}");
}

#[test]
fn a_small_limit_is_never_passed() {
    let talk = talk("limit", &json!({"n_ctx": 512, "cache_ram_mb": 1}), 30, n_turns().unwrap_or(120));
    assert!(talk.cached > 0.0 && talk.most > 0, "{talk:?}");
}

#[test]
fn a_hundred_conversations_hold_their_world_once() {
    let limit = 64;
    let init = json!({"n_ctx": 1024, "n_batch": 256, "model_draft": null});
    let engine = start(with(&init, json!({"n_parallel": 1, "cache_ram_mb": limit})));
    let world = tokens(1, 700);
    let ask = |name: usize| {
        let prompt = [world.clone(), tokens(name + 2, 20)].concat();
        let request = json!({"prompt": prompt, "n_predict": 4, "seed": name, "temperature": 0.9, "ignore_eos": true, "return_tokens": true});
        let own = json!({"conversation": format!("character {name}"), "cache_prompt": true});
        complete(&engine, Plain, &with(&request, own))
    };
    let first: Vec<Value> = (0..101).map(|name| ask(name)["tokens"].clone()).collect();
    let memory = engine.status()["conversations"].clone();
    assert_eq!(memory["n"], 100, "{memory}: and one has the slot");
    let alone = call(&engine, &json!({"action": "list", "conversation": "character 5"})).expect("listed");
    let alone = n(&alone["conversations"][0]["bytes"]);
    // Beside the world each has its own 24 tokens, its tokens as numbers, and a chunk or two of each layer's keys and values.
    assert!(n(&memory["bytes"]) <= limit << 20 && limit << 20 < 30 * alone, "{memory}: {alone} bytes of each alone");
    let fresh = start(init);
    for name in (0..101).step_by(7) {
        let again = ask(name);
        assert_eq!((&again["tokens"], &again["timings"]["cache_n"]), (&first[name], &json!(719)), "{name}");
        let prompt = [world.clone(), tokens(name + 2, 20)].concat();
        let request = json!({"prompt": prompt, "n_predict": 4, "seed": name, "temperature": 0.9, "ignore_eos": true,
            "return_tokens": true, "cache_prompt": false});
        assert_eq!(complete(&fresh, Plain, &request)["tokens"], first[name], "{name}");
    }
    for name in 0..101 {
        call(&engine, &json!({"action": "drop", "conversation": format!("character {name}")})).expect("dropped");
    }
    let memory = engine.status()["conversations"].clone();
    assert_eq!((&memory["n"], &memory["bytes"]), (&json!(0), &json!(0)), "given back to the byte");
}
