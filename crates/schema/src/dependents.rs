//! `dependentRequired`, `dependentSchemas` and `dependencies`: alternatives with and without each property on which others depend.

use serde_json::{Map, Value, json};

use crate::document::{Document, SchemaResult};
use crate::negation::both;

/// The keywords. Each has an object with a list of names, or a schema, for each property.
const KEYWORDS: [&str; 3] = ["dependentRequired", "dependentSchemas", "dependencies"];
/// The maximum number of properties on which others depend.
const MAX_TRIGGERS: usize = 5;

/// The schema as alternatives without these keywords. `None`: it has none, or there would be too many alternatives.
pub(crate) fn alternatives(document: &Document<'_>, map: &Map<String, Value>, at: &str) -> SchemaResult<Option<Value>> {
    let entries = KEYWORDS.iter().filter_map(|keyword| map.get(*keyword)?.as_object());
    let entries: Vec<(&String, &Value)> = entries.flatten().take(MAX_TRIGGERS + 1).collect();
    if entries.is_empty() || entries.len() > MAX_TRIGGERS {
        return Ok(None);
    }
    document.count_copy(&Value::Object(map.clone()), at)?;
    let is_kept = |key: &&String| !KEYWORDS.contains(&key.as_str());
    let rest: Map<String, Value> =
        map.iter().filter(|(key, _)| is_kept(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut parts = vec![Value::Object(rest)];
    for (name, wanted) in entries {
        let wanted = if wanted.is_array() { json!({ "required": wanted }) } else { wanted.clone() };
        let present = both(json!({ "required": [name] }), wanted);
        parts.push(json!({ "anyOf": [{"properties": {name: false}}, present] }));
    }
    Ok(Some(json!({ "allOf": parts })))
}
