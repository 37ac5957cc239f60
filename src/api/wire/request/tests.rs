use std::collections::HashSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api::wire::fields::parse_object;
use crate::api::wire::load::tests::any_json;
use crate::error::Code;
use crate::llama::Token;
use crate::sampling::MirostatVersion;

/// Reads a request, which gets a prompt if it has none.
fn read_with(
    document: &Map<String, Value>,
    speculates_if_asked: bool,
    defaults: &RequestDefaults,
) -> Result<CompletionRequest> {
    let mut document = document.clone();
    if !PROMPT_KEYS.iter().any(|key| document.get(*key).is_some_and(|value| !value.is_null())) {
        document.insert("prompt".to_owned(), "".into());
    }
    let translation = Translation { speculates_if_asked, ..Translation::default() };
    let arguments = RequestArguments { translation, ..RequestArguments::default() };
    CompletionRequest::from_object(&document, defaults, arguments)
}

pub(super) fn read(document: &Value) -> Result<CompletionRequest> {
    read_with(document.as_object().unwrap(), true, &RequestDefaults::default())
}

pub(super) fn request(document: Value) -> CompletionRequest {
    let request = read(&document).unwrap_or_else(|error| panic!("{document}: {error}"));
    assert_eq!(request.warnings, Vec::<String>::new(), "{document}");
    request
}

/// Checks that a document gives the default request with this change.
pub(super) fn check(document: Value, change: impl FnOnce(&mut CompletionRequest)) {
    let mut expected = request(json!({"seed": 1}));
    change(&mut expected);
    let mut document = document;
    if document.get("seed").is_none() {
        document["seed"] = json!(1);
    }
    assert_eq!(request(document.clone()), expected, "{document}");
}

pub(super) fn check_error(document: Value, expected: &str) {
    let error = read(&document).expect_err(&document.to_string());
    assert_eq!(error.code(), Code::InvalidRequest);
    assert!(error.message().contains(expected), "{document}: {error} does not say {expected:?}");
}

#[test]
fn defaults_match_the_old_server() {
    let CompletionRequest { sampling: s, inputs, .. } = &request(json!({}));
    assert_eq!(inputs.all[0].prompt, Prompt::Text(vec![Piece::Text(String::new())]));
    assert_eq!((inputs.all.len(), inputs.listed), (1, false));
    assert_eq!((s.temperature, s.top_k, s.top_p, s.tfs_z, s.typical_p), (0.8, 40, 0.95, 1.0, 1.0));
    assert_eq!((s.repeat_last_n, s.repeat_penalty, s.penalize_nl, s.mirostat), (64, 1.1, true, MirostatVersion::Off));
    assert_eq!((s.presence_penalty, s.frequency_penalty, s.mirostat_tau, s.mirostat_eta), (0.0, 0.0, 5.0, 0.1));
    assert_eq!(
        (s.min_p, s.xtc_probability, s.dry.multiplier, s.dynatemp_range, s.min_keep, s.n_probs),
        (0.0, 0.0, 0.0, 0.0, 0, 0)
    );
    check(json!({}), |r| {
        assert_eq!(
            (r.options.n_predict, r.options.n_keep, r.options.slot, r.options.timeout),
            (None, Some(0), None, None)
        );
        assert_eq!(
            (
                r.options.cache_prompt,
                r.options.special,
                r.reply.return_tokens,
                r.reply.timings_per_token,
                r.reply.debug,
                r.ignore_eos
            ),
            (true, false, false, false, false, false)
        );
        assert_eq!((&r.options.stop, &r.grammar, &r.logit_bias, &r.reply.tag), (&vec![], &None, &vec![], &None));
        assert!(!r.speculative.report);
    });
    // null counts as absent for every field except `tag`, which is returned unchanged.
    let nulls: Map<String, Value> = KEYS.iter().map(|key| (key.to_string(), Value::Null)).collect();
    let (mut nothing, mut null) = (request(json!({})), request(Value::Object(nulls)));
    assert!(nothing.seed_is_drawn);
    (nothing.sampling.seed, null.sampling.seed) = (0, 0);
    assert_eq!(null.reply.tag.take(), Some(Value::Null));
    assert_eq!(nothing, null);
}

#[test]
fn other_fields_are_parsed() {
    check(json!({"stop": ["a", "", "b"]}), |r| r.options.stop = vec!["a".into(), "b".into()]);
    check(json!({"stop": "a"}), |r| r.options.stop = vec!["a".into()]);
    check(json!({"stop": ""}), |_| ());
    check(json!({"grammar": "root ::= \"a\""}), |r| r.grammar = Some(RequestGrammar::Gbnf("root ::= \"a\"".into())));
    check(json!({"grammar": ""}), |_| ());
    check(json!({"n_predict": 5}), |r| r.options.n_predict = Some(5));
    check(json!({"n_predict": 0}), |r| r.options.n_predict = Some(0));
    check(json!({"max_tokens": 5}), |r| r.options.n_predict = Some(5));
    check(json!({"n_keep": -1}), |r| r.options.n_keep = None);
    check(json!({"n_keep": 7}), |r| r.options.n_keep = Some(7));
    check(json!({"cache_prompt": false, "stream": true}), |r| r.options.cache_prompt = false);
    check(json!({"special": true, "stream": false}), |r| r.options.special = true);
    check(json!({"return_tokens": true, "timings_per_token": true}), |r| {
        (r.reply.return_tokens, r.reply.timings_per_token) = (true, true)
    });
    check(json!({"__debug": true, "ignore_eos": true}), |r| (r.reply.debug, r.ignore_eos) = (true, true));
    check(json!({"id_slot": 3}), |r| r.options.slot = Some(3));
    check(json!({"id_slot": -1, "timeout_ms": 0}), |_| ());
    check(json!({"session_load": "a.bin"}), |r| r.options.session_load = Some("a.bin".into()));
    check(json!({"session_save": "b.bin", "session_load": ""}), |r| r.options.session_save = Some("b.bin".into()));
    check(json!({"n_cache_reuse": 256, "seed_position": 7}), |r| {
        (r.options.n_cache_reuse, r.options.seed_position) = (256, Some(7))
    });
    check(json!({"timeout_ms": 1500}), |r| r.options.timeout = Some(Duration::from_millis(1500)));
    check(json!({"conversation": "Mia"}), |r| r.options.conversation = Some("Mia".into()));
    check(json!({"priority": -10, "deadline_ms": 250}), |r| {
        (r.options.priority, r.options.deadline) = (-10, Some(Duration::from_millis(250)))
    });
    check(json!({"priority": null, "deadline_ms": null}), |_| ());
    check(json!({"lora": [{"id": 1, "scale": -0.5}, {"id": 0, "scale": 2}]}), |r| {
        r.lora = Some(vec![(1, -0.5), (0, 2.0)])
    });
    check(json!({"lora": []}), |r| r.lora = Some(vec![]));
    check(json!({"t_max_predict_ms": 250}), |r| r.options.t_max_predict = Some(Duration::from_millis(250)));
    check(json!({"t_max_predict_ms": 0}), |_| ());
    check(json!({"t_max_predict_ms": -1}), |_| ());
    check(json!({"post_sampling_probs": true}), |r| r.options.post_sampling_probs = true);
    check(json!({"return_progress": true}), |r| r.options.progress = true);
    check(json!({"ctx_shift": false}), |r| r.options.ends_when_full = true);
    check(json!({"ctx_shift": true}), |_| ());
    check(json!({"prompt_logprobs": 0}), |r| r.options.prompt_probs = Some(0));
    check(json!({"response_fields": ["content", "timings/prompt_n"]}), |r| {
        r.reply.response_fields = vec!["content".into(), "timings/prompt_n".into()]
    });
    check(json!({"response_fields": []}), |_| ());
    check(json!({"tag": {"a": [1]}}), |r| r.reply.tag = Some(json!({"a": [1]})));
    check(json!({"tag": false}), |r| r.reply.tag = Some(json!(false)));
    check(json!({"n_ctx": 4096, "model": "m.gguf"}), |_| ());

    check_error(json!({"stop": ["a", 5]}), "stop[1]: expected a string, got 5");
    check_error(json!({"stop": {}}), "stop: expected an array of strings, got {}");
    check_error(json!({"grammar": "a\0b"}), "grammar: expected a string without NUL");
    check_error(json!({"grammar": {}}), "grammar: expected a string, got {}");
    check_error(json!({"json_schema": 5}), "json_schema: expected an object, or a string that contains one, got 5");
    check_error(
        json!({"json_schema": {"type": "null"}, "grammar": "root ::= \"a\""}),
        "json_schema: expected either json_schema or grammar, got both",
    );
    check_error(json!({"n_predict": -2}), "n_predict: expected a whole number from -1 to 2147483647, got -2");
    check_error(json!({"n_keep": 1.5}), "n_keep");
    check_error(json!({"id_slot": -2}), "id_slot");
    check_error(json!({"session_load": true}), "session_load: expected a string, got true");
    check_error(json!({"session_save": "a\0"}), "session_save: expected a string without NUL");
    check_error(json!({"n_cache_reuse": -1}), "n_cache_reuse: expected a whole number from 0 to 2147483647, got -1");
    check_error(json!({"seed_position": -1}), "seed_position");
    check_error(json!({"timeout_ms": u64::MAX}), "timeout_ms: expected a whole number");
    let name = "conversation: expected a string of 1 to 256 bytes without control characters, got";
    for wrong in [json!(""), json!("a".repeat(257)), json!("a\nb"), json!(7), json!([])] {
        check_error(json!({"conversation": wrong}), name);
    }
    check_error(json!({"priority": "high"}), "priority: expected a whole number from -10 to 10, got \"high\"");
    check_error(json!({"priority": 11}), "priority: expected a whole number from -10 to 10, got 11");
    check_error(json!({"deadline_ms": 0}), "deadline_ms: expected a whole number from 1 to 31536000000, got 0");
    check_error(json!({"lora": {"id": 0}}), "lora: expected an array of");
    check_error(json!({"lora": [{"id": 0}]}), "lora[0]: expected {\"id\", \"scale\"}, got {\"id\":0}");
    check_error(json!({"lora": [{"id": -1, "scale": 1}]}), "lora[0].id: expected a whole number from 0");
    check_error(json!({"lora": [{"id": 0, "scale": 1e5}]}), "lora[0].scale: expected a number from -1000 to 1000");
    check_error(json!({"t_max_predict_ms": -2}), "t_max_predict_ms: expected a whole number from -1");
    check_error(json!({"post_sampling_probs": 1}), "post_sampling_probs: expected true or false, got 1");
    check_error(json!({"ctx_shift": 1}), "ctx_shift: expected true or false");
    check_error(json!({"prompt_logprobs": -1}), "prompt_logprobs: expected a whole number from 0 to");
    check_error(json!({"return_progress": "x"}), "return_progress: expected true or false");
    check_error(json!({"response_fields": "content"}), "response_fields: expected an array of names, got \"content\"");
    check_error(json!({"response_fields": [1]}), "response_fields[0]: expected a string, got 1");
    check_error(json!({"stream": 1}), "stream: expected true or false, got 1");
    check_error(json!({"speculative": {"n_max": 65}}), "speculative.n_max");
}

#[test]
fn logit_bias_forms_are_parsed() {
    let token = |id, bias| LogitBias { target: BiasTarget::Token(id), bias };
    let text = |text: &str, bias| LogitBias { target: BiasTarget::Text(text.into()), bias };
    let off = f32::NEG_INFINITY;
    let check = |value: Value, entries: Vec<LogitBias>| check(json!({"logit_bias": value}), |r| r.logit_bias = entries);
    check(json!([]), vec![]);
    check(json!({}), vec![]);
    check(
        json!([[15043, 1.0], [7, false], ["Hello, World!", -0.5]]),
        vec![token(15043, 1.0), token(7, off), text("Hello, World!", -0.5)],
    );
    check(json!([["7", 1]]), vec![text("7", 1.0)]);
    check(json!([{"token": 7, "bias": 2}]), vec![token(7, 2.0)]);
    check(json!({"7": 2, "x": false}), vec![token(7, 2.0), text("x", off)]);
    check_error(json!({"logit_bias": "a"}), "logit_bias: expected an array of [token, bias], or an object, got \"a\"");
    check_error(json!({"logit_bias": [5]}), "logit_bias[0]: expected [token, bias], got 5");
    check_error(json!({"logit_bias": [[1, 2, 3]]}), "logit_bias[0]: expected [token, bias]");
    check_error(json!({"logit_bias": [{"token": 1}]}), "logit_bias[0]: expected [token, bias]");
    check_error(json!({"logit_bias": [[-1, 2]]}), "logit_bias[0]: expected a whole number from 0");
    check_error(json!({"logit_bias": [[1, true]]}), "logit_bias[0]: expected a number or false, got true");
    check(json!([[1, null], {"token": 2, "bias": null}]), vec![token(1, off), token(2, off)]);
    check_error(json!({"logit_bias": {"1": null}}), "logit_bias.\"1\": expected a number or false, got null");
    check_error(json!({"logit_bias": [[[1], 1]]}), "logit_bias[0]: expected a token id or a string, got [1]");
    check_error(json!({"logit_bias": [["a\0", 1]]}), "logit_bias[0]: expected a string without NUL");
    check_error(json!({"logit_bias": [[1, 1e30]]}), "logit_bias[0]: expected a number from -1000000000 to 1000000000");
    check_error(json!({"logit_bias": {"-5": 1}}), "logit_bias.\"-5\": expected a whole number from 0");
    check_error(json!({"logit_bias": {"x": "y"}}), "logit_bias.\"x\": expected a number or false, got \"y\"");
}

#[test]
fn prediction_forms_are_parsed() {
    let check = |value: Value, expected: Option<&str>| {
        let r = request(json!({"prompt": "x", "prediction": value}));
        assert_eq!(r.prediction.as_deref(), expected);
    };
    check(json!(null), None);
    check(json!({}), None);
    check(json!({"type": "content", "content": ""}), None);
    check(json!({"type": "content", "content": "a b"}), Some("a b"));
    check(json!({"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}), Some("a b"));
    for wrong in [json!("a"), json!({"content": 1}), json!({"type": "image", "content": "a"}), json!({"content": [{}]})]
    {
        check_error(json!({"prompt": "x", "prediction": wrong}), "prediction: expected");
    }
}

#[test]
fn unknown_keys_are_warnings() {
    let check = |document: Value, expected: &str| assert_eq!(read(&document).unwrap().warnings, [expected]);
    check(json!({"temprature": 1}), r#"unknown key "temprature" (did you mean "temperature"?)"#);
    check(json!({"n_predicts": 1}), r#"unknown key "n_predicts" (did you mean "n_predict"?)"#);
    check(
        json!({"speculative": {"pmin": 0.5}}),
        r#"unknown key "speculative.pmin" (did you mean "speculative.p_min"?)"#,
    );
    check(json!({"frobnicate": 1}), r#"unknown key "frobnicate""#);
}

#[test]
fn second_spelling_of_a_key_is_not_used_and_a_warning() {
    let check = |document: Value, used: Value, expected: &str| {
        let given = read(&document).unwrap();
        assert_eq!(given.warnings, [expected], "{document}");
        assert_eq!(CompletionRequest { warnings: Vec::new(), ..given }, request(used), "{document}");
    };
    check(
        json!({"temp": 0.5, "temperature": 1.5, "seed": 1}),
        json!({"temperature": 1.5, "seed": 1}),
        "temp: not used, because temperature is given, too",
    );
    check(
        json!({"max_tokens": 5, "n_predict": -1, "seed": 1}),
        json!({"seed": 1}),
        "max_tokens: not used, because n_predict is given, too",
    );
    check(
        json!({"n": 3, "n_cmpl": 2, "seed": 1}),
        json!({"n_cmpl": 2, "seed": 1}),
        "n: not used, because n_cmpl is given, too",
    );
}

#[test]
fn defaults_of_the_load_apply_to_requests() {
    let seed = |document: Value, loaded: Option<u32>| {
        let defaults = RequestDefaults { seed: loaded, ..RequestDefaults::default() };
        read_with(document.as_object().unwrap(), true, &defaults).unwrap().sampling.seed
    };
    assert_eq!(seed(json!({}), Some(7)), 7);
    assert_eq!(seed(json!({"seed": 0}), Some(7)), 0);
    // Drawn seeds all differ, except with a probability of 1 in 860,000.
    let drawn =
        |document: Value, loaded| (0..100).map(|_| seed(document.clone(), loaded)).collect::<HashSet<u32>>().len();
    assert!(drawn(json!({}), None) >= 99);
    assert!(drawn(json!({"seed": -1}), Some(7)) >= 99);
    assert!(drawn(json!({"seed": u32::MAX}), Some(7)) >= 99);

    let n_keep = |document: Value, loaded: Option<usize>| {
        let defaults = RequestDefaults { n_keep: loaded, ..RequestDefaults::default() };
        let request = read_with(document.as_object().unwrap(), true, &defaults).unwrap();
        (request.options.n_keep, request.warnings.len())
    };
    assert_eq!(n_keep(json!({}), None), (None, 0));
    assert_eq!(n_keep(json!({"n_keep": 3}), None), (Some(3), 0));
}

#[test]
fn arguments_beside_the_text_are_used() {
    let translation = Translation {
        warnings: vec!["top_p: 2 is used as 1".to_owned()],
        cuts_begun_stop: true,
        ..Translation::default()
    };
    let elapsed = Duration::from_millis(7);
    let isolated = IsolatedArguments { drawn_seed: Some(5), elapsed, ..IsolatedArguments::default() };
    let arguments = RequestArguments { translation, isolated };
    let read = |document: Value| {
        let object = document.as_object().unwrap();
        CompletionRequest::from_object(object, &RequestDefaults::default(), arguments.clone()).unwrap()
    };
    let request = read(json!({"prompt": "a", "nonsense": 1, "timeout_ms": 900}));
    assert_eq!(request.warnings.first(), arguments.translation.warnings.first(), "{:?}", request.warnings);
    assert_eq!((request.warnings.len(), request.options.cuts_begun_stop), (2, true));
    assert_eq!((request.sampling.seed, request.seed_is_drawn, request.options.elapsed), (5, true, elapsed));
    let given = read(json!({"prompt": "a", "seed": 3}));
    assert_eq!((given.sampling.seed, given.seed_is_drawn), (3, false));
}

/// Keys that have been private, and are no keys.
#[test]
fn no_key_is_private() {
    for key in ["resume", "delivered", "number", "id_seed", "seed_is_drawn", "translation", "warnings"] {
        for document in [json!({format!("__{key}"): [[1]]}), json!({format!("__{key}e"): true})] {
            let request = read(&document).unwrap_or_else(|error| panic!("{document}: {error}"));
            let [warning] = request.warnings.as_slice() else { panic!("{document}: {:?}", request.warnings) };
            assert!(warning.contains("unknown") && !warning.contains("did you mean \"__"), "{warning}");
            assert_eq!(request.isolated, IsolatedArguments::default());
        }
    }
}

#[test]
fn alternatives_in_openai_form_are_counted() {
    let chat = |fields: Value| {
        let mut document = json!({"messages": [{"role": "user", "content": "a"}]});
        document.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let request = read(&document).unwrap_or_else(|error| panic!("{document}: {error}"));
        (request.chat.unwrap().logprobs, request.sampling.n_probs, request.warnings)
    };
    for (fields, n_top, n_probs) in [
        (json!({"logprobs": true}), Some(0), 1),
        (json!({"logprobs": true, "top_logprobs": 0}), Some(0), 1),
        (json!({"logprobs": true, "top_logprobs": 3}), Some(3), 3),
        (json!({"logprobs": true, "top_logprobs": 3, "n_probs": 2}), Some(3), 3),
        (json!({"logprobs": true, "top_logprobs": 2, "n_probs": 5}), Some(2), 5),
        (json!({"logprobs": false, "top_logprobs": 0, "n_probs": 2}), None, 2),
    ] {
        assert_eq!(chat(fields.clone()), (n_top, n_probs, vec![]), "{fields}");
    }
    let warning = "top_logprobs: ignored without logprobs".to_owned();
    assert_eq!(chat(json!({"top_logprobs": 3})), (None, 0, vec![warning]));
    let without_messages = read(&json!({"prompt": "a", "top_logprobs": 3})).unwrap();
    assert_eq!(without_messages.warnings, ["top_logprobs: ignored without messages"]);
    check_error(json!({"top_logprobs": 21}), "top_logprobs: expected a whole number from 0 to 20, got 21");
}

#[test]
fn only_the_assistants_message_is_continued() {
    let with_last = |role: &str, value: Value| {
        let messages = json!([{"role": "user", "content": "a"}, {"role": role, "content": "b"}]);
        json!({"messages": messages, "continue_final_message": value})
    };
    for value in [json!(true), json!("content"), json!("reasoning_content")] {
        request(with_last("assistant", value.clone()));
        let expected = "continue_final_message: expected the last message to be the assistant's, got the role \"user\"";
        check_error(with_last("user", value), expected);
    }
    request(with_last("user", json!(false)));
}

#[test]
fn several_completions_get_consecutive_seeds() {
    check(json!({"n_cmpl": 3}), |r| r.n_cmpl = 3);
    check(json!({"n": 3}), |r| r.n_cmpl = 3);
    check_error(json!({"n_cmpl": 0}), "n_cmpl: expected a whole number from 1 to 65536, got 0");
    check_error(json!({"n_cmpl": "two"}), "n_cmpl: expected a whole number");
    let seeds = |document: Value| {
        let request = request(document);
        let seeds: Vec<u32> = (0..4).map(|number| request.seed(number)).collect();
        (request.sampling.seed, seeds)
    };
    assert_eq!(seeds(json!({"n_cmpl": 2, "seed": 7})).1, [7, 8, 7, 8]);
    assert_eq!(seeds(json!({"n_cmpl": 2, "seed": u32::MAX - 1})).1, [u32::MAX - 1, 0, u32::MAX - 1, 0]);
    let (drawn, all) = seeds(json!({"n_cmpl": 2}));
    assert_eq!((all[0], all.iter().collect::<HashSet<_>>().len()), (drawn, 4));
}

#[test]
fn generation_settings_report_every_field() {
    let request = request(json!({"prompt": "a", "temperature": 0.7, "seed": 5, "stop": ["x"], "n_predict": 9,
        "mirostat": 2, "samplers": "kt", "grammar": "root ::= \"a\"", "speculative": {"n_max": 4}}));
    let used = SamplingSettings { logit_bias: vec![(3, f32::NEG_INFINITY), (9, 0.1)], ..request.sampling.clone() };
    let values = UsedValues { streams: true, ignores_eos: true, bans_as_null: false };
    let settings = generation_settings(&request, &used, values, 4096, "alias");
    let expected = r#"{
        "n_ctx": 4096, "model": "alias", "seed": 5, "temp": 0.7, "temperature": 0.7,
        "dynatemp_range": 0.0, "dynatemp_exponent": 1.0,
        "top_k": 40, "top_p": 0.95, "min_p": 0.0, "tfs_z": 1.0, "typical_p": 1.0, "top_n_sigma": -1.0,
        "xtc_probability": 0.0, "xtc_threshold": 0.1,
        "dry_multiplier": 0.0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n", ":", "\"", "*"],
        "repeat_last_n": 64, "repeat_penalty": 1.1, "presence_penalty": 0.0, "frequency_penalty": 0.0, "penalize_nl": true,
        "mirostat": 2, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0, "adaptive_decay": 0.9,
        "samplers": ["top_k", "temperature"], "min_keep": 0, "n_probs": 0,
        "logit_bias": [[3, false], [9, 0.1]], "ignore_eos": true, "stop": ["x"], "special": false, "choices": null, "json_schema": null, "property_order": "schema", "additional_properties": false, "grammar": "root ::= \"a\"",
        "logits_callback": false, "n_predict": 9, "ctx_shift": true, "n_beams": 0, "n_keep": 0, "seed_position": 0, "parse_special": true, "on_overflow": "truncate", "cache_prompt": true, "n_cache_reuse": 0, "id_slot": -1, "conversation": null, "timeout_ms": 0, "priority": 0, "deadline_ms": null,
        "stream": true,
        "return_tokens": false, "timings_per_token": false, "t_max_predict_ms": 0, "post_sampling_probs": false,
        "return_progress": false, "prompt_logprobs": null, "response_fields": [], "lora": [],
        "grammar_lazy": false, "grammar_triggers": [], "grammar_prefix": "", "preserved_tokens": [], "generation_prompt": "",
        "reasoning_budget_start_tag": "", "reasoning_budget_end_tags": [], "reasoning_budget_tokens": -1, "reasoning_budget_message": "",
        "speculative": {"type": "auto", "n_draft": 16, "n_max": 4, "n_max_text": 4, "n_min": 0, "p_min": 0.0, "n_branches": 1, "p_split": 0.1, "verify": "coupled", "adaptive": true,
            "suffix_depth": 5, "suffix_factor": 4.0, "suffix_p_min": 0.1,
            "lookup_cache_static": null, "lookup_cache_dynamic": null, "model": "target", "compare": false}
    }"#;
    assert_eq!(settings, Value::Object(parse_object(expected.as_bytes()).unwrap()));
}

const KEYS: [&str; 104] = [
    "logits_callback",
    "choices",
    "functions",
    "function_call",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_format",
    "reasoning_budget_tokens",
    "reasoning_budget_message",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tags",
    "response_format",
    "continue_final_message",
    "logprobs",
    "top_logprobs",
    "max_completion_tokens",
    "grammar_lazy",
    "grammar_triggers",
    "grammar_prefix",
    "preserved_tokens",
    "generation_prompt",
    "special",
    "prompt",
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "parse_special",
    "on_overflow",
    "prompts",
    "n_predict",
    "max_tokens",
    "temperature",
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "tfs_z",
    "typical_p",
    "top_n_sigma",
    "dynatemp_range",
    "dynatemp_exponent",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "penalize_nl",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "samplers",
    "min_keep",
    "seed",
    "n_keep",
    "ignore_eos",
    "logit_bias",
    "stop",
    "n_probs",
    "post_sampling_probs",
    "grammar",
    "json_schema",
    "property_order",
    "additional_properties",
    "n_beams",
    "cache_prompt",
    "id_slot",
    "n_cmpl",
    "t_max_predict_ms",
    "return_tokens",
    "timings_per_token",
    "return_progress",
    "response_fields",
    "lora",
    "stream",
    "__debug",
    "input_prefix",
    "input_suffix",
    "input_extra",
    "session_load",
    "session_save",
    "seed_position",
    "n_cache_reuse",
    "speculative",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "speculative.type",
    "prediction",
    "timeout_ms",
    "conversation",
    "priority",
    "deadline_ms",
    "tag",
    "model",
];

/// Values that fields are likely to accept, and arbitrary ones.
fn likely() -> impl Strategy<Value = Value> {
    prop_oneof![
        any_json(),
        (0.0f64..1.0).prop_map(Value::from),
        (0i64..10).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!(["top_k", "temp"])),
        Just(json!([[1, 0.5], [2, false]])),
        Just(json!([{"role": "user", "content": "a"}])),
    ]
}

proptest! {
    /// Any values of known fields give a request, or an error that names the field.
    #[test]
    fn random_values_give_a_request_or_an_error_naming_the_field(
        key in prop::sample::select(KEYS.to_vec()),
        value in likely(),
    ) {
        match read(&json!({key: value})) {
            Ok(request) => prop_assert!(request.warnings.iter().all(|warning| warning.contains(key.split('.').next().unwrap())), "{:?}", request.warnings),
            Err(error) => {
                prop_assert!(error.message().starts_with(key.split('.').next().unwrap()), "{}", error);
                prop_assert!(error.code() == Code::InvalidRequest && error.message().len() < 600);
            }
        }
    }

    /// `generation_settings`, sent back with the same prompt, give the same request.
    #[test]
    fn generation_settings_parse_back_to_the_same_request(
        keys in prop::collection::btree_map(prop::sample::select(KEYS.to_vec()), likely(), 0..20),
        speculative in any::<bool>(),
        bias in prop::collection::btree_map(0i32..1000, -100.0f32..100.0, 0..4),
        init_seed in any::<Option<u32>>(),
    ) {
        let read = |given: &Map<String, Value>, defaults: &RequestDefaults| read_with(given, !speculative, defaults);
        // Changed defaults of the load must not apply a second time.
        let defaults = RequestDefaults { seed: init_seed, n_keep: Some(3), ..RequestDefaults::default() };
        // Only values that are valid together.
        let mut given = Map::new();
        for (key, value) in keys {
            given.insert(key.into(), value);
            if read(&given, &defaults).is_err() {
                given.remove(key);
            }
        }
        let first = read(&given, &defaults).unwrap();
        let used = SamplingSettings { logit_bias: bias.into_iter().collect(), ..first.sampling.clone() };

        let values = UsedValues { streams: true, ignores_eos: first.ignore_eos, bans_as_null: speculative };
        let text = generation_settings(&first, &used, values, 512, "m").to_string();
        let mut fed_back = parse_object(text.as_bytes()).unwrap();
        let given = first.inputs.all[0].given.clone();
        if !given.is_null() {
            fed_back.insert("prompt".into(), given);
        }
        let again = read(&fed_back, &RequestDefaults::default()).unwrap();

        let is_new = |warning: &&String| !first.warnings.contains(warning);
        prop_assert_eq!(again.warnings.iter().find(is_new), None);
        let resolved: Vec<(Token, f32)> = again.logit_bias.iter().map(|entry| match entry.target {
            BiasTarget::Token(token) => (token, entry.bias),
            BiasTarget::Text(_) => (-1, 0.0),
        }).collect();
        prop_assert_eq!(SamplingSettings { logit_bias: resolved, ..again.sampling.clone() }, used);
        // Everything else, except what no setting reports.
        let expected = CompletionRequest {
            sampling: again.sampling.clone(),
            logit_bias: again.logit_bias.clone(),
            // See above.
            warnings: again.warnings.clone(),
            inputs: again.inputs.clone(),
            chat: None,
            n_cmpl: 1,
            seed_is_drawn: false,
            lora: again.lora.clone(),
            reply: Reply { tag: None, debug: false, ..first.reply },
            options: RequestOptions {
                session_load: None,
                session_save: None,
                seed_position: Some(first.options.seed_position.unwrap_or(0)),
                ..first.options
            },
            ..first
        };
        prop_assert_eq!(again, expected);
    }
}
