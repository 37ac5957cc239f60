//! Filters of lists, dictionaries and what else has items.

use crate::arguments::{Arguments, flag, required};
use crate::compare;
use crate::error::{TemplateResult, refused};
use crate::interpreter::{Filter, Interpreter};
use crate::methods;
use crate::print;
use crate::text::TextBuilder;
use crate::value::{Items, Value, list, text, tuple};

/// The filter of that name.
pub(super) fn find(name: &str) -> Option<Filter> {
    let found: Filter = match name {
        "length" | "count" => |run, _, value, _| length(run, &value),
        "list" => |run, _, value, _| run.iterate(&value)?.into_list(),
        "first" | "last" => |run, name, value, _| {
            let is_first = name == "first";
            let end = |string: &str| if is_first { string.chars().next() } else { string.chars().next_back() };
            let found = match &value {
                Value::List(list) => list.at(if is_first { 0 } else { list.len().wrapping_sub(1) }),
                Value::Text(string) => end(string).map(|c| text(&run.meter, c.encode_utf8(&mut [0; 4]))).transpose()?,
                other => {
                    let items = run.iterate(other)?;
                    if is_first { items.first() } else { items.last() }.cloned()
                }
            };
            Ok(found.unwrap_or_default())
        },
        "reverse" => |run, _, value, _| match &value {
            Value::Text(string) => {
                let mut out = TextBuilder::new(&run.meter)?;
                string.chars().rev().try_for_each(|c| out.push(c))?;
                Ok(out.finish())
            }
            other => {
                let mut items = run.iterate(other)?;
                items.reverse();
                items.into_list()
            }
        },
        "items" => |run, _, value, arguments| match &value {
            Value::Undefined => Items::new(&run.meter)?.into_list(),
            Value::Dict(_) => methods::call(run, &value, "items", arguments),
            other => refused(format!("items: expected a dictionary, got {}", other.type_name())),
        },
        "join" => |run, _, value, arguments| join(run, &value, arguments),
        "map" => |run, _, value, arguments| map(run, &value, arguments),
        "select" | "reject" | "selectattr" | "rejectattr" => {
            |run, name, value, arguments| select(run, name, &value, arguments)
        }
        "sort" => |run, name, value, arguments| {
            let [reverse, case_sensitive, attribute] =
                arguments.bind(name, ["reverse", "case_sensitive", "attribute"])?;
            let mut keyed = Vec::new();
            for item in run.iterate(&value)?.iter() {
                let key = sort_key(run, item, attribute.as_ref(), flag(case_sensitive.clone()))?;
                keyed.push((key, item.clone()));
            }
            // With those that the sort moves them to.
            let _held = run.held(4 * keyed.len() * size_of::<Value>())?;
            compare::sort(&run.meter, &mut keyed, flag(reverse))?;
            list(&run.meter, keyed.into_iter().map(|(_, item)| item).collect())
        },
        "dictsort" => |run, name, value, arguments| {
            let [case_sensitive, by, reverse] = arguments.bind(name, ["case_sensitive", "by", "reverse"])?;
            let Value::Dict(dict) = &value else {
                return refused(format!("dictsort: expected a dictionary, got {}", value.type_name()));
            };
            let by_value = by.as_ref().and_then(Value::as_str) == Some("value");
            let mut keyed = Vec::new();
            for (key, item) in dict.items()?.drain(..) {
                let sorted_by = if by_value { &item } else { &key };
                let sorted_by = sort_key(run, sorted_by, None, flag(case_sensitive.clone()))?;
                keyed.push((sorted_by, tuple(&run.meter, vec![key, item])?));
            }
            compare::sort(&run.meter, &mut keyed, flag(reverse))?;
            list(&run.meter, keyed.into_iter().map(|(_, item)| item).collect())
        },
        "min" | "max" => |run, name, value, arguments| {
            let [case_sensitive, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
            let mut best: Option<(Value, Value)> = None;
            for item in run.iterate(&value)?.iter() {
                let key = sort_key(run, item, attribute.as_ref(), flag(case_sensitive.clone()))?;
                let is_better = match &best {
                    None => true,
                    Some((known, _)) => {
                        let order = compare::order(&run.meter, &key, known)?;
                        if name == "min" { order.is_lt() } else { order.is_gt() }
                    }
                };
                if is_better {
                    best = Some((key, item.clone()));
                }
            }
            Ok(best.map_or(Value::Undefined, |(_, item)| item))
        },
        "unique" => |run, name, value, arguments| {
            let [case_sensitive, attribute] = arguments.bind(name, ["case_sensitive", "attribute"])?;
            let (mut seen, mut kept) = (Items::new(&run.meter)?, Items::new(&run.meter)?);
            'items: for item in run.iterate(&value)?.iter() {
                let key = sort_key(run, item, attribute.as_ref(), flag(case_sensitive.clone()))?;
                for other in seen.iter() {
                    if compare::equal(&run.meter, &key, other)? {
                        continue 'items;
                    }
                }
                seen.push(key)?;
                kept.push(item.clone())?;
            }
            kept.into_list()
        },
        _ => return None,
    };
    Some(found)
}

/// The length of a value. That of an undefined value is 0.
pub(super) fn length(run: &mut Interpreter, value: &Value) -> TemplateResult<Value> {
    Ok(Value::int(match value {
        Value::Undefined => 0,
        Value::Text(string) => {
            run.meter.read(string.len())?;
            string.chars().count()
        }
        Value::List(list) => list.len(),
        Value::Dict(dict) if !dict.is_namespace() => dict.len(),
        other => return refused(format!("{} has no length", other.type_name())),
    }))
}

/// The attribute of an item. Dots lead further (`function.name`).
fn by_attribute(run: &mut Interpreter, item: &Value, attribute: Option<&Value>) -> TemplateResult<Value> {
    match attribute {
        None | Some(Value::None) => Ok(item.clone()),
        Some(Value::Text(path)) => {
            let mut value = item.clone();
            for part in path.split('.') {
                run.meter.step(1)?;
                value = match part.parse::<i128>() {
                    Ok(index) => run.item(&value, &Value::Int(index))?,
                    Err(_) => {
                        let name = text(&run.meter, part)?;
                        run.item(&value, &name)?
                    }
                };
            }
            Ok(value)
        }
        Some(key) => run.item(item, key),
    }
}

/// The key that an item is sorted by. Texts are compared without case unless `is_case_sensitive`.
fn sort_key(
    run: &mut Interpreter,
    item: &Value,
    attribute: Option<&Value>,
    is_case_sensitive: bool,
) -> TemplateResult<Value> {
    attribute.map_or(Ok(()), |attribute| run.read(attribute))?;
    let key = match attribute {
        // Several attributes.
        Some(Value::Text(paths)) if paths.contains(',') => {
            let mut keys = Vec::new();
            for path in paths.split(',') {
                let path = text(&run.meter, path)?;
                keys.push(sort_key(run, item, Some(&path), is_case_sensitive)?);
            }
            return tuple(&run.meter, keys);
        }
        attribute => by_attribute(run, item, attribute)?,
    };
    match &key {
        Value::Text(string) if !is_case_sensitive => {
            let mut out = TextBuilder::new(&run.meter)?;
            string.chars().flat_map(char::to_lowercase).try_for_each(|c| out.push(c))?;
            Ok(out.finish())
        }
        _ => Ok(key),
    }
}

fn join(run: &mut Interpreter, value: &Value, arguments: Arguments) -> TemplateResult<Value> {
    let [between, attribute] = arguments.bind("join", ["d", "attribute"])?;
    let between = match between {
        Some(between) => print::to_text(&run.meter, &between)?,
        None => text(&run.meter, "")?,
    };
    let mut out = TextBuilder::new(&run.meter)?;
    for (index, item) in run.iterate(value)?.iter().enumerate() {
        if index > 0 {
            out.push_str(between.as_str().unwrap_or_default())?;
        }
        let item = by_attribute(run, item, attribute.as_ref())?;
        print::append(&mut out, &item)?;
    }
    Ok(out.finish())
}

/// The items of a value, none if it is false, even if it has no items (`none|map(...)`).
fn iterate_if_true(run: &mut Interpreter, value: &Value) -> TemplateResult<Items> {
    if value.is_true() { run.iterate(value) } else { Items::new(&run.meter) }
}

fn map(run: &mut Interpreter, value: &Value, mut arguments: Arguments) -> TemplateResult<Value> {
    let mut mapped = Items::new(&run.meter)?;
    let items = iterate_if_true(run, value)?;
    if arguments.positional.is_empty() {
        let [attribute, default] = arguments.bind("map", ["attribute", "default"])?;
        let attribute = required("map", attribute)?;
        for item in items.iter() {
            let found = by_attribute(run, item, Some(&attribute))?;
            mapped.push(if found.is_undefined() { default.clone().unwrap_or_default() } else { found })?;
        }
        return mapped.into_list();
    }
    let filter = required("map", arguments.take_first())?;
    let Some(name) = filter.as_str() else { return refused("map: expected the name of a filter") };
    for item in items.iter() {
        let arguments = arguments.copied()?;
        let item = run.deeper(|run| run.apply(name, item.clone(), arguments))?;
        mapped.push(item)?;
    }
    mapped.into_list()
}

fn select(run: &mut Interpreter, name: &str, value: &Value, mut arguments: Arguments) -> TemplateResult<Value> {
    let attribute = if name.ends_with("attr") { Some(required(name, arguments.take_first())?) } else { None };
    let test = arguments.take_first();
    let keeps = name.starts_with("select");
    let mut kept = Items::new(&run.meter)?;
    for item in iterate_if_true(run, value)?.iter() {
        let tested = by_attribute(run, item, attribute.as_ref())?;
        let is_true = match test.as_ref().map(Value::as_str) {
            None => tested.is_true(),
            Some(Some(test)) => {
                let arguments = arguments.copied()?;
                run.test(test, &tested, arguments)?
            }
            Some(None) => return refused(format!("{name}: expected the name of a test")),
        };
        if is_true == keeps {
            kept.push(item.clone())?;
        }
    }
    kept.into_list()
}
