//! A JSON Schema validator for the tests, written after the standard, for the keywords that their schemas use.

use regex::Regex;
use serde_json::Value;

/// Whether `value` is valid under `schema`, which is a part of `root`.
pub(super) fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(map) = schema.as_object() else { return schema == &Value::Bool(true) };
    let valid = |schema: &Value, value: &Value| is_valid(root, schema, value);
    let count = |schemas: &Value| schemas.as_array().unwrap().iter().filter(|schema| valid(schema, value)).count();
    let number = |limit: &Value, holds: fn(f64, f64) -> bool| {
        value.as_f64().is_none_or(|number| holds(number, limit.as_f64().unwrap()))
    };
    let chars = value.as_str().map(|text| text.chars().count() as u64);
    let items = value.as_array();
    let prefix = map.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    map.iter().all(|(key, wanted)| match key.as_str() {
        "type" => match wanted {
            Value::Array(names) => names.iter().any(|name| has_type(value, name.as_str().unwrap())),
            name => has_type(value, name.as_str().unwrap()),
        },
        "$ref" => valid(root.pointer(&wanted.as_str().unwrap()[1..]).unwrap(), value),
        "const" => wanted == value,
        "enum" => wanted.as_array().unwrap().contains(value),
        "anyOf" => count(wanted) > 0,
        "oneOf" => count(wanted) == 1,
        "allOf" => count(wanted) == wanted.as_array().unwrap().len(),
        "not" => !valid(wanted, value),
        "if" => {
            let branch = if valid(wanted, value) { "then" } else { "else" };
            map.get(branch).is_none_or(|schema| valid(schema, value))
        }
        "minimum" => number(wanted, |number, limit| number >= limit),
        "maximum" => number(wanted, |number, limit| number <= limit),
        "exclusiveMinimum" => number(wanted, |number, limit| number > limit),
        "exclusiveMaximum" => number(wanted, |number, limit| number < limit),
        "minLength" => chars.is_none_or(|n| n >= wanted.as_u64().unwrap()),
        "maxLength" => chars.is_none_or(|n| n <= wanted.as_u64().unwrap()),
        "minItems" => items.is_none_or(|items| items.len() as u64 >= wanted.as_u64().unwrap()),
        "maxItems" => items.is_none_or(|items| items.len() as u64 <= wanted.as_u64().unwrap()),
        "minProperties" => value.as_object().is_none_or(|object| object.len() as u64 >= wanted.as_u64().unwrap()),
        "maxProperties" => value.as_object().is_none_or(|object| object.len() as u64 <= wanted.as_u64().unwrap()),
        "prefixItems" => {
            items.is_none_or(|items| items.iter().zip(wanted.as_array().unwrap()).all(|(v, s)| valid(s, v)))
        }
        "items" if wanted.is_array() => {
            items.is_none_or(|items| items.iter().zip(wanted.as_array().unwrap()).all(|(v, s)| valid(s, v)))
        }
        "additionalItems" => items.is_none_or(|items| {
            let listed = map.get("items").and_then(Value::as_array).map_or(usize::MAX, Vec::len);
            items.iter().skip(listed).all(|item| valid(wanted, item))
        }),
        "items" => items.is_none_or(|items| items.iter().skip(prefix).all(|item| valid(wanted, item))),
        "required" => value.as_object().is_none_or(|object| {
            wanted.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
        }),
        "properties" => value
            .as_object()
            .is_none_or(|object| object.iter().all(|(name, v)| wanted.get(name).is_none_or(|schema| valid(schema, v)))),
        "additionalProperties" => value.as_object().is_none_or(|object| {
            let known = |name: &str| map.get("properties").is_some_and(|all| all.get(name).is_some());
            object.iter().all(|(name, v)| known(name) || valid(wanted, v))
        }),
        "pattern" => value.as_str().is_none_or(|text| matches(wanted.as_str().unwrap(), text)),
        "format" => value.as_str().is_none_or(|text| has_format(text, wanted.as_str().unwrap())),
        _ => ["$defs", "then", "else"].contains(&key.as_str()),
    })
}

/// Whether an ECMA-262 regular expression (`\d` and `\w` are ASCII) matches part of a text.
fn matches(pattern: &str, text: &str) -> bool {
    let pattern = pattern.replace("\\d", "[0-9]").replace("\\w", "[0-9A-Za-z_]");
    Regex::new(&pattern).unwrap().is_match(text)
}

/// Checks the formats of RFC 3339 and RFC 4122; other formats are annotations.
pub(super) fn has_format(text: &str, format: &str) -> bool {
    match format {
        "date" => is_date(text),
        "time" => is_time(text),
        "date-time" => text.split_once('T').is_some_and(|(date, time)| is_date(date) && is_time(time)),
        "uuid" => {
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            lengths == [8, 4, 4, 4, 12] && text.chars().all(|char| char == '-' || char.is_ascii_hexdigit())
        }
        _ => true,
    }
}

/// The number in a text of exactly `n` digits.
fn digits(text: &str, n: usize) -> Option<u32> {
    (text.len() == n && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap())
}

fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return false };
    let (Some(year), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2)) else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = month.checked_sub(1).and_then(|month| days.get(month as usize));
    days.is_some_and(|days| (1..=*days).contains(&day))
}

fn is_time(text: &str) -> bool {
    let of = |text: &str, most: u32| digits(text, 2).is_some_and(|number| number <= most);
    let clock = |text: &str| text.len() == 5 && text.split_once(':').is_some_and(|(h, m)| of(h, 23) && of(m, 59));
    let (Some(begin), Some(rest)) = (text.get(..5), text.get(5..)) else { return false };
    let Some(rest) = rest.strip_prefix(':') else { return false };
    let (Some(seconds), Some(rest)) = (rest.get(..2), rest.get(2..)) else { return false };
    let zone = match rest.strip_prefix('.') {
        Some(fraction) => {
            let zone = fraction.trim_start_matches(|char: char| char.is_ascii_digit());
            if zone.len() == fraction.len() {
                return false;
            }
            zone
        }
        None => rest,
    };
    clock(begin) && of(seconds, 59) && (zone == "Z" || zone.strip_prefix(['+', '-']).is_some_and(clock))
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}
