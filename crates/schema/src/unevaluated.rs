//! `unevaluatedProperties` and `unevaluatedItems`: what no other keyword of the same schema, its references and its alternatives lists.
//!
//! Once these are merged, each is `additionalProperties` or `items`. If several alternatives are valid at once, only those properties are
//! allowed that one of them lists, which is narrower.

use serde_json::{Map, Value};

/// The keywords.
pub(crate) const UNEVALUATED: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];

/// A schema without these keywords, and the keywords. `None`: it has none.
pub(crate) fn split(map: &Map<String, Value>) -> Option<(Map<String, Value>, Map<String, Value>)> {
    let is_rest = |key: &str| !UNEVALUATED.contains(&key);
    if map.keys().all(|key| is_rest(key)) {
        return None;
    }
    Some(map.clone().into_iter().partition(|(key, _)| is_rest(key)))
}

/// A schema with these keywords beside its own.
pub(crate) fn with(schema: &Value, unevaluated: &Map<String, Value>) -> Value {
    match schema {
        Value::Object(map) => {
            let own = map.clone().into_iter();
            Value::Object(own.chain(unevaluated.clone()).collect())
        }
        other => other.clone(),
    }
}

/// The keywords of a schema without references and alternatives as the keywords for what it does not list.
pub(crate) fn as_rest(mut map: Map<String, Value>, unevaluated: Map<String, Value>) -> Value {
    for (keyword, schema) in unevaluated {
        let is_tuple = map.get("items").is_some_and(Value::is_array);
        let rest = match (keyword.as_str(), is_tuple) {
            ("unevaluatedProperties", _) => "additionalProperties",
            (_, true) => "additionalItems",
            (_, false) => "items",
        };
        map.entry(rest).or_insert(schema);
    }
    Value::Object(map)
}
