//! Reads JSON objects field by field. Each value is validated when it is read, and keys that were not read become warnings.

mod document;
mod suggest;

use std::collections::HashSet;
use std::io;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

pub use self::document::check_memory;
pub use self::suggest::did_you_mean;
use self::suggest::nearest;
use crate::error::{Code, Error, Result};

/// The maximum length of values in messages, in bytes.
const SHOWN: usize = 80;
/// The maximum number of unknown keys that are listed.
const MAX_UNKNOWN: usize = 32;

/// Parses a document that must be one JSON object. A byte order mark before it is skipped: the old server's JSON library did so.
///
/// serde_json limits the nesting to 128 levels, so that no document exhausts the stack.
///
/// # Errors
/// [`Code::InvalidJson`] with line and column; or those of [`check_memory`].
pub fn parse_object(bytes: &[u8]) -> Result<Map<String, Value>> {
    let invalid = |message: String| Error::new(Code::InvalidJson, message);
    let bytes = bytes.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let (line, column) = position(bytes, error.valid_up_to());
        invalid(format!("not UTF-8 at line {line} column {column}"))
    })?;
    check_memory(text)?;
    // serde_json ends its messages with the line and column.
    let parsed = serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        let hint = if message.starts_with("invalid escape") {
            " (a backslash in a string is written \\\\; paths can have / instead)"
        } else if text.trim_start().starts_with('{') {
            ""
        } else {
            " (expected a JSON object, for a completion such as {\"prompt\": \"Hello\"})"
        };
        invalid(format!("not JSON: {message}{hint}"))
    });
    match parsed? {
        Value::Object(map) => Ok(map),
        other => {
            let start = bytes.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
            let (line, column) = position(bytes, start);
            Err(invalid(format!("expected a JSON object, got {} at line {line} column {column}", show(&other))))
        }
    }
}

/// Replaces a default by the value of a field, if it was given.
pub fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

/// The line and column of the byte at `offset`, both from 1. Columns count bytes, as in serde_json.
fn position(bytes: &[u8], offset: usize) -> (usize, usize) {
    let before = bytes.get(..offset).unwrap_or(bytes);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    (line, column)
}

/// `value` as JSON, truncated to about 80 bytes. The rest of a long value is never formatted.
pub fn show(value: &Value) -> String {
    let mut sink = Truncated(Vec::new());
    let cut = serde_json::to_writer(&mut sink, value).is_err();
    // Only the last character can be incomplete.
    let text = sink.0.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    format!("{text}{}", if cut { "..." } else { "" })
}

struct Truncated(Vec<u8>);

impl io::Write for Truncated {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let free = SHOWN.saturating_sub(self.0.len());
        self.0.extend(bytes.iter().take(free));
        if bytes.len() > free { Err(io::Error::other("long enough")) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `number` as JSON with the fewest digits that give the same `f32` again: 0.8, not 0.800000011920929. Infinity and NaN become
/// null.
pub fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// The error `name: expected ..., got ...`.
pub fn unexpected(name: &str, expected: &str, value: &Value) -> Error {
    Error::invalid(format!("{name}: expected {expected}, got {}", show(value)))
}

/// The error of a part of a message's content that is not text.
pub fn unexpected_part(name: &str, part: &Value) -> Error {
    let expected = match part.get("type").and_then(Value::as_str) {
        Some("input_image") => "text or image_url, because this form of images is not supported",
        Some("input_audio" | "audio") => "text, because sounds are not supported",
        Some("video_url" | "video" | "file" | "input_file") => "text, because files are not supported",
        _ => "{\"type\": \"text\", \"text\": ...}",
    };
    unexpected(name, expected, part)
}

/// The error of a feature that this version does not have.
pub fn unavailable(name: &str) -> Error {
    Error::invalid(format!("{name}: not available in this version of foredraft"))
}

/// Reads a whole number in `range`. 12.0 counts as 12.
///
/// # Errors
/// It is not a whole number, or out of range.
pub fn int_in<T: TryFrom<i64>>(name: &str, value: &Value, range: RangeInclusive<i64>) -> Result<T> {
    // Above 2^53, an f64 cannot represent every integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value
        .as_i64()
        .or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() <= EXACT).map(|x| x as i64))
        .filter(|number| range.contains(number))
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| unexpected(name, &format!("a whole number from {} to {}", range.start(), range.end()), value))
}

/// Reads a finite number in `range`, compared as `f32`. `f32::MIN` and `f32::MAX` mean no limit.
///
/// # Errors
/// It is not a number, or out of range.
pub fn number_in(name: &str, value: &Value, range: RangeInclusive<f32>) -> Result<f32> {
    value.as_f64().map(|number| number as f32).filter(|number| number.is_finite() && range.contains(number)).ok_or_else(
        || {
            let (start, end) = (*range.start(), *range.end());
            let expected = match (start == f32::MIN, end == f32::MAX) {
                (true, true) => "a number".to_owned(),
                (true, false) => format!("a number up to {end}"),
                (false, true) => format!("a number from {start} on"),
                (false, false) => format!("a number from {start} to {end}"),
            };
            unexpected(name, &expected, value)
        },
    )
}

/// Reads a string.
///
/// # Errors
/// It is not a string.
pub fn text_in<'a>(name: &str, value: &'a Value) -> Result<&'a str> {
    value.as_str().ok_or_else(|| unexpected(name, "a string", value))
}

/// Reads a string for C, so without NUL.
///
/// # Errors
/// It is not a string, or contains NUL.
pub fn c_text_in<'a>(name: &str, value: &'a Value) -> Result<&'a str> {
    match text_in(name, value)? {
        text if text.contains('\0') => Err(unexpected(name, "a string without NUL", value)),
        text => Ok(text),
    }
}

/// Reads one of the words, and returns its value.
///
/// # Errors
/// It is none of them.
pub fn word_in<T: Copy>(name: &str, value: &Value, words: &[(&str, T)]) -> Result<T> {
    let given = value.as_str();
    words.iter().find(|(word, _)| given == Some(*word)).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let list: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let expected = format!("one of {}", list.join(", "));
        let hint = given.map_or_else(String::new, |given| did_you_mean(given, words.iter().map(|(w, _)| *w)));
        Error::invalid(format!("{}{hint}", unexpected(name, &expected, value).message()))
    })
}

/// A JSON object that is read key by key.
///
/// A `null` value counts as absent, and getters return `Ok(None)` for an absent key. [`Fields::finish`] returns a warning for each
/// key that was not read.
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The prefix of keys in messages: empty, or the name of the enclosing object and a dot.
    prefix: String,
    known: Vec<&'static str>,
    taken: HashSet<&'a str>,
    /// The full names of the keys of objects inside this one.
    inner: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Fields<'a> {
    /// Reads a document.
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Fields::nested("", map)
    }

    /// Reads an object inside a document. `prefix` is the prefix of its keys in messages (`"speculative."`).
    pub fn nested(prefix: impl Into<String>, map: &'a Map<String, Value>) -> Self {
        Fields {
            map,
            prefix: prefix.into(),
            known: Vec::new(),
            taken: HashSet::new(),
            inner: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The value of `key`.
    pub fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.known.push(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// The value of `key`, where `null` does not count as absent.
    pub fn get_any(&mut self, key: &'static str) -> Option<&'a Value> {
        self.known.push(key);
        self.map.get(key)
    }

    /// The keys that begin with `prefix`, without the prefix, and their values. All of them count as read.
    pub fn get_prefixed(&mut self, prefix: &str) -> Vec<(&'a str, &'a Value)> {
        let map: &'a Map<String, Value> = self.map;
        let mut found = Vec::new();
        for (key, value) in map {
            if let Some(rest) = key.strip_prefix(prefix) {
                self.taken.insert(key);
                if !value.is_null() {
                    found.push((rest, value));
                }
            }
        }
        found
    }

    fn read<T>(&mut self, key: &'static str, convert: impl FnOnce(&str, &'a Value) -> Result<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) if self.prefix.is_empty() => convert(key, value).map(Some),
            Some(value) => convert(&self.name(key), value).map(Some),
        }
    }

    /// The name of `key` in messages.
    pub fn name(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// Reads true or false.
    ///
    /// # Errors
    /// It is neither.
    pub fn flag(&mut self, key: &'static str) -> Result<Option<bool>> {
        self.read(key, |name, value| value.as_bool().ok_or_else(|| unexpected(name, "true or false", value)))
    }

    /// Reads a whole number, see [`int_in`].
    ///
    /// # Errors
    /// Those of [`int_in`].
    pub fn int<T: TryFrom<i64>>(&mut self, key: &'static str, range: RangeInclusive<i64>) -> Result<Option<T>> {
        self.read(key, |name, value| int_in(name, value, range))
    }

    /// Reads a whole number, see [`int_in`], or one of the words.
    ///
    /// # Errors
    /// It is neither.
    pub fn int_or_word<T: TryFrom<i64> + Copy>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<i64>,
        words: &[(&str, T)],
    ) -> Result<Option<T>> {
        let (least, most) = (*range.start(), *range.end());
        self.read(key, |name, value| match words.iter().find(|(word, _)| value == word) {
            Some((_, meaning)) => Ok(*meaning),
            None => int_in(name, value, range).map_err(|_| {
                let list: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
                unexpected(name, &format!("a whole number from {least} to {most}, or {}", list.join(" or ")), value)
            }),
        })
    }

    /// Reads a finite number, see [`number_in`].
    ///
    /// # Errors
    /// Those of [`number_in`].
    pub fn number(&mut self, key: &'static str, range: RangeInclusive<f32>) -> Result<Option<f32>> {
        self.read(key, |name, value| number_in(name, value, range))
    }

    /// Reads a string for C (without NUL). An empty string counts as absent.
    ///
    /// # Errors
    /// Those of [`c_text_in`].
    pub fn c_text(&mut self, key: &'static str) -> Result<Option<String>> {
        let text = self.read(key, c_text_in)?;
        Ok(text.filter(|text| !text.is_empty()).map(str::to_owned))
    }

    /// Reads one of the words, see [`word_in`].
    ///
    /// # Errors
    /// Those of [`word_in`].
    pub fn word<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> Result<Option<T>> {
        self.read(key, |name, value| word_in(name, value, words))
    }

    /// Reads an array. `read` reads each element, and gets its name (`stop[2]`).
    ///
    /// # Errors
    /// It is not an array, or those of `read`.
    pub fn list<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        mut read: impl FnMut(&str, &'a Value) -> Result<T>,
    ) -> Result<Option<Vec<T>>> {
        self.read(key, |name, value| {
            let items = value.as_array().ok_or_else(|| unexpected(name, expected, value))?;
            items.iter().enumerate().map(|(i, item)| read(&format!("{name}[{i}]"), item)).collect()
        })
    }

    /// Reads strings for C: an array, or one string with commas between them, as in llama.cpp's options.
    ///
    /// # Errors
    /// It is neither, or a string contains NUL.
    pub fn c_texts(&mut self, key: &'static str) -> Result<Option<Vec<String>>> {
        self.read(key, |name, value| match value {
            Value::Array(items) => items
                .iter()
                .enumerate()
                .map(|(i, item)| c_text_in(&format!("{name}[{i}]"), item).map(str::to_owned))
                .collect(),
            Value::String(_) => {
                let text = c_text_in(name, value)?;
                Ok(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect())
            }
            _ => Err(unexpected(name, "an array of strings", value)),
        })
    }

    /// Whether the document has a value for `key`. The key does not count as read.
    pub fn is_given(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Adds a warning for each of the `others` that is given beside `used` with another value: several keys have one meaning, and `used`
    /// counts.
    pub fn warn_of_other_names(&mut self, used: &str, others: &[&str]) {
        let Some(value) = self.map.get(used).filter(|value| !value.is_null()) else { return };
        for other in others {
            if self.map.get(*other).is_some_and(|second| !second.is_null() && second != value) {
                let warning = format!("{}: not used, because {} is given, too", self.name(other), self.name(used));
                self.warnings.push(warning);
            }
        }
    }

    /// Adds a warning for each of the keys that is given without messages.
    pub fn warn_without_messages(&mut self, keys: &[&str]) {
        let given = keys.iter().filter(|key| self.map.get(**key).is_some_and(|value| !value.is_null() && value != ""));
        self.warnings.extend(given.map(|key| format!("{key}: ignored without messages")));
    }

    /// Adds a warning.
    pub fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }

    /// Adds the warnings of an object inside this one. Its keys are suggested where they are given outside of it.
    pub fn absorb(&mut self, nested: Fields) {
        self.inner.extend(nested.known.iter().map(|key| nested.name(key)));
        self.warnings.extend(nested.finish());
    }

    /// Returns the warnings: the added ones, and one for each key that was not read, up to 32 of these.
    pub fn finish(mut self) -> Vec<String> {
        let known: HashSet<&str> = self.known.iter().copied().collect();
        let mut unknown =
            self.map.keys().filter(|key| !known.contains(key.as_str()) && !self.taken.contains(key.as_str()));
        for key in unknown.by_ref().take(MAX_UNKNOWN) {
            let is_inner = |name: &&String| {
                name.rsplit_once('.')
                    .is_some_and(|(_, inner)| inner.strip_prefix("n_").unwrap_or(inner) == key || inner == key)
            };
            let inner = self.inner.iter().find(is_inner).cloned();
            let meant = inner.or_else(|| nearest(key, self.known.iter().copied()).map(|near| self.name(near)));
            let hint = meant.map_or_else(String::new, |meant| format!(" (did you mean {meant:?}?)"));
            let shown = show(&Value::from(self.name(key)));
            self.warnings.push(format!("unknown key {shown}{hint}"));
        }
        let more = unknown.count();
        if more > 0 {
            self.warnings.push(format!("{more} more unknown keys"));
        }
        self.warnings
    }
}

#[cfg(test)]
mod tests;
