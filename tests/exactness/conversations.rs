//! Conversations: many more than slots, in random order. Each output is that of a fresh engine, whatever the memory.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{complete, drain, model, n, start, submit, tiny_models, tokens, with};
use serde_json::{Value, json};

fn drafting(number: usize) -> Value {
    match number % 3 {
        0 => json!(false),
        1 => json!({"type": "draft", "adaptive": false, "n_max": 3}),
        _ => json!({"type": "auto"}),
    }
}

/// Runs turns of conversations in random order, two at a time, each with the prompt so far and a few new tokens. Returns the share of the
/// prompts' tokens that was cached, and the most bytes in memory.
fn talk(kind: &str, init: &Value, n_conversations: usize, n_turns: usize) -> (f64, usize) {
    let limit = init["cache_ram_mb"].as_u64().map_or(256, |mb| usize::try_from(mb).expect("small")) << 20;
    let fresh = start(with(init, json!({"n_parallel": 1, "kv_unified": false})));
    let engine = start(with(init, json!({"n_parallel": 2})));
    let mut prompts: Vec<Vec<usize>> = (0..n_conversations).map(|name| tokens(name, 60 + name)).collect();
    let (mut n_cached, mut n_prompt, mut most) = (0, 0, 0);
    let mut random = 5_usize;
    for round in 0..n_turns {
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
            (name, submit(&engine, Foredraft, &request), request)
        });
        for (name, id, request) in turns {
            let updates = drain(&engine, Foredraft, id);
            let found: Vec<Value> =
                updates.iter().flat_map(|update| update["tokens"].as_array().cloned().unwrap_or_default()).collect();
            let alone = json!({"cache_prompt": false, "speculative": false, "conversation": null, "priority": 0});
            let expected = complete(&fresh, Plain, &with(&request, alone));
            assert_eq!(json!(found), expected["tokens"], "{kind}, round {round}, conversation {name}");
            n_cached += n(&updates.last().expect("an end")["timings"]["cache_n"]);
            n_prompt += prompts[name].len();
            prompts[name].extend(found.iter().map(n));
            if prompts[name].len() > 300 {
                prompts[name].truncate(70); // it rewinds
            }
            let bytes = n(&engine.status()["conversations"]["bytes"]);
            assert!(bytes <= limit, "{kind}: {bytes} of {limit} bytes");
            most = most.max(bytes);
        }
    }
    (n_cached as f64 / n_prompt as f64, most)
}

#[test]
fn a_hundred_conversations_have_the_outputs_of_a_fresh_engine() {
    let (cached, most) = talk("drafts", &json!({"n_ctx": 512}), 100, 300);
    assert!(cached > 0.7 && most > 1 << 20, "{cached} of the prompts was cached, {most} bytes");
}

#[test]
fn conversations_on_other_memories_have_the_outputs_of_a_fresh_engine() {
    for (kind, init) in [
        ("shared cells", json!({"kv_unified": true, "n_ctx": 700})),
        ("hybrid", json!({"model": tiny_models::hybrid(), "model_draft": model("draft")})),
        ("delta net with its own head", json!({"model": tiny_models::delta_net_mtp(), "model_draft": null})),
        ("recurrent", json!({"model": tiny_models::recurrent(), "model_draft": null})),
        ("sliding window", json!({"model": tiny_models::sliding_window(), "model_draft": null, "swa_full": false})),
    ] {
        let init = with(&json!({"n_ctx": 512, "n_batch": 64, "n_ubatch": 32}), init);
        let (cached, most) = talk(kind, &init, 8, 40);
        assert!(cached > 0.4 && most > 0, "{kind}: {cached} of the prompts was cached, {most} bytes");
    }
}

#[test]
fn a_small_limit_is_never_passed() {
    let (cached, most) = talk("limit", &json!({"n_ctx": 512, "cache_ram_mb": 1}), 30, 60);
    assert!(cached > 0.0 && most > 0, "{cached}, {most}");
}
