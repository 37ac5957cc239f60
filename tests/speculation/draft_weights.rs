//! A draft model whose weights a load makes smaller.

use std::sync::Arc;

use foredraft::api::JsonEngine;
use foredraft::error::Code;
use foredraft::llama::{DevicePlacement, Model, ModelParams, WeightType};
use serde_json::{Value, json};

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::gguf::Gguf;
use crate::common::tiny_models::heads::{eagle3, head_target};
use crate::common::tiny_models::write_file;
use crate::common::{complete, model, n, output_fields, start, with};

/// Whether the platform has streams that quantize.
const IS_AVAILABLE: bool = cfg!(all(target_os = "linux", target_env = "gnu"));

fn draft(engine: &JsonEngine) -> Arc<Model> {
    let models = engine.with_loaded(|loaded| Ok(loaded.models().clone())).expect("loaded");
    models.draft.expect("a draft model")
}

/// The drafted and the accepted tokens of completions, all of which must be those of plain decoding.
fn counts(engine: &JsonEngine) -> (usize, usize) {
    let mut all = (0, 0);
    for (prompt, seed, temperature, verify) in [
        ("Once upon a time there was a child named", 1, 0.0, "coupled"),
        ("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n", 2, 0.8, "coupled"),
        ("def add(", 3, 0.8, "match"),
    ] {
        let request = json!({
            "prompt": prompt, "n_predict": 80, "temperature": temperature, "seed": seed, "return_tokens": true, "ignore_eos": true,
            "cache_prompt": false,
        });
        let plain = complete(engine, Plain, &request);
        let speculative = json!({"type": "draft", "adaptive": false, "n_max": 4, "verify": verify});
        let fast = complete(engine, Foredraft, &with(&request, json!({"speculative": speculative})));
        assert_eq!(output_fields(&fast), output_fields(&plain), "{prompt}");
        let stats = &fast["speculative"]["by_type"]["draft"];
        all = (all.0 + n(&stats["n_drafted"]), all.1 + n(&stats["n_accepted"]));
    }
    all
}

fn warnings(engine: &JsonEngine) -> Vec<String> {
    let status = engine.status();
    let all = status["warnings"].as_array().expect("a list").iter().filter_map(Value::as_str);
    all.filter(|warning| warning.starts_with("draft_weights")).map(str::to_owned).collect()
}

#[test]
fn smaller_weights_draft_nearly_as_well_and_change_no_completion() {
    let in_file = start(json!({"n_ctx": 512}));
    assert_eq!(in_file.status()["draft"]["weights"], "file");
    let of_file = counts(&in_file);
    for more in [json!({}), json!({"use_mmap": false}), json!({"draft_vocab": 400})] {
        let engine = start(with(&more, json!({"n_ctx": 512, "draft_weights": "q4_0"})));
        if !IS_AVAILABLE {
            assert_eq!(warnings(&engine), ["draft_weights: not used, because it is not available on this platform"]);
            return;
        }
        let status = engine.status();
        assert_eq!((&status["draft"]["weights"], warnings(&engine)), (&json!("q4_0"), vec![]));
        let layout = status["cpu"]["layout"]["draft"].as_object().expect("an object");
        if status["cpu"]["kernels"]["matmul"] == "foredraft" {
            assert_eq!(layout.keys().collect::<Vec<_>>(), ["q4_0"]);
        }
        let (size, size_in_file) = (n(&status["draft"]["size"]), n(&in_file.status()["draft"]["size"]));
        assert!(size * 100 < size_in_file * 55, "{size} of {size_in_file} bytes");
        let found = counts(&engine);
        let rate = |(drafted, accepted): (usize, usize)| accepted as f64 / drafted as f64;
        assert!(found != of_file && rate(found) > 0.9 * rate(of_file), "{more}: {found:?} {of_file:?}");
    }
}

/// The shipped draft model with feed-forward layers that zeros make wider: it computes the same, and its weights are more than caches hold.
fn widened() -> String {
    const WIDE: u64 = 22_016;
    let shipped = Gguf::read(&model("draft"));
    let width = shipped.value("llama.feed_forward_length");
    let renamed = Gguf { bytes: shipped.with(width.start, &WIDE.to_le_bytes()[..4]), ..shipped };
    let file = renamed.with_tensors(|name, shape, data| {
        let of_row = |width: u64| width as usize / 32 * 34;
        if name.contains("ffn_down.") {
            let wider = |row: &[u8]| [row, &vec![0; of_row(WIDE) - row.len()]].concat();
            *data = data.chunks(of_row(shape[0])).flat_map(wider).collect();
            shape[0] = WIDE;
        } else if name.contains("ffn_gate.") || name.contains("ffn_up.") {
            shape[1] = WIDE;
            data.resize(of_row(shape[0]) * WIDE as usize, 0);
        }
    });
    write_file("wide-draft", file)
}

/// The kilobytes of a mapped file that are in this process's memory.
#[cfg(target_os = "linux")]
fn resident_kb(path: &str) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("Linux has it");
    let mut is_of_file = false;
    let mut all = 0;
    for line in smaps.lines() {
        if let Some(kb) = line.strip_prefix("Rss:") {
            all += if is_of_file { kb.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") } else { 0 };
        } else if line.split(' ').next().is_some_and(|first| first.contains('-')) {
            is_of_file = line.ends_with(path);
        }
    }
    all
}

#[test]
fn panels_of_a_draft_have_fewer_bits_where_that_is_faster() {
    let draft = widened();
    let engine = |more: Value| {
        let engine = start(with(&json!({"model_draft": draft, "n_ctx": 512}), more));
        while engine.status()["pending_panel_bytes"] != 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        engine
    };
    // A model that another engine has already needs no more memory.
    let [first, second] = [json!({"draft_weights": "file"}), json!({})].map(engine);
    assert!(Arc::ptr_eq(&self::draft(&first), &self::draft(&second)));
    drop((first, second));
    let [measured, in_file] = [json!({}), json!({"draft_weights": "file"})].map(engine);
    let (of_file, found) = (counts(&in_file), counts(&measured));
    let layout = |engine: &JsonEngine| engine.status()["cpu"]["layout"]["draft"]["q8_0"]["type"].clone();
    assert_eq!(layout(&in_file), Value::Null);
    eprintln!("{}: {of_file:?} with the file's weights, {found:?}", layout(&measured));
    // Where arithmetic is slower than memory, more bits are faster.
    let is_smaller = layout(&measured) == "q4_0";
    let rate = |(drafted, accepted): (usize, usize)| accepted as f64 / drafted as f64;
    assert!(is_smaller == (found != of_file) && rate(found) > 0.9 * rate(of_file), "{found:?} {of_file:?}");
    #[cfg(target_os = "linux")]
    if is_smaller {
        let (kept, size) = (resident_kb(&draft), std::fs::metadata(&draft).expect("it is there").len() / 1024);
        assert!(kept < size / 2, "{kept} of {size} kB of the file are in memory beside panels");
    }
    // What the draft model itself answers is exact.
    let request = json!({
        "prompt": "Once upon a time", "n_predict": 40, "temperature": 0, "return_tokens": true, "n_probs": 2,
        "speculative": {"model": "draft"},
    });
    let [alone, of_measured] =
        [&in_file, &measured].map(|engine| output_fields(&complete(engine, Foredraft, &request)));
    assert_eq!(alone, of_measured);
}

/// The target's own weights, made smaller, draft for it.
#[test]
fn draft_may_be_the_targets_file() {
    let engine = start(json!({"model_draft": model("target"), "draft_weights": "q4_0", "n_ctx": 512}));
    let shipped = start(json!({"n_ctx": 512}));
    assert!(counts(&engine).1 > counts(&shipped).1);
    let models = engine.with_loaded(|loaded| Ok(loaded.models().clone())).expect("loaded");
    assert!(!Arc::ptr_eq(&models.target, &draft(&engine)));
}

#[test]
fn weights_that_cannot_be_smaller_are_those_of_the_file() {
    let check = |more: Value, why: &str| {
        let engine = start(more.clone());
        assert_eq!(engine.status()["draft"]["weights"], "file", "{more}");
        let why =
            if IS_AVAILABLE || why.starts_with("a draft head") { why } else { "it is not available on this platform" };
        assert_eq!(warnings(&engine), [format!("draft_weights: not used, because {why}")], "{more}");
        drop(engine);
    };
    check(json!({"draft_weights": "q8_0"}), "the draft model has no weights that would be smaller");
    check(
        json!({"model": head_target(1.0), "model_draft": eagle3("own", |_| {}), "draft_weights": "q4_0", "n_ctx": 256}),
        "a draft head has its weights as in the file",
    );
    let without = start(json!({"model_draft": null, "draft_weights": "q4_0"}));
    assert_eq!((warnings(&without), &without.status()["draft"]), (vec![], &Value::Null));
}

#[test]
fn engines_share_weights_of_one_type_alone() {
    let load = |weights: &str| start(json!({"draft_weights": weights, "warmup": false}));
    let [file, smaller, same] = ["file", "q4_0", "q4_0"].map(load);
    let [file, smaller, same] = [&file, &smaller, &same].map(draft);
    assert!(Arc::ptr_eq(&smaller, &same) && !Arc::ptr_eq(&file, &smaller));
    assert_eq!(IS_AVAILABLE, file.identity() != smaller.identity());
}

/// `fit` chooses by such estimates.
#[test]
fn estimate_is_what_the_weights_take() {
    let placement = |weights, only_measures| -> DevicePlacement {
        let params = ModelParams { weights, only_measures, repack: Some(false), ..ModelParams::new(model("draft")) };
        Model::load_draft(&params, |_| true).expect("it loads").placement()
    };
    let bytes = |of: &DevicePlacement| of.devices().iter().map(|on| on.weights).sum::<u64>();
    let (estimate, taken) = (placement(WeightType::Q4_0, true), placement(WeightType::Q4_0, false));
    assert_eq!(estimate, taken);
    let in_file = placement(WeightType::AsInFile, true);
    assert!(!IS_AVAILABLE || bytes(&taken) * 100 < bytes(&in_file) * 55, "{taken:?} {in_file:?}");
}

#[test]
fn load_that_makes_weights_smaller_can_be_aborted() {
    let params = ModelParams { weights: WeightType::Q4_0, ..ModelParams::new(model("draft")) };
    for end in [0.0, 0.3, 0.9] {
        let mut parts = Vec::new();
        let aborted = Model::load_draft(&params, |part| {
            parts.push(part);
            part < end
        });
        assert_eq!(aborted.expect_err("it is aborted").code(), Code::Cancelled);
        assert!(parts.is_sorted() && parts.last().is_some_and(|last| *last >= end), "{parts:?}");
    }
}

/// The file of a draft is cut while its weights are read.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn file_that_cannot_be_read_to_its_end_is_an_error() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("cut-draft.gguf");
    std::fs::copy(model("draft"), &path).expect("target/ is writable");
    let params = ModelParams { weights: WeightType::Q4_0, ..ModelParams::new(&path) };
    let error = Model::load_draft(&params, |_| {
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is there");
        file.set_len(file.metadata().expect("it is there").len().min(200_000)).expect("target/ is writable");
        true
    });
    let error = error.expect_err("half of the weights are absent");
    assert!(error.code() == Code::ModelError && error.message().contains("read error"), "{error}");
    assert!(error.message().starts_with("model_draft: ") && error.message().contains("cut-draft.gguf"), "{error}");
}
