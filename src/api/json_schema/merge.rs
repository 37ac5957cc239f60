//! `allOf`: several schemas made one.

use serde_json::{Map, Value, json};

use super::keywords::strings;
use super::{Checked, is_assertion, wrong};

/// Most references in a row.
const MAX_DEPTH: usize = 16;

/// The one schema that says what `map` and all of its `allOf` say.
pub(super) fn all_of<'a>(
    map: &Map<String, Value>,
    at: &str,
    resolve: &dyn Fn(&str) -> Checked<&'a Value>,
) -> Checked<Value> {
    let mut merged = Map::new();
    add(&mut merged, map, at, resolve, 0)?;
    Ok(Value::Object(merged))
}

fn add<'a>(
    merged: &mut Map<String, Value>,
    map: &Map<String, Value>,
    at: &str,
    resolve: &dyn Fn(&str) -> Checked<&'a Value>,
    depth: usize,
) -> Checked<()> {
    if depth > MAX_DEPTH {
        return wrong(at, "allOf refers to itself, or too deep");
    }
    // Closed objects forbid each other's properties.
    let closes = |map: &Map<String, Value>| map.contains_key("additionalProperties");
    if merged.contains_key("properties") && closes(map) || closes(merged) && map.contains_key("properties") {
        return wrong(at, "additionalProperties in a part of allOf cannot be enforced");
    }
    for (key, value) in map {
        match (key.as_str(), merged.get_mut(key)) {
            ("allOf", _) => {}
            ("$ref", _) if depth > 0 || map.contains_key("allOf") => {
                let Some(reference) = value.as_str() else { return wrong(at, "$ref must be a string") };
                let Some(target) = resolve(reference)?.as_object() else {
                    return wrong(at, "a part of allOf is no schema");
                };
                add(merged, target, at, resolve, depth + 1)?;
            }
            ("required", Some(_)) => {
                let mut names = strings(merged, "required", at)?;
                names.extend(strings(map, "required", at)?);
                names.sort_unstable();
                names.dedup();
                let names = json!(names);
                merged.insert("required".into(), names);
            }
            ("properties", Some(Value::Object(before))) => {
                for (name, schema) in value.as_object().into_iter().flatten() {
                    match before.get(name) {
                        Some(other) if other != schema => {
                            let both = json!({"allOf": [other, schema]});
                            before.insert(name.clone(), both);
                        }
                        _ => {
                            before.insert(name.clone(), schema.clone());
                        }
                    }
                }
            }
            (_, Some(before)) if before == value => {}
            (_, Some(_)) if !is_assertion(key) => {}
            (_, Some(_)) => return wrong(at, format!("{key} in two parts of allOf cannot be enforced")),
            (_, None) => {
                merged.insert(key.clone(), value.clone());
            }
        }
    }
    match map.get("allOf") {
        None => Ok(()),
        Some(Value::Array(parts)) if !parts.is_empty() => parts.iter().try_for_each(|part| match part {
            Value::Object(part) => add(merged, part, at, resolve, depth + 1),
            Value::Bool(true) => Ok(()),
            _ => wrong(at, "a part of allOf is no schema, or never valid"),
        }),
        Some(_) => wrong(at, "allOf must be an array of schemas, and not empty"),
    }
}
