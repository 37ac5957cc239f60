//! LoRA adapters, on small ones that the tests write for the shipped target.

use foredraft::api::JsonEngine;
use foredraft::llama::{GgufSource, LoraParams, Model, ModelParams};
use serde_json::{Value, json};
use std::os::fd::AsRawFd as _;

use crate::common::{Requests as _, complete, drain, start, submit, with};
use crate::table::{CallMode, Row, base, row, run};

/// A file that is deleted on drop.
struct File(std::path::PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A GGUF file's bytes.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn text(&mut self, text: &str) {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.bytes());
    }

    fn key(&mut self, key: &str, kind: u32) {
        self.text(key);
        self.0.extend(kind.to_le_bytes());
    }
}

/// Writes an adapter of rank 2 on the attention outputs of all 6 layers (256 x 256), with pseudo-random weights.
fn adapter(name: &str, seed: u32) -> File {
    let tensors: Vec<(String, [u64; 2])> = (0..6)
        .flat_map(|layer| [("lora_a", [256, 2]), ("lora_b", [2, 256])].map(|(part, shape)| (layer, part, shape)))
        .map(|(layer, part, shape)| (format!("blk.{layer}.attn_output.weight.{part}"), shape))
        .collect();
    adapter_of(name, seed, &tensors, 0)
}

/// Writes an adapter with these tensors, of a 32-bit ggml type `kind`.
fn adapter_of(name: &str, seed: u32, tensors: &[(String, [u64; 2])], kind: u32) -> File {
    let mut file = Writer(b"GGUF".to_vec());
    file.0.extend(3u32.to_le_bytes());
    file.0.extend((tensors.len() as u64).to_le_bytes());
    file.0.extend(4u64.to_le_bytes());
    for (key, value) in [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")] {
        file.key(key, 8);
        file.text(value);
    }
    file.key("adapter.lora.alpha", 6);
    file.0.extend(2f32.to_le_bytes());
    let mut offset = 0_u64;
    for (name, shape) in tensors {
        file.text(name);
        file.0.extend(2u32.to_le_bytes());
        shape.iter().for_each(|n| file.0.extend(n.to_le_bytes()));
        file.0.extend(kind.to_le_bytes());
        file.0.extend(offset.to_le_bytes());
        offset += (4 * shape.iter().product::<u64>()).next_multiple_of(32);
    }
    file.0.resize(file.0.len().next_multiple_of(32), 0);
    let mut state = seed;
    for _ in 0..offset / 4 {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        file.0.extend(((state >> 8) as f32 / (1 << 23) as f32 - 1.0).mul_add(0.15, 0.0).to_le_bytes());
    }
    let path = std::env::temp_dir().join(format!("foredraft-{}-{name}.gguf", std::process::id()));
    std::fs::write(&path, file.0).expect("a file");
    File(path)
}

/// Every second adapter is loaded from an open file.
fn start_with(adapters: &[(&File, f32)], more: Value) -> JsonEngine {
    let open: Vec<_> = adapters.iter().map(|(file, _)| std::fs::File::open(&file.0).expect("a file")).collect();
    let lora = adapters.iter().zip(&open).enumerate().map(|(index, ((file, scale), open))| match index % 2 {
        0 => json!({"path": file.0.to_str().expect("a path"), "scale": scale}),
        _ => json!({"fd": open.as_raw_fd(), "scale": scale}),
    });
    let lora: Vec<Value> = lora.collect();
    start(with(&json!({"n_ctx": 256, "lora": lora}), more))
}

pub fn rows() -> Vec<Row> {
    vec![row(&["lora"], json!({"temperature": 0}), |response| {
        let with_scales =
            |a: f64, b: f64| response.ask(json!({"lora": [{"id": 0, "scale": a}, {"id": 1, "scale": b}]}));
        let plain = with_scales(0.0, 0.0);
        // The scales of init: the first adapter at 1, the second off.
        assert_eq!(response.setting("lora"), &json!([{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.0}]));
        assert_eq!(with_scales(1.0, 0.0).tokens(), response.tokens());
        let texts =
            [&plain, response, &with_scales(0.0, 8.0), &with_scales(-3.0, 0.0)].map(|response| response.tokens());
        for (i, text) in texts.iter().enumerate() {
            assert!(texts[..i].iter().all(|other| other != text), "{texts:?}");
        }
        // An adapter that is not listed is off; an empty list turns all off.
        assert_eq!(response.ask(json!({"lora": [{"id": 1, "scale": 8}]})).tokens(), texts[2]);
        let none = response.ask(json!({"lora": []}));
        assert_eq!((none.tokens(), none.setting("lora")), (texts[0].clone(), plain.setting("lora")));
        // The cache is reused only if it was computed with the same scales.
        let cached = response.ask(json!({"cache_prompt": true}));
        let other = cached.ask(json!({"lora": []}));
        assert_eq!((&other.answer["timings"]["cache_n"], other.tokens()), (&json!(0), texts[0].clone()));
        let again = other.ask(json!({"n_predict": 4}));
        assert!(again.answer["timings"]["cache_n"].as_u64() > Some(3), "{}", again.answer);
        assert_eq!(again.tokens(), texts[0][..4]);
        assert_eq!(
            response.refused(json!({"lora": [{"id": 0, "scale": 1}, {"id": 2, "scale": 1}]})),
            "lora[1].id: there is no adapter 2, 2 are loaded"
        );
    })]
}

#[test]
fn adapter_scales_change_the_output() {
    let (a, b) = (adapter("a", 1), adapter("b", 2));
    let engine = start_with(&[(&a, 1.0), (&b, 0.0)], json!({}));
    run(&engine, &rows());
    // A model without adapters gives the same output as with all of them off.
    let request = with(&base(CallMode::Blocking), json!({"temperature": 0}));
    let off = complete(&engine, CallMode::Blocking.endpoint(), &with(&request, json!({"lora": []})));
    let bare = complete(&start(json!({"n_ctx": 256})), CallMode::Blocking.endpoint(), &request);
    assert_eq!((&bare["tokens"], &bare["generation_settings"]["lora"]), (&off["tokens"], &json!([])));
}

/// A state belongs to the scales that computed it, in a slot, in memory, on disk and in a file.
#[test]
fn conversations_of_other_adapters_are_decoded_again() {
    let (a, b) = (adapter("conversation-a", 1), adapter("conversation-b", 2));
    let disk = std::env::temp_dir().join(format!("foredraft-{}-lora-conversations", std::process::id()));
    let prompt = "Once upon a time there was a little girl who had a red kite.";
    let of = |name: &str, scale: f64| {
        json!({"prompt": prompt, "temperature": 0, "n_predict": 8, "ignore_eos": true,
        "conversation": name, "lora": [{"id": 0, "scale": scale}]})
    };
    let fresh = start_with(&[(&a, 1.0), (&b, 0.0)], json!({}));
    let alone = |scale: f64| {
        let request = with(&of("", scale), json!({"conversation": null, "cache_prompt": false}));
        complete(&fresh, CallMode::Blocking.endpoint(), &request)["content"].clone()
    };
    let expected = [alone(0.0), alone(2.0)];
    assert_ne!(expected[0], expected[1]);
    for more in [json!({}), json!({"cache_ram_mb": 0, "cache_dir": disk})] {
        let engine = start_with(&[(&a, 1.0), (&b, 0.0)], with(&json!({"n_parallel": 1}), more));
        // Each but the first comes from the place where the other conversation has put it, with its own scales or those of the other one.
        for (name, which) in [("x", 0), ("y", 1), ("x", 0), ("y", 0), ("x", 1), ("y", 1), ("x", 1), ("y", 1)] {
            let answer = complete(&engine, CallMode::Blocking.endpoint(), &of(name, [0.0, 2.0][which]));
            assert_eq!(answer["content"], expected[which], "{name} with {which}: {}", answer["timings"]);
        }
    }
    let _ = std::fs::remove_dir_all(&disk);
}

/// `fit` and the status count them: their tensors lie beside the weights that they change.
#[test]
fn adapters_count_as_weights_of_the_model() {
    let (a, b) = (adapter("g", 1), adapter("h", 2));
    let open = std::fs::File::open(&b.0).expect("a file");
    let of_descriptor = GgufSource::Descriptor { fd: open.as_raw_fd(), offset: 0, length: None };
    let lora = vec![
        LoraParams { source: GgufSource::Path(a.0.clone()), scale: 1.0 },
        LoraParams { source: of_descriptor, scale: 0.0 },
    ];
    let weights = |lora: &[LoraParams], only_measures| {
        let bare = ModelParams::new(crate::common::model("target"));
        let params = ModelParams { lora: lora.to_vec(), only_measures, repack: Some(false), ..bare };
        let placement = Model::load(&params, |_| true).expect("it loads").placement();
        placement.devices().iter().map(|on| on.weights).sum::<u64>()
    };
    for only_measures in [false, true] {
        // 6 layers with 256 x 2 and 2 x 256 numbers of 4 bytes.
        assert_eq!(weights(&lora, only_measures) - weights(&[], only_measures), 2 * 6 * 2 * 512 * 4);
    }
}

/// Requests with different scales are never in one batch, and all complete.
#[test]
fn requests_with_different_scales_all_complete() {
    let a = adapter("c", 1);
    let engine = start_with(&[(&a, 1.0)], json!({"n_parallel": 4}));
    for mode in [CallMode::Polled, CallMode::Speculative] {
        let requests: Vec<Value> = [0.0, 1.0, 0.5, 1.0, -0.7]
            .iter()
            .enumerate()
            .map(|(seed, scale)| {
                let lora = json!([{"id": 0, "scale": scale}]);
                with(&base(mode), json!({"n_predict": 40, "ignore_eos": true, "seed": seed, "lora": lora}))
            })
            .collect();
        let alone: Vec<Value> = requests.iter().map(|request| complete(&engine, mode.endpoint(), request)).collect();
        let ids: Vec<u64> = requests.iter().map(|request| submit(&engine, mode.endpoint(), request)).collect();
        for (id, alone) in ids.into_iter().zip(&alone) {
            let text = crate::common::text(&drain(&engine, mode.endpoint(), id));
            assert_eq!(text, alone["content"].as_str().expect("content"));
        }
    }
}

/// A running request must not make requests with other scales wait until it ends.
#[test]
fn requests_with_different_scales_are_scheduled_fairly() {
    let a = adapter("d", 1);
    let engine = start_with(&[(&a, 1.0)], json!({"n_parallel": 2}));
    let endpoint = CallMode::Polled.endpoint();
    let endless = with(&base(CallMode::Polled), json!({"n_predict": -1, "ignore_eos": true}));
    let first = submit(&engine, endpoint, &endless);
    assert!(
        !crate::common::poll(&engine, endpoint, first, 60_000)["completion_updates"]
            .as_array()
            .expect("updates")
            .is_empty()
    );
    let other = submit(&engine, endpoint, &with(&base(CallMode::Polled), json!({"lora": []})));
    assert_eq!(drain(&engine, endpoint, other).last().expect("an end")["stop_type"], "limit");
    assert_eq!(crate::common::poll(&engine, endpoint, first, 0)["finished"], false);
    let cancel = json!({"id": first}).to_string();
    engine.cancel_as(endpoint, Some(cancel.as_bytes())).expect("a cancel");
}

#[test]
fn adapter_that_fails_to_load_fails_init() {
    let broken = adapter("e", 1);
    let bytes = std::fs::read(&broken.0).expect("the file");
    std::fs::write(&broken.0, &bytes[..bytes.len() - 4096]).expect("a file");
    for path in [broken.0.to_str().expect("a path"), "/no/such.gguf"] {
        let init =
            json!({"model": crate::common::model("target"), "lora": [{"path": path}], "log_level": "none"}).to_string();
        let error = JsonEngine::new().load(init.as_bytes()).expect_err("no adapter");
        assert!(error.message().contains(path), "{error}");
    }
}

/// A session can be saved and loaded only with the scales of `init`.
#[test]
fn sessions_require_the_scales_of_init() {
    let a = adapter("f", 1);
    let engine = start_with(&[(&a, 1.0)], json!({}));
    let path = std::env::temp_dir().join(format!("foredraft-{}-lora.session", std::process::id()));
    let file = File(path.clone());
    let command = json!({"id_slot": 0, "filename": path}).to_string();
    let request = with(&base(CallMode::Blocking), json!({"temperature": 0, "cache_prompt": true}));
    let off = with(&request, json!({"lora": []}));
    let [own, bare] = [&request, &off].map(|request| complete(&engine, CallMode::Blocking.endpoint(), request));
    let refused = engine.with_loaded(|loaded| loaded.session_save(command.as_bytes())).expect_err("other scales");
    assert!(refused.message().contains("other LoRA scales"), "{refused}");

    complete(&engine, CallMode::Blocking.endpoint(), &request);
    engine.with_loaded(|loaded| loaded.session_save(command.as_bytes())).expect("a file");
    complete(&engine, CallMode::Blocking.endpoint(), &off);
    for (request, tokens, reused) in [(&off, &bare["tokens"], false), (&request, &own["tokens"], true)] {
        engine.with_loaded(|loaded| loaded.session_load(command.as_bytes())).expect("a session");
        let answer = complete(&engine, CallMode::Blocking.endpoint(), request);
        assert_eq!((&answer["tokens"], answer["timings"]["cache_n"].as_u64() > Some(0)), (tokens, reused));
    }
    drop(file);
}

/// llama.cpp loads these adapters, but calls a null function or fails an assertion when it decodes with them, which may be as late
/// as the first request that turns one on.
#[test]
fn adapters_that_cannot_be_decoded_are_refused() {
    let tensors =
        |layer: &str, a: [u64; 2], b: [u64; 2]| vec![(format!("{layer}.lora_a"), a), (format!("{layer}.lora_b"), b)];
    let integers = adapter_of("integers", 1, &tensors("blk.0.attn_q.weight", [256, 2], [2, 256]), 26);
    let uneven = adapter_of("uneven", 1, &tensors("token_embd.weight", [4, 1536], [2, 256]), 0);
    for (file, why) in
        [(&integers, "has the type i32, which matrix multiplication does not support"), (&uneven, "cannot be decoded")]
    {
        for scale in [0.0, 1.0] {
            let lora = json!([{"path": file.0.to_str().expect("a path"), "scale": scale}]);
            let init =
                json!({"model": crate::common::model("target"), "n_threads": 1, "lora": lora, "log_level": "none"});
            let refused = JsonEngine::new().load(init.to_string().as_bytes()).expect_err("it cannot be decoded");
            assert!(refused.message().contains(why), "{scale}: {refused}");
        }
    }
}

/// A request whose logits are NaN leaves NaN in its cells, also in those that later requests mask. They must not see it.
#[test]
fn request_with_nan_logits_does_not_poison_later_ones() {
    let huge = adapter("nan", 1);
    let mut bytes = std::fs::read(&huge.0).expect("the file");
    let weights = bytes.len() - 6 * 2 * 2 * 256 * 4;
    bytes[weights..].chunks_exact_mut(4).for_each(|weight| weight.copy_from_slice(&1e30_f32.to_le_bytes()));
    std::fs::write(&huge.0, bytes).expect("a file");
    for more in [json!({}), json!({"n_parallel": 2, "kv_unified": true}), json!({"flash_attn": "off"})] {
        let engine = start_with(&[(&huge, 0.0)], with(&json!({"embedding": false}), more.clone()));
        let request = with(&base(CallMode::Blocking), json!({"temperature": 0, "n_predict": 4, "cache_prompt": true}));
        let long = "Once upon a time there was a child. ".repeat(6);
        let before = complete(&engine, CallMode::Blocking.endpoint(), &request);
        for n_predict in [4, 0] {
            let poison = json!({"prompt": long, "lora": [{"id": 0, "scale": 1000}], "n_predict": n_predict});
            let poison = with(&request, poison).to_string();
            let answer = engine.complete_as(CallMode::Blocking.endpoint(), poison.as_bytes());
            let answer = answer.expect("an answer");
            assert_eq!(answer["success"], n_predict == 0, "{more}: {answer}");
            for slot in [0, 1].into_iter().filter(|slot| *slot == 0 || more["n_parallel"] == 2) {
                let after = complete(&engine, CallMode::Blocking.endpoint(), &with(&request, json!({"id_slot": slot})));
                assert_eq!(after["tokens"], before["tokens"], "{more}: {after}");
            }
        }
    }
}

/// Attention of ggml's multiplies the cells of other requests by 0. A request that makes NaN must not end one that shares the cells with it,
/// also while its prompt is still read.
#[test]
fn request_with_nan_logits_does_not_end_others() {
    let huge = adapter("nan-beside", 1);
    let mut bytes = std::fs::read(&huge.0).expect("the file");
    let weights = bytes.len() - 6 * 2 * 2 * 256 * 4;
    bytes[weights..].chunks_exact_mut(4).for_each(|weight| weight.copy_from_slice(&1e30_f32.to_le_bytes()));
    std::fs::write(&huge.0, bytes).expect("a file");
    for flash_attn in ["off", "on"] {
        let more = json!({"n_parallel": 3, "kv_unified": true, "flash_attn": flash_attn, "n_ctx": 2048, "n_batch": 16, "embedding": false});
        let engine = start_with(&[(&huge, 0.0)], more);
        let request = with(&base(CallMode::Polled), json!({"temperature": 0, "n_predict": 60, "ignore_eos": true}));
        let innocent =
            ["Once upon a time", "The dog and the boy"].map(|prompt| with(&request, json!({"prompt": prompt})));
        let endpoint = CallMode::Polled.endpoint();
        let alone = innocent.each_ref().map(|request| drain(&engine, endpoint, submit(&engine, endpoint, request)));
        let running = innocent.each_ref().map(|request| submit(&engine, endpoint, request));
        // Longer than the steps of a turn.
        let long = "Once upon a time there was a child. ".repeat(40);
        let poison = with(&request, json!({"prompt": long, "lora": [{"id": 0, "scale": 1000}]}));
        let poisoned = drain(&engine, endpoint, submit(&engine, endpoint, &poison));
        assert_eq!(poisoned.last().expect("an end")["success"], false, "{flash_attn}: {poisoned:?}");
        for (id, alone) in running.into_iter().zip(alone) {
            let (answer, alone) = (drain(&engine, endpoint, id), crate::common::text(&alone));
            // With ggml's attention, logits depend a little on others in the same cells (docs/exactness.md), and so can a word.
            let last = answer.last().expect("an end");
            assert_eq!((&last["success"], &last["tokens_predicted"]), (&json!(true), &json!(60)), "{last}");
            assert!(flash_attn == "off" || crate::common::text(&answer) == alone, "{flash_attn}: {answer:?}");
        }
    }
}
