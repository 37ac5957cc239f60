//! Reads `anyOf` and `oneOf`, and the keywords beside them.

use serde_json::{Map, Value, json};

use super::SchemaReader;
use crate::disjoint::disjoint;
use crate::document::{MAX_NODES, SchemaResult, VISIT, error_at, too_large_at};
use crate::keywords::is_assertion;
use crate::tree::SchemaNode;
use crate::{merge, negation, unevaluated};

impl SchemaReader<'_, '_> {
    /// Reads a schema with the keywords `unevaluated`.
    pub(super) fn closed(
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

    /// Reads `anyOf` and `oneOf`.
    pub(super) fn alternatives(
        &mut self,
        parts: &Value,
        keyword: &str,
        at: &str,
        depth: usize,
    ) -> SchemaResult<SchemaNode> {
        let Some(list) = parts.as_array().filter(|list| !list.is_empty()) else {
            return error_at(at, "must be an array of schemas, and not empty");
        };
        if list.len() > MAX_NODES {
            return too_large_at(at, format!("more than {MAX_NODES} schemas in one"));
        }
        let mut out = Vec::new();
        for (i, part) in list.iter().enumerate() {
            out.push(self.schema(part, &format!("{at}/{i}"), depth + 1)?);
        }
        // Compares all pairs, so only after the number of parts was checked.
        if keyword == "oneOf" {
            self.exclusive(list, at)?;
        }
        Ok(SchemaNode::Union(out))
    }

    /// The parts of `anyOf` and `oneOf`, each with the keywords beside it.
    pub(super) fn distributed(
        &self,
        map: &Map<String, Value>,
        parts: &Value,
        keyword: &str,
        at: &str,
    ) -> SchemaResult<Value> {
        let Some(list) = parts.as_array() else { return error_at(at, "must be an array of schemas") };
        if list.len() > MAX_NODES {
            return too_large_at(at, format!("more than {MAX_NODES} alternatives"));
        }
        if keyword == "oneOf" {
            self.exclusive(list, at)?;
        }
        // A `not` that the reader of texts enforces holds for each part, too.
        let excludes_texts = negation::excludes_texts(map);
        let is_kept = |key: &str| is_assertion(key) && key != keyword || key == "not" && excludes_texts;
        let beside = map.iter().filter(|(key, _)| is_kept(key));
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
}
