//! Arguments between tags: the parameters of a tool, and how a value is written there and read.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use foredraft_base::error::Result;
use foredraft_grammar::tree::{Mark, NodeId, TreeBuilder};

use crate::document::{Document, SchemaError, SchemaResult, error_at, too_large_at};
use crate::keywords::{UNENFORCEABLE, is_assertion, named_types};
use crate::merge;
use crate::options::{CompileOptions, CompiledSchema, DROPPING, Notation, Unenforced};
use crate::reader::objects::{Listed, MAX_PROPERTIES, listed};
use crate::schema::Schema;
use crate::spelling::{Script, Spelling};
use crate::tree::{SchemaNode, SchemaTree, TextNode};
use crate::writer::{Values, content, one_of};

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

/// The node of an argument between tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledArgument {
    /// The texts between the tags. They contain none of the delimiters, and are followed by the first occurrence of one.
    pub node: NodeId,
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

    /// Adds nodes for the text of a value between tags; see [`ArgumentKind`] for how it is read. `delimiters`: the texts that end the
    /// value. Strings obey `enum`, `const`, `pattern`, `format` and lengths as they do in JSON. Values that are no strings, in `notation`,
    /// avoid the delimiters inside of their strings by escapes, so a delimiter must have a character that they have only in strings.
    /// Marks say which texts are JSON as they stand, and which are strings.
    /// [`CompileOptions::drop_unenforceable`] is always set here.
    ///
    /// # Errors
    /// As [`Values::value`].
    pub fn compile_argument(
        &self,
        delimiters: &[&str],
        notation: Notation,
        options: &CompileOptions,
        tree: &TreeBuilder,
    ) -> Result<CompiledArgument> {
        compile(self, delimiters, notation, options, tree)
    }

    /// How the text of a value between tags is read.
    ///
    /// # Errors
    /// As [`Values::value`].
    pub fn argument_kind(&self) -> Result<ArgumentKind> {
        let (tree, _) = self.read(&DROPPING)?;
        Ok(ByKind::of(&tree).kind())
    }

    /// Adds nodes for the valid values that are no strings. `None`: there are none. [`CompileOptions::drop_unenforceable`] is always set here.
    ///
    /// # Errors
    /// As [`Values::value`].
    pub fn compile_values(
        &self,
        notation: Notation,
        options: &CompileOptions,
        tree: &TreeBuilder,
    ) -> Result<Option<CompiledSchema>> {
        let options = CompileOptions { drop_unenforceable: true, ..*options };
        let (read, unenforced) = self.read(&options)?;
        let others = ByKind::of(&read).others;
        let mut values = Values::new(tree, notation, options);
        values.note(unenforced);
        let node = write_values(self, &read, others, &mut values)?;
        Ok(node.map(|node| CompiledSchema { node, unenforced: values.into_unenforced() }))
    }
}

/// See [`Schema::parameters`].
fn parameters(schema: &Schema) -> Result<Parameters> {
    let document = Document::new(&schema.root, &DROPPING, &schema.work);
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
            return too_large_at(&schema.at, format!("more than {MAX_PROPERTIES} properties"));
        }
        let properties = merged.into_iter().map(|(one, mut schemas)| Property {
            name: one.name,
            is_required: one.is_required,
            schema: schema
                .part(if schemas.len() == 1 { schemas.swap_remove(0) } else { json!({ "anyOf": schemas }) }, one.at),
        });
        let additional = additional.into_iter().next();
        Ok((
            properties.collect(),
            additional.map(|rest| schema.part(rest, format!("{}/additionalProperties", schema.at))),
        ))
    };
    let any = || (Vec::new(), Some(schema.part(Value::Bool(true), format!("{}/additionalProperties", schema.at))));
    let (properties, additional) = document.allow_large(read(), &schema.at, any).map_err(SchemaError::into_error)?;
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
        return too_large_at(at, "too many references and alternatives around the parameters");
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
    fn of(tree: &'t SchemaTree) -> ByKind<'t> {
        let mut values = ByKind::default();
        values.add(tree, &tree.root, &mut HashSet::new());
        values
    }

    fn kind(&self) -> ArgumentKind {
        let has_text = self.any_text || !self.texts.is_empty() || !self.strings.is_empty();
        match (has_text, self.others.is_empty()) {
            (true, true) => ArgumentKind::Text,
            (true, false) => ArgumentKind::Either,
            (false, _) => ArgumentKind::Json,
        }
    }

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
    notation: Notation,
    options: &CompileOptions,
    tree: &TreeBuilder,
) -> Result<CompiledArgument> {
    let options = CompileOptions { drop_unenforceable: true, ..*options };
    let (read, unenforced) = schema.read(&options)?;
    let ByKind { texts, strings, others, any_text } = ByKind::of(&read);
    let kind = ByKind { texts: texts.clone(), strings: strings.clone(), others: others.clone(), any_text }.kind();
    if !others.is_empty()
        && let Some(delimiter) = delimiters.iter().find(|delimiter| !Values::avoids(delimiter, notation))
    {
        let why = format!("the delimiter {delimiter:?} has no character that JSON has only in strings");
        return error_at(&schema.at, why).map_err(SchemaError::into_error);
    }
    let mut values = Values::between(tree, notation, options, delimiters);
    values.note(unenforced);
    // Values that are no strings come first: other text is a string.
    let mut forms: Vec<NodeId> = write_values(schema, &read, others, &mut values)?.into_iter().collect();
    if notation == Notation::Json {
        forms = forms.into_iter().map(|node| tree.mark(Mark::Verbatim, node)).collect();
    }
    let raw = Spelling::new(Script::Raw, delimiters);
    let mut contents: Vec<NodeId> = Vec::new();
    if any_text {
        contents.push(raw.any_text(tree, false));
    } else {
        let mut listed: Vec<(String, Option<String>)> =
            strings.iter().filter(|text| raw.allows(text)).map(|text| ((*text).to_owned(), None)).collect();
        listed.sort_unstable();
        if !listed.is_empty() {
            contents.push(tree.mark(Mark::Text, one_of(&listed, 0, 0, tree)));
        }
        for text in texts {
            contents.push(match content(text, &raw, &schema.work, tree) {
                Ok(node) => node,
                Err(reason) => {
                    schema.count_steps(1)?;
                    let (location, keyword) = (schema.at.clone(), "pattern".to_owned());
                    values.note(vec![Unenforced { location, keyword, reason }]);
                    raw.any_text(tree, false)
                }
            });
        }
    }
    if !contents.is_empty() {
        let quote = tree.emit("\"");
        forms.push(tree.seq(&[quote, tree.alt(&contents), quote]));
    }
    if forms.is_empty() {
        return error_at(&schema.at, "every valid text has what ends the argument").map_err(SchemaError::into_error);
    }
    Ok(CompiledArgument { node: tree.alt(&forms), kind, unenforced: values.into_unenforced() })
}

/// The values of nodes that are no strings. `None`: there are no nodes.
fn write_values(
    schema: &Schema,
    tree: &SchemaTree,
    nodes: Vec<SchemaNode>,
    values: &mut Values<'_>,
) -> Result<Option<NodeId>> {
    let mut forms = Vec::new();
    for node in &nodes {
        forms.push(match node {
            SchemaNode::Any => values.any_but_strings(),
            node => values.write(schema, tree, node)?,
        });
    }
    Ok((!forms.is_empty()).then(|| values.tree.alt(&forms)))
}
