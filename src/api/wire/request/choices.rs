//! `choices`: the texts among which a request decides.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::api::wire::fields::{Fields, text_in, unexpected};
use crate::error::{Error, Result};

/// The maximum number of choices.
const MAX_CHOICES: usize = 1000;

/// The choices of a request: each an object with `text`, and with what else was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Choices {
    /// The objects as they are given back. Each has its `text`.
    pub given: Vec<Map<String, Value>>,
}

impl Choices {
    /// The texts.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.given.iter().map(|choice| choice.get("text").and_then(Value::as_str).unwrap_or_default())
    }
}

/// Reads `choices`: an array of different texts, or of objects with a `text` each. Warns where a text begins with another one.
pub(super) fn read(fields: &mut Fields) -> Result<Option<Choices>> {
    let expected = "an array of texts, or of objects with a text";
    let given = fields.list("choices", expected, |name, value| match value {
        Value::Object(map) => match map.get("text") {
            Some(text) => text_in(&format!("{name}.text"), text).map(|_| map.clone()),
            None => Err(unexpected(&format!("{name}.text"), "a text", &Value::Null)),
        },
        Value::String(_) => Ok(Map::from_iter([("text".to_owned(), value.clone())])),
        _ => Err(unexpected(name, "a text, or an object with a text", value)),
    })?;
    let Some(given) = given else { return Ok(None) };
    let choices = Choices { given };
    let n = choices.given.len();
    if !(1..=MAX_CHOICES).contains(&n) {
        return Err(Error::invalid(format!("choices: expected 1 to {MAX_CHOICES} texts, got {n}")));
    }
    let mut seen = HashMap::new();
    for (index, text) in choices.texts().enumerate() {
        if text.is_empty() {
            return Err(Error::invalid(format!("choices[{index}]: expected a text that is not empty")));
        }
        if let Some(first) = seen.insert(text, index) {
            return Err(Error::invalid(format!("choices[{index}]: the same text as choices[{first}]")));
        }
    }
    // In their order, a text follows the longest one that it begins with, and others that begin with that.
    let mut sorted: Vec<(&str, usize)> = choices.texts().zip(0..).collect();
    sorted.sort_unstable();
    let mut open: Vec<(&str, usize)> = Vec::new();
    for (text, index) in sorted {
        while open.last().is_some_and(|(before, _)| !text.starts_with(before)) {
            open.pop();
        }
        if let Some((_, shorter)) = open.last() {
            fields.warn(format!(
                "choices[{index}]: begins with choices[{shorter}], so whatever is probable of it counts for both"
            ));
        }
        open.push((text, index));
    }
    Ok(Some(choices))
}
