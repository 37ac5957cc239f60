//! Methods of lists and dictionaries.

use std::rc::Rc;

use crate::arguments::{Arguments, flag, int, required};
use crate::compare;
use crate::error::{TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::value::{Dict, Items, List, Value, dict, tuple};

pub(super) fn list_method(
    run: &mut Interpreter,
    receiver: &Value,
    list: &Rc<List>,
    name: &str,
    arguments: Arguments,
) -> TemplateResult<Value> {
    match name {
        "append" => {
            let [item] = arguments.bind(name, ["object"])?;
            let item = required(name, item)?;
            run.note_modified(receiver, &item)?;
            list.insert(usize::MAX, item)?;
            Ok(Value::None)
        }
        "insert" => {
            let [index, item] = arguments.bind(name, ["index", "object"])?;
            let (index, item) = (int(name, index, 0)?, required(name, item)?);
            // As in Python, an index beyond an end means that end.
            let index = if index < 0 { index.saturating_add(list.len() as i128).max(0) } else { index };
            run.note_modified(receiver, &item)?;
            list.insert(usize::try_from(index).unwrap_or(usize::MAX), item)?;
            Ok(Value::None)
        }
        "extend" => {
            let [items] = arguments.bind(name, ["iterable"])?;
            for item in run.iterate(&required(name, items)?)?.iter() {
                run.note_modified(receiver, item)?;
                list.insert(usize::MAX, item.clone())?;
            }
            Ok(Value::None)
        }
        "pop" => {
            let [index] = arguments.bind(name, ["index"])?;
            let index = Value::Int(int(name, index, -1)?);
            let removed = match index.index_in(list.len()) {
                Some(index) => list.remove(index)?,
                None => None,
            };
            removed.map_or_else(|| refused("pop: the list has no such item"), Ok)
        }
        "remove" | "index" => {
            let [item] = arguments.bind(name, ["value"])?;
            let item = required(name, item)?;
            for index in 0..list.len() {
                if compare::equal(&run.meter, &list.get(index).unwrap_or_default(), &item)? {
                    if name == "index" {
                        return Ok(Value::int(index));
                    }
                    drop(list.remove(index)?);
                    return Ok(Value::None);
                }
            }
            refused(format!("{name}: the list has no such item"))
        }
        "count" => {
            let [item] = arguments.bind(name, ["value"])?;
            let (item, mut count) = (required(name, item)?, 0);
            for index in 0..list.len() {
                count += usize::from(compare::equal(&run.meter, &list.get(index).unwrap_or_default(), &item)?);
            }
            Ok(Value::int(count))
        }
        "clear" => {
            list.replace(Vec::new())?;
            Ok(Value::None)
        }
        "copy" => list.items()?.into_list(),
        "reverse" => {
            let mut items = list.items()?;
            items.as_mut().reverse();
            list.replace(items.into_vec())?;
            Ok(Value::None)
        }
        "sort" => {
            let [reverse] = arguments.bind(name, ["reverse"])?;
            let mut keyed: Vec<_> = list.items()?.iter().map(|item| (item.clone(), Value::None)).collect();
            compare::sort(&run.meter, &mut keyed, flag(reverse))?;
            list.replace(keyed.into_iter().map(|(item, _)| item).collect())?;
            Ok(Value::None)
        }
        _ => refused(format!("{} has no method '{name}'", receiver.type_name())),
    }
}

pub(super) fn dict_method(
    run: &mut Interpreter,
    receiver: &Value,
    pairs: &Rc<Dict>,
    name: &str,
    arguments: Arguments,
) -> TemplateResult<Value> {
    let meter = Rc::clone(&run.meter);
    let found = |key: &Value| -> TemplateResult<Option<usize>> { compare::find(&meter, pairs, key) };
    match name {
        "get" => {
            let [key, default] = arguments.bind(name, ["key", "default"])?;
            let value = match required(name, key)? {
                Value::Text(key) => pairs.get(&key)?,
                key => found(&key)?.and_then(|at| pairs.at(at)).map(|(_, value)| value),
            };
            Ok(value.or(default).unwrap_or(Value::None))
        }
        "items" | "keys" | "values" => {
            let [] = arguments.bind(name, [])?;
            let mut items = Items::new(&run.meter)?;
            for (key, value) in pairs.pairs()? {
                items.push(match name {
                    "items" => tuple(&run.meter, vec![key, value])?,
                    "keys" => key,
                    _ => value,
                })?;
            }
            items.into_list()
        }
        "pop" => {
            let [key, default] = arguments.bind(name, ["key", "default"])?;
            match (found(&required(name, key)?)?, default) {
                (Some(at), _) => Ok(pairs.remove_at(at)?.map_or(Value::None, |(_, value)| value)),
                (None, Some(default)) => Ok(default),
                (None, None) => refused("pop: the dictionary has no such key"),
            }
        }
        "setdefault" => {
            let [key, default] = arguments.bind(name, ["key", "default"])?;
            let (key, default) = (required(name, key)?, default.unwrap_or(Value::None));
            if let Some((_, value)) = found(&key)?.and_then(|at| pairs.at(at)) {
                return Ok(value);
            }
            run.note_modified(receiver, &default)?;
            run.note_modified(receiver, &key)?;
            compare::insert(&run.meter, pairs, key, default.clone())?;
            Ok(default)
        }
        "update" => {
            let Arguments { positional, named, held: _held } = arguments;
            for given in positional {
                let Value::Dict(other) = given else { return refused("update: expected a dictionary") };
                for (key, value) in other.pairs()? {
                    run.note_modified(receiver, &value)?;
                    run.note_modified(receiver, &key)?;
                    compare::insert(&run.meter, pairs, key, value)?;
                }
            }
            for (key, value) in named {
                run.note_modified(receiver, &value)?;
                pairs.set(&key, value)?;
            }
            Ok(Value::None)
        }
        "copy" => {
            let copy = dict(&run.meter, false)?;
            for (key, value) in pairs.pairs()? {
                copy.push(key, value)?;
            }
            Ok(Value::Dict(copy))
        }
        "clear" => {
            pairs.clear();
            Ok(Value::None)
        }
        _ => refused(format!("{} has no method '{name}'", receiver.type_name())),
    }
}
