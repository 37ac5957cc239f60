//! Embeddings of several texts.

use foredraft::api::JsonEngine;
use foredraft::error::Result;
use serde_json::{Value, json};

use crate::common::{n, start};

fn embed(engine: &JsonEngine, request: &Value) -> Result<Value> {
    engine.with_loaded(|loaded| loaded.embed(request.to_string().as_bytes()))
}

#[test]
fn array_of_texts_has_an_embedding_for_each() {
    let engine = start(json!({"n_ctx": 64, "model_draft": null, "embedding": true}));
    let texts = ["Tom had a red hat.", "Mia"];
    let one = |text: &str| embed(&engine, &json!({"content": text})).expect("an embedding")["embedding"].clone();
    let all = embed(&engine, &json!({"input": texts})).expect("embeddings");
    let data = all["data"].as_array().expect("an array");
    assert_eq!(data.len(), 2);
    for (index, (entry, text)) in data.iter().zip(texts).enumerate() {
        assert_eq!((n(&entry["index"]), &entry["embedding"]), (index, &one(text)), "{text}");
    }
    assert!(n(&all["usage"]["prompt_tokens"]) > 6 && all["usage"]["total_tokens"] == all["usage"]["prompt_tokens"]);
    // One text, and one text as tokens, have the answer of one.
    for input in [json!("Mia"), json!([5, 6, 7])] {
        let answer = embed(&engine, &json!({"input": input})).expect("an embedding");
        assert!(answer["embedding"].is_array() && answer["data"].is_null(), "{answer}");
    }
    assert_eq!(
        embed(&engine, &json!({"input": [[5, 6], "Mia"]})).expect("embeddings")["data"][1]["embedding"],
        one("Mia")
    );
    let parts = embed(&engine, &json!({"content": ["Tom", "Mia"]})).expect("an embedding");
    assert!(parts["warnings"][0].as_str().is_some_and(|text| text.contains("one text with one embedding")), "{parts}");

    let message = |request: Value| embed(&engine, &request).expect_err("an error").message().to_owned();
    assert_eq!(message(json!({"input": ["a"], "content": "a"})), "input: expected either input or content, got both");
    assert!(message(json!({"input": ["a", true]})).starts_with("input[1]: "));
    let long = "Tom had a hat. ".repeat(99);
    let error = embed(&engine, &json!({"input": ["a", long]})).expect_err("an error");
    let overflow = error.overflow().expect("its numbers");
    assert!(error.message().starts_with("input[1]: ") && overflow.n_prompt_tokens > overflow.n_ctx, "{error}");
    let cut = embed(&engine, &json!({"input": ["a", long], "truncate": true})).expect("embeddings");
    assert_eq!(cut["data"].as_array().map(Vec::len), Some(2));
}
