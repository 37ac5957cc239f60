//! Python's methods of texts, lists and dictionaries, as far as templates use them.

mod containers;
mod texts;

use crate::arguments::Arguments;
use crate::error::{TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::value::{Callable, Items, Value};

const TEXT: [&str; 30] = [
    "capitalize",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isdigit",
    "islower",
    "isspace",
    "isupper",
    "join",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
    "upper",
];
const LIST: [&str; 10] = ["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse"];
const TUPLE: [&str; 2] = ["count", "index"];
const DICT: [&str; 9] = ["clear", "copy", "get", "items", "keys", "pop", "setdefault", "update", "values"];
const CYCLER: [&str; 2] = ["next", "reset"];
const LOOP: [&str; 2] = ["cycle", "changed"];

/// Whether a value has a method of that name.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    let names: &[&str] = match value {
        Value::Text(_) => &TEXT,
        Value::List(list) if list.kind() == crate::value::ListKind::List => &LIST,
        Value::List(_) => &TUPLE,
        Value::Dict(dict) if !dict.is_namespace() => &DICT,
        Value::Loop(_) => &LOOP,
        Value::Callable(callable) if matches!(**callable, Callable::Cycler(..)) => &CYCLER,
        _ => &[],
    };
    names.contains(&name) || name == "sort" && matches!(value, Value::List(_))
}

/// Calls a method.
pub(crate) fn call(run: &mut Interpreter, receiver: &Value, name: &str, arguments: Arguments) -> TemplateResult<Value> {
    run.meter.step(1)?;
    run.read(receiver)?;
    for argument in &arguments.positional {
        run.read(argument)?;
    }
    match receiver {
        Value::Text(string) => texts::call(run, string, name, arguments),
        Value::List(list) => containers::list_method(run, receiver, list, name, arguments),
        Value::Dict(dict) => containers::dict_method(run, receiver, dict, name, arguments),
        Value::Loop(state) if name == "cycle" => {
            let at = state.index.get().checked_rem(arguments.positional.len());
            match at.and_then(|at| arguments.positional.get(at)) {
                Some(value) => Ok(value.clone()),
                None => refused("cycle: expected at least one item"),
            }
        }
        Value::Loop(state) => {
            let mut given = Items::new(&run.meter)?;
            for value in arguments.positional {
                run.note_modified(receiver, &value)?;
                given.push(value)?;
            }
            let same = {
                let last = state.last.borrow();
                let mut same = last.len() == given.len();
                for (one, other) in last.iter().zip(given.iter()) {
                    same = same && crate::compare::equal(&run.meter, one, other)?;
                }
                same && !last.is_empty()
            };
            let before = state.last.replace(given);
            drop(before);
            Ok(Value::Bool(!same))
        }
        Value::Callable(callable) => match callable.as_ref() {
            Callable::Cycler(items, position) if name == "next" => {
                let index = position.get();
                position.set((index + 1) % items.len().max(1));
                Ok(items.get(index).cloned().unwrap_or_default())
            }
            Callable::Cycler(_, position) => {
                position.set(0);
                Ok(Value::None)
            }
            _ => refused(format!("a function has no method '{name}'")),
        },
        other => refused(format!("{} has no method '{name}'", other.type_name())),
    }
}
