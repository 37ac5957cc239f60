//! `dependentRequired`, `dependentSchemas` and `dependencies`: alternatives with and without each property on which others depend.

use serde_json::{Map, Value, json};

use crate::document::{Document, SchemaResult};

/// The keywords. Each has an object with a list of names, or a schema, for each property.
const KEYWORDS: [&str; 3] = ["dependentRequired", "dependentSchemas", "dependencies"];
/// The maximum number of properties on which others depend.
const MAX_TRIGGERS: usize = 5;

/// The schema as alternatives without these keywords. `None`: it has none, or there would be too many alternatives.
pub(crate) fn alternatives(document: &Document<'_>, map: &Map<String, Value>, at: &str) -> SchemaResult<Option<Value>> {
    let entries = KEYWORDS.iter().filter_map(|keyword| map.get(*keyword)?.as_object());
    let entries: Vec<(&String, &Value)> = entries.flatten().take(MAX_TRIGGERS + 1).collect();
    let is_combined = ["anyOf", "oneOf", "allOf", "$ref"].iter().any(|keyword| map.contains_key(*keyword));
    if entries.is_empty() || entries.len() > MAX_TRIGGERS {
        return Ok(None);
    }
    if is_combined {
        // The alternatives stand beside those of other keywords.
        let is_own = |key: &str| KEYWORDS.contains(&key);
        document.count_copy(&Value::Object(map.clone()), at)?;
        let (own, rest): (Map<_, _>, Map<_, _>) = map.clone().into_iter().partition(|(key, _)| is_own(key));
        return Ok(alternatives(document, &own, at)?.map(|own| json!({ "allOf": [rest, own] })));
    }
    let rest = map.iter().filter(|(key, _)| !KEYWORDS.contains(&key.as_str()));
    let rest: Map<String, Value> = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
    let mut alternatives = Vec::new();
    for present in 0..1_usize << entries.len() {
        document.count_copy(&Value::Object(rest.clone()), at)?;
        let mut part = rest.clone();
        let mut schemas = Vec::new();
        let mut required: Vec<Value> = rest.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut is_possible = true;
        for (index, (name, wanted)) in entries.iter().enumerate() {
            if present >> index & 1 == 0 {
                is_possible &= !required.contains(&json!(name));
                match part.entry("properties").or_insert_with(|| json!({})) {
                    Value::Object(properties) => properties.insert(String::clone(name), Value::Bool(false)),
                    _ => return Ok(None),
                };
                continue;
            }
            required.push(json!(name));
            document.count_copy(wanted, at)?;
            match wanted {
                Value::Array(names) => required.extend(names.iter().cloned()),
                schema => schemas.push(Value::clone(schema)),
            }
        }
        let is_absent = |name: &Value| {
            let schema = name.as_str().and_then(|name| part.get("properties")?.get(name));
            schema == Some(&Value::Bool(false))
        };
        if !is_possible || required.iter().any(is_absent) {
            continue;
        }
        if !required.is_empty() {
            part.insert("required".to_owned(), required.into());
        }
        schemas.insert(0, part.into());
        alternatives.push(if schemas.len() == 1 { schemas.swap_remove(0) } else { json!({ "allOf": schemas }) });
    }
    Ok((!alternatives.is_empty()).then(|| json!({ "anyOf": alternatives })))
}
