//! Reads `enum` and `const`: which values of the lists are valid.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::SchemaReader;
use crate::document::{MAX_NODES, SchemaResult, VISIT, empty_at, error_at, n_values, too_large_at};
use crate::keywords::named_types;
use crate::tree::SchemaNode;

/// The maximum number of values in all `enum`s.
const MAX_VALUES: usize = 1 << 16;
/// The maximum nesting of schemas through which values are looked for.
const MAX_SEARCH: usize = 8;

impl SchemaReader<'_, '_> {
    /// All values that can be valid because of an `enum` or a `const`. `None`: no list limits them.
    pub(super) fn candidates(
        &self,
        map: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> SchemaResult<Option<Vec<Value>>> {
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
    pub(super) fn values(
        &mut self,
        map: &Map<String, Value>,
        values: Vec<Value>,
        at: &str,
    ) -> SchemaResult<SchemaNode> {
        self.values += values.len();
        if self.values > MAX_VALUES {
            return too_large_at(at, format!("more than {MAX_VALUES} values in enums"));
        }
        // The schema's errors are those of its keywords, also where no value is of that type.
        named_types(map, at)?;
        // The list itself says nothing about its own values.
        let is_own = !map.contains_key("const");
        let rest: Map<String, Value> = map
            .iter()
            .filter(|(key, _)| !(is_own && *key == "enum"))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let mut seen = HashSet::new();
        let mut valid = Vec::new();
        for value in values {
            self.document.count_steps(n_values(&value), at)?;
            if self.validator.is_valid_part(&rest, &value) && seen.insert(value.clone()) {
                valid.push(value);
            }
        }
        self.document.count_steps(1, at)?;
        if let Some(keyword) = self.validator.take_unknown() {
            let why = format!("{keyword} beside enum or const cannot be enforced");
            self.document.drop_keyword(at, &keyword, why)?;
        }
        if valid.is_empty() { empty_at(at, "no value of the enum is valid") } else { Ok(SchemaNode::Values(valid)) }
    }
}
