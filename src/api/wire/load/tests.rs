use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::engine::session::SelfExtend;
use crate::error::Code;
use crate::llama::{GgufSource, KvValue, LoraParams};

/// Parses a load's document with `model` and these keys.
fn init(keys: Value) -> Result<LoadRequest> {
    let mut document = json!({"model": "m.gguf"});
    document.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    LoadRequest::from_object(document.as_object().unwrap())
}

fn with_draft(mut keys: Value) -> (ModelParams, ContextParams) {
    keys["model_draft"] = json!("d.gguf");
    init(keys).unwrap().config.draft.unwrap()
}

#[test]
fn status_names_the_given_models_even_if_the_rest_is_wrong() {
    let given = |document: &str| {
        let GivenModels { model, model_alias, model_draft } = GivenModels::read(document.as_bytes());
        [model, model_alias, model_draft]
    };
    assert_eq!(given(r#"{"model": "m", "model_draft": "d"}"#), ["m", "m", "d"]);
    assert_eq!(given(r#"{"model": "m", "model_alias": "a", "n_ctx": -1}"#), ["m", "a", ""]);
    assert_eq!(given(r#"{"model": "m", "model_alias": "unknown"}"#), ["m", "m", ""]);
    assert_eq!(given("server -m m.gguf -md d.gguf -a gpt"), ["m.gguf", "gpt", "d.gguf"]);
    let elsewhere = r#"{"model": {"fd": 5, "offset": 7}, "model_draft": {"address": 32, "length": 9}}"#;
    assert_eq!(
        given(elsewhere),
        ["file descriptor 5 from byte 7", "file descriptor 5 from byte 7", "9 bytes of memory at 0x20"]
    );
    for nothing in ["", "{", "7", r#"{"model": 5, "model_draft": null}"#, "--no-such-flag", "[]"] {
        assert_eq!(given(nothing), ["", "", ""], "{nothing}");
    }
    assert_eq!(GivenModels::read(b"\xFF"), GivenModels::default());
    // The alias `unknown` means the path, in the answers too.
    assert_eq!(init(json!({"model_alias": "unknown"})).unwrap().model_alias, None);
}

/// Keys of `gpt_params`.
#[test]
fn keys_of_the_old_server_are_understood() {
    let request = init(json!({
        "n_beams": 4, "memory_f16": false, "lora_adapter": [["a.gguf", 0.5]], "lora_base": "b.gguf", "mul_mat_q": true,
        "logits_all": false, "sampling_params": {"temp": 1}, "numa": true, "n_threads_batch": -1, "log_level": 9999,
    }))
    .unwrap();
    assert_eq!(request.defaults.n_beams, 4);
    assert_eq!((request.config.context.type_k, request.config.context.type_v), (CacheType::F32, CacheType::F32));
    assert_eq!(request.config.model.lora, [LoraParams { source: "a.gguf".into(), scale: 0.5 }]);
    assert_eq!((request.config.numa, request.log_level), (Some(Numa::Distribute), Some(Level::Debug)));
    let mut about: Vec<&str> = request.warnings.iter().filter_map(|warning| warning.split(':').next()).collect();
    about.sort_unstable();
    assert_eq!(about, ["logits_all", "lora_base", "mul_mat_q", "sampling_params"]);
    assert!(init(json!({"n_draft": "many"})).unwrap_err().message().starts_with("speculative.n_draft"));
}

#[test]
fn missing_keys_have_their_defaults() {
    let LoadRequest {
        config,
        model_alias,
        chat_template,
        defaults,
        log_level,
        projector,
        is_isolated,
        notify_fd,
        warnings,
    } = init(json!({})).unwrap();
    assert_eq!(projector, None);
    assert_eq!(
        config,
        Config {
            model: ModelParams::new("m.gguf"),
            context: ContextParams::default(),
            draft: None,
            draft_vocab: None,
            mtp: false,
            lookup_static: None,
            lookup_dynamic: None,
            fit: None,
            n_parallel: 1,
            ctx_shift: true,
            self_extend: None,
            embedding: false,
            max_queue: 64,
            cache_ram: 256 << 20,
            cache_dir: None,
            cache_dir_limit: None,
            warmup: true,
            numa: None,
            frame_budget: None,
            rpc: vec![],
            rpc_timeout: Some(Duration::from_secs(120)),
        }
    );
    assert_eq!((model_alias, chat_template, log_level, is_isolated, notify_fd), (None, None, None, false, None));
    assert_eq!(defaults, RequestDefaults::default());
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn fit_has_a_margin_and_a_shortest_context() {
    let fit = |keys: Value| init(keys).unwrap().config.fit;
    let of = |mb: u64, least_n_ctx| Some(FitSettings { margin: mb << 20, least_n_ctx });
    assert_eq!(fit(json!({"fit": true})), of(1024, None));
    assert_eq!(fit(json!({"fit": "on", "fit_margin_mb": 0, "fit_ctx": 512})), of(0, Some(512)));
    assert_eq!((fit(json!({"fit": false})), fit(json!({"fit": "off"}))), (None, None));
    assert_eq!(
        init(json!({"fit_margin_mb": 10, "fit_ctx": 512})).unwrap().warnings,
        ["fit_margin_mb: ignored without fit", "fit_ctx: ignored without fit"]
    );
    assert!(init(json!({"fit": "much"})).unwrap_err().message().starts_with("fit: expected one of \"on\", \"off\""));
    let line = LoadRequest::parse(b"-m m.gguf --fit on -fitt 512 -fitc 1024").unwrap();
    assert_eq!((line.config.fit, line.warnings), (of(512, Some(1024)), vec![]));
}

#[test]
fn mtp_layers_are_loaded_only_when_requested() {
    let check = |speculative: Value, expected: bool| {
        let config = init(json!({"speculative": speculative, "model_draft": "d.gguf"})).unwrap().config;
        assert_eq!((config.mtp, config.model.mtp), (expected, false), "{speculative}");
    };
    check(json!({"type": "mtp"}), true);
    check(json!({"type": ["suffix", "draft-mtp"], "n_max": 0}), true);
    check(json!({"type": "auto"}), false);
    check(json!(false), false);
    check(json!(true), false);
}

#[test]
fn model_keys_set_model_params() {
    let check = |keys: Value, change: fn(&mut ModelParams)| {
        let mut expected = ModelParams::new("m.gguf");
        change(&mut expected);
        assert_eq!(init(keys.clone()).unwrap().config.model, expected, "{keys}");
    };
    check(json!({"model": "other.gguf"}), |m| m.source = "other.gguf".into());
    check(json!({"model": {"path": "other.gguf"}}), |m| m.source = "other.gguf".into());
    check(json!({"model": {"fd": 5}}), |m| m.source = GgufSource::Descriptor { fd: 5, offset: 0, length: None });
    check(json!({"model": {"fd": 5, "offset": "0x1000", "length": 70.0}}), |m| {
        m.source = GgufSource::Descriptor { fd: 5, offset: 4096, length: Some(70) };
        m.use_mmap = false;
    });
    check(json!({"model": {"fd": 5, "offset": 32}, "use_mmap": true}), |m| {
        m.source = GgufSource::Descriptor { fd: 5, offset: 32, length: None };
    });
    check(json!({"model": {"address": "4096", "length": 70}}), |m| {
        (m.source, m.use_mmap) = (GgufSource::Memory { address: 4096, length: 70 }, false);
    });
    check(json!({"n_gpu_layers": 99.0}), |m| m.n_gpu_layers = 99);
    check(json!({"n_gpu_layers": "all"}), |m| m.n_gpu_layers = -2);
    check(json!({"devices": ["CUDA0", "CUDA1"]}), |m| m.devices = Some(vec!["CUDA0".into(), "CUDA1".into()]));
    check(json!({"devices": "CUDA0,CUDA1"}), |m| m.devices = Some(vec!["CUDA0".into(), "CUDA1".into()]));
    check(json!({"devices": "none", "n_gpu_layers": 5}), |m| {
        (m.n_gpu_layers, m.devices) = (0, Some(Vec::new()));
    });
    check(json!({"split_mode": "row", "main_gpu": 2}), |m| (m.split_mode, m.main_gpu) = (SplitMode::Row, 2));
    check(json!({"tensor_split": [3, 1.5]}), |m| m.tensor_split = vec![3.0, 1.5]);
    check(json!({"tensor_split": [0, 0]}), |_| ());
    check(json!({"n_cpu_moe": 3}), |m| m.n_cpu_moe = 3);
    check(json!({"n_cpu_moe": "all"}), |m| m.n_cpu_moe = ModelParams::ALL_LAYERS);
    let experts = |m: &mut ModelParams| m.override_tensor = vec![("ffn_.*_exps".into(), "CPU".into())];
    check(json!({"override_tensor": {"ffn_.*_exps": "CPU"}}), experts);
    check(json!({"override_tensor": "ffn_.*_exps=CPU"}), experts);
    check(json!({"use_mmap": false, "use_mlock": true}), |m| (m.use_mmap, m.use_mlock) = (false, true));
    check(json!({"repack": false}), |m| m.repack = Some(false));
    check(json!({"repack": true}), |m| m.repack = Some(true));
    check(json!({"check_tensors": true, "vocab_only": true}), |m| (m.check_tensors, m.vocab_only) = (true, true));
    check(json!({"lora": [{"path": "a"}, {"path": "b", "scale": -0.5}, "c"]}), |m| {
        let adapter = |path: &str, scale| LoraParams { source: path.into(), scale };
        m.lora = vec![adapter("a", 1.0), adapter("b", -0.5), adapter("c", 1.0)];
    });
    let overrides = |m: &mut ModelParams| {
        m.override_kv = vec![
            ("a".into(), KvValue::Int(-3)),
            ("b".into(), KvValue::Float(1.0)),
            ("c".into(), KvValue::Bool(true)),
            ("d".into(), KvValue::Str("x:y=z".into())),
        ];
    };
    check(json!({"override_kv": {"a": -3, "b": 1.0, "c": true, "d": "x:y=z"}}), overrides);
    check(json!({"override_kv": ["a=int:-3", "b=float:1", "c=bool:true", "d=str:x:y=z"]}), overrides);
    check(json!({"override_kv": "a=int:-3,b=float:1,c=bool:true,d=str:x:y=z"}), overrides);
    check(json!({"override_kv": {"a".repeat(127): "b".repeat(127)}}), |m| {
        m.override_kv = vec![("a".repeat(127), KvValue::Str("b".repeat(127)))];
    });
}

#[test]
fn context_keys_set_context_params() {
    let check = |keys: Value, change: fn(&mut ContextParams)| {
        let mut expected = ContextParams::default();
        change(&mut expected);
        assert_eq!(init(keys.clone()).unwrap().config.context, expected, "{keys}");
    };
    check(json!({"n_ctx": 0}), |c| c.n_ctx = Some(0));
    check(json!({"n_ctx": 8192}), |c| c.n_ctx = Some(8192));
    check(json!({"n_batch": 100}), |c| (c.n_batch, c.n_ubatch) = (100, 100));
    check(json!({"n_batch": 100, "n_ubatch": 7}), |c| (c.n_batch, c.n_ubatch) = (100, 7));
    check(json!({"n_ubatch": 0}), |c| c.n_ubatch = c.n_batch);
    check(json!({"n_threads": 3}), |c| (c.n_threads, c.n_threads_batch) = (3, 3));
    check(json!({"n_threads": 3, "n_threads_batch": 5}), |c| (c.n_threads, c.n_threads_batch) = (3, 5));
    check(json!({"n_threads": -1, "n_threads_batch": 0}), |_| ());
    check(json!({"kv_unified": true}), |c| c.kv_unified = true);
    check(json!({"flash_attn": "on"}), |c| c.flash_attn = FlashAttn::On);
    check(json!({"flash_attn": true}), |c| c.flash_attn = FlashAttn::On);
    check(json!({"flash_attn": false}), |c| c.flash_attn = FlashAttn::Off);
    check(json!({"flash_attn": "auto"}), |_| ());
    check(json!({"cache_type_k": "q8_0", "cache_type_v": "iq4_nl"}), |c| {
        (c.type_k, c.type_v) = (CacheType::Q8_0, CacheType::Iq4Nl)
    });
    check(json!({"offload_kqv": false, "swa_full": false}), |c| (c.offload_kqv, c.swa_full) = (false, false));
    check(json!({"rope_freq_base": 1e6, "rope_freq_scale": 0.25}), |c| {
        (c.rope_freq_base, c.rope_freq_scale) = (1e6, 0.25)
    });
    check(json!({"rope_freq_scale": 0}), |_| ());
    check(json!({"rope_scaling": "yarn", "yarn_orig_ctx": 4096, "yarn_ext_factor": 0.5}), |c| {
        (c.rope_scaling, c.yarn_orig_ctx, c.yarn_ext_factor) = (RopeScaling::Yarn, 4096, 0.5);
    });
    check(json!({"yarn_attn_factor": 2, "yarn_beta_fast": 32, "yarn_beta_slow": 1}), |c| {
        (c.yarn_attn_factor, c.yarn_beta_fast, c.yarn_beta_slow) = (2.0, 32.0, 1.0);
    });
    check(json!({"pooling": "cls"}), |c| c.pooling = Some(TextPooling::First));
    for rank in [json!({"pooling": "rank"}), json!({"reranking": true}), json!({"reranking": true, "pooling": "rank"})]
    {
        assert!(init(rank.clone()).unwrap().config.embedding, "{rank}");
        check(rank, |c| c.pooling = Some(TextPooling::Rank));
    }
}

#[test]
fn draft_params_default_to_the_targets() {
    let default = || ModelParams { weights: WeightType::Measured, ..ModelParams::new("d.gguf") };
    let (model, context) = with_draft(json!({}));
    assert_eq!((model, context), (default(), ContextParams::default()));

    // A part of a file is not mapped; that is no default of the draft's.
    let (model, _) = with_draft(json!({"model": {"fd": 5, "offset": 32}}));
    assert_eq!(model, default());

    let target = json!({"n_ctx": 512, "n_batch": 64, "n_threads": 2, "n_threads_batch": 3, "n_gpu_layers": 5,
        "cache_type_k": "q8_0", "flash_attn": "on", "use_mmap": false, "lora": ["a"], "devices": ["X"],
        "rope_freq_base": 5e5});
    let (model, context) = with_draft(target.clone());
    // As in llama.cpp, layers and cache types have their own defaults, and the target's adapters do not apply. The rest follows.
    assert_eq!(model, ModelParams { use_mmap: false, devices: Some(vec!["X".into()]), ..default() });
    assert_eq!(
        context,
        ContextParams {
            n_ctx: Some(512),
            n_batch: 64,
            n_ubatch: 64,
            n_threads: 2,
            n_threads_batch: 3,
            flash_attn: FlashAttn::On,
            rope_freq_base: 5e5,
            ..ContextParams::default()
        }
    );

    let mut own = target;
    own.as_object_mut().unwrap().extend(
        json!({"n_ctx_draft": 256, "n_threads_draft": 1, "n_threads_batch_draft": 1,
        "n_gpu_layers_draft": 7, "cache_type_v_draft": "q4_0", "devices_draft": ["Y"]})
        .as_object()
        .unwrap()
        .clone(),
    );
    let (model, context) = with_draft(own);
    assert_eq!((model.n_gpu_layers, model.devices), (7, Some(vec!["Y".to_owned()])));
    // With the target off all devices, so is the draft, unless its own keys say otherwise.
    let off = |more: Value| {
        let mut init = json!({"model": "m.gguf", "model_draft": "d.gguf", "devices": "none"});
        init.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        with_draft(init).0.n_gpu_layers
    };
    assert_eq!((off(json!({})), off(json!({"n_gpu_layers_draft": 7}))), (0, 7));
    assert_eq!(off(json!({"n_gpu_layers_draft": 7, "devices_draft": "none"})), 0);
    assert_eq!(off(json!({"devices_draft": ["Y"]})), -1);
    assert_eq!((context.n_ctx, context.n_threads, context.n_threads_batch), (Some(256), 1, 1));
    assert_eq!((context.type_k, context.type_v), (CacheType::F16, CacheType::Q4_0));
}

#[test]
fn other_keys_are_parsed() {
    let config =
        init(json!({"n_parallel": 256, "ctx_shift": false, "embedding": true, "max_queue": 0, "warmup": false,
        "numa": "isolate", "rpc": "localhost:50052,[::1]:1"}))
        .unwrap()
        .config;
    assert_eq!(
        (config.n_parallel, config.ctx_shift, config.embedding, config.max_queue, config.warmup),
        (256, false, true, 0, false)
    );
    assert_eq!(
        (config.numa, config.rpc),
        (Some(Numa::Isolate), vec!["localhost:50052".to_owned(), "[::1]:1".to_owned()])
    );
    let numa = |value: Value| init(json!({"numa": value})).unwrap().config.numa;
    assert_eq!((numa(json!(true)), numa(json!(false)), numa(json!("disabled"))), (Some(Numa::Distribute), None, None));

    let request =
        init(json!({"model_alias": "gpt", "chat_template": "chatml", "n_keep": -1, "n_cache_reuse": 9, "seed": 7,
        "grp_attn_n": 4, "grp_attn_w": 64, "draft_vocab": 8192}))
        .unwrap();
    assert_eq!((request.config.self_extend, request.defaults.n_cache_reuse), (SelfExtend::new(4, 64), 9));
    assert_eq!(request.config.draft_vocab, Some(8192));
    assert_eq!((request.model_alias.as_deref(), request.chat_template.as_deref()), (Some("gpt"), Some("chatml")));
    assert_eq!((request.defaults.n_keep, request.defaults.seed), (None, Some(7)));
    let seed = |value: Value| init(json!({"seed": value})).unwrap().defaults.seed;
    assert_eq!((seed(json!(-1)), seed(json!(u32::MAX)), seed(json!(u32::MAX - 1))), (None, None, Some(u32::MAX - 1)));

    let level = |value: Value| init(json!({"log_level": value})).unwrap().log_level.unwrap();
    assert_eq!(
        (level(json!("none")), level(json!("error")), level(json!("debug"))),
        (Level::Off, Level::Error, Level::Debug)
    );
    assert_eq!((level(json!(0)), level(json!(3)), level(json!(5))), (Level::Off, Level::Info, Level::Debug));
}

#[test]
fn no_key_is_private() {
    let warnings = init(json!({"__warnings": ["shown to the host"]})).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].starts_with("unknown key \"__warnings\""), "{warnings:?}");
}

#[test]
fn ignored_keys_give_warnings() {
    let check = |keys: Value, expected: &[&str]| assert_eq!(init(keys.clone()).unwrap().warnings, expected, "{keys}");
    check(
        json!({"hostname": "::1", "port": "any", "public_path": 1, "read_timeout": 600, "write_timeout": 600}),
        &[
            "hostname: ignored, there is no HTTP server",
            "port: ignored, there is no HTTP server",
            "public_path: ignored, there is no HTTP server",
            "read_timeout: ignored, there is no HTTP server",
            "write_timeout: ignored, there is no HTTP server",
        ],
    );
    check(json!({"n_gpu_layer": 1}), &[r#"unknown key "n_gpu_layer" (did you mean "n_gpu_layers"?)"#]);
    check(
        json!({"lora": [{"path": "a", "scal": 1}]}),
        &[r#"unknown key "lora[0].scal" (did you mean "lora[0].scale"?)"#],
    );
    check(
        json!({"speculative": {"nmax": 1}}),
        &[r#"unknown key "speculative.nmax" (did you mean "speculative.n_max"?)"#],
    );
    check(json!({"grp_attn_n": 1, "grp_attn_w": 512, "lookup_cache_static": "", "lookup_cache_dynamic": null}), &[]);
}

#[test]
fn invalid_values_are_refused() {
    let check = |keys: Value, expected: &str| {
        let error = init(keys.clone()).expect_err(&keys.to_string());
        assert_eq!(error.code(), Code::InvalidRequest);
        assert!(error.message().contains(expected), "{keys}: {error} does not say {expected:?}");
    };
    check(json!({"model": null}), "model: expected the path of a GGUF file");
    check(json!({"model": ""}), "model: expected the path of a GGUF file");
    check(json!({"model": 5}), "model: expected a string, got 5");
    check(json!({"model": "a\0b"}), "model: expected a string without NUL");
    check(json!({"model_draft": "a\0b"}), "model_draft: expected a string without NUL");
    check(json!({"n_ctx": -1}), "n_ctx: expected a whole number from 0");
    check(json!({"n_ctx": 4294967296u64}), "n_ctx");
    check(json!({"n_batch": 0}), "n_batch: expected a whole number from 1");
    check(json!({"n_parallel": 0}), "n_parallel: expected a whole number from 1 to 256, got 0");
    check(json!({"n_parallel": 257}), "n_parallel: expected a whole number from 1 to 256, got 257");
    check(json!({"n_threads": 513}), "n_threads: expected a whole number from -1 to 512, got 513");
    check(json!({"n_threads_draft": 513}), "n_threads_draft"); // checked even without a draft model
    let layers =
        "n_gpu_layers: expected a whole number from -2147483648 to 2147483647, or \"auto\" or \"all\", got \"most\"";
    check(json!({"n_gpu_layers": "most"}), layers);
    check(json!({"main_gpu": 16}), "main_gpu");
    check(
        json!({"split_mode": "column"}),
        r#"split_mode: expected one of "none", "layer", "row", "tensor", got "column""#,
    );
    check(json!({"tensor_split": vec![1; 17]}), "tensor_split: expected at most 16 shares, got 17");
    check(json!({"tensor_split": [-1]}), "tensor_split[0]");
    for (value, shown) in [(json!(-1), "-1"), (json!("a"), "\"a\""), (json!(1.5), "1.5")] {
        let expected = format!("n_cpu_moe: expected a whole number from 0 to 1000, or \"all\", got {shown}");
        check(json!({"n_cpu_moe": value}), &expected);
    }
    check(json!({"override_tensor": "experts"}), "pattern=device");
    for key in ["override_tensor", "override_tensor_draft"] {
        check(json!({key: {"(a*)*": "CPU"}}), &format!("{key}: expected no repetition of a group"));
        for pattern in ["ffn[", "(", "a)", "a{2", "*a", "\\", "[b-a]", "[[:none:]]", "(a)\\2"] {
            let refused = format!("{key}: expected a regular expression (");
            check(json!({key: {pattern: "CPU"}}), &refused);
            check(json!({key: format!("{pattern}=CPU")}), &format!("in the pattern {pattern:?}"));
        }
        check(json!({key: {"a\0b": "CPU"}}), &format!("{key}: expected a pattern without NUL"));
    }
    check(json!({"cache_type_k": "f15"}), "cache_type_k: expected one of \"f32\", \"f16\"");
    check(json!({"cache_type_v": "q4_0", "flash_attn": "off"}), "cache_type_v: a quantized V cache needs flash_attn");
    check(
        json!({"model_draft": "d", "cache_type_v_draft": "q4_0", "flash_attn": false}),
        "cache_type_v_draft: a quantized V cache",
    );
    check(json!({"split_mode": "tensor", "flash_attn": false}), "split_mode: \"tensor\" needs flash_attn");
    check(json!({"flash_attn": 1}), "flash_attn: expected one of \"on\", \"off\", \"auto\", got 1");
    check(json!({"rope_freq_scale": 1e-30}), "rope_freq_scale");
    check(json!({"rope_freq_base": -1}), "rope_freq_base: expected a number from 0");
    check(json!({"pooling": "cls", "reranking": true}), "reranking: expected the pooling rank or none beside it");
    check(json!({"pooling": "mode"}), "pooling: expected one of");
    check(json!({"numa": "mirror"}), "numa: expected one of");
    check(json!({"rpc": "localhost"}), "rpc: expected host:port, got \"localhost\"");
    check(json!({"rpc": ["localhost:0"]}), "rpc: expected host:port");
    check(json!({"rpc": [":80"]}), "rpc: expected host:port");
    check(json!({"lora": "a"}), "lora: expected an array of");
    check(json!({"lora": [{"scale": 1}]}), "lora[0]: expected");
    check(json!({"lora": ["a", {"path": "b", "scale": "c"}]}), "lora[1].scale: expected a number");
    check(json!({"override_kv": {"a".repeat(128): 1}}), "a key of 1 to 127 bytes");
    check(json!({"override_kv": {"": 1}}), "a key of 1 to 127 bytes");
    check(json!({"override_kv": {"a": "b".repeat(128)}}), "override_kv.\"a\": expected a string of at most 127 bytes");
    check(json!({"override_kv": {"a": [1]}}), "override_kv.\"a\": expected a number, a string, true or false, got [1]");
    check(json!({"override_kv": {"a": 18446744073709551615u64}}), "override_kv.\"a\"");
    check(json!({"override_kv": ["a=int:x"]}), "override_kv[0]: expected \"key=type:value\"");
    check(json!({"override_kv": ["a=int"]}), "override_kv[0]: expected \"key=type:value\"");
    check(json!({"override_kv": ["a"]}), "override_kv[0]: expected \"key=type:value\"");
    check(json!({"override_kv": ["a=float:nan"]}), "override_kv[0]");
    check(json!({"override_kv": 5}), "override_kv: expected an object, or an array");
    check(json!({"grp_attn_n": -1}), "grp_attn_n");
    check(json!({"draft_vocab": -1}), "draft_vocab");
    check(
        json!({"draft_weights": "q4_k"}),
        "draft_weights: expected one of \"file\", \"q8_0\", \"q4_0\", \"measured\", got \"q4_k\"",
    );
    check(json!({"grp_attn_n": 2, "grp_attn_w": 0}), "grp_attn_w");
    check(json!({"n_cache_reuse": -1}), "n_cache_reuse");
    check(json!({"chat_template": "granit"}), r#"got "granit" (did you mean "granite"?)"#);
    check(
        json!({"grp_attn_n": 2, "grp_attn_w": 511}),
        "grp_attn_w: expected a multiple of grp_attn_n, which is 2, got 511",
    );
    check(json!({"seed": -2}), "seed: expected a whole number from -1 to 4294967295, got -2");
    check(json!({"n_keep": -2}), "n_keep");
    check(json!({"log_level": "loud"}), "log_level: expected one of");
    check(json!({"log_level": 1.5}), "log_level: expected a word or a whole number, got 1.5");
    check(json!({"speculative": {"type": "draft-eagle9"}}), "speculative.type");
    check(json!({"warmup": 1}), "warmup: expected true or false, got 1");
    check(json!({"chat_template": "a\0"}), "chat_template: expected a string without NUL");
}

#[test]
fn command_lines_give_the_same_request() {
    // A command line and a JSON document give the same request.
    let from = |text: &str| LoadRequest::parse(text.as_bytes()).unwrap();
    let check = |line: &str, document: &str| assert_eq!(from(line), from(document), "{line}");
    check(
        "-m m.gguf -md 'd 1.gguf' -c 4096 -ngl 99",
        r#" {"model": "m.gguf", "model_draft": "d 1.gguf", "n_ctx": 4096, "n_gpu_layers": 99}"#,
    );
    check(
        "-m m -fa --draft-max 4 --lora-scaled a:2 --override-kv k=bool:true --rpc h:1 -ts 1,2",
        r#"{"model": "m", "flash_attn": true, "speculative": {"n_max": 4}, "lora": [{"path": "a", "scale": 2}],
            "override_kv": {"k": true}, "rpc": ["h:1"], "tensor_split": [1, 2]}"#,
    );
    assert_eq!(
        from("-m m --port 80 -cb").warnings,
        ["-cb: accepted and ignored", "port: ignored, there is no HTTP server"]
    );

    let check = |text: &[u8], code: Code, expected: &str| {
        let error = LoadRequest::parse(text).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(expected), "{error} does not say {expected:?}");
    };
    check(b"", Code::InvalidJson, "got nothing");
    check(b"{}", Code::InvalidRequest, "model: expected the path");
    check(b"  {\"model\": ", Code::InvalidJson, "line 1");
    check(b"[]", Code::InvalidJson, "expected a JSON object, got []");
    check(b"-m \xff", Code::InvalidJson, "not UTF-8");
    check(b"-m m.gguf -c -5", Code::InvalidRequest, "n_ctx: expected a whole number from 0");
    check(b"-m m.gguf -ngl most", Code::InvalidRequest, "n_gpu_layers: expected a whole number from");
    check(b"-m m.gguf -sm diagonal", Code::InvalidRequest, "split_mode: expected one of");
}

const KEYS: [&str; 105] = [
    "model",
    "model_alias",
    "model_draft",
    "n_ctx",
    "n_ctx_draft",
    "n_batch",
    "n_ubatch",
    "n_parallel",
    "kv_unified",
    "n_threads",
    "n_threads_batch",
    "n_threads_draft",
    "prio",
    "cpu_mask",
    "cpu_range",
    "cpu_strict",
    "poll",
    "prio_batch",
    "cpu_mask_batch",
    "cpu_range_batch",
    "cpu_strict_batch",
    "poll_batch",
    "prio_draft",
    "cpu_mask_draft",
    "cpu_range_draft",
    "cpu_strict_draft",
    "poll_draft",
    "prio_batch_draft",
    "cpu_mask_batch_draft",
    "cpu_range_batch_draft",
    "cpu_strict_batch_draft",
    "poll_batch_draft",
    "frame_budget",
    "n_threads_batch_draft",
    "n_gpu_layers",
    "n_gpu_layers_draft",
    "main_gpu",
    "split_mode",
    "tensor_split",
    "n_cpu_moe",
    "n_cpu_moe_draft",
    "override_tensor",
    "override_tensor_draft",
    "fit",
    "fit_margin_mb",
    "fit_ctx",
    "devices",
    "devices_draft",
    "rpc",
    "rpc_timeout_ms",
    "use_mmap",
    "repack",
    "use_mlock",
    "numa",
    "cpu_level",
    "check_tensors",
    "vocab_only",
    "override_kv",
    "flash_attn",
    "cache_type_k",
    "cache_type_v",
    "cache_type_k_draft",
    "cache_type_v_draft",
    "offload_kqv",
    "swa_full",
    "rope_freq_base",
    "rope_freq_scale",
    "rope_scaling",
    "yarn_orig_ctx",
    "yarn_ext_factor",
    "yarn_attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "grp_attn_n",
    "grp_attn_w",
    "ctx_shift",
    "n_keep",
    "n_cache_reuse",
    "embedding",
    "pooling",
    "reranking",
    "lora",
    "chat_template",
    "lookup_cache_static",
    "lookup_cache_dynamic",
    "speculative",
    "draft_vocab",
    "draft_weights",
    "max_queue",
    "cache_dir",
    "cache_dir_mb",
    "cache_ram_mb",
    "mmproj",
    "mmproj_weights",
    "image_min_tokens",
    "image_max_tokens",
    "image_cache_mb",
    "log_level",
    "seed",
    "warmup",
    "hostname",
    "port",
    "public_path",
    "read_timeout",
    "write_timeout",
];

#[test]
fn every_documented_key_is_known() {
    for key in KEYS {
        let request = init(json!({key: null, "model": "m"})).unwrap();
        assert_eq!(request.warnings, Vec::<String>::new(), "{key}");
    }
}

pub fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..600).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-2.0f64..2.0).prop_map(Value::from),
        any::<f64>().prop_map(|x| serde_json::Number::from_f64(x).map_or(Value::Null, Value::Number)),
        "\\PC{0,8}".prop_map(Value::from),
        prop::sample::select(vec!["\0", "none", "auto", "on", "f16", "a=int:1", "h:1", "yarn"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{0,5}|path|scale|type|n_max|fd|offset|length|address", inner, 0..4)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    /// Any values of known keys give a request within llama.cpp's limits, or an error that names a key.
    #[test]
    fn random_values_give_a_valid_request_or_an_error(keys in prop::collection::btree_map(prop::sample::select(KEYS.to_vec()), any_json(), 0..4)) {
        let document: Map<String, Value> = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        match init(Value::Object(document)) {
            Err(error) => {
                let named = KEYS.iter().any(|key| error.message().starts_with(key));
                prop_assert!(named && error.code() == Code::InvalidRequest && error.message().len() < 500, "{}", error);
            }
            Ok(LoadRequest { config, .. }) => {
                for context in [Some(&config.context), config.draft.as_ref().map(|(_, context)| context)].into_iter().flatten() {
                    prop_assert!(1 <= context.n_ubatch && context.n_ubatch <= context.n_batch);
                    prop_assert!((1..=512).contains(&context.n_threads) && (1..=512).contains(&context.n_threads_batch));
                    prop_assert!(context.rope_freq_scale == 0.0 || (1.0 / context.rope_freq_scale).is_normal());
                }
                prop_assert!((1..=256).contains(&config.n_parallel));
                for (key, value) in &config.model.override_kv {
                    prop_assert!((1..=127).contains(&key.len()));
                    prop_assert!(!matches!(value, KvValue::Str(text) if text.len() > 127 || text.contains('\0')));
                }
            }
        }
    }

    #[test]
    fn random_bytes_give_an_init_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = LoadRequest::parse(&bytes);
    }
}
