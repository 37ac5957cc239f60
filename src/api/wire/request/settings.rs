//! `generation_settings`: all settings of a request as used, in the form of a request.

use std::time::Duration;

use serde_json::{Value, json};

use super::{CompletionRequest, Overflow, Prompt, RequestGrammar, sampling};
use crate::api::wire::answer::with_fields;
use crate::api::wire::fields::shortest;
use crate::sampling::SamplingSettings;

/// Values that are only known when the request is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedValues {
    /// The function returns updates.
    pub streams: bool,
    /// All tokens that end a completion are banned.
    pub ignores_eos: bool,
    /// Banned tokens are shown as in the old server: with null, which is JSON's form of minus infinity.
    pub bans_as_null: bool,
}

/// All settings of `request` as used, with the field names of requests and of the old server. Together with the same prompt it is a
/// request for the same completion, because the seed is the one that was drawn.
///
/// `used` is the request's sampling with `logit_bias` resolved to tokens; `n_ctx` and `model` are the engine's. `n_keep` is the given
/// one: what it means depends on the prompt.
pub fn generation_settings(
    request: &CompletionRequest,
    used: &SamplingSettings,
    values: UsedValues,
    n_ctx: u32,
    model: &str,
) -> Value {
    let CompletionRequest { options, reply, inputs, .. } = request;
    // The prompt in the answer is the rendered text, which has control tokens and already fits.
    let is_text = inputs.all.iter().all(|input| matches!(input.prompt, Prompt::Text(_)));
    let on_overflow = match inputs.on_overflow {
        Overflow::DropTurns => Overflow::Truncate,
        other => other,
    };
    let settings = sampling::report(used);
    let ban = if values.bans_as_null { Value::Null } else { Value::Bool(false) };
    let shown = |bias: f32| if bias == f32::NEG_INFINITY { ban.clone() } else { shortest(bias) };
    let bias: Vec<Value> = used.logit_bias.iter().map(|(token, bias)| json!([token, shown(*bias)])).collect();
    let others = [
        ("n_ctx", json!(n_ctx)),
        ("model", json!(model)),
        ("seed", json!(used.seed)),
        ("seed_position", json!(options.seed_position.unwrap_or(0))),
        ("logit_bias", Value::Array(bias)),
        ("ignore_eos", json!(values.ignores_eos)),
        ("stop", json!(options.stop)),
        ("special", json!(options.special)),
        ("choices", request.choices.as_ref().map_or(Value::Null, |choices| json!(choices.given))),
        ("json_schema", request.json_schema.clone().unwrap_or(Value::Null)),
        ("property_order", json!(if request.schema_options.any_order { "any" } else { "schema" })),
        ("additional_properties", json!(request.schema_options.is_open)),
        (
            "grammar",
            match &request.grammar {
                Some(RequestGrammar::Gbnf(text)) => json!(text),
                _ => json!(""),
            },
        ),
        ("logits_callback", json!(request.logits_callback)),
        ("n_predict", count(options.n_predict)),
        ("ctx_shift", json!(!options.ends_when_full)),
        ("n_beams", json!(options.n_beams)),
        ("n_keep", count(options.n_keep)),
        ("parse_special", json!(inputs.parse_special || !is_text)),
        ("on_overflow", json!(on_overflow.as_str())),
        ("cache_prompt", json!(options.cache_prompt)),
        ("n_cache_reuse", json!(options.n_cache_reuse)),
        ("id_slot", count(options.slot)),
        ("conversation", json!(options.conversation.as_deref())),
        ("timeout_ms", milliseconds(options.timeout)),
        ("priority", json!(options.priority)),
        ("deadline_ms", options.deadline.map_or(Value::Null, |deadline| milliseconds(Some(deadline)))),
        ("t_max_predict_ms", milliseconds(options.t_max_predict)),
        ("post_sampling_probs", json!(options.post_sampling_probs)),
        ("return_progress", json!(options.progress)),
        ("prompt_logprobs", json!(options.prompt_probs)),
        ("response_fields", json!(reply.response_fields)),
        ("lora", lora(request)),
        ("stream", json!(values.streams)),
        ("return_tokens", json!(reply.return_tokens)),
        ("timings_per_token", json!(reply.timings_per_token)),
        ("speculative", request.speculative.to_json()),
    ];
    with_fields(settings.into(), others.into_iter().chain(request.constraint.report()))
}

/// All adapters. [`CompletionRequest::lora`] contains all of them after the engine has applied the load's scales.
fn lora(request: &CompletionRequest) -> Value {
    let scales = request.lora.as_deref().unwrap_or_default();
    scales.iter().map(|(id, scale)| json!({"id": id, "scale": shortest(*scale)})).collect()
}

/// 0 means no limit.
fn milliseconds(limit: Option<Duration>) -> Value {
    json!(limit.and_then(|limit| u64::try_from(limit.as_millis()).ok()).unwrap_or(0))
}

/// -1 means all, any, or no limit.
fn count(count: Option<usize>) -> Value {
    count.map_or(json!(-1), Value::from)
}
