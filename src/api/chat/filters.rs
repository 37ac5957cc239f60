//! The extensions of Jinja that transformers provides to chat templates: Python's methods, `tojson`, `strftime_now`.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;
use serde_json::Value as Json;

/// The maximum output of one rendering, in bytes.
pub const MAX_OUTPUT: usize = 64 << 20;
/// The maximum nesting of containers in `tojson`.
const MAX_JSON_DEPTH: usize = 128;

/// Converts JSON to a template's value. Objects keep the order of their keys.
pub fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (_, Some(number)) => Value::from(number),
            _ => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(name, item)| (name.as_str(), value(item)))),
    }
}

/// JSON text as Python's `json.dumps` writes it.
///
/// # Errors
/// More than 128 levels of nesting.
pub fn json_text(json: &Json) -> Result<String, Error> {
    let mut text = String::new();
    write_json(&mut text, &value(json), &JsonStyle::default(), 0)?;
    Ok(text)
}

/// Python's methods of strings, dictionaries and lists.
pub fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name, args) {
        (Some(text), "removeprefix" | "removesuffix", [affix]) => {
            let affix = affix.as_str().unwrap_or_default();
            let shorter = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            Ok(Value::from(shorter.unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// The format of JSON text. The default is that of Python's `json.dumps`.
struct JsonStyle {
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    item: String,
    key: String,
}

impl Default for JsonStyle {
    fn default() -> Self {
        JsonStyle { indent: None, ensure_ascii: false, sort_keys: false, item: ", ".to_owned(), key: ": ".to_owned() }
    }
}

/// The filter `tojson`. In transformers it is Python's `json.dumps`, without escapes for HTML.
pub fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let flag = |name| kwargs.get::<Option<Value>>(name).map(|flag| flag.is_some_and(|flag| flag.is_true()));
    let mut style =
        JsonStyle { ensure_ascii: flag("ensure_ascii")?, sort_keys: flag("sort_keys")?, ..JsonStyle::default() };
    // Some templates pass the indentation as a positional argument, as in Jinja2's own filter.
    let indent = kwargs.get::<Option<Value>>("indent")?.or_else(|| args.first().cloned());
    style.indent = indent.filter(Value::is_integer).and_then(|indent| indent.as_usize()).map(|indent| indent.min(64));
    if style.indent.is_some() {
        style.item = ",".to_owned();
    }
    if let Some(separators) = kwargs.get::<Option<Vec<String>>>("separators")?
        && let [item, key] = separators.as_slice()
    {
        (style.item, style.key) = (item.clone(), key.clone());
    }
    kwargs.assert_all_used()?;
    let mut text = String::new();
    write_json(&mut text, value, &style, 0)?;
    Ok(text)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), Error> {
    let fail = |what: String| Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}")));
    if depth > MAX_JSON_DEPTH || out.len() > MAX_OUTPUT {
        return fail(format!("the value exceeds {MAX_JSON_DEPTH} levels or {MAX_OUTPUT} bytes"));
    }
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent {
            let _ = write!(out, "\n{:width$}", "", width = indent * depth);
        }
    };
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => write_json_text(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Map => {
            let mut keys = value.try_iter()?.collect::<Vec<_>>();
            if style.sort_keys {
                keys.sort();
            }
            out.push('{');
            for (i, key) in keys.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { &style.item });
                line(out, depth + 1);
                match key.as_str() {
                    Some(text) => write_json_text(out, text, style.ensure_ascii),
                    None => write_json_text(out, &key.to_string(), style.ensure_ascii),
                }
                out.push_str(&style.key);
                write_json(out, &value.get_item(key)?, style, depth + 1)?;
            }
            if !keys.is_empty() {
                line(out, depth);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter()? {
                out.push_str(if empty { "" } else { &style.item });
                empty = false;
                line(out, depth + 1);
                write_json(out, &item, style, depth + 1)?;
            }
            if !empty {
                line(out, depth);
            }
            out.push(']');
        }
        other => return fail(format!("{other} has no JSON form")),
    }
    Ok(())
}

/// A number as Python prints it: a float differs from an integer, and has an exponent from 10^16 on and below 10^-4.
fn number(value: &Value) -> String {
    let Ok(float) = f64::try_from(value.clone()) else { return value.to_string() };
    if value.is_integer() || !float.is_finite() || float == 0.0 {
        return value.to_string();
    }
    let text = format!("{float:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent @ (16.. | ..-4)) => {
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => value.to_string(),
    }
}

/// The filter `string`.
pub fn string(value: &Value) -> Value {
    match value.kind() {
        ValueKind::String => value.clone(),
        ValueKind::Number => Value::from(number(value)),
        _ => Value::from(value.to_string()),
    }
}

/// The filter `length`. As in Jinja2, the length of an undefined value is 0.
pub fn length(value: &Value) -> Result<usize, Error> {
    let len = if value.is_undefined() { Some(0) } else { value.len() };
    let no_length = || Error::new(ErrorKind::InvalidOperation, format!("a {} has no length", value.kind()));
    len.ok_or_else(no_length)
}

/// Prints a value.
pub fn format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Number => out.write_str(&number(value)).map_err(Error::from),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

fn write_json_text(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        let _ = match c {
            '"' => write!(out, "\\\""),
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\u{8}' => write!(out, "\\b"),
            '\u{c}' => write!(out, "\\f"),
            c if c < ' ' => write!(out, "\\u{:04x}", u32::from(c)),
            c if ensure_ascii && !(' '..='~').contains(&c) => {
                c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
            }
            c => write!(out, "{c}"),
        };
    }
    out.push('"');
}

/// C's `strftime` of a Unix time in UTC. Unknown conversions are left unchanged.
pub fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years are counted from March, so that a leap day is the last day of a year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let (from_march, day) = ((5 * of_year + 2) / 153, of_year - (153 * ((5 * of_year + 2) / 153) + 2) / 5 + 1);
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let month_name = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let day_name = DAYS.get((days % 7) as usize).copied().unwrap_or_default();
    let short = |name: &str| name.chars().take(3).collect::<String>();
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut conversion = rest.next();
        let padded = conversion != Some('-');
        if !padded {
            conversion = rest.next();
        }
        let number = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        out += &match conversion {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('e') => format!("{day:2}"),
            Some('H') => number(hour),
            Some('I') => number((hour + 11) % 12 + 1),
            Some('M') => number(minute),
            Some('S') => number(second % 60),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => short(month_name),
            Some('A') => day_name.to_owned(),
            Some('a') => short(day_name),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => other.map_or("%".to_owned(), |c| format!("%{c}")),
        };
    }
    out
}
