//! References: replaces each `$ref` by the location of its schema, as seen from the root.
//!
//! A `$ref` is relative to the nearest `$id` around it, and drafts differ in what an `$id` is. So all resources and anchors are
//! collected first. If a schema does not name its draft, and the drafts disagree about a reference, it is refused. Nothing is fetched.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::document::{Document, MAX_NESTING, MAX_PATH, SchemaResult, VISIT, error_at, show_text};
use crate::uri;

/// Keywords with a schema, or with an array of schemas.
const SCHEMA_KEYWORDS: [&str; 18] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "contentSchema",
    "else",
    "extends",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "disallow",
];
/// Keywords with an object of schemas.
const MAP_KEYWORDS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// The rules of a draft for identifiers.
#[derive(Clone, Copy, PartialEq)]
struct Dialect {
    /// The keyword of identifiers.
    id: &'static str,
    /// Whether keywords beside a `$ref` are ignored, also an identifier.
    ref_stands_alone: bool,
}

const DRAFT_4: Dialect = Dialect { id: "id", ref_stands_alone: true };
const DRAFT_7: Dialect = Dialect { id: "$id", ref_stands_alone: true };
const DRAFT_2019: Dialect = Dialect { id: "$id", ref_stands_alone: false };

/// The schema with all references replaced by `#` and a JSON pointer. A reference that leads nowhere stays one that leads nowhere.
pub(crate) fn locate(document: &Document<'_>, schema: &Value) -> SchemaResult<Value> {
    let mut places: HashMap<String, Option<String>> = HashMap::new();
    let mut texts = HashMap::new();
    for dialect in dialects(schema) {
        let index = SchemaIndex::new(document, schema, dialect)?;
        for reference in &index.references {
            reference.count(document)?;
            let target = index.target(&reference.text, &reference.base);
            texts.entry(reference.at.clone()).or_insert((reference.text.clone(), reference.base.clone()));
            let known = places.entry(reference.at.clone()).or_insert(None);
            match (&known, target) {
                (Some(one), Some(other)) if *one != other => {
                    let text = show_text(&reference.text);
                    let what = "its schema depends on the draft; name the draft in $schema";
                    return error_at(&format!("#{}", reference.at), format!("$ref {text}: {what}"));
                }
                (None, Some(target)) => *known = Some(target),
                _ => {}
            }
        }
    }
    let mut located = schema.clone();
    for (at, target) in places {
        let Some((text, base)) = texts.remove(&at) else { continue };
        let new = match target {
            Some(pointer) => format!("#{pointer}"),
            None => unresolved(schema, &text, &base, &at)?,
        };
        if let Some(Value::Object(map)) = located.pointer_mut(&at) {
            map.insert("$ref".to_owned(), Value::String(new));
        }
    }
    Ok(located)
}

/// A reference that leads nowhere, in a form that also leads nowhere when it is read as a pointer from the root.
fn unresolved(root: &Value, text: &str, base: &str, at: &str) -> SchemaResult<String> {
    let (resource, fragment) = uri::split_fragment(text);
    let resource = uri::resolve(base, resource);
    if !resource.is_empty() && (resource != base || root.pointer(fragment).is_some()) {
        return Ok(format!("{resource}#{fragment}"));
    }
    if root.pointer(fragment).is_some() {
        return error_at(&format!("#{at}"), format!("cannot resolve $ref {}", show_text(text)));
    }
    Ok(format!("#{fragment}"))
}

/// The dialects that the schema may be written in.
fn dialects(schema: &Value) -> Vec<Dialect> {
    let named = schema.get("$schema").and_then(Value::as_str).unwrap_or_default();
    let is = |names: &[&str]| names.iter().any(|name| named.contains(name));
    if is(&["draft-03", "draft-04"]) {
        vec![DRAFT_4]
    } else if is(&["draft-06", "draft-07"]) {
        vec![DRAFT_7]
    } else if is(&["2019-09", "2020-12"]) {
        vec![DRAFT_2019]
    } else if has_key(schema, "$id") || !has_key(schema, "id") {
        vec![DRAFT_2019, DRAFT_7]
    } else {
        vec![DRAFT_2019, DRAFT_7, DRAFT_4]
    }
}

/// Whether there is a text under this key anywhere in a value.
fn has_key(value: &Value, key: &str) -> bool {
    match value {
        Value::Object(map) => {
            map.get(key).is_some_and(Value::is_string) || map.values().any(|value| has_key(value, key))
        }
        Value::Array(items) => items.iter().any(|item| has_key(item, key)),
        _ => false,
    }
}

/// A `$ref`.
struct Reference {
    /// The pointer to the schema that has it.
    at: String,
    text: String,
    /// The resource that contains it.
    base: String,
}

impl Reference {
    /// Counts the steps of finding its schema: a look-up for each name of each pointer that begins the one to it.
    fn count(&self, document: &Document<'_>) -> SchemaResult<()> {
        let names = self.text.matches('/').count().min(MAX_NESTING) + 1;
        document.count_steps(names * names + (self.text.len() + self.base.len()) / 4, "#")
    }
}

/// All resources, anchors and references of a schema.
struct SchemaIndex<'d, 'a> {
    document: &'d Document<'a>,
    root: &'a Value,
    dialect: Dialect,
    /// The pointer to each resource; `None` if several have the same name.
    resources: HashMap<String, Option<String>>,
    /// The pointer to each anchor of a resource; `None` if several have the same name.
    anchors: HashMap<(String, String), Option<String>>,
    references: Vec<Reference>,
}

impl<'d, 'a> SchemaIndex<'d, 'a> {
    fn new(document: &'d Document<'a>, root: &'a Value, dialect: Dialect) -> SchemaResult<Self> {
        let (resources, anchors) = (HashMap::from([(String::new(), Some(String::new()))]), HashMap::new());
        let mut index = Self { document, root, dialect, resources, anchors, references: Vec::new() };
        index.schema(root, &mut String::new(), "")?;
        // References may lead to schemas under keywords that are not of the standard, such as `components`.
        let (mut done, mut walked) = (0, HashSet::new());
        while let Some(reference) = index.references.get(done) {
            done += 1;
            reference.count(document)?;
            let Some(mut pointer) = index.target(&reference.text, &reference.base) else { continue };
            let base = reference.base.clone();
            if let Some(schema) = root.pointer(&pointer)
                && !is_schema_location(root, &pointer)
                && walked.insert(pointer.clone())
            {
                index.schema(schema, &mut pointer, &base)?;
            }
        }
        Ok(index)
    }

    /// Collects what is in a schema. `base`: the resource around it.
    fn schema(&mut self, schema: &'a Value, pointer: &mut String, base: &str) -> SchemaResult<()> {
        let Some(map) = schema.as_object() else { return Ok(()) };
        self.document.count_steps(VISIT + (pointer.len() + base.len()) / 4, "#")?;
        let reference = map.get("$ref").and_then(Value::as_str);
        let stands_alone = self.dialect.ref_stands_alone && reference.is_some();
        let base = if stands_alone { base.to_owned() } else { self.identify(map, pointer, base) };
        if let Some(reference) = reference.filter(|reference| reference.len() <= MAX_PATH) {
            self.references.push(Reference { at: pointer.clone(), text: reference.to_owned(), base: base.clone() });
        }
        for (key, value) in map {
            let is_map = MAP_KEYWORDS.contains(&key.as_str());
            if !is_map && !SCHEMA_KEYWORDS.contains(&key.as_str()) {
                continue;
            }
            let len = push(pointer, key);
            match value {
                Value::Object(schemas) if is_map => {
                    for (name, schema) in schemas {
                        let len = push(pointer, name);
                        self.schema(schema, pointer, &base)?;
                        pointer.truncate(len);
                    }
                }
                Value::Array(schemas) => {
                    for (i, schema) in schemas.iter().enumerate() {
                        let len = push(pointer, &i.to_string());
                        self.schema(schema, pointer, &base)?;
                        pointer.truncate(len);
                    }
                }
                schema => self.schema(schema, pointer, &base)?,
            }
            pointer.truncate(len);
        }
        Ok(())
    }

    /// Notes the identifier and the anchors of a schema, and returns the resource that it belongs to.
    fn identify(&mut self, map: &Map<String, Value>, pointer: &str, base: &str) -> String {
        let (resource, fragment) = uri::split_fragment(map.get(self.dialect.id).and_then(Value::as_str).unwrap_or(""));
        let own = if resource.is_empty() { base.to_owned() } else { uri::resolve(base, resource) };
        if !resource.is_empty() {
            note(&mut self.resources, own.clone(), pointer);
        }
        let anchors = ["$anchor", "$dynamicAnchor"].into_iter().filter_map(|key| map.get(key)?.as_str());
        for anchor in anchors.chain([fragment]).filter(|anchor| !anchor.is_empty()) {
            note(&mut self.anchors, (own.clone(), anchor.to_owned()), pointer);
        }
        own
    }

    /// The pointer to the schema that a reference names.
    fn target(&self, reference: &str, base: &str) -> Option<String> {
        let (resource, fragment) = uri::split_fragment(reference);
        let resource = uri::resolve(base, resource);
        let fragment = uri::percent_decode(fragment)?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&(resource, fragment))?.clone();
        }
        let pointer = format!("{}{fragment}", self.resources.get(&resource)?.as_ref()?);
        self.root.pointer(&pointer).map(|_| pointer)
    }
}

/// Notes the place of a key. A key with two places has none.
fn note<K: std::hash::Hash + Eq>(places: &mut HashMap<K, Option<String>>, key: K, pointer: &str) {
    let place = places.entry(key).or_insert_with(|| Some(pointer.to_owned()));
    if place.as_deref() != Some(pointer) {
        *place = None;
    }
}

/// Adds a name to a pointer, and returns the length before.
fn push(pointer: &mut String, name: &str) -> usize {
    let len = pointer.len();
    pointer.push('/');
    pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
    len
}

/// Whether a pointer leads to a schema by keywords of the standard.
fn is_schema_location(root: &Value, pointer: &str) -> bool {
    let mut names = pointer.split('/').skip(1);
    let mut at = String::new();
    while let Some(name) = names.next() {
        at.push('/');
        at.push_str(name);
        let needs_name = match root.pointer(&at) {
            _ if MAP_KEYWORDS.contains(&name) => true,
            Some(value) if SCHEMA_KEYWORDS.contains(&name) => value.is_array(),
            _ => return false,
        };
        if needs_name {
            let Some(name) = names.next() else { return false };
            at.push('/');
            at.push_str(name);
        }
    }
    true
}
