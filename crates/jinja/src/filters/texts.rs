//! Filters of texts.

use std::rc::Rc;

use crate::arguments::{Arguments, flag, required, size};
use crate::error::TemplateResult;
use crate::interpreter::Interpreter;
use crate::methods;
use crate::print;
use crate::text::TextBuilder;
use crate::value::Value;

/// Applies a filter. Values that are not texts are printed first, as in Jinja2.
pub(super) fn call(run: &mut Interpreter, name: &str, value: Value, arguments: Arguments) -> TemplateResult<Value> {
    let value = print::to_text(&run.meter, &value)?;
    let string = value.as_str().unwrap_or_default();
    let meter = Rc::clone(&run.meter);
    let meter = &meter;
    match name {
        "lower" | "upper" | "capitalize" | "split" | "strip" | "lstrip" | "rstrip" => {
            methods::call(run, &value, name, arguments)
        }
        "trim" => {
            let [chars] = arguments.bind(name, ["chars"])?;
            let chars = chars.filter(|chars| !chars.is_undefined());
            methods::call(run, &value, "strip", Arguments::of(meter, chars)?)
        }
        "title" => {
            let mut out = TextBuilder::new(meter)?;
            let mut begins = true;
            for c in string.chars() {
                if begins {
                    c.to_uppercase().try_for_each(|c| out.push(c))?;
                } else {
                    c.to_lowercase().try_for_each(|c| out.push(c))?;
                }
                begins = c.is_whitespace() || "-({[<".contains(c);
            }
            Ok(out.finish())
        }
        "replace" => {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let mut parts = Arguments::new(meter)?;
            for part in [old, new] {
                parts.push(print::to_text(meter, &required(name, part)?)?)?;
            }
            if let Some(count) = count.filter(|count| !matches!(count, Value::None | Value::Undefined)) {
                parts.push(count)?;
            }
            methods::call(run, &value, name, parts)
        }
        _ => indent(run, string, arguments),
    }
}

fn indent(run: &mut Interpreter, string: &str, arguments: Arguments) -> TemplateResult<Value> {
    let [width, first, blank] = arguments.bind("indent", ["width", "first", "blank"])?;
    let (first, blank) = (flag(first), flag(blank));
    let mut indentation = TextBuilder::new(&run.meter)?;
    match width {
        Some(Value::Text(text)) => indentation.push_str(&text)?,
        other => indentation.repeat(" ", size("indent", other, 4)?)?,
    }
    let mut out = TextBuilder::new(&run.meter)?;
    for (index, line) in string.split('\n').enumerate() {
        out.push_str(if index == 0 { "" } else { "\n" })?;
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            out.push_str(&indentation)?;
        }
        out.push_str(line)?;
    }
    Ok(out.finish())
}
