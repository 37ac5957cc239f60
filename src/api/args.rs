//! `init`'s other form: a command line in llama.cpp's own flags, turned into the JSON object that
//! [`init`](super::init) reads, so that there is one parser behind both.
//!
//! The old server split at blanks and took the first word for the program's name; a first word that is no
//! flag is therefore skipped.

mod flags;

use serde_json::{Map, Value, json};

use self::flags::{FLAGS, Flag, Kind};
use super::suggest;
use crate::error::{Error, Result};

/// A command line as `init`'s object.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CommandLine {
    /// What `init` would have got as JSON.
    pub object: Map<String, Value>,
    /// Flags that were accepted and mean nothing here, and flags that were given twice.
    pub warnings: Vec<String>,
}

/// Splits a command line into words at blanks.
///
/// Text in double or single quotes is one word, or part of one. A backslash takes the next character literally
/// when that is a blank, a quote or a backslash, and stands for itself before anything else, so that
/// `C:\models\x.gguf` needs no escapes; in double quotes it escapes `"` and `\`, in single quotes nothing.
///
/// # Errors
/// A quote that is never closed.
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
        Some(open) => Err(Error::invalid(format!("command line: a quote {open} is never closed"))),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

/// Reads a command line in llama.cpp's flags. `--flag=value` is as good as `--flag value`, and `--ctx_size` as
/// `--ctx-size`.
///
/// Words become JSON values of the type that the key has; whether they are in range is for `init`'s parser to say.
///
/// # Errors
/// An unknown flag (with the nearest known one), a missing or superfluous value, a number that is none.
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
            Kind::Gone(why) => return Err(Error::invalid(format!("{name}: {why}"))),
            Kind::Set(..) | Kind::Ignored { value: false } | Kind::InRequest { value: false } => match attached {
                Some(value) => return Err(Error::invalid(format!("{name}: takes no value, got {value:?}"))),
                None => "",
            },
            Kind::OptionalWord { words: known, otherwise, .. } => {
                let meaning = |word: &str| known.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning);
                match attached.or_else(|| words.next_if(|next| meaning(next).is_some())) {
                    Some(word) => meaning(word).unwrap_or(word),
                    None => otherwise,
                }
            }
            Kind::IntOrNothing { .. } => match attached.or_else(|| words.next_if(|next| next.parse::<i64>().is_ok())) {
                Some(word) => word,
                None => "",
            },
            _ => match attached.or_else(|| words.next()) {
                None => {
                    return Err(Error::invalid(format!("{name}: expected a value, got the end of the command line")));
                }
                // `-m -c 4096`: a value was forgotten.
                Some(value) if attached.is_none() && known(value).is_some() => {
                    return Err(Error::invalid(format!("{name}: expected a value, got the flag {value}")));
                }
                Some(value) => value,
            },
        };
        // The old server's `--lora-scaled FILE SCALE`: a word without a scale, and a number behind it.
        let scaled = matches!(flag.kind, Kind::ScaledAdapters(_)) && !ends_with_scale(value);
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
        let hint = suggest::did_you_mean(name, FLAGS.iter().flat_map(|flag| flag.names.iter().copied()));
        Error::invalid(format!("{}: unknown flag{hint}", shortened(name)))
    })
}

impl CommandLine {
    fn apply(&mut self, name: &str, kind: &Kind, value: &str) -> Result<()> {
        match *kind {
            Kind::Set(settings) => {
                for (key, value) in settings {
                    self.set(name, key, json!(value));
                }
            }
            Kind::Word(key) | Kind::OptionalWord { key, .. } => self.set(name, key, json!(value)),
            Kind::Int(key) => self.set(name, key, int(name, value)?),
            Kind::Number(key) => self.set(name, key, number(name, value)?),
            Kind::IntOrWord(key) => {
                self.set(name, key, int(name, value).unwrap_or_else(|_| json!(value)));
            }
            Kind::IntOrNothing { why, .. } if value.is_empty() => self.warnings.push(format!("{name}: {why}")),
            Kind::IntOrNothing { key, .. } => self.set(name, key, int(name, value).unwrap_or_else(|_| json!(value))),
            Kind::Names(key) => {
                self.set(name, key, value.split(',').map(str::trim).filter(|s| !s.is_empty()).collect())
            }
            Kind::Split(key) => {
                let shares = value.split([',', '/']).filter(|share| !share.is_empty());
                let shares = shares.map(|share| number(name, share)).collect::<Result<Vec<_>>>()?;
                self.set(name, key, Value::Array(shares));
            }
            Kind::Reciprocal(key) => {
                let factor = value.parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor > 0.0);
                let factor = factor.ok_or_else(|| bad(name, "a number above 0", value))?;
                self.set(name, key, json!(1.0 / factor));
            }
            Kind::Overrides(key) => self.append(key, csv(value).into_iter().map(Value::from)),
            Kind::Adapters(key) => {
                self.append(key, csv(value).into_iter().map(|path| json!({"path": path, "scale": 1.0})))
            }
            Kind::ScaledAdapters(key) => {
                let adapters = csv(value).into_iter().map(|item| {
                    let (path, scale) = item.rsplit_once(':').ok_or_else(|| bad(name, "FILE:SCALE", &item))?;
                    Ok(json!({"path": path, "scale": number(name, scale)?}))
                });
                self.append(key, adapters.collect::<Result<Vec<_>>>()?);
            }
            Kind::LoadMode => {
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
            Kind::Timeout => {
                self.set(name, "read_timeout", int(name, value)?);
                self.set(name, "write_timeout", int(name, value)?);
            }
            Kind::Ignored { .. } => self.warnings.push(format!("{name}: accepted and ignored")),
            Kind::InRequest { .. } => self.warnings.push(format!("{name}: ignored, each request says it")),
            Kind::Gone(_) => {}
        }
        Ok(())
    }

    /// Sets a key; `speculative.n_max` is a key of the object `speculative`. As in llama.cpp, the last one wins.
    fn set(&mut self, name: &str, key: &str, value: Value) {
        let old = match key.split_once('.') {
            None => self.object.insert(key.to_owned(), value.clone()),
            Some((outer, inner)) => match self.object.entry(outer).or_insert_with(|| Value::Object(Map::new())) {
                Value::Object(map) => map.insert(inner.to_owned(), value.clone()),
                _ => None,
            },
        };
        if old.is_some_and(|old| old != value) {
            self.warnings.push(format!("{name}: {key} was set before; the last value counts"));
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

/// The items of a list as llama.cpp separates them: by commas, except inside double quotes, where `""` is a quote.
/// (The shell's own quotes are gone by now.)
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
#[path = "args_tests.rs"]
mod tests;
