//! Files that are no model, or a damaged one: the load says what is wrong, and the process goes on.

use std::time::Duration;

use foredraft::api::JsonEngine;
use serde_json::{Value, json};

use crate::common::{model, start, tiny_models, with};
use crate::processor_time;

/// The message of a load that fails.
fn refused(more: Value) -> String {
    let base = json!({"model": model("target"), "n_ctx": 256, "n_threads": 1, "log_level": "none"});
    let init = with(&base, more).to_string();
    JsonEngine::new().load(init.as_bytes()).expect_err(&init).message().to_owned()
}

/// llama.cpp divides by these numbers, and a division by zero ends the process.
#[test]
fn metadata_that_llama_divides_by_is_not_zero() {
    let recurrent =
        ["mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe", "qwen3next", "qwen35", "qwen35moe"];
    let mut numbers: Vec<(&str, &str)> = Vec::new();
    for key in ["ssm.time_step_rank", "ssm.group_count"] {
        numbers.extend(recurrent.map(|architecture| (architecture, key)));
    }
    let intervals = ["qwen3next", "qwen35", "qwen35moe", "minimax-01"];
    numbers.extend(intervals.map(|architecture| (architecture, "full_attention_interval")));
    numbers.extend(["rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"].map(|architecture| (architecture, "wkv.head_size")));
    numbers.extend(["gemma2", "gemma3", "olmo2", "phimoe"].map(|architecture| (architecture, "attention.head_count")));
    numbers.extend([
        ("plamo2", "ssm.time_step_rank"),
        ("deepseek4", "attention.output_group_count"),
        ("minimax-m3", "attention.indexer.block_size"),
        ("afmoe", "attention.sliding_window"),
    ]);
    for (architecture, key) in numbers {
        let error = refused(json!({"model": tiny_models::with_zero(architecture, key)}));
        assert!(error.contains(&format!("{architecture}.{key} is 0")), "{architecture} {key}: {error}");
    }
    // The same number, from the host. llama.cpp keeps 32 bits of it.
    for number in [0_i64, 1 << 32] {
        let overrides = json!({"gemma3.attention.head_count": number});
        let error = refused(json!({"model": tiny_models::sliding_window(), "override_kv": overrides}));
        assert!(error.contains("gemma3.attention.head_count is 0"), "{error}");
    }
}

/// ggml would write beyond the states of such heads.
#[test]
fn heads_that_ggml_computes_wrongly_are_refused() {
    for architecture in ["rwkv7", "arwkv7"] {
        let path = tiny_models::with_zero(architecture, "ssm.group_count");
        for size in [2, 16, 96] {
            let overrides = json!({format!("{architecture}.wkv.head_size"): size});
            let error = refused(json!({"model": path, "override_kv": overrides}));
            let expected = format!("{architecture}.wkv.head_size is {size}: ggml computes heads of RWKV-7 only with");
            assert!(error.starts_with(&format!("model: {path}: ")) && error.contains(&expected), "{error}");
        }
    }
}

/// llama.cpp ends the process: it computes with a tensor that it never loads for this architecture.
#[test]
fn tensors_that_llama_cannot_compute_with_are_refused() {
    let path = tiny_models::with_tensor("rwkv6qwen2", "blk.3.time_mix_first.weight");
    let error = refused(json!({"model": path}));
    let expected = "has blk.3.time_mix_first.weight, which models of the architecture rwkv6qwen2 do not have";
    assert!(error.starts_with(&format!("model: {path}: ")) && error.contains(expected), "{error}");
}

#[test]
fn files_that_are_no_model_say_what_they_are() {
    let whole = std::fs::read(model("draft")).expect("a shipped model");
    let half = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("half.gguf").to_string_lossy().into_owned();
    std::fs::write(&half, &whole[..whole.len() / 2]).expect("target/ is writable");
    let sizes = format!("is cut: it has {} bytes of {}", whole.len() / 2, whole.len());
    let head = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("head.gguf").to_string_lossy().into_owned();
    std::fs::write(&head, &whole[..5000]).expect("target/ is writable");
    let cut_in_metadata = "cannot be read to the end of the file, which has 5000 bytes and is cut or damaged";
    for (field, path, part) in [
        ("model", tiny_models::of_kind("clip", "mmproj", 0), "is a multimodal projector (mmproj)"),
        ("model", tiny_models::of_kind("llama", "adapter", 0), "is a LoRA adapter"),
        ("model_draft", tiny_models::of_kind("llama", "adapter", 0), "is a LoRA adapter"),
        ("model", tiny_models::of_kind("llama", "imatrix", 0), "is an importance matrix"),
        ("model", tiny_models::of_kind("controlvector", "model", 0), "is a control vector"),
        ("model", tiny_models::of_kind("eagle3", "model", 0), "is an EAGLE-3 head"),
        ("model", tiny_models::of_kind("mimo2", "model", 3), "is a head for multi-token prediction (MTP)"),
        ("lora", model("draft"), "is a whole model of the architecture llama"),
        ("model", half.clone(), &sizes),
        ("model_draft", half, &sizes),
        ("model", head.clone(), cut_in_metadata),
        ("lora", head, cut_in_metadata),
    ] {
        let value = if field == "lora" { json!([path]) } else { json!(path) };
        let error = refused(json!({field: value}));
        assert!(error.starts_with(&format!("{field}: {path}: ")) && error.contains(part), "{field}: {error}");
    }
}

/// llama.cpp finds a key by its number in time that grows with the number.
#[test]
fn metadata_of_many_keys_is_read_in_a_moment() {
    let engine = start(json!({"model": tiny_models::with_keys(40_000), "model_draft": null, "n_ctx": 256}));
    let before = processor_time::of_this_thread();
    let answer = engine.with_loaded(|loaded| loaded.model_info(b"{}")).expect("the target's");
    let taken = processor_time::of_this_thread() - before;
    assert_eq!(answer["metadata"]["general.note.39999"], "7");
    assert!(answer["metadata"].as_object().expect("an object").len() > 40_000);
    assert!(taken < Duration::from_secs(2).mul_f64(processor_time::slowness()), "{taken:?}");
}

/// llama.cpp first fills the cache with zeros.
#[test]
fn context_beyond_all_memory_is_refused_at_once() {
    let before = processor_time::of_all_threads();
    let error = refused(json!({"n_ctx": 67_108_864}));
    let taken = processor_time::of_all_threads() - before;
    assert!(error.starts_with("n_ctx: a KV cache of 67108864 tokens needs "), "{error}");
    assert!(error.contains("MiB of memory, and this process can have"), "{error}");
    assert!(taken < Duration::from_secs(8).mul_f64(processor_time::slowness()), "{taken:?}");
}

#[test]
fn command_that_is_a_path_or_has_backslashes_says_how_to_write_it() {
    let refused = |command: &str| JsonEngine::new().load(command.as_bytes()).expect_err(command).message().to_owned();
    let path = refused("models/stories-target.gguf");
    assert!(
        path.contains("got the path \"models/stories-target.gguf\": write {\"model\": ...} or -m before it"),
        "{path}"
    );
    let backslash = refused(r#"{"model": "C:\models\x.gguf"}"#);
    assert!(backslash.contains("a backslash in a string is written \\\\"), "{backslash}");
}
