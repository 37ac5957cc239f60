//! `propertyNames`: which names an object may have.

use std::collections::HashSet;

use serde_json::Value;

use super::document::{Document, SchemaResult, VISIT, error_at};
use super::keywords::{UNENFORCEABLE, is_assertion, named_types};

/// The maximum nesting of references and `anyOf`s.
const MAX_DEPTH: usize = 8;

/// The names that a schema for names allows; `None`: all. Only a list of names can be enforced beside "all".
pub(super) fn allowed(document: &Document<'_>, schema: &Value, at: &str) -> SchemaResult<Option<Vec<String>>> {
    let mut names = Vec::new();
    let is_all = add(document, schema, at, 0, &mut names)?;
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok((!is_all).then_some(names))
}

/// Adds the names that a schema allows. True: all are.
fn add(document: &Document<'_>, schema: &Value, at: &str, depth: usize, names: &mut Vec<String>) -> SchemaResult<bool> {
    let map = match schema {
        Value::Bool(is_all) => return Ok(*is_all),
        Value::Object(map) if depth <= MAX_DEPTH => map,
        _ => return error_at(at, "expected a schema for names"),
    };
    document.count_steps(VISIT * (1 + map.len()), at)?;
    let types = named_types(map, at)?;
    if !types.is_empty() && !types.iter().any(|name| name == "string") {
        return Ok(false);
    }
    let assertions: Vec<&str> = map.keys().map(String::as_str).filter(|key| restricts(key)).collect();
    match assertions.as_slice() {
        [] => Ok(true),
        ["enum"] | ["const"] => {
            let values = map.get("enum").and_then(Value::as_array).map(Vec::as_slice);
            let values = values.or(map.get("const").map(std::slice::from_ref)).unwrap_or(&[]);
            document.count_steps(VISIT * values.len(), at)?;
            names.extend(values.iter().filter_map(Value::as_str).map(str::to_owned));
            Ok(false)
        }
        ["$ref"] => match map.get("$ref").and_then(Value::as_str) {
            Some(reference) => add(document, document.resolve(reference, at)?, at, depth + 1, names),
            None => error_at(at, "$ref must be a string"),
        },
        ["anyOf"] => {
            let mut is_all = false;
            for part in map.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
                is_all |= add(document, part, at, depth + 1, names)?;
            }
            Ok(is_all)
        }
        [key, ..] => error_at(at, format!("{key} of names cannot be enforced by a grammar; enum and const can")),
    }
}

/// Whether a keyword restricts which texts are valid.
fn restricts(key: &str) -> bool {
    key != "type" && key != "format" && (is_assertion(key) || UNENFORCEABLE.contains(&key))
}
