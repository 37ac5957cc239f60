//! `prompt_logprobs`, and what `model_info` says of a model.

use crate::common::Endpoint::{Foredraft, Plain};
use crate::common::{Requests as _, complete, n, start};
use serde_json::{Value, json};

fn logprobs(entries: &Value) -> Vec<f64> {
    entries.as_array().expect("entries").iter().filter_map(|entry| entry["logprob"].as_f64()).collect()
}

/// Tokens that were generated have the same probabilities when they are sent as a prompt.
#[test]
fn prompt_has_the_probabilities_of_the_completion_that_it_was() {
    let engine = start(json!({"n_ctx": 512, "n_parallel": 2}));
    let request =
        json!({"prompt": "Once upon a time", "n_predict": 100, "temperature": 0, "n_probs": 3, "return_tokens": true});
    let first = complete(&engine, Foredraft, &request);
    let generated = first["tokens"].as_array().expect("tokens").clone();
    let text: Vec<Value> = std::iter::once(json!("Once upon a time")).chain(generated.iter().cloned()).collect();
    for endpoint in [Foredraft, Plain] {
        let again = complete(
            &engine,
            endpoint,
            &json!({"prompt": text, "n_predict": 2, "prompt_logprobs": 3, "temperature": 0}),
        );
        let entries = again["prompt_logprobs"].as_array().expect("entries");
        assert_eq!(entries.len(), n(&again["tokens_evaluated"]));
        assert_eq!((&entries[0]["logprob"], &entries[0]["top_logprobs"]), (&Value::Null, &json!([])));
        let last = &entries[entries.len() - generated.len()..];
        for (entry, token) in last.iter().zip(&generated) {
            assert_eq!(&entry["id"], token);
            assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(3), "{entry}");
        }
        assert_eq!(logprobs(&json!(last)), logprobs(&first["completion_probabilities"]));
        assert_eq!(again["generation_settings"]["prompt_logprobs"], 3);
    }
    // Without it there are none, and the cache is used.
    let plain = complete(&engine, Foredraft, &json!({"prompt": text, "n_predict": 1}));
    assert!(plain["prompt_logprobs"].is_null() && n(&plain["timings"]["cache_n"]) > 50, "{plain}");
    let refused = json!({"prompt": "Once", "prompt_logprobs": 1, "n_beams": 2}).to_string();
    let error = engine.complete_as(Plain, refused.as_bytes()).expect_err("it is refused");
    assert!(error.message().starts_with("prompt_logprobs: not available with n_beams"), "{error}");
}

#[test]
fn model_info_has_sizes_special_tokens_and_metadata() {
    let engine = start(json!({"n_ctx": 512}));
    let info = |request: Value| engine.with_loaded(|loaded| loaded.model_info(request.to_string().as_bytes()));
    let target = info(json!({})).expect("the target's");
    assert_eq!(target["metadata"]["general.architecture"], "llama");
    assert_eq!(target["n_embd"].to_string(), target["metadata"]["llama.embedding_length"].as_str().expect("a text"));
    assert_eq!(target["n_layer"].to_string(), target["metadata"]["llama.block_count"].as_str().expect("a text"));
    assert_eq!(target["chat_template"], target["metadata"]["tokenizer.chat_template"]);
    for special in ["bos", "eos"] {
        assert!(n(&target[special]) < n(&target["n_vocab"]), "{target}");
    }
    assert!(target["eog"].as_array().expect("ids").contains(&target["eos"]), "{target}");
    let draft = info(json!({"model": "draft"})).expect("the draft model's");
    assert!(n(&draft["n_params"]) < n(&target["n_params"]) && draft["n_vocab"] == target["n_vocab"]);
    assert!(info(json!({"model": "other"})).is_err());
}
