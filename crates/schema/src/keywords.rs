//! The keywords: which there are, and how types, names and counts are read.

use serde_json::{Map, Value};

use crate::document::{SchemaResult, empty_at, error_at, show_text, too_large_at};

/// The maximum number of repetitions in a grammar.
const MAX_COUNT: u64 = 100_000;
/// The types of JSON Schema.
pub(crate) const TYPES: [&str; 7] = ["object", "array", "string", "integer", "number", "boolean", "null"];

/// The keywords that restrict one type.
pub(crate) const OF_TYPE: [(&str, &[&str]); 4] = [
    (
        "object",
        &[
            "properties",
            "required",
            "additionalProperties",
            "propertyNames",
            "minProperties",
            "maxProperties",
            "patternProperties",
        ],
    ),
    ("array", &["items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"]),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    ("number", &NUMERIC),
];
pub(crate) const NUMERIC: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// Keywords that no grammar can enforce.
pub(crate) const UNENFORCEABLE: [&str; 12] = [
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "minContains",
    "maxContains",
    "$dynamicRef",
    "$recursiveRef",
];

/// Whether a keyword restricts values.
pub(crate) fn is_assertion(key: &str) -> bool {
    ["$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type"].contains(&key)
        || OF_TYPE.iter().any(|(_, keywords)| keywords.contains(&key))
}

/// Reads `type`: one or several types; empty if absent.
pub(crate) fn named_types(map: &Map<String, Value>, at: &str) -> SchemaResult<Vec<String>> {
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
        Some(name) => error_at(at, format!("unrecognized type {}", show_text(name))),
        None if names.is_empty() => error_at(at, "type must be a string or an array of strings"),
        None => Ok(names),
    }
}

/// Whether a value has the type.
pub(crate) fn is_of_type(value: &Value, name: &str) -> bool {
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
pub(crate) fn strings<'v>(map: &'v Map<String, Value>, key: &str, at: &str) -> SchemaResult<Vec<&'v str>> {
    let Some(value) = map.get(key) else { return Ok(Vec::new()) };
    let list = value.as_array().map(|list| list.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
    match list.flatten() {
        Some(list) => Ok(list),
        None => error_at(at, format!("{key} must be an array of strings")),
    }
}

/// Reads a non-negative integer.
pub(crate) fn count(map: &Map<String, Value>, key: &str, at: &str) -> SchemaResult<Option<u64>> {
    match map.get(key) {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|number| number.fract() == 0.0 && *number >= 0.0) {
            Some(number) => Ok(Some(number as u64)),
            None => error_at(at, format!("{key} must be a non-negative integer")),
        },
    }
}

/// Reads a minimum and a maximum. A maximum beyond [`MAX_COUNT`] is reduced to it, which makes the schema narrower.
pub(crate) fn bounds(map: &Map<String, Value>, least: &str, most: &str, at: &str) -> SchemaResult<(u64, Option<u64>)> {
    let (low, high) = (count(map, least, at)?.unwrap_or(0), count(map, most, at)?);
    if low > MAX_COUNT {
        return too_large_at(at, format!("{least}: expected at most {MAX_COUNT}, got {low}"));
    }
    match high {
        Some(high) if high < low => empty_at(at, format!("{least} ({low}) is greater than {most} ({high})")),
        high => Ok((low, high.map(|high| high.min(MAX_COUNT)))),
    }
}
