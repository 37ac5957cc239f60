//! A schema document: resolves references, and limits the work for one schema.
//!
//! References make a short schema equivalent to a very large one: comparing its parts could take forever, and writing it out could
//! exhaust the memory. So all work that references can repeat is counted, and stops at a limit.

use std::cell::Cell;

use serde_json::Value;

/// The result of reading a part of a schema. The error is a message with the location.
pub(super) type SchemaResult<T> = Result<T, String>;

/// The error at a location in the schema.
pub(super) fn error_at<T>(at: &str, what: impl std::fmt::Display) -> SchemaResult<T> {
    let shown: String = at.chars().take(120).collect();
    Err(format!("json_schema: {shown}: {what}"))
}

/// The maximum number of schemas inside a schema.
pub(super) const MAX_NODES: usize = 2000;
/// The maximum length of all property names on the way to a value, in bytes.
pub(super) const MAX_PATH: usize = 2048;
/// The maximum number of steps for one schema: about a second. Typical schemas take thousands.
const MAX_STEPS: usize = 8_000_000;
/// The steps of reading a keyword, or of copying a value. A comparison is one step.
pub(super) const VISIT: usize = 8;
/// This many bytes of text count as one value.
const BYTES_PER_VALUE: usize = 16;

/// The root of a schema, and the number of remaining steps.
pub(super) struct Document<'a> {
    root: &'a Value,
    steps_left: Cell<usize>,
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, steps_left: Cell::new(MAX_STEPS) }
    }

    /// Counts steps. `at` is the location for the error.
    pub(super) fn count_steps(&self, steps: usize, at: &str) -> SchemaResult<()> {
        let Some(left) = self.steps_left.get().checked_sub(steps) else {
            return error_at(at, format!("takes more than {MAX_STEPS} steps to read"));
        };
        self.steps_left.set(left);
        Ok(())
    }

    /// Counts the steps of copying `value`.
    pub(super) fn count_copy(&self, value: &Value, at: &str) -> SchemaResult<()> {
        self.count_steps(VISIT * n_values(value), at)
    }

    /// The schema that a reference points at.
    pub(super) fn resolve(&self, reference: &str, at: &str) -> SchemaResult<&'a Value> {
        if reference.len() > MAX_PATH {
            return error_at(at, "a $ref that is too long");
        }
        self.count_steps(4 + reference.len() / 2, at)?;
        let Some(pointer) = reference.strip_prefix('#') else {
            return error_at(at, format!("$ref {reference:?}: only references inside the same schema are resolved"));
        };
        self.root.pointer(pointer).map_or_else(|| error_at(at, format!("cannot resolve $ref {reference:?}")), Ok)
    }
}

/// The number of values inside a value, including itself. A long text counts as several.
pub(super) fn n_values(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / BYTES_PER_VALUE,
        Value::Array(items) => 1 + items.iter().map(n_values).sum::<usize>(),
        Value::Object(map) => {
            1 + map.iter().map(|(key, value)| key.len() / BYTES_PER_VALUE + n_values(value)).sum::<usize>()
        }
        _ => 1,
    }
}
