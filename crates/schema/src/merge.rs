//! `allOf`: merges several schemas into one.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::disjoint::{disjoint, objects};
use crate::document::{Document, MAX_NODES, SchemaResult, VISIT, empty_at, error_at, too_large_at};
use crate::keywords::{UNENFORCEABLE, is_assertion, named_types, strings};
use crate::negation::{self, both};
use crate::unevaluated::UNEVALUATED;

/// The maximum nesting of references and `allOf`s.
const MAX_DEPTH: usize = 16;
/// The most alternatives of two `anyOf`s that are merged into one.
const MAX_PAIRS: usize = 128;
/// The most pairs of alternatives that are compared.
const MAX_COMPARED: usize = 1024;

/// Keywords that list something, each with a keyword for what the same schema does not list.
const LISTS_AND_RESTS: [(&str, &str); 3] =
    [("properties", "additionalProperties"), ("patternProperties", "additionalProperties"), ("prefixItems", "items")];

/// Keywords of which the greater value is the tighter one.
const LOWER_BOUNDS: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
/// Keywords of which the smaller value is the tighter one.
const UPPER_BOUNDS: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];

/// Merges `map` and the schemas of its `allOf` into one schema.
pub(crate) fn all_of(document: &Document<'_>, map: &Map<String, Value>, at: &str) -> SchemaResult<Value> {
    let mut merge = Merge { document, at, merged: Map::new(), joined: HashSet::new() };
    merge.add(map, 0)?;
    Ok(Value::Object(merge.merged))
}

struct Merge<'m, 'a> {
    document: &'m Document<'a>,
    at: &'m str,
    merged: Map<String, Value>,
    /// The keywords and properties whose schema is an `allOf` created by [`join`], not one of the original schema.
    joined: HashSet<(String, String)>,
}

impl Merge<'_, '_> {
    /// Adds a schema, with its `$ref` and its `allOf`.
    fn add(&mut self, map: &Map<String, Value>, depth: usize) -> SchemaResult<()> {
        self.document.count_steps(VISIT * (1 + map.len()), self.at)?;
        if depth > MAX_DEPTH {
            return error_at(self.at, "allOf refers to itself, or is nested too deeply");
        }
        if let Some(positive) = negation::without_negations(self.document, map, self.at)? {
            return match positive.as_object() {
                Some(positive) => self.add(positive, depth + 1),
                None => empty_at(self.at, "no value is valid under all parts of allOf"),
            };
        }
        // `additionalProperties` applies to the properties that the same part does not list, so it can forbid another part's
        // properties. `items` and `prefixItems` likewise.
        let has_patterns = self.merged.contains_key("patternProperties") || map.contains_key("patternProperties");
        if !has_patterns {
            self.apply_rests(map)?;
        }
        let mut dropped = Vec::new();
        for (listed, rest) in LISTS_AND_RESTS.into_iter().filter(|(listed, _)| has_patterns || *listed != "properties")
        {
            let closes = self.merged.contains_key(listed) && map.contains_key(rest);
            if closes || self.merged.contains_key(rest) && map.contains_key(listed) {
                let why = format!("{rest} beside {listed} in another part of allOf cannot be enforced");
                self.document.drop_keyword(self.at, rest, why)?;
                self.merged.remove(rest);
                dropped.push(rest);
            }
        }
        for (key, value) in map {
            match key.as_str() {
                "allOf" | "$ref" => {}
                name if dropped.contains(&name) => {}
                // A property or item of another part is unevaluated here.
                name if depth > 0 && UNEVALUATED.contains(&name) => {
                    let why = format!("{name} in a part of allOf cannot be enforced");
                    self.document.drop_keyword(self.at, name, why)?;
                }
                name if is_assertion(name) || UNENFORCEABLE.contains(&name) => self.keyword(map, name, value)?,
                // Annotations are not needed.
                _ => {}
            }
        }
        // Last, so that all keywords of this part are merged, whatever the order of its keys.
        if let Some(reference) = map.get("$ref") {
            self.refer(reference, depth)?;
        }
        self.parts(map, depth)
    }

    /// Applies each `additionalProperties` to the properties that only the other schema lists.
    fn apply_rests(&mut self, map: &Map<String, Value>) -> SchemaResult<()> {
        let names = |map: &Map<String, Value>| -> Vec<String> {
            map.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect()
        };
        let rest = |map: &Map<String, Value>| {
            map.get("additionalProperties").filter(|rest| is_schema(rest) && **rest != Value::Bool(true)).cloned()
        };
        let (known, new) = (names(&self.merged), names(map));
        self.document.count_steps(known.len() + new.len(), self.at)?;
        let known_set: HashSet<&String> = known.iter().collect();
        let new_set: HashSet<&String> = new.iter().collect();
        let only_new = new.iter().filter(|name| !known_set.contains(name));
        let only_known = known.iter().filter(|name| !new_set.contains(name));
        let mut further = Vec::new();
        if let Some(rest) = rest(&self.merged) {
            further.extend(only_new.map(|name| (name.clone(), rest.clone())));
        }
        if let Some(rest) = rest(map) {
            further.extend(only_known.map(|name| (name.clone(), rest.clone())));
        }
        if further.is_empty() {
            return Ok(());
        }
        let further = Value::Object(further.into_iter().collect());
        self.document.count_copy(&further, self.at)?;
        if let Value::Object(before) = self.merged.entry("properties").or_insert_with(|| json!({})) {
            join(before, &further, "properties", &mut self.joined);
        }
        Ok(())
    }

    /// Adds the schema that a reference points at.
    fn refer(&mut self, reference: &Value, depth: usize) -> SchemaResult<()> {
        let Some(reference) = reference.as_str() else { return error_at(self.at, "$ref must be a string") };
        match self.document.resolve(reference, self.at)?.as_object() {
            Some(target) => self.add(target, depth + 1),
            None => error_at(self.at, "a part of allOf is not a schema"),
        }
    }

    /// Adds the schemas of a part's own `allOf`.
    fn parts(&mut self, map: &Map<String, Value>, depth: usize) -> SchemaResult<()> {
        let Some(parts) = map.get("allOf") else { return Ok(()) };
        let Some(parts) = parts.as_array().filter(|parts| !parts.is_empty()) else {
            return error_at(self.at, "allOf must be an array of schemas, and not empty");
        };
        if parts.len() > MAX_NODES {
            return too_large_at(self.at, format!("more than {MAX_NODES} schemas in one"));
        }
        for part in parts {
            match part {
                Value::Object(part) => self.add(part, depth + 1)?,
                Value::Bool(true) => {}
                Value::Bool(false) => return empty_at(self.at, "a part of allOf is never valid"),
                _ => return error_at(self.at, "a part of allOf is not a schema"),
            }
        }
        Ok(())
    }

    /// Each alternative of the merged `anyOf` with each of another one, without those that contradict each other. `None`: too many.
    fn pairs(&self, others: &Value) -> SchemaResult<Option<Value>> {
        let lists = self.merged.get("anyOf").and_then(Value::as_array).zip(others.as_array());
        let Some((some, others)) = lists.filter(|(some, others)| some.len() * others.len() <= MAX_COMPARED) else {
            return Ok(None);
        };
        let are_objects = self.merged.get("type").is_some_and(|name| name == "object");
        let mut pairs = Vec::new();
        for (one, other) in some.iter().flat_map(|one| others.iter().map(move |other| (one, other))) {
            if are_objects && objects(self.document, one, other, self.at, 0)?
                || disjoint(self.document, one, other, self.at, 0)?
            {
                continue;
            }
            if pairs.len() == MAX_PAIRS {
                return Ok(None);
            }
            self.document.count_copy(one, self.at)?;
            self.document.count_copy(other, self.at)?;
            pairs.push(both(one.clone(), other.clone()));
        }
        Ok((!pairs.is_empty()).then(|| pairs.into()))
    }

    /// Adds one keyword of the part `map`.
    fn keyword(&mut self, map: &Map<String, Value>, key: &str, value: &Value) -> SchemaResult<()> {
        self.document.count_copy(value, self.at)?;
        if key == "anyOf"
            && self.merged.get(key).is_some_and(|before| before != value)
            && let Some(pairs) = self.pairs(value)?
        {
            self.merged.insert(key.to_owned(), pairs);
            return Ok(());
        }
        match (key, self.merged.get_mut(key)) {
            ("required", Some(_)) => self.require(map)?,
            ("dependentRequired" | "dependentSchemas" | "dependencies", Some(Value::Object(before))) => {
                depend(before, value, key, &mut self.joined);
            }
            ("properties" | "patternProperties", Some(Value::Object(before))) => {
                join(before, value, key, &mut self.joined);
            }
            (_, Some(before)) if before == value => {}
            ("type", Some(_)) => {
                let types = common_types(&named_types(&self.merged, self.at)?, &named_types(map, self.at)?);
                if types.is_empty() {
                    return empty_at(self.at, "no value has the types of all parts of allOf");
                }
                self.merged.insert("type".into(), json!(types));
            }
            ("not", Some(before)) => {
                let values = |schema: &Value| schema.get("enum").and_then(Value::as_array).cloned();
                *before = match (values(before), values(value)) {
                    (Some(some), Some(others)) if is_list(before) && is_list(value) => {
                        json!({ "enum": ([some, others].concat()) })
                    }
                    _ => json!({"anyOf": [before.take(), value]}),
                };
            }
            (_, Some(_)) if !is_assertion(key) => {}
            (key, Some(before)) if LOWER_BOUNDS.contains(&key) || UPPER_BOUNDS.contains(&key) => {
                let is_tighter = |new: f64, old: f64| if LOWER_BOUNDS.contains(&key) { new > old } else { new < old };
                if value.as_f64().zip(before.as_f64()).is_some_and(|(new, old)| is_tighter(new, old)) {
                    *before = value.clone();
                }
            }
            ("items" | "propertyNames" | "additionalProperties", Some(before))
                if is_schema(before) && is_schema(value) =>
            {
                *before = both(before.take(), value.clone());
            }
            // Lookaheads at the beginning, of which there can be several.
            ("pattern", Some(Value::String(before))) if value.is_string() => {
                let found = |pattern: &str| format!("(?=[^]*(?:{pattern}))");
                if !before.starts_with("^(?=[^]*") {
                    *before = format!("^{}", found(before));
                }
                before.push_str(&found(value.as_str().unwrap_or_default()));
            }
            ("uniqueItems", Some(before)) if before.is_boolean() && value.is_boolean() => *before = Value::Bool(true),
            (_, Some(_)) => {
                let why = format!("{key} in two parts of allOf cannot be enforced");
                self.document.drop_keyword(self.at, key, why)?;
            }
            (_, None) => {
                self.merged.insert(key.to_owned(), value.clone());
            }
        }
        Ok(())
    }

    /// Adds the required names of a part.
    fn require(&mut self, map: &Map<String, Value>) -> SchemaResult<()> {
        let mut names = strings(&self.merged, "required", self.at)?;
        names.extend(strings(map, "required", self.at)?);
        names.sort_unstable();
        names.dedup();
        let names = json!(names);
        self.document.count_copy(&names, self.at)?;
        self.merged.insert("required".into(), names);
        Ok(())
    }
}

/// Whether a schema has only a list of values.
fn is_list(schema: &Value) -> bool {
    schema.as_object().is_some_and(|map| map.len() == 1 && map.contains_key("enum"))
}

/// Whether a value is a schema, and not a list of schemas.
fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// The types in both lists. An integer is a number.
fn common_types(some: &[String], others: &[String]) -> Vec<String> {
    let is_in = |name: &str, types: &[String]| types.iter().any(|one| one == name);
    let fits = |name: &str, types: &[String]| is_in(name, types) || name == "integer" && is_in("number", types);
    let mut common: Vec<String> = some.iter().filter(|name| fits(name, others)).cloned().collect();
    common.extend(others.iter().filter(|name| fits(name, some) && !is_in(name, some)).cloned());
    common
}

/// Adds a part's dependencies. Where several parts have one for the same property, a list of names becomes a schema.
fn depend(before: &mut Map<String, Value>, others: &Value, keyword: &str, joined: &mut HashSet<(String, String)>) {
    let schema = |wanted: Value| if wanted.is_array() { json!({ "required": wanted }) } else { wanted };
    for (name, wanted) in others.as_object().into_iter().flatten() {
        match before.get_mut(name) {
            None => {
                before.insert(name.clone(), wanted.clone());
            }
            Some(known) => {
                *known = schema(known.take());
                join(before, &json!({ name: schema(wanted.clone()) }), keyword, joined);
            }
        }
    }
}

/// Adds a part's properties. If several parts have the same property, its schemas become one flat `allOf`: nested ones could exhaust
/// the stack.
fn join(before: &mut Map<String, Value>, properties: &Value, keyword: &str, joined: &mut HashSet<(String, String)>) {
    for (name, schema) in properties.as_object().into_iter().flatten() {
        let place = (keyword.to_owned(), name.clone());
        match before.get_mut(name) {
            None => {
                before.insert(name.clone(), schema.clone());
            }
            Some(other) if other == schema || *other == Value::Bool(false) => {}
            Some(other) if *schema == Value::Bool(false) => *other = Value::Bool(false),
            Some(other) if joined.contains(&place) => {
                if let Some(Value::Array(parts)) = other.get_mut("allOf") {
                    parts.push(schema.clone());
                }
            }
            Some(other) => {
                let parts = Value::Array(vec![other.take(), schema.clone()]);
                *other = Value::Object(Map::from_iter([("allOf".to_owned(), parts)]));
                joined.insert(place);
            }
        }
    }
}
