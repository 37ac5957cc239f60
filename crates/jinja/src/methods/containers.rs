//! Methods of lists and dictionaries.

use std::rc::Rc;

use crate::arguments::{Arguments, flag, int, required};
use crate::compare;
use crate::error::{TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::value::{Dict, Items, List, Value, dict, tuple};

/// A method of a list or a dictionary: gets it as a value and as what it is, its own name and its arguments.
pub(super) type ContainerMethod<T> = fn(&mut Interpreter, &Value, &Rc<T>, &str, Arguments) -> TemplateResult<Value>;

/// The method of lists of that name.
pub(super) fn of_list(name: &str) -> Option<ContainerMethod<List>> {
    let found: ContainerMethod<List> = match name {
        "append" => |run, receiver, list, name, arguments| {
            let [item] = arguments.bind(name, ["object"])?;
            let item = required(name, item)?;
            run.note_modified(receiver, &item)?;
            list.insert(usize::MAX, item)?;
            Ok(Value::None)
        },
        "insert" => |run, receiver, list, name, arguments| {
            let [index, item] = arguments.bind(name, ["index", "object"])?;
            let (index, item) = (int(name, index, 0)?, required(name, item)?);
            // As in Python, an index beyond an end means that end.
            let index = if index < 0 { index.saturating_add(list.len() as i128).max(0) } else { index };
            run.note_modified(receiver, &item)?;
            list.insert(usize::try_from(index).unwrap_or(usize::MAX), item)?;
            Ok(Value::None)
        },
        "extend" => |run, receiver, list, name, arguments| {
            let [items] = arguments.bind(name, ["iterable"])?;
            for item in run.iterate(&required(name, items)?)?.iter() {
                run.note_modified(receiver, item)?;
                list.insert(usize::MAX, item.clone())?;
            }
            Ok(Value::None)
        },
        "pop" => |_, _, list, name, arguments| {
            let [index] = arguments.bind(name, ["index"])?;
            let index = Value::Int(int(name, index, -1)?);
            let removed = match index.index_in(list.len()) {
                Some(index) => list.remove(index)?,
                None => None,
            };
            removed.map_or_else(|| refused("pop: the list has no such item"), Ok)
        },
        "remove" | "index" => |run, _, list, name, arguments| {
            let [item] = arguments.bind(name, ["value"])?;
            let item = required(name, item)?;
            for index in 0..list.len() {
                if compare::equal(&run.meter, &list.at(index).unwrap_or_default(), &item)? {
                    if name == "index" {
                        return Ok(Value::int(index));
                    }
                    drop(list.remove(index)?);
                    return Ok(Value::None);
                }
            }
            refused(format!("{name}: the list has no such item"))
        },
        "count" => |run, _, list, name, arguments| {
            let [item] = arguments.bind(name, ["value"])?;
            let (item, mut count) = (required(name, item)?, 0);
            for index in 0..list.len() {
                count += usize::from(compare::equal(&run.meter, &list.at(index).unwrap_or_default(), &item)?);
            }
            Ok(Value::int(count))
        },
        "clear" => |_, _, list, _, _| {
            list.replace(Vec::new())?;
            Ok(Value::None)
        },
        "copy" => |_, _, list, _, _| list.items()?.into_list(),
        "reverse" => |_, _, list, _, _| {
            let mut items = list.items()?;
            items.reverse();
            list.replace(items.into_vec())?;
            Ok(Value::None)
        },
        "sort" => |run, _, list, name, arguments| {
            let [reverse] = arguments.bind(name, ["reverse"])?;
            let mut keyed: Vec<_> = list.items()?.iter().map(|item| (item.clone(), Value::None)).collect();
            compare::sort(&run.meter, &mut keyed, flag(reverse))?;
            list.replace(keyed.into_iter().map(|(item, _)| item).collect())?;
            Ok(Value::None)
        },
        _ => return None,
    };
    Some(found)
}

/// The method of dictionaries of that name.
pub(super) fn of_dict(name: &str) -> Option<ContainerMethod<Dict>> {
    let found: ContainerMethod<Dict> = match name {
        "get" => |run, _, pairs, name, arguments| {
            let [key, default] = arguments.bind(name, ["key", "default"])?;
            let value = match required(name, key)? {
                Value::Text(key) => pairs.get(&key)?,
                key => compare::find(&run.meter, pairs, &key)?.and_then(|at| pairs.at(at)).map(|(_, value)| value),
            };
            Ok(value.or(default).unwrap_or(Value::None))
        },
        "items" | "keys" | "values" => |run, _, pairs, name, arguments| {
            let [] = arguments.bind(name, [])?;
            let mut items = Items::new(&run.meter)?;
            for (key, value) in pairs.items()?.drain(..) {
                items.push(match name {
                    "items" => tuple(&run.meter, vec![key, value])?,
                    "keys" => key,
                    _ => value,
                })?;
            }
            items.into_list()
        },
        "pop" => |run, _, pairs, name, arguments| {
            let [key, default] = arguments.bind(name, ["key", "default"])?;
            match (compare::find(&run.meter, pairs, &required(name, key)?)?, default) {
                (Some(at), _) => Ok(pairs.remove(at)?.map_or(Value::None, |(_, value)| value)),
                (None, Some(default)) => Ok(default),
                (None, None) => refused("pop: the dictionary has no such key"),
            }
        },
        "setdefault" => |run, receiver, pairs, name, arguments| {
            let [key, default] = arguments.bind(name, ["key", "default"])?;
            let (key, default) = (required(name, key)?, default.unwrap_or(Value::None));
            if let Some((_, value)) = compare::find(&run.meter, pairs, &key)?.and_then(|at| pairs.at(at)) {
                return Ok(value);
            }
            run.note_modified(receiver, &default)?;
            run.note_modified(receiver, &key)?;
            compare::insert(&run.meter, pairs, key, default.clone())?;
            Ok(default)
        },
        "update" => |run, _, pairs, name, arguments| {
            update(run, name, pairs, arguments)?;
            Ok(Value::None)
        },
        "copy" => |run, _, pairs, _, _| {
            let copy = dict(&run.meter, false)?;
            for (key, value) in pairs.items()?.drain(..) {
                copy.push(key, value)?;
            }
            Ok(Value::Dict(copy))
        },
        "clear" => |_, _, pairs, _, _| {
            pairs.replace(Vec::new())?;
            Ok(Value::None)
        },
        _ => return None,
    };
    Some(found)
}

/// Adds pairs to a dictionary, as Python's `dict.update` does: those of dictionaries and of lists of pairs, then named arguments.
pub(crate) fn update(run: &mut Interpreter, name: &str, pairs: &Rc<Dict>, arguments: Arguments) -> TemplateResult<()> {
    let Arguments { positional, named, held: _held } = arguments;
    let receiver = Value::Dict(Rc::clone(pairs));
    let insert = |run: &mut Interpreter, key: Value, value: Value| {
        run.note_modified(&receiver, &value)?;
        run.note_modified(&receiver, &key)?;
        compare::insert(&run.meter, pairs, key, value)
    };
    for given in positional {
        if let Value::Dict(other) = &given {
            for (key, value) in other.items()?.drain(..) {
                insert(run, key, value)?;
            }
            continue;
        }
        for pair in run.iterate(&given)?.iter() {
            let [key, value] = &run.iterate(pair)?[..] else { return refused(format!("{name}: expected pairs")) };
            insert(run, key.clone(), value.clone())?;
        }
    }
    for (key, value) in named {
        run.note_modified(&receiver, &value)?;
        pairs.set(&key, value)?;
    }
    Ok(())
}
