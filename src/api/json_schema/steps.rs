//! How much work one schema may make.
//!
//! References let few words mean a lot: what is short to say may take forever to compare, or more memory than there is
//! to write out. So the work is counted wherever it can be repeated, and none is done that does not count.

use std::cell::Cell;

use serde_json::Value;

use super::{Checked, wrong};

/// Most steps for one schema: about a second. Schemas that people write take thousands.
const MAX_STEPS: usize = 8_000_000;
/// The steps of reading a keyword, or of copying a value. To compare it with another is one.
pub(super) const VISIT: usize = 8;
/// So many bytes of a text weigh as much as a value.
const BYTES: usize = 16;

/// The steps that are left.
pub(super) struct Steps(Cell<usize>);

impl Steps {
    pub(super) fn new() -> Self {
        Self(Cell::new(MAX_STEPS))
    }

    /// Counts so many more; the error is that of the place `at`.
    pub(super) fn take(&self, steps: usize, at: &str) -> Checked<()> {
        let Some(left) = self.0.get().checked_sub(steps) else {
            return wrong(at, format!("takes more than {MAX_STEPS} steps to read"));
        };
        self.0.set(left);
        Ok(())
    }

    /// Counts the steps of copying `value`.
    pub(super) fn copy(&self, value: &Value, at: &str) -> Checked<()> {
        self.take(VISIT * weight(value), at)
    }
}

/// How many values there are in this one, with itself; long texts count for several.
pub(super) fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / BYTES,
        Value::Array(items) => 1 + items.iter().map(weight).sum::<usize>(),
        Value::Object(map) => 1 + map.iter().map(|(key, value)| key.len() / BYTES + weight(value)).sum::<usize>(),
        _ => 1,
    }
}
