//! Objects and arrays that are written as elements: each value of an object in an element with its key as the name, each item of an array in
//! an element `item`.

use serde_json::{Map, Value};

/// The deepest nesting of elements that is read.
const MAX_NESTING: usize = 64;
/// The name of an item's element.
pub(crate) const ITEM: &str = "item";

/// The value that the text of an element means. `begin` is the text before an element's name; `raw` is the value's schema.
pub(crate) fn read(text: &str, begin: &str, raw: &Value) -> Option<Value> {
    let (value, end) = value(text, begin, raw, 0)?;
    text.get(end..).filter(|rest| rest.trim().is_empty()).map(|_| value)
}

/// The value at the beginning of a text, and where it ends: at the end of the text, or at the end of the element around it.
fn value(text: &str, begin: &str, raw: &Value, depth: usize) -> Option<(Value, usize)> {
    if depth > MAX_NESTING {
        return None;
    }
    let ends = format!("{begin}/");
    let is = |kind: &str| raw.get("type").is_some_and(|it| it == kind);
    let begins = |at: usize| {
        let rest = text.get(at..).unwrap_or_default();
        let trimmed = rest.trim_start();
        let opens = trimmed.starts_with(begin) && !trimmed.starts_with(ends.as_str());
        opens.then(|| at + rest.len() - trimmed.len() + begin.len())
    };
    if begins(0).is_none() {
        let end = text.find(ends.as_str()).unwrap_or(text.len());
        let leaf = text.get(..end)?;
        let empty = leaf.trim().is_empty();
        let parsed = serde_json::from_str::<Value>(leaf).ok().filter(|value| !value.is_string() && !is("string"));
        return Some(match parsed {
            _ if empty && is("object") => (Value::Object(Map::new()), end),
            _ if empty && is("array") => (Value::Array(Vec::new()), end),
            Some(value) => (value, end),
            None => (Value::from(leaf), end),
        });
    }
    let (mut items, mut fields, mut at) = (Vec::new(), Map::new(), 0);
    while let Some(start) = begins(at) {
        let rest = text.get(start..)?;
        let name = rest.get(..rest.find('>')?)?;
        let inner_start = start + name.len() + 1;
        let schema = match name {
            ITEM if !is("object") => raw.get("items"),
            _ => raw.get("properties").and_then(|properties| properties.get(name)),
        };
        let (inner, length) = value(text.get(inner_start..)?, begin, schema.unwrap_or(&Value::Null), depth + 1)?;
        let close = format!("{ends}{name}>");
        let after = text.get(inner_start + length..)?;
        let trimmed = after.trim_start();
        if !trimmed.starts_with(close.as_str()) {
            return None;
        }
        at = inner_start + length + (after.len() - trimmed.len()) + close.len();
        if name == ITEM && !is("object") {
            items.push(inner);
        } else if fields.insert(name.to_owned(), inner).is_some() {
            return None;
        }
    }
    match (items.is_empty(), fields.is_empty()) {
        (false, true) => Some((Value::Array(items), at)),
        (true, false) => Some((Value::Object(fields), at)),
        _ => None,
    }
}
