//! Converts a command line in llama.cpp's flags to the JSON object of a load, so that one parser reads both forms.
//!
//! The old server split at whitespace and took the first word as the program's name. So a first word that is not a flag is
//! skipped.

use serde_json::{Map, Value, json};

use super::flags::{FLAGS, Flag, FlagKind};
use crate::api::wire::fields::did_you_mean;
use crate::error::{Error, Result};

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CommandLine {
    /// The same settings as a load's JSON object.
    pub object: Map<String, Value>,
    /// Flags that were ignored, and flags that were given twice.
    pub warnings: Vec<String>,
}

/// Splits a command line into words at whitespace.
///
/// Text in double or single quotes is one word, or part of one. Outside of quotes, a backslash escapes whitespace, quotes and
/// backslashes; before any other character it is an ordinary character, so that `C:\models\x.gguf` needs no escapes. Inside of
/// double quotes it escapes `"` and `\`, inside of single quotes nothing.
///
/// # Errors
/// A quote is not closed.
pub fn split(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match quote {
            None if c.is_whitespace() => words.extend(word.take()),
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            Some(open) if c == open => quote = None,
            _ => {
                let escapes = |next: &char| match quote {
                    None => next.is_whitespace() || matches!(next, '"' | '\'' | '\\'),
                    Some('"') => matches!(next, '"' | '\\'),
                    Some(_) => false,
                };
                let literal = if c == '\\' { chars.next_if(escapes).unwrap_or(c) } else { c };
                word.get_or_insert_default().push(literal);
            }
        }
    }
    match quote {
        Some(open) => Err(Error::invalid(format!("command line: the quote {open} is not closed"))),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

/// Reads a command line in llama.cpp's flags. `--flag=value` and `--flag value` are equivalent, `--ctx_size` and `--ctx-size` too.
///
/// Values are converted to the JSON type of their key. Ranges are validated later, by the load's parser.
///
/// # Errors
/// An unknown flag (the message suggests the nearest known one), a missing or superfluous value, an invalid number.
pub fn parse(line: &str) -> Result<CommandLine> {
    let words = split(line)?;
    let mut words = words.iter().map(String::as_str).peekable();
    words.next_if(|first| !first.starts_with('-'));
    let mut result = CommandLine::default();
    while let Some(word) = words.next() {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) if word.starts_with("--") => (name, Some(value)),
            _ => (word, None),
        };
        let flag = find(name)?;
        let value = match &flag.kind {
            FlagKind::Unsupported(why) => return Err(Error::invalid(format!("{name}: {why}"))),
            FlagKind::Set(..) | FlagKind::Ignored { value: false } | FlagKind::InRequest { value: false } => {
                match attached {
                    Some(value) => return Err(Error::invalid(format!("{name}: takes no value, got {value:?}"))),
                    None => "",
                }
            }
            FlagKind::IgnoredWord(known) => {
                attached.or_else(|| words.next_if(|next| known.contains(next))).unwrap_or_default()
            }
            FlagKind::OptionalWord { words: known, default, .. } => {
                let meaning = |word: &str| known.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning);
                match attached.or_else(|| words.next_if(|next| meaning(next).is_some())) {
                    Some(word) => meaning(word).unwrap_or(word),
                    None => default,
                }
            }
            FlagKind::IntOrNothing { .. } => {
                attached.or_else(|| words.next_if(|next| next.parse::<i64>().is_ok())).unwrap_or_default()
            }
            _ => match attached.or_else(|| words.next()) {
                None => {
                    return Err(Error::invalid(format!("{name}: expected a value, got the end of the command line")));
                }
                // `-m -c 4096`: the value is missing.
                Some(value) if attached.is_none() && known(value).is_some() => {
                    return Err(Error::invalid(format!("{name}: expected a value, got the flag {value}")));
                }
                Some(value) => value,
            },
        };
        // The old server's `--lora-scaled FILE SCALE`: the scale is a separate word.
        let scaled = matches!(flag.kind, FlagKind::ScaledAdapters(_)) && !ends_with_scale(value);
        match words.next_if(|next| scaled && next.parse::<f64>().is_ok()) {
            Some(scale) => result.apply(name, &flag.kind, &format!("{value}:{scale}"))?,
            None => result.apply(name, &flag.kind, value)?,
        }
    }
    Ok(result)
}

fn known(name: &str) -> Option<&'static Flag> {
    let plain = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
    FLAGS.iter().find(|flag| flag.names.contains(&plain.as_str()))
}

fn find(name: &str) -> Result<&'static Flag> {
    known(name).ok_or_else(|| {
        if !name.starts_with('-') {
            return Error::invalid(format!("command line: expected a flag, got {:?}", shortened(name)));
        }
        let hint = did_you_mean(name, FLAGS.iter().flat_map(|flag| flag.names.iter().copied()));
        Error::invalid(format!("{}: unknown flag{hint}", shortened(name)))
    })
}

impl CommandLine {
    fn apply(&mut self, name: &str, kind: &FlagKind, value: &str) -> Result<()> {
        match *kind {
            FlagKind::Set(settings) => {
                for (key, value) in settings {
                    self.set(name, key, json!(value));
                }
            }
            FlagKind::Word(key) | FlagKind::OptionalWord { key, .. } => self.set(name, key, json!(value)),
            FlagKind::Int(key) => self.set(name, key, int(name, value)?),
            FlagKind::Number(key) => self.set(name, key, number(name, value)?),
            FlagKind::IntOrWord(key) => {
                self.set(name, key, int(name, value).unwrap_or_else(|_| json!(value)));
            }
            FlagKind::IntOrNothing { why, .. } if value.is_empty() => self.warnings.push(format!("{name}: {why}")),
            FlagKind::IntOrNothing { key, .. } => {
                self.set(name, key, int(name, value).unwrap_or_else(|_| json!(value)))
            }
            FlagKind::Names(key) => {
                self.set(name, key, value.split(',').map(str::trim).filter(|s| !s.is_empty()).collect())
            }
            FlagKind::Split(key) => {
                let shares = value.split([',', '/']).filter(|share| !share.is_empty());
                let shares = shares.map(|share| number(name, share)).collect::<Result<Vec<_>>>()?;
                self.set(name, key, Value::Array(shares));
            }
            FlagKind::Reciprocal(key) => {
                let factor = value.parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor > 0.0);
                let factor = factor.ok_or_else(|| bad(name, "a number above 0", value))?;
                self.set(name, key, json!(1.0 / factor));
            }
            FlagKind::Overrides(key) => self.append(key, csv(value).into_iter().map(Value::from)),
            FlagKind::Adapters(key) => {
                self.append(key, csv(value).into_iter().map(|path| json!({"path": path, "scale": 1.0})))
            }
            FlagKind::ScaledAdapters(key) => {
                let adapters = csv(value).into_iter().map(|item| {
                    let (path, scale) = item.rsplit_once(':').ok_or_else(|| bad(name, "FILE:SCALE", &item))?;
                    Ok(json!({"path": path, "scale": number(name, scale)?}))
                });
                self.append(key, adapters.collect::<Result<Vec<_>>>()?);
            }
            FlagKind::LoadMode => {
                let (mmap, mlock) = match value {
                    "auto" | "mmap" => (true, false),
                    "none" => (false, false),
                    "mlock" => (false, true),
                    "mmap+mlock" => (true, true),
                    _ => return Err(bad(name, "auto, none, mmap, mlock or mmap+mlock", value)),
                };
                self.set(name, "use_mmap", json!(mmap));
                self.set(name, "use_mlock", json!(mlock));
            }
            FlagKind::Timeout => {
                self.set(name, "read_timeout", int(name, value)?);
                self.set(name, "write_timeout", int(name, value)?);
            }
            FlagKind::Ignored { .. } | FlagKind::IgnoredWord(_) => {
                self.warnings.push(format!("{name}: accepted and ignored"))
            }
            FlagKind::InRequest { .. } => self.warnings.push(format!("{name}: ignored, set it in each request")),
            FlagKind::Unsupported(_) => {}
        }
        Ok(())
    }

    /// Sets a key. `speculative.n_max` is the key `n_max` of the object `speculative`. As in llama.cpp, the last value is used.
    fn set(&mut self, name: &str, key: &str, value: Value) {
        let old = match key.split_once('.') {
            None => self.object.insert(key.to_owned(), value.clone()),
            Some((outer, inner)) => match self.object.entry(outer).or_insert_with(|| Value::Object(Map::new())) {
                Value::Object(map) => map.insert(inner.to_owned(), value.clone()),
                _ => None,
            },
        };
        if old.is_some_and(|old| old != value) {
            self.warnings.push(format!("{name}: {key} was set before; the last value is used"));
        }
    }

    fn append(&mut self, key: &str, items: impl IntoIterator<Item = Value>) {
        if let Value::Array(list) = self.object.entry(key).or_insert_with(|| Value::Array(Vec::new())) {
            list.extend(items);
        }
    }
}

fn ends_with_scale(value: &str) -> bool {
    value.rsplit_once(':').is_some_and(|(_, scale)| scale.parse::<f64>().is_ok())
}

fn int(name: &str, value: &str) -> Result<Value> {
    value.parse::<i64>().map(Value::from).map_err(|_| bad(name, "a whole number", value))
}

fn number(name: &str, value: &str) -> Result<Value> {
    let number = value.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
    number.map(Value::Number).ok_or_else(|| bad(name, "a number", value))
}

fn bad(name: &str, expected: &str, value: &str) -> Error {
    Error::invalid(format!("{name}: expected {expected}, got {:?}", shortened(value)))
}

fn shortened(word: &str) -> String {
    let mut chars = word.chars();
    let start: String = chars.by_ref().take(80).collect();
    if chars.next().is_some() { start + "..." } else { start }
}

/// Splits a list at commas as llama.cpp does: not inside double quotes, where `""` is a quote. ([`split`] has already removed the
/// quotes of the command line.)
fn csv(value: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut item = String::new();
    let mut quoted = false;
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted => {
                if chars.next_if_eq(&'"').is_some() {
                    item.push('"');
                } else {
                    quoted = false;
                }
            }
            '"' if item.is_empty() => quoted = true,
            ',' if !quoted => items.push(std::mem::take(&mut item)),
            _ => item.push(c),
        }
    }
    items.push(item);
    items.retain(|item| !item.is_empty());
    items
}

#[cfg(test)]
mod tests;
