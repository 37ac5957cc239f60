//! Rewrites a schema to the form that llama.cpp's converter handles correctly.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

use super::converter_fixes::ADDITIONAL;
use super::counts::ObjectSchema;
use super::disjoint::disjoint;
use super::document::{Document, MAX_NODES, MAX_PATH, SchemaResult, VISIT, error_at};
use super::keywords::{
    FORMATS, MAX_ITEMS, NUMERIC, OF_TYPE, TYPES, UNENFORCEABLE, bounds, count, integer, is_assertion, is_of_type,
    named_types, string, strings,
};
use super::{merge, names, references};
use crate::api::fields::show;

/// The maximum number of values in all `enum`s.
const MAX_VALUES: usize = 4000;
/// The maximum number of properties of an object.
const MAX_PROPERTIES: usize = 128;
/// The maximum length of a property's name, in bytes.
const MAX_NAME: usize = 256;

/// The simplified schema as JSON text. Each referenced schema becomes an entry of `$defs`.
/// `root_is_inlined`: the caller replaces the root by its definition.
pub(super) fn simplify(schema: &Value, root_is_inlined: bool) -> SchemaResult<String> {
    let located = references::locate(schema)?;
    let mut reader = SchemaReader::new(&located, root_is_inlined);
    let root = reader.reference("#", "#")?;
    let mut defs = Map::new();
    while let Some((name, at)) = reader.todo.pop_front() {
        let target = reader.document.resolve(&at, &at)?;
        let simplified = reader.schema(target, &at, 0)?;
        defs.insert(name, simplified);
    }
    defs.extend(reader.bounded);
    let mut document = match root {
        Value::Object(root) => root,
        _ => Map::new(),
    };
    document.insert("$defs".to_owned(), Value::Object(defs));
    Ok(Value::Object(document).to_string())
}

struct SchemaReader<'a> {
    document: Document<'a>,
    /// The name in `$defs` of each reference.
    names: HashMap<String, String>,
    /// Definitions that remain to be simplified: name and reference.
    todo: VecDeque<(String, String)>,
    /// Definitions of objects with a maximum number of additional properties.
    bounded: Vec<(String, Value)>,
    root_is_inlined: bool,
    nodes: usize,
    values: usize,
}

impl<'a> SchemaReader<'a> {
    fn new(root: &'a Value, root_is_inlined: bool) -> Self {
        Self {
            document: Document::new(root),
            names: HashMap::new(),
            todo: VecDeque::new(),
            bounded: Vec::new(),
            root_is_inlined,
            nodes: 0,
            values: 0,
        }
    }

    /// Replaces a reference by one into `$defs`.
    fn reference(&mut self, reference: &str, at: &str) -> SchemaResult<Value> {
        self.document.resolve(reference, at)?;
        let next = format!("d{}", self.names.len());
        let name = self.names.entry(reference.to_owned()).or_insert_with(|| {
            self.todo.push_back((next.clone(), reference.to_owned()));
            next
        });
        Ok(json!({"$ref": format!("#/$defs/{name}")}))
    }

    /// Simplifies a schema. `names`: the length of the property names on the way to it, in bytes.
    fn schema(&mut self, schema: &Value, at: &str, names: usize) -> SchemaResult<Value> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return error_at(at, format!("more than {MAX_NODES} schemas in one"));
        }
        if names > MAX_PATH {
            return error_at(at, format!("names of more than {MAX_PATH} bytes on the way here"));
        }
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => return Ok(json!({})),
            Value::Bool(false) => return error_at(at, "no value is valid under false"),
            other => return error_at(at, format!("expected a schema, got {}", show(other))),
        };
        self.document.count_steps(VISIT * map.len(), at)?;
        if let Some(keyword) = UNENFORCEABLE.iter().find(|keyword| map.contains_key(**keyword)) {
            return error_at(at, format!("{keyword} cannot be enforced by a grammar"));
        }
        let assertions: Vec<&str> = map.keys().map(String::as_str).filter(|key| is_assertion(key)).collect();
        if map.contains_key("allOf") {
            let merged = merge::all_of(&self.document, map, at)?;
            // It may contain itself. The limit on `names` ends the recursion before the stack is exhausted.
            return self.schema(&merged, at, names + 24);
        }
        if let Some(reference) = map.get("$ref") {
            if assertions.len() > 1 {
                let merged = merge::all_of(&self.document, map, at)?;
                return self.schema(&merged, at, names + 24);
            }
            let Some(reference) = reference.as_str() else { return error_at(at, "$ref must be a string") };
            return self.reference(reference, at);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(parts) = map.get(keyword) {
                let part_at = format!("{at}/{keyword}");
                if assertions.len() == 1 {
                    return self.alternatives(parts, keyword, &part_at, names);
                }
                let parts = self.distributed(map, parts, keyword, &part_at)?;
                return self.alternatives(&parts, "anyOf", &part_at, names + 24);
            }
        }
        if let Some(values) = map.get("enum").cloned().or_else(|| map.get("const").map(|value| json!([value]))) {
            if let Some(other) = assertions.iter().find(|key| !["enum", "const", "type"].contains(key)) {
                return error_at(at, format!("{other} beside enum or const cannot be enforced"));
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

    /// Simplifies `anyOf` and `oneOf`.
    fn alternatives(&mut self, parts: &Value, keyword: &str, at: &str, names: usize) -> SchemaResult<Value> {
        let Some(list) = parts.as_array().filter(|list| !list.is_empty()) else {
            return error_at(at, "must be an array of schemas, and not empty");
        };
        let mut out = Vec::new();
        for (i, part) in list.iter().enumerate() {
            if part != &Value::Bool(false) {
                out.push(self.schema(part, &format!("{at}/{i}"), names + 12)?);
            }
        }
        // Compares all pairs, so only after the number of parts was checked.
        if keyword == "oneOf" {
            self.exclusive(list, at)?;
        }
        if out.is_empty() { error_at(at, "no value is valid") } else { Ok(json!({ "anyOf": out })) }
    }

    /// The parts of `anyOf` and `oneOf`, each with the keywords beside it.
    fn distributed(&self, map: &Map<String, Value>, parts: &Value, keyword: &str, at: &str) -> SchemaResult<Value> {
        let Some(list) = parts.as_array().filter(|list| list.len() <= MAX_NODES) else {
            return error_at(at, "must be an array of schemas, and not too long");
        };
        if keyword == "oneOf" {
            self.exclusive(list, at)?;
        }
        let beside = map.iter().filter(|(key, _)| is_assertion(key) && *key != keyword);
        let beside = Value::Object(beside.map(|(key, value)| (key.clone(), value.clone())).collect());
        let mut out = Vec::new();
        for part in list {
            self.document.count_copy(&beside, at)?;
            self.document.count_copy(part, at)?;
            out.push(match part {
                Value::Object(_) if disjoint(&self.document, &beside, part, at, 0)? => Value::Bool(false),
                Value::Object(_) => json!({"allOf": [beside, part]}),
                Value::Bool(true) => beside.clone(),
                other => other.clone(),
            });
        }
        Ok(out.into())
    }

    /// Fails unless it is certain that no value is valid under two of the schemas.
    fn exclusive(&self, list: &[Value], at: &str) -> SchemaResult<()> {
        for (i, one) in list.iter().enumerate() {
            for (j, other) in list.iter().take(i).enumerate() {
                if !disjoint(&self.document, one, other, at, 0)? {
                    return error_at(at, format!("{j} and {i} can both be valid, which oneOf forbids; use anyOf"));
                }
            }
        }
        Ok(())
    }

    /// Simplifies `enum` and `const`.
    fn values(&mut self, map: &Map<String, Value>, values: &Value, at: &str) -> SchemaResult<Value> {
        let Some(list) = values.as_array() else { return error_at(at, "enum must be an array") };
        self.values += list.len();
        if self.values > MAX_VALUES {
            return error_at(at, format!("more than {MAX_VALUES} values in enums"));
        }
        self.document.count_copy(values, at)?;
        let types = named_types(map, at)?;
        let is_const = |value: &Value| map.get("const").is_none_or(|wanted| wanted == value);
        let fits = |value: &Value| types.is_empty() || types.iter().any(|name| is_of_type(value, name));
        let valid: Vec<&Value> = list.iter().filter(|value| is_const(value) && fits(value)).collect();
        if valid.is_empty() { error_at(at, "no value of the enum is valid") } else { Ok(json!({ "enum": valid })) }
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
        // An enforced format implies the type string, as in llama.cpp. A format that is only an annotation does not.
        let is_annotation = |format: &str| !FORMATS.contains(&format);
        if assertions == ["format"] && map.get("format").and_then(Value::as_str).is_some_and(is_annotation) {
            types.clear();
        }
        Ok(types)
    }

    /// Simplifies a schema for values of one type.
    fn typed(&mut self, map: &Map<String, Value>, name: &str, at: &str, names: usize) -> SchemaResult<Value> {
        match name {
            "object" => self.object(map, at, names),
            "array" => self.array(map, at, names),
            "string" => {
                let simplified = string(map, at)?;
                self.document.count_copy(&simplified, at)?;
                Ok(simplified)
            }
            "integer" => integer(map, at),
            "number" => match NUMERIC.iter().find(|key| map.contains_key(**key)) {
                Some(key) => error_at(at, format!("{key} can be enforced only for the type integer")),
                None => Ok(json!({"type": "number"})),
            },
            _ => Ok(json!({ "type": name })),
        }
    }

    /// Simplifies an object schema.
    fn object(&mut self, map: &Map<String, Value>, at: &str, names: usize) -> SchemaResult<Value> {
        let empty = Map::new();
        let properties = match map.get("properties") {
            None => &empty,
            Some(Value::Object(properties)) => properties,
            Some(_) => return error_at(at, "properties must be an object"),
        };
        let required = strings(map, "required", at)?;
        self.document.count_steps(VISIT * (properties.len() + required.len()), at)?;
        let needed: HashSet<&str> = required.iter().copied().collect();
        let mut additional = match map.get("additionalProperties") {
            None if map.contains_key("properties") || !required.is_empty() => None,
            None | Some(Value::Bool(true)) => Some(json!(true)),
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(self.schema(schema, &format!("{at}/additionalProperties"), names + 20)?),
        };
        let mut out = Map::new();
        for (name, schema) in properties {
            if schema != &Value::Bool(false) {
                let simplified = self.schema(schema, &format!("{at}/properties/{name}"), names + name.len() + 1)?;
                out.insert(name.clone(), simplified);
            } else if needed.contains(name.as_str()) {
                return error_at(at, format!("{} is required and never valid", show(&json!(name))));
            } else if additional.is_some() {
                // Without it, an additional property could have its name.
                let at = format!("{at}/properties/{name}");
                return error_at(&at, "false beside additionalProperties cannot be enforced");
            }
        }
        for name in &required {
            if !out.contains_key(*name) {
                if map.get("additionalProperties") == Some(&Value::Bool(false)) {
                    return error_at(at, format!("{} is required and is not a property", show(&json!(name))));
                }
                // Read again instead of copied, so that its size is counted each time.
                let any = match map.get("additionalProperties") {
                    Some(any @ Value::Object(_)) => {
                        self.schema(any, &format!("{at}/additionalProperties"), names + 20)?
                    }
                    _ => json!({}),
                };
                out.insert((*name).to_owned(), any);
            }
        }
        if let Some(schema) = map.get("propertyNames")
            && let Some(allowed) = names::allowed(&self.document, schema, &format!("{at}/propertyNames"))?
        {
            let is_open = additional.take().is_some();
            self.restrict(map, &allowed, is_open, &mut out, at, names)?;
        }
        if out.len() > MAX_PROPERTIES {
            return error_at(at, format!("more than {MAX_PROPERTIES} properties"));
        }
        let odd = |name: &str| name.is_empty() || name.contains(['"', '\\', '[', ']', '^', '-', '*']);
        for name in out.keys() {
            if name.len() > MAX_NAME {
                return error_at(at, format!("a property's name of more than {MAX_NAME} bytes"));
            }
            if name == "*" || additional.is_some() && (odd(name) || name.contains(char::is_control)) {
                let name = show(&json!(name));
                return error_at(at, format!("a grammar cannot distinguish the property {name} from additional ones"));
            }
        }
        let required = out.keys().filter(|name| needed.contains(name.as_str())).cloned().collect();
        self.counted(ObjectSchema { properties: out, required, additional }, map, at)
    }

    /// Simplifies an object schema with `minProperties` and `maxProperties`.
    fn counted(&mut self, mut object: ObjectSchema, map: &Map<String, Value>, at: &str) -> SchemaResult<Value> {
        let read = |key: &str| count(map, key, at).map(|n| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)));
        let (least, most) = (read("minProperties")?.unwrap_or(0), read("maxProperties")?);
        let spare = most.map(|most| most.saturating_sub(object.properties.len()));
        let is_root = at == "#" && self.root_is_inlined;
        // A root that is inlined cannot be a definition. The listed properties are enough.
        if spare == Some(0) || spare.is_some() && is_root && !object.properties.is_empty() {
            object.additional = None;
        }
        let spare = spare.filter(|_| object.additional.is_some());
        let alternatives = object.with_counts(least, most).filter(|_| spare.is_none() || !is_root);
        let Some(alternatives) = alternatives else {
            return error_at(at, "minProperties and maxProperties cannot be enforced by a grammar");
        };
        let mut out = Vec::new();
        for mut object in alternatives {
            // The converter has one rule for all objects of anything. It does not know that these types are all.
            let is_anything = [json!(true), json!({})].into_iter().any(|any| object.additional == Some(any));
            if spare.is_some() && object.properties.is_empty() && is_anything {
                object.additional = Some(json!({"type": TYPES}));
            }
            let object = object.to_json();
            self.document.count_copy(&object, at)?;
            out.push(match spare {
                None => object,
                Some(spare) => self.bounded(object, spare),
            });
        }
        Ok(if out.len() == 1 { out.swap_remove(0) } else { json!({ "anyOf": out }) })
    }

    /// Makes an object schema with at most `n` additional properties a definition whose name says so, because the converter has no keyword
    /// for it (see `converter_fixes.rs`).
    fn bounded(&mut self, object: Value, n: usize) -> Value {
        let name = format!("b{}{ADDITIONAL}{}", self.bounded.len(), n.min(MAX_ITEMS as usize));
        let reference = json!({"$ref": format!("#/$defs/{name}")});
        self.bounded.push((name, object));
        reference
    }

    /// Leaves only the properties with an allowed name, and lists those that would be additional ones.
    fn restrict(
        &mut self,
        map: &Map<String, Value>,
        allowed: &[String],
        is_open: bool,
        out: &mut Map<String, Value>,
        at: &str,
        names: usize,
    ) -> SchemaResult<()> {
        if allowed.len() > MAX_PROPERTIES {
            return error_at(at, format!("more than {MAX_PROPERTIES} names in propertyNames"));
        }
        if let Some(name) = strings(map, "required", at)?.iter().find(|name| !allowed.iter().any(|one| one == *name)) {
            return error_at(at, format!("{} is required, and propertyNames forbids it", show(&json!(name))));
        }
        out.retain(|name, _| allowed.contains(name));
        let is_listed = |name: &str| map.get("properties").is_some_and(|all| all.get(name).is_some());
        for name in allowed.iter().filter(|_| is_open) {
            if !out.contains_key(name) && !is_listed(name) {
                let any = match map.get("additionalProperties") {
                    Some(any @ Value::Object(_)) => {
                        self.schema(any, &format!("{at}/additionalProperties"), names + 20)?
                    }
                    _ => json!({}),
                };
                out.insert(name.clone(), any);
            }
        }
        Ok(())
    }

    /// Simplifies an array schema.
    fn array(&mut self, map: &Map<String, Value>, at: &str, names: usize) -> SchemaResult<Value> {
        if map.get("uniqueItems") == Some(&Value::Bool(true)) {
            return error_at(at, "uniqueItems cannot be enforced by a grammar");
        }
        let (least, most) = bounds(map, "minItems", "maxItems", at)?;
        let items = map.get("items");
        let tuple = map.get("prefixItems").or(items.filter(|items| items.is_array()));
        if let Some(tuple) = tuple {
            let Some(tuple) = tuple.as_array() else { return error_at(at, "prefixItems must be an array") };
            if map.contains_key("prefixItems") && items.is_some_and(Value::is_array) {
                return error_at(at, "items beside prefixItems must be one schema");
            }
            let len = tuple.len() as u64;
            if least > len || most.is_some_and(|most| most < len) {
                return error_at(at, format!("a tuple must have as many items as prefixItems ({len})"));
            }
            let mut out = Vec::new();
            for (i, item) in tuple.iter().enumerate() {
                out.push(self.schema(item, &format!("{at}/prefixItems/{i}"), names + 12)?);
            }
            return Ok(json!({"type": "array", "items": out}));
        }
        let (items, most) = match items {
            Some(Value::Bool(false)) if least == 0 => (json!({}), Some(0)),
            Some(items) => (self.schema(items, &format!("{at}/items"), names + 5)?, most),
            None => (json!({}), most),
        };
        let most = most.map(|most| if least == 0 { most.min(MAX_ITEMS) } else { most });
        Ok(match most {
            Some(most) => json!({"type": "array", "items": items, "minItems": least, "maxItems": most}),
            None => json!({"type": "array", "items": items, "minItems": least}),
        })
    }
}
