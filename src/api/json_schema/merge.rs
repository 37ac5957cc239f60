//! `allOf`: several schemas made one.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::keywords::strings;
use super::steps::VISIT;
use super::{BEYOND, Checked, MAX_NODES, Reader, is_assertion, wrong};

/// Most references in a row.
const MAX_DEPTH: usize = 16;

/// The one schema that says what `map` and all of its `allOf` say.
pub(super) fn all_of(reader: &Reader<'_>, map: &Map<String, Value>, at: &str) -> Checked<Value> {
    let mut merge = Merge { reader, at, merged: Map::new(), joined: HashSet::new() };
    merge.add(map, 0)?;
    Ok(Value::Object(merge.merged))
}

struct Merge<'m, 'a> {
    reader: &'m Reader<'a>,
    at: &'m str,
    merged: Map<String, Value>,
    /// The properties whose schema is an `allOf` that was made here, not one of the schema's own.
    joined: HashSet<String>,
}

impl Merge<'_, '_> {
    /// Adds a part, and what it consists of.
    fn add(&mut self, map: &Map<String, Value>, depth: usize) -> Checked<()> {
        self.reader.steps.take(VISIT * (1 + map.len()), self.at)?;
        if depth > MAX_DEPTH {
            return wrong(self.at, "allOf refers to itself, or too deep");
        }
        // What is said of the rest is said of what the same part leaves: closed objects forbid each other's properties.
        for (listed, rest) in [("properties", "additionalProperties"), ("prefixItems", "items")] {
            let closes = self.merged.contains_key(listed) && map.contains_key(rest);
            if closes || self.merged.contains_key(rest) && map.contains_key(listed) {
                return wrong(self.at, format!("{rest} beside {listed} in another part of allOf cannot be enforced"));
            }
        }
        for (key, value) in map {
            match key.as_str() {
                "allOf" | "$ref" => {}
                name if is_assertion(name) || BEYOND.contains(&name) => self.keyword(map, name, value)?,
                // Notes would be copied for nobody.
                _ => {}
            }
        }
        // Not before all that this part says is there to be checked beside it, whatever the order of the keys.
        if let Some(reference) = map.get("$ref") {
            self.refer(reference, depth)?;
        }
        self.parts(map, depth)
    }

    /// Adds what a reference points at.
    fn refer(&mut self, reference: &Value, depth: usize) -> Checked<()> {
        let Some(reference) = reference.as_str() else { return wrong(self.at, "$ref must be a string") };
        match self.reader.resolve(reference, self.at)?.as_object() {
            Some(target) => self.add(target, depth + 1),
            None => wrong(self.at, "a part of allOf is no schema"),
        }
    }

    /// Adds the parts of a part's own `allOf`.
    fn parts(&mut self, map: &Map<String, Value>, depth: usize) -> Checked<()> {
        let Some(parts) = map.get("allOf") else { return Ok(()) };
        let Some(parts) = parts.as_array().filter(|parts| !parts.is_empty()) else {
            return wrong(self.at, "allOf must be an array of schemas, and not empty");
        };
        if parts.len() > MAX_NODES {
            return wrong(self.at, format!("more than {MAX_NODES} schemas in one"));
        }
        for part in parts {
            match part {
                Value::Object(part) => self.add(part, depth + 1)?,
                Value::Bool(true) => {}
                _ => return wrong(self.at, "a part of allOf is no schema, or never valid"),
            }
        }
        Ok(())
    }

    /// Adds what the part `map` says with one keyword.
    fn keyword(&mut self, map: &Map<String, Value>, key: &str, value: &Value) -> Checked<()> {
        self.reader.steps.copy(value, self.at)?;
        match (key, self.merged.get_mut(key)) {
            ("required", Some(_)) => self.require(map)?,
            ("properties", Some(Value::Object(before))) => join(before, value, &mut self.joined),
            (_, Some(before)) if before == value => {}
            (_, Some(_)) if !is_assertion(key) => {}
            (_, Some(_)) => return wrong(self.at, format!("{key} in two parts of allOf cannot be enforced")),
            (_, None) => {
                self.merged.insert(key.to_owned(), value.clone());
            }
        }
        Ok(())
    }

    /// Adds the names that the part requires to those of others.
    fn require(&mut self, map: &Map<String, Value>) -> Checked<()> {
        let mut names = strings(&self.merged, "required", self.at)?;
        names.extend(strings(map, "required", self.at)?);
        names.sort_unstable();
        names.dedup();
        let names = json!(names);
        self.reader.steps.copy(&names, self.at)?;
        self.merged.insert("required".into(), names);
        Ok(())
    }
}

/// Adds a part's properties. What several parts say of the same one becomes a single `allOf`, however many they are:
/// one around another for each of them would nest until the stack is exhausted.
fn join(before: &mut Map<String, Value>, properties: &Value, joined: &mut HashSet<String>) {
    for (name, schema) in properties.as_object().into_iter().flatten() {
        match before.get_mut(name) {
            None => {
                before.insert(name.clone(), schema.clone());
            }
            Some(other) if other == schema => {}
            Some(other) if joined.contains(name) => {
                if let Some(Value::Array(parts)) = other.get_mut("allOf") {
                    parts.push(schema.clone());
                }
            }
            Some(other) => {
                let parts = Value::Array(vec![other.take(), schema.clone()]);
                *other = Value::Object(Map::from_iter([("allOf".to_owned(), parts)]));
                joined.insert(name.clone());
            }
        }
    }
}
