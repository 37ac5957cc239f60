//! Reads schemas of arrays and tuples.

use serde_json::{Map, Value};

use super::SchemaReader;
use crate::document::{SchemaResult, empty_at, error_at};
use crate::keywords::bounds;
use crate::tree::{ArrayNode, SchemaNode};

impl SchemaReader<'_, '_> {
    /// Reads an array schema.
    pub(super) fn array(&mut self, map: &Map<String, Value>, at: &str, depth: usize) -> SchemaResult<SchemaNode> {
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
            return empty_at(at, format!("no array has at least {least} items"));
        }
        Ok(SchemaNode::Array(Box::new(ArrayNode { first, rest, least, most })))
    }
}
