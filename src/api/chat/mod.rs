//! Jinja chat templates, rendered by `minijinja`, and chats that exceed the context.
//!
//! The settings are those of `apply_chat_template` in Hugging Face's transformers, for which the templates are written. The messages
//! are first adapted to the template, as llama.cpp's `common/chat.cpp` does. A template comes from a model file or from a request,
//! so the steps, the output and the nesting of calls are limited. minijinja cannot limit the size and depth of the values that a
//! template builds (`x ~ x` in a loop, a namespace that contains itself). So templates must be trusted as much as model files.

mod filters;
mod lists;
mod overflow;
mod shape;
mod source;
mod taint;

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json, json};

use self::filters::MAX_OUTPUT;
pub(super) use self::overflow::{FittedChat, drop_turns};
use self::shape::{ContentForm, MessageShape};
use self::source::NAME;
pub(super) use self::source::named as named_template;
use self::taint::Marker;
pub use self::taint::Rendered;
use crate::error::{Code, Error, Result};
use crate::llama::SpecialTokens;
use foredraft_base::stack;

/// The maximum number of minijinja's instructions for one rendering.
const FUEL: u64 = 10_000_000;
/// The same for a rendering that probes a template.
const PROBE_FUEL: u64 = 100_000;
/// The maximum size of a template in bytes. The longest one that llama.cpp knows has 17 KB.
const MAX_SOURCE: usize = 64 << 10;
/// The maximum nesting of macro calls, loops and blocks. A macro call counts as several levels.
const MAX_NESTING: usize = 300;
/// The stack size of the thread that renders, in bytes. A host's threads may have small stacks. The memory is only reserved; it is
/// used only if a template nests deeply.
const STACK: usize = 256 << 20;
/// Texts in the probe messages that do not occur in any template.
const MARKS: [&str; 3] = ["probe-content-71c3", "probe_key_71c3", "probe-value-71c3"];

/// A parsed chat template. Immutable, so several threads can render it at the same time.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    /// The string literals in its source.
    literals: Vec<String>,
    shape: MessageShape,
}

/// The input of a template.
#[derive(Debug, Clone, Copy)]
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
}

impl ChatTemplate {
    /// Parses a template, or the template with this name, and renders probe messages to find the form of messages that it expects.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`], `chat_template: ...` with the line: it is not a Jinja template.
    pub fn parse(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Error::invalid(format!("{NAME}: expected at most {MAX_SOURCE} bytes, got {}", source.len())));
        }
        let source = source::named(source)?;
        let developer = source.contains("developer");
        stack::with(STACK, NAME, || {
            let mut env = environment()?;
            env.add_template_owned(NAME, source::rewritten(source)).map_err(|error| failure(&error))?;
            env.set_fuel(Some(PROBE_FUEL));
            let mut template = ChatTemplate { env, literals: source::literals(source), shape: MessageShape::default() };
            template.shape = template.probe(developer);
            template.env.set_fuel(Some(FUEL));
            Ok(template)
        })
    }

    /// Renders the prompt.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`]: `messages[2].role: ...` if a message is invalid; `chat_template: ...` with the line if the template
    /// fails, calls `raise_exception`, or exceeds a limit.
    pub fn render(&self, input: &RenderInput) -> Result<String> {
        let (variables, seconds) = self.variables(input)?;
        stack::with(STACK, NAME, || self.run(&variables, seconds))
    }

    /// Renders the prompt, and marks the parts that come from messages, as far as control tokens are concerned (see `taint.rs`).
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_tainted(&self, input: &RenderInput, specials: &SpecialTokens) -> Result<Rendered> {
        let (variables, seconds) = self.variables(input)?;
        let marker = Marker::new(&self.literals, &variables, specials)?;
        let variables = marker.mark_variables(variables);
        Ok(marker.remove_marks(stack::with(STACK, NAME, || self.run(&variables, seconds))?))
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
            ("date_string".to_owned(), filters::strftime("%d %b %Y", seconds).into()),
            ("datetime".to_owned(), filters::strftime("%b %d %Y", seconds).into()),
        ]);
        variables.extend(tools.map(|tools| ("tools".to_owned(), tools.clone())));
        variables.extend(input.kwargs.clone());
        variables.insert("messages".to_owned(), Json::Array(messages));
        variables.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
        Ok((variables, seconds))
    }

    /// Renders the template with these variables. `now` is in seconds since 1970.
    fn run(&self, variables: &Map<String, Json>, now: u64) -> Result<String> {
        let mut output = BoundedOutput::default();
        let template = self.env.get_template(NAME).map_err(|error| failure(&error))?;
        let strftime_now = Value::from_function(move |format: &str| filters::strftime(format, now));
        let variables = variables.iter().map(|(name, json)| (name.as_str(), filters::value(json)));
        let variables = Value::from_pairs(std::iter::once(("strftime_now", strftime_now)).chain(variables));
        match template.render_captured_to(variables, &mut output) {
            Ok(_) => String::from_utf8(output.bytes)
                .map_err(|error| Error::new(Code::Internal, format!("{NAME}: not UTF-8: {error}"))),
            Err(_) if output.full => Err(Error::invalid(format!("{NAME}: the prompt exceeds {MAX_OUTPUT} bytes"))),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Renders probe conversations, and determines the message form from the marks that appear in the output.
    fn probe(&self, developer: bool) -> MessageShape {
        let [mark, key, value] = MARKS;
        let render = |messages: Json| {
            let variables = [
                ("messages", messages),
                ("bos_token", "".into()),
                ("eos_token", "".into()),
                ("add_generation_prompt", true.into()),
            ];
            let variables = variables.map(|(name, value)| (name.to_owned(), value));
            self.run(&Map::from_iter(variables), 0).unwrap_or_default()
        };
        let text = render(json!([{"role": "user", "content": mark}])).contains(mark);
        // A template for strings prints the parts as objects, with their keys.
        let parts = render(json!([{"role": "user", "content": [{"type": "text", "text": mark}]}]));
        let parts = parts.contains(mark) && !parts.contains("'text'") && !parts.contains("\"text\"");
        let content = match (text, parts) {
            (true, true) => ContentForm::Any,
            (false, true) => ContentForm::Parts,
            (_, false) => ContentForm::Text,
        };
        let part = |text: &str| match content {
            ContentForm::Parts => json!([{"type": "text", "text": text}]),
            _ => json!(text),
        };
        let system = json!([{"role": "system", "content": part(mark)}, {"role": "user", "content": part("user")}]);
        let shape = MessageShape {
            content,
            developer,
            no_system: (text || parts) && !render(system).contains(mark),
            ..MessageShape::default()
        };
        let calls = |content: &Json, arguments: Json| {
            render(json!([
                {"role": "user", "content": part("user")},
                {"role": "assistant", "content": content, "tool_calls": [{"id": "call00001", "type": "function",
                    "function": {"name": "tool1", "arguments": arguments}}]},
                {"role": "tool", "content": part("answer"), "tool_call_id": "call00001", "name": "tool1"},
                {"role": "assistant", "content": part("so")},
                {"role": "user", "content": part("user")},
            ]))
        };
        let json_text = format!("{{\"{key}\": \"{value}\"}}");
        for null_content in [false, true] {
            let content_value = if null_content { Json::Null } else { part("") };
            // An object is supported if it is not printed in Python's notation, a string if it is printed unquoted.
            let object = calls(&content_value, json!({key: value}));
            let object = object.contains(key) && object.contains(value) && !object.contains(&format!("'{key}'"));
            let string = calls(&content_value, json!(json_text)).contains(&json_text);
            if object || string {
                return MessageShape { arguments_object: Some(object), null_content, ..shape };
            }
        }
        shape
    }
}

fn environment() -> Result<Environment<'static>> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build();
    env.set_syntax(syntax.map_err(|error| failure(&error))?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(MAX_NESTING);
    env.set_unknown_method_callback(filters::method);
    // In Python, None is not iterable, and strings and dictionaries are sequences as well.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok() || value.as_str().is_some());
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined)
    });
    env.add_filter("tojson", filters::tojson);
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("namespace", lists::namespace);
    env.add_function(lists::MAKE, lists::make);
    env.add_filter("string", filters::string);
    env.add_filter("length", filters::length);
    env.add_filter("count", filters::length);
    env.set_formatter(filters::format);
    Ok(env)
}

fn failure(error: &minijinja::Error) -> Error {
    let kind = error.kind().to_string();
    let mut message = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => format!("takes more than {FUEL} steps"),
        (ErrorKind::SyntaxError, Some(detail)) => format!("{kind}: {detail}"),
        (_, detail) => detail.map_or(kind, str::to_owned),
    };
    if let Some(line) = error.line() {
        message += &format!(" (line {line})");
    }
    Error::invalid(format!("{NAME}: {message}"))
}

/// Collects output of up to [`MAX_OUTPUT`] bytes.
#[derive(Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
