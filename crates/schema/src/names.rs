//! `propertyNames`: which names an object may have.

use std::collections::HashSet;

use serde_json::Value;

use crate::document::{Document, SchemaResult, VISIT, error_at};
use crate::keywords::{UNENFORCEABLE, is_assertion, named_types};

/// The maximum nesting of references and `anyOf`s.
const MAX_DEPTH: usize = 8;

/// The names that a schema for names allows.
pub(crate) enum AllowedNames {
    /// All.
    All,
    /// Those of the list, without duplicates.
    List(Vec<String>),
    /// Those that are valid under the schema, by other keywords than `enum` and `const`.
    Schema,
}

/// Reads a schema for names.
pub(crate) fn allowed(document: &Document<'_>, schema: &Value, at: &str) -> SchemaResult<AllowedNames> {
    let mut names = Vec::new();
    let is_all = match add(document, schema, at, 0, &mut names)? {
        Some(is_all) => is_all,
        None => return Ok(AllowedNames::Schema),
    };
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    Ok(if is_all { AllowedNames::All } else { AllowedNames::List(names) })
}

/// Adds the names that a schema allows. True: all are. `None`: other keywords than `enum` and `const` decide.
fn add(
    document: &Document<'_>,
    schema: &Value,
    at: &str,
    depth: usize,
    names: &mut Vec<String>,
) -> SchemaResult<Option<bool>> {
    let map = match schema {
        Value::Bool(is_all) => return Ok(Some(*is_all)),
        Value::Object(map) if depth <= MAX_DEPTH => map,
        _ => return error_at(at, "expected a schema for names"),
    };
    document.count_steps(VISIT * (1 + map.len()), at)?;
    let types = named_types(map, at)?;
    if !types.is_empty() && !types.iter().any(|name| name == "string") {
        return Ok(Some(false));
    }
    let assertions: Vec<&str> = map.keys().map(String::as_str).filter(|key| restricts(key)).collect();
    match assertions.as_slice() {
        [] => Ok(Some(true)),
        ["enum"] | ["const"] => {
            let values = map.get("enum").and_then(Value::as_array).map(Vec::as_slice);
            let values = values.or(map.get("const").map(std::slice::from_ref)).unwrap_or(&[]);
            document.count_steps(VISIT * values.len(), at)?;
            names.extend(values.iter().filter_map(Value::as_str).map(str::to_owned));
            Ok(Some(false))
        }
        ["$ref"] => match map.get("$ref").and_then(Value::as_str) {
            Some(reference) => add(document, document.resolve(reference, at)?, at, depth + 1, names),
            None => error_at(at, "$ref must be a string"),
        },
        ["anyOf"] => {
            let mut is_all = false;
            for part in map.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
                match add(document, part, at, depth + 1, names)? {
                    Some(all) => is_all |= all,
                    None => return Ok(None),
                }
            }
            Ok(Some(is_all))
        }
        _ => Ok(None),
    }
}

/// Whether a keyword restricts which texts are valid.
fn restricts(key: &str) -> bool {
    key != "type" && key != "format" && (is_assertion(key) || UNENFORCEABLE.contains(&key))
}
