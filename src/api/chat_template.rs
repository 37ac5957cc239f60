//! The model's own Jinja chat template, rendered by `minijinja`.
//!
//! The settings are those of `apply_chat_template` in Hugging Face's transformers, for which the templates are
//! written; what is done to the messages beforehand is what llama.cpp's `common/chat.cpp` does. A template comes
//! from a model file or from a request: the steps, the output and the nesting of calls are bounded. minijinja
//! gives no way to bound the size and the depth of the values that a template builds (`x ~ x` in a loop, a
//! namespace put into itself), so a template is as trusted as the model file it comes from.

mod filters;
mod lists;
mod source;
mod taint;

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json, json};

use self::taint::Marker;
pub use self::taint::Rendered;
use crate::api::fields::unexpected;
use crate::error::{Code, Error, Result};
use crate::llama::SpecialTokens;
use crate::stack;

/// Instructions of minijinja's machine that one rendering may take.
const FUEL: u64 = 10_000_000;
/// The same for one rendering that finds out what a template understands.
const PROBE_FUEL: u64 = 100_000;
/// Bytes of output of one rendering.
const MAX_OUTPUT: usize = 64 << 20;
/// Bytes of a template; the longest of those that llama.cpp knows has 17 KB.
const MAX_SOURCE: usize = 64 << 10;
/// Nested macro calls, loops and blocks; a macro call counts for several.
const MAX_NESTING: usize = 300;
/// Bytes of stack for a rendering, which takes its own thread: a host's threads may have small ones. The
/// memory is only reserved, not used, unless a template nests deeply.
const STACK: usize = 256 << 20;
/// The name of the template in the environment and of its errors.
const NAME: &str = "chat_template";
/// Texts of the probing messages that no template has.
const MARKS: [&str; 3] = ["probe-content-71c3", "probe_key_71c3", "probe-value-71c3"];

/// A parsed chat template. Immutable: it may be shared between threads and rendered at the same time.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    /// The strings in its source.
    literals: Vec<String>,
    shape: Shape,
}

/// What the template expects of the messages.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    content: Content,
    /// Arguments of tool calls: an object (true), JSON in a string (false), or either way (None).
    arguments_object: Option<bool>,
    /// Tool calls are only rendered when the content is null.
    null_content: bool,
    /// The template knows the role `developer`; otherwise it becomes `system`.
    developer: bool,
    /// The template refuses or leaves out what the system says; otherwise the user says it.
    no_system: bool,
}

/// How the template reads `content`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum Content {
    /// As a string only: parts are joined.
    #[default]
    Text,
    /// As an array of parts only: a string becomes one part.
    Parts,
    /// Either way.
    Any,
}

/// What a template is rendered with.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// Objects with a string `role`, and `content`, `tool_calls` and so on.
    pub messages: &'a [Json],
    /// Ends the prompt with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// The text of the BOS token, or "".
    pub bos_token: &'a str,
    /// The text of the EOS token, or "".
    pub eos_token: &'a str,
    /// The request's `tools`, an array; none, null and `[]` are the same.
    pub tools: Option<&'a Json>,
    /// The request's `chat_template_kwargs`, as variables of the template. They override the others except
    /// `messages` and `add_generation_prompt`.
    pub kwargs: &'a Map<String, Json>,
    /// The time that `strftime_now`, `date_string` and `datetime` tell, in UTC.
    pub now: SystemTime,
}

impl ChatTemplate {
    /// Parses a template, which may be given by its name, and renders it a few times to find out what it expects of the
    /// messages.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`], `chat_template: ...` with the line, when it is not a Jinja template.
    pub fn parse(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Error::invalid(format!("{NAME}: {} bytes, the most is {MAX_SOURCE}", source.len())));
        }
        let source = source::named(source)?;
        let developer = source.contains("developer");
        stack::with(STACK, NAME, || {
            let mut env = environment()?;
            env.add_template_owned(NAME, source::prepared(source)).map_err(|error| failure(&error))?;
            env.set_fuel(Some(PROBE_FUEL));
            let mut template = ChatTemplate { env, literals: source::literals(source), shape: Shape::default() };
            template.shape = template.probe(developer);
            template.env.set_fuel(Some(FUEL));
            Ok(template)
        })
    }

    /// The prompt.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`]: `messages[2].role: ...` for a message that is not one, `chat_template: ...` with
    /// the line when the template fails, calls `raise_exception`, or exceeds a limit.
    pub fn render(&self, input: &RenderInput) -> Result<String> {
        let (variables, seconds) = self.variables(input)?;
        stack::with(STACK, NAME, || self.run(&variables, seconds))
    }

    /// The prompt, with what of it is the messages' text and not the template's, as far as that matters for control tokens.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_tainted(&self, input: &RenderInput, specials: &SpecialTokens) -> Result<Rendered> {
        let (variables, seconds) = self.variables(input)?;
        let marker = Marker::new(&self.literals, &variables, specials)?;
        let variables = marker.variables(variables);
        Ok(marker.take_out(stack::with(STACK, NAME, || self.run(&variables, seconds))?))
    }

    /// The template's variables, and the time that it may ask for, in seconds since 1970.
    fn variables(&self, input: &RenderInput) -> Result<(Map<String, Json>, u64)> {
        let messages = self.shape.messages(input.messages)?;
        let tools = input.tools.filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let seconds = input.now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // llama-server's defaults. What the request does not have is not defined: iterating null would fail.
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

    /// Renders with these variables; `now` in seconds since 1970.
    fn run(&self, variables: &Map<String, Json>, now: u64) -> Result<String> {
        let mut output = Bounded::default();
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

    /// Renders conversations with marks in them, and looks which of them appear, and how.
    fn probe(&self, developer: bool) -> Shape {
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
        // A template for strings prints the parts as they are, with their keys.
        let parts = render(json!([{"role": "user", "content": [{"type": "text", "text": mark}]}]));
        let parts = parts.contains(mark) && !parts.contains("'text'") && !parts.contains("\"text\"");
        let content = match (text, parts) {
            (true, true) => Content::Any,
            (false, true) => Content::Parts,
            (_, false) => Content::Text,
        };
        let part = |text: &str| match content {
            Content::Parts => json!([{"type": "text", "text": text}]),
            _ => json!(text),
        };
        let system = json!([{"role": "system", "content": part(mark)}, {"role": "user", "content": part("user")}]);
        let shape = Shape {
            content,
            developer,
            no_system: (text || parts) && !render(system).contains(mark),
            ..Shape::default()
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
            // An object is understood when it is not printed as Python prints it, a string when it appears unquoted.
            let object = calls(&content_value, json!({key: value}));
            let object = object.contains(key) && object.contains(value) && !object.contains(&format!("'{key}'"));
            let string = calls(&content_value, json!(json_text)).contains(&json_text);
            if object || string {
                return Shape { arguments_object: Some(object), null_content, ..shape };
            }
        }
        shape
    }
}

impl Shape {
    /// The messages in the form that the template expects.
    fn messages(&self, given: &[Json]) -> Result<Vec<Json>> {
        let mut messages = given.iter().enumerate().map(|(i, it)| self.message(i, it)).collect::<Result<Vec<_>>>()?;
        let says =
            |messages: &[Json], i: usize, role: &str| messages.get(i).is_some_and(|message| message["role"] == role);
        if self.no_system && says(&messages, 0, "system") {
            if says(&messages, 1, "user") {
                let system = messages.remove(0)["content"].take();
                if let Some(user) = messages.first_mut() {
                    user["content"] = one_after_the_other(system, user["content"].take());
                }
            } else if let Some(system) = messages.first_mut() {
                system["role"] = "user".into();
            }
        }
        Ok(messages)
    }

    /// The `i`-th message in the form that the template expects.
    fn message(&self, i: usize, message: &Json) -> Result<Json> {
        let Json::Object(given) = message else {
            return Err(unexpected(&format!("messages[{i}]"), "an object with role and content", message));
        };
        let role = match given.get("role") {
            Some(Json::String(role)) => role,
            other => return Err(unexpected(&format!("messages[{i}].role"), "a string", other.unwrap_or(&Json::Null))),
        };
        let mut message = given.clone();
        if role == "developer" && !self.developer {
            message.insert("role".to_owned(), "system".into());
        }
        if message.get("tool_calls").is_some_and(|calls| calls.is_null() || calls == &json!([])) {
            message.retain(|name, _| name != "tool_calls");
        }
        let content = match message.get("content").unwrap_or(&Json::Null) {
            Json::Null => Json::from(""),
            Json::Array(parts) if self.content == Content::Text => Json::from(joined(i, parts)?),
            other => other.clone(),
        };
        let content = match content {
            Json::String(text) if text.is_empty() && self.null_content && message.contains_key("tool_calls") => {
                Json::Null
            }
            Json::String(text) if self.content == Content::Parts => json!([{"type": "text", "text": text}]),
            other => other,
        };
        message.insert("content".to_owned(), content);
        if let (Some(object), Some(Json::Array(calls))) = (self.arguments_object, message.get_mut("tool_calls")) {
            for (j, call) in calls.iter_mut().enumerate() {
                let Some(arguments) = call.get_mut("function").and_then(|it| it.get_mut("arguments")) else { continue };
                match arguments {
                    Json::String(text) if object => {
                        *arguments = serde_json::from_str(text).map_err(|error| {
                            Error::invalid(format!(
                                "messages[{i}].tool_calls[{j}].function.arguments: not JSON: {error}"
                            ))
                        })?;
                    }
                    Json::Object(_) if !object => {
                        *arguments = filters::json_text(arguments).map_err(|error| failure(&error))?.into();
                    }
                    _ => {}
                }
            }
        }
        Ok(Json::Object(message))
    }
}

/// Both contents in one: texts on lines of their own, or all parts.
fn one_after_the_other(first: Json, second: Json) -> Json {
    let parts = |content: Json| match content {
        Json::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    };
    match (first, second) {
        (Json::String(first), second) if first.is_empty() => second,
        (Json::String(first), Json::String(second)) => format!("{first}\n{second}").into(),
        (first, second) => [parts(first), parts(second)].concat().into(),
    }
}

/// The texts of the parts, one per line.
fn joined(i: usize, parts: &[Json]) -> Result<String> {
    let texts = parts.iter().enumerate().map(|(j, part)| match (part.get("type"), part.get("text")) {
        (None, Some(Json::String(text))) => Ok(text.as_str()),
        (Some(Json::String(kind)), Some(Json::String(text))) if kind == "text" => Ok(text.as_str()),
        _ => Err(unexpected(&format!("messages[{i}].content[{j}]"), "{\"type\": \"text\", \"text\": ...}", part)),
    });
    Ok(texts.collect::<Result<Vec<_>>>()?.join("\n"))
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

/// Output up to [`MAX_OUTPUT`] bytes.
#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for Bounded {
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
#[path = "chat_template_tests.rs"]
mod tests;
