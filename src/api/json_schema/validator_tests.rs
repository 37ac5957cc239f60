//! A validator for the tests, by the standard's words: of the keywords that their schemas use.

use serde_json::Value;

/// Whether `value` is valid under `schema`, a part of `root`.
pub(super) fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(map) = schema.as_object() else { return schema == &Value::Bool(true) };
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    let count = |schemas: &Value| schemas.as_array().unwrap().iter().filter(|schema| valid(schema, value)).count();
    let number = |limit: &Value, holds: fn(f64, f64) -> bool| {
        value.as_f64().is_none_or(|number| holds(number, limit.as_f64().unwrap()))
    };
    let chars = value.as_str().map(|text| text.chars().count() as u64);
    let items = value.as_array();
    let prefix = map.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    map.iter().all(|(key, wanted)| match key.as_str() {
        "type" => match wanted {
            Value::Array(names) => names.iter().any(|name| has_type(value, name.as_str().unwrap())),
            name => has_type(value, name.as_str().unwrap()),
        },
        "$ref" => valid(root.pointer(&wanted.as_str().unwrap()[1..]).unwrap(), value),
        "const" => wanted == value,
        "enum" => wanted.as_array().unwrap().contains(value),
        "anyOf" => count(wanted) > 0,
        "oneOf" => count(wanted) == 1,
        "allOf" => count(wanted) == wanted.as_array().unwrap().len(),
        "minimum" => number(wanted, |number, limit| number >= limit),
        "maximum" => number(wanted, |number, limit| number <= limit),
        "exclusiveMinimum" => number(wanted, |number, limit| number > limit),
        "exclusiveMaximum" => number(wanted, |number, limit| number < limit),
        "minLength" => chars.is_none_or(|n| n >= wanted.as_u64().unwrap()),
        "maxLength" => chars.is_none_or(|n| n <= wanted.as_u64().unwrap()),
        "minItems" => items.is_none_or(|items| items.len() as u64 >= wanted.as_u64().unwrap()),
        "maxItems" => items.is_none_or(|items| items.len() as u64 <= wanted.as_u64().unwrap()),
        "prefixItems" => {
            items.is_none_or(|items| items.iter().zip(wanted.as_array().unwrap()).all(|(v, s)| valid(s, v)))
        }
        "items" => items.is_none_or(|items| items.iter().skip(prefix).all(|item| valid(wanted, item))),
        "required" => value.as_object().is_none_or(|object| {
            wanted.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
        }),
        "properties" => value
            .as_object()
            .is_none_or(|object| object.iter().all(|(name, v)| wanted.get(name).is_none_or(|schema| valid(schema, v)))),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let known = |name: &str| map.get("properties").is_some_and(|all| all.get(name).is_some());
            object.iter().all(|(name, v)| known(name) || valid(wanted, v))
        }),
        "pattern" | "format" => true, // checked by the schema's own line in the tests
        _ => ["$defs"].contains(&key.as_str()),
    })
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}
