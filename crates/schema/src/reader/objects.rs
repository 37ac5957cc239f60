//! Reads schemas of objects: listed properties, additional ones, and the keywords that restrict names.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::SchemaReader;
use crate::document::{Document, MAX_NODES, SchemaResult, VISIT, empty_at, error_at, inside, show_text, too_large_at};
use crate::keywords::{UNENFORCEABLE, count, is_assertion, named_types, strings};
use crate::negation::both;
use crate::pattern::{self, PatternNode, SetFault, TextSet};
use crate::tree::{AdditionalNode, ObjectNode, PropertyNode, SchemaNode, TextNode};

/// The maximum number of properties of an object.
pub(crate) const MAX_PROPERTIES: usize = MAX_NODES;

/// Names that patterns describe, and the schema of their properties.
struct NamePattern<'s> {
    names: PatternNode,
    set: TextSet,
    schema: &'s Value,
    at: String,
}

/// The names that additional properties have: all of these, and none of those.
type Names = (Vec<PatternNode>, Vec<PatternNode>);

/// The most patterns of names: the names of each are not those of the others.
const MAX_PATTERNS: usize = 32;

impl SchemaReader<'_, '_> {
    /// Reads an object schema.
    pub(super) fn object(&mut self, map: &Map<String, Value>, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        let mut listed = listed(self.document, map, at)?;
        let is_closed = !self.document.is_open
            && ["properties", "required", "patternProperties"].iter().any(|keyword| map.contains_key(*keyword));
        let rest = match map.get("additionalProperties") {
            None if is_closed => None,
            None | Some(Value::Bool(true)) => Some(&Value::Bool(true)),
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(schema),
        };
        let names = self.names(map, at, &mut listed)?;
        let patterns = self.patterns_of_names(map, at, &mut listed)?;
        if listed.len() > MAX_PROPERTIES {
            return too_large_at(at, format!("more than {MAX_PROPERTIES} properties"));
        }
        let mut additional = Vec::new();
        if let Some((all, mut none)) = names {
            // Names of one pattern, and then those of none.
            let literals: Vec<PatternNode> = listed.iter().map(|one| PatternNode::text(&one.name)).collect();
            none.extend((!literals.is_empty()).then_some(PatternNode::Alt(literals)));
            let of_pattern = patterns.iter().map(|one| (Some(&one.names), one.schema, one.at.clone()));
            let of_none = rest.map(|schema| (None, schema, format!("{at}/additionalProperties")));
            for (own, schema, value_at) in of_pattern.chain(of_none) {
                let all = all.iter().chain(own).cloned().collect();
                let others = patterns.iter().map(|one| &one.names).filter(|names| own.is_none_or(|own| *names != own));
                let none = none.iter().chain(others).cloned().collect();
                // Without names, and where there are too many of them for an automaton, there is no such property, which is narrower.
                if let Ok(names) = self.text_node(all, none) {
                    additional.push(AdditionalNode { names, value: self.schema(schema, &value_at, depth + 1)? });
                }
            }
        }
        let mut properties = Vec::new();
        for one in listed {
            let value = self.property(one.schema, &one.at, depth + 1)?;
            properties.push(PropertyNode { name: one.name, is_required: one.is_required, value });
        }
        let read = |key: &str| count(map, key, at).map(|n| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)));
        let (mut least, mut most) = (read("minProperties")?.unwrap_or(0), read("maxProperties")?);
        let n_required = properties.iter().filter(|property| property.is_required).count();
        // The names of several additional properties can be the same.
        let n_possible = properties.len() + usize::from(!additional.is_empty());
        if least > n_possible.min(most.unwrap_or(usize::MAX)) || most.is_some_and(|most| most < n_required) {
            let why = "minProperties and maxProperties cannot be enforced by a grammar";
            for keyword in ["minProperties", "maxProperties"].into_iter().filter(|key| map.contains_key(*key)) {
                self.document.drop_keyword(at, keyword, why)?;
            }
            // A lower bound that only additional properties reach counts them all, also those with the same name.
            if additional.is_empty() || most.is_some_and(|most| most < least.max(n_required)) {
                (least, most) = (0, None);
            }
        }
        Ok(SchemaNode::Object(Box::new(ObjectNode { properties, additional, least, most })))
    }

    /// The texts that match all of some patterns and none of others.
    pub(super) fn text_node(&self, mut all: Vec<PatternNode>, none: Vec<PatternNode>) -> Result<TextNode, SetFault> {
        if all.len() > 1 {
            all.retain(|pattern| !pattern.is_any_text());
        }
        match (all.as_slice(), none.as_slice()) {
            ([], []) => Ok(TextNode::Pattern(PatternNode::any_text())),
            ([only], []) => Ok(TextNode::Pattern(only.clone())),
            _ => TextSet::new(all, none, None, self.document.work()).map(|set| TextNode::Set(Arc::new(set))),
        }
    }

    /// Applies `patternProperties` to the listed properties, and returns the patterns.
    fn patterns_of_names<'s>(
        &self,
        map: &'s Map<String, Value>,
        at: &str,
        listed: &mut [Listed],
    ) -> SchemaResult<Vec<NamePattern<'s>>> {
        let mut read = Vec::new();
        let Some(patterns) = map.get("patternProperties") else { return Ok(read) };
        let Some(patterns) = patterns.as_object() else { return error_at(at, "patternProperties must be an object") };
        if patterns.len() > MAX_PATTERNS {
            return too_large_at(at, format!("more than {MAX_PATTERNS} patterns of names"));
        }
        for (pattern, schema) in patterns {
            self.document.count_steps(VISIT, at)?;
            let (mut all, mut none, work) = (Vec::new(), Vec::new(), self.document.work());
            let is_read = pattern::whole_texts(pattern, &mut all, &mut none, work).is_ok() && none.is_empty();
            let set = TextSet::new(all.clone(), none, None, work);
            match (all.pop(), set) {
                (Some(names), Ok(set)) if is_read && all.is_empty() => {
                    let at = inside(&format!("{at}/patternProperties"), pattern);
                    read.push(NamePattern { names, set, schema, at });
                }
                (_, Err(SetFault::Empty)) => {}
                _ => {
                    let why = "patternProperties cannot be enforced by a grammar";
                    self.document.drop_keyword(at, "patternProperties", why)?;
                }
            }
        }
        let is_open = map.get("additionalProperties") != Some(&Value::Bool(false));
        for one in listed {
            let is_property = map.get("properties").is_some_and(|all| all.get(&one.name).is_some());
            self.document.count_steps(read.len() + one.name.len(), at)?;
            let mut parts = Vec::new();
            for pattern in read.iter().filter(|pattern| pattern.set.has(&one.name)) {
                self.document.count_copy(pattern.schema, at)?;
                parts.push(pattern.schema.clone());
            }
            if parts.is_empty() && !is_property && !is_open {
                one.schema = Value::Bool(false);
            } else if !parts.is_empty() {
                // A property that a pattern matches is not an additional one.
                let own = if is_property { one.schema.take() } else { Value::Bool(true) };
                one.schema = parts.into_iter().fold(own, both);
            }
        }
        Ok(read)
    }

    /// Applies `propertyNames`, and returns the names of additional properties. `None`: there are none.
    fn names(&mut self, map: &Map<String, Value>, at: &str, listed: &mut Vec<Listed>) -> SchemaResult<Option<Names>> {
        let all = || Ok(Some((Vec::new(), Vec::new())));
        let Some(schema) = map.get("propertyNames") else { return all() };
        let names_at = format!("{at}/propertyNames");
        let candidates = match schema {
            Value::Bool(true) => return all(),
            Value::Bool(false) => Some(Vec::new()),
            Value::Object(of_names) => {
                let types = named_types(of_names, &names_at)?;
                let restricts = |key: &str| key != "type" && (is_assertion(key) || UNENFORCEABLE.contains(&key));
                if !types.is_empty() && !types.iter().any(|name| name == "string") {
                    Some(Vec::new())
                } else if of_names.keys().any(|key| restricts(key)) {
                    self.candidates(of_names, &names_at, 0)?
                } else {
                    return all();
                }
            }
            _ => return error_at(&names_at, "expected a schema for names"),
        };
        if let Some(values) = candidates {
            let mut allowed: Vec<String> = Vec::new();
            let mut seen = HashSet::new();
            for name in values.iter().filter_map(Value::as_str) {
                self.document.count_steps(VISIT, at)?;
                if self.validator.is_valid(schema, &Value::from(name)) && seen.insert(name) {
                    allowed.push(name.to_owned());
                }
            }
            restrict(self.document, map, &allowed, at, listed)?;
            return Ok(None);
        }
        forbid(listed, at, |name| !self.validator.is_valid(schema, &Value::String(name.to_owned())))?;
        if let Some(keyword) = self.validator.take_unknown() {
            self.document.drop_keyword(&names_at, &keyword, format!("{keyword} of names cannot be enforced"))?;
            return all();
        }
        let mut typed = schema.clone();
        if let Value::Object(typed) = &mut typed {
            typed.insert("type".to_owned(), json!("string"));
        }
        self.document.count_copy(&typed, at)?;
        // The node itself is wanted, not a definition.
        let mut node = self.schema(&typed, &names_at, 0)?;
        if let SchemaNode::Union(nodes) = &mut node {
            nodes.retain(|node| !matches!(node, SchemaNode::Union(none) if none.is_empty()));
            if nodes.len() == 1 {
                node = nodes.swap_remove(0);
            }
        }
        match node {
            SchemaNode::Text(TextNode::Pattern(names)) => Ok(Some((vec![names], Vec::new()))),
            SchemaNode::Text(TextNode::Set(set)) => Ok(Some((set.all.clone(), set.none.clone()))),
            SchemaNode::Union(none) if none.is_empty() => Ok(None),
            _ => {
                let why = "propertyNames cannot be enforced by a grammar";
                self.document.drop_keyword(&names_at, "propertyNames", why)?;
                all()
            }
        }
    }
}

/// A listed property while its object is read.
#[derive(Clone)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) is_required: bool,
    pub(crate) schema: Value,
    pub(crate) at: String,
}

/// The properties in `properties` and `required`, with their schemas.
pub(crate) fn listed(document: &Document<'_>, map: &Map<String, Value>, at: &str) -> SchemaResult<Vec<Listed>> {
    let empty = Map::new();
    let properties = match map.get("properties") {
        None => &empty,
        Some(Value::Object(properties)) => properties,
        Some(_) => return error_at(at, "properties must be an object"),
    };
    let required = strings(map, "required", at)?;
    if properties.len().max(required.len()) > MAX_NODES {
        return too_large_at(at, format!("more than {MAX_PROPERTIES} properties"));
    }
    document.count_steps(VISIT * (properties.len() + required.len()), at)?;
    let needed: HashSet<&str> = required.iter().copied().collect();
    let mut listed = Vec::new();
    for (name, schema) in properties {
        let is_required = needed.contains(name.as_str());
        document.count_copy(schema, at)?;
        let at = inside(&format!("{at}/properties"), name);
        listed.push(Listed { name: name.clone(), is_required, schema: schema.clone(), at });
    }
    let additional = map.get("additionalProperties");
    let mut seen: HashSet<&str> = properties.keys().map(String::as_str).collect();
    for name in required {
        if !seen.insert(name) {
            continue;
        }
        let has_pattern = map.contains_key("patternProperties");
        if additional == Some(&Value::Bool(false)) && !has_pattern {
            return empty_at(at, format!("{} is required and is not a property", show_text(name)));
        }
        let schema =
            additional.filter(|schema| schema.is_object() || !has_pattern).cloned().unwrap_or(Value::Bool(true));
        document.count_copy(&schema, at)?;
        let at = format!("{at}/additionalProperties");
        listed.push(Listed { name: name.to_owned(), is_required: true, schema, at });
    }
    Ok(listed)
}

/// Forbids properties by their names.
fn forbid(listed: &mut [Listed], at: &str, is_forbidden: impl Fn(&str) -> bool) -> SchemaResult<()> {
    for one in listed.iter_mut().filter(|one| is_forbidden(&one.name)) {
        if one.is_required {
            return empty_at(at, format!("{} is required, and propertyNames forbids it", show_text(&one.name)));
        }
        one.schema = Value::Bool(false);
    }
    Ok(())
}

/// Leaves only the properties with an allowed name, and lists those that would be additional ones.
fn restrict(
    document: &Document<'_>,
    map: &Map<String, Value>,
    allowed: &[String],
    at: &str,
    listed: &mut Vec<Listed>,
) -> SchemaResult<()> {
    if allowed.len() > MAX_PROPERTIES {
        return too_large_at(at, format!("more than {MAX_PROPERTIES} names in propertyNames"));
    }
    let names: HashSet<&String> = allowed.iter().collect();
    forbid(listed, at, |name| !names.contains(&name.to_owned()))?;
    let schema = map.get("additionalProperties").unwrap_or(&Value::Bool(true));
    // Without any, the schema is closed for names that it does not list.
    let is_closed = !map.contains_key("additionalProperties")
        && !document.is_open
        && ["properties", "required"].iter().any(|keyword| map.contains_key(*keyword));
    let known: HashSet<String> = listed.iter().map(|one| one.name.clone()).collect();
    for name in allowed.iter().filter(|name| !is_closed && !known.contains(*name)) {
        document.count_copy(schema, at)?;
        let at = format!("{at}/additionalProperties");
        listed.push(Listed { name: name.clone(), is_required: false, schema: schema.clone(), at });
    }
    Ok(())
}
