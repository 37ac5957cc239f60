//! Python's formatting: the operator `%`, and `str.format`.

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
    /// `+`, a space
    sign: Option<char>,
    is_alternate: bool,
    has_commas: bool,
    width: usize,
    precision: Option<usize>,
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
        while let Some(flag) = chars.next_if(|c| "-+ #0".contains(*c)) {
            match flag {
                '-' => style.align = Some('<'),
                '#' => style.is_alternate = true,
                '0' if style.align.is_none() => (style.fill, style.align) = (Some('0'), Some('=')),
                '0' => {}
                sign => style.sign = Some(sign).filter(|sign| *sign == '+' || style.sign.is_none()).or(style.sign),
            }
        }
        let mut star = |chars: &mut std::iter::Peekable<std::str::Chars>| -> TemplateResult<Option<usize>> {
            if chars.next_if_eq(&'*').is_none() {
                return Ok(digits(chars));
            }
            let number = next()?.as_int().map_or_else(|| refused("%: expected an integer for *"), Ok)?;
            Ok(Some(usize::try_from(number.max(0)).unwrap_or(usize::MAX)))
        };
        style.width = star(&mut chars)?.unwrap_or_default();
        if chars.next_if_eq(&'.').is_some() {
            style.precision = Some(precise(star(&mut chars)?.unwrap_or_default())?);
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let Some(kind) = chars.next() else { return refused("%: the format is incomplete") };
        let value = named.map_or_else(&mut next, Ok)?;
        let is_text = matches!(kind, 's' | 'r' | 'a' | 'c');
        if is_text && style.align == Some('=') {
            (style.fill, style.align) = (None, None);
        }
        style.align = style.align.or(Some('>'));
        match kind {
            's' => write_text(&mut out, &print::to_text(meter, &value)?, &style)?,
            'r' | 'a' => {
                let mut printed = TextBuilder::new(meter)?;
                print::repr(&mut printed, &value, 0)?;
                write_text(&mut out, &printed.finish(), &style)?;
            }
            'c' => {
                let c = value.as_int().and_then(|code| u32::try_from(code).ok()).and_then(char::from_u32);
                let printed = match c {
                    Some(c) => text(meter, c.encode_utf8(&mut [0; 4]))?,
                    None => value,
                };
                write_text(&mut out, &printed, &style)?;
            }
            'd' | 'i' | 'u' => {
                let Some(number) = value.as_float() else {
                    return refused(format!("%: expected a number for %{kind}, got {}", value.type_name()));
                };
                style.kind = Some('d');
                let number = value.as_int().unwrap_or(number.trunc() as i128);
                write_number(&mut out, &Value::Int(number), &style)?;
            }
            'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                style.kind = Some(kind);
                write_number(&mut out, &value, &style)?;
            }
            other => return refused(format!("%: the format %{other} is unknown")),
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
                let (place, conversion) = place.split_once('!').unwrap_or((place, ""));
                let mut value = field_value(interpreter, place, arguments, &mut next)?;
                if conversion == "r" {
                    let mut printed = TextBuilder::new(&meter)?;
                    print::repr(&mut printed, &value, 0)?;
                    value = printed.finish();
                } else if conversion == "s" {
                    value = print::to_text(&meter, &value)?;
                }
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
    style.sign = chars.next_if(|c| "+- ".contains(*c)).filter(|sign| *sign != '-');
    style.is_alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && style.align.is_none() {
        (style.fill, style.align) = (Some('0'), Some('='));
    }
    style.width = digits(&mut chars).unwrap_or_default();
    style.has_commas = chars.next_if_eq(&',').is_some();
    if chars.next_if_eq(&'.').is_some() {
        style.precision = Some(precise(digits(&mut chars).unwrap_or_default())?);
    }
    style.kind = chars.next();
    if chars.next().is_some() {
        return refused(format!("format: invalid format '{spec}'"));
    }
    match (value, style.kind) {
        (
            Value::Int(_) | Value::Float(_) | Value::Bool(_),
            Some('d' | 'x' | 'X' | 'o' | 'b' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%' | 'n'),
        ) => {
            style.align = style.align.or(Some('>'));
            write_number(out, value, &style)
        }
        (Value::Int(_) | Value::Float(_), None) => {
            style.align = style.align.or(Some('>'));
            style.kind = match (value, style.precision) {
                (Value::Float(_), Some(_)) => Some('g'),
                _ => None,
            };
            write_number(out, value, &style)
        }
        (_, None | Some('s')) => {
            let meter = Rc::clone(out.meter());
            write_text(out, &print::to_text(&meter, value)?, &style)
        }
        (_, Some(kind)) => refused(format!("format: unknown format '{kind}' for {}", value.type_name())),
    }
}

/// Appends a text, cut to the precision, and padded to the width.
fn write_text(out: &mut TextBuilder, value: &Value, style: &Style) -> TemplateResult<()> {
    let string = value.as_str().unwrap_or_default();
    out.meter().read(string.len())?;
    let end =
        style.precision.and_then(|precision| string.char_indices().nth(precision)).map_or(string.len(), |it| it.0);
    let cut = string.get(..end).unwrap_or_default();
    padded(out, "", cut, style, '<')
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

fn write_number(out: &mut TextBuilder, value: &Value, style: &Style) -> TemplateResult<()> {
    let Some(float) = value.as_float() else {
        return refused(format!("format: expected a number, got {}", value.type_name()));
    };
    let kind = style.kind.unwrap_or(if value.as_int().is_some() { 'd' } else { 'r' });
    let precision = style.precision.unwrap_or(6);
    let is_negative = value.as_int().map_or(float.is_sign_negative() && !float.is_nan(), |number| number < 0);
    let magnitude = value.as_int().map(i128::unsigned_abs);
    let whole = || magnitude.map_or_else(|| refused(format!("format: expected an integer for '{kind}'")), Ok);
    let prefix = |prefix: &str| if style.is_alternate { prefix.to_owned() } else { String::new() };
    let mut body = match kind {
        'd' | 'n' => whole()?.to_string(),
        'x' => prefix("0x") + &format!("{:x}", whole()?),
        'X' => prefix("0X") + &format!("{:X}", whole()?),
        'o' => prefix("0o") + &format!("{:o}", whole()?),
        'b' => prefix("0b") + &format!("{:b}", whole()?),
        'f' | 'F' => format!("{:.precision$}", float.abs()),
        '%' => format!("{:.precision$}%", float.abs() * 100.0),
        'e' | 'E' => exponential(float.abs(), precision, kind),
        'g' | 'G' => general(float.abs(), precision.max(1), kind),
        _ => print::float(float.abs()),
    };
    if style.has_commas {
        body = with_commas(&body);
    }
    let sign = if is_negative { "-" } else { style.sign.map_or("", |sign| if sign == '+' { "+" } else { " " }) };
    padded(out, sign, &body, style, '>')
}

fn exponential(number: f64, precision: usize, kind: char) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent = exponent.parse::<i32>().unwrap_or_default();
    let letter = if kind.is_uppercase() { 'E' } else { 'e' };
    format!("{digits}{letter}{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// C's `%g`: the shorter of both notations, without zeros at the end.
fn general(number: f64, precision: usize, kind: char) -> String {
    let text = format!("{number:.*e}", precision - 1);
    let exponent = text.split_once('e').and_then(|(_, exponent)| exponent.parse::<i64>().ok()).unwrap_or_default();
    let trimmed = |text: &str| {
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
    };
    if number == 0.0 || !number.is_finite() {
        return format!("{number}");
    }
    if exponent < -4 || exponent >= precision as i64 {
        let text = exponential(number, precision - 1, kind);
        let at = text.find(['e', 'E']).unwrap_or(text.len());
        let (digits, power) = text.split_at_checked(at).unwrap_or((&text, ""));
        return trimmed(digits) + power;
    }
    let digits = usize::try_from(precision as i64 - 1 - exponent).unwrap_or_default();
    trimmed(&format!("{number:.digits$}"))
}

fn with_commas(body: &str) -> String {
    let end = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
    let (whole, rest) = body.split_at_checked(end).unwrap_or((body, ""));
    let mut grouped = String::new();
    for (index, c) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(c);
    }
    grouped + rest
}
