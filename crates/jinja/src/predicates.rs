//! Jinja2's tests (`is defined`).

use crate::arguments::Arguments;
use crate::ast::CompareOp;
use crate::error::{TemplateResult, refused};
use crate::filters::names;
use crate::interpreter::Interpreter;
use crate::search::Searched;
use crate::value::Value;

/// Whether a test is true of a value.
pub(crate) fn call(run: &mut Interpreter, name: &str, value: &Value, mut arguments: Arguments) -> TemplateResult<bool> {
    run.read(value)?;
    let comparison = match name {
        "eq" | "==" | "equalto" => Some(CompareOp::Equal),
        "ne" | "!=" => Some(CompareOp::Unequal),
        "lt" | "<" | "lessthan" => Some(CompareOp::Less),
        "le" | "<=" => Some(CompareOp::LessOrEqual),
        "gt" | ">" | "greaterthan" => Some(CompareOp::Greater),
        "ge" | ">=" => Some(CompareOp::GreaterOrEqual),
        "in" => Some(CompareOp::In),
        _ => None,
    };
    let argument = arguments.take_first();
    let other = argument.clone().unwrap_or_default();
    if let Some(operator) = comparison {
        if argument.is_none() {
            return refused(format!("the test '{name}' needs an argument"));
        }
        return run.compare(operator, value, &other);
    }
    let integer = |value: &Value| match value.as_int() {
        Some(number) => Ok(number),
        None => refused(format!("the test '{name}' needs an integer, got {}", value.type_name())),
    };
    let string = value.as_str().unwrap_or_default();
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "boolean" => matches!(value, Value::Bool(_)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(dict) if !dict.is_namespace()),
        // In Jinja2, a sequence is a value with a length and items. Undefined values have both.
        "sequence" | "iterable" => match value {
            Value::Dict(dict) => !dict.is_namespace(),
            value => matches!(value, Value::Undefined | Value::Text(_) | Value::List(_)),
        },
        "callable" => matches!(value, Value::Callable(_)),
        "sameas" => match (value, &other) {
            (Value::List(one), Value::List(other)) => std::rc::Rc::ptr_eq(one, other),
            (Value::Dict(one), Value::Dict(other)) => std::rc::Rc::ptr_eq(one, other),
            (Value::Bool(one), Value::Bool(other)) => one == other,
            (Value::Bool(_), _) | (_, Value::Bool(_)) => false,
            (one, other) => run.compare(CompareOp::Equal, one, other)?,
        },
        "odd" => integer(value)? % 2 != 0,
        "even" => integer(value)? % 2 == 0,
        "divisibleby" => {
            let (number, divisor) = (integer(value)?, integer(&other)?);
            match number.checked_rem(divisor) {
                Some(remainder) => remainder == 0,
                None => return refused("division by zero"),
            }
        }
        "lower" => string.chars().any(char::is_lowercase) && !string.chars().any(char::is_uppercase),
        "upper" => string.chars().any(char::is_uppercase) && !string.chars().any(char::is_lowercase),
        "startingwith" | "endingwith" => {
            let searched = Searched::new(&run.meter, string)?;
            other.as_str().is_some_and(|affix| match name {
                "startingwith" => searched.without_prefix(affix).is_some(),
                _ => searched.without_suffix(affix).is_some(),
            })
        }
        "filter" => names::is_known(string),
        "test" => is_known(string),
        "escaped" | "safe" => false,
        _ => return refused(format!("test {name} is unknown")),
    })
}

fn is_known(name: &str) -> bool {
    matches!(
        name,
        "eq" | "=="
            | "equalto"
            | "ne"
            | "!="
            | "lt"
            | "<"
            | "lessthan"
            | "le"
            | "<="
            | "gt"
            | ">"
            | "greaterthan"
            | "ge"
            | ">="
            | "in"
            | "defined"
            | "undefined"
            | "none"
            | "true"
            | "false"
            | "boolean"
            | "integer"
            | "float"
            | "number"
            | "string"
            | "mapping"
            | "sequence"
            | "iterable"
            | "callable"
            | "sameas"
            | "odd"
            | "even"
            | "divisibleby"
            | "lower"
            | "upper"
            | "filter"
            | "test"
            | "escaped"
    )
}
