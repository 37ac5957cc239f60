//! The keywords: which there are, and the ones about types, strings, integers and counts.

use serde_json::{Map, Value, json};

use super::document::{SchemaResult, error_at};
use super::pattern;
use crate::api::fields::show;

/// The maximum number of repetitions in a grammar.
const MAX_COUNT: u64 = 2000;
/// The maximum number of items of an array that may be empty. The converter's `(item ("," item){0,n})?` has up to n + 3 rules, and
/// the question mark repeats all of them.
pub(super) const MAX_ITEMS: u64 = MAX_COUNT - 2;
/// The formats that are enforced. Other formats are annotations, as in the standard.
pub(super) const FORMATS: [&str; 4] = ["date", "time", "date-time", "uuid"];
/// The maximum absolute value of a bounded integer.
const MAX_INTEGER: i64 = 999_999_999_999_999;
/// The types of JSON Schema.
pub(super) const TYPES: [&str; 7] = ["object", "array", "string", "integer", "number", "boolean", "null"];

/// Keywords that are annotations: they do not restrict values.
const ANNOTATIONS: [&str; 20] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "$anchor",
    "$vocabulary",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "then",
    "else",
];
/// The keywords that restrict one type.
pub(super) const OF_TYPE: [(&str, &[&str]); 4] = [
    ("object", &["properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"]),
    ("array", &["items", "prefixItems", "minItems", "maxItems", "uniqueItems"]),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    ("integer", &NUMERIC),
];
pub(super) const NUMERIC: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Keywords that no grammar can enforce.
pub(super) const UNENFORCEABLE: [&str; 13] = [
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "minContains",
    "maxContains",
    "$dynamicRef",
    "$recursiveRef",
];

/// Whether a keyword restricts values.
pub(super) fn is_assertion(key: &str) -> bool {
    ["$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type"].contains(&key)
        || OF_TYPE.iter().any(|(_, keywords)| keywords.contains(&key)) && !ANNOTATIONS.contains(&key)
}

/// Simplifies a string schema.
pub(super) fn string(map: &Map<String, Value>, at: &str) -> SchemaResult<Value> {
    let (least, most) = bounds(map, "minLength", "maxLength", at)?;
    let has_length = least > 0 || most.is_some();
    let format = match map.get("format") {
        None => None,
        Some(Value::String(format)) => Some(format.as_str()),
        Some(_) => return error_at(at, "format must be a string"),
    };
    if let Some(pattern) = map.get("pattern") {
        let Some(pattern) = pattern.as_str() else { return error_at(at, "pattern must be a string") };
        // A format beside a pattern is an annotation, as in the standard: generators of schemas write both, and the pattern is exact.
        let pattern = match pattern::convert(pattern, least, most) {
            Ok(pattern) => pattern,
            Err(part) => return error_at(at, format!("the pattern has {part}, which a grammar cannot enforce")),
        };
        return Ok(json!({"type": "string", "pattern": pattern}));
    }
    match format.filter(|format| FORMATS.contains(format)) {
        Some(_) if has_length => error_at(at, "a length beside format cannot be enforced"),
        Some(format) => Ok(json!({"type": "string", "format": format})),
        None => {
            let mut out =
                Map::from_iter([("type".to_owned(), json!("string")), ("minLength".to_owned(), json!(least))]);
            out.extend(most.map(|most| ("maxLength".to_owned(), json!(most))));
            Ok(Value::Object(out))
        }
    }
}

/// Simplifies an integer schema. The converter's rules for one bound are wrong for some numbers, the rules for two are correct.
pub(super) fn integer(map: &Map<String, Value>, at: &str) -> SchemaResult<Value> {
    if map.get("multipleOf").is_some_and(|step| step.as_f64() != Some(1.0)) {
        return error_at(at, "multipleOf cannot be enforced by a grammar");
    }
    let bound = |key: &str, round: fn(f64) -> f64, add: i64| match map.get(key) {
        None => Ok(None),
        Some(value) => match (value.as_i64(), value.as_f64()) {
            (Some(whole), _) => Ok(Some(whole.saturating_add(add))),
            (None, Some(number)) => Ok(Some((round(number) as i64).saturating_add(add))),
            _ => error_at(at, format!("{key} must be a number")),
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
        return error_at(at, format!("no integer of at most 15 digits is from {least} to {most}"));
    }
    Ok(json!({"type": "integer", "minimum": least, "maximum": most}))
}

/// Reads `type`: one or several types; empty if absent.
pub(super) fn named_types(map: &Map<String, Value>, at: &str) -> SchemaResult<Vec<String>> {
    let names = match map.get("type") {
        None => return Ok(Vec::new()),
        Some(Value::String(name)) => vec![name.clone()],
        // A longer array contains duplicates, and each would be written out.
        Some(Value::Array(names)) if (1..=TYPES.len()).contains(&names.len()) => {
            names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        Some(_) => return error_at(at, "type must be a string or an array of different strings"),
    };
    match names.iter().find(|name| !TYPES.contains(&name.as_str())) {
        Some(name) => error_at(at, format!("unrecognized type {}", show(&json!(name)))),
        None if names.is_empty() => error_at(at, "type must be a string or an array of strings"),
        None => Ok(names),
    }
}

/// Whether a value has the type.
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

/// Reads an array of strings; empty if absent.
pub(super) fn strings<'v>(map: &'v Map<String, Value>, key: &str, at: &str) -> SchemaResult<Vec<&'v str>> {
    let Some(value) = map.get(key) else { return Ok(Vec::new()) };
    let list = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    match list.flatten() {
        Some(list) => Ok(list),
        None => error_at(at, format!("{key} must be an array of strings")),
    }
}

/// Reads a non-negative integer.
pub(super) fn count(map: &Map<String, Value>, key: &str, at: &str) -> SchemaResult<Option<u64>> {
    match map.get(key) {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0) {
            Some(number) => Ok(Some(number as u64)),
            None => error_at(at, format!("{key} must be a non-negative integer")),
        },
    }
}

/// Reads a minimum and a maximum. A maximum beyond [`MAX_COUNT`] is reduced to it, which makes the schema narrower.
pub(super) fn bounds(map: &Map<String, Value>, least: &str, most: &str, at: &str) -> SchemaResult<(u64, Option<u64>)> {
    let (low, high) = (count(map, least, at)?.unwrap_or(0), count(map, most, at)?);
    if low > MAX_COUNT {
        return error_at(at, format!("{least}: expected at most {MAX_COUNT}, got {low}"));
    }
    match high {
        Some(high) if high < low => error_at(at, format!("{least} ({low}) is greater than {most} ({high})")),
        high => Ok((low, high.map(|high| high.min(MAX_COUNT)))),
    }
}
