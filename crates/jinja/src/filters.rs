//! Jinja2's filters: those that chat templates use. Those that lay out pages or calculate (`wordwrap`, `truncate`, `batch`, `groupby`,
//! `escape`, `format`, `round`, `sum`, ...) are in no template that we know, and llama.cpp has none of them.

mod sequences;
mod texts;

use crate::arguments::{Arguments, flag, int};
use crate::error::{TemplateResult, refused};
use crate::interpreter::{Filter, Interpreter};
use crate::print::{self, JsonStyle};
use crate::text::TextBuilder;
use crate::value::Value;

/// Whether there is a filter of that name.
pub(crate) fn exists(name: &str) -> bool {
    of_values(name).or_else(|| sequences::find(name)).is_some() || texts::find(name).is_some()
}

/// Applies a filter by name. Filters of texts get values that are none printed, as in Jinja2.
pub(crate) fn call(run: &mut Interpreter, name: &str, value: Value, arguments: Arguments) -> TemplateResult<Value> {
    run.read(&value)?;
    for argument in &arguments.positional {
        run.read(argument)?;
    }
    match (of_values(name).or_else(|| sequences::find(name)), texts::find(name)) {
        (Some(filter), _) => filter(run, name, value, arguments),
        (None, Some(filter)) => {
            let text = print::to_text(&run.meter, &value)?;
            filter(run, name, text, arguments)
        }
        (None, None) => refused(format!("filter {name} is unknown")),
    }
}

/// The filter of that name that is for values of all types.
fn of_values(name: &str) -> Option<Filter> {
    let found: Filter = match name {
        "safe" => |_, _, value, _| Ok(value),
        "string" => |run, _, value, _| print::to_text(&run.meter, &value),
        "default" | "d" => |run, name, value, arguments| {
            let [default, also_false] = arguments.bind(name, ["default_value", "boolean"])?;
            let is_missing = value.is_undefined() || flag(also_false) && !value.is_true();
            match default {
                Some(default) if is_missing => Ok(default),
                None if is_missing => crate::value::text(&run.meter, ""),
                _ => Ok(value),
            }
        },
        "abs" => |_, _, value, _| match (value.as_int(), &value) {
            (Some(number), _) => {
                number.checked_abs().map_or_else(|| refused("the number is too large"), |it| Ok(Value::Int(it)))
            }
            (None, Value::Float(number)) => Ok(Value::Float(number.abs())),
            _ => refused(format!("abs: expected a number, got {}", value.type_name())),
        },
        "int" => |_, name, value, arguments| {
            let [default, base] = arguments.bind(name, ["default", "base"])?;
            Ok(to_int(&value, int(name, base, 10)?).map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
        },
        "float" => |_, name, value, arguments| {
            let [default] = arguments.bind(name, ["default"])?;
            let number = match &value {
                Value::Text(text) => float_of(text),
                other => other.as_float(),
            };
            Ok(number.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        },
        "tojson" => |run, _, value, arguments| tojson(run, &value, arguments),
        _ => return None,
    };
    Some(found)
}

/// Python's `float(text)`.
fn float_of(text: &str) -> Option<f64> {
    let trimmed = text.trim();
    let is_number = trimmed.starts_with(|c: char| c.is_ascii_digit() || "+-.iInN".contains(c));
    if !is_number || trimmed.len() > 1000 { None } else { trimmed.replace('_', "").parse().ok() }
}

fn to_int(value: &Value, base: i128) -> Option<i128> {
    let truncated = |number: f64| (number.is_finite() && number.abs() < 1e38).then_some(number.trunc() as i128);
    match value {
        Value::Text(text) => {
            let trimmed = text.trim();
            if trimmed.len() > 1000 {
                return None;
            }
            let plain = trimmed.replace('_', "");
            let (sign, digits) = match plain.strip_prefix('-') {
                Some(digits) => ("-", digits),
                None => ("", plain.strip_prefix('+').unwrap_or(&plain)),
            };
            let prefix = match base {
                16 => ["0x", "0X"],
                8 => ["0o", "0O"],
                2 => ["0b", "0B"],
                _ => ["", ""],
            };
            let digits = prefix.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
            let radix = u32::try_from(base).ok().filter(|radix| (2..=36).contains(radix))?;
            let is_plain = digits.starts_with(|c: char| c.is_alphanumeric());
            let number = i128::from_str_radix(&format!("{sign}{digits}"), radix).ok().filter(|_| is_plain);
            number.or_else(|| float_of(trimmed).and_then(truncated))
        }
        Value::Float(number) => truncated(*number),
        other => other.as_int(),
    }
}

/// In transformers this is Python's `json.dumps`, without escapes for HTML.
fn tojson(run: &mut Interpreter, value: &Value, arguments: Arguments) -> TemplateResult<Value> {
    // Some templates pass the indentation as a positional argument, as in Jinja2's own filter.
    let [indent, ensure_ascii, separators, sort_keys] =
        arguments.bind("tojson", ["indent", "ensure_ascii", "separators", "sort_keys"])?;
    let mut style = JsonStyle { ensure_ascii: flag(ensure_ascii), sort_keys: flag(sort_keys), ..JsonStyle::default() };
    style.indent = match indent {
        Some(Value::Text(text)) => {
            run.meter.read(text.len())?;
            Some(text.chars().take(64).collect())
        }
        Some(Value::None | Value::Undefined) | None => None,
        Some(indent) => Some(" ".repeat(int("tojson", Some(indent), 0)?.clamp(0, 64) as usize)),
    };
    if style.indent.is_some() {
        style.item = ",".to_owned();
    }
    if let Some(separators @ Value::List(_)) = separators
        && let [Value::Text(item), Value::Text(key)] = &run.iterate(&separators)?[..]
    {
        let short = |text: &str| text.chars().take(64).collect();
        (style.item, style.key) = (short(item), short(key));
    }
    let mut out = TextBuilder::new(&run.meter)?;
    print::json(&mut out, value, &style, 0)?;
    Ok(out.finish())
}
