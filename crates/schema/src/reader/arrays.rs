//! Reads schemas of arrays and tuples.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::SchemaReader;
use crate::disjoint::JsonValue;
use crate::document::{SchemaResult, empty_at, error_at};
use crate::keywords::bounds;
use crate::tree::{ArrayNode, SchemaNode};

/// The most values of a list of which each occurs at most once.
const MAX_UNIQUE: usize = 256;

impl SchemaReader<'_, '_> {
    /// Reads an array schema.
    pub(super) fn array(&mut self, map: &Map<String, Value>, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
        let (least, mut most) = bounds(map, "minItems", "maxItems", at)?;
        let must_differ = map.get("uniqueItems") == Some(&Value::Bool(true)) && most.is_none_or(|most| most > 1);
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
            return empty_at(at, format!("no array has at least {least} items"));
        }
        // Items of a list are written as such, each at most once.
        let is_list = |rest: &SchemaNode| match rest {
            SchemaNode::Values(values) => {
                values.len() <= MAX_UNIQUE && values.iter().map(JsonValue).collect::<HashSet<_>>().len() == values.len()
            }
            SchemaNode::Boolean | SchemaNode::Null => true,
            _ => false,
        };
        let is_unique = must_differ && first.is_empty() && rest.as_ref().is_some_and(is_list);
        if must_differ && !is_unique {
            self.document.drop_keyword(at, "uniqueItems", "uniqueItems cannot be enforced by a grammar")?;
        }
        Ok(SchemaNode::Array(Box::new(ArrayNode { first, rest, least, most, is_unique })))
    }
}
