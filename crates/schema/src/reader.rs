//! Reads a schema into a tree of the values that a grammar can allow. [`SchemaReader`] finds out what a schema is; its files read each kind.

pub(crate) mod objects;

mod alternatives;
mod arrays;
mod scalars;
mod values;

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value};

use crate::document::{
    Document, MAX_NODES, SchemaError, SchemaFault, SchemaResult, VISIT, empty_at, error_at, n_values, show,
    too_large_at,
};
use crate::keywords::{OF_TYPE, TYPES, UNENFORCEABLE, is_assertion, named_types};
use crate::tree::{SchemaNode, SchemaTree};
use crate::unevaluated::UNEVALUATED;
use crate::validate::Validator;
use crate::{dependents, formats, merge, negation, unevaluated};

/// Schemas nested deeper than this become definitions, so that the stack's depth is bounded.
const MAX_INLINED: usize = 6;

/// Schemas of properties with at least so many values become definitions where they occur again: alternatives repeat them.
const MIN_SHARED: usize = 6;

/// Reads `schema`, a part of the document's root.
pub(crate) fn read(document: &Document<'_>, schema: &Value, at: &str) -> SchemaResult<SchemaTree> {
    let mut reader = SchemaReader {
        document,
        validator: Validator::new(document),
        ids: HashMap::new(),
        seen: HashMap::new(),
        todo: VecDeque::new(),
        definitions: Vec::new(),
        nodes: 0,
        values: 0,
        empty: None,
    };
    // References to the root lead to the same rule.
    let root = if at == "#" { reader.reference("#", at)? } else { reader.schema(schema, at, 0)? };
    while let Some(todo) = reader.todo.pop_front() {
        let node = match todo.schema {
            Some(schema) => reader.schema(&schema, &todo.at, 0)?,
            None => reader.schema(document.resolve(&todo.at, &todo.at)?, &todo.at, 0)?,
        };
        if let Some(place) = reader.definitions.get_mut(todo.id) {
            *place = Some(node);
        }
    }
    // All are read, because each is in the queue from its creation on.
    let definitions = reader.definitions.into_iter().map(|node| node.unwrap_or(SchemaNode::Null)).collect();
    let empty = reader.empty;
    let tree = SchemaTree { root, definitions }.checked(document, at);
    tree.map_err(|error| if error.kind == SchemaFault::Empty { empty.unwrap_or(error) } else { error })
}

/// A definition that remains to be read.
struct PendingDefinition {
    id: usize,
    at: String,
    /// `None`: the schema to which the location leads.
    schema: Option<Value>,
}

struct SchemaReader<'d, 'a> {
    document: &'d Document<'a>,
    validator: Validator<'d, 'a>,
    /// The definition of each reference.
    ids: HashMap<String, usize>,
    /// The schemas of properties, with their definitions from the second time on.
    seen: HashMap<Value, Option<usize>>,
    todo: VecDeque<PendingDefinition>,
    definitions: Vec<Option<SchemaNode>>,
    nodes: usize,
    values: usize,
    /// Why the first schema that has no value has none.
    empty: Option<SchemaError>,
}

impl SchemaReader<'_, '_> {
    /// A definition that is read later.
    fn define(&mut self, at: String, schema: Option<Value>) -> usize {
        let id = self.definitions.len();
        self.definitions.push(None);
        self.todo.push_back(PendingDefinition { id, at, schema });
        id
    }

    /// The definition of a reference.
    fn reference(&mut self, reference: &str, at: &str) -> SchemaResult<SchemaNode> {
        self.document.resolve(reference, at)?;
        if let Some(id) = self.ids.get(reference) {
            return Ok(SchemaNode::Definition(*id));
        }
        let id = self.define(reference.to_owned(), None);
        self.ids.insert(reference.to_owned(), id);
        Ok(SchemaNode::Definition(id))
    }

    /// Reads the schema of a property, which is written once however often it occurs.
    fn property(&mut self, schema: Value, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        let size = n_values(&schema);
        self.document.count_steps(size, at)?;
        let id = match self.seen.get(&schema).copied() {
            Some(Some(id)) => {
                let counted = self.count_node(at).map(|()| SchemaNode::Definition(id));
                return self.document.allow_large(counted, at, || SchemaNode::Any);
            }
            Some(None) => {
                let id = self.define(at.to_owned(), Some(schema.clone()));
                self.seen.insert(schema, Some(id));
                id
            }
            None => {
                let node = self.schema(&schema, at, depth)?;
                if size >= MIN_SHARED {
                    self.seen.insert(schema, None);
                }
                return Ok(node);
            }
        };
        Ok(SchemaNode::Definition(id))
    }

    /// Reads a schema. What is too large for a grammar becomes any value, of its type if it has one, if keywords may be dropped. What has no value becomes an empty union.
    fn schema(&mut self, schema: &Value, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        let result = self.bounded(schema, at, depth);
        let result = self.document.allow_large(result, at, || SchemaNode::Any);
        self.allow_empty(result)
    }

    fn allow_empty(&mut self, result: SchemaResult<SchemaNode>) -> SchemaResult<SchemaNode> {
        match result {
            Err(error) if error.kind == SchemaFault::Empty => {
                self.empty.get_or_insert(error);
                Ok(SchemaNode::Union(Vec::new()))
            }
            other => other,
        }
    }

    fn count_node(&mut self, at: &str) -> SchemaResult<()> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return too_large_at(at, format!("more than {MAX_NODES} schemas in one"));
        }
        Ok(())
    }

    fn bounded(&mut self, schema: &Value, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        self.count_node(at)?;
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => return Ok(SchemaNode::Any),
            Value::Bool(false) => return empty_at(at, "no value is valid under false"),
            other => return error_at(at, format!("expected a schema, got {}", show(other))),
        };
        if depth > MAX_INLINED {
            self.document.count_copy(schema, at)?;
            return Ok(SchemaNode::Definition(self.define(at.to_owned(), Some(schema.clone()))));
        }
        self.document.count_steps(VISIT * map.len(), at)?;
        let assertions: Vec<&str> = map.keys().map(String::as_str).filter(|key| is_assertion(key)).collect();
        let restricts_values = !matches!(assertions.as_slice(), [] | ["$ref" | "anyOf" | "type"]);
        if restricts_values && let Some(values) = self.candidates(map, at, 0)? {
            return self.values(map, values, at);
        }
        if let Some(alternatives) = dependents::alternatives(self.document, map, at)? {
            return self.schema(&alternatives, at, depth + 1);
        }
        if let Some(positive) = negation::without_negations(self.document, map, at)? {
            return self.schema(&positive, at, depth + 1);
        }
        let is_read =
            |keyword: &str| UNEVALUATED.contains(&keyword) || keyword == "not" && negation::excludes_texts(map);
        let others = UNENFORCEABLE.iter().filter(|keyword| !is_read(keyword));
        for keyword in others.filter(|keyword| map.contains_key(**keyword)) {
            self.document.drop_keyword(at, keyword, format!("{keyword} cannot be enforced by a grammar"))?;
        }
        if let Some((rest, unevaluated)) = unevaluated::split(map) {
            return self.closed(rest, unevaluated, at, depth);
        }
        self.asserted(map, &assertions, at, depth)
    }

    /// Reads a schema without a list of values.
    fn asserted(
        &mut self,
        map: &Map<String, Value>,
        assertions: &[&str],
        at: &str,
        depth: usize,
    ) -> SchemaResult<SchemaNode> {
        // A generator's way to put annotations beside a reference.
        if let (["allOf"], Some([only])) = (assertions, map.get("allOf").and_then(Value::as_array).map(Vec::as_slice)) {
            return self.schema(only, &format!("{at}/allOf/0"), depth + 1);
        }
        if map.contains_key("allOf") || map.contains_key("$ref") && assertions.len() > 1 {
            let merged = merge::all_of(self.document, map, at)?;
            return self.schema(&merged, at, depth + 1);
        }
        if let Some(reference) = map.get("$ref") {
            let Some(reference) = reference.as_str() else { return error_at(at, "$ref must be a string") };
            return self.reference(reference, at);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(parts) = map.get(keyword) {
                let part_at = format!("{at}/{keyword}");
                if assertions.len() == 1 {
                    return self.alternatives(parts, keyword, &part_at, depth);
                }
                let parts = self.distributed(map, parts, keyword, &part_at)?;
                return self.alternatives(&parts, "anyOf", &part_at, depth);
            }
        }
        let types = self.types(map, assertions, at)?;
        let mut parts = Vec::new();
        for name in &types {
            let part = self.typed(map, name, at, depth);
            parts.push(self.allow_empty(part)?);
        }
        Ok(match parts.len() {
            0 => SchemaNode::Any,
            1 => parts.swap_remove(0),
            _ => SchemaNode::Union(parts),
        })
    }

    /// The types of valid values: those in `type`, else those that the keywords restrict. Empty: all types.
    fn types(&self, map: &Map<String, Value>, assertions: &[&str], at: &str) -> SchemaResult<Vec<String>> {
        let named = named_types(map, at)?;
        if !named.is_empty() || map.contains_key("type") {
            return Ok(named);
        }
        let mut types: Vec<String> = OF_TYPE
            .iter()
            .filter(|(_, keywords)| assertions.iter().any(|key| keywords.contains(key)))
            .map(|(name, _)| (*name).to_owned())
            .collect();
        // The formats of llama.cpp imply the type string. Another one that is enforced holds for strings among all values.
        if let (["format"], Some(format)) = (assertions, map.get("format").and_then(Value::as_str)) {
            let is_enforced = formats::pattern(format).is_some();
            types.retain(|_| ["date", "time", "date-time", "uuid"].contains(&format));
            if types.is_empty() && is_enforced {
                types.extend(TYPES.into_iter().filter(|name| *name != "integer").map(str::to_owned));
            }
        }
        Ok(types)
    }

    /// Reads a schema for values of one type.
    fn typed(&mut self, map: &Map<String, Value>, name: &str, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        match name {
            "object" => {
                let object = self.object(map, at, depth);
                self.document.allow_large(object, at, SchemaNode::any_object)
            }
            "array" => {
                let array = self.array(map, at, depth);
                self.document.allow_large(array, at, SchemaNode::any_array)
            }
            "string" => {
                let text = self.text(map, at).map(SchemaNode::Text);
                self.document.allow_large(text, at, SchemaNode::any_string)
            }
            "integer" | "number" => self.number(map, at, name == "integer"),
            "boolean" => Ok(SchemaNode::Boolean),
            _ => Ok(SchemaNode::Null),
        }
    }
}
