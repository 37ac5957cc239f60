//! Filters of texts.

use crate::arguments::{Arguments, flag, required, size};
use crate::error::TemplateResult;
use crate::interpreter::{Filter, Interpreter};
use crate::methods;
use crate::print;
use crate::text::TextBuilder;
use crate::value::Value;

/// The filter of that name, which gets a text.
pub(super) fn find(name: &str) -> Option<Filter> {
    let found: Filter = match name {
        "lower" | "upper" | "capitalize" | "split" | "strip" | "lstrip" | "rstrip" => {
            |run, name, value, arguments| methods::call(run, &value, name, arguments)
        }
        "trim" => |run, name, value, arguments| {
            let [chars] = arguments.bind(name, ["chars"])?;
            let chars = chars.filter(|chars| !chars.is_undefined());
            methods::call(run, &value, "strip", Arguments::of(&run.meter, chars)?)
        },
        "title" => |run, _, value, _| {
            let mut out = TextBuilder::new(&run.meter)?;
            let mut begins = true;
            for c in value.as_str().unwrap_or_default().chars() {
                if begins {
                    c.to_uppercase().try_for_each(|c| out.push(c))?;
                } else {
                    c.to_lowercase().try_for_each(|c| out.push(c))?;
                }
                begins = c.is_whitespace() || "-({[<".contains(c);
            }
            Ok(out.finish())
        },
        "replace" => |run, name, value, arguments| {
            let [old, new, count] = arguments.bind(name, ["old", "new", "count"])?;
            let mut parts = Arguments::new(&run.meter)?;
            for part in [old, new] {
                parts.push(print::to_text(&run.meter, &required(name, part)?)?)?;
            }
            if let Some(count) = count.filter(|count| !matches!(count, Value::None | Value::Undefined)) {
                parts.push(count)?;
            }
            methods::call(run, &value, name, parts)
        },
        "indent" => |run, _, value, arguments| indent(run, value.as_str().unwrap_or_default(), arguments),
        _ => return None,
    };
    Some(found)
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
