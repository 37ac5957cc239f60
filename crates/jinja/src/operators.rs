//! Python's operators, and slices.

use std::rc::Rc;

use crate::ast::BinaryOp;
use crate::error::{TemplateResult, refused};
use crate::meter::{Held, Meter};
use crate::print;
use crate::text::TextBuilder;
use crate::value::{Items, ListKind, Value, text};

fn overflow<T>() -> TemplateResult<T> {
    refused("the number is too large")
}

pub(crate) fn negative(value: &Value) -> TemplateResult<Value> {
    match (value.as_int(), value) {
        (Some(number), _) => number.checked_neg().map_or_else(overflow, |number| Ok(Value::Int(number))),
        (None, Value::Float(number)) => Ok(Value::Float(-number)),
        _ => refused(format!("cannot negate {}", value.type_name())),
    }
}

pub(crate) fn positive(value: &Value) -> TemplateResult<Value> {
    match (value.as_int(), value) {
        (Some(number), _) => Ok(Value::Int(number)),
        (None, Value::Float(_)) => Ok(value.clone()),
        _ => refused(format!("expected a number, got {}", value.type_name())),
    }
}

/// `left operator right`
pub(crate) fn binary(meter: &Rc<Meter>, operator: BinaryOp, left: &Value, right: &Value) -> TemplateResult<Value> {
    match (operator, left, right) {
        (BinaryOp::Concatenate, _, _) => {
            let mut out = TextBuilder::new(meter)?;
            print::append(&mut out, left)?;
            print::append(&mut out, right)?;
            Ok(out.finish())
        }
        (BinaryOp::Add, Value::Text(left), Value::Text(right)) => {
            let mut out = TextBuilder::new(meter)?;
            out.push_str(left)?;
            out.push_str(right)?;
            Ok(out.finish())
        }
        (BinaryOp::Add, Value::List(one), Value::List(other)) if is_list(left) == is_list(right) => {
            let mut items = Items::new(meter)?;
            for item in one.items()?.iter().chain(other.items()?.iter()) {
                items.push(item.clone())?;
            }
            items.into_kind(if is_list(left) { ListKind::List } else { ListKind::Tuple })
        }
        (BinaryOp::Multiply, Value::Text(text), count) | (BinaryOp::Multiply, count, Value::Text(text))
            if count.as_int().is_some() =>
        {
            let mut out = TextBuilder::new(meter)?;
            out.repeat(text, times(count))?;
            Ok(out.finish())
        }
        (BinaryOp::Multiply, Value::List(list), count) | (BinaryOp::Multiply, count, Value::List(list))
            if count.as_int().is_some() =>
        {
            let (mut items, original) = (Items::new(meter)?, list.items()?);
            for item in (0..times(count)).take_while(|_| !original.is_empty()).flat_map(|_| original.iter()) {
                items.push(item.clone())?;
            }
            items.into_kind(list.kind())
        }
        _ => number(operator, left, right),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value, Value::List(list) if list.kind() == ListKind::List)
}

fn times(count: &Value) -> usize {
    usize::try_from(count.as_int().unwrap_or_default().max(0)).unwrap_or(usize::MAX)
}

fn number(operator: BinaryOp, left: &Value, right: &Value) -> TemplateResult<Value> {
    let name = match operator {
        BinaryOp::Add => "+",
        BinaryOp::Subtract => "-",
        BinaryOp::Multiply => "*",
        BinaryOp::Divide => "/",
        BinaryOp::FloorDivide => "//",
        BinaryOp::Remainder => "%",
        BinaryOp::Power => "**",
        BinaryOp::Concatenate => "~",
        BinaryOp::And => "and",
        BinaryOp::Or => "or",
    };
    let is_zero = right.as_float() == Some(0.0);
    if is_zero && matches!(operator, BinaryOp::Divide | BinaryOp::FloorDivide | BinaryOp::Remainder) {
        return refused("division by zero");
    }
    if let (Some(left), Some(right)) = (left.as_int(), right.as_int()) {
        let result = match operator {
            BinaryOp::Add => left.checked_add(right),
            BinaryOp::Subtract => left.checked_sub(right),
            BinaryOp::Multiply => left.checked_mul(right),
            BinaryOp::Divide => return Ok(Value::Float(left as f64 / right as f64)),
            BinaryOp::FloorDivide => floor_divide(left, right),
            BinaryOp::Remainder => left.checked_rem(right).map(|remainder| {
                if remainder != 0 && (remainder < 0) != (right < 0) { remainder + right } else { remainder }
            }),
            BinaryOp::Power if right < 0 => return Ok(Value::Float((left as f64).powf(right as f64))),
            BinaryOp::Power => match (left, u32::try_from(right)) {
                (0 | 1, _) => Some(if right == 0 { 1 } else { left }),
                (-1, _) => Some(if right % 2 == 0 { 1 } else { -1 }),
                (_, Ok(exponent)) => left.checked_pow(exponent),
                _ => None,
            },
            BinaryOp::Concatenate | BinaryOp::And | BinaryOp::Or => None,
        };
        return result.map_or_else(overflow, |number| Ok(Value::Int(number)));
    }
    let (Some(x), Some(y)) = (left.as_float(), right.as_float()) else {
        return refused(format!("cannot calculate {} {name} {}", left.type_name(), right.type_name()));
    };
    Ok(Value::Float(match operator {
        BinaryOp::Add => x + y,
        BinaryOp::Subtract => x - y,
        BinaryOp::Multiply => x * y,
        BinaryOp::Divide => x / y,
        BinaryOp::FloorDivide => (x / y).floor(),
        BinaryOp::Remainder => {
            let remainder = x % y;
            if remainder != 0.0 && (remainder < 0.0) != (y < 0.0) { remainder + y } else { remainder }
        }
        BinaryOp::Power => x.powf(y),
        BinaryOp::Concatenate | BinaryOp::And | BinaryOp::Or => f64::NAN,
    }))
}

fn floor_divide(left: i128, right: i128) -> Option<i128> {
    let (quotient, remainder) = (left.checked_div(right)?, left.checked_rem(right)?);
    Some(if remainder != 0 && (remainder < 0) != (right < 0) { quotient - 1 } else { quotient })
}

/// The character of a text at an index.
pub(crate) fn character(meter: &Rc<Meter>, string: &str, key: &Value) -> TemplateResult<Value> {
    meter.read(string.len())?;
    let index = if key.as_int().is_some_and(|index| index < 0) {
        key.index_in(string.chars().count())
    } else {
        key.as_int().and_then(|index| usize::try_from(index).ok())
    };
    match index.and_then(|index| string.chars().nth(index)) {
        Some(c) => text(meter, c.encode_utf8(&mut [0; 4])),
        None => Ok(Value::Undefined),
    }
}

/// The indices of a slice, as Python's `slice.indices`: the first one, the step, and their number.
fn slice_range(len: usize, bounds: &[Option<Value>; 3]) -> TemplateResult<(usize, i128, usize)> {
    let bound = |value: &Option<Value>| match value {
        None | Some(Value::None | Value::Undefined) => Ok(None),
        Some(value) => match value.as_int() {
            Some(number) => Ok(Some(number)),
            None => refused(format!("expected integers in a slice, got {}", value.type_name())),
        },
    };
    let [start, stop, step] = bounds;
    let (len, step) = (len as i128, bound(step)?.unwrap_or(1));
    if step == 0 {
        return refused("the step of a slice cannot be 0");
    }
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let resolved = |value: Option<i128>, default: i128| match value {
        None => default,
        Some(number) if number < 0 => number.saturating_add(len).max(lowest),
        Some(number) => number.min(highest),
    };
    let (start, stop) = if step > 0 {
        (resolved(bound(start)?, 0), resolved(bound(stop)?, len))
    } else {
        (resolved(bound(start)?, len - 1), resolved(bound(stop)?, -1))
    };
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.saturating_abs() + 1 };
    Ok((usize::try_from(start).unwrap_or_default(), step, usize::try_from(count).unwrap_or_default()))
}

/// `value[start:stop:step]`
pub(crate) fn slice(meter: &Rc<Meter>, value: &Value, bounds: &[Option<Value>; 3]) -> TemplateResult<Value> {
    match value {
        Value::Undefined => Items::new(meter)?.into_list(),
        Value::List(list) => {
            let (start, step, count) = slice_range(list.len(), bounds)?;
            let mut items = Items::new(meter)?;
            for position in 0..count {
                let index = start as i128 + step.saturating_mul(position as i128);
                items.push(usize::try_from(index).ok().and_then(|index| list.at(index)).unwrap_or_default())?;
            }
            items.into_kind(list.kind())
        }
        Value::Text(string) => {
            meter.read(string.len())?;
            let (start, step, count) = slice_range(string.chars().count(), bounds)?;
            let mut out = TextBuilder::new(meter)?;
            if step == 1 {
                let mut ends = string.char_indices().map(|(at, _)| at).chain([string.len()]);
                let from = ends.nth(start).unwrap_or(string.len());
                let to = if count == 0 { from } else { ends.nth(count - 1).unwrap_or(string.len()) };
                out.push_str(string.get(from..to).unwrap_or_default())?;
            } else {
                // The characters below take four bytes each.
                let _held = Held::new(meter, 4 * string.len())?;
                let characters: Vec<char> = string.chars().collect();
                for position in 0..count {
                    let index = start as i128 + step.saturating_mul(position as i128);
                    if let Some(c) = usize::try_from(index).ok().and_then(|index| characters.get(index)) {
                        out.push(*c)?;
                    }
                }
            }
            Ok(out.finish())
        }
        other => refused(format!("{} cannot be sliced", other.type_name())),
    }
}
