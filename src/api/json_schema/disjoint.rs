//! `oneOf`: exactly one of several schemas, which a grammar enforces only where no value satisfies two.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use serde_json::{Map, Number, Value};

use super::keywords::{TYPES, is_of_type};
use super::steps::weight;
use super::{Checked, Reader};

/// How deep a property is looked for that cannot be valid for both.
const MAX_DEPTH: usize = 8;

/// Whether it is certain that no value is valid under both schemas. An error when the steps run out before that is
/// known: types that refer to themselves have more pairs of properties than anybody could compare.
pub(super) fn disjoint<'a>(reader: &Reader<'a>, a: &'a Value, b: &'a Value, at: &str, depth: usize) -> Checked<bool> {
    reader.steps.take(1, at)?;
    if depth > MAX_DEPTH {
        return Ok(false);
    }
    let (a, b) = (follow(reader, a, at)?, follow(reader, b, at)?);
    if let (Some(x), Some(y)) = (values(a), values(b)) {
        reader.steps.take(x.iter().chain(y).map(weight).sum(), at)?;
        return Ok(share_nothing(x, y));
    }
    for (some, other) in [(a, b), (b, a)] {
        if let Some(values) = values(some)
            && let Some(types) = types(other)
        {
            reader.steps.take(values.len(), at)?;
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
    objects(reader, a, b, at, depth)
}

/// Whether both require a property that cannot be valid for both.
fn objects<'a>(reader: &Reader<'a>, a: &'a Value, b: &'a Value, at: &str, depth: usize) -> Checked<bool> {
    let (Some(mine), Some(theirs)) = (properties(a), properties(b)) else { return Ok(false) };
    let needed: HashSet<&str> = required(reader, b, at)?.into_iter().collect();
    for name in required(reader, a, at)? {
        if needed.contains(name)
            && let Some(one) = mine.get(name)
            && let Some(other) = theirs.get(name)
            && disjoint(reader, one, other, at, depth + 1)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The schema, or what it refers to.
fn follow<'a>(reader: &Reader<'a>, schema: &'a Value, at: &str) -> Checked<&'a Value> {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(reference) => reader.resolve(reference, at),
        None => Ok(schema),
    }
}

/// Whether no value is in both lists, found out in one walk through each: the lists may be long.
fn share_nothing(x: &[Value], y: &[Value]) -> bool {
    let (few, many) = if x.len() < y.len() { (x, y) } else { (y, x) };
    if let [only] = few {
        return !many.iter().any(|value| Worth(value) == Worth(only));
    }
    let few: HashSet<Worth<'_>> = few.iter().map(Worth).collect();
    !many.iter().any(|value| few.contains(&Worth(value)))
}

/// A value, equal to what the standard has it equal to: `1.0` is `1`, in arrays and objects, too.
struct Worth<'v>(&'v Value);

impl PartialEq for Worth<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Value::Number(x), Value::Number(y)) => number(x) == number(y),
            (Value::Array(x), Value::Array(y)) => {
                x.len() == y.len() && x.iter().zip(y).all(|(x, y)| Worth(x) == Worth(y))
            }
            (Value::Object(x), Value::Object(y)) => {
                let same = |(name, x): (&String, &Value)| y.get(name).is_some_and(|y| Worth(x) == Worth(y));
                x.len() == y.len() && x.iter().all(same)
            }
            (x, y) => x == y,
        }
    }
}

impl Eq for Worth<'_> {}

impl Hash for Worth<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self.0 {
            Value::Number(x) => number(x).hash(state),
            Value::Array(items) => {
                items.len().hash(state);
                items.iter().for_each(|item| Worth(item).hash(state));
            }
            Value::Object(map) => {
                let mut fields: Vec<(&String, &Value)> = map.iter().collect();
                fields.sort_unstable_by_key(|field| field.0);
                fields.len().hash(state);
                fields.into_iter().for_each(|(name, value)| (name, Worth(value)).hash(state));
            }
            other => other.hash(state),
        }
    }
}

/// What a number is worth, however it is written: itself if it is whole, and the bits of another.
fn number(number: &Number) -> (Option<i128>, u64) {
    let float = number.as_f64().unwrap_or(0.0);
    // No integer of a schema is larger.
    let is_whole = float.fract() == 0.0 && float.abs() < 1e20;
    let whole = number.as_i128().or(is_whole.then_some(float as i128));
    (whole, if whole.is_none() { float.to_bits() } else { 0 })
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// The names of the properties that a schema requires.
fn required<'v>(reader: &Reader<'_>, schema: &'v Value, at: &str) -> Checked<Vec<&'v str>> {
    let Some(names) = schema.get("required") else { return Ok(Vec::new()) };
    reader.steps.take(weight(names), at)?;
    Ok(names.as_array().into_iter().flatten().filter_map(Value::as_str).collect())
}

/// The values of an enumeration.
fn values(schema: &Value) -> Option<&[Value]> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(values)) => values.as_array().map(Vec::as_slice),
        (None, None) => None,
    }
}

/// The types that a schema names.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) if names.len() <= TYPES.len() => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}
