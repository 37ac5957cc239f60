//! What the old server clamped or ignored in a request, for the functions that keep its names: the document is changed into
//! one that is valid, and each change is a warning. Through the `foredraft_*` functions the same values are errors.
//!
//! The rules are those of the old server's `parse_options_completion` and of llama.cpp's samplers of that time.

use serde_json::{Map, Value, json};

use super::sampling::MAX_WINDOW;
use crate::api::fields::show;

/// What an old number may be.
enum Rule {
    /// A number that llama.cpp's sampler treats as the nearest one of this range.
    Number(f64, f64),
    /// The same of a whole number, of which the old server dropped what is behind the point.
    Whole(i64, i64),
}

use Rule::{Number, Whole};

const RULES: [(&str, Rule); 14] = [
    // From 1 on these are off.
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
    // Below -1 means what -1 means: no limit, all of the prompt, the whole context.
    ("n_predict", Whole(-1, i32::MAX as i64)),
    ("n_keep", Whole(-1, i32::MAX as i64)),
    ("repeat_last_n", Whole(-1, MAX_WINDOW)),
    ("n_probs", Whole(0, 1 << 20)),
];
/// The largest bias.
const MAX_BIAS: f64 = 1e9;

/// Changes what the old server would have taken and this one refuses. `n_vocab`: how many tokens the model has.
pub fn tolerate(object: &mut Map<String, Value>, n_vocab: usize) -> Vec<String> {
    let mut warnings = Vec::new();
    for (key, rule) in RULES {
        let Some(value) = object.get_mut(key) else { continue };
        let Some(used) = within(value, &rule) else { continue };
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

/// A number, or true and false, which the old server's JSON library took for 1 and 0.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_bool().map(|value| f64::from(u8::from(value))))
}

/// What a value counts as; `None`: it is no number, which is an error.
fn within(value: &Value, rule: &Rule) -> Option<Value> {
    match *rule {
        Number(min, max) => {
            let number = number(value)?;
            // The value as it is, unless it is changed.
            if (min..=max).contains(&number) && value.is_number() {
                return Some(value.clone());
            }
            Some(json!(number.clamp(min, max)))
        }
        Whole(min, max) => match value.as_i64() {
            Some(whole) if (min..=max).contains(&whole) => Some(value.clone()),
            Some(whole) => Some(whole.clamp(min, max).into()),
            // A float beyond an i64 becomes the largest one.
            None => {
                let whole = number(value)?.trunc();
                let same = value.as_f64() == Some(whole) && (min as f64..=max as f64).contains(&whole);
                Some(if same { value.clone() } else { (whole as i64).clamp(min, max).into() })
            }
        },
    }
}

/// The old server's seed had 32 bits, of which a larger or negative number gave the lowest.
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

/// What is no array of stop strings was ignored, and so was an empty entry.
fn stop(object: &mut Map<String, Value>, warnings: &mut Vec<String>) {
    match object.get_mut("stop") {
        None | Some(Value::Null | Value::String(_)) => {}
        Some(Value::Array(words)) => words.retain(|word| !word.is_null()),
        Some(other) => {
            warnings.push(format!("stop: {} is no array of strings and is ignored", show(other)));
            object.remove("stop");
        }
    }
}

/// Entries of `logit_bias` that are malformed, or about tokens that the model does not have, were ignored. What llama-server
/// takes (objects, texts in place of ids) is taken, too.
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
                if !keep(Some(&of), map.get_mut(&key), n_vocab, &shown, warnings) {
                    map.remove(&key);
                }
            }
        }
        Some(other) => {
            warnings.push(format!("{name}: {} is no array and is ignored", show(other)));
            object.remove(name);
        }
    }
}

/// Whether an entry counts; its bias is clamped.
fn keep(of: Option<&Value>, bias: Option<&mut Value>, n_vocab: usize, shown: &str, warnings: &mut Vec<String>) -> bool {
    let why = match (of, bias) {
        (Some(Value::Number(id)), _) if !id.as_f64().is_some_and(|id| (0.0..n_vocab as f64).contains(&id)) => {
            "is about no token of the model"
        }
        (Some(Value::Number(id)), _) if id.as_f64().is_some_and(|id| id.fract() != 0.0) => "has no whole number",
        (Some(Value::String(text)), _) if text.contains('\0') => "has a text with NUL",
        (Some(Value::Number(_) | Value::String(_)), Some(bias @ Value::Number(_))) => {
            if let Some(clamped) = within(bias, &Number(-MAX_BIAS, MAX_BIAS)).filter(|clamped| clamped != bias) {
                warnings.push(format!("{shown}: the bias is used as {clamped}"));
                *bias = clamped;
            }
            return true;
        }
        (Some(Value::Number(_) | Value::String(_)), Some(Value::Bool(false))) => return true,
        _ => "is no [token, bias]",
    };
    warnings.push(format!("{shown} {why} and is ignored"));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tolerated(document: Value) -> (Value, Vec<String>) {
        let mut object = document.as_object().expect("an object").clone();
        let warnings = tolerate(&mut object, 100);
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
        assert_eq!(warnings[1], "logit_bias[1]: [-1,1] is about no token of the model and is ignored");
        let (object, warnings) = tolerated(json!({"logit_bias": "x"}));
        assert_eq!((object, warnings.len()), (json!({}), 1));
        let (object, warnings) = tolerated(json!({"logit_bias": {"5": 1, "100": 1, "7": true}}));
        assert_eq!((object, warnings.len()), (json!({"logit_bias": {"5": 1}}), 2));
        let (object, warnings) = tolerated(json!({"logit_bias": [[5, -1e30]]}));
        assert_eq!((object, warnings.len()), (json!({"logit_bias": [[5, -1e9]]}), 1));
    }
}
