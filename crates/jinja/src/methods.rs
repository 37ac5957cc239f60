//! Python's methods of texts, lists and dictionaries, as far as templates use them.

mod containers;
mod texts;

use crate::arguments::Arguments;
use crate::error::{TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::value::{ListKind, Value};

/// Whether a value has a method of that name.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => matches!(
            name,
            "capitalize"
                | "count"
                | "endswith"
                | "find"
                | "format"
                | "index"
                | "join"
                | "lower"
                | "lstrip"
                | "removeprefix"
                | "removesuffix"
                | "replace"
                | "rfind"
                | "rindex"
                | "rsplit"
                | "rstrip"
                | "split"
                | "splitlines"
                | "startswith"
                | "strip"
                | "title"
                | "upper"
        ),
        Value::List(list) if list.kind() == ListKind::Tuple => matches!(name, "count" | "index"),
        Value::List(_) => matches!(
            name,
            "append"
                | "clear"
                | "copy"
                | "count"
                | "extend"
                | "index"
                | "insert"
                | "pop"
                | "remove"
                | "reverse"
                | "sort"
        ),
        Value::Dict(dict) if !dict.is_namespace() => {
            matches!(name, "clear" | "copy" | "get" | "items" | "keys" | "pop" | "setdefault" | "update" | "values")
        }
        _ => false,
    }
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
        other => refused(format!("{} has no method '{name}'", other.type_name())),
    }
}
