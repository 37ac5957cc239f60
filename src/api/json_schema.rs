//! `json_schema`: a JSON schema, made a grammar by llama.cpp's converter.
//!
//! The converter ignores what it does not know, gets some of the rest wrong, and has no limits. A text under a schema must
//! always be valid, so the schema is read here first: it is brought to a form that the converter gets right, and what no
//! grammar can enforce is an error. A schema may become narrower (no further properties unless it asks for them,
//! at most 15 digits), never wider. References are followed within the schema alone; nothing is ever fetched.

mod containers;
mod disjoint;
mod keywords;
mod merge;
mod pattern;
mod repair;
mod steps;
#[cfg(test)]
#[path = "json_schema/validator_tests.rs"]
mod validator;

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value, json};

use super::fields::show;
use crate::error::{Error, Result};
use crate::llama::schema_to_grammar;
use crate::stack;
use keywords::{FORMATS, integer, is_of_type, named_types, string};
use steps::{Steps, VISIT};

/// Most schemas in a schema, and most values in an `enum`.
const MAX_NODES: usize = 2000;
const MAX_VALUES: usize = 4000;
/// All names of properties on the way to a value, in bytes.
const MAX_PATH: usize = 2048;
/// Bytes of stack to read a schema with: [`MAX_PATH`] allows four hundred levels, each some kilobytes.
const STACK: usize = 16 << 20;

/// Keywords that say nothing about what is valid.
const NOTES: [&str; 20] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "$anchor",
    "$vocabulary",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "then",
    "else",
];
/// Keywords of one type each.
const OF_TYPE: [(&str, &[&str]); 4] = [
    ("object", &["properties", "required", "additionalProperties", "minProperties", "maxProperties"]),
    ("array", &["items", "prefixItems", "minItems", "maxItems", "uniqueItems"]),
    ("string", &["minLength", "maxLength", "pattern", "format"]),
    ("integer", &NUMERIC),
];
const NUMERIC: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
/// What no grammar enforces.
const BEYOND: [&str; 14] = [
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "minContains",
    "maxContains",
    "$dynamicRef",
    "$recursiveRef",
];

/// Reads the field: an object, or a string that holds one.
///
/// # Errors
/// It is neither.
pub fn read(value: &Value) -> Result<Value> {
    let parsed = value.as_str().map(serde_json::from_str::<Value>);
    match (value, parsed) {
        (_, Some(Ok(schema @ Value::Object(_)))) => Ok(schema),
        (_, Some(Err(error))) => Err(Error::invalid(format!("json_schema: not JSON: {error}"))),
        (Value::Object(_), _) => Ok(value.clone()),
        _ => Err(super::fields::unexpected("json_schema", "an object, or a string that holds one", value)),
    }
}

/// The grammar of the texts that are valid under `schema`.
///
/// # Errors
/// `invalid_request`, with the place in the schema: what is no schema, what nothing can satisfy, what a grammar cannot
/// enforce, what is too large.
pub fn to_grammar(schema: &Value) -> Result<String> {
    let plain = stack::with(STACK, "json_schema", || plain(schema).map_err(Error::invalid))?;
    let grammar = schema_to_grammar(&plain)?;
    Ok(grammar.lines().map(repair::repair).collect())
}

/// The schema in the converter's terms, as JSON.
fn plain(schema: &Value) -> Checked<String> {
    let mut reader = Reader::new(schema);
    let root = reader.reference("#", "#")?;
    let mut defs = Map::new();
    while let Some((name, at)) = reader.todo.pop_front() {
        let target = reader.resolve(&at, &at)?;
        let plain = reader.schema(target, &at, 0)?;
        defs.insert(name, plain);
    }
    Ok(json!({"$ref": root["$ref"], "$defs": defs}).to_string())
}

type Checked<T> = std::result::Result<T, String>;

/// The error of a place in the schema.
fn wrong<T>(at: &str, what: impl std::fmt::Display) -> Checked<T> {
    let shown: String = at.chars().take(120).collect();
    Err(format!("json_schema: {shown}: {what}"))
}

struct Reader<'a> {
    root: &'a Value,
    /// The definition that a reference became.
    names: HashMap<String, String>,
    /// Definitions to be written.
    todo: VecDeque<(String, String)>,
    nodes: usize,
    values: usize,
    steps: Steps,
}

impl<'a> Reader<'a> {
    fn new(root: &'a Value) -> Self {
        Self { root, names: HashMap::new(), todo: VecDeque::new(), nodes: 0, values: 0, steps: Steps::new() }
    }

    /// What a reference points at.
    fn resolve(&self, reference: &str, at: &str) -> Checked<&'a Value> {
        if reference.len() > MAX_PATH {
            return wrong(at, "a $ref that is too long");
        }
        self.steps.take(4 + reference.len() / 2, at)?;
        let Some(pointer) = reference.strip_prefix('#') else {
            return wrong(at, format!("$ref {reference:?}: only references into the same schema are followed"));
        };
        self.root.pointer(pointer).map_or_else(|| wrong(at, format!("cannot resolve $ref {reference:?}")), Ok)
    }

    fn reference(&mut self, reference: &str, at: &str) -> Checked<Value> {
        self.resolve(reference, at)?;
        let next = format!("d{}", self.names.len());
        let name = self.names.entry(reference.to_owned()).or_insert_with(|| {
            self.todo.push_back((next.clone(), reference.to_owned()));
            next
        });
        Ok(json!({"$ref": format!("#/$defs/{name}")}))
    }

    /// The schema in the converter's terms. `names`: bytes of the names on the way to it.
    fn schema(&mut self, schema: &Value, at: &str, names: usize) -> Checked<Value> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return wrong(at, format!("more than {MAX_NODES} schemas in one"));
        }
        if names > MAX_PATH {
            return wrong(at, format!("names of more than {MAX_PATH} bytes on the way here"));
        }
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => return Ok(json!({})),
            Value::Bool(false) => return wrong(at, "nothing is valid under false"),
            other => return wrong(at, format!("expected a schema, got {}", show(other))),
        };
        self.steps.take(VISIT * map.len(), at)?;
        if let Some(keyword) = BEYOND.iter().find(|keyword| map.contains_key(**keyword)) {
            return wrong(at, format!("{keyword} cannot be enforced by a grammar"));
        }
        let assertions: Vec<&str> = map.keys().map(String::as_str).filter(|key| is_assertion(key)).collect();
        let alone = |keyword: &str| match assertions.iter().find(|other| **other != keyword) {
            Some(other) => wrong(at, format!("{other} beside {keyword} cannot be enforced")),
            None => Ok(()),
        };
        if map.contains_key("allOf") {
            let merged = merge::all_of(self, map, at)?;
            // It may refer to what it is in, and so nests until the names are too long: before the stack is exhausted.
            return self.schema(&merged, at, names + 24);
        }
        if let Some(reference) = map.get("$ref") {
            alone("$ref")?;
            let Some(reference) = reference.as_str() else { return wrong(at, "$ref must be a string") };
            return self.reference(reference, at);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(parts) = map.get(keyword) {
                alone(keyword)?;
                return self.alternatives(parts, keyword, &format!("{at}/{keyword}"), names);
            }
        }
        if let Some(values) = map.get("enum").cloned().or_else(|| map.get("const").map(|value| json!([value]))) {
            if let Some(other) = assertions.iter().find(|key| !["enum", "const", "type"].contains(key)) {
                return wrong(at, format!("{other} beside enum or const cannot be enforced"));
            }
            return self.values(map, &values, at);
        }
        let types = self.types(map, &assertions, at)?;
        let mut parts = Vec::new();
        for name in &types {
            parts.push(self.typed(map, name, at, names)?);
        }
        Ok(match parts.len() {
            0 => json!({}),
            1 => parts.swap_remove(0),
            _ => json!({ "anyOf": parts }),
        })
    }

    fn alternatives(&mut self, parts: &Value, keyword: &str, at: &str, names: usize) -> Checked<Value> {
        let Some(list) = parts.as_array().filter(|list| !list.is_empty()) else {
            return wrong(at, "must be an array of schemas, and not empty");
        };
        let mut out = Vec::new();
        for (i, part) in list.iter().enumerate() {
            if part != &Value::Bool(false) {
                out.push(self.schema(part, &format!("{at}/{i}"), names + 12)?);
            }
        }
        // Each with each: not before it is known that they are not too many.
        if keyword == "oneOf" {
            self.exclusive(list, at)?;
        }
        if out.is_empty() { wrong(at, "nothing is valid") } else { Ok(json!({ "anyOf": out })) }
    }

    /// An error unless it is certain that no value is valid under two of these.
    fn exclusive(&self, list: &[Value], at: &str) -> Checked<()> {
        for (i, one) in list.iter().enumerate() {
            for (j, other) in list.iter().take(i).enumerate() {
                if !disjoint::disjoint(self, one, other, at, 0)? {
                    return wrong(at, format!("{j} and {i} may both be valid, which oneOf forbids: use anyOf"));
                }
            }
        }
        Ok(())
    }

    fn values(&mut self, map: &Map<String, Value>, values: &Value, at: &str) -> Checked<Value> {
        let Some(list) = values.as_array() else { return wrong(at, "enum must be an array") };
        self.values += list.len();
        if self.values > MAX_VALUES {
            return wrong(at, format!("more than {MAX_VALUES} values in enums"));
        }
        self.steps.copy(values, at)?;
        let types = named_types(map, at)?;
        let is_const = |value: &Value| map.get("const").is_none_or(|wanted| wanted == value);
        let fits = |value: &Value| types.is_empty() || types.iter().any(|name| is_of_type(value, name));
        let valid: Vec<&Value> = list.iter().filter(|value| is_const(value) && fits(value)).collect();
        if valid.is_empty() { wrong(at, "no value of the enum is valid") } else { Ok(json!({ "enum": valid })) }
    }

    /// The types that values may have, those that the schema names or that its keywords are for; none: any.
    fn types(&self, map: &Map<String, Value>, assertions: &[&str], at: &str) -> Checked<Vec<String>> {
        let named = named_types(map, at)?;
        if !named.is_empty() || map.contains_key("type") {
            return Ok(named);
        }
        let mut types: Vec<String> = OF_TYPE
            .iter()
            .filter(|(_, keywords)| assertions.iter().any(|key| keywords.contains(key)))
            .map(|(name, _)| (*name).to_owned())
            .collect();
        // A format that is a note says nothing of the type; one that is enforced makes it a string, as in llama.cpp.
        let is_note = |format: &str| !FORMATS.contains(&format);
        if assertions == ["format"] && map.get("format").and_then(Value::as_str).is_some_and(is_note) {
            types.clear();
        }
        Ok(types)
    }

    fn typed(&mut self, map: &Map<String, Value>, name: &str, at: &str, names: usize) -> Checked<Value> {
        match name {
            "object" => self.object(map, at, names),
            "array" => self.array(map, at, names),
            "string" => {
                let plain = string(map, at)?;
                self.steps.copy(&plain, at)?;
                Ok(plain)
            }
            "integer" => integer(map, at),
            "number" => match NUMERIC.iter().find(|key| map.contains_key(**key)) {
                Some(key) => wrong(at, format!("{key} is enforced on the type integer alone")),
                None => Ok(json!({"type": "number"})),
            },
            _ => Ok(json!({ "type": name })),
        }
    }
}

fn is_assertion(key: &str) -> bool {
    ["$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type"].contains(&key)
        || OF_TYPE.iter().any(|(_, keywords)| keywords.contains(&key)) && !NOTES.contains(&key)
}

#[cfg(test)]
#[path = "json_schema_tests.rs"]
mod tests;
