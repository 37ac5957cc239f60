//! Arguments between tags: the parameters of a tool, and how a value is written there and read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use foredraft_base::error::{Error, Result};

use crate::document::{Document, SchemaError, SchemaResult, error_at};
use crate::keywords::{UNENFORCEABLE, is_assertion, named_types};
use crate::numbers::NumberRange;
use crate::options::{CompileOptions, CompiledSchema, Unenforced};
use crate::reader::objects::{Listed, MAX_PROPERTIES, listed};
use crate::rules::Rules;
use crate::schema::Schema;
use crate::spelling::Spelling;
use crate::tree::{AdditionalNode, ArrayNode, ObjectNode, SchemaNode, SchemaTree, TextNode};
use crate::writer::{self, WriterOptions};
use crate::{formats, merge};

/// The maximum number of alternatives of which the parameters are those of all.
const MAX_ALTERNATIVES: usize = 64;
/// The maximum nesting of references and alternatives around the parameters.
const MAX_DEPTH: usize = 8;
/// Keywords about a whole object that a sequence of arguments does not enforce.
const ABOUT_OBJECTS: [&str; 4] = ["minProperties", "maxProperties", "patternProperties", "propertyNames"];

/// The parameters of a tool, for formats that write each argument between tags.
#[derive(Debug, Clone)]
pub struct Parameters {
    /// The parameters in the order of the schema.
    pub properties: Vec<Property>,
    /// The schema of arguments with other names; `None`: there are none.
    pub additional: Option<Schema>,
    /// The keywords about the whole object that a sequence of arguments does not enforce, such as `anyOf` or `minProperties`.
    pub unenforced: Vec<Unenforced>,
}

/// A parameter.
#[derive(Debug, Clone)]
pub struct Property {
    /// The name.
    pub name: String,
    /// Every call has it.
    pub is_required: bool,
    /// The schema of its values.
    pub schema: Schema,
}

/// How the text of an argument between tags is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// Only strings are valid: the text is the string itself, without quotes and escapes. The text `null` is a string.
    Text,
    /// No string is valid: the text is JSON. Space around it is ignored.
    Json,
    /// Strings and other values are valid, or the schema has no type. The text is JSON if it has no space around it and is the JSON text
    /// of a value that is not a string and that is valid under the schema. Any other text is the string itself. So `12` is a number
    /// where the schema allows this number, `null` is null where it allows null, and `"a"` is a string of three characters.
    Either,
}

/// The rule of an argument between tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledArgument {
    /// The rule that matches the text between the tags. The text contains none of the delimiters, and is followed by the first
    /// occurrence of one.
    pub rule: String,
    /// How the text is read.
    pub kind: ArgumentKind,
    /// The keywords that were dropped.
    pub unenforced: Vec<Unenforced>,
}

impl Schema {
    /// The parameters of a tool. If the schema is not one object (`anyOf` of several, for instance), the parameters are those of all
    /// alternatives, and `unenforced` says so.
    ///
    /// # Errors
    /// As [`Schema::compile`]: no object is valid.
    pub fn parameters(&self) -> Result<Parameters> {
        parameters(self)
    }

    /// Adds the rules for the text of a value between tags; see [`ArgumentKind`] for how it is read. `delimiters`: the texts that end the
    /// value. Strings obey `enum`, `const`, `pattern`, `format` and lengths as they do in JSON. JSON avoids the delimiters inside of its
    /// strings by escapes, so a delimiter must have a character that JSON has only in strings.
    /// [`CompileOptions::drop_unenforceable`] is always set here.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn compile_argument(
        &self,
        delimiters: &[&str],
        options: &CompileOptions,
        rules: &mut Rules,
    ) -> Result<CompiledArgument> {
        compile(self, delimiters, options, rules)
    }

    /// Adds the rules for the valid values that are no strings, as [`Schema::compile`] does for all. `None`: there are none.
    /// [`CompileOptions::drop_unenforceable`] is always set here.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn compile_values(&self, options: &CompileOptions, rules: &mut Rules) -> Result<Option<CompiledSchema>> {
        compile_values(self, options, rules)
    }

    /// The value that the text of an argument means; see [`ArgumentKind`]. `None`: it must be JSON, and is not. The value can be invalid
    /// under the schema, if the text does not come from the grammar.
    #[must_use]
    pub fn read_argument(&self, kind: ArgumentKind, text: &str) -> Option<Value> {
        read(self, kind, text)
    }
}

/// See [`Schema::parameters`].
fn parameters(schema: &Schema) -> Result<Parameters> {
    let document = Document::new(&schema.root, true, &schema.work);
    let read = || -> SchemaResult<(Vec<Property>, Option<Schema>)> {
        let mut objects = Vec::new();
        match &*schema.part {
            Value::Bool(true) => objects.push(Map::new()),
            Value::Object(map) => add_objects(&document, map, &schema.at, 0, &mut objects)?,
            _ => return error_at(&schema.at, "expected the schema of an object"),
        }
        if objects.is_empty() {
            return error_at(&schema.at, "no object is valid");
        }
        let part = |value: Value, at: String| Schema {
            root: Arc::clone(&schema.root),
            part: Arc::new(value),
            at,
            work: schema.work.clone(),
        };
        let mut merged: Vec<(Listed, Vec<Value>)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut additional = Vec::new();
        for (index, map) in objects.iter().enumerate() {
            let own = listed(&document, map, &schema.at)?;
            document.count_steps(merged.len(), &schema.at)?;
            let names: HashSet<String> = own.iter().map(|one| one.name.clone()).collect();
            for known in merged.iter_mut().filter(|(known, _)| !names.contains(&known.name)) {
                known.0.is_required = false;
            }
            for one in own.into_iter().filter(|one| one.schema != Value::Bool(false)) {
                let place = *places.entry(one.name.clone()).or_insert(merged.len());
                match merged.get_mut(place) {
                    Some((known, schemas)) => {
                        known.is_required &= one.is_required;
                        if !schemas.contains(&one.schema) {
                            schemas.push(one.schema);
                        }
                    }
                    None => {
                        let schemas = vec![one.schema.clone()];
                        merged.push((Listed { is_required: one.is_required && index == 0, ..one }, schemas));
                    }
                }
            }
            additional.extend(rest(map));
        }
        if merged.len() > MAX_PROPERTIES {
            return error_at(&schema.at, format!("more than {MAX_PROPERTIES} properties"));
        }
        let properties = merged.into_iter().map(|(one, mut schemas)| Property {
            name: one.name,
            is_required: one.is_required,
            schema: part(if schemas.len() == 1 { schemas.swap_remove(0) } else { json!({ "anyOf": schemas }) }, one.at),
        });
        let additional = additional.into_iter().next();
        Ok((properties.collect(), additional.map(|rest| part(rest, format!("{}/additionalProperties", schema.at)))))
    };
    let (properties, additional) = read().map_err(SchemaError::into_error)?;
    Ok(Parameters { properties, additional, unenforced: document.into_unenforced() })
}

/// The schema of additional properties, if the schema asks for them.
fn rest(map: &Map<String, Value>) -> Option<Value> {
    match map.get("additionalProperties") {
        None => (!map.contains_key("properties") && !map.contains_key("required")).then_some(Value::Bool(true)),
        Some(Value::Bool(false)) => None,
        Some(schema) => Some(schema.clone()),
    }
}

/// Adds the object schemas of which a value satisfies one, without references and alternatives.
fn add_objects(
    document: &Document<'_>,
    map: &Map<String, Value>,
    at: &str,
    depth: usize,
    objects: &mut Vec<Map<String, Value>>,
) -> SchemaResult<()> {
    if depth > MAX_DEPTH || objects.len() > MAX_ALTERNATIVES {
        return error_at(at, "too many references and alternatives around the parameters");
    }
    if map.contains_key("allOf") || map.contains_key("$ref") {
        return match merge::all_of(document, map, at)? {
            Value::Object(merged) => add_objects(document, &merged, at, depth + 1, objects),
            _ => Ok(()),
        };
    }
    for keyword in ["anyOf", "oneOf"] {
        let Some(parts) = map.get(keyword) else { continue };
        let Some(parts) = parts.as_array().filter(|parts| !parts.is_empty() && parts.len() <= MAX_ALTERNATIVES) else {
            return error_at(at, format!("{keyword} must be an array of schemas, not empty, and not too long"));
        };
        let beside = map.iter().filter(|(key, _)| is_assertion(key) && *key != keyword);
        let beside: Map<String, Value> = beside.map(|(key, value)| (key.clone(), value.clone())).collect();
        document.drop_keyword(at, keyword, format!("{keyword} of the arguments cannot be enforced"))?;
        for part in parts.iter().filter(|part| **part != Value::Bool(false)) {
            document.count_copy(part, at)?;
            document.count_copy(&Value::Object(beside.clone()), at)?;
            // An alternative that contradicts what stands beside it is never valid.
            let both = Map::from_iter([("allOf".to_owned(), json!([beside, part]))]);
            if let Ok(Value::Object(merged)) = merge::all_of(document, &both, at) {
                add_objects(document, &merged, at, depth + 1, objects)?;
            }
        }
        return Ok(());
    }
    let types = named_types(map, at)?;
    if !types.is_empty() && !types.iter().any(|name| name == "object") {
        return Ok(());
    }
    for keyword in UNENFORCEABLE.iter().chain(&ABOUT_OBJECTS).filter(|keyword| map.contains_key(**keyword)) {
        document.drop_keyword(at, keyword, format!("{keyword} of the arguments cannot be enforced"))?;
    }
    objects.push(map.clone());
    Ok(())
}

/// The values of a node, by how they are written between tags.
#[derive(Default)]
struct ByKind<'t> {
    texts: Vec<&'t TextNode>,
    /// Strings in lists of values.
    strings: Vec<&'t str>,
    others: Vec<SchemaNode>,
    /// Any string is valid.
    any_text: bool,
}

impl<'t> ByKind<'t> {
    fn add(&mut self, tree: &'t SchemaTree, node: &'t SchemaNode, seen: &mut HashSet<usize>) {
        match node {
            SchemaNode::Any => {
                self.any_text = true;
                self.others.push(SchemaNode::Any);
            }
            SchemaNode::Definition(id) => {
                if seen.insert(*id)
                    && let Some(target) = tree.definitions.get(*id)
                {
                    self.add(tree, target, seen);
                }
            }
            SchemaNode::Union(nodes) => nodes.iter().for_each(|node| self.add(tree, node, seen)),
            SchemaNode::Values(values) => {
                self.strings.extend(values.iter().filter_map(Value::as_str));
                let others: Vec<Value> = values.iter().filter(|value| !value.is_string()).cloned().collect();
                if !others.is_empty() {
                    self.others.push(SchemaNode::Values(others));
                }
            }
            SchemaNode::Text(text) => {
                self.any_text |= matches!(text, TextNode::Pattern(node) if node.is_any_text());
                self.texts.push(text);
            }
            other => self.others.push(other.clone()),
        }
    }
}

/// See [`Schema::compile_argument`].
fn compile(
    schema: &Schema,
    delimiters: &[&str],
    options: &CompileOptions,
    rules: &mut Rules,
) -> Result<CompiledArgument> {
    let (tree, mut unenforced) = schema.read(true)?;
    let mut values = ByKind::default();
    values.add(&tree, &tree.root, &mut HashSet::new());
    let has_text = values.any_text || !values.texts.is_empty() || !values.strings.is_empty();
    let kind = match (has_text, values.others.is_empty()) {
        (true, true) => ArgumentKind::Text,
        (true, false) => ArgumentKind::Either,
        (false, _) => ArgumentKind::Json,
    };
    let raw = Spelling::raw(delimiters);
    if values.any_text {
        let text = raw.any_text(rules, false);
        return Ok(CompiledArgument { rule: rules.add("text", text), kind, unenforced });
    }
    let mut dropped = Vec::new();
    let mut parts: Vec<String> = values.strings.iter().filter_map(|text| raw.exactly(text)).collect();
    for text in &values.texts {
        let body = match text {
            TextNode::Format(format) => formats::rule(format, rules),
            TextNode::Except(_) => {
                dropped.push(("not", "not cannot be enforced in text without quotes".to_owned()));
                raw.any_text(rules, false)
            }
            TextNode::Pattern(node) => raw.pattern(node, rules).unwrap_or_else(|part| {
                dropped.push(("pattern", format!("the pattern has {part}, which a grammar cannot enforce")));
                raw.any_text(rules, false)
            }),
        };
        parts.push(rules.add("text", body));
    }
    if !values.others.is_empty() {
        parts.push(write_values(schema, &tree, values.others, delimiters, options, rules, &mut dropped)?);
    }
    if parts.is_empty() {
        let why = format!("{}: every valid text has what ends the argument", schema.at);
        return Err(Error::invalid(why));
    }
    unenforced.extend(schema.located(dropped));
    Ok(CompiledArgument { rule: rules.add("argument", parts.join(" | ")), kind, unenforced })
}

/// See [`Schema::compile_values`].
fn compile_values(schema: &Schema, options: &CompileOptions, rules: &mut Rules) -> Result<Option<CompiledSchema>> {
    let (tree, mut unenforced) = schema.read(true)?;
    let mut values = ByKind::default();
    values.add(&tree, &tree.root, &mut HashSet::new());
    if values.others.is_empty() {
        return Ok(None);
    }
    let others = values.others.into_iter().map(|node| match node {
        SchemaNode::Any => any_but_texts(),
        node => node,
    });
    let others = others.collect();
    let mut dropped = Vec::new();
    let rule = write_values(schema, &tree, others, &[], options, rules, &mut dropped)?;
    unenforced.extend(schema.located(dropped));
    Ok(Some(CompiledSchema { rule, unenforced }))
}

/// Any value but strings.
fn any_but_texts() -> SchemaNode {
    let additional = AdditionalNode { excluded: Vec::new(), names: None, value: SchemaNode::Any };
    let array = ArrayNode { first: Vec::new(), rest: Some(SchemaNode::Any), least: 0, most: None };
    SchemaNode::Union(vec![
        SchemaNode::Object(Box::new(ObjectNode { additional: Some(additional), ..ObjectNode::default() })),
        SchemaNode::Array(Box::new(array)),
        SchemaNode::Number(NumberRange::default()),
        SchemaNode::Boolean,
        SchemaNode::Null,
    ])
}

/// Adds the rules of values that are no strings, in which no delimiter occurs.
fn write_values(
    schema: &Schema,
    tree: &SchemaTree,
    nodes: Vec<SchemaNode>,
    delimiters: &[&str],
    options: &CompileOptions,
    rules: &mut Rules,
    dropped: &mut Vec<(&'static str, String)>,
) -> Result<String> {
    let write = || {
        let spellings = Spelling::quoted(delimiters, options.python)?;
        let writer_options = WriterOptions { spellings: &spellings, any_order: options.any_order, drops: true };
        writer::write(tree, &SchemaNode::Union(nodes), &writer_options, rules, dropped)
    };
    write().or_else(|why| error_at(&schema.at, why)).map_err(SchemaError::into_error)
}

/// See [`Schema::read_argument`].
fn read(schema: &Schema, kind: ArgumentKind, text: &str) -> Option<Value> {
    let string = || Value::String(text.to_owned());
    match kind {
        ArgumentKind::Text => Some(string()),
        ArgumentKind::Json => serde_json::from_str(text).ok(),
        ArgumentKind::Either => {
            let is_bare = text.trim().len() == text.len();
            let json = serde_json::from_str::<Value>(text).ok().filter(|value| is_bare && !value.is_string());
            Some(json.filter(|value| schema.is_valid(value)).unwrap_or_else(string))
        }
    }
}
