//! Embeddings and scores are those of llama.cpp's own decode and pooling.

use std::ffi::CString;

use foredraft::api::JsonEngine;
use llama_cpp_sys_2 as sys;
use serde_json::{Value, json};

use crate::common::tiny_models::{SEPARATOR, encoder, reranker};
use crate::common::{model, start};

/// The first `n` numbers that llama.cpp pools from the tokens of a text.
fn pooled(path: &str, pooling: sys::llama_pooling_type, tokens: &[sys::llama_token], n: usize) -> Vec<f64> {
    let path = CString::new(path).expect("no NUL");
    let mut tokens = tokens.to_vec();
    // SAFETY: the path and the tokens live during the calls, the row is copied before the context is freed, and everything is freed once.
    unsafe {
        let model = sys::llama_model_load_from_file(path.as_ptr(), sys::llama_model_default_params());
        assert!(!model.is_null());
        let mut params = sys::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_ubatch) = (256, 256, 256);
        (params.embeddings, params.pooling_type) = (true, pooling);
        let context = sys::llama_init_from_model(model, params);
        assert!(!context.is_null());
        let n_tokens = i32::try_from(tokens.len()).expect("few tokens");
        assert_eq!(sys::llama_decode(context, sys::llama_batch_get_one(tokens.as_mut_ptr(), n_tokens)), 0);
        let row = sys::llama_get_embeddings_seq(context, 0);
        assert!(!row.is_null());
        let numbers = std::slice::from_raw_parts(row, n).iter().copied().map(f64::from).collect();
        sys::llama_free(context);
        sys::llama_model_free(model);
        numbers
    }
}

fn tokens(engine: &JsonEngine, text: &str, add_special: bool) -> Vec<sys::llama_token> {
    let request = json!({"text": text, "add_special": add_special}).to_string();
    let answer = engine.with_loaded(|loaded| loaded.tokenize(request.as_bytes())).expect("tokens");
    let ids = answer["ids"].as_array().expect("ids").iter().filter_map(Value::as_i64);
    ids.map(|id| sys::llama_token::try_from(id).expect("an id")).collect()
}

fn assert_near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    for (x, y) in found.iter().zip(expected) {
        assert!((x - y).abs() <= 1e-4 * largest, "{what}: {found:?} {expected:?}");
    }
}

#[test]
fn embeddings_are_those_of_llama_cpp() {
    let texts = ["Tom had a red hat.", "Mia", "Once upon a time there was a child who lived near the river."];
    for path in [encoder(), model("target")] {
        for (word, pooling) in [
            ("mean", sys::LLAMA_POOLING_TYPE_MEAN),
            ("cls", sys::LLAMA_POOLING_TYPE_CLS),
            ("last", sys::LLAMA_POOLING_TYPE_LAST),
        ] {
            let init = json!({"model": path, "model_draft": null, "n_ctx": 256, "embedding": true, "pooling": word});
            let engine = start(init);
            let request = json!({"input": texts, "embd_normalize": -1}).to_string();
            let answer = engine.with_loaded(|loaded| loaded.embed(request.as_bytes())).expect("embeddings");
            for (text, entry) in texts.iter().zip(answer["data"].as_array().expect("an array")) {
                let found: Vec<f64> =
                    entry["embedding"].as_array().expect("numbers").iter().filter_map(Value::as_f64).collect();
                let expected = pooled(&path, pooling, &tokens(&engine, text, true), found.len());
                assert_near(&found, &expected, &format!("{path} {word} {text}"));
            }
        }
    }
}

#[test]
fn scores_are_those_of_llama_cpp() {
    let path = reranker();
    let engine = start(json!({"model": path, "model_draft": null, "n_ctx": 256, "reranking": true}));
    let (query, documents) = ("Who has a hat?", ["Tom had a red hat.", "", "Mia lived near the river."]);
    let request = json!({"query": query, "documents": documents}).to_string();
    let answer = engine.with_loaded(|loaded| loaded.rerank(request.as_bytes())).expect("scores");
    let separator = [sys::llama_token::try_from(SEPARATOR).expect("an id")];
    for result in answer["results"].as_array().expect("an array") {
        let index = usize::try_from(result["index"].as_u64().expect("an index")).expect("small");
        let document = tokens(&engine, documents[index], false);
        let pair = [&tokens(&engine, query, true)[..], &separator, &document, &separator].concat();
        let expected = pooled(&path, sys::LLAMA_POOLING_TYPE_RANK, &pair, 1);
        assert_near(&[result["relevance_score"].as_f64().expect("a score")], &expected, documents[index]);
    }
}
