//! `generation_settings`: every setting as used, in the form of a request.

use std::time::Duration;

use serde_json::{Value, json};

use super::{CompletionRequest, sampling};
use crate::api::fields::shortest;
use crate::sampling::Settings;

/// Every setting of `request` as used, under the names that requests have, and the old server's. With the
/// same prompt added, it is a request for the same text: the seed is the one drawn.
///
/// `used` is the request's sampling with `logit_bias` filled in by token; `n_ctx` and `model` are the engine's.
pub fn generation_settings(request: &CompletionRequest, used: &Settings, n_ctx: u32, model: &str) -> Value {
    let mut settings = sampling::report(used);
    let bias: Vec<Value> = used
        .logit_bias
        .iter()
        .map(|(token, bias)| json!([token, if *bias == f32::NEG_INFINITY { json!(false) } else { shortest(*bias) }]))
        .collect();
    let others = [
        ("n_ctx", json!(n_ctx)),
        ("model", json!(model)),
        ("seed", json!(used.seed)),
        ("seed_position", json!(request.seed_position.unwrap_or(0))),
        ("logit_bias", Value::Array(bias)),
        ("ignore_eos", json!(request.ignore_eos)),
        ("stop", json!(request.stop)),
        ("json_schema", request.json_schema.clone().unwrap_or(Value::Null)),
        ("grammar", json!(request.grammar.as_deref().unwrap_or(""))),
        ("n_predict", count(request.n_predict)),
        ("n_beams", json!(request.n_beams)),
        ("n_keep", count(request.n_keep)),
        ("cache_prompt", json!(request.cache_prompt)),
        ("n_cache_reuse", json!(request.n_cache_reuse)),
        ("id_slot", count(request.id_slot)),
        ("timeout_ms", milliseconds(request.timeout)),
        ("t_max_predict_ms", milliseconds(request.t_max_predict)),
        ("post_sampling_probs", json!(request.post_sampling_probs)),
        ("return_progress", json!(request.return_progress)),
        ("response_fields", json!(request.response_fields)),
        ("lora", lora(request)),
        ("stream", json!(request.stream)),
        ("return_tokens", json!(request.return_tokens)),
        ("timings_per_token", json!(request.timings_per_token)),
        ("speculative", request.speculative.to_json()),
    ];
    settings.extend(others.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(settings)
}

/// Every adapter, as [`CompletionRequest::lora`] has them once the server has looked up what `init` says.
fn lora(request: &CompletionRequest) -> Value {
    let scales = request.lora.as_deref().unwrap_or_default();
    scales.iter().map(|(id, scale)| json!({"id": id, "scale": shortest(*scale)})).collect()
}

/// 0 is no limit.
fn milliseconds(limit: Option<Duration>) -> Value {
    json!(limit.and_then(|limit| u64::try_from(limit.as_millis()).ok()).unwrap_or(0))
}

/// -1 is all, any, or no limit.
fn count(count: Option<usize>) -> Value {
    count.map_or(json!(-1), Value::from)
}
