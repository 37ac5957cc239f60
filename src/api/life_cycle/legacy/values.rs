//! Values that the old server clamped or ignored. For the old names, the request is changed to a valid one, with a warning for each
//! change. For the `foredraft_*` functions the same values are errors.
//!
//! The rules come from the old server's `parse_options_completion` and from its version of llama.cpp's samplers.

use serde_json::{Map, Value, json};

use crate::api::wire::fields::show;
use crate::api::wire::request::MAX_WINDOW;

/// The range of a number.
enum ValidRange {
    /// A number. Values outside have the same effect in llama.cpp's sampler as the nearest one inside.
    Number(f64, f64),
    /// The same for a whole number. The old server dropped the fraction.
    Whole(i64, i64),
}

use ValidRange::{Number, Whole};

const RANGES: [(&str, ValidRange); 14] = [
    // 1 and above turn these off.
    ("top_p", Number(0.0, 1.0)),
    ("tfs_z", Number(0.0, 1.0)),
    ("typical_p", Number(0.0, 1.0)),
    ("temperature", Number(-1e30, 1000.0)),
    ("repeat_penalty", Number(0.01, 100.0)),
    ("presence_penalty", Number(-1e4, 1e4)),
    ("frequency_penalty", Number(-1e4, 1e4)),
    ("mirostat_tau", Number(0.0, 1000.0)),
    ("mirostat_eta", Number(0.0, 1000.0)),
    ("top_k", Whole(i32::MIN as i64, i32::MAX as i64)),
    // Below -1 means the same as -1: no limit, the whole prompt, the whole context.
    ("n_predict", Whole(-1, i32::MAX as i64)),
    ("n_keep", Whole(-1, i32::MAX as i64)),
    ("repeat_last_n", Whole(-1, MAX_WINDOW)),
    ("n_probs", Whole(0, 1 << 20)),
];
/// The maximum bias.
const MAX_BIAS: f64 = 1e9;

/// Changes the values that the old server accepted and the parser refuses. Returns the warnings. `n_vocab`: the size of the
/// vocabulary.
pub fn clamp_old_values(object: &mut Map<String, Value>, n_vocab: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    for (key, range) in RANGES {
        let Some(value) = object.get_mut(key) else { continue };
        let Some(used) = clamped(value, &range) else { continue };
        if used != *value {
            warnings.push(format!("{key}: {} is used as {used}", show(value)));
            *value = used;
        }
    }
    if let Some(value) = object.get_mut("mirostat")
        && let Some(version) = number(value)
        && !(version == 1.0 || version == 2.0 || version == 0.0)
    {
        let used = if version.trunc() == 1.0 || version.trunc() == 2.0 { version.trunc() as i64 } else { 0 };
        warnings.push(format!("mirostat: {} is used as {used}", show(value)));
        *value = used.into();
    }
    seed(object, &mut warnings);
    stop(object, &mut warnings);
    logit_bias(object, n_vocab, &mut warnings);
    warnings
}

/// A number. The old server's JSON library treated true and false as 1 and 0.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_bool().map(|value| f64::from(u8::from(value))))
}

/// The value clamped to the range. `None`: it is not a number, which is an error.
fn clamped(value: &Value, range: &ValidRange) -> Option<Value> {
    match *range {
        Number(min, max) => {
            let number = number(value)?;
            // An unchanged value keeps its form.
            if (min..=max).contains(&number) && value.is_number() {
                return Some(value.clone());
            }
            Some(json!(number.clamp(min, max)))
        }
        Whole(min, max) => match value.as_i64() {
            Some(whole) if (min..=max).contains(&whole) => Some(value.clone()),
            Some(whole) => Some(whole.clamp(min, max).into()),
            // A float beyond the range of i64 saturates.
            None => {
                let whole = number(value)?.trunc();
                let same = value.as_f64() == Some(whole) && (min as f64..=max as f64).contains(&whole);
                Some(if same { value.clone() } else { (whole as i64).clamp(min, max).into() })
            }
        },
    }
}

/// The old server used the lowest 32 bits of a larger or negative seed.
fn seed(object: &mut Map<String, Value>, warnings: &mut Vec<String>) {
    let Some(value) = object.get_mut("seed") else { return };
    let Some(given) = value.as_i64().or_else(|| number(value).map(|number| number.trunc() as i64)) else { return };
    if (-1..=i64::from(u32::MAX)).contains(&given) && value.as_f64() == Some(given as f64) {
        return;
    }
    let used = given & i64::from(u32::MAX);
    warnings.push(format!("seed: {} is used as {used}", show(value)));
    *value = used.into();
}

/// The old server ignored a `stop` that is not an array, and null entries.
fn stop(object: &mut Map<String, Value>, warnings: &mut Vec<String>) {
    match object.get_mut("stop") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(words)) => {
            let nulls = words.iter().enumerate().filter(|(_, word)| word.is_null());
            warnings.extend(nulls.map(|(index, _)| format!("stop[{index}]: null is ignored")));
            words.retain(|word| !word.is_null());
        }
        Some(other) => {
            warnings.push(format!("stop: {} is not an array of strings and is ignored", show(other)));
            object.remove("stop");
        }
    }
}

/// The old server ignored entries of `logit_bias` that are malformed or whose token does not exist. llama-server's forms (objects,
/// texts instead of ids) are also accepted.
fn logit_bias(object: &mut Map<String, Value>, n_vocab: usize, warnings: &mut Vec<String>) {
    let name = "logit_bias";
    match object.get_mut(name) {
        None | Some(Value::Null) => {}
        Some(Value::Array(entries)) => {
            let mut index = 0;
            entries.retain_mut(|entry| {
                let shown = format!("{name}[{index}]: {}", show(entry));
                index += 1;
                let (of, bias) = match entry {
                    Value::Array(pair) => match pair.as_mut_slice() {
                        [of, bias] => (Some(&*of), Some(bias)),
                        _ => (None, None),
                    },
                    Value::Object(map) => {
                        let of = map.get("token").cloned();
                        return keep(of.as_ref(), map.get_mut("bias"), n_vocab, &shown, warnings);
                    }
                    _ => (None, None),
                };
                keep(of, bias, n_vocab, &shown, warnings)
            });
        }
        Some(Value::Object(map)) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            for key in keys {
                let of = key.parse::<i64>().map_or_else(|_| Value::from(key.as_str()), Value::from);
                let shown = format!("{name}.{}", show(&Value::from(key.as_str())));
                let bias = map.get_mut(&key).filter(|bias| !bias.is_null());
                if !keep(Some(&of), bias, n_vocab, &shown, warnings) {
                    map.remove(&key);
                }
            }
        }
        Some(other) => {
            warnings.push(format!("{name}: {} is not an array and is ignored", show(other)));
            object.remove(name);
        }
    }
}

/// Whether an entry is valid. Its bias is clamped.
fn keep(of: Option<&Value>, bias: Option<&mut Value>, n_vocab: usize, shown: &str, warnings: &mut Vec<String>) -> bool {
    let problem = match (of, bias) {
        (Some(Value::Number(id)), _) if !id.as_f64().is_some_and(|id| (0.0..n_vocab as f64).contains(&id)) => {
            "has no token of the vocabulary"
        }
        (Some(Value::Number(id)), _) if id.as_f64().is_some_and(|id| id.fract() != 0.0) => {
            "has a token id that is not whole"
        }
        (Some(Value::String(text)), _) if text.contains('\0') => "has a text with NUL",
        (Some(Value::Number(_) | Value::String(_)), Some(bias @ Value::Number(_))) => {
            if let Some(used) = clamped(bias, &Number(-MAX_BIAS, MAX_BIAS)).filter(|used| used != bias) {
                warnings.push(format!("{shown}: the bias is used as {used}"));
                *bias = used;
            }
            return true;
        }
        (Some(Value::Number(_) | Value::String(_)), Some(Value::Bool(false) | Value::Null)) => return true,
        _ => "is not [token, bias]",
    };
    warnings.push(format!("{shown} {problem} and is ignored"));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerated(document: Value) -> (Value, Vec<String>) {
        let mut object = document.as_object().expect("an object").clone();
        let warnings = clamp_old_values(&mut object, 100);
        (Value::Object(object), warnings)
    }

    #[test]
    fn what_was_clamped_is_clamped() {
        for (given, used) in [
            (json!({"top_p": 1.1}), json!({"top_p": 1.0})),
            (json!({"top_p": -3}), json!({"top_p": 0.0})),
            (json!({"tfs_z": 2}), json!({"tfs_z": 1.0})),
            (json!({"typical_p": 1.5}), json!({"typical_p": 1.0})),
            (json!({"temperature": true}), json!({"temperature": 1.0})),
            (json!({"n_predict": -2}), json!({"n_predict": -1})),
            (json!({"n_predict": 10.7}), json!({"n_predict": 10})),
            (json!({"n_predict": 1e300}), json!({"n_predict": i32::MAX})),
            (json!({"n_keep": -100}), json!({"n_keep": -1})),
            (json!({"repeat_last_n": -5}), json!({"repeat_last_n": -1})),
            (json!({"n_probs": -1}), json!({"n_probs": 0})),
            (json!({"top_k": 40.5}), json!({"top_k": 40})),
            (json!({"mirostat": 3}), json!({"mirostat": 0})),
            (json!({"mirostat": 2.5}), json!({"mirostat": 2})),
            (json!({"seed": -2}), json!({"seed": 4_294_967_294_u32})),
            (json!({"seed": 4_294_967_300_u64}), json!({"seed": 4})),
            (json!({"stop": 5}), json!({})),
            (json!({"stop": ["a", null, "b"]}), json!({"stop": ["a", "b"]})),
        ] {
            let (object, warnings) = tolerated(given.clone());
            assert_eq!((&object, warnings.len()), (&used, 1), "{given}: {warnings:?}");
            let key = given.as_object().and_then(|object| object.keys().next()).expect("a key").clone();
            assert!(warnings[0].starts_with(&key), "{given}: {warnings:?}");
        }
    }

    #[test]
    fn what_is_valid_stays_as_it_is() {
        let valid = json!({
            "top_p": 0.95, "tfs_z": 1, "temperature": -1, "n_predict": -1, "top_k": -3, "n_keep": 0, "seed": -1,
            "n_probs": 5.0, "mirostat": 2, "stop": ["a", ""], "min_p": 7, "repeat_penalty": null,
            "logit_bias": [[5, 1.5], [99, false], ["text", -2], {"token": 3, "bias": 1}], "prompt": 5,
        });
        assert_eq!(tolerated(valid.clone()), (valid, Vec::new()));
        for kept in
            [json!({"top_p": "0.5"}), json!({"n_predict": "many"}), json!({"logit_bias": {"7": 1, "text": false}})]
        {
            assert_eq!(
                tolerated(kept.clone()),
                (kept, Vec::new()),
                "errors stay errors, and llama-server's forms valid"
            );
        }
    }

    #[test]
    fn entries_of_logit_bias_that_were_ignored_are_ignored() {
        let bad = [
            json!([100, 1]),
            json!([-1, 1]),
            json!([5]),
            json!([5, 1, 1]),
            json!([5, true]),
            json!([5, "x"]),
            json!(5),
            json!([null, 1]),
            json!([1.5, 1]),
            json!({"token": 5}),
            json!({"bias": 1}),
        ];
        let entries: Vec<Value> = bad.iter().cloned().chain([json!([7, 2])]).collect();
        let (object, warnings) = tolerated(json!({"logit_bias": entries}));
        assert_eq!(object, json!({"logit_bias": [[7, 2]]}));
        assert_eq!(warnings.len(), bad.len(), "{warnings:?}");
        assert_eq!(warnings[1], "logit_bias[1]: [-1,1] has no token of the vocabulary and is ignored");
        let (object, warnings) = tolerated(json!({"logit_bias": "x"}));
        assert_eq!((object, warnings.len()), (json!({}), 1));
        let (object, warnings) = tolerated(json!({"logit_bias": {"5": 1, "100": 1, "7": true}}));
        assert_eq!((object, warnings.len()), (json!({"logit_bias": {"5": 1}}), 2));
        let (object, warnings) = tolerated(json!({"logit_bias": [[5, -1e30]]}));
        assert_eq!((object, warnings.len()), (json!({"logit_bias": [[5, -1e9]]}), 1));
    }
}
