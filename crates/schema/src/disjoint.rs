//! `oneOf`: a grammar can enforce it only if no value satisfies two of the schemas.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use serde_json::{Map, Number, Value};

use crate::document::{Document, SchemaResult, n_values};
use crate::keywords::{TYPES, is_of_type};

/// The maximum depth of nested properties that are compared.
const MAX_DEPTH: usize = 8;

/// Returns whether certainly no value is valid under both schemas. Fails if the step limit is reached first: recursive types have
/// too many pairs of properties to compare.
pub(crate) fn disjoint<'a>(
    document: &Document<'a>,
    a: &'a Value,
    b: &'a Value,
    at: &str,
    depth: usize,
) -> SchemaResult<bool> {
    document.count_steps(1, at)?;
    if depth > MAX_DEPTH {
        return Ok(false);
    }
    let (a, b) = (follow(document, a, at)?, follow(document, b, at)?);
    if let (Some(x), Some(y)) = (values(a), values(b)) {
        document.count_steps(x.iter().chain(y).map(n_values).sum(), at)?;
        return Ok(share_nothing(x, y));
    }
    for (some, other) in [(a, b), (b, a)] {
        if let Some(values) = values(some)
            && let Some(types) = types(other)
        {
            document.count_steps(values.len(), at)?;
            if !values.iter().any(|value| types.iter().any(|name| is_of_type(value, name))) {
                return Ok(true);
            }
        }
    }
    let (Some(x), Some(y)) = (types(a), types(b)) else { return Ok(false) };
    let numeric = |name: &str| name == "integer" || name == "number";
    let common = x.iter().any(|x| y.iter().any(|y| x == y || numeric(x) && numeric(y)));
    if !common {
        return Ok(true);
    }
    if x != ["object"] || y != ["object"] {
        return Ok(false);
    }
    objects(document, a, b, at, depth)
}

/// Whether both schemas require a property for which no value is valid under both, or one requires a property that the other forbids.
pub(crate) fn objects<'a>(
    document: &Document<'a>,
    a: &'a Value,
    b: &'a Value,
    at: &str,
    depth: usize,
) -> SchemaResult<bool> {
    let (mine, theirs) = (required(document, a, at)?, required(document, b, at)?);
    for (names, other) in [(&mine, b), (&theirs, a)] {
        let is_closed = other.get("additionalProperties") == Some(&Value::Bool(false))
            && other.get("patternProperties").is_none()
            && other.get("$ref").is_none();
        let forbids = |name: &&str| match properties(other).and_then(|listed| listed.get(*name)) {
            Some(schema) => *schema == Value::Bool(false),
            None => is_closed,
        };
        if names.iter().any(forbids) {
            return Ok(true);
        }
    }
    let (Some(one), Some(other)) = (properties(a), properties(b)) else { return Ok(false) };
    let theirs: HashSet<&str> = theirs.into_iter().collect();
    for name in mine.into_iter().filter(|name| theirs.contains(name)) {
        if let Some(one) = one.get(name)
            && let Some(other) = other.get(name)
            && disjoint(document, one, other, at, depth + 1)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The schema, or the schema that it refers to.
pub(crate) fn follow<'a>(document: &Document<'a>, schema: &'a Value, at: &str) -> SchemaResult<&'a Value> {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => document.resolve(reference, at),
        None => Ok(schema),
    }
}

/// Whether the lists have no value in common, in linear time.
fn share_nothing(x: &[Value], y: &[Value]) -> bool {
    let (few, many) = if x.len() < y.len() { (x, y) } else { (y, x) };
    if let [only] = few {
        return !many.iter().any(|value| JsonValue(value) == JsonValue(only));
    }
    let few: HashSet<JsonValue<'_>> = few.iter().map(JsonValue).collect();
    !many.iter().any(|value| few.contains(&JsonValue(value)))
}

/// A value with the equality of the standard: `1.0` equals `1`, also inside arrays and objects.
pub(crate) struct JsonValue<'v>(pub(crate) &'v Value);

impl PartialEq for JsonValue<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Value::Number(x), Value::Number(y)) => number(x) == number(y),
            (Value::Array(x), Value::Array(y)) => {
                x.len() == y.len() && x.iter().zip(y).all(|(x, y)| JsonValue(x) == JsonValue(y))
            }
            (Value::Object(x), Value::Object(y)) => {
                let same = |(name, x): (&String, &Value)| y.get(name).is_some_and(|y| JsonValue(x) == JsonValue(y));
                x.len() == y.len() && x.iter().all(same)
            }
            (x, y) => x == y,
        }
    }
}

impl Eq for JsonValue<'_> {}

impl Hash for JsonValue<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0 {
            Value::Number(x) => number(x).hash(state),
            Value::Array(items) => {
                items.len().hash(state);
                items.iter().for_each(|item| JsonValue(item).hash(state));
            }
            Value::Object(map) => {
                let mut fields: Vec<(&String, &Value)> = map.iter().collect();
                fields.sort_unstable_by_key(|field| field.0);
                fields.len().hash(state);
                fields.into_iter().for_each(|(name, value)| (name, JsonValue(value)).hash(state));
            }
            other => other.hash(state),
        }
    }
}

/// A key with the same value for equal numbers: the integer, or the bits of another number.
fn number(number: &Number) -> (Option<i128>, u64) {
    let float = number.as_f64().unwrap_or(0.0);
    // Larger integers do not occur in JSON as i64 or u64.
    let is_whole = float.fract() == 0.0 && float.abs() < 1e20;
    let whole = number.as_i128().or(is_whole.then_some(float as i128));
    (whole, if whole.is_none() { float.to_bits() } else { 0 })
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// The names of the required properties.
pub(crate) fn required<'v>(document: &Document<'_>, schema: &'v Value, at: &str) -> SchemaResult<Vec<&'v str>> {
    let Some(names) = schema.get("required") else { return Ok(Vec::new()) };
    document.count_steps(n_values(names), at)?;
    Ok(names.as_array().into_iter().flatten().filter_map(Value::as_str).collect())
}

/// The values of `const` or `enum`.
fn values(schema: &Value) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(values)) => values.as_array().map(Vec::as_slice),
        (None, None) => None,
    }
}

/// The types in `type`.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) if names.len() <= TYPES.len() => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}
