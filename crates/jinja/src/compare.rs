//! Equality, order and membership, as in Python.

use std::cmp::Ordering;
use std::rc::Rc;

use crate::error::{Fault, FaultKind, TemplateResult, refused};
use crate::meter::Meter;
use crate::search::Searched;
use crate::value::{Dict, Value};

/// The maximum nesting of values that are compared or printed.
pub(crate) const MAX_DEPTH: usize = 250;

pub(crate) fn too_deep<T>() -> TemplateResult<T> {
    Err(Fault::new(FaultKind::Limit, format!("the value is nested more than {MAX_DEPTH} levels")))
}

pub(crate) fn equal(meter: &Meter, left: &Value, right: &Value) -> TemplateResult<bool> {
    equal_at(meter, left, right, 0)
}

fn equal_at(meter: &Meter, left: &Value, right: &Value, depth: usize) -> TemplateResult<bool> {
    meter.step(1)?;
    if depth > MAX_DEPTH {
        return too_deep();
    }
    Ok(match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(left), Value::Text(right)) if left.len() == right.len() => {
            meter.read(left.len())?;
            ***left == ***right
        }
        (Value::Text(left), Value::Text(right)) => {
            let Some(mark) = meter.mark() else { return Ok(false) };
            meter.read(left.len() + right.len())?;
            left.split(mark).flat_map(str::bytes).eq(right.split(mark).flat_map(str::bytes))
        }
        (Value::List(left), Value::List(right)) => {
            if Rc::ptr_eq(left, right) {
                return Ok(true);
            }
            // A list never equals a tuple.
            let is_list = |kind| kind == crate::value::ListKind::List;
            if left.len() != right.len() || is_list(left.kind()) != is_list(right.kind()) {
                return Ok(false);
            }
            for index in 0..left.len() {
                let (one, other) = (left.at(index).unwrap_or_default(), right.at(index).unwrap_or_default());
                if !equal_at(meter, &one, &other, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(left), Value::Dict(right)) => {
            if Rc::ptr_eq(left, right) {
                return Ok(true);
            }
            if left.len() != right.len() || left.is_namespace() || right.is_namespace() {
                return Ok(false);
            }
            for (key, value) in left.items()?.iter() {
                let Some((_, other)) = find(meter, right, key)?.and_then(|at| right.at(at)) else { return Ok(false) };
                if !equal_at(meter, value, &other, depth + 1)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Callable(left), Value::Callable(right)) => Rc::ptr_eq(left, right),
        (Value::Loop(left), Value::Loop(right)) => Rc::ptr_eq(left, right),
        _ => number_order(left, right) == Some(Ordering::Equal),
    })
}

/// The order of two numbers. None if one is not a number, or NaN.
fn number_order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left.as_int(), right.as_int()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.as_float()?.partial_cmp(&right.as_float()?),
    }
}

/// The order of two values.
pub(crate) fn order(meter: &Meter, left: &Value, right: &Value) -> TemplateResult<Ordering> {
    order_at(meter, left, right, 0)
}

fn order_at(meter: &Meter, left: &Value, right: &Value, depth: usize) -> TemplateResult<Ordering> {
    meter.step(1)?;
    if depth > MAX_DEPTH {
        return too_deep();
    }
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => {
            meter.read(left.len().min(right.len()))?;
            Ok((***left).cmp(&***right))
        }
        (Value::List(left), Value::List(right)) => {
            for index in 0..left.len().min(right.len()) {
                let (one, other) = (left.at(index).unwrap_or_default(), right.at(index).unwrap_or_default());
                if !equal_at(meter, &one, &other, depth + 1)? {
                    return order_at(meter, &one, &other, depth + 1);
                }
            }
            Ok(left.len().cmp(&right.len()))
        }
        _ => match number_order(left, right) {
            Some(order) => Ok(order),
            // Comparisons with NaN are false; sorting needs some order.
            None if left.as_float().is_some() && right.as_float().is_some() => Ok(Ordering::Equal),
            None => refused(format!("cannot compare {} with {}", left.type_name(), right.type_name())),
        },
    }
}

/// Whether `container` contains `item`.
pub(crate) fn contains(meter: &Rc<Meter>, container: &Value, item: &Value) -> TemplateResult<bool> {
    match (container, item) {
        (Value::Undefined, _) => Ok(false),
        (Value::Text(text), Value::Text(part)) => {
            meter.read(text.len() + part.len())?;
            Ok(Searched::new(meter, text)?.contains(part))
        }
        (Value::Text(_), other) => refused(format!("expected a string left of 'in', got {}", other.type_name())),
        (Value::Dict(dict), key) => Ok(find(meter, dict, key)?.is_some()),
        (Value::List(list), item) => {
            for index in 0..list.len() {
                if equal(meter, &list.at(index).unwrap_or_default(), item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Loop(state), item) => {
            for other in state.items.iter() {
                if equal(meter, other, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (other, _) => {
            refused(format!("expected a string, list or dictionary right of 'in', got {}", other.type_name()))
        }
    }
}

/// The position of a key.
pub(crate) fn find(meter: &Meter, dict: &Dict, key: &Value) -> TemplateResult<Option<usize>> {
    for at in 0..dict.len() {
        if let Some((known, _)) = dict.at(at)
            && equal(meter, &known, key)?
        {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Sets the value of a key.
pub(crate) fn insert(meter: &Meter, dict: &Dict, key: Value, value: Value) -> TemplateResult<()> {
    if let Value::Text(name) = &key {
        return dict.set(name, value);
    }
    if matches!(&key, Value::Dict(_))
        || matches!(&key, Value::List(list) if list.kind() == crate::value::ListKind::List)
    {
        return refused(format!("{} cannot be a key", key.type_name()));
    }
    match find(meter, dict, &key)? {
        Some(at) => dict.replace_at(at, value),
        None => dict.push(key, value)?,
    }
    Ok(())
}

/// Sorts values by keys that are made of them. The order of equal ones stays. After a fault, the values are undefined.
///
/// The sort is one of its own, because that of the standard library panics where the order is not total: with NaN, or from a fault on.
pub(crate) fn sort(meter: &Meter, pairs: &mut [(Value, Value)], is_reverse: bool) -> TemplateResult<()> {
    let sorted = merge_sorted(meter, pairs.iter_mut().map(std::mem::take).collect(), is_reverse)?;
    pairs.iter_mut().zip(sorted).for_each(|(place, pair)| *place = pair);
    Ok(())
}

fn merge_sorted(meter: &Meter, mut left: Vec<(Value, Value)>, is_reverse: bool) -> TemplateResult<Vec<(Value, Value)>> {
    if left.len() < 2 {
        return Ok(left);
    }
    let is_before = |one: &(Value, Value), other: &(Value, Value)| -> TemplateResult<bool> {
        let found = order(meter, &one.0, &other.0)?;
        Ok(found == if is_reverse { Ordering::Greater } else { Ordering::Less })
    };
    let right = left.split_off(left.len() / 2);
    let (mut left, right) = (merge_sorted(meter, left, is_reverse)?, merge_sorted(meter, right, is_reverse)?);
    if let (Some(last), Some(first)) = (left.last(), right.first())
        && !is_before(first, last)?
    {
        left.extend(right);
        return Ok(left);
    }
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let next = if is_before(other, one)? { right.next() } else { left.next() };
        merged.extend(next);
    }
    merged.extend(left.chain(right));
    Ok(merged)
}
