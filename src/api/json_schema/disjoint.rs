//! `oneOf`: exactly one of several schemas, which a grammar enforces only where no value satisfies two.

use serde_json::Value;

use super::keywords::is_of_type;

/// Whether it is certain that no value is valid under both schemas.
pub(super) fn disjoint<'a>(
    a: &'a Value,
    b: &'a Value,
    resolve: &dyn Fn(&str) -> Option<&'a Value>,
    depth: usize,
) -> bool {
    if depth > 8 {
        return false;
    }
    let follow = |schema: &'a Value| match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => resolve(reference),
        None => Some(schema),
    };
    let (Some(a), Some(b)) = (follow(a), follow(b)) else { return false };
    if let (Some(x), Some(y)) = (values(a), values(b)) {
        return !x.iter().any(|value| y.contains(value));
    }
    for (some, other) in [(a, b), (b, a)] {
        if let (Some(values), Some(types)) = (values(some), types(other))
            && !values.iter().any(|value| types.iter().any(|name| is_of_type(value, name)))
        {
            return true;
        }
    }
    let (Some(x), Some(y)) = (types(a), types(b)) else { return false };
    let numeric = |name: &str| name == "integer" || name == "number";
    let common = x.iter().any(|x| y.iter().any(|y| x == y || numeric(x) && numeric(y)));
    if !common {
        return true;
    }
    if x != ["object"] || y != ["object"] {
        return false;
    }
    // Both require a property that cannot be valid for both.
    let requires = |schema: &Value, name: &str| {
        schema.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|other| other == name))
    };
    let property = |schema: &'a Value, name: &str| schema.get("properties").and_then(|all| all.get(name));
    let names = a.get("properties").and_then(Value::as_object);
    names.into_iter().flatten().any(|(name, schema)| {
        requires(a, name)
            && requires(b, name)
            && property(b, name).is_some_and(|other| disjoint(schema, other, resolve, depth + 1))
    })
}

/// The values of an enumeration.
fn values(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(values)) => Some(values.as_array()?.iter().collect()),
        (None, None) => None,
    }
}

/// The types that a schema names.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}
