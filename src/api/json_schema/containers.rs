//! Objects and arrays.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::keywords::{MAX_ITEMS, bounds, count, strings};
use super::steps::VISIT;
use super::{Checked, Reader, show, wrong};

/// Most properties of an object, and the longest name of one in bytes.
const MAX_PROPERTIES: usize = 128;
const MAX_NAME: usize = 256;

impl Reader<'_> {
    pub(super) fn object(&mut self, map: &Map<String, Value>, at: &str, names: usize) -> Checked<Value> {
        let empty = Map::new();
        let properties = match map.get("properties") {
            None => &empty,
            Some(Value::Object(properties)) => properties,
            Some(_) => return wrong(at, "properties must be an object"),
        };
        let required = strings(map, "required", at)?;
        self.steps.take(VISIT * (properties.len() + required.len()), at)?;
        let needed: HashSet<&str> = required.iter().copied().collect();
        let additional = match map.get("additionalProperties") {
            None if map.contains_key("properties") || !required.is_empty() => None,
            None | Some(Value::Bool(true)) => Some(json!(true)),
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(self.schema(schema, &format!("{at}/additionalProperties"), names + 20)?),
        };
        let mut out = Map::new();
        for (name, schema) in properties {
            if schema != &Value::Bool(false) {
                let plain = self.schema(schema, &format!("{at}/properties/{name}"), names + name.len() + 1)?;
                out.insert(name.clone(), plain);
            } else if needed.contains(name.as_str()) {
                return wrong(at, format!("{} is required and never valid", show(&json!(name))));
            } else if additional.is_some() {
                // Left out, its name would be as good as any other for an additional one.
                let at = format!("{at}/properties/{name}");
                return wrong(&at, "false beside additionalProperties cannot be enforced");
            }
        }
        for name in &required {
            if !out.contains_key(*name) {
                if map.get("additionalProperties") == Some(&Value::Bool(false)) {
                    return wrong(at, format!("{} is required and is no property", show(&json!(name))));
                }
                // Read again, not copied: schemas are counted where they are read, and a copy may hold a lot of copies.
                let any = match map.get("additionalProperties") {
                    Some(any @ Value::Object(_)) => {
                        self.schema(any, &format!("{at}/additionalProperties"), names + 20)?
                    }
                    _ => json!({}),
                };
                out.insert((*name).to_owned(), any);
            }
        }
        if out.len() > MAX_PROPERTIES {
            return wrong(at, format!("more than {MAX_PROPERTIES} properties"));
        }
        let odd = |name: &str| name.is_empty() || name.contains(['"', '\\', '[', ']', '^', '-', '*']);
        for name in out.keys() {
            if name.len() > MAX_NAME {
                return wrong(at, format!("a property's name of more than {MAX_NAME} bytes"));
            }
            if name == "*" || additional.is_some() && (odd(name) || name.contains(char::is_control)) {
                let name = show(&json!(name));
                return wrong(at, format!("the property {name} cannot be told from additional ones by a grammar"));
            }
        }
        let few = count(map, "minProperties", at)?.is_some_and(|least| least > needed.len() as u64);
        let many = count(map, "maxProperties", at)?.is_some_and(|most| additional.is_some() || most < out.len() as u64);
        if few || many {
            return wrong(at, "minProperties and maxProperties cannot be enforced by a grammar");
        }
        Ok(json!({
            "type": "object", "properties": out, "required": required,
            "additionalProperties": additional.unwrap_or(json!(false)),
        }))
    }

    pub(super) fn array(&mut self, map: &Map<String, Value>, at: &str, names: usize) -> Checked<Value> {
        if map.get("uniqueItems") == Some(&Value::Bool(true)) {
            return wrong(at, "uniqueItems cannot be enforced by a grammar");
        }
        let (least, most) = bounds(map, "minItems", "maxItems", at)?;
        let items = map.get("items");
        let tuple = map.get("prefixItems").or(items.filter(|items| items.is_array()));
        if let Some(tuple) = tuple {
            let Some(tuple) = tuple.as_array() else { return wrong(at, "prefixItems must be an array") };
            if map.contains_key("prefixItems") && items.is_some_and(Value::is_array) {
                return wrong(at, "items beside prefixItems must be one schema");
            }
            let len = tuple.len() as u64;
            if least > len || most.is_some_and(|most| most < len) {
                return wrong(at, format!("a tuple has as many items as prefixItems, {len}"));
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
        let mut out = json!({"type": "array", "items": items, "minItems": least});
        if let Some(most) = most {
            let most = if least == 0 { most.min(MAX_ITEMS) } else { most };
            out["maxItems"] = json!(most);
        }
        Ok(out)
    }
}
