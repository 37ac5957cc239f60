//! Keys of `init` from the old server's version of llama.cpp (`gpt_params`) that have another name now, or no equivalent.

use serde_json::{Map, Value, json};

use crate::api::wire::fields::{Fields, unexpected};
use crate::error::Result;

/// Ignored keys, with the reason. The old server ignored most of them too; the others select kernels and memory layouts that
/// llama.cpp no longer has.
const IGNORED: [(&[&str], &str); 4] = [
    (
        &["sampling_params", "n_predict", "ignore_eos", "grammar", "antiprompt", "prompt", "prompt_file"],
        "ignored, set it in each request",
    ),
    (&["mul_mat_q", "logits_all", "cont_batching", "lora_base"], "ignored, llama.cpp no longer has this option"),
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
        "ignored, it is an option of llama.cpp's programs",
    ),
    (&["image"], "ignored, not available in this version of foredraft"),
];

/// Renames old keys to current ones, unless the current key is also given. Ignored keys give warnings.
///
/// # Errors
/// The value of an old key has the wrong type.
pub fn renamed(object: &Map<String, Value>) -> Result<(Map<String, Value>, Vec<String>)> {
    let mut object = object.clone();
    let mut warnings = Vec::new();
    for (keys, why) in IGNORED {
        for key in keys {
            if object.remove(*key).is_some() {
                warnings.push(format!("{key}: {why}"));
            }
        }
    }
    if let Some(n_draft) = take(&mut object, "n_draft") {
        object.entry("speculative.n_draft").or_insert(n_draft);
    }
    match take(&mut object, "memory_f16") {
        None | Some(Value::Bool(true)) => {}
        Some(Value::Bool(false)) => {
            for key in ["cache_type_k", "cache_type_v"] {
                object.entry(key).or_insert(json!("f32"));
            }
        }
        Some(other) => return Err(unexpected("memory_f16", "true or false", &other)),
    }
    if let Some(value) = take(&mut object, "lora_adapter") {
        match object.get("lora") {
            Some(_) => warnings.push("lora_adapter: ignored because lora is given".to_owned()),
            None => {
                let adapters = adapters(value)?;
                object.insert("lora".to_owned(), adapters);
            }
        }
    }
    Ok((object, warnings))
}

/// Removes a key and returns its value. Null counts as absent.
fn take(object: &mut Map<String, Value>, key: &str) -> Option<Value> {
    object.remove(key).filter(|value| !value.is_null())
}

/// Converts `lora_adapter`: a path, paths, or pairs of a path and a scale (the forms it had in different versions).
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

/// Reads `n_beams`: the default of `n_beams` in `get_completion`.
pub fn n_beams(fields: &mut Fields, most: usize) -> Result<usize> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    Ok(fields.int("n_beams", 0..=most)?.unwrap_or(0))
}

/// Reads llama.cpp's numeric verbosity. Numbers out of range are clamped.
pub fn verbosity(value: &Value) -> Result<usize> {
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
            (
                json!({"sampling_params": {"temp": 0.1}}),
                json!({}),
                Some("sampling_params: ignored, set it in each request"),
            ),
        ] {
            let (renamed, warnings) = renamed(&object(old.clone())).expect("understood");
            assert_eq!(Value::Object(renamed), new, "{old}");
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
            let error = renamed(&object(wrong.clone())).expect_err("it is wrong");
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
