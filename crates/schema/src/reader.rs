//! Reads a schema into a tree of the values that a grammar can allow.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};

use crate::disjoint::disjoint;
use crate::document::{Document, MAX_NODES, SchemaResult, VISIT, error_at, inside, n_values, show, show_text};
use crate::keywords::{FORMATS, OF_TYPE, UNENFORCEABLE, bounds, count, is_assertion, named_types, strings};
use crate::numbers::{IntegerRange, NumberBound, NumberRange};
use crate::pattern::{self, CharSet, PatternNode};
use crate::rules::Rules;
use crate::spelling::Spelling;
use crate::tree::{AdditionalNode, ArrayNode, ObjectNode, PropertyNode, SchemaNode, SchemaTree, TextNode};
use crate::unevaluated::UNEVALUATED;
use crate::validate::Validator;
use crate::{dependents, merge, names, unevaluated};

/// The maximum number of values in all `enum`s.
const MAX_VALUES: usize = 4000;
/// The maximum number of properties of an object.
pub(crate) const MAX_PROPERTIES: usize = 128;
/// The maximum length of a property's name, in bytes.
const MAX_NAME: usize = 256;
/// Schemas nested deeper than this become definitions, so that the stack's depth is bounded.
const MAX_INLINED: usize = 6;
/// The maximum nesting of schemas through which values are looked for.
const MAX_SEARCH: usize = 8;

/// Reads `schema`, a part of the document's root.
pub(crate) fn read(document: &Document<'_>, schema: &Value, at: &str) -> SchemaResult<SchemaTree> {
    let mut reader = SchemaReader {
        document,
        validator: Validator::new(document),
        ids: HashMap::new(),
        todo: VecDeque::new(),
        definitions: Vec::new(),
        nodes: 0,
        values: 0,
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
    let tree = SchemaTree { root, definitions };
    tree.check(at)?;
    Ok(tree)
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
    todo: VecDeque<PendingDefinition>,
    definitions: Vec<Option<SchemaNode>>,
    nodes: usize,
    values: usize,
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

    /// Reads a schema.
    fn schema(&mut self, schema: &Value, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return error_at(at, format!("more than {MAX_NODES} schemas in one"));
        }
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => return Ok(SchemaNode::Any),
            Value::Bool(false) => return error_at(at, "no value is valid under false"),
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
        let others = UNENFORCEABLE.iter().filter(|keyword| !UNEVALUATED.contains(keyword));
        for keyword in others.filter(|keyword| map.contains_key(**keyword)) {
            self.document.drop_keyword(at, keyword, format!("{keyword} cannot be enforced by a grammar"))?;
        }
        if let Some((rest, unevaluated)) = unevaluated::split(map) {
            return self.closed(rest, unevaluated, at, depth);
        }
        self.asserted(map, &assertions, at, depth)
    }

    /// Reads a schema with the keywords `unevaluated`.
    fn closed(
        &mut self,
        rest: Map<String, Value>,
        unevaluated: Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> SchemaResult<SchemaNode> {
        self.document.count_steps(VISIT * (rest.len() + unevaluated.len()), at)?;
        if rest.contains_key("allOf") || rest.contains_key("$ref") {
            let merged = merge::all_of(self.document, &rest, at)?;
            return self.schema(&unevaluated::with(&merged, &unevaluated), at, depth + 1);
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(parts) = rest.get(keyword) {
                let part_at = format!("{at}/{keyword}");
                let parts = self.distributed(&rest, parts, keyword, &part_at)?;
                let parts = parts.as_array().into_iter().flatten();
                let parts = parts.map(|part| unevaluated::with(part, &unevaluated));
                return self.alternatives(&parts.collect(), "anyOf", &part_at, depth);
            }
        }
        self.schema(&unevaluated::as_rest(rest, unevaluated), at, depth + 1)
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
            parts.push(self.typed(map, name, at, depth)?);
        }
        Ok(match parts.len() {
            0 => SchemaNode::Any,
            1 => parts.swap_remove(0),
            _ => SchemaNode::Union(parts),
        })
    }

    /// Reads `anyOf` and `oneOf`.
    fn alternatives(&mut self, parts: &Value, keyword: &str, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        let Some(list) = parts.as_array().filter(|list| !list.is_empty()) else {
            return error_at(at, "must be an array of schemas, and not empty");
        };
        let mut out = Vec::new();
        for (i, part) in list.iter().enumerate() {
            if part != &Value::Bool(false) {
                out.push(self.schema(part, &format!("{at}/{i}"), depth + 1)?);
            }
        }
        // Compares all pairs, so only after the number of parts was checked.
        if keyword == "oneOf" {
            self.exclusive(list, at)?;
        }
        if out.is_empty() { error_at(at, "no value is valid") } else { Ok(SchemaNode::Union(out)) }
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
                Value::Object(_) if disjoint(self.document, &beside, part, at, 0)? => Value::Bool(false),
                Value::Object(_) => json!({"allOf": [beside, part]}),
                Value::Bool(true) => beside.clone(),
                other => other.clone(),
            });
        }
        Ok(out.into())
    }

    /// Fails, or drops `oneOf`, unless it is certain that no value is valid under two of the schemas.
    fn exclusive(&self, list: &[Value], at: &str) -> SchemaResult<()> {
        for (i, one) in list.iter().enumerate() {
            for (j, other) in list.iter().take(i).enumerate() {
                if !disjoint(self.document, one, other, at, 0)? {
                    let why = format!("{j} and {i} can both be valid, which oneOf forbids; use anyOf");
                    return self.document.drop_keyword(at, "oneOf", why);
                }
            }
        }
        Ok(())
    }

    /// All values that can be valid because of an `enum` or a `const`. `None`: no list limits them.
    fn candidates(&self, map: &Map<String, Value>, at: &str, depth: usize) -> SchemaResult<Option<Vec<Value>>> {
        self.document.count_steps(VISIT, at)?;
        if depth > MAX_SEARCH {
            return Ok(None);
        }
        if let Some(value) = map.get("const") {
            self.document.count_copy(value, at)?;
            return Ok(Some(vec![value.clone()]));
        }
        if let Some(values) = map.get("enum") {
            let Some(list) = values.as_array() else { return error_at(at, "enum must be an array") };
            self.document.count_copy(values, at)?;
            return Ok(Some(list.clone()));
        }
        if let Some(reference) = map.get("$ref").and_then(Value::as_str)
            && let Value::Object(target) = self.document.resolve(reference, at)?
            && let Some(values) = self.candidates(target, at, depth + 1)?
        {
            return Ok(Some(values));
        }
        for part in map.get("allOf").and_then(Value::as_array).into_iter().flatten().take(MAX_NODES) {
            if let Value::Object(part) = part
                && let Some(values) = self.candidates(part, at, depth + 1)?
            {
                return Ok(Some(values));
            }
        }
        for keyword in ["anyOf", "oneOf"] {
            let Some(parts) = map.get(keyword).and_then(Value::as_array).filter(|list| list.len() <= MAX_NODES) else {
                continue;
            };
            let mut all = Vec::new();
            for part in parts {
                match part {
                    Value::Object(part) => match self.candidates(part, at, depth + 1)? {
                        Some(values) => all.extend(values),
                        None => return Ok(None),
                    },
                    Value::Bool(false) => {}
                    _ => return Ok(None),
                }
            }
            return Ok(Some(all));
        }
        Ok(None)
    }

    /// The valid ones of these values.
    fn values(&mut self, map: &Map<String, Value>, values: Vec<Value>, at: &str) -> SchemaResult<SchemaNode> {
        self.values += values.len();
        if self.values > MAX_VALUES {
            return error_at(at, format!("more than {MAX_VALUES} values in enums"));
        }
        // The schema's errors are those of its keywords, also where no value is of that type.
        named_types(map, at)?;
        let mut valid = Vec::new();
        for value in values {
            self.document.count_steps(n_values(&value), at)?;
            if self.validator.is_valid_part(map, &value) && !valid.contains(&value) {
                valid.push(value);
            }
        }
        self.document.count_steps(1, at)?;
        if let Some(keyword) = self.validator.take_unknown() {
            let why = format!("{keyword} beside enum or const cannot be enforced");
            self.document.drop_keyword(at, &keyword, why)?;
        }
        if valid.is_empty() { error_at(at, "no value of the enum is valid") } else { Ok(SchemaNode::Values(valid)) }
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

    /// Reads a schema for values of one type.
    fn typed(&mut self, map: &Map<String, Value>, name: &str, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        match name {
            "object" => self.object(map, at, depth),
            "array" => self.array(map, at, depth),
            "string" => self.text(map, at).map(SchemaNode::Text),
            "integer" => self.integer(map, at),
            "number" => self.number(map, at),
            "boolean" => Ok(SchemaNode::Boolean),
            _ => Ok(SchemaNode::Null),
        }
    }

    /// Reads a string schema.
    fn text(&self, map: &Map<String, Value>, at: &str) -> SchemaResult<TextNode> {
        let (least, most) = bounds(map, "minLength", "maxLength", at)?;
        let length = |node: PatternNode| -> SchemaResult<PatternNode> {
            if let Some(limited) = node.clone().limit(least, most) {
                return Ok(limited);
            }
            for keyword in ["minLength", "maxLength"].into_iter().filter(|keyword| map.contains_key(*keyword)) {
                let why = "the pattern has parts of several lengths beside minLength or maxLength, which a grammar cannot enforce";
                self.document.drop_keyword(at, keyword, why)?;
            }
            Ok(node)
        };
        let format = match map.get("format") {
            None => None,
            Some(Value::String(format)) => FORMATS.into_iter().find(|known| known == format),
            Some(_) => return error_at(at, "format must be a string"),
        };
        if let Some(pattern) = map.get("pattern") {
            let Some(pattern) = pattern.as_str() else { return error_at(at, "pattern must be a string") };
            self.document.count_steps(VISIT * (1 + pattern.len()), at)?;
            // A format beside a pattern is an annotation, as in the standard: generators of schemas write both, and the pattern is exact.
            // Written once to find out whether it can be.
            let node = pattern::whole_text(pattern)
                .and_then(|node| Spelling::Json(None).pattern(&node, &mut Rules::new()).map(|_| node));
            match node {
                Ok(node) => return Ok(TextNode::Pattern(length(node)?)),
                Err(part) => {
                    let why = format!("the pattern has {part}, which a grammar cannot enforce");
                    self.document.drop_keyword(at, "pattern", why)?;
                }
            }
        }
        if let Some(format) = format {
            if least > 0 || most.is_some() {
                let keyword = if least > 0 { "minLength" } else { "maxLength" };
                self.document.drop_keyword(at, keyword, "a length beside format cannot be enforced")?;
            }
            return Ok(TextNode::Format(format));
        }
        let (least, most) = (u32::try_from(least).unwrap_or(u32::MAX), most.and_then(|most| u32::try_from(most).ok()));
        Ok(TextNode::Pattern(match most {
            Some(0) => PatternNode::EMPTY,
            most => PatternNode::Repeat(Box::new(PatternNode::Class(CharSet::any())), least, most),
        }))
    }

    /// Notes `multipleOf`, unless it is 1 and the values are integers.
    fn multiple(&self, map: &Map<String, Value>, at: &str, of_integers: bool) -> SchemaResult<()> {
        let restricts = |step: &Value| !of_integers || step.as_f64() != Some(1.0);
        if map.get("multipleOf").is_some_and(restricts) {
            self.document.drop_keyword(at, "multipleOf", "multipleOf cannot be enforced by a grammar")?;
        }
        Ok(())
    }

    /// Reads an integer schema.
    fn integer(&self, map: &Map<String, Value>, at: &str) -> SchemaResult<SchemaNode> {
        self.multiple(map, at, true)?;
        let bound = |key: &str, round: fn(f64) -> f64, add: i64| match map.get(key) {
            // In draft 4 it says whether the other bound is exclusive.
            None | Some(Value::Bool(_)) => Ok(None),
            Some(value) => match (value.as_i64(), value.as_f64()) {
                (Some(whole), _) => Ok(Some(whole.saturating_add(add))),
                (None, Some(number)) => Ok(Some((round(number) as i64).saturating_add(add))),
                _ => error_at(at, format!("{key} must be a number")),
            },
        };
        let is_exclusive = |key: &str| i64::from(map.get(key) == Some(&Value::Bool(true)));
        let (above, below) = (is_exclusive("exclusiveMinimum"), is_exclusive("exclusiveMaximum"));
        let lower = if above == 1 { bound("minimum", f64::floor, 1)? } else { bound("minimum", f64::ceil, 0)? };
        let upper = if below == 1 { bound("maximum", f64::ceil, -1)? } else { bound("maximum", f64::floor, 0)? };
        let least = lower.max(bound("exclusiveMinimum", f64::floor, 1)?);
        let most = [upper, bound("exclusiveMaximum", f64::ceil, -1)?].into_iter().flatten().min();
        let range = IntegerRange { least, most };
        match range.bounds() {
            Some((least, most)) if least > most => {
                error_at(at, format!("no integer of at most 15 digits is from {least} to {most}"))
            }
            _ => Ok(SchemaNode::Integer(range)),
        }
    }

    /// Reads a number schema.
    fn number(&self, map: &Map<String, Value>, at: &str) -> SchemaResult<SchemaNode> {
        self.multiple(map, at, false)?;
        let bound = |key: &str, other: &str, is_lower: bool| -> SchemaResult<Option<NumberBound>> {
            let mut bound: Option<NumberBound> = None;
            for (key, is_exclusive) in [(key, map.get(other) == Some(&Value::Bool(true))), (other, true)] {
                let number = match map.get(key) {
                    None | Some(Value::Bool(_)) => continue,
                    Some(Value::Number(number)) => number,
                    Some(_) => return error_at(at, format!("{key} must be a number")),
                };
                match NumberBound::new(number, is_exclusive) {
                    Some(new) => bound = Some(bound.map_or(new.clone(), |old| old.tighter(new, is_lower))),
                    None => {
                        let why = format!("{key} has more digits than a grammar can enforce");
                        self.document.drop_keyword(at, key, why)?;
                    }
                }
            }
            Ok(bound)
        };
        let range = NumberRange {
            least: bound("minimum", "exclusiveMinimum", true)?,
            most: bound("maximum", "exclusiveMaximum", false)?,
        };
        if range.body().is_none() {
            return error_at(at, "no number of at most 15 digits is within the bounds");
        }
        Ok(SchemaNode::Number(range))
    }

    /// Reads an object schema.
    fn object(&mut self, map: &Map<String, Value>, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
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
            return error_at(at, format!("more than {MAX_PROPERTIES} properties"));
        }
        let mut properties = Vec::new();
        for one in listed {
            if one.name.len() > MAX_NAME {
                return error_at(at, format!("a property's name of more than {MAX_NAME} bytes"));
            }
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
            self.document.count_steps(VISIT * (1 + pattern.len()), at)?;
            match pattern::whole_text(pattern) {
                Ok(node) => nodes.push((node, schema, inside(&format!("{at}/patternProperties"), pattern))),
                Err(_) => return self.document.drop_keyword(at, "patternProperties", unenforceable),
            }
        }
        let is_open = map.get("additionalProperties") != Some(&Value::Bool(false));
        let mut kept = Vec::new();
        for mut one in listed.drain(..) {
            let mut parts = Vec::new();
            for (node, schema, _) in &nodes {
                let count = |steps: usize| self.document.count_steps(steps, at).is_ok();
                let Some(is_match) = pattern::matches(node, &one.name, &count) else {
                    return error_at(at, "takes too many steps to read");
                };
                if is_match {
                    self.document.count_copy(schema, at)?;
                    parts.push((*schema).clone());
                }
            }
            let is_property = map.get("properties").is_some_and(|all| all.get(&one.name).is_some());
            if parts.contains(&Value::Bool(false)) || parts.is_empty() && !is_property && !is_open {
                if one.is_required {
                    return error_at(at, format!("{} is required and never valid", show_text(&one.name)));
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
        match names::allowed(self.document, schema, &names_at)? {
            names::AllowedNames::All => return Ok(()),
            names::AllowedNames::List(allowed) => {
                return restrict(self.document, map, &allowed, at, listed, additional);
            }
            names::AllowedNames::Schema => {}
        }
        // Names by a schema: the listed ones that are valid, or additional ones of a pattern.
        let is_valid = |name: &str| self.validator.is_valid(schema, &Value::String(name.to_owned()));
        if let Some(one) = listed.iter().find(|one| one.is_required && !is_valid(&one.name)) {
            return error_at(at, format!("{} is required, and propertyNames forbids it", show_text(&one.name)));
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

    /// Reads an array schema.
    fn array(&mut self, map: &Map<String, Value>, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        let (least, mut most) = bounds(map, "minItems", "maxItems", at)?;
        if map.get("uniqueItems") == Some(&Value::Bool(true)) && most.is_none_or(|most| most > 1) {
            self.document.drop_keyword(at, "uniqueItems", "uniqueItems cannot be enforced by a grammar")?;
        }
        let items = map.get("items");
        if map.contains_key("prefixItems") && items.is_some_and(Value::is_array) {
            return error_at(at, "items beside prefixItems must be one schema");
        }
        let (tuple, rest, rest_name) = match (map.get("prefixItems"), items) {
            (Some(tuple), rest) => (Some(tuple), rest, "items"),
            (None, Some(tuple @ Value::Array(_))) => (Some(tuple), map.get("additionalItems"), "additionalItems"),
            (None, rest) => (None, rest, "items"),
        };
        let mut first = Vec::new();
        if let Some(tuple) = tuple {
            let name = if map.contains_key("prefixItems") { "prefixItems" } else { "items" };
            let Some(tuple) = tuple.as_array() else { return error_at(at, "prefixItems must be an array") };
            for (i, item) in tuple.iter().enumerate() {
                if item == &Value::Bool(false) {
                    most = Some(most.map_or(i as u64, |most| most.min(i as u64)));
                    break;
                }
                first.push(self.schema(item, &format!("{at}/{name}/{i}"), depth + 1)?);
            }
        }
        let len = first.len() as u64;
        // Unlisted items of a tuple only where the schema asks for them.
        let rest = match rest {
            Some(Value::Bool(false)) => None,
            Some(schema) if most.is_none_or(|most| most > len) => {
                Some(self.schema(schema, &format!("{at}/{rest_name}"), depth + 1)?)
            }
            None if tuple.is_none() || least > len => Some(SchemaNode::Any),
            _ => None,
        };
        // A tuple is whole.
        let least = least.max(most.map_or(len, |most| most.min(len)));
        if rest.is_none() {
            most = Some(most.map_or(len, |most| most.min(len)));
        }
        if most.is_some_and(|most| most < least) {
            return error_at(at, format!("no array has at least {least} items"));
        }
        Ok(SchemaNode::Array(Box::new(ArrayNode { first, rest, least, most })))
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
        return error_at(at, format!("more than {MAX_PROPERTIES} properties"));
    }
    document.count_steps(VISIT * (properties.len() + required.len()), at)?;
    let needed: HashSet<&str> = required.iter().copied().collect();
    let mut listed = Vec::new();
    for (name, schema) in properties {
        let is_required = needed.contains(name.as_str());
        if is_required && schema == &Value::Bool(false) {
            return error_at(at, format!("{} is required and never valid", show_text(name)));
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
            return error_at(at, format!("{} is required and is not a property", show_text(name)));
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
        return error_at(at, format!("more than {MAX_PROPERTIES} names in propertyNames"));
    }
    let is_allowed = |name: &String| allowed.contains(name);
    if let Some(one) = listed.iter().find(|one| one.is_required && !is_allowed(&one.name)) {
        return error_at(at, format!("{} is required, and propertyNames forbids it", show_text(&one.name)));
    }
    listed.retain(|one| is_allowed(&one.name));
    let Some(additional) = additional.take().filter(|additional| additional.names.is_none()) else { return Ok(()) };
    let schema =
        map.get("additionalProperties").filter(|schema| schema.is_object()).cloned().unwrap_or(Value::Bool(true));
    for name in allowed {
        if !listed.iter().any(|one| one.name == *name) && !additional.excluded.contains(name) {
            document.count_copy(&schema, at)?;
            let at = format!("{at}/additionalProperties");
            listed.push(Listed { name: name.clone(), is_required: false, schema: schema.clone(), at });
        }
    }
    Ok(())
}
