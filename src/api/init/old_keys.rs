//! Keys of `init` that llama.cpp had at the time of the old server (`gpt_params`) and has under another name, or not at all, now.

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, unexpected};
use crate::error::Result;

/// Keys that mean nothing here, and why. The old server took them and did nothing with them either, but for those of kernels and
/// memory that llama.cpp has no choice of any more.
const IGNORED: [(&[&str], &str); 4] = [
    (
        &["sampling_params", "n_predict", "ignore_eos", "grammar", "antiprompt", "prompt", "prompt_file"],
        "ignored, each request says it",
    ),
    (&["mul_mat_q", "logits_all", "cont_batching", "lora_base"], "ignored, llama.cpp has no such option any more"),
    (
        &[
            "n_chunks",
            "n_sequences",
            "path_prompt_cache",
            "prompt_cache_all",
            "prompt_cache_ro",
            "input_prefix",
            "input_suffix",
            "input_prefix_bos",
            "logdir",
            "ppl_stride",
            "ppl_output_type",
            "hellaswag",
            "hellaswag_tasks",
            "random_prompt",
            "use_color",
            "interactive",
            "interactive_first",
            "instruct",
            "infill",
            "escape",
            "multiline_input",
            "simple_io",
            "verbose_prompt",
        ],
        "ignored, it is about llama.cpp's own programs",
    ),
    (&["mmproj", "image"], "ignored, not available in this version of foredraft"),
];

/// Puts what an old key says under today's, unless that is given as well, and warns of those that mean nothing.
///
/// # Errors
/// An old key's value is of the wrong type.
pub(super) fn translated(object: &Map<String, Value>) -> Result<(Map<String, Value>, Vec<String>)> {
    let mut object = object.clone();
    let mut warnings = Vec::new();
    for (keys, why) in IGNORED {
        for key in keys {
            if object.remove(*key).is_some() {
                warnings.push(format!("{key}: {why}"));
            }
        }
    }
    if let Some(n_draft) = taken(&mut object, "n_draft") {
        object.entry("speculative.n_draft").or_insert(n_draft);
    }
    match taken(&mut object, "memory_f16") {
        None | Some(Value::Bool(true)) => {}
        Some(Value::Bool(false)) => {
            for key in ["cache_type_k", "cache_type_v"] {
                object.entry(key).or_insert(json!("f32"));
            }
        }
        Some(other) => return Err(unexpected("memory_f16", "true or false", &other)),
    }
    if let Some(value) = taken(&mut object, "lora_adapter") {
        match object.get("lora") {
            Some(_) => warnings.push("lora_adapter: ignored, lora is given as well".to_owned()),
            None => {
                let adapters = adapters(value)?;
                object.insert("lora".to_owned(), adapters);
            }
        }
    }
    Ok((object, warnings))
}

/// The value of a key, which is removed; null counts as absent.
fn taken(object: &mut Map<String, Value>, key: &str) -> Option<Value> {
    object.remove(key).filter(|value| !value.is_null())
}

/// `lora_adapter`: a path, or paths, or pairs of a path and a scale (the members of `gpt_params` at different times).
fn adapters(value: Value) -> Result<Value> {
    let items = match value {
        Value::String(path) if path.is_empty() => Vec::new(),
        Value::String(_) => vec![value],
        Value::Array(items) => items,
        other => return Err(unexpected("lora_adapter", "a path, or an array of [path, scale]", &other)),
    };
    let adapter = |(index, item): (usize, Value)| match item {
        Value::Array(pair) => match pair.as_slice() {
            [path @ Value::String(_), scale @ Value::Number(_)] => Ok(json!({"path": path, "scale": scale})),
            _ => Err(unexpected(&format!("lora_adapter[{index}]"), "[path, scale]", &Value::Array(pair))),
        },
        item => Ok(item),
    };
    items.into_iter().enumerate().map(adapter).collect()
}

/// `n_beams`: the beams of `get_completion` where the request gives none.
pub(super) fn n_beams(fields: &mut Fields, most: usize) -> Result<usize> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    Ok(fields.int("n_beams", 0..=most)?.unwrap_or(0))
}

/// llama.cpp's verbosity as a number, of which any is right: everything above the last level is the last level.
pub(super) fn verbosity(value: &Value) -> Result<usize> {
    let number = value.as_i64().ok_or_else(|| unexpected("log_level", "a word or a whole number", value))?;
    Ok(usize::try_from(number.clamp(0, 5)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn old_keys_do_what_they_did() {
        for (old, new, warned) in [
            (json!({"n_draft": 5}), json!({"speculative.n_draft": 5}), None),
            (json!({"n_draft": null}), json!({}), None),
            (json!({"memory_f16": true}), json!({}), None),
            (json!({"memory_f16": false}), json!({"cache_type_k": "f32", "cache_type_v": "f32"}), None),
            (
                json!({"memory_f16": false, "cache_type_k": "q8_0"}),
                json!({"cache_type_k": "q8_0", "cache_type_v": "f32"}),
                None,
            ),
            (json!({"lora_adapter": "a.gguf"}), json!({"lora": ["a.gguf"]}), None),
            (json!({"lora_adapter": ""}), json!({"lora": []}), None),
            (
                json!({"lora_adapter": [["a.gguf", 0.5], "b.gguf"]}),
                json!({"lora": [{"path": "a.gguf", "scale": 0.5}, "b.gguf"]}),
                None,
            ),
            (json!({"lora_adapter": "a", "lora": ["b"]}), json!({"lora": ["b"]}), Some("lora_adapter: ")),
            (json!({"lora_base": "x.gguf"}), json!({}), Some("lora_base: ignored, llama.cpp")),
            (json!({"logits_all": true}), json!({}), Some("logits_all: ")),
            (json!({"mul_mat_q": false}), json!({}), Some("mul_mat_q: ")),
            (json!({"sampling_params": {"temp": 0.1}}), json!({}), Some("sampling_params: ignored, each request")),
        ] {
            let (translated, warnings) = translated(&object(old.clone())).expect("understood");
            assert_eq!(Value::Object(translated), new, "{old}");
            let first = warnings.first().map(String::as_str);
            assert_eq!(warnings.len(), usize::from(warned.is_some()), "{old}: {warnings:?}");
            assert!(warned.is_none_or(|start| first.is_some_and(|first| first.starts_with(start))), "{old}: {first:?}");
        }
    }

    #[test]
    fn wrong_values_of_old_keys_are_errors() {
        for wrong in [
            json!({"memory_f16": 1}),
            json!({"lora_adapter": 5}),
            json!({"lora_adapter": [["a"]]}),
            json!({"lora_adapter": [["a", "b"]]}),
        ] {
            let error = translated(&object(wrong.clone())).expect_err("it is wrong");
            let key = wrong.as_object().and_then(|object| object.keys().next()).expect("a key").clone();
            assert!(error.message().starts_with(&key), "{wrong}: {error}");
        }
    }

    #[test]
    fn any_verbosity_is_a_level() {
        for (given, level) in [(-1, 0), (0, 0), (3, 3), (5, 5), (9999, 5)] {
            assert_eq!(verbosity(&json!(given)), Ok(level), "{given}");
        }
        assert!(verbosity(&json!(1.5)).is_err());
    }
}
