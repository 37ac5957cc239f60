//! Kernels: each replacement of ggml's functions is linked and called, a level can be forced, and every level computes the same bits.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests may panic, and they call C functions"
)]

mod common;

use std::ffi::CString;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Endpoint::{Foredraft, Plain};
use common::{Endpoint, complete, model, start, with};
use foredraft::api::JsonEngine;
use foredraft::llama::{
    self, Batch, Context, ContextParams, CpuLevel, Model, ModelParams, ThreadPool, Token, TokenSubset,
};
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

const HAS_KERNELS: bool = cfg!(any(
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    all(windows, target_env = "gnu", target_arch = "x86_64"),
));
/// The levels of this kind of processor, from the least, as the archives of their kernels are named.
const LEVELS: &[&str] = if cfg!(target_arch = "aarch64") {
    &["neon", "neon_dotprod", "neon_i8mm"]
} else {
    &["avx2", "avx_vnni", "avx512_vnni"]
};

/// The types of files that people download.
const FILE_TYPES: [(&str, sys::llama_ftype); 20] = [
    ("f32", sys::LLAMA_FTYPE_ALL_F32),
    ("f16", sys::LLAMA_FTYPE_MOSTLY_F16),
    ("bf16", sys::LLAMA_FTYPE_MOSTLY_BF16),
    ("q8_0", sys::LLAMA_FTYPE_MOSTLY_Q8_0),
    ("q4_0", sys::LLAMA_FTYPE_MOSTLY_Q4_0),
    ("q4_1", sys::LLAMA_FTYPE_MOSTLY_Q4_1),
    ("q5_0", sys::LLAMA_FTYPE_MOSTLY_Q5_0),
    ("q5_1", sys::LLAMA_FTYPE_MOSTLY_Q5_1),
    ("q3_k", sys::LLAMA_FTYPE_MOSTLY_Q3_K_M),
    ("q4_k", sys::LLAMA_FTYPE_MOSTLY_Q4_K_M),
    ("q5_k", sys::LLAMA_FTYPE_MOSTLY_Q5_K_M),
    ("q6_k", sys::LLAMA_FTYPE_MOSTLY_Q6_K),
    ("iq4_nl", sys::LLAMA_FTYPE_MOSTLY_IQ4_NL),
    ("iq4_xs", sys::LLAMA_FTYPE_MOSTLY_IQ4_XS),
    ("q1_0", sys::LLAMA_FTYPE_MOSTLY_Q1_0),
    ("q2_0", sys::LLAMA_FTYPE_MOSTLY_Q2_0),
    ("tq1_0", sys::LLAMA_FTYPE_MOSTLY_TQ1_0),
    ("tq2_0", sys::LLAMA_FTYPE_MOSTLY_TQ2_0),
    ("iq3_s", sys::LLAMA_FTYPE_MOSTLY_IQ3_S),
    ("nvfp4", sys::LLAMA_FTYPE_MOSTLY_NVFP4),
];

/// The shipped target, quantized again.
fn quantized(name: &str, file_type: sys::llama_ftype) -> String {
    quantized_from(&model("target"), &format!("stories-{name}"), file_type)
}

/// A model, quantized again.
fn quantized_from(from: &str, name: &str, file_type: sys::llama_ftype) -> String {
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.gguf"));
    let to = to.to_str().expect("UTF-8").to_owned();
    let (from, out) = (CString::new(from).unwrap(), CString::new(to.clone()).unwrap());
    llama::start();
    // llama.cpp's quantizer does not know this type of files, but the type of their tensors.
    let nvfp4 = [
        sys::llama_model_tensor_override { pattern: c".*".as_ptr(), type_: sys::GGML_TYPE_NVFP4 },
        sys::llama_model_tensor_override { pattern: std::ptr::null(), type_: sys::GGML_TYPE_COUNT },
    ];
    // SAFETY: the paths and the parameters live during the call.
    let status = unsafe {
        let mut params = sys::llama_model_quantize_default_params();
        params.ftype = file_type;
        if file_type == sys::LLAMA_FTYPE_MOSTLY_NVFP4 {
            params.ftype = sys::LLAMA_FTYPE_MOSTLY_Q8_0;
            params.tt_overrides = nvfp4.as_ptr();
        }
        params.allow_requantize = true;
        sys::llama_model_quantize(from.as_ptr(), out.as_ptr(), &raw const params)
    };
    assert_eq!(status, 0, "{name}");
    to
}

fn request(index: usize) -> Value {
    let prompts = common::prompts();
    json!({
        "prompt": prompts[index % prompts.len()], "n_predict": 16, "temperature": if index.is_multiple_of(2) { 0.0 } else { 1.0 }, "seed": 7 + index,
        "n_probs": 3, "return_tokens": true, "cache_prompt": false,
    })
}

/// Tokens and probabilities: they change if a bit of a logit does.
fn outputs(engine: &JsonEngine, endpoint: Endpoint) -> Vec<Value> {
    (0..4)
        .map(|index| {
            let answer = complete(engine, endpoint, &request(index));
            json!([answer["tokens"], answer["completion_probabilities"]])
        })
        .collect()
}

#[test]
fn every_replacement_is_linked_and_called() {
    let engine = start(json!({"n_threads": 2, "n_threads_batch": 2}));
    let kernels = &engine.status()["cpu"]["kernels"];
    for (part, other) in [
        ("matmul", "ggml"),
        ("attention", "ggml"),
        ("barrier", "ggml"),
        ("cell_order", "llama.cpp"),
        ("math", "system"),
    ] {
        assert_eq!(kernels[part], if HAS_KERNELS { "foredraft" } else { other }, "{part}");
    }
    // Calls are counted by the thread that starts a graph: this one.
    let before = llama::kernel_calls();
    // Otherwise the panels may not be made yet.
    let params = llama::ModelParams { repack: Some(true), ..llama::ModelParams::new(model("target")) };
    let target = std::sync::Arc::new(llama::Model::load(&params, |_| true).expect("it loads"));
    let threads = std::sync::Arc::new(llama::ThreadPool::new(2).expect("threads"));
    let context = llama::ContextParams { n_threads: 2, n_threads_batch: 2, ..llama::ContextParams::default() };
    let mut context = llama::Context::new(&target, &context, &threads, &std::sync::Arc::default()).expect("it fits");
    let mut batch = llama::Batch::new();
    batch.push(5, 0, 0, true);
    batch.push(6, 1, 0, true);
    context.decode(&batch).expect("decoded");
    let after = llama::kernel_calls();
    let layers = target.n_layer() as u64;
    assert_eq!(after.attentions >= before.attentions + layers, HAS_KERNELS, "{before:?} {after:?}");
    assert_eq!(after.products >= before.products + 7 * layers, HAS_KERNELS, "{before:?} {after:?}");
    assert_eq!(after.panel_products >= before.panel_products + 7 * layers, HAS_KERNELS, "{before:?} {after:?}");
    assert_eq!(after.barriers > before.barriers, HAS_KERNELS, "{before:?} {after:?}");
    assert_eq!(after.masks > before.masks, HAS_KERNELS, "{before:?} {after:?}");
}

type Elementary = (&'static str, fn(f32) -> f32, fn(f64) -> f64);

/// The functions of floats that this library replaces, as this program's calls reach them, each with the C library's function of doubles, whose
/// error is below one unit in the last of 53 bits.
const ELEMENTARY: [Elementary; 11] = {
    unsafe extern "C" {
        safe fn erff(x: f32) -> f32;
        safe fn erf(x: f64) -> f64;
        safe fn sincosf(x: f32, sine: &mut f32, cosine: &mut f32);
    }
    fn sine(x: f32) -> f32 {
        let (mut sine, mut cosine) = (0.0, 0.0);
        sincosf(x, &mut sine, &mut cosine);
        sine
    }
    fn cosine(x: f32) -> f32 {
        let (mut sine, mut cosine) = (0.0, 0.0);
        sincosf(x, &mut sine, &mut cosine);
        cosine
    }
    [
        ("sinf", f32::sin, f64::sin),
        ("cosf", f32::cos, f64::cos),
        ("sincosf, sine", sine, f64::sin),
        ("sincosf, cosine", cosine, f64::cos),
        ("tanhf", f32::tanh, f64::tanh),
        ("erff", |x| erff(x), |x| erf(x)),
        ("expf", f32::exp, f64::exp),
        ("exp2f", f32::exp2, f64::exp2),
        ("expm1f", f32::exp_m1, f64::exp_m1),
        ("logf", f32::ln, f64::ln),
        ("log2f", f32::log2, f64::log2),
    ]
};

/// The same number, also the same zero, or none in both.
fn is_same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn elementary_functions_are_correctly_rounded() {
    // Windows' own functions of doubles are not exact enough to tell.
    if !HAS_KERNELS || cfg!(windows) {
        return;
    }
    // glibc's own differ in 30 (expf) to 30,000 (erff) of these; with a true value that is halfway between two floats any function does.
    const STEP: usize = 4111;
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45];
    for (name, ours, truth) in ELEMENTARY {
        let sample = (0..=u32::MAX).step_by(STEP).map(f32::from_bits).chain(special);
        let (mut n, mut n_wrong) = (0_u32, Vec::new());
        for x in sample {
            n += 1;
            if !is_same(ours(x), truth(f64::from(x)) as f32) {
                n_wrong.push((x, ours(x)));
            }
        }
        assert!(n_wrong.len() as f64 <= 1e-6 * f64::from(n), "{name}: {} of {n}: {n_wrong:?}", n_wrong.len());
    }
    // Frequencies and slopes.
    let numbers: Vec<f32> = (0..=u32::MAX).step_by(4_000_037).map(f32::from_bits).chain(special).collect();
    let exponents =
        [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -2.0 / 128.0, -0.3, 7.7, 16_777_215.0, f32::INFINITY, f32::NAN];
    let (mut n, mut n_wrong) = (0_u32, Vec::new());
    for (x, y) in numbers.iter().flat_map(|x| exponents.map(|y| (*x, y))) {
        n += 1;
        if !is_same(x.powf(y), f64::from(x).powf(f64::from(y)) as f32) {
            n_wrong.push((x, y, x.powf(y)));
        }
    }
    assert!(n_wrong.is_empty(), "powf: {} of {n}: {n_wrong:?}", n_wrong.len());
}

#[test]
fn all_levels_compute_the_same_bits_in_every_format() {
    let levels: Vec<&str> = llama::levels().iter().map(|level| level.as_str()).collect();
    assert!(!HAS_KERNELS || levels.contains(&LEVELS[0]), "{levels:?}");
    for (name, file_type) in FILE_TYPES {
        let path = quantized(name, file_type);
        let mut first: Option<Vec<Value>> = None;
        for (at, level) in levels.iter().enumerate() {
            // The number of threads must not matter either.
            let init =
                json!({"model": path, "cpu_level": level, "n_threads": 1 + at % 2, "n_threads_batch": 1 + at % 2});
            let engine = start(init.clone());
            let status = engine.status();
            assert_eq!(status["cpu"]["level"], *level);
            let fallback = status["cpu"]["fallback_tensors"].as_object().expect("an object");
            assert_eq!(fallback.is_empty(), HAS_KERNELS, "{name}: {fallback:?}");
            let plain = outputs(&engine, Plain);
            if HAS_KERNELS {
                assert!(plain == outputs(&engine, Foredraft), "{name} at {level}: with a draft");
            }
            match &first {
                None => {
                    // Nor must the layout of the weights.
                    drop(engine);
                    let as_in_file = start(with(&init, json!({"repack": false})));
                    assert!(plain == outputs(&as_in_file, Plain), "{name} at {level}: not in panels");
                    first = Some(plain);
                }
                Some(first) => assert!(*first == plain, "{name} at {level}"),
            }
        }
    }
}

/// A draft model computes the logits of some tokens only.
#[test]
fn restricted_outputs_have_the_bits_of_whole_ones() {
    let threads = Arc::new(ThreadPool::new(2).unwrap());
    for name in ["f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k"] {
        let (_, file_type) = FILE_TYPES.into_iter().find(|(known, _)| *known == name).unwrap();
        let path = quantized(name, file_type);
        for (level, repack) in llama::levels().iter().zip([Some(true), Some(false), None].into_iter().cycle()) {
            let params = ModelParams { cpu_level: Some(level.as_str().to_owned()), repack, ..ModelParams::new(&path) };
            let model = Arc::new(Model::load(&params, |_| true).unwrap());
            let params =
                ContextParams { n_ctx: Some(64), n_threads: 2, n_threads_batch: 2, ..ContextParams::default() };
            let mut context = Context::new(&model, &params, &threads, &Arc::default()).unwrap();
            let n_vocab = model.vocab().n_tokens();
            let last = Token::try_from(n_vocab).unwrap() - 1;
            let mut tokens = TokenSubset::first(40, n_vocab);
            [333, 1007, last].into_iter().for_each(|token| tokens.insert(token));
            assert_eq!(context.can_score(&tokens), HAS_KERNELS, "{name} at {level}");
            let mut batch = Batch::new();
            (0..6).for_each(|at| _ = batch.push(300 + 31 * Token::try_from(at).unwrap(), at, 0, at != 2));
            let mut rows = |tokens: Option<&TokenSubset>| -> Vec<Vec<f32>> {
                context.score_only(tokens);
                context.decode(&batch).unwrap();
                let rows = (0..6).filter_map(|row| context.logits(row).map(|logits| logits.to_vec())).collect();
                context.truncate(0, 0);
                rows
            };
            let (some, all) = (rows(Some(&tokens)), rows(None));
            assert_eq!(some.len(), 5);
            for (some, all) in some.iter().zip(&all) {
                for (token, (some, all)) in (0..).zip(some.iter().zip(all)) {
                    let expected = if tokens.contains(token) || !HAS_KERNELS { *all } else { f32::NEG_INFINITY };
                    assert_eq!(some.to_bits(), expected.to_bits(), "{name} at {level}: {token}");
                }
            }
        }
    }
}

/// SmolLM2, whose rows of 576 weights are no multiple of 256: its K-quants hold tensors in Q5_0 and Q8_0, too. Its heads have 64 numbers, so
/// llama.cpp rotates what it keeps in a quantized cache.
#[test]
fn a_real_model_gives_the_same_in_four_slots_with_drafts_and_at_every_level() {
    let made = |file: &str| common::root().join("target/models").join(file).to_str().expect("UTF-8").to_owned();
    let (target, draft) = (made("smollm2-135m-q4_1.gguf"), made("smollm2-far-q4_1.gguf"));
    if !HAS_KERNELS || !Path::new(&target).is_file() {
        assert!(!HAS_KERNELS || std::env::var_os("CI").is_none(), "no {target}: scripts/models.sh makes it");
        let line = format!("skipped: no {target}: scripts/models.sh needs a connection to PyPI\n");
        std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
        return;
    }
    let request = |index: usize| {
        let topics = ["the moon", "a lighthouse keeper", "the median of a list", "a late train"];
        json!({
            "prompt": format!("Write about {}.", topics[index]), "n_predict": 24, "temperature": f64::from(u8::from(index > 1)), "seed": index, "n_probs": 2,
            "cache_prompt": false,
        })
    };
    let levels = llama::levels();
    let small_cache = json!({"cache_type_k": "q4_0", "cache_type_v": "q8_0"});
    for (name, file_type, more) in
        [("q4_k_m", sys::LLAMA_FTYPE_MOSTLY_Q4_K_M, json!({})), ("q2_k", sys::LLAMA_FTYPE_MOSTLY_Q2_K, small_cache)]
    {
        let path = quantized_from(&target, &format!("smollm2-{name}"), file_type);
        let mut first: Option<Vec<Value>> = None;
        for level in [levels[0], levels[levels.len() - 1]] {
            let threads = json!({"n_threads": 2, "n_threads_batch": 2, "cpu_level": level.as_str()});
            let init = json!({"model": path, "model_draft": draft, "n_ctx": 256, "n_parallel": 4});
            let engine = start(with(&more, with(&threads, init)));
            assert_eq!(engine.status()["cpu"]["fallback_tensors"], json!({}), "{name}");
            let of = |endpoint| -> Vec<Value> {
                (0..4)
                    .map(|index| complete(&engine, endpoint, &request(index))["completion_probabilities"].clone())
                    .collect()
            };
            let alone = of(Plain);
            assert!(alone == of(Foredraft), "{name} at {level}: with a draft");
            let ids: Vec<u64> = (0..4).map(|index| common::submit(&engine, Foredraft, &request(index))).collect();
            for (index, id) in ids.into_iter().enumerate() {
                let last = common::drain(&engine, Foredraft, id).pop().expect("an update");
                assert!(alone[index] == last["completion_probabilities"], "{name} at {level}: beside others");
            }
            match &first {
                None => first = Some(alone),
                Some(first) => assert!(*first == alone, "{name} at {level}"),
            }
        }
    }
}

/// Caches of other types than F16, without flash attention, and requests beside others.
#[test]
fn no_output_depends_on_drafts_other_requests_or_the_level() {
    if !HAS_KERNELS {
        return;
    }
    for more in [
        json!({}),
        json!({"flash_attn": "off"}),
        json!({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
        json!({"cache_type_k": "bf16", "cache_type_v": "bf16"}),
        json!({"cache_type_k": "q8_0"}),
        json!({"cache_type_k": "q4_0", "cache_type_v": "q4_0", "kv_unified": true}),
        json!({"cache_type_k": "q4_1", "cache_type_v": "iq4_nl", "kv_unified": true}),
        json!({"cache_type_k": "q5_0", "cache_type_v": "q5_1"}),
        json!({"cache_type_k": "iq4_nl", "cache_type_v": "q4_1", "kv_unified": true}),
        json!({"cache_type_k": "q5_1", "cache_type_v": "q5_0", "kv_unified": true}),
    ] {
        let mut first: Option<Vec<Value>> = None;
        for level in llama::levels() {
            let init =
                with(&more, json!({"cpu_level": level.as_str(), "n_parallel": 4, "n_ctx": 512, "warmup": false}));
            let engine = start(init);
            let alone = outputs(&engine, Plain);
            if more.get("flash_attn").is_none() {
                assert_eq!(engine.status()["attention"]["target"]["kernel"], "foredraft", "{more}");
            }
            assert!(alone == outputs(&engine, Foredraft), "{more} at {level}: with a draft");
            let ids: Vec<u64> = (0..4).map(|index| common::submit(&engine, Foredraft, &request(index))).collect();
            for (index, id) in ids.into_iter().enumerate() {
                let last = common::drain(&engine, Foredraft, id).pop().expect("an update");
                assert_eq!(last["stop"], true);
                assert_eq!(alone[index][1], last["completion_probabilities"], "{more} at {level}: beside others");
            }
            match &first {
                None => first = Some(alone),
                Some(first) => assert!(*first == alone, "{more} at {level}"),
            }
        }
    }
}

#[test]
fn status_says_which_layout_weights_have_and_why() {
    if !HAS_KERNELS {
        return;
    }
    let layout = |more: Value| start(with(&json!({"warmup": false}), more)).status()["cpu"]["layout"].clone();
    let of = |layout: &str, chosen_by: &str| json!({"q8_0": {"layout": layout, "type": null, "chosen_by": chosen_by, "measured": null}});
    // The shipped models fit into caches, so there is nothing to measure.
    let by_default = layout(json!({}));
    assert_eq!(by_default, json!({"target": of("panels", "default"), "draft": of("panels", "default")}));
    assert_eq!(layout(json!({"repack": true}))["target"], of("panels", "load"));
    assert_eq!(layout(json!({"repack": false}))["target"], of("file", "load"));
    assert_eq!(
        layout(json!({"use_mlock": true, "model_draft": null})),
        json!({"target": of("file", "load"), "draft": null})
    );
    assert_eq!(layout(json!({"model": quantized("layout-f16", sys::LLAMA_FTYPE_MOSTLY_F16)}))["target"], json!({}));
}

/// Weights are in the mapped file until panels have been made of them, while the model is in use.
#[test]
fn panels_made_after_the_load_change_no_output() {
    let request = json!({"prompt": "Once upon a time", "n_predict": 24, "temperature": 0, "n_probs": 2});
    let run = |engine: &JsonEngine| complete(engine, Plain, &request)["completion_probabilities"].clone();
    let pending = |engine: &JsonEngine| engine.status()["pending_panel_bytes"].as_u64().expect("a number");
    let at_once = start(json!({"repack": true}));
    assert_eq!(pending(&at_once), 0);
    let expected = run(&at_once);
    drop(at_once);
    // Unloaded while they are made, too.
    for _ in 0..20 {
        drop(start(json!({"warmup": false})));
    }
    let later = start(json!({"warmup": false}));
    assert!(run(&later) == expected, "some weights may be in panels, others in the file");
    let until = Instant::now() + Duration::from_secs(60);
    while pending(&later) > 0 {
        assert!(Instant::now() < until, "{}", pending(&later));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(run(&later) == expected, "in panels");
    assert_eq!(pending(&start(json!({"repack": false}))), 0);
}

/// Experts of 40 and 24 rows, of which panels of 16 are no part.
#[test]
fn experts_of_any_number_of_rows_are_in_panels_and_change_no_bit() {
    let threads = Arc::new(ThreadPool::new(2).unwrap());
    for n_rows in [40, 24] {
        let path = common::tiny_models::mixture(n_rows);
        let mut first: Option<Vec<f32>> = None;
        for (level, repack) in
            llama::levels().iter().flat_map(|level| [Some(false), Some(true), None].map(|repack| (level, repack)))
        {
            let params = ModelParams { cpu_level: Some(level.as_str().to_owned()), repack, ..ModelParams::new(&path) };
            let model = Arc::new(Model::load(&params, |_| true).unwrap());
            assert_eq!(model.pending_panel_bytes() > 0, repack.is_none() && cfg!(target_os = "linux"));
            let params =
                ContextParams { n_ctx: Some(64), n_threads: 2, n_threads_batch: 2, ..ContextParams::default() };
            let mut context = Context::new(&model, &params, &threads, &Arc::default()).unwrap();
            let mut batch = Batch::new();
            (0..40).for_each(|at| _ = batch.push(300 + 31 * Token::try_from(at).unwrap(), at, 0, true));
            let mut logits = || {
                let before = llama::kernel_calls();
                context.truncate(0, 0);
                context.decode(&batch).unwrap();
                let after = llama::kernel_calls();
                let n_in_panels = after.panel_products - before.panel_products;
                (n_in_panels, (0..40).flat_map(|row| context.logits(row).unwrap().to_vec()).collect::<Vec<f32>>())
            };
            let expected = first.get_or_insert_with(|| logits().1);
            assert!(logits().1 == *expected, "{n_rows} rows at {level:?}, {repack:?}");
            model.make_panels(None);
            while model.pending_panel_bytes() > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (n_in_panels, found) = logits();
            assert!(found == *expected, "{n_rows} rows at {level:?}, {repack:?}: in panels");
            // In each layer four of attention, the router and two of the experts; and the outputs.
            let all = 7 * model.n_layer() as u64 + 1;
            assert_eq!(n_in_panels, if HAS_KERNELS && repack != Some(false) { all } else { 0 });
        }
    }
}

/// SmolLM2, whose weights are more than caches hold.
#[test]
fn layout_of_a_large_model_is_measured_once_and_changes_no_output() {
    let target = common::root().join("target/models/smollm2-135m-q4_1.gguf");
    if !HAS_KERNELS || !target.is_file() {
        assert!(
            !HAS_KERNELS || std::env::var_os("CI").is_none(),
            "no {}: scripts/models.sh makes it",
            target.display()
        );
        return;
    }
    let init = json!({"model": target.to_str().expect("UTF-8"), "model_draft": null, "n_ctx": 256, "warmup": false});
    let request = json!({"prompt": "Write about the moon.", "n_predict": 12, "temperature": 0, "n_probs": 2});
    let run = |more: Value| {
        let engine = start(with(&init, more));
        let answer = complete(&engine, Plain, &request);
        (engine.status()["cpu"]["layout"]["target"].clone(), answer["completion_probabilities"].clone())
    };
    let (first, text) = run(json!({}));
    for (format, of) in first.as_object().expect("types") {
        let us = |name: &str| of["measured"][name].as_f64().expect("a time");
        assert_eq!(of["chosen_by"], "measurement", "{format}: {first}");
        assert!(us("panels_us") > 0.0 && us("file_us") > 0.0, "{format}: {first}");
        let faster = if us("foreseen_us") < 0.9 * us("prefetched_us") { "foreseen_us" } else { "prefetched_us" };
        assert_eq!(us("panels_us"), us(faster), "{format}: {first}");
        let expected = if us("file_us") < 0.9 * us("panels_us") { "file" } else { "panels" };
        assert_eq!(of["layout"], expected, "{format}: {first}");
    }
    assert!(first.as_object().expect("types").contains_key("q4_1"), "{first}");
    assert_eq!(run(json!({})).0, first, "it is kept");
    for forced in [true, false] {
        let (layout, same) = run(json!({"repack": forced}));
        let expected = if forced { "panels" } else { "file" };
        assert!(layout.as_object().expect("types").values().all(|of| of["layout"] == expected), "{layout}");
        assert!(same == text, "repack {forced}");
    }
}

/// Pages of the file are given back while they are copied.
#[cfg(target_os = "linux")]
#[test]
fn load_never_has_the_weights_twice_in_memory() {
    let target = common::root().join("target/models/smollm2-135m-q4_1.gguf");
    let Ok(file) = std::fs::metadata(&target) else {
        assert!(
            !HAS_KERNELS || std::env::var_os("CI").is_none(),
            "no {}: scripts/models.sh makes it",
            target.display()
        );
        return;
    };
    let resident = |name: &str| {
        let status = std::fs::read_to_string("/proc/self/status").expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a size").to_owned();
        line.split_whitespace().next().expect("a number").parse::<u64>().expect("a number") * 1024
    };
    let init = json!({
        "model": target.to_str().expect("UTF-8"), "model_draft": null, "n_ctx": 64, "n_batch": 32, "warmup": false, "repack": true,
    });
    let before = resident("VmRSS:");
    // Resets the peak.
    std::fs::write("/proc/self/clear_refs", "5").expect("a process may reset its own peak");
    let engine = start(init);
    let more = resident("VmHWM:").saturating_sub(before);
    // The embeddings are the output weights, too: mapped, and in panels.
    assert!(more < file.len() + file.len() * 3 / 4, "{more} bytes for a file of {}", file.len());
    drop(engine);
}

#[test]
fn a_forced_level_must_exist_and_stays_while_models_are_loaded() {
    let refused = |init: Value| JsonEngine::new().load(init.to_string().as_bytes()).unwrap_err().message().to_owned();
    let levels: Vec<&str> = llama::levels().iter().map(|level| level.as_str()).collect();
    let message = refused(json!({"model": model("draft"), "cpu_level": "mmx"}));
    assert_eq!(message, format!("cpu_level: this processor's levels are {}, got \"mmx\"", levels.join(", ")));
    if let [least, .., best] = levels[..] {
        let engine = start(json!({"cpu_level": least}));
        let message = refused(json!({"model": model("draft"), "cpu_level": best}));
        assert_eq!(message, format!("cpu_level: the loaded models of this process use {least}, got {best}"));
        // An engine that asks for nothing takes the level in use.
        let second = start(json!({}));
        assert_eq!(second.status()["cpu"]["level"], least);
        drop((engine, second));
        assert_eq!(start(json!({})).status()["cpu"]["level"], best);
    }
}

/// Runs this test's own process again, with the variable.
#[test]
fn the_variable_forces_a_level() {
    if let Ok(expected) = std::env::var("FOREDRAFT_TEST_EXPECTED") {
        let init = json!({"model": model("draft")});
        let engine = JsonEngine::new();
        match engine.load(init.to_string().as_bytes()) {
            Ok(()) => assert_eq!(engine.status()["cpu"]["level"], expected.as_str()),
            Err(error) => assert!(error.message().starts_with(&expected), "{error}"),
        }
        return;
    }
    let level = llama::levels().first().copied().map_or(LEVELS[0], CpuLevel::as_str);
    let best = llama::levels().last().copied().map_or(LEVELS[0], CpuLevel::as_str);
    let refused = "FOREDRAFT_CPU_LEVEL: this processor's levels are";
    // An empty variable counts as absent.
    for (forced, expected) in [(level, level), ("sse", refused), ("", best)] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_variable_forces_a_level"])
            .env("FOREDRAFT_CPU_LEVEL", forced)
            .env("FOREDRAFT_TEST_EXPECTED", expected)
            .status()
            .expect("this program starts");
        assert!(status.success(), "{forced}");
    }
}

/// Linux permits AMX only if the frame of a signal fits into the alternate stacks that threads have. Runs this test's own process again,
/// because a permission stays.
#[test]
#[cfg(target_os = "linux")]
fn small_alternate_stack_for_signals_leaves_amx_out() {
    if std::env::var_os("FOREDRAFT_TEST_SMALL_STACK").is_none() {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "small_alternate_stack_for_signals_leaves_amx_out"])
            .env("FOREDRAFT_TEST_SMALL_STACK", "1")
            .env_remove("FOREDRAFT_CPU_LEVEL")
            .status()
            .expect("this program starts");
        assert!(status.success());
        return;
    }
    let memory = vec![0_u8; 8 << 10].leak();
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
    // SAFETY: the memory is never freed.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
    let levels = llama::levels();
    let best = levels.iter().rfind(|level| **level != CpuLevel::Amx).expect("a level").as_str();
    let engine = JsonEngine::new();
    let load = |init: Value| engine.load(init.to_string().as_bytes());
    load(json!({"model": model("draft")})).expect("it loads");
    assert_eq!(engine.status()["cpu"]["level"], best);
    if levels.contains(&CpuLevel::Amx) {
        let error = load(json!({"model": model("draft"), "cpu_level": "amx"})).expect_err("not permitted");
        assert!(error.message().starts_with("cpu_level: the system doesn't let this process use amx"), "{error}");
    }
}

/// The linker keeps one copy of a template or inline function that several objects have. A copy compiled for AVX-512 would run on other
/// processors, so the kernels must have none.
#[test]
fn kernels_export_nothing_that_other_code_could_use() {
    // Windows has no `nm`.
    if !HAS_KERNELS || cfg!(windows) {
        return;
    }
    let deps = std::env::current_exe().unwrap();
    let builds = deps.ancestors().nth(2).unwrap().join("build");
    let mut n_archives = 0;
    for folder in std::fs::read_dir(builds).unwrap().flatten() {
        for level in LEVELS {
            let archive = folder.path().join(format!("out/libforedraft_{level}.a"));
            if !archive.is_file() {
                continue;
            }
            let listed = Command::new("nm").args(["--defined-only", "-C"]).arg(&archive).output().expect("nm runs");
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            let exported: Vec<&str> = listed
                .lines()
                .filter(|line| line.split_whitespace().nth(1).is_some_and(|kind| "TWVuRDB".contains(kind)))
                .collect();
            let is_table = |line: &&str| line.ends_with("::KERNELS") || line.ends_with("::KERNELS_WITH_AMX");
            assert!(!exported.is_empty() && exported.iter().all(is_table), "{level}: {exported:?}");
            n_archives += 1;
        }
    }
    assert!(n_archives >= LEVELS.len(), "the archives of the kernels are in the build folder");
}

/// An editor sees each header by itself, and so does this test, at every level of this kind of processor that the header tells apart: a header that names no
/// level is the same at all of them, and those that it includes are compiled by themselves.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn each_header_compiles_alone() {
    let folder = common::root().join("crates/native/kernels");
    let ggml = ["include", "src", "src/ggml-cpu"].map(|part| format!("{}/ggml/{part}", env!("LLAMA_CPP_SOURCES")));
    let base = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"];
    let avx512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-DFOREDRAFT_AVX512_VNNI"];
    let more: [&[&str]; 3] = [&[], &["-mavxvnni", "-DFOREDRAFT_AVX_VNNI"], &avx512];
    let names = |header: &Path, level: &str| {
        std::fs::read_to_string(header).expect("a header").contains(&format!("FOREDRAFT_{}", level.to_uppercase()))
    };
    let headers = std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let is_header = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "h");
    let headers: Vec<_> = headers.filter(is_header).filter(|path| !path.ends_with("vectors_neon.h")).collect();
    assert!(headers.len() > 8, "{headers:?}");
    for (level, more) in LEVELS.iter().zip(more) {
        for header in headers.iter().filter(|header| *level == LEVELS[0] || names(header, level)) {
            let mut compiler = Command::new("c++");
            compiler.args(["-std=c++17", "-fsyntax-only", "-w", "-x", "c++"]).args(base).args(more);
            ggml.iter().for_each(|folder| _ = compiler.arg("-isystem").arg(folder));
            compiler.arg(format!("-DFOREDRAFT_LEVEL={level}")).arg(header);
            let run = compiler.output().expect("a compiler");
            assert!(run.status.success(), "{}: {}", header.display(), String::from_utf8_lossy(&run.stderr));
        }
    }
}
