//! Filters of texts.

use std::rc::Rc;

use crate::arguments::{Arguments, flag, required, required_text, size};
use crate::error::TemplateResult;
use crate::format;
use crate::interpreter::Interpreter;
use crate::methods;
use crate::print;
use crate::text::TextBuilder;
use crate::value::{Items, Value, text, tuple};

/// Applies a filter. Values that are not texts are printed first, as in Jinja2.
pub(super) fn call(run: &mut Interpreter, name: &str, value: Value, arguments: Arguments) -> TemplateResult<Value> {
    let value = print::to_text(&run.meter, &value)?;
    let string = value.as_str().unwrap_or_default();
    let meter = Rc::clone(&run.meter);
    let meter = &meter;
    match name {
        "lower" | "upper" | "capitalize" => methods::call(run, &value, name, arguments),
        "trim" => {
            let [chars] = arguments.bind(name, ["chars"])?;
            let chars = chars.filter(|chars| !chars.is_undefined());
            methods::call(run, &value, "strip", Arguments::of(meter, chars)?)
        }
        "split" => methods::call(run, &value, name, arguments),
        "lines" => methods::call(run, &value, "splitlines", arguments),
        "title" => {
            let mut out = TextBuilder::new(meter)?;
            let mut begins = true;
            for c in string.chars() {
                if begins {
                    c.to_uppercase().try_for_each(|c| out.push(c))?;
                } else {
                    c.to_lowercase().try_for_each(|c| out.push(c))?;
                }
                begins = c.is_whitespace() || "-({[<".contains(c);
            }
            Ok(out.finish())
        }
        "center" => {
            let [width] = arguments.bind(name, ["width"])?;
            let width = size(name, width, 80)?;
            let missing = width.saturating_sub(string.chars().count());
            // As in CPython, an odd one goes to the left if the width is odd.
            let before = missing / 2 + (missing & width & 1);
            let mut out = TextBuilder::new(meter)?;
            out.pad(' ', before, 0)?;
            out.push_str(string)?;
            out.pad(' ', missing - before, 0)?;
            Ok(out.finish())
        }
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let mut parts = Arguments::new(meter)?;
            for part in [old, new] {
                parts.push(print::to_text(meter, &required(name, part)?)?)?;
            }
            if let Some(count) = count.filter(|count| !matches!(count, Value::None | Value::Undefined)) {
                parts.push(count)?;
            }
            methods::call(run, &value, name, parts)
        }
        "format" => {
            let arguments = if arguments.named.is_empty() {
                tuple(meter, arguments.positional.into())?
            } else {
                let pairs = crate::value::dict(meter, false)?;
                arguments.named.into_iter().try_for_each(|(name, value)| pairs.set(&name, value))?;
                Value::Dict(pairs)
            };
            format::percent(meter, string, &arguments)
        }
        "e" | "escape" | "forceescape" => {
            let mut out = TextBuilder::new(meter)?;
            for c in string.chars() {
                match c {
                    '&' => out.push_str("&amp;")?,
                    '<' => out.push_str("&lt;")?,
                    '>' => out.push_str("&gt;")?,
                    '\'' => out.push_str("&#39;")?,
                    '"' => out.push_str("&#34;")?,
                    c => out.push(c)?,
                }
            }
            Ok(out.finish())
        }
        "striptags" => {
            let mut out = TextBuilder::new(meter)?;
            let mut rest = string;
            while let Some((before, after)) = rest.split_once('<') {
                let Some((_, behind)) = after.split_once('>') else { break };
                out.push_str(before)?;
                rest = behind;
            }
            out.push_str(rest)?;
            words(run, &out.finish(), " ")
        }
        "wordcount" => {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            Ok(Value::int(string.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count()))
        }
        "indent" => indent(run, string, arguments),
        "truncate" => truncate(run, &value, arguments),
        "wordwrap" => wordwrap(run, string, arguments),
        _ => {
            let mut out = TextBuilder::new(meter)?;
            for byte in string.bytes() {
                match byte {
                    b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => {
                        out.push(char::from(byte))?;
                    }
                    byte => out.push_str(&format!("%{byte:02X}"))?,
                }
            }
            Ok(out.finish())
        }
    }
}

/// The words of a text with this between them.
fn words(run: &mut Interpreter, value: &Value, between: &str) -> TemplateResult<Value> {
    let mut out = TextBuilder::new(&run.meter)?;
    for (index, word) in value.as_str().unwrap_or_default().split_whitespace().enumerate() {
        out.push_str(if index == 0 { "" } else { between })?;
        out.push_str(word)?;
    }
    Ok(out.finish())
}

fn indent(run: &mut Interpreter, string: &str, arguments: Arguments) -> TemplateResult<Value> {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"])?;
    let (first, blank) = (flag(first), flag(blank));
    let mut indentation = TextBuilder::new(&run.meter)?;
    match width {
        Some(Value::Text(text)) => indentation.push_str(&text)?,
        other => indentation.repeat(" ", size("indent", other, 4)?)?,
    }
    let mut out = TextBuilder::new(&run.meter)?;
    for (index, line) in string.split('\n').enumerate() {
        out.push_str(if index == 0 { "" } else { "\n" })?;
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            out.push_str(&indentation)?;
        }
        out.push_str(line)?;
    }
    Ok(out.finish())
}

fn truncate(run: &mut Interpreter, value: &Value, arguments: Arguments) -> TemplateResult<Value> {
    let [length, kills_words, end, leeway] = arguments.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let (length, leeway) = (size("truncate", length, 255)?, size("truncate", leeway, 5)?);
    let end = match end {
        Some(end) => required_text("truncate", Some(end))?,
        None => text(&run.meter, "...")?,
    };
    let (string, end) = (value.as_str().unwrap_or_default(), end.as_str().unwrap_or_default().to_owned());
    if string.chars().count() <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let kept = length.saturating_sub(end.chars().count());
    let at = string.char_indices().nth(kept).map_or(string.len(), |(at, _)| at);
    let mut cut = string.get(..at).unwrap_or_default();
    if !flag(kills_words) {
        cut = cut.rsplit_once(' ').map_or(cut, |(before, _)| before);
    }
    let mut out = TextBuilder::new(&run.meter)?;
    out.push_str(cut)?;
    out.push_str(&end)?;
    Ok(out.finish())
}

fn wordwrap(run: &mut Interpreter, string: &str, arguments: Arguments) -> TemplateResult<Value> {
    let [width, breaks, between, _] =
        arguments.bind("wordwrap", ["width", "break_long_words", "wrapstring", "break_on_hyphens"])?;
    let width = size("wordwrap", width, 79)?.max(1);
    let breaks = breaks.is_none_or(|breaks| breaks.is_true());
    let between = match between {
        Some(Value::Text(between)) => between.to_string(),
        _ => "\n".to_owned(),
    };
    let mut lines = Items::new(&run.meter)?;
    for paragraph in string.split('\n') {
        let (mut line, mut len) = (TextBuilder::new(&run.meter)?, 0);
        for word in paragraph.split_whitespace() {
            let mut word = word;
            loop {
                let count = word.chars().count();
                let space = usize::from(len > 0);
                if len + space + count <= width || len == 0 && (count <= width || !breaks) {
                    line.push_str(if len > 0 { " " } else { "" })?;
                    line.push_str(word)?;
                    len += space + count;
                    break;
                }
                if count > width && breaks {
                    let room = width.saturating_sub(len + space);
                    let at = word.char_indices().nth(room).map_or(word.len(), |(at, _)| at);
                    let (head, tail) = word.split_at_checked(at).unwrap_or((word, ""));
                    run.meter.read(word.len())?;
                    if !head.is_empty() {
                        line.push_str(if len > 0 { " " } else { "" })?;
                        line.push_str(head)?;
                    }
                    word = tail;
                }
                let full = std::mem::replace(&mut line, TextBuilder::new(&run.meter)?);
                lines.push(full.finish())?;
                len = 0;
            }
        }
        lines.push(line.finish())?;
    }
    let mut out = TextBuilder::new(&run.meter)?;
    for (index, line) in lines.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { &between })?;
        out.push_str(line.as_str().unwrap_or_default())?;
    }
    Ok(out.finish())
}
