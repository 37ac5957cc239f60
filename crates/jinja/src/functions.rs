//! The functions that every template has.

use crate::arguments::{Arguments, int, required_text};
use crate::error::{Fault, FaultKind, TemplateResult, refused};
use crate::interpreter::Interpreter;
use crate::methods;
use crate::print;
use crate::value::{Items, Value, dict, text};

/// Their names. A function is known by its position.
const NAMES: [&str; 5] = ["range", "dict", "namespace", "raise_exception", "strftime_now"];
/// The maximum length of a range, as in Jinja2's sandbox.
const MAX_RANGE: i128 = 100_000;

pub(crate) fn number(name: &str) -> Option<usize> {
    NAMES.iter().position(|known| *known == name)
}

/// Calls a function.
pub(crate) fn call(run: &mut Interpreter, number: usize, arguments: Arguments) -> TemplateResult<Value> {
    match NAMES.get(number).copied().unwrap_or_default() {
        "range" => range(run, arguments),
        name @ ("dict" | "namespace") => {
            let result = dict(&run.meter, name == "namespace")?;
            methods::update(run, name, &result, arguments)?;
            Ok(Value::Dict(result))
        }
        "raise_exception" => {
            let [message] = arguments.bind("raise_exception", ["message"])?;
            let message = print::to_text(&run.meter, &message.unwrap_or_default())?;
            Err(Fault::new(FaultKind::Raised, message.as_str().unwrap_or_default()))
        }
        _ => {
            let [pattern] = arguments.bind("strftime_now", ["format"])?;
            let pattern = required_text("strftime_now", pattern)?;
            let pattern = pattern.as_str().unwrap_or_default();
            // No conversion is longer than 16 times its letters.
            let _held = run.held(pattern.len().saturating_mul(16))?;
            run.meter.read(pattern.len().saturating_mul(16))?;
            text(&run.meter, &strftime(pattern, run.now))
        }
    }
}

fn range(run: &mut Interpreter, arguments: Arguments) -> TemplateResult<Value> {
    let [first, second, step] = arguments.bind("range", ["start", "stop", "step"])?;
    let (start, stop) = match (first, second) {
        (first, None) => (0, int("range", first, 0)?),
        (first, second) => (int("range", first, 0)?, int("range", second, 0)?),
    };
    let step = int("range", step, 1)?;
    if step == 0 {
        return refused("range: the step cannot be 0");
    }
    let distance = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let count = if distance <= 0 { 0 } else { (distance - 1) / step.saturating_abs() + 1 };
    if count > MAX_RANGE {
        return refused(format!("range: expected at most {MAX_RANGE} numbers, got {count}"));
    }
    let mut items = Items::new(&run.meter)?;
    for position in 0..count {
        items.push(Value::Int(start + position * step))?;
    }
    items.into_list()
}

/// A date in UTC, in seconds since 1970, as C's `strftime` writes it. Unknown conversions are left unchanged.
pub fn strftime(pattern: &str, seconds: u64) -> String {
    let date = i64::try_from(seconds).ok().and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
    date.unwrap_or_default().format_with_items(chrono::format::StrftimeItems::new_lenient(pattern)).to_string()
}
