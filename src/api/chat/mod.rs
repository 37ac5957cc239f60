//! Jinja chat templates, rendered by `foredraft_jinja`, and chats that exceed the context.
//!
//! The settings are those of `apply_chat_template` in Hugging Face's transformers, for which the templates are written. The messages
//! are first adapted to the template, as llama.cpp's `common/chat.cpp` does. A template comes from a model file or from a request,
//! and can be hostile. So a rendering has a limit on its steps and on its memory, which grow with the messages, and it can be
//! interrupted.

mod named;
mod overflow;
mod probe;
mod shape;
mod source;
mod taint;
mod vanished;

use std::time::{SystemTime, UNIX_EPOCH};

use foredraft_base::stack;
use foredraft_jinja::{Fault, FaultKind, Interrupt, Limits, Run, STACK, Template, Value, strftime};
use serde_json::{Map, Value as Json};

pub(super) use self::overflow::{FittedChat, drop_turns};
use self::shape::MessageShape;
use self::source::NAME;
pub(super) use self::source::named as named_template;
use self::taint::Marker;
pub use self::taint::Rendered;
use crate::error::{Code, Error, Result};
use crate::llama::SpecialTokens;

/// The maximum number of steps of a rendering, without those that the messages add.
const STEPS: u64 = 4_000_000;
/// Steps that are added for each pair of messages. Templates that look at all messages for each message take up to 15 of them.
const PAIR_STEPS: u64 = 40;
/// Steps that are added for each byte of the variables.
const BYTE_STEPS: u64 = 8;
/// The maximum number of steps of a rendering that probes a template.
const PROBE_STEPS: u64 = 100_000;
/// The maximum memory of a rendering in bytes, output included, without what the variables add.
const MEMORY: usize = 64 << 20;
/// Memory that is added for each byte of the variables.
const BYTE_MEMORY: usize = 8;
/// The maximum size of a template in bytes. The longest one that llama.cpp knows has 17 KB.
const MAX_SOURCE: usize = 64 << 10;

/// A parsed chat template. Immutable, so several threads can render it at the same time.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    /// The string literals in its source, sorted, without duplicates.
    literals: Vec<String>,
    shape: MessageShape,
}

/// The input of a template.
#[derive(Clone, Copy)]
pub struct RenderInput<'a> {
    /// Objects with a string `role`, and `content`, `tool_calls` and so on.
    pub messages: &'a [Json],
    /// The prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The text of the BOS token, or "".
    pub bos_token: &'a str,
    /// The text of the EOS token, or "".
    pub eos_token: &'a str,
    /// The request's `tools`, an array. None, null and `[]` are equivalent.
    pub tools: Option<&'a Json>,
    /// The request's `chat_template_kwargs`, as variables of the template. They override all variables except `messages` and
    /// `add_generation_prompt`.
    pub kwargs: &'a Map<String, Json>,
    /// The time of `strftime_now`, `date_string` and `datetime`, in UTC.
    pub now: SystemTime,
    /// Whether to stop, asked every few thousand steps.
    pub interrupt: Option<&'a Interrupt>,
}

impl ChatTemplate {
    /// Parses a template, or the template with this name, and renders probe messages to find the form of messages that it expects.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`], `chat_template: ...` with the line: it is not a Jinja template, or it exceeds a limit with a few short
    /// messages.
    pub fn parse(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Error::invalid(format!("{NAME}: expected at most {MAX_SOURCE} bytes, got {}", source.len())));
        }
        let source = source::named(source)?;
        stack::with(STACK, NAME, || {
            let template = Template::parse(&source).map_err(|fault| failure(&fault))?;
            let mut literals: Vec<String> = template.literals().map(str::to_owned).collect();
            literals.sort_unstable();
            literals.dedup();
            let mut template = ChatTemplate { template, literals, shape: MessageShape::default() };
            template.shape = template.probe()?;
            Ok(template)
        })
    }

    /// Renders the prompt.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`]: `messages[2].role: ...` if a message is invalid; `chat_template: ...` with the line if the template
    /// fails, calls `raise_exception`, or exceeds a limit. [`Code::Cancelled`]: it was interrupted.
    pub fn render(&self, input: &RenderInput) -> Result<String> {
        let (variables, seconds) = self.variables(input)?;
        self.rendered(&variables, seconds, input)
    }

    /// Renders the prompt, and marks the parts that come from messages, as far as control tokens are concerned (see `taint.rs`).
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_tainted(&self, input: &RenderInput, specials: &SpecialTokens) -> Result<Rendered> {
        let (variables, seconds) = self.variables(input)?;
        let marker = Marker::new(&self.literals, &variables, specials)?;
        let variables = marker.mark_variables(variables);
        Ok(marker.remove_marks(self.rendered(&variables, seconds, input)?))
    }

    fn rendered(&self, variables: &Map<String, Json>, seconds: u64, input: &RenderInput) -> Result<String> {
        let limits = limits(variables, input.messages.len(), input.interrupt);
        stack::with(STACK, NAME, || self.run(variables, seconds, limits).map_err(|fault| failure(&fault)))
    }

    /// The template's variables, and the current time in seconds since 1970.
    fn variables(&self, input: &RenderInput) -> Result<(Map<String, Json>, u64)> {
        let messages = self.shape.messages(input.messages)?;
        let tools = input.tools.filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let seconds = input.now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // llama-server's defaults. Absent variables stay undefined, because templates fail when they iterate over null.
        let mut variables = Map::from_iter([
            ("bos_token".to_owned(), input.bos_token.into()),
            ("eos_token".to_owned(), input.eos_token.into()),
            ("enable_thinking".to_owned(), true.into()),
            ("date_string".to_owned(), strftime("%d %b %Y", seconds).into()),
            ("datetime".to_owned(), strftime("%b %d %Y", seconds).into()),
        ]);
        variables.extend(tools.map(|tools| ("tools".to_owned(), shape::completed_tools(tools))));
        variables.extend(input.kwargs.clone());
        variables.insert("messages".to_owned(), Json::Array(messages));
        variables.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
        Ok((variables, seconds))
    }

    /// Renders the template with these variables. `now` is in seconds since 1970. Needs [`STACK`] bytes of stack.
    fn run(&self, variables: &Map<String, Json>, now: u64, limits: Limits) -> foredraft_jinja::Result<String> {
        let run = Run::new(limits);
        let mut values = Vec::with_capacity(variables.len());
        for (name, json) in variables {
            values.push((name.as_str(), value(&run, json)?));
        }
        self.template.render(&run, values, now)
    }
}

/// Converts JSON to a template's value. Objects keep the order of their keys.
fn value(run: &Run, json: &Json) -> foredraft_jinja::Result<Value> {
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
            let items = items.iter().map(|item| value(run, item)).collect::<foredraft_jinja::Result<_>>()?;
            run.list(items)?
        }
        Json::Object(map) => {
            let pairs = map.iter().map(|(name, item)| Ok((run.text(name)?, value(run, item)?)));
            run.dict(pairs.collect::<foredraft_jinja::Result<Vec<_>>>()?)?
        }
    })
}

/// JSON text as Python's `json.dumps` writes it.
///
/// # Errors
/// The value is too large.
fn json_text(json: &Json) -> Result<String> {
    let run = Run::new(limits(&Map::from_iter([(String::new(), json.clone())]), 0, None));
    value(&run, json).and_then(|value| run.json(&value)).map_err(|fault| Error::invalid(fault.message))
}

/// The limits of a rendering with these variables.
fn limits(variables: &Map<String, Json>, n_messages: usize, interrupt: Option<&Interrupt>) -> Limits {
    let n_bytes: usize = variables.values().map(size).sum();
    let pairs = (n_messages as u64).saturating_pow(2);
    Limits {
        steps: STEPS
            .saturating_add(pairs.saturating_mul(PAIR_STEPS))
            .saturating_add((n_bytes as u64).saturating_mul(BYTE_STEPS)),
        memory: MEMORY.saturating_add(n_bytes.saturating_mul(BYTE_MEMORY)),
        interrupt: interrupt.cloned(),
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

fn failure(fault: &Fault) -> Error {
    let message = match fault.kind {
        FaultKind::Syntax => format!("{NAME}: syntax error: {fault}"),
        _ => format!("{NAME}: {fault}"),
    };
    let code = if fault.kind == FaultKind::Interrupted { Code::Cancelled } else { Code::InvalidRequest };
    Error::new(code, message)
}

#[cfg(test)]
mod message_tests;
#[cfg(test)]
mod tests;
