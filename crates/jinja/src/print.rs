//! Text of values: as Python's `str` and `repr`, and as JSON.

use crate::compare::{self, MAX_DEPTH, too_deep};
use crate::error::{TemplateResult, refused};
use crate::meter::Meter;
use crate::text::TextBuilder;
use crate::value::{ListKind, Value};
use std::rc::Rc;

/// Appends Python's `str(value)`.
pub(crate) fn append(out: &mut TextBuilder, value: &Value) -> TemplateResult<()> {
    match value {
        Value::Text(text) => out.push_str(text),
        Value::Undefined => Ok(()),
        other => repr(out, other, 0),
    }
}

/// Python's `str(value)` as a value.
pub(crate) fn to_text(meter: &Rc<Meter>, value: &Value) -> TemplateResult<Value> {
    if let Value::Text(_) = value {
        return Ok(value.clone());
    }
    let mut out = TextBuilder::new(meter)?;
    append(&mut out, value)?;
    Ok(out.finish())
}

/// Appends Python's `repr(value)`.
pub(crate) fn repr(out: &mut TextBuilder, value: &Value, depth: usize) -> TemplateResult<()> {
    if depth > MAX_DEPTH {
        return too_deep();
    }
    match value {
        Value::Undefined => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(number) => out.push_str(&number.to_string()),
        Value::Float(number) => out.push_str(&float(*number)),
        Value::Text(text) => repr_text(out, text),
        Value::List(list) => {
            let (open, close) = if list.kind() == ListKind::List { ("[", "]") } else { ("(", ")") };
            out.push_str(open)?;
            for index in 0..list.len() {
                out.push_str(if index == 0 { "" } else { ", " })?;
                repr(out, &list.at(index).unwrap_or_default(), depth + 1)?;
            }
            out.push_str(if list.len() == 1 && close == ")" { "," } else { "" })?;
            out.push_str(close)
        }
        Value::Dict(dict) => {
            out.push_str(if dict.is_namespace() { "<Namespace {" } else { "{" })?;
            for (index, (key, value)) in dict.items()?.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " })?;
                repr(out, key, depth + 1)?;
                out.push_str(": ")?;
                repr(out, value, depth + 1)?;
            }
            out.push_str(if dict.is_namespace() { "}>" } else { "}" })
        }
        Value::Callable(_) => out.push_str("<function>"),
        Value::Loop(state) => out.push_str(&format!("<LoopContext {}/{}>", state.index.get() + 1, state.items.len())),
    }
}

fn repr_text(out: &mut TextBuilder, text: &str) -> TemplateResult<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    quoted(out, text, quote, |c| {
        Some(match c {
            ' '..='~' if c != quote && c != '\\' => return None,
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            c if c == quote => format!("\\{c}"),
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) || c == '\u{ad}' => {
                format!("\\x{:02x}", u32::from(c))
            }
            c if is_printable(c) => return None,
            c if u32::from(c) > 0xffff => format!("\\U{:08x}", u32::from(c)),
            c => format!("\\u{:04x}", u32::from(c)),
        })
    })
}

/// Whether Python prints the character as it is. Unassigned characters, which Python escapes, are not known here, except for
/// noncharacters and private ones.
pub(crate) fn is_printable(c: char) -> bool {
    let code = u32::from(c);
    let is_separator = c != ' ' && c.is_whitespace();
    let is_format = matches!(code, 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff | 0xe000..=0xf8ff
        | 0xfdd0..=0xfdef | 0xe0000..=0xe00ff | 0xf0000..)
        || code & 0xfffe == 0xfffe;
    !(c.is_control() || is_separator || is_format)
}

/// A float as Python prints it: it differs from an integer, and has an exponent from 10^16 on and below 10^-4.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == 0.0 {
        return format!("{number:.1}");
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent @ (16.. | ..-4)) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

/// The format of JSON text. The default is that of Python's `json.dumps` without `ensure_ascii`, as transformers calls it.
pub(crate) struct JsonStyle {
    pub(crate) indent: Option<String>,
    pub(crate) ensure_ascii: bool,
    pub(crate) sort_keys: bool,
    pub(crate) item: String,
    pub(crate) key: String,
}

impl Default for JsonStyle {
    fn default() -> Self {
        JsonStyle { indent: None, ensure_ascii: false, sort_keys: false, item: ", ".to_owned(), key: ": ".to_owned() }
    }
}

/// Appends JSON text.
pub(crate) fn json(out: &mut TextBuilder, value: &Value, style: &JsonStyle, depth: usize) -> TemplateResult<()> {
    if depth > MAX_DEPTH {
        return too_deep();
    }
    let line = |out: &mut TextBuilder, depth: usize| match &style.indent {
        Some(indent) => {
            out.push('\n')?;
            out.repeat(indent, depth)
        }
        None => Ok(()),
    };
    match value {
        Value::Undefined | Value::None => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Float(number) if number.is_nan() => out.push_str("NaN"),
        Value::Float(number) if number.is_infinite() => {
            out.push_str(if *number > 0.0 { "Infinity" } else { "-Infinity" })
        }
        Value::Int(_) | Value::Float(_) => repr(out, value, 0),
        Value::Text(text) => json_text(out, text, style.ensure_ascii),
        Value::Dict(dict) if !dict.is_namespace() => {
            let mut pairs = dict.items()?;
            if style.sort_keys {
                let meter = Rc::clone(out.meter());
                compare::sort(&meter, &mut pairs, false)?;
            }
            let is_empty = pairs.is_empty();
            out.push('{')?;
            for (index, (key, value)) in pairs.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { &style.item })?;
                line(out, depth + 1)?;
                match &key {
                    Value::Text(text) => json_text(out, text, style.ensure_ascii)?,
                    Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                        out.push('"')?;
                        json(out, key, style, depth + 1)?;
                        out.push('"')?;
                    }
                    other => return refused(format!("tojson: {} cannot be a key", other.type_name())),
                }
                out.push_str(&style.key)?;
                json(out, value, style, depth + 1)?;
            }
            if !is_empty {
                line(out, depth)?;
            }
            out.push('}')
        }
        Value::List(list) => {
            out.push('[')?;
            for index in 0..list.len() {
                out.push_str(if index == 0 { "" } else { &style.item })?;
                line(out, depth + 1)?;
                json(out, &list.at(index).unwrap_or_default(), style, depth + 1)?;
            }
            if list.len() > 0 {
                line(out, depth)?;
            }
            out.push(']')
        }
        other => refused(format!("tojson: {} has no JSON form", other.type_name())),
    }
}

fn json_text(out: &mut TextBuilder, text: &str, ensure_ascii: bool) -> TemplateResult<()> {
    quoted(out, text, '"', |c| {
        Some(match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            c if c < ' ' => format!("\\u{:04x}", u32::from(c)),
            c if ensure_ascii && !(' '..='~').contains(&c) => {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            }
            _ => return None,
        })
    })
}

/// Prints a text between quotes, with what its characters are escaped as.
fn quoted(
    out: &mut TextBuilder,
    text: &str,
    quote: char,
    escape: impl Fn(char) -> Option<String>,
) -> TemplateResult<()> {
    out.push(quote)?;
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let Some(escaped) = escape(c) else { continue };
        out.push_str(text.get(plain..at).unwrap_or_default())?;
        out.push_str(&escaped)?;
        plain = at + c.len_utf8();
    }
    out.push_str(text.get(plain..).unwrap_or_default())?;
    out.push(quote)
}
