//! What single keywords say: `type`, and those that bound strings, integers and counts.

use serde_json::{Map, Value, json};

use super::super::fields::show;
use super::{Checked, pattern, wrong};

/// The largest count of a repetition in a grammar.
const MAX_COUNT: u64 = 2000;
/// The most items of an array that may be empty. The converter's `(item ("," item){0,n})?` is up to n + 3 rules, and
/// the question mark repeats them all.
pub(super) const MAX_ITEMS: u64 = MAX_COUNT - 2;
/// The formats that are enforced; the others are notes, as the standard has it.
pub(super) const FORMATS: [&str; 4] = ["date", "time", "date-time", "uuid"];
/// The largest absolute value of a bounded integer.
const MAX_INTEGER: i64 = 999_999_999_999_999;
/// The types that there are.
pub(super) const TYPES: [&str; 7] = ["object", "array", "string", "integer", "number", "boolean", "null"];

pub(super) fn string(map: &Map<String, Value>, at: &str) -> Checked<Value> {
    let (least, most) = bounds(map, "minLength", "maxLength", at)?;
    let has_length = least > 0 || most.is_some();
    let format = match map.get("format") {
        None => None,
        Some(Value::String(format)) => Some(format.as_str()),
        Some(_) => return wrong(at, "format must be a string"),
    };
    if let Some(pattern) = map.get("pattern") {
        let Some(pattern) = pattern.as_str() else { return wrong(at, "pattern must be a string") };
        if has_length {
            return wrong(at, "a length beside pattern cannot be enforced");
        }
        if format.is_some_and(|format| FORMATS.contains(&format)) {
            return wrong(at, "a format beside pattern cannot be enforced");
        }
        let pattern = match pattern::translate(pattern) {
            Ok(pattern) if pattern.len() < 1 << 16 => pattern,
            Ok(_) => return wrong(at, "the pattern is too long"),
            Err(why) => return wrong(at, format!("the pattern has {why}, which a grammar cannot enforce")),
        };
        return Ok(json!({"type": "string", "pattern": pattern}));
    }
    match format.filter(|format| FORMATS.contains(format)) {
        Some(_) if has_length => wrong(at, "a length beside format cannot be enforced"),
        Some(format) => Ok(json!({"type": "string", "format": format})),
        None => {
            let mut out = json!({"type": "string", "minLength": least});
            if let Some(most) = most {
                out["maxLength"] = json!(most);
            }
            Ok(out)
        }
    }
}

/// The converter's rules for one bound are wrong for some numbers, those for two are right.
pub(super) fn integer(map: &Map<String, Value>, at: &str) -> Checked<Value> {
    if map.get("multipleOf").is_some_and(|step| step.as_f64() != Some(1.0)) {
        return wrong(at, "multipleOf cannot be enforced by a grammar");
    }
    let bound = |key: &str, round: fn(f64) -> f64, add: i64| match map.get(key) {
        None => Ok(None),
        Some(value) => match (value.as_i64(), value.as_f64()) {
            (Some(whole), _) => Ok(Some(whole.saturating_add(add))),
            (None, Some(number)) => Ok(Some((round(number) as i64).saturating_add(add))),
            _ => wrong(at, format!("{key} must be a number")),
        },
    };
    let least = bound("minimum", f64::ceil, 0)?.max(bound("exclusiveMinimum", f64::floor, 1)?);
    let upper = [bound("maximum", f64::floor, 0)?, bound("exclusiveMaximum", f64::ceil, -1)?];
    let most = upper.into_iter().flatten().min();
    if least.is_none() && most.is_none() {
        return Ok(json!({"type": "integer"}));
    }
    let (least, most) = (least.unwrap_or(-MAX_INTEGER).max(-MAX_INTEGER), most.unwrap_or(MAX_INTEGER).min(MAX_INTEGER));
    if least > most {
        return wrong(at, format!("no integer (of at most 15 digits) is from {least} to {most}"));
    }
    Ok(json!({"type": "integer", "minimum": least, "maximum": most}))
}

/// `type`, one or several.
pub(super) fn named_types(map: &Map<String, Value>, at: &str) -> Checked<Vec<String>> {
    let names = match map.get("type") {
        None => return Ok(Vec::new()),
        Some(Value::String(name)) => vec![name.clone()],
        // More of them repeat each other, and each is written out.
        Some(Value::Array(names)) if (1..=TYPES.len()).contains(&names.len()) => {
            names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        Some(_) => return wrong(at, "type must be a string or an array of different strings"),
    };
    match names.iter().find(|name| !TYPES.contains(&name.as_str())) {
        Some(name) => wrong(at, format!("unrecognized type {}", show(&json!(name)))),
        None if names.is_empty() => wrong(at, "type must be a string or an array of strings"),
        None => Ok(names),
    }
}

pub(super) fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => value.is_null(),
    }
}

pub(super) fn strings<'v>(map: &'v Map<String, Value>, key: &str, at: &str) -> Checked<Vec<&'v str>> {
    let Some(value) = map.get(key) else { return Ok(Vec::new()) };
    let list = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    match list.flatten() {
        Some(list) => Ok(list),
        None => wrong(at, format!("{key} must be an array of strings")),
    }
}

pub(super) fn count(map: &Map<String, Value>, key: &str, at: &str) -> Checked<Option<u64>> {
    match map.get(key) {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0) {
            Some(number) => Ok(Some(number as u64)),
            None => wrong(at, format!("{key} must be a non-negative integer")),
        },
    }
}

/// Two counts that a grammar can have. Above its largest, the upper one is lowered: what is shorter is valid, too.
pub(super) fn bounds(map: &Map<String, Value>, least: &str, most: &str, at: &str) -> Checked<(u64, Option<u64>)> {
    let (low, high) = (count(map, least, at)?.unwrap_or(0), count(map, most, at)?);
    if low > MAX_COUNT {
        return wrong(at, format!("{least} of {low} is more than the {MAX_COUNT} that a grammar can count"));
    }
    match high {
        Some(high) if high < low => wrong(at, format!("{least} of {low} is more than {most} of {high}")),
        high => Ok((low, high.map(|high| high.min(MAX_COUNT)))),
    }
}
