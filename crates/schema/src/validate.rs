//! Validates values, within the steps of a document.

use std::cell::RefCell;
use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::disjoint::JsonValue;
use crate::document::{Document, VISIT, n_values};
use crate::formats;
use crate::keywords::is_of_type;
use crate::pattern::{self, TextSet};

/// The maximum nesting of schemas that apply to one value and its parts.
const MAX_DEPTH: usize = 96;

/// Validates values under schemas of a document.
pub(crate) struct Validator<'d, 'a> {
    document: &'d Document<'a>,
    /// A keyword that was not applied since the last call of [`Validator::take_unknown`].
    unknown: RefCell<Option<String>>,
    /// The texts in which each pattern is found.
    sets: RefCell<HashMap<String, Option<TextSet>>>,
}

impl<'d, 'a> Validator<'d, 'a> {
    pub(crate) fn new(document: &'d Document<'a>) -> Self {
        Validator { document, unknown: RefCell::default(), sets: RefCell::default() }
    }

    /// Whether a value is valid. A keyword that is not known, or that takes too many steps, restricts nothing.
    pub(crate) fn is_valid(&self, schema: &Value, value: &Value) -> bool {
        self.schema(schema, value, 0)
    }

    /// As [`Validator::is_valid`].
    pub(crate) fn is_valid_part(&self, map: &Map<String, Value>, value: &Value) -> bool {
        self.object(map, value, 0)
    }

    /// A keyword that was not applied, if there is one since the last call.
    pub(crate) fn take_unknown(&self) -> Option<String> {
        self.unknown.borrow_mut().take()
    }

    /// Notes that a keyword is not applied.
    fn skip(&self, keyword: &str) -> bool {
        *self.unknown.borrow_mut() = Some(keyword.to_owned());
        true
    }

    fn schema(&self, schema: &Value, value: &Value, depth: usize) -> bool {
        match schema {
            Value::Bool(is_valid) => *is_valid,
            Value::Object(map) => self.object(map, value, depth),
            _ => self.skip("a schema that is none"),
        }
    }

    fn object(&self, map: &Map<String, Value>, value: &Value, depth: usize) -> bool {
        if depth > MAX_DEPTH {
            return self.skip("$ref");
        }
        map.iter().all(|(key, wanted)| {
            if self.document.count_steps(VISIT, "").is_err() {
                return self.skip(key);
            }
            let is_valid = match value {
                Value::String(text) => self.about_text(key, wanted, text),
                Value::Number(_) => self.about_number(key, wanted, value),
                Value::Array(items) => self.about_array(map, key, wanted, items, depth),
                Value::Object(properties) => self.about_object(map, key, wanted, properties, depth),
                Value::Null | Value::Bool(_) => true,
            };
            is_valid && self.about_any(map, key, wanted, value, depth)
        })
    }

    /// Keywords for values of any type.
    fn about_any(&self, map: &Map<String, Value>, key: &str, wanted: &Value, value: &Value, depth: usize) -> bool {
        let is_valid = |schema: &Value| self.schema(schema, value, depth + 1);
        let same = |other: &Value| {
            let steps = n_values(other).min(n_values(value));
            if self.document.count_steps(steps, "").is_err() {
                self.skip(key)
            } else {
                JsonValue(other) == JsonValue(value)
            }
        };
        let schemas = || wanted.as_array().into_iter().flatten();
        match key {
            "type" => match wanted {
                Value::Array(names) => names.iter().filter_map(Value::as_str).any(|name| is_of_type(value, name)),
                name => name.as_str().is_none_or(|name| is_of_type(value, name)),
            },
            "const" => same(wanted),
            "enum" => schemas().any(same),
            "$ref" => match wanted.as_str().and_then(|reference| self.document.resolve(reference, "").ok()) {
                Some(schema) => is_valid(schema),
                None => self.skip(key),
            },
            "allOf" => schemas().all(is_valid),
            "anyOf" => schemas().any(is_valid),
            "oneOf" => schemas().filter(|schema| is_valid(schema)).take(2).count() == 1,
            "not" => !is_valid(wanted) || self.unknown.borrow().is_some(),
            "if" => {
                let branch = if is_valid(wanted) { "then" } else { "else" };
                map.get(branch).is_none_or(is_valid)
            }
            "unevaluatedProperties" | "unevaluatedItems" | "$dynamicRef" | "$recursiveRef" => self.skip(key),
            _ => true,
        }
    }

    fn about_number(&self, key: &str, wanted: &Value, value: &Value) -> bool {
        let Some(number) = value.as_f64() else { return true };
        // Integers beyond 2^53 compare as integers.
        let whole = |value: &Value| value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
        let order = |limit: &Value| match (whole(value), whole(limit)) {
            (Some(one), Some(other)) => Some(one.cmp(&other)),
            _ => number.partial_cmp(&limit.as_f64()?),
        };
        match key {
            "minimum" => order(wanted).is_none_or(std::cmp::Ordering::is_ge),
            "maximum" => order(wanted).is_none_or(std::cmp::Ordering::is_le),
            "exclusiveMinimum" => order(wanted).is_none_or(std::cmp::Ordering::is_gt),
            "exclusiveMaximum" => order(wanted).is_none_or(std::cmp::Ordering::is_lt),
            "multipleOf" => wanted.as_f64().filter(|step| *step > 0.0).is_none_or(|step| is_multiple(number, step)),
            _ => true,
        }
    }

    fn about_text(&self, key: &str, wanted: &Value, text: &str) -> bool {
        let length =
            |holds: fn(f64, f64) -> bool| wanted.as_f64().is_none_or(|limit| holds(text.chars().count() as f64, limit));
        match key {
            "minLength" => length(|n, limit| n >= limit),
            "maxLength" => length(|n, limit| n <= limit),
            "pattern" => wanted.as_str().is_none_or(|pattern| self.finds(pattern, text)),
            "format" => {
                // The grammar has not all regular expressions.
                let pattern = wanted.as_str().filter(|format| *format != "regex").and_then(formats::pattern);
                // A time may have any number of digits behind its point.
                pattern.is_none_or(|pattern| self.finds(&format!("^({})$", pattern.replace("{1,9}", "+")), text))
            }
            _ => true,
        }
    }

    /// Whether a pattern is found in a text.
    fn finds(&self, pattern: &str, text: &str) -> bool {
        let work = self.document.work();
        let mut sets = self.sets.borrow_mut();
        let set = sets.entry(pattern.to_owned()).or_insert_with(|| pattern::found(pattern, work));
        match set {
            Some(set) if work.step(text.len()).is_ok() => set.has(text),
            _ => self.skip("pattern"),
        }
    }

    fn about_array(&self, map: &Map<String, Value>, key: &str, wanted: &Value, items: &[Value], depth: usize) -> bool {
        let is_valid = |schema: &Value, item: &Value| self.schema(schema, item, depth + 1);
        let count = |holds: fn(f64, f64) -> bool| wanted.as_f64().is_none_or(|limit| holds(items.len() as f64, limit));
        let tuple = map.get("prefixItems").or(map.get("items")).and_then(Value::as_array).map_or(0, Vec::len);
        match (key, wanted) {
            ("minItems", _) => count(|n, limit| n >= limit),
            ("maxItems", _) => count(|n, limit| n <= limit),
            ("prefixItems" | "items", Value::Array(tuple)) => {
                items.iter().zip(tuple).all(|(item, schema)| is_valid(schema, item))
            }
            ("items", schema) => items.iter().skip(tuple).all(|item| is_valid(schema, item)),
            ("additionalItems", schema) if map.get("items").is_some_and(Value::is_array) => {
                items.iter().skip(tuple).all(|item| is_valid(schema, item))
            }
            ("uniqueItems", Value::Bool(true)) => {
                let steps = items.iter().map(n_values).sum();
                if self.document.count_steps(steps, "").is_err() {
                    return self.skip(key);
                }
                let mut seen = std::collections::HashSet::new();
                items.iter().all(|item| seen.insert(JsonValue(item)))
            }
            ("contains", schema) => {
                let number = |key: &str| map.get(key).and_then(Value::as_f64);
                let n_valid = items.iter().filter(|item| is_valid(schema, item)).count() as f64;
                n_valid >= number("minContains").unwrap_or(1.0)
                    && number("maxContains").is_none_or(|most| n_valid <= most)
            }
            _ => true,
        }
    }

    fn about_object(
        &self,
        map: &Map<String, Value>,
        key: &str,
        wanted: &Value,
        properties: &Map<String, Value>,
        depth: usize,
    ) -> bool {
        let is_valid = |schema: &Value, value: &Value| self.schema(schema, value, depth + 1);
        let has_all = |names: &Value| {
            let mut names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
            names.all(|name| properties.contains_key(name))
        };
        let count =
            |holds: fn(f64, f64) -> bool| wanted.as_f64().is_none_or(|limit| holds(properties.len() as f64, limit));
        match (key, wanted) {
            ("minProperties", _) => count(|n, limit| n >= limit),
            ("maxProperties", _) => count(|n, limit| n <= limit),
            ("required", names) => has_all(names),
            ("properties", Value::Object(schemas)) => {
                let mut schemas = schemas.iter().filter_map(|(name, schema)| properties.get(name).zip(Some(schema)));
                schemas.all(|(value, schema)| is_valid(schema, value))
            }
            ("patternProperties", Value::Object(schemas)) => schemas.iter().all(|(pattern, schema)| {
                properties.iter().all(|(name, value)| !self.finds(pattern, name) || is_valid(schema, value))
            }),
            ("additionalProperties", schema) => properties.iter().all(|(name, value)| {
                let has = |key: &str| map.get(key).and_then(Value::as_object);
                has("properties").is_some_and(|listed| listed.contains_key(name))
                    || has("patternProperties").is_some_and(|all| all.keys().any(|pattern| self.finds(pattern, name)))
                    || is_valid(schema, value)
            }),
            ("propertyNames", schema) => properties.keys().all(|name| is_valid(schema, &Value::String(name.clone()))),
            ("dependentRequired" | "dependentSchemas" | "dependencies", Value::Object(all)) => {
                all.iter().filter(|(name, _)| properties.contains_key(*name)).all(|(_, wanted)| match wanted {
                    Value::Array(_) => has_all(wanted),
                    schema => self.schema_of_object(schema, properties, depth + 1),
                })
            }
            _ => true,
        }
    }

    /// Applies a schema to the object that is being validated.
    fn schema_of_object(&self, schema: &Value, properties: &Map<String, Value>, depth: usize) -> bool {
        let value = Value::Object(properties.clone());
        if self.document.count_copy(&value, "").is_err() {
            return self.skip("dependentSchemas");
        }
        self.schema(schema, &value, depth)
    }
}

/// Whether a number is a multiple, up to the rounding of a decimal step.
fn is_multiple(number: f64, step: f64) -> bool {
    let quotient = number / step;
    quotient.is_finite() && (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0) && {
        // A whole step is exact.
        step.fract() != 0.0 || number % step == 0.0
    }
}
