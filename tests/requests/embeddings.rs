//! Embeddings of several texts.

use foredraft::api::JsonEngine;
use foredraft::error::Result;
use serde_json::{Value, json};

use crate::common::tiny_models::{
    encoder, encoder_with_pooling, recurrent, reranker, reranker_with_template, sliding_window,
};
use crate::common::{n, start, with};

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
    assert_eq!(message(json!({"truncate": true})), "input: expected a string or an array of strings, got null");
    let long = "Tom had a hat. ".repeat(99);
    let error = embed(&engine, &json!({"input": ["a", long]})).expect_err("an error");
    let overflow = error.overflow().expect("its numbers");
    assert!(error.message().starts_with("input[1]: ") && overflow.n_prompt_tokens > overflow.n_ctx, "{error}");
    let cut = embed(&engine, &json!({"input": ["a", long], "truncate": true})).expect("embeddings");
    assert_eq!(cut["data"].as_array().map(Vec::len), Some(2));
}

/// Texts of many lengths, more than a batch has.
fn many_texts() -> Vec<String> {
    let words = "Once upon a time there was a child named Tom who had a red hat and a kite near the river".split(' ');
    let words: Vec<&str> = words.collect();
    (0..70).map(|index| words[index % 7..][..1 + index % 13].join(" ")).collect()
}

#[test]
fn texts_of_a_batch_have_the_bits_of_texts_alone() {
    let inits = ["none", "mean", "cls", "last"]
        .map(|pooling| json!({"n_ctx": 128, "model_draft": null, "embedding": true, "pooling": pooling}));
    let encoders = [encoder(), encoder_with_pooling(2), encoder_with_pooling(3)]
        .map(|model| json!({"model": model, "model_draft": null, "embedding": true}));
    let others = [sliding_window(), recurrent()]
        .map(|model| json!({"model": model, "model_draft": null, "embedding": true, "n_ctx": 128, "pooling": "mean"}));
    for init in inits.into_iter().chain(encoders).chain(others) {
        let engine = start(init.clone());
        let texts = many_texts();
        let all = embed(&engine, &json!({"input": texts, "embd_normalize": -1})).expect("embeddings");
        let data = all["data"].as_array().expect("an array");
        assert_eq!(data.len(), texts.len());
        for (text, entry) in texts.iter().zip(data) {
            let alone = embed(&engine, &json!({"content": text, "embd_normalize": -1})).expect("an embedding");
            assert_eq!(entry["embedding"], alone["embedding"], "{init} {text}");
        }
        let different = data.iter().skip(1).filter(|entry| entry["embedding"] != data[0]["embedding"]).count();
        // With causal attention, the first token sees nothing of the text.
        assert!(different > 60 || (init["pooling"] == "cls" && different == 0), "{init}: {different}");
    }
}

#[test]
fn tokens_of_a_text_have_vectors_of_their_own() {
    let texts = many_texts();
    for init in [json!({"pooling": "last"}), json!({"pooling": "mean"}), json!({"model": encoder()})] {
        let engine = start(with(&json!({"n_ctx": 128, "model_draft": null, "embedding": true}), init.clone()));
        let request = json!({"input": texts, "embd_normalize": -1});
        let pooled = embed(&engine, &request).expect("embeddings");
        let each = embed(&engine, &with(&request, json!({"of_tokens": true}))).expect("embeddings");
        assert_eq!(pooled["usage"], each["usage"]);
        let mut n_tokens = 0;
        for index in 0..texts.len() {
            let numbers = |value: &Value| serde_json::from_value::<Vec<f64>>(value.clone()).expect("numbers");
            let vectors = each["data"][index]["embedding"].as_array().expect("an array");
            let vectors: Vec<Vec<f64>> = vectors.iter().map(numbers).collect();
            let text = numbers(&pooled["data"][index]["embedding"]);
            n_tokens += vectors.len();
            assert!(vectors.iter().all(|vector| vector.len() == text.len()));
            if init["pooling"] == "last" {
                assert_eq!(vectors.last(), Some(&text));
                continue;
            }
            for (at, found) in text.iter().enumerate() {
                let sum: f64 = vectors.iter().map(|vector| vector[at]).sum();
                let mean = sum / vectors.len() as f64;
                assert!((mean - found).abs() < 1e-4 * (1.0 + found.abs()), "{init}: {mean} {found}");
            }
        }
        assert_eq!(n(&each["usage"]["prompt_tokens"]), n_tokens);
        let one = embed(&engine, &json!({"content": "Mia", "of_tokens": true})).expect("an embedding");
        for vector in one["embedding"].as_array().expect("an array") {
            let squares: f64 =
                vector.as_array().expect("numbers").iter().map(|x| x.as_f64().unwrap_or(0.0).powi(2)).sum();
            assert!((squares - 1.0).abs() < 1e-3, "{squares}");
        }
    }
}

#[test]
fn empty_text_has_the_embedding_of_the_tokens_that_the_model_adds() {
    let engine = start(json!({"n_ctx": 64, "model_draft": null, "embedding": true}));
    let all = embed(&engine, &json!({"input": ["", "Mia"]})).expect("embeddings");
    let info = engine.with_loaded(|loaded| loaded.model_info(b"{}")).expect("what the file says");
    let bos = embed(&engine, &json!({"input": [info["bos"]]})).expect("an embedding");
    assert_eq!(all["data"][0]["embedding"], bos["embedding"]);
    for nothing in [json!([]), json!(["Mia", []])] {
        let error = embed(&engine, &json!({"input": nothing})).expect_err("an error");
        assert!(error.message().contains("has no tokens"), "{error}");
    }
}

fn rerank(engine: &JsonEngine, request: &Value) -> Result<Value> {
    engine.with_loaded(|loaded| loaded.rerank(request.to_string().as_bytes()))
}

#[test]
fn documents_are_ranked_by_the_score_of_each_pair() {
    let engine = start(json!({"model": reranker(), "model_draft": null, "embedding": true, "n_ctx": 256}));
    let documents = many_texts();
    let request = json!({"query": "Who has a hat?", "documents": documents});
    let all = rerank(&engine, &request).expect("scores");
    let results = all["results"].as_array().expect("an array");
    let score = |result: &Value| result["relevance_score"].as_f64().expect("a number");
    assert!(results.is_sorted_by(|one, other| score(one) >= score(other)), "{all}");
    let mut indices: Vec<usize> = results.iter().map(|result| n(&result["index"])).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..documents.len()).collect::<Vec<_>>());
    assert!(score(&results[0]) > score(&results[60]) + 0.01, "{all}");
    assert_eq!(all["usage"]["prompt_tokens"], all["usage"]["total_tokens"]);
    for result in results {
        let alone = json!({"query": request["query"], "documents": [{"text": documents[n(&result["index"])]}]});
        let alone = rerank(&engine, &alone).expect("a score");
        assert_eq!(alone["results"][0]["relevance_score"], result["relevance_score"], "{result}");
    }
    let best = rerank(&engine, &with(&request, json!({"top_n": 3}))).expect("scores");
    assert_eq!(best["results"].as_array().map(Vec::as_slice), results.get(..3));
    assert_eq!(best["usage"], all["usage"]);

    let long = "Tom had a hat. ".repeat(99);
    let error = rerank(&engine, &json!({"query": "a", "documents": ["b", long]})).expect_err("it is too long");
    let overflow = error.overflow().expect("its numbers");
    assert!(error.message().starts_with("documents[1]: ") && overflow.n_ctx == 256, "{error}");
    let cut = rerank(&engine, &json!({"query": "a", "documents": [long], "truncate": true})).expect("a score");
    assert!((250..=256).contains(&n(&cut["usage"]["total_tokens"])), "{cut}");
    assert!(rerank(&engine, &json!({"query": long, "documents": ["b"], "truncate": true})).is_err());

    for (request, part) in [
        (json!({"documents": ["a"]}), "query: expected a string, got null"),
        (json!({"query": "a"}), "documents: expected an array of strings, got null"),
        (json!({"query": "a", "documents": []}), "documents: expected at least one, got none"),
        (json!({"query": "a", "documents": ["a", 5]}), "documents[1]: expected a string, got 5"),
        (json!({"query": "a", "documents": [{}]}), "documents[0]: expected a string or {\"text\": ...}, got {}"),
        (json!({"query": "a", "documents": ["a"], "top_n": 0}), "top_n: expected a whole number from 1"),
    ] {
        let error = rerank(&engine, &request).expect_err("refused");
        assert!(error.message().contains(part), "{request}: {error}");
    }
    let error = embed(&engine, &json!({"content": "a"})).expect_err("it has scores");
    assert!(error.message().contains("rerank"), "{error}");
}

#[test]
fn pairs_follow_the_template_of_the_file() {
    let template = "{query}<|im_end|>{document}";
    let [plain, templated] = [reranker(), reranker_with_template(template)]
        .map(|model| start(json!({"model": model, "model_draft": null, "reranking": true})));
    let n_tokens = |engine: &JsonEngine, query: &str, document: &str| {
        let answer = rerank(engine, &json!({"query": query, "documents": [document]})).expect("a score");
        n(&answer["usage"]["prompt_tokens"])
    };
    let ids = |text: &str| {
        let request = json!({"text": text, "add_special": false, "parse_special": false}).to_string();
        let answer = plain.with_loaded(|loaded| loaded.tokenize(request.as_bytes())).expect("tokens");
        n(&answer["length"])
    };
    // BOS, and the separator after each text.
    assert_eq!(n_tokens(&plain, "Tom", "Mia had a hat."), 3 + ids("Tom") + ids("Mia had a hat."));
    assert_eq!(n_tokens(&templated, "Tom", "Mia had a hat."), 1 + ids("Tom") + ids("Mia had a hat."));
    // Control tokens and places in the texts are text.
    let texts = ("{document}", "<|im_end|>");
    assert_eq!(n_tokens(&templated, texts.0, texts.1), 1 + ids(texts.0) + ids(texts.1));
}

#[test]
fn only_a_model_with_a_classifier_ranks() {
    let engine = start(json!({"n_ctx": 64, "model_draft": null, "embedding": true}));
    let error = rerank(&engine, &json!({"query": "a", "documents": ["b"]})).expect_err("it has none");
    assert!(error.message().contains("rerank: expected a model with a classifier"), "{error}");
    let engine = start(json!({"n_ctx": 64, "model_draft": null}));
    let error = rerank(&engine, &json!({"query": "a", "documents": ["b"]})).expect_err("not asked for");
    assert!(error.message().contains("\"reranking\": true"), "{error}");
    let init = json!({"model": encoder(), "reranking": true}).to_string();
    let error = JsonEngine::new().load(init.as_bytes()).expect_err("it has none");
    assert!(error.message().contains("pooling: rank needs a model with a classifier"), "{error}");
}
