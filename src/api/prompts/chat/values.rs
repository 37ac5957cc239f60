//! A template's values, made of JSON, and the limits of a rendering.

use foredraft_jinja::{Fault, FaultKind, MAX_DEPTH, RenderLimits, Run, StopSignal, Value};
use serde_json::{Map, Value as Json};

use crate::api::wire::template_name::NAME;
use crate::error::{Code, Error, Result};

/// The maximum number of steps of a rendering, without those that the messages add.
const STEPS: u64 = 4_000_000;
/// Steps that are added for each pair of messages. Templates that look at all messages for each message take up to 15 of them.
const PAIR_STEPS: u64 = 24;
/// Steps that are added for each byte of the variables.
const BYTE_STEPS: u64 = 8;
/// The maximum number of steps of a rendering that probes a template.
pub(super) const PROBE_STEPS: u64 = 100_000;
/// The maximum memory of a rendering in bytes, output included, without what the variables add.
pub(super) const MEMORY: usize = 64 << 20;
/// The maximum length of a prompt that probes a template, in bytes. Every template of llama.cpp's collection needs a tenth of it.
pub(super) const PROBE_OUTPUT: usize = 64 << 10;
/// The maximum length of a prompt in bytes, without what the variables add. What is done with a prompt takes time with its length.
const OUTPUT: usize = 256 << 10;
/// Memory and output that are added for each byte of the variables.
const BYTE_MEMORY: usize = 8;

/// Converts JSON to a template's value. Objects keep the order of their keys.
pub(super) fn value(run: &Run, json: &Json) -> foredraft_jinja::TemplateResult<Value> {
    Ok(match json {
        Json::Null => Value::None,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number.into()),
            (_, Some(number)) => Value::Int(number.into()),
            _ => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => run.text(text)?,
        Json::Array(items) => {
            let items = items.iter().map(|item| value(run, item)).collect::<foredraft_jinja::TemplateResult<_>>()?;
            run.list(items)?
        }
        Json::Object(map) => {
            let pairs = map.iter().map(|(name, item)| Ok((run.text(name)?, value(run, item)?)));
            run.dict(pairs.collect::<foredraft_jinja::TemplateResult<Vec<_>>>()?)?
        }
    })
}

/// JSON text as Python's `json.dumps` writes it.
///
/// # Errors
/// The value is too large.
pub(super) fn json_text(json: &Json) -> Result<String> {
    let run = Run::new(limits(&Map::from_iter([(String::new(), json.clone())]), 0, None));
    value(&run, json).and_then(|value| run.json(&value)).map_err(|fault| Error::invalid(fault.message))
}

/// The limits of a rendering with these variables.
pub(super) fn limits(variables: &Map<String, Json>, n_messages: usize, interrupt: Option<&StopSignal>) -> RenderLimits {
    let n_bytes: usize = variables.values().map(size).sum();
    let pairs = (n_messages as u64).saturating_pow(2);
    RenderLimits {
        steps: STEPS
            .saturating_add(pairs.saturating_mul(PAIR_STEPS))
            .saturating_add((n_bytes as u64).saturating_mul(BYTE_STEPS)),
        memory: MEMORY.saturating_add(n_bytes.saturating_mul(BYTE_MEMORY)),
        output: OUTPUT.saturating_add(n_bytes.saturating_mul(BYTE_MEMORY)),
        depth: MAX_DEPTH,
        interrupt: interrupt.cloned(),
        mark: None,
    }
}

/// About the memory of a value as a template's value, in bytes.
fn size(json: &Json) -> usize {
    const NODE: usize = 64;
    NODE + match json {
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(size).sum(),
        Json::Object(map) => map.iter().map(|(name, item)| NODE + name.len() + size(item)).sum(),
    }
}

pub(super) fn failure(fault: &Fault) -> Error {
    let message = match fault.kind {
        FaultKind::Syntax => format!("{NAME}: syntax error: {fault}"),
        _ => format!("{NAME}: {fault}"),
    };
    let code = if fault.kind == FaultKind::Interrupted { Code::Cancelled } else { Code::InvalidRequest };
    Error::new(code, message)
}
