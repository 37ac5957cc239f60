//! Jinja2's tests (`is defined`).

use crate::arguments::Arguments;
use crate::ast::CompareOp;
use crate::error::{TemplateResult, refused};
use crate::filters;
use crate::interpreter::Interpreter;
use crate::search::Searched;
use crate::value::Value;

/// A test: gets the value and the argument, which may be undefined.
type Test = fn(&mut Interpreter, &Value, &Value) -> TemplateResult<bool>;

/// The comparison that a test is, which needs an argument.
fn comparison(name: &str) -> Option<CompareOp> {
    Some(match name {
        "eq" | "==" | "equalto" => CompareOp::Equal,
        "ne" | "!=" => CompareOp::Unequal,
        "lt" | "<" | "lessthan" => CompareOp::Less,
        "le" | "<=" => CompareOp::LessOrEqual,
        "gt" | ">" | "greaterthan" => CompareOp::Greater,
        "ge" | ">=" => CompareOp::GreaterOrEqual,
        "in" => CompareOp::In,
        _ => return None,
    })
}

/// The other test of that name.
fn find(name: &str) -> Option<Test> {
    let found: Test = match name {
        "defined" => |_, value, _| Ok(!value.is_undefined()),
        "undefined" => |_, value, _| Ok(value.is_undefined()),
        "none" => |_, value, _| Ok(matches!(value, Value::None)),
        "true" => |_, value, _| Ok(matches!(value, Value::Bool(true))),
        "false" => |_, value, _| Ok(matches!(value, Value::Bool(false))),
        "boolean" => |_, value, _| Ok(matches!(value, Value::Bool(_))),
        "integer" => |_, value, _| Ok(matches!(value, Value::Int(_))),
        "float" => |_, value, _| Ok(matches!(value, Value::Float(_))),
        "number" => |_, value, _| Ok(matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_))),
        "string" => |_, value, _| Ok(matches!(value, Value::Text(_))),
        "mapping" => |_, value, _| Ok(matches!(value, Value::Dict(dict) if !dict.is_namespace())),
        // In Jinja2, a sequence is a value with a length and items. Undefined values have both.
        "sequence" | "iterable" => |_, value, _| match value {
            Value::Dict(dict) => Ok(!dict.is_namespace()),
            value => Ok(matches!(value, Value::Undefined | Value::Text(_) | Value::List(_))),
        },
        "callable" => |_, value, _| Ok(matches!(value, Value::Callable(_))),
        "sameas" => |run, value, other| match (value, other) {
            (Value::List(one), Value::List(other)) => Ok(std::rc::Rc::ptr_eq(one, other)),
            (Value::Dict(one), Value::Dict(other)) => Ok(std::rc::Rc::ptr_eq(one, other)),
            (Value::Bool(one), Value::Bool(other)) => Ok(one == other),
            (Value::Bool(_), _) | (_, Value::Bool(_)) => Ok(false),
            (one, other) => run.compare(CompareOp::Equal, one, other),
        },
        "odd" => |_, value, _| Ok(integer("odd", value)? % 2 != 0),
        "even" => |_, value, _| Ok(integer("even", value)? % 2 == 0),
        "divisibleby" => |_, value, other| {
            let (number, divisor) = (integer("divisibleby", value)?, integer("divisibleby", other)?);
            number.checked_rem(divisor).map_or_else(|| refused("division by zero"), |remainder| Ok(remainder == 0))
        },
        "lower" => |_, value, _| Ok(has_case(value, char::is_lowercase, char::is_uppercase)),
        "upper" => |_, value, _| Ok(has_case(value, char::is_uppercase, char::is_lowercase)),
        "startingwith" => |run, value, other| {
            let searched = Searched::new(&run.meter, value.as_str().unwrap_or_default())?;
            Ok(other.as_str().is_some_and(|affix| searched.without_prefix(affix).is_some()))
        },
        "endingwith" => |run, value, other| {
            let searched = Searched::new(&run.meter, value.as_str().unwrap_or_default())?;
            Ok(other.as_str().is_some_and(|affix| searched.without_suffix(affix).is_some()))
        },
        "filter" => |_, value, _| Ok(filters::exists(value.as_str().unwrap_or_default())),
        "test" => |_, value, _| Ok(exists(value.as_str().unwrap_or_default())),
        "escaped" | "safe" => |_, _, _| Ok(false),
        _ => return None,
    };
    Some(found)
}

fn exists(name: &str) -> bool {
    comparison(name).is_some() || find(name).is_some()
}

impl Interpreter<'_> {
    /// Whether a test is true of a value.
    pub(crate) fn test(&mut self, name: &str, value: &Value, mut arguments: Arguments) -> TemplateResult<bool> {
        self.read(value)?;
        let argument = arguments.take_first();
        match (comparison(name), find(name)) {
            (Some(_), _) if argument.is_none() => refused(format!("the test '{name}' needs an argument")),
            (Some(operator), _) => self.compare(operator, value, &argument.unwrap_or_default()),
            (None, Some(test)) => test(self, value, &argument.unwrap_or_default()),
            (None, None) => refused(format!("test {name} is unknown")),
        }
    }
}

fn integer(name: &str, value: &Value) -> TemplateResult<i128> {
    let refused = || refused(format!("the test '{name}' needs an integer, got {}", value.type_name()));
    value.as_int().map_or_else(refused, Ok)
}

fn has_case(value: &Value, wanted: fn(char) -> bool, other: fn(char) -> bool) -> bool {
    value.as_str().is_some_and(|text| text.chars().any(wanted) && !text.chars().any(other))
}
