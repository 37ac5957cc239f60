//! `not`, `if`, and `oneOf` of schemas that share values, written with the opposites of schemas.
//!
//! The opposite of a schema has exactly the values that are invalid under it. Many schemas have none that a grammar could express; then the
//! keyword stays, and is reported.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::disjoint::{disjoint, follow, required};
use crate::document::{Document, SchemaResult};
use crate::formats;
use crate::keywords::{TYPES, UNENFORCEABLE, count, is_assertion, named_types, strings};

/// The maximum nesting of schemas of which an opposite is written.
const MAX_DEPTH: usize = 4;
/// The most schemas of a `oneOf` that is written with opposites: each is beside the opposites of all others.
const MAX_EXCLUSIVE: usize = 12;
/// The most schemas of such a `oneOf` whose opposites have more alternatives than objects and other values.
const MAX_MANIFOLD: usize = 6;

/// The schema without `not`, `if` and `oneOf`, as far as opposites can be written. `None`: nothing changes.
pub(crate) fn without_negations(
    document: &Document<'_>,
    map: &Map<String, Value>,
    at: &str,
) -> SchemaResult<Option<Value>> {
    let is_any = ["not", "if", "oneOf"].iter().any(|keyword| map.contains_key(*keyword));
    // The properties of an opposite would count as evaluated.
    if !is_any || document.has_unevaluated() {
        return Ok(None);
    }
    let mut rest = map.clone();
    let mut parts = Vec::new();
    if let Some(schema) = map.get("not").filter(|_| !excludes_texts(map))
        && let Some(opposite) = opposite(document, schema, at, 0)?
    {
        rest.remove("not");
        parts.push(opposite);
    }
    if let Some(condition) = map.get("if")
        && let Some(opposite) = opposite(document, condition, at, 0)?
    {
        let branch = |key: &str| map.get(key).cloned().unwrap_or(Value::Bool(true));
        let branches = [(condition.clone(), branch("then")), (opposite, branch("else"))];
        let branches: Vec<Value> = branches.into_iter().map(|(one, other)| both(one, other)).collect();
        ["if", "then", "else"].iter().for_each(|key| drop(rest.remove(*key)));
        parts.push(json!({ "anyOf": branches }));
    }
    if let Some(list) = map.get("oneOf").and_then(Value::as_array)
        && let Some(alternatives) = exclusive(document, list, at)?
    {
        rest.remove("oneOf");
        parts.push(json!({ "anyOf": alternatives }));
    }
    if parts.is_empty() {
        return Ok(None);
    }
    let whole = parts.into_iter().fold(Value::Object(rest), both);
    document.count_copy(&whole, at)?;
    Ok(Some(whole))
}

/// Whether a schema for strings excludes lists of texts and patterns by `not`, which the reader of strings applies.
pub(crate) fn excludes_texts(map: &Map<String, Value>) -> bool {
    let is_text = |name: &Value| name == "string";
    let is_text = map.get("type").is_some_and(|name| match name.as_array() {
        Some(names) => !names.is_empty() && names.iter().all(is_text),
        None => is_text(name),
    });
    is_text && map.get("not").is_some_and(|not| excluded(not, &mut Vec::new()))
}

/// Adds the values of `enum` and the patterns of a schema that has nothing else, or alternatives of such.
pub(crate) fn excluded<'v>(not: &'v Value, keywords: &mut Vec<(&'static str, &'v Value)>) -> bool {
    let Some((key, value)) = not.as_object().filter(|map| map.len() == 1).and_then(|map| map.iter().next()) else {
        return false;
    };
    match (key.as_str(), value) {
        ("enum", Value::Array(_)) => keywords.push(("enum", value)),
        ("pattern", Value::String(_)) => keywords.push(("pattern", value)),
        ("anyOf", Value::Array(parts)) => return parts.iter().all(|part| excluded(part, keywords)),
        _ => return false,
    }
    true
}

/// The schema of values that are valid under both.
pub(crate) fn both(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Bool(true), schema) | (schema, Value::Bool(true)) => schema,
        (Value::Bool(false), _) | (_, Value::Bool(false)) => Value::Bool(false),
        (one, other) => json!({ "allOf": [one, other] }),
    }
}

/// The schema of values that are valid under any of them.
fn any_of(schemas: Vec<Value>) -> Value {
    let mut schemas: Vec<Value> = schemas.into_iter().filter(|schema| *schema != Value::Bool(false)).collect();
    match schemas.len() {
        0 => Value::Bool(false),
        _ if schemas.contains(&Value::Bool(true)) => Value::Bool(true),
        1 => schemas.swap_remove(0),
        _ => json!({ "anyOf": schemas }),
    }
}

/// The schemas of a `oneOf`, each beside the opposites of the others. `None`: no two share a value, or an opposite cannot be written.
fn exclusive(document: &Document<'_>, list: &[Value], at: &str) -> SchemaResult<Option<Vec<Value>>> {
    if list.len() > MAX_EXCLUSIVE {
        return Ok(None);
    }
    let list_at = format!("{at}/oneOf");
    let mut shares = false;
    for (index, one) in list.iter().enumerate() {
        for other in list.iter().take(index) {
            shares |= !disjoint(document, one, other, &list_at, 0)?;
        }
    }
    if !shares {
        return Ok(None);
    }
    let mut opposites = Vec::new();
    for (index, schema) in list.iter().enumerate() {
        let whole = opposite(document, schema, at, 0)?;
        let Some(opposite) = (if whole.is_some() { whole } else { opposite_of_own(document, list, index, &list_at)? })
        else {
            return Ok(None);
        };
        opposites.push(opposite);
    }
    let is_manifold =
        |opposite: &Value| opposite.get("anyOf").and_then(Value::as_array).is_some_and(|all| all.len() > 2);
    if list.len() > MAX_MANIFOLD && opposites.iter().any(is_manifold) {
        return Ok(None);
    }
    let alternatives = list.iter().enumerate().map(|(index, schema)| {
        let others = opposites.iter().enumerate().filter(|(other, _)| *other != index);
        others.fold(schema.clone(), |all, (_, opposite)| both(all, opposite.clone()))
    });
    let alternatives: Vec<Value> = alternatives.collect();
    document.count_copy(&json!(alternatives), at)?;
    Ok(Some(alternatives))
}

/// The opposite of the type of a schema and of the only property that it requires and no other one of the list: fewer values than its own
/// opposite has. `None`: there is no such property.
fn opposite_of_own(document: &Document<'_>, list: &[Value], index: usize, at: &str) -> SchemaResult<Option<Value>> {
    let (mut own, mut others) = (Map::new(), HashSet::new());
    let mut names = Vec::new();
    for (other, schema) in list.iter().enumerate() {
        let schema = follow(document, schema, at)?;
        if other == index {
            names = required(document, schema, at)?;
            own.extend(schema.get("type").map(|kind| ("type".to_owned(), kind.clone())));
        } else {
            others.extend(required(document, schema, at)?);
        }
    }
    names.retain(|name| !others.contains(name));
    if names.len() != 1 {
        return Ok(None);
    }
    own.insert("required".to_owned(), json!(names));
    opposite(document, &Value::Object(own), at, 0)
}

/// The opposite of a schema. `None`: it cannot be written.
fn opposite(document: &Document<'_>, schema: &Value, at: &str, depth: usize) -> SchemaResult<Option<Value>> {
    document.count_copy(schema, at)?;
    let map = match schema {
        Value::Bool(all) => return Ok(Some(Value::Bool(!all))),
        Value::Object(map) => map,
        _ => return Ok(None),
    };
    if depth > MAX_DEPTH {
        return Ok(None);
    }
    let mut parts = Vec::new();
    // Before draft 2019-09 the keywords beside a reference do not count.
    let is_reference = map.contains_key("$ref");
    let counts = |key: &str| (is_assertion(key) || UNENFORCEABLE.contains(&key)) && (!is_reference || key == "$ref");
    for (key, value) in map.iter().filter(|(key, _)| counts(key)) {
        match opposite_of_keyword(document, map, key, value, at, depth)? {
            Some(part) => parts.push(part),
            None => return Ok(None),
        }
    }
    Ok(Some(any_of(parts)))
}

/// The opposite of one keyword.
fn opposite_of_keyword(
    document: &Document<'_>,
    map: &Map<String, Value>,
    key: &str,
    value: &Value,
    at: &str,
    depth: usize,
) -> SchemaResult<Option<Value>> {
    let inner = |schema: &Value| opposite(document, schema, at, depth + 1);
    let each = || -> SchemaResult<Option<Vec<Value>>> {
        value.as_array().map_or(Ok(None), |list| list.iter().map(inner).collect())
    };
    // The opposite of a bound, for the type that it restricts.
    let beyond = |bound: &str, by: i64| -> SchemaResult<Option<Value>> {
        let kind = if bound.ends_with("Length") {
            "string"
        } else if bound.ends_with("Items") {
            "array"
        } else {
            "object"
        };
        let limit = count(map, key, at)?.and_then(|limit| i64::try_from(limit).ok()).map(|limit| limit + by);
        Ok(limit.map(|limit| if limit < 0 { Value::Bool(false) } else { json!({"type": kind, bound: limit}) }))
    };
    let number = |bound: &str| value.is_number().then(|| json!({"type": "number", bound: value}));
    Ok(match key {
        "type" => {
            let names = named_types(map, at)?;
            let has = |name: &str| names.iter().any(|known| known == name);
            let others: Vec<&str> = TYPES.into_iter().filter(|name| *name != "integer" && !has(name)).collect();
            match has("integer") && !has("number") {
                // Numbers that are no integers.
                true => None,
                false if others.is_empty() => Some(Value::Bool(false)),
                false => Some(json!({ "type": others })),
            }
        }
        "const" => opposite_of_values(std::slice::from_ref(value)),
        "enum" => value.as_array().and_then(|values| opposite_of_values(values)),
        "required" => {
            let without = |name: &str| json!({"type": "object", "properties": {name: false}});
            Some(any_of(strings(map, "required", at)?.into_iter().map(without).collect()))
        }
        "properties" => {
            let mut parts = Vec::new();
            for (name, schema) in value.as_object().into_iter().flatten() {
                let Some(opposite) = inner(schema)? else { return Ok(None) };
                if opposite != Value::Bool(false) {
                    parts.push(json!({"type": "object", "properties": {name: opposite}, "required": [name]}));
                }
            }
            Some(any_of(parts))
        }
        "not" => Some(value.clone()),
        "anyOf" => each()?.map(|parts| parts.into_iter().fold(Value::Bool(true), both)),
        "allOf" => each()?.map(any_of),
        "$ref" => match value.as_str() {
            Some(reference) => inner(document.resolve(reference, at)?)?,
            None => None,
        },
        "minimum" => number("exclusiveMaximum"),
        "maximum" => number("exclusiveMinimum"),
        "exclusiveMinimum" => number("maximum"),
        "exclusiveMaximum" => number("minimum"),
        "minLength" => beyond("maxLength", -1)?,
        "maxLength" => beyond("minLength", 1)?,
        "minItems" => beyond("maxItems", -1)?,
        "maxItems" => beyond("minItems", 1)?,
        "minProperties" => beyond("maxProperties", -1)?,
        "maxProperties" => beyond("minProperties", 1)?,
        // An annotation.
        "format" if value.as_str().is_some_and(|format| formats::pattern(format).is_none()) => Some(Value::Bool(false)),
        "pattern" => Some(json!({"type": "string", "not": {"pattern": value}})),
        _ => None,
    })
}

/// The opposite of a list of texts, flags and null.
fn opposite_of_values(values: &[Value]) -> Option<Value> {
    if values.iter().any(|value| value.is_number() || value.is_array() || value.is_object()) {
        return None;
    }
    let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    let has = |value: &Value| values.contains(value);
    let is_left = |name: &&str| match *name {
        "string" => texts.is_empty(),
        "boolean" => !has(&Value::Bool(true)) && !has(&Value::Bool(false)),
        "null" => !has(&Value::Null),
        name => name != "integer",
    };
    let others: Vec<&str> = TYPES.into_iter().filter(is_left).collect();
    let mut parts = vec![json!({ "type": others })];
    if !texts.is_empty() {
        parts.push(json!({"type": "string", "not": {"enum": texts}}));
    }
    for flag in [true, false] {
        if has(&Value::Bool(flag)) && !has(&Value::Bool(!flag)) {
            parts.push(json!({ "const": !flag }));
        }
    }
    Some(any_of(parts))
}
