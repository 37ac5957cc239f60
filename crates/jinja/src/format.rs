//! Python's formatting: the operator `%`, and `str.format`, with the kinds `s`, `d` and `f`. Templates use no others, and llama.cpp only `{}`.

use std::rc::Rc;

use crate::arguments::Arguments;
use crate::error::{TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::meter::Meter;
use crate::print;
use crate::text::TextBuilder;
use crate::value::{ListKind, Value, text};

/// The maximum number of digits after the point.
const MAX_PRECISION: usize = 1000;

/// How a value is printed.
#[derive(Default)]
struct Style {
    fill: Option<char>,
    /// `<`, `>`, `^`, `=`
    align: Option<char>,
    is_signed: bool,
    width: usize,
    precision: Option<usize>,
    /// `s`, `d`, `f`
    kind: Option<char>,
}

/// Reads a number. Large ones are as good as any that is too large.
fn digits(chars: &mut std::iter::Peekable<std::str::Chars>) -> Option<usize> {
    let mut number = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        number = Some(number.unwrap_or(0_usize).saturating_mul(10).saturating_add(digit as usize));
        chars.next();
    }
    number
}

fn precise(precision: usize) -> TemplateResult<usize> {
    if precision > MAX_PRECISION {
        refused(format!("format: the precision exceeds {MAX_PRECISION}"))
    } else {
        Ok(precision)
    }
}

/// `pattern % arguments`
pub(crate) fn percent(meter: &Rc<Meter>, pattern: &str, arguments: &Value) -> TemplateResult<Value> {
    let positional = match arguments {
        Value::List(list) if list.kind() != ListKind::List => list.items()?.to_vec(),
        other => vec![other.clone()],
    };
    let (mut positional, mut used) = (positional.into_iter(), 0);
    let mut next = || {
        used += 1;
        positional.next().map_or_else(|| refused("%: not enough arguments for the format string"), Ok)
    };
    let mut out = TextBuilder::new(meter)?;
    let mut chars = pattern.chars().peekable();
    let mut is_mapped = false;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c)?;
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            out.push('%')?;
            continue;
        }
        let mut named = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|c| *c != ')').collect();
            let Value::Dict(dict) = arguments else { return refused("%: the format requires a dictionary") };
            is_mapped = true;
            named = Some(dict.get(&name)?.map_or_else(|| refused(format!("%: there is no key '{name}'")), Ok)?);
        }
        let mut style = Style::default();
        while let Some(flag) = chars.next_if(|c| "-+0".contains(*c)) {
            match flag {
                '-' => style.align = Some('<'),
                '+' => style.is_signed = true,
                _ => (style.fill, style.align) = (Some('0'), style.align.or(Some('='))),
            }
        }
        style.width = digits(&mut chars).unwrap_or_default();
        if chars.next_if_eq(&'.').is_some() {
            style.precision = Some(precise(digits(&mut chars).unwrap_or_default())?);
        }
        let Some(kind) = chars.next() else { return refused("%: the format is incomplete") };
        let value = named.map_or_else(&mut next, Ok)?;
        style.kind = Some(if kind == 'i' { 'd' } else { kind });
        if kind == 's' || style.align == Some('<') {
            style.fill = None;
        }
        style.align = if kind == 's' && style.align != Some('<') { Some('>') } else { style.align };
        match (kind, value.as_float().filter(|_| value.as_int().is_none())) {
            ('d' | 'i', Some(number)) => write(&mut out, &Value::Int(number.trunc() as i128), &style)?,
            _ => write(&mut out, &value, &style)?,
        }
    }
    let is_collection = matches!(arguments, Value::Dict(_) | Value::List(_)) && used == 0;
    if !is_mapped && !is_collection && positional.next().is_some() {
        return refused("%: not all arguments were converted");
    }
    Ok(out.finish())
}

/// `pattern.format(...)`
pub(crate) fn braces(interpreter: &mut Interpreter, pattern: &str, arguments: &Arguments) -> TemplateResult<Value> {
    let meter = Rc::clone(&interpreter.meter);
    let mut out = TextBuilder::new(&meter)?;
    let (mut chars, mut next) = (pattern.chars().peekable(), 0);
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.next_if_eq(&'{').is_some() => out.push('{')?,
            '}' if chars.next_if_eq(&'}').is_some() => out.push('}')?,
            '{' => {
                let (mut field, mut depth) = (String::new(), 1);
                for c in chars.by_ref() {
                    depth += match c {
                        '{' => 1,
                        '}' => -1,
                        _ => 0,
                    };
                    if depth == 0 {
                        break;
                    }
                    field.push(c);
                }
                if depth > 0 || field.contains('{') {
                    return refused("format: expected '}'");
                }
                let (place, spec) = field.split_once(':').unwrap_or((&field, ""));
                let value = field_value(interpreter, place, arguments, &mut next)?;
                write_spec(&mut out, &value, spec)?;
            }
            '}' => return refused("format: unexpected '}'"),
            c => out.push(c)?,
        }
    }
    Ok(out.finish())
}

/// The value that a field names: `0`, `name`, `name.attribute`, `name[item]`.
fn field_value(
    interpreter: &mut Interpreter,
    place: &str,
    arguments: &Arguments,
    next: &mut usize,
) -> TemplateResult<Value> {
    let end = place.find(['.', '[']).unwrap_or(place.len());
    let (first, mut rest) = place.split_at_checked(end).unwrap_or((place, ""));
    let found = if first.is_empty() {
        *next += 1;
        arguments.positional.get(*next - 1).cloned()
    } else if let Ok(index) = first.parse::<usize>() {
        arguments.positional.get(index).cloned()
    } else {
        arguments.find_named(first)?.and_then(|at| arguments.named.get(at)).map(|(_, value)| value.clone())
    };
    let mut value = found.map_or_else(|| refused(format!("format: there is no argument for '{{{place}}}'")), Ok)?;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, remaining) = after.split_at_checked(end).unwrap_or((after, ""));
            value = interpreter.attribute(&value, name)?;
            rest = remaining;
        } else {
            let Some((key, remaining)) = rest.get(1..).and_then(|rest| rest.split_once(']')) else {
                return refused("format: expected ']'");
            };
            let key = match key.parse::<i128>() {
                Ok(index) => Value::Int(index),
                Err(_) => text(&interpreter.meter, key)?,
            };
            value = interpreter.item(&value, &key)?;
            rest = remaining;
        }
    }
    Ok(value)
}

/// Appends a value as Python's `format(value, spec)`.
fn write_spec(out: &mut TextBuilder, value: &Value, spec: &str) -> TemplateResult<()> {
    if spec.is_empty() {
        return print::append(out, value);
    }
    let mut style = Style::default();
    let mut chars = spec.chars().peekable();
    let is_align = |c: &char| "<>^=".contains(*c);
    let mut ahead = spec.chars();
    match (ahead.next(), ahead.next()) {
        (Some(fill), Some(align)) if is_align(&align) => {
            (style.fill, style.align) = (Some(fill), Some(align));
            chars.nth(1);
        }
        _ => style.align = chars.next_if(is_align),
    }
    style.is_signed = chars.next_if_eq(&'+').is_some();
    if chars.next_if_eq(&'0').is_some() && style.align.is_none() {
        (style.fill, style.align) = (Some('0'), Some('='));
    }
    style.width = digits(&mut chars).unwrap_or_default();
    if chars.next_if_eq(&'.').is_some() {
        style.precision = Some(precise(digits(&mut chars).unwrap_or_default())?);
    }
    style.kind = chars.next();
    if chars.next().is_some() {
        return refused(format!("format: invalid format '{spec}'"));
    }
    write(out, value, &style)
}

/// Appends a value, padded to the width. A text is cut to the precision.
fn write(out: &mut TextBuilder, value: &Value, style: &Style) -> TemplateResult<()> {
    let (whole, float) = (value.as_int(), value.as_float());
    let body = match (style.kind, whole, float) {
        (Some('d') | None, Some(whole), _) => whole.unsigned_abs().to_string(),
        (Some('f'), _, Some(float)) => format!("{:.*}", style.precision.unwrap_or(6), float.abs()),
        (None, None, Some(float)) if style.precision.is_none() => print::float(float.abs()),
        (Some('s'), ..) | (None, None, None) => {
            let printed = print::to_text(&Rc::clone(out.meter()), value)?;
            let string = printed.as_str().unwrap_or_default();
            out.meter().read(string.len())?;
            let end = style.precision.and_then(|precision| string.char_indices().nth(precision));
            let cut = string.get(..end.map_or(string.len(), |(at, _)| at)).unwrap_or_default();
            return padded(out, "", cut, style, '<');
        }
        (Some(kind @ ('d' | 'f')), ..) => {
            return refused(format!("format: expected a number for {kind}, got {}", value.type_name()));
        }
        (kind, ..) => return refused(format!("format: expected s, d or f, got '{}'", kind.unwrap_or('.'))),
    };
    let is_negative = whole.map_or(float.is_some_and(|it| it.is_sign_negative() && !it.is_nan()), |whole| whole < 0);
    padded(
        out,
        if is_negative {
            "-"
        } else if style.is_signed {
            "+"
        } else {
            ""
        },
        &body,
        style,
        '>',
    )
}

/// Appends `sign` and `body`, padded to the width.
fn padded(out: &mut TextBuilder, sign: &str, body: &str, style: &Style, default: char) -> TemplateResult<()> {
    let len = sign.chars().count() + body.chars().count();
    let (fill, missing) = (style.fill.unwrap_or(' '), style.width.saturating_sub(len));
    let (before, between, after) = match style.align.unwrap_or(default) {
        '<' => (0, 0, missing),
        '^' => (missing / 2, 0, missing - missing / 2),
        '=' => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    out.pad(fill, before, 0)?;
    out.push_str(sign)?;
    out.pad(fill, between, 0)?;
    out.push_str(body)?;
    out.pad(fill, after, 0)
}
