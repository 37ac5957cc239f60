//! Reads schemas of objects: listed properties, additional ones, and the keywords that restrict names.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::SchemaReader;
use crate::document::{Document, MAX_NODES, SchemaResult, VISIT, empty_at, error_at, inside, show_text, too_large_at};
use crate::keywords::{UNENFORCEABLE, count, is_assertion, named_types, strings};
use crate::matching::Matcher;
use crate::pattern;
use crate::tree::{AdditionalNode, ObjectNode, PropertyNode, SchemaNode, TextNode};

/// The maximum number of properties of an object.
pub(crate) const MAX_PROPERTIES: usize = MAX_NODES;

impl SchemaReader<'_, '_> {
    /// Reads an object schema.
    pub(super) fn object(&mut self, map: &Map<String, Value>, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        let mut listed = listed(self.document, map, at)?;
        let rest = match map.get("additionalProperties") {
            None if map.contains_key("properties") || map.contains_key("required") => None,
            None | Some(Value::Bool(true)) => Some(&Value::Bool(true)),
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(schema),
        };
        let mut additional = match rest {
            None => None,
            Some(schema) => {
                let value = self.schema(schema, &format!("{at}/additionalProperties"), depth + 1)?;
                let excluded = listed.iter().filter(|one| one.schema == Value::Bool(false));
                Some(AdditionalNode { excluded: excluded.map(|one| one.name.clone()).collect(), names: None, value })
            }
        };
        listed.retain(|one| one.schema != Value::Bool(false));
        self.patterns_of_names(map, at, &mut listed, &mut additional, depth)?;
        self.names(map, at, &mut listed, &mut additional, depth)?;
        if listed.len() > MAX_PROPERTIES {
            return too_large_at(at, format!("more than {MAX_PROPERTIES} properties"));
        }
        let mut properties = Vec::new();
        for one in listed {
            let value = self.schema(&one.schema, &one.at, depth + 1)?;
            properties.push(PropertyNode { name: one.name, is_required: one.is_required, value });
        }
        let read = |key: &str| count(map, key, at).map(|n| n.map(|n| usize::try_from(n).unwrap_or(usize::MAX)));
        let (mut least, mut most) = (read("minProperties")?.unwrap_or(0), read("maxProperties")?);
        let n_required = properties.iter().filter(|property| property.is_required).count();
        // The names of several additional properties can be the same.
        let n_possible = properties.len() + usize::from(additional.is_some());
        if least > n_possible.min(most.unwrap_or(usize::MAX)) || most.is_some_and(|most| most < n_required) {
            let why = "minProperties and maxProperties cannot be enforced by a grammar";
            for keyword in ["minProperties", "maxProperties"].into_iter().filter(|key| map.contains_key(*key)) {
                self.document.drop_keyword(at, keyword, why)?;
            }
            (least, most) = (0, None);
        }
        Ok(SchemaNode::Object(Box::new(ObjectNode { properties, additional, least, most })))
    }

    /// Applies `patternProperties` to the listed properties. There are additional ones only if no others are listed.
    fn patterns_of_names(
        &mut self,
        map: &Map<String, Value>,
        at: &str,
        listed: &mut Vec<Listed>,
        additional: &mut Option<AdditionalNode>,
        depth: usize,
    ) -> SchemaResult<()> {
        let Some(patterns) = map.get("patternProperties") else { return Ok(()) };
        let Some(patterns) = patterns.as_object() else { return error_at(at, "patternProperties must be an object") };
        let unenforceable = "patternProperties cannot be enforced by a grammar";
        let mut nodes = Vec::new();
        for (pattern, schema) in patterns {
            match pattern::whole_text(pattern, self.document.work()) {
                Ok(node) => nodes.push((node, schema, inside(&format!("{at}/patternProperties"), pattern))),
                Err(_) => {
                    self.document.count_steps(VISIT, at)?;
                    return self.document.drop_keyword(at, "patternProperties", unenforceable);
                }
            }
        }
        let work = self.document.work();
        let mut matchers: Vec<Matcher> = nodes.iter().filter_map(|(node, ..)| Matcher::new(node, work)).collect();
        if matchers.len() < nodes.len() {
            self.document.count_steps(VISIT, at)?;
            return self.document.drop_keyword(at, "patternProperties", unenforceable);
        }
        let is_open = map.get("additionalProperties") != Some(&Value::Bool(false));
        let mut kept = Vec::new();
        for mut one in listed.drain(..) {
            let mut parts = Vec::new();
            for ((_, schema, _), matcher) in nodes.iter().zip(&mut matchers) {
                let is_match = matcher.matches(&one.name, self.document.work()).unwrap_or(false);
                self.document.count_steps(1, at)?;
                if is_match {
                    self.document.count_copy(schema, at)?;
                    parts.push((*schema).clone());
                }
            }
            let is_property = map.get("properties").is_some_and(|all| all.get(&one.name).is_some());
            if parts.contains(&Value::Bool(false)) || parts.is_empty() && !is_property && !is_open {
                if one.is_required {
                    return empty_at(at, format!("{} is required and never valid", show_text(&one.name)));
                }
                continue;
            }
            if !parts.is_empty() {
                // A property that a pattern matches is not an additional one.
                let own = if is_property { one.schema } else { Value::Bool(true) };
                parts.insert(0, own);
                one.schema = json!({ "allOf": parts });
            }
            kept.push(one);
        }
        *listed = kept;
        let is_alone = listed.is_empty() && additional.as_ref().is_none_or(|additional| additional.excluded.is_empty());
        *additional = None;
        match nodes.as_slice() {
            [(node, schema, at)] if is_alone && *schema != &Value::Bool(false) => {
                let value = self.schema(schema, at, depth + 1)?;
                let names = Some(TextNode::Pattern(node.clone()));
                *additional = Some(AdditionalNode { excluded: Vec::new(), names, value });
                Ok(())
            }
            // Only listed properties, which is narrower.
            _ if !listed.is_empty() => Ok(()),
            _ => self.document.drop_keyword(at, "patternProperties", unenforceable),
        }
    }

    /// Applies `propertyNames`.
    fn names(
        &mut self,
        map: &Map<String, Value>,
        at: &str,
        listed: &mut Vec<Listed>,
        additional: &mut Option<AdditionalNode>,
        depth: usize,
    ) -> SchemaResult<()> {
        let Some(schema) = map.get("propertyNames") else { return Ok(()) };
        let names_at = format!("{at}/propertyNames");
        let is_valid = |name: &str| self.validator.is_valid(schema, &Value::String(name.to_owned()));
        let candidates = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => Some(Vec::new()),
            Value::Object(of_names) => {
                let types = named_types(of_names, &names_at)?;
                let restricts = |key: &str| key != "type" && (is_assertion(key) || UNENFORCEABLE.contains(&key));
                if !types.is_empty() && !types.iter().any(|name| name == "string") {
                    Some(Vec::new())
                } else if of_names.keys().any(|key| restricts(key)) {
                    self.candidates(of_names, &names_at, 0)?
                } else {
                    return Ok(());
                }
            }
            _ => return error_at(&names_at, "expected a schema for names"),
        };
        if let Some(values) = candidates {
            let mut allowed: Vec<String> = Vec::new();
            let mut seen = HashSet::new();
            for name in values.iter().filter_map(Value::as_str) {
                self.document.count_steps(VISIT, at)?;
                if is_valid(name) && seen.insert(name) {
                    allowed.push(name.to_owned());
                }
            }
            return restrict(self.document, map, &allowed, at, listed, additional);
        }
        // Names by a schema: the listed ones that are valid, or additional ones of a pattern.
        if let Some(one) = listed.iter().find(|one| one.is_required && !is_valid(&one.name)) {
            return empty_at(at, format!("{} is required, and propertyNames forbids it", show_text(&one.name)));
        }
        listed.retain(|one| is_valid(&one.name));
        if let Some(keyword) = self.validator.take_unknown() {
            return self.document.drop_keyword(&names_at, &keyword, format!("{keyword} of names cannot be enforced"));
        }
        if let Some(additional) =
            additional.as_mut().filter(|one| listed.is_empty() && one.excluded.is_empty() && one.names.is_none())
        {
            let mut typed = schema.clone();
            if let Value::Object(typed) = &mut typed {
                typed.insert("type".to_owned(), json!("string"));
            }
            self.document.count_copy(&typed, at)?;
            if let SchemaNode::Text(names) = self.schema(&typed, &names_at, depth + 1)? {
                additional.names = Some(names);
                return Ok(());
            }
            return self.document.drop_keyword(
                &names_at,
                "propertyNames",
                "propertyNames cannot be enforced by a grammar",
            );
        }
        *additional = None;
        Ok(())
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

/// The properties in `properties` and `required`, with their schemas. Those that are never valid have the schema `false`.
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
        if is_required && schema == &Value::Bool(false) {
            return empty_at(at, format!("{} is required and never valid", show_text(name)));
        }
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

/// Leaves only the properties with an allowed name, and lists those that would be additional ones.
fn restrict(
    document: &Document<'_>,
    map: &Map<String, Value>,
    allowed: &[String],
    at: &str,
    listed: &mut Vec<Listed>,
    additional: &mut Option<AdditionalNode>,
) -> SchemaResult<()> {
    if allowed.len() > MAX_PROPERTIES {
        return too_large_at(at, format!("more than {MAX_PROPERTIES} names in propertyNames"));
    }
    let names: HashSet<&String> = allowed.iter().collect();
    let is_allowed = |name: &String| names.contains(name);
    if let Some(one) = listed.iter().find(|one| one.is_required && !is_allowed(&one.name)) {
        return empty_at(at, format!("{} is required, and propertyNames forbids it", show_text(&one.name)));
    }
    listed.retain(|one| is_allowed(&one.name));
    let Some(additional) = additional.take().filter(|additional| additional.names.is_none()) else { return Ok(()) };
    let schema =
        map.get("additionalProperties").filter(|schema| schema.is_object()).cloned().unwrap_or(Value::Bool(true));
    let known: HashSet<String> = listed.iter().map(|one| one.name.clone()).collect();
    for name in allowed {
        if !known.contains(name) && !additional.excluded.contains(name) {
            document.count_copy(&schema, at)?;
            let at = format!("{at}/additionalProperties");
            listed.push(Listed { name: name.clone(), is_required: false, schema: schema.clone(), at });
        }
    }
    Ok(())
}
