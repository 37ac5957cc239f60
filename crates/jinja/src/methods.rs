//! Python's methods of texts, lists and dictionaries, as far as templates use them.

mod containers;
mod texts;

pub(crate) use self::containers::update;

use std::rc::Rc;

use crate::arguments::Arguments;
use crate::error::{TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::value::{ListKind, Value};

/// Whether a value has a method of that name.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => texts::find(name).is_some(),
        Value::List(list) if list.kind() == ListKind::Tuple => matches!(name, "count" | "index"),
        Value::List(_) => containers::of_list(name).is_some(),
        Value::Dict(dict) => !dict.is_namespace() && containers::of_dict(name).is_some(),
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
    let meter = Rc::clone(&run.meter);
    let called = match receiver {
        Value::Text(string) => texts::find(name).map(|method| method(run, &meter, string, name, arguments)),
        Value::List(list) => containers::of_list(name).map(|method| method(run, receiver, list, name, arguments)),
        Value::Dict(dict) => containers::of_dict(name).map(|method| method(run, receiver, dict, name, arguments)),
        _ => None,
    };
    called.unwrap_or_else(|| refused(format!("{} has no method '{name}'", receiver.type_name())))
}
