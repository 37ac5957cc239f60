//! The text functions: tokenize, detokenize, chat templates, embeddings; and models that only support these.

use std::sync::atomic::{AtomicBool, Ordering};

use foredraft::api::JsonEngine;
use foredraft::error::Result;
use serde_json::{Value, json};

use crate::common::Endpoint::Plain;
use crate::common::{Requests as _, model, poll, start, submit, with};
use crate::table::{MODES, base, float, numbers};

fn embedding(engine: &JsonEngine, request: Value) -> Vec<f64> {
    let bytes = request.to_string();
    let answer = engine.with_loaded(|loaded| loaded.embed(bytes.as_bytes()));
    let answer = answer.unwrap_or_else(|error| panic!("{request}: {error}"));
    floats(&answer["embedding"])
}

fn floats(list: &Value) -> Vec<f64> {
    list.as_array().expect("an array").iter().map(float).collect()
}

fn tokenize(engine: &JsonEngine, request: Value) -> Result<Value> {
    let bytes = request.to_string();
    engine.with_loaded(|loaded| loaded.tokenize(bytes.as_bytes()))
}

fn detokenize(engine: &JsonEngine, request: Value) -> Result<Value> {
    let bytes = request.to_string();
    engine.with_loaded(|loaded| loaded.detokenize(bytes.as_bytes()))
}

fn near(a: &[f64], b: &[f64]) {
    let scale = b.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-4 * scale), "{a:?}\n{b:?}");
}

fn tokens_and_back(engine: &JsonEngine) {
    let answer = tokenize(engine, json!({"text": "Tom<|im_end|> é😀"})).expect("tokens");
    let (ids, pieces) = (numbers(&answer["ids"]), answer["pieces"].as_array().expect("pieces"));
    assert_eq!((&answer["success"], &answer["length"], ids[0]), (&json!(true), &json!(ids.len()), 0));
    let bytes: Vec<u8> = pieces
        .iter()
        .flat_map(|piece| match piece {
            Value::String(text) => text.as_bytes().to_vec(),
            bytes => numbers(bytes).into_iter().map(|byte| u8::try_from(byte).expect("a byte")).collect(),
        })
        .collect();
    assert_eq!(String::from_utf8(bytes).as_deref(), Ok("<|endoftext|>Tom<|im_end|> é😀"));
    assert!(pieces.iter().any(Value::is_array), "the emoji is not a token: {answer}");
    let strings = answer["tokens"].as_array().expect("tokens");
    for (text, piece) in strings.iter().zip(pieces) {
        assert!(text.is_string() && (text == piece || piece.is_array() && text == "\u{FFFD}"), "{text} {piece}");
    }
    let end = ids.iter().zip(pieces).find(|(_, piece)| **piece == "<|im_end|>").expect("one token").0;

    let plain = tokenize(engine, json!({"content": "Tom<|im_end|>", "add_special": false, "parse_special": false}));
    let plain = numbers(&plain.expect("tokens")["ids"]);
    assert!(!plain.contains(end) && plain[0] != 0 && plain.len() > 3, "{plain:?}");
    let pieces = tokenize(engine, json!({"content": ["Tom", 5], "with_pieces": true})).expect("tokens");
    assert_eq!(pieces["tokens"][0], json!({"id": 0, "piece": "<|endoftext|>"}));
    assert_eq!(pieces["tokens"].as_array().and_then(|all| all.last()).map(|last| &last["id"]), Some(&json!(5)));

    let text = |request| detokenize(engine, request).expect("text")["content"].clone();
    assert_eq!(text(json!({"tokens": ids})), "<|endoftext|>Tom<|im_end|> é😀");
    assert_eq!(text(json!({"tokens": ids, "special": false})), "Tom é😀");
    assert_eq!(text(json!({"tokens": plain})), "Tom<|im_end|>");
    assert_eq!(text(json!({"tokens": []})), "");
    // The bytes of tokens that are no whole characters.
    let exact = |tokens: &[i64]| detokenize(engine, json!({"tokens": tokens})).expect("text")["bytes"].clone();
    let halves: Vec<Value> = ids.iter().map(|id| exact(&[*id])).filter(|bytes| !bytes.is_null()).collect();
    let joined: Vec<u8> = halves.iter().flat_map(numbers).map(|byte| u8::try_from(byte).expect("a byte")).collect();
    assert!(halves.len() > 1 && "é😀".contains(&*String::from_utf8(joined).expect("whole")), "{halves:?}");
    assert_eq!(exact(&ids), Value::Null);

    let messages = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let render = |request: Value| {
        let bytes = request.to_string();
        engine.with_loaded(|loaded| loaded.apply_template(bytes.as_bytes())).expect("a prompt")["prompt"].clone()
    };
    let turn = "<|im_start|>user\nHi<|im_end|>\n";
    assert_eq!(render(messages.clone()), format!("{turn}<|im_start|>assistant\n"));
    assert_eq!(render(with(&messages, json!({"add_generation_prompt": false}))), turn);
    let own = json!({"chat_template": "{{ messages[0].content }}{{ tools | length }}{{ x }}", "tools": [{}],
        "chat_template_kwargs": {"x": "y"}});
    assert_eq!(render(with(&messages, own)), "Hi1y");
}

#[test]
fn tokenize_detokenize_and_templates_follow_the_documentation() {
    let engine = start(json!({"n_ctx": 64}));
    tokens_and_back(&engine);
    for (request, expected) in [
        (json!({}), "text: expected a string, got null"),
        (json!({"text": 5}), "text: expected a string, or an array of strings and token ids, got 5"),
        (json!({"text": [99999]}), "text[0]: token 99999 is not in the vocabulary of 1536 tokens"),
        (json!({"text": "a", "add_special": 1}), "add_special: expected true or false, got 1"),
        (json!({"text": "a", "with_pieces": "x"}), "with_pieces: expected true or false"),
    ] {
        let error = tokenize(&engine, request.clone()).expect_err("an error");
        assert!(error.message().starts_with(expected), "{request}: {error}");
    }
    for (request, expected) in [
        (json!({}), "tokens: expected an array of token ids, got nothing"),
        (json!({"tokens": [1536]}), "tokens: token 1536 is not in the vocabulary"),
        (json!({"tokens": "a"}), "tokens: expected an array of token ids"),
    ] {
        let error = detokenize(&engine, request.clone()).expect_err("an error");
        assert!(error.message().starts_with(expected), "{request}: {error}");
    }
    let warned = tokenize(&engine, json!({"text": "a", "add_specials": true})).expect("tokens");
    assert_eq!(warned["warnings"], json!(["unknown key \"add_specials\" (did you mean \"add_special\"?)"]));
}

#[test]
fn vocab_only_model_tokenizes_and_nothing_else() {
    let engine = JsonEngine::new();
    let init = json!({"model": model("target"), "vocab_only": true, "log_level": "error"}).to_string();
    engine.load(init.as_bytes()).expect("a vocabulary");
    tokens_and_back(&engine);
    for mode in MODES {
        let request = base(mode).to_string();
        let answers = [
            engine.complete_as(mode.endpoint(), request.as_bytes()),
            engine.submit_as(mode.endpoint(), request.as_bytes()),
            engine.with_loaded(|loaded| loaded.embed(br#"{"content": "a"}"#)),
        ];
        for answer in answers {
            let error = answer.expect_err("the model has no weights");
            assert_eq!(error.message(), "the model was loaded with vocab_only, so it can only tokenize");
        }
    }
}

#[test]
fn embeddings_are_pooled_and_normalized_as_requested() {
    let text = "Tom had a red hat.";
    let [last, mean, first] =
        ["last", "mean", "cls"].map(|pooling| start(json!({"n_ctx": 64, "embedding": true, "pooling": pooling})));
    let ids = numbers(&tokenize(&last, json!({"text": text})).expect("tokens")["ids"]);
    // Attention is causal, so the embedding of a prefix's last token equals that token's embedding in the whole text.
    let each: Vec<Vec<f64>> =
        (1..=ids.len()).map(|n| embedding(&last, json!({"content": ids[..n], "embd_normalize": -1}))).collect();
    let width = each[0].len();
    assert_eq!(width, 256);
    let average: Vec<f64> =
        (0..width).map(|i| each.iter().map(|one| one[i]).sum::<f64>() / each.len() as f64).collect();
    near(&embedding(&mean, json!({"content": text, "embd_normalize": -1})), &average);
    near(&embedding(&first, json!({"prompt": text, "embd_normalize": -1})), &each[0]);
    let raw = embedding(&last, json!({"content": text, "embd_normalize": -1}));
    near(&raw, each.last().expect("one"));

    let norm = |p: f64| raw.iter().map(|x| x.abs().powf(p)).sum::<f64>().powf(1.0 / p);
    let largest = raw.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    for (normalize, norm) in [(0, largest / 32760.0), (1, norm(1.0)), (2, norm(2.0)), (3, norm(3.0))] {
        let expected: Vec<f64> = raw.iter().map(|x| x / norm).collect();
        near(&embedding(&last, json!({"content": text, "embd_normalize": normalize})), &expected);
    }
    let default: Vec<f64> = raw.iter().map(|x| x / norm(2.0)).collect();
    near(&embedding(&last, json!({"content": text})), &default);

    let refused = |request: Value| {
        let bytes = request.to_string();
        last.with_loaded(|loaded| loaded.embed(bytes.as_bytes())).expect_err("an error").message().to_owned()
    };
    assert!(
        refused(json!({"content": "a", "embd_normalize": -2})).starts_with("embd_normalize: expected a whole number")
    );
    for name in ["content", "prompt"] {
        let long = refused(json!({name: "Tom had a hat. ".repeat(99)}));
        assert!(long.starts_with(&format!("{name}: ")) && long.contains("an embedding is made of at most"), "{long}");
    }
    // A text that is too long may lose its end.
    let long = json!({"content": "Tom had a hat. ".repeat(99)});
    let long_ids = numbers(&tokenize(&last, json!({"text": long["content"]})).expect("tokens")["ids"]);
    let truncated = |request: &Value| {
        let mut request = request.clone();
        request["truncate"] = true.into();
        let bytes = request.to_string();
        last.with_loaded(|loaded| loaded.embed(bytes.as_bytes())).expect("an embedding")
    };
    let answer = truncated(&long);
    assert_eq!(answer["tokens_evaluated"], 64);
    near(&floats(&answer["embedding"]), &embedding(&last, json!({"content": long_ids[..64]})));
    let short = truncated(&json!({"content": text}));
    assert_eq!(short["tokens_evaluated"].as_u64(), Some(ids.len() as u64));
    assert_eq!(floats(&short["embedding"]), embedding(&last, json!({"content": text})));
    for nothing in [json!({}), json!({"content": null, "prompt": null, "input": null})] {
        assert_eq!(refused(nothing), "input: expected a string or an array of strings, got null");
    }
    let without = start(json!({"n_ctx": 64}));
    let error = without.with_loaded(|loaded| loaded.embed(br#"{"content": "a"}"#)).expect_err("not asked for");
    assert!(error.message().contains("\"embedding\": true"), "{error}");
}

/// Two threads request embeddings without a pause.
#[test]
fn embeddings_do_not_starve_completions() {
    let engine = start(json!({"embedding": true, "n_parallel": 2}));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let words = json!({"content": "Once upon a time there was a child. ".repeat(20)}).to_string();
                while !done.load(Ordering::Relaxed) {
                    engine.with_loaded(|loaded| loaded.embed(words.as_bytes())).expect("an embedding");
                }
            });
        }
        let request = json!({"prompt": "Once", "n_predict": 60, "ignore_eos": true, "timeout_ms": 600_000});
        let id = submit(&engine, Plain, &request);
        let begin = std::time::Instant::now();
        let mut answer = poll(&engine, Plain, id, 100);
        // A starved completion would not notice its own limit either.
        while answer["finished"] != true && begin.elapsed() < std::time::Duration::from_secs(660) {
            answer = poll(&engine, Plain, id, 100);
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(answer["finished"], true, "{answer}");
        let last = answer["completion_updates"].as_array().and_then(|updates| updates.last()).cloned();
        assert_eq!(last.map(|last| last["stop_type"].clone()), Some(json!("limit")));
    });
}
