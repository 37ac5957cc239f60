//! `foredraft_status` reports on models, draft, slots and queue.

use crate::common::Endpoint::Plain;
use crate::common::changed_vocabulary::ChangedVocabulary;
use crate::common::gguf::Gguf;
use crate::common::{cancel, complete, model, start, submit, tiny_models, with};
use foredraft::api::JsonEngine;
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

/// The number of weights of a file, and their size in bytes.
fn size(path: &str) -> (i64, u64) {
    let path = std::ffi::CString::new(path).expect("no NUL");
    // SAFETY: a NUL-terminated path; the indices are below the count; the shape of a tensor has four numbers.
    unsafe {
        let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
        let file = sys::gguf_init_from_file(path.as_ptr(), params);
        assert!(!file.is_null());
        let (mut weights, mut bytes) = (0, 0);
        for index in 0..sys::gguf_get_n_tensors(file) {
            weights += std::slice::from_raw_parts(sys::gguf_get_tensor_ne(file, index), 4).iter().product::<i64>();
            bytes += sys::gguf_get_tensor_size(file, index) as u64;
        }
        sys::gguf_free(file);
        (weights, bytes)
    }
}

#[test]
fn status_describes_the_models() {
    let status = start(json!({"n_ctx": 512, "n_parallel": 3, "model_alias": "mine"})).status();
    let [target, draft] = ["target", "draft"].map(model);
    let expect = |path: &str| {
        let (weights, bytes) = size(path);
        (json!(weights), json!(bytes))
    };
    assert_eq!((status["model_n_params"].clone(), status["model_size"].clone()), expect(&target));
    assert_eq!((status["draft"]["n_params"].clone(), status["draft"]["size"].clone()), expect(&draft));
    for (key, expected) in [
        ("model", json!(target)),
        ("model_draft", json!(draft)),
        ("model_alias", json!("mine")),
        ("n_ctx", json!(512)),
        ("n_parallel", json!(3)),
        ("progress", json!(1.0)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("vocab_only", json!(false)),
        ("warnings", json!([])),
    ] {
        assert_eq!(status[key], expected, "{key}");
    }
    for description in [&status["model_description"], &status["draft"]["description"]] {
        assert!(description.as_str().is_some_and(|text| text.contains("llama")), "{description}");
    }
    assert!(status["system_info"].as_str().is_some_and(|text| text.contains("CPU")), "{status}");
    assert!(status["devices"].as_array().expect("devices").iter().any(|device| device["type"] == "cpu"), "{status}");
    let slots: Vec<&Value> = status["slots"].as_array().expect("slots").iter().map(|slot| &slot["state"]).collect();
    assert_eq!(slots, ["idle"; 3]);
}

/// Where there is no GPU, the CPU has all layers, weights and caches. A context of four times the length has four times the cache.
#[test]
fn devices_say_what_they_compute() {
    let of = |more: Value| {
        let status = start(more).status();
        let devices = status["devices"].as_array().expect("devices").clone();
        devices.into_iter().find(|device| device["type"] == "cpu").expect("a CPU")
    };
    if foredraft::llama::devices().len() > 1 {
        return;
    }
    let (short, long) = (of(json!({"n_ctx": 512, "repack": false})), of(json!({"n_ctx": 2048, "repack": false})));
    // Embeddings that are the output weights, too, exist twice, and no more.
    let copied = of(json!({"n_ctx": 512}));
    for (part, path) in [("target", model("target")), ("draft", model("draft"))] {
        let file = Gguf::read(&path);
        let at = file.value("llama.block_count");
        let n_layers = u32::from_le_bytes(file.bytes[at].try_into().expect("four bytes"));
        assert_eq!((&short[part]["n_layers"], &short[part]["output"]), (&json!(n_layers), &json!(true)), "{short}");
        let weights = short[part]["weights"].as_u64().expect("bytes");
        // A buffer can have padding behind its tensors.
        assert!((size(&path).1..size(&path).1 + 65_536).contains(&weights), "{short}");
        let with_copies = copied[part]["weights"].as_u64().expect("bytes");
        assert!((weights..weights + weights / 2).contains(&with_copies), "{copied}");
        let [cells, more] = [&short, &long].map(|of| of[part]["kv_cache"].as_u64().expect("bytes"));
        assert!(cells > 0 && more == 4 * cells, "{short} {long}");
        assert!(short[part]["compute"].as_u64().expect("bytes") > 0);
    }
    assert_eq!(of(json!({"n_ctx": 512, "model_draft": null}))["draft"], Value::Null);
}

/// A slot takes cells for its context, its recurrent state, the earlier states that drafts need, and the cells of a head.
#[test]
fn status_counts_the_states_and_the_heads_cells_of_every_slot() {
    if foredraft::llama::devices().len() > 1 {
        return;
    }
    let load = |path: &str, head: Value, more: Value| {
        let small =
            json!({"model": path, "model_draft": head, "n_ctx": 256, "n_batch": 32, "n_ubatch": 32, "warmup": false});
        let status = start(with(&small, more)).status();
        let bytes = |part: &str| status["devices"][0][part]["kv_cache"].as_u64();
        (bytes("target").expect("bytes"), bytes("draft"), status["n_rollback"].as_u64())
    };
    // A physical batch of two tokens leaves no room for earlier states.
    let least = json!({"n_batch": 2, "n_ubatch": 2});
    for path in [tiny_models::hybrid(), tiny_models::delta_net()] {
        let of = |more: Value| load(&path, Value::Null, more);
        let (without, _, none) = of(least.clone());
        let (longer, _, _) = of(with(&least, json!({"n_ctx": 512})));
        let cells = longer - without;
        let state = without - cells;
        assert!(none == Some(0) && cells > 0 && state > 0, "{path}");
        // More slots can have fewer earlier states.
        for n_slots in [1, 3] {
            let (bytes, _, n_rollback) = of(json!({"n_parallel": n_slots}));
            let n_earlier = n_rollback.expect("a number");
            assert!(n_earlier > 4, "{path}");
            assert_eq!(bytes, n_slots * (cells + state * (1 + n_earlier)), "{path}, {n_slots} slots");
        }
    }
    let recurrent = |more: Value| load(&tiny_models::recurrent(), Value::Null, more).0;
    assert_eq!(recurrent(json!({})), recurrent(json!({"n_ctx": 1024})), "a state has no cells");
    assert_eq!(recurrent(json!({"n_parallel": 3})), 3 * recurrent(json!({})));
    let head = json!(tiny_models::heads::eagle3("own", |_| {}));
    let of_head = |more: Value| load(&tiny_models::heads::head_target(1.0), head.clone(), more).1.expect("bytes");
    assert!(of_head(json!({})) > 0);
    assert_eq!(of_head(json!({"n_parallel": 3})), 3 * of_head(json!({})));
}

#[test]
fn status_compares_the_draft_with_its_target() {
    let draft =
        |path: &str| start(json!({"n_ctx": 512, "n_ctx_draft": 256, "model_draft": path})).status()["draft"].clone();
    let own = draft(&model("draft"));
    for key in ["compatible", "bos_matches", "eos_matches", "target_rolls_back", "draft_rolls_back"] {
        assert_eq!(own[key], true, "{key}: {own}");
    }
    assert_eq!((&own["reason"], &own["first_difference"], &own["n_ctx"]), (&Value::Null, &Value::Null, &json!(256)));
    assert_eq!(own["translates_tokens"], false, "{own}");

    let shuffled = draft(&ChangedVocabulary::new("draft").shuffled().write("status-shuffled"));
    assert_eq!((&shuffled["translates_tokens"], &shuffled["bos_matches"]), (&json!(true), &json!(false)), "{shuffled}");
    assert!(shuffled["first_difference"]["target"].is_string(), "{shuffled}");

    let recurrent = draft(&tiny_models::recurrent());
    assert_eq!(
        (&recurrent["compatible"], &recurrent["draft_rolls_back"]),
        (&json!(true), &json!(false)),
        "{recurrent}"
    );
    let unusable = draft(&tiny_models::without_vocabulary());
    assert_eq!(unusable["compatible"], false, "{unusable}");
    assert!(unusable["reason"].as_str().is_some_and(|reason| reason.len() > 20), "{unusable}");

    // The same tokens with another EOS.
    let mut file = Gguf::read(&model("draft"));
    let at = file.value("tokenizer.ggml.eos_token_id");
    file.bytes[at.start] ^= 1;
    let path = std::env::temp_dir().join(format!("foredraft-status-{}.gguf", std::process::id()));
    std::fs::write(&path, &file.bytes).expect("a file");
    let other_end = draft(path.to_str().expect("a path"));
    std::fs::remove_file(path).expect("the file exists");
    assert_eq!((&other_end["bos_matches"], &other_end["eos_matches"]), (&json!(true), &json!(false)), "{other_end}");
}

/// The queue is reported at once, including requests that arrive while the engine is decoding.
#[test]
fn queue_counts_submitted_requests_that_wait() {
    let engine = start(json!({"n_ctx": 2048, "n_batch": 2048, "n_parallel": 1, "max_queue": 8}));
    let long = json!({"prompt": "the ".repeat(1900), "n_predict": 100_000, "ignore_eos": true});
    let running = submit(&engine, Plain, &long);
    while engine.status()["slots"][0]["state"] == "idle" {
        std::thread::yield_now();
    }
    let (mut last, mut seen) = (running, vec![engine.status()["queue"].clone()]);
    for n in 1..=3 {
        last = submit(&engine, Plain, &json!({"prompt": "Tom", "n_cmpl": n, "n_predict": 1}));
        seen.push(engine.status()["queue"].clone());
    }
    assert_eq!(seen, [0, 1, 3, 6]);
    // A cancelled request does not count any longer.
    assert!(cancel(&engine, Plain, last));
    assert_eq!(engine.status()["queue"], 3);
    assert!(cancel(&engine, Plain, running));
}

#[test]
fn layers_for_a_gpu_that_is_missing_give_a_warning() {
    let warned = |more: Value| start(more).status()["warnings"].clone();
    let expected = |keys: &[&str]| {
        json!(
            keys.iter()
                .map(|key| format!("{key}: not used, because there is no GPU to use: the CPU computes everything"))
                .collect::<Vec<_>>()
        )
    };
    if foredraft::llama::devices().iter().any(|device| device.kind != "cpu") {
        return;
    }
    for (given, keys) in [
        (json!({}), &[][..]),
        (json!({"n_gpu_layers": 0, "n_gpu_layers_draft": 0}), &[]),
        (json!({"n_gpu_layers": -1}), &[]),
        (json!({"n_gpu_layers": 99}), &["n_gpu_layers"]),
        (json!({"n_gpu_layers": "all", "n_gpu_layers_draft": 1}), &["n_gpu_layers", "n_gpu_layers_draft"]),
        (json!({"n_gpu_layers": 99, "devices": "none"}), &[]),
        (json!({"tensor_split": [1, 2]}), &["tensor_split"]),
        (json!({"fit": true}), &["fit"]),
        (json!({"fit": true, "n_gpu_layers": 99, "n_ctx": 512}), &["n_gpu_layers", "fit"]),
    ] {
        assert_eq!(warned(given.clone()), expected(keys), "{given}");
    }
}

/// The CPU is the only device that every machine has, so this puts weights where they would be.
#[test]
fn weights_are_placed_by_patterns() {
    let text = |more: Value| {
        let engine = start(more);
        complete(&engine, Plain, &json!({"prompt": "Once", "n_predict": 12, "temperature": 0}))["content"].clone()
    };
    let plain = text(json!({}));
    for keys in [
        json!({"override_tensor": {"ffn_(up|down)": "CPU"}, "n_cpu_moe": 2}),
        json!({"override_tensor": ".*=CPU", "override_tensor_draft": ["attn=CPU"], "n_cpu_moe_draft": "all"}),
    ] {
        assert_eq!(text(keys.clone()), plain, "{keys}");
    }
    let config = json!({"model": model("target"), "model_draft": model("draft"), "log_level": "none"});
    for key in ["override_tensor", "override_tensor_draft"] {
        for (placed, expected) in [
            (json!({"ffn": "GPU7"}), format!("{key}: there is no device \"GPU7\", but CPU")),
            (json!({"ffn[": "CPU"}), format!("{key}: expected a regular expression (")),
        ] {
            let config = with(&config, json!({key: placed}));
            let error = JsonEngine::new().load(config.to_string().as_bytes()).expect_err("it cannot be placed");
            assert_eq!(error.code().init_number(), 3, "{error}");
            assert!(error.message().starts_with(&expected), "{error}");
        }
    }
}
