//! Methods of texts: those that chat templates use. Python's methods that pad texts, ask for classes of characters or split a text in three
//! (`zfill`, `isalpha`, `partition`, ...) are in no template that we know, and llama.cpp has none of them.

use std::rc::Rc;

use crate::arguments::{Arguments, flag, int, required, required_text};
use crate::error::{TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::meter::Meter;
use crate::print;
use crate::search::Searched;
use crate::text::TextBuilder;
use crate::value::{Items, Value, text};

/// A method of a text: gets the text, its own name and its arguments.
pub(super) type TextMethod = fn(&mut Interpreter, &Rc<Meter>, &str, &str, Arguments) -> TemplateResult<Value>;

/// The method of that name.
pub(super) fn find(name: &str) -> Option<TextMethod> {
    let found: TextMethod = match name {
        "lower" => |_, meter, string, _, _| mapped(meter, string.chars().flat_map(char::to_lowercase)),
        "upper" => |_, meter, string, _, _| mapped(meter, string.chars().flat_map(char::to_uppercase)),
        "capitalize" => |_, meter, string, _, _| {
            let mut chars = string.chars();
            let first = chars.next().into_iter().flat_map(char::to_uppercase);
            mapped(meter, first.chain(chars.flat_map(char::to_lowercase)))
        },
        "title" => |_, meter, string, _, _| {
            let (mut out, mut is_inside) = (TextBuilder::new(meter)?, false);
            for c in string.chars() {
                match is_inside {
                    true => c.to_lowercase().try_for_each(|c| out.push(c))?,
                    false => c.to_uppercase().try_for_each(|c| out.push(c))?,
                }
                is_inside = c.is_alphabetic();
            }
            Ok(out.finish())
        },
        "strip" | "lstrip" | "rstrip" => |_, meter, string, name, arguments| {
            let [chars] = arguments.bind(name, ["chars"])?;
            text(meter, stripped(meter, string, name, chars)?)
        },
        "removeprefix" | "removesuffix" => |_, meter, string, name, arguments| {
            let [affix] = arguments.bind(name, ["affix"])?;
            let affix = required_text(name, affix)?;
            let affix = affix.as_str().unwrap_or_default();
            let searched = Searched::new(meter, string)?;
            let shorter =
                if name == "removeprefix" { searched.without_prefix(affix) } else { searched.without_suffix(affix) };
            text(meter, shorter.unwrap_or(string))
        },
        "startswith" | "endswith" => |_, meter, string, name, arguments| {
            let [affix, start, end] = arguments.bind(name, ["affix", "start", "end"])?;
            let Some((part, _)) = part(string, name, start, end)? else { return Ok(Value::Bool(false)) };
            let affixes = match required(name, affix)? {
                Value::Text(affix) => vec![Value::Text(affix)],
                Value::List(list) => list.items()?.to_vec(),
                other => return refused(format!("{name}: expected a string or a tuple, got {}", other.type_name())),
            };
            let searched = Searched::new(meter, part)?;
            for affix in &affixes {
                let Some(affix) = affix.as_str() else {
                    return refused(format!("{name}: expected strings in the tuple"));
                };
                meter.read(affix.len())?;
                let rest =
                    if name == "startswith" { searched.without_prefix(affix) } else { searched.without_suffix(affix) };
                if rest.is_some() {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        },
        "split" | "rsplit" => |_, meter, string, name, arguments| {
            let [separator, count] = arguments.bind(name, ["sep", "maxsplit"])?;
            let count = int(name, count, -1)?;
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            match separator {
                None | Some(Value::None | Value::Undefined) => split_whitespace(meter, string, name == "rsplit", count),
                Some(separator) => {
                    let separator = required_text(name, Some(separator))?;
                    let separator = separator.as_str().unwrap_or_default();
                    if separator.is_empty() {
                        return refused(format!("{name}: the separator is empty"));
                    }
                    let searched = Searched::new(meter, string)?;
                    let (mut parts, mut start, mut end) = (Items::new(meter)?, 0, string.len());
                    if name == "split" {
                        for found in searched.matches(separator).take(count) {
                            parts.push(text(meter, string.get(start..found.start).unwrap_or_default())?)?;
                            start = found.end;
                        }
                    } else {
                        for found in searched.matches_from_right(separator).take(count) {
                            parts.push(text(meter, string.get(found.end..end).unwrap_or_default())?)?;
                            end = found.start;
                        }
                    }
                    parts.push(text(meter, string.get(start..end).unwrap_or_default())?)?;
                    if name == "rsplit" {
                        parts.reverse();
                    }
                    parts.into_list()
                }
            }
        },
        "splitlines" => |_, meter, string, name, arguments| {
            let [keeps_ends] = arguments.bind(name, ["keepends"])?;
            let keeps_ends = flag(keeps_ends);
            let mut lines = Items::new(meter)?;
            let mut rest = string;
            while let Some(at) = rest
                .find(['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'])
            {
                let (line, after) = rest.split_at_checked(at).unwrap_or((rest, ""));
                let end = if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(0, char::len_utf8) };
                lines.push(text(meter, if keeps_ends { rest.get(..at + end).unwrap_or(line) } else { line })?)?;
                rest = after.get(end..).unwrap_or_default();
            }
            if !rest.is_empty() {
                lines.push(text(meter, rest)?)?;
            }
            lines.into_list()
        },
        "replace" => |_, meter, string, name, arguments| {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let (old, new) = (required_text(name, old)?, required_text(name, new)?);
            replaced(
                meter,
                string,
                old.as_str().unwrap_or_default(),
                new.as_str().unwrap_or_default(),
                int(name, count, -1)?,
            )
        },
        "find" | "rfind" | "index" | "rindex" => |_, meter, string, name, arguments| {
            let [sought, start, end] = arguments.bind(name, ["sub", "start", "end"])?;
            let sought = required_text(name, sought)?;
            let sought = sought.as_str().unwrap_or_default();
            let found = match part(string, name, start, end)? {
                Some((part, offset)) => {
                    let searched = Searched::new(meter, part)?;
                    let found = match name.starts_with('r') {
                        true => searched.matches_from_right(sought).next(),
                        false => searched.matches(sought).next(),
                    };
                    found.and_then(|found| part.get(..found.start)).map(|before| offset + before.chars().count())
                }
                None => None,
            };
            match found {
                Some(at) => Ok(Value::int(at)),
                None if name.ends_with("find") => Ok(Value::Int(-1)),
                None => refused(format!("{name}: the substring was not found")),
            }
        },
        "count" => |_, meter, string, name, arguments| {
            let [sought, start, end] = arguments.bind(name, ["sub", "start", "end"])?;
            let sought = required_text(name, sought)?;
            let sought = sought.as_str().unwrap_or_default();
            let Some((part, _)) = part(string, name, start, end)? else { return Ok(Value::Int(0)) };
            let is_empty = sought.is_empty();
            let n =
                if is_empty { part.chars().count() + 1 } else { Searched::new(meter, part)?.matches(sought).count() };
            Ok(Value::int(n))
        },
        "join" => |run, meter, string, name, arguments| {
            let [items] = arguments.bind(name, ["iterable"])?;
            let mut out = TextBuilder::new(meter)?;
            for (index, item) in run.iterate(&required(name, items)?)?.iter().enumerate() {
                let Some(item) = item.as_str() else {
                    return refused(format!("join: expected strings, got {}", item.type_name()));
                };
                out.push_str(if index == 0 { "" } else { string })?;
                out.push_str(item)?;
            }
            Ok(out.finish())
        },
        "format" => |_, meter, string, _, arguments| format(meter, string, &arguments),
        _ => return None,
    };
    Some(found)
}

/// Python's `pattern.format(...)` with the fields `{}`, `{0}` and `{name}`. Templates use no others, and llama.cpp only `{}`.
fn format(meter: &Rc<Meter>, pattern: &str, arguments: &Arguments) -> TemplateResult<Value> {
    let mut out = TextBuilder::new(meter)?;
    let (mut rest, mut next) = (pattern, 0);
    while let Some(at) = rest.find(['{', '}']) {
        let (before, braces) = rest.split_at_checked(at).unwrap_or((rest, ""));
        out.push_str(before)?;
        if let Some((brace, after)) = braces.split_at_checked(2).filter(|(brace, _)| matches!(*brace, "{{" | "}}")) {
            out.push_str(brace.get(1..).unwrap_or_default())?;
            rest = after;
            continue;
        }
        let Some((field, after)) = braces.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
            return refused("format: a brace without its other one");
        };
        let position = if field.is_empty() { Some(next) } else { field.parse().ok() };
        next += usize::from(field.is_empty());
        let value = match position {
            Some(position) => arguments.positional.get(position),
            None => arguments.find_named(field)?.and_then(|at| arguments.named.get(at)).map(|(_, value)| value),
        };
        let Some(value) = value else { return refused(format!("format: there is no argument for '{{{field}}}'")) };
        print::append(&mut out, value)?;
        rest = after;
    }
    out.push_str(rest)?;
    Ok(out.finish())
}

fn mapped(meter: &Rc<Meter>, chars: impl Iterator<Item = char>) -> TemplateResult<Value> {
    let mut out = TextBuilder::new(meter)?;
    for c in chars {
        out.push(c)?;
    }
    Ok(out.finish())
}

fn stripped<'s>(meter: &Rc<Meter>, string: &'s str, name: &str, chars: Option<Value>) -> TemplateResult<&'s str> {
    let (left, right) = (name != "rstrip", name != "lstrip");
    Ok(match chars {
        None | Some(Value::None | Value::Undefined) => {
            let string = if left { string.trim_start() } else { string };
            if right { string.trim_end() } else { string }
        }
        Some(chars) => {
            let chars = required_text(name, Some(chars))?;
            let chars = chars.as_str().unwrap_or_default();
            // Each character may be compared with all of these.
            if chars.len() > 32 {
                meter.step(string.len().saturating_mul(chars.len()) / 32)?;
            }
            let is_one = |c: char| chars.contains(c);
            let string = if left { string.trim_start_matches(is_one) } else { string };
            if right { string.trim_end_matches(is_one) } else { string }
        }
    })
}

/// The part of a text from one index to another, and the index of its first character. None if there is no such part.
fn part<'s>(
    string: &'s str,
    name: &str,
    start: Option<Value>,
    end: Option<Value>,
) -> TemplateResult<Option<(&'s str, usize)>> {
    let given = |value: Option<Value>| value.filter(|value| !matches!(value, Value::None | Value::Undefined));
    let (start, end) = (given(start), given(end));
    if start.is_none() && end.is_none() {
        return Ok(Some((string, 0)));
    }
    let len = string.chars().count() as i128;
    let resolved = |value: i128| if value < 0 { value.saturating_add(len).max(0) } else { value };
    let (start, end) = (resolved(int(name, start, 0)?), resolved(int(name, end, len)?).min(len));
    if start > end {
        return Ok(None);
    }
    let offset = |index: i128| {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        string.char_indices().nth(index).map_or(string.len(), |(at, _)| at)
    };
    Ok(string.get(offset(start)..offset(end)).map(|part| (part, usize::try_from(start).unwrap_or_default())))
}

fn split_whitespace<'s>(meter: &Rc<Meter>, string: &'s str, from_right: bool, count: usize) -> TemplateResult<Value> {
    let mut parts = Items::new(meter)?;
    // The rest after the last split keeps the whitespace at its other end.
    let trimmed = |rest: &'s str| if from_right { rest.trim_end() } else { rest.trim_start() };
    let mut rest = trimmed(string);
    while !rest.is_empty() {
        let found = match parts.len() >= count {
            true => None,
            false if from_right => rest.rsplit_once(char::is_whitespace).map(|(before, word)| (word, trimmed(before))),
            false => rest.split_once(char::is_whitespace).map(|(word, after)| (word, trimmed(after))),
        };
        let (word, remaining) = found.unwrap_or((rest, ""));
        parts.push(text(meter, word)?)?;
        rest = remaining;
    }
    if from_right {
        parts.reverse();
    }
    parts.into_list()
}

fn replaced(meter: &Rc<Meter>, string: &str, old: &str, new: &str, count: i128) -> TemplateResult<Value> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut out = TextBuilder::new(meter)?;
    let mut last = 0;
    for found in Searched::new(meter, string)?.matches(old).take(count) {
        out.push_str(string.get(last..found.start).unwrap_or_default())?;
        out.push_str(new)?;
        last = found.end;
    }
    out.push_str(string.get(last..).unwrap_or_default())?;
    Ok(out.finish())
}
