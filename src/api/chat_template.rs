//! The model's own Jinja chat template, rendered by `minijinja`.
//!
//! The settings are those of `apply_chat_template` in Hugging Face's transformers, for which the templates are
//! written; what is done to the messages beforehand is what llama.cpp's `common/chat.cpp` does. A template comes
//! from a model file or from a request: the work, the size of the output and the nesting are bounded.

use std::fmt::Write as _;
use std::io;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value};
use minijinja_contrib::pycompat;
use serde_json::{Map, Value as Json, json};

use crate::api::fields::unexpected;
use crate::error::{Code, Error, Result};

/// Instructions of minijinja's machine that one rendering may take.
const FUEL: u64 = 20_000_000;
/// The same for one rendering that finds out what a template understands.
const PROBE_FUEL: u64 = 200_000;
/// Bytes of output of one rendering.
const MAX_OUTPUT: usize = 64 << 20;
/// Bytes of a template.
const MAX_SOURCE: usize = 1 << 20;
/// Nested macro calls, loops and blocks; a macro call counts for several.
const MAX_NESTING: usize = 300;
/// Nested containers that `tojson` writes.
const MAX_JSON_DEPTH: usize = 128;
/// Bytes of stack for a rendering, which takes its own thread: a host's threads may have small ones. The
/// memory is only reserved, not used, unless a template nests deeply.
const STACK: usize = 64 << 20;
/// The name of the template in the environment and of its errors.
const NAME: &str = "chat_template";
/// Texts of the probing messages that no template has.
const MARKS: [&str; 3] = ["probe-content-71c3", "probe_key_71c3", "probe-value-71c3"];

/// A parsed chat template. Immutable: it may be shared between threads and rendered at the same time.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
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
}

impl ChatTemplate {
    /// Parses a template, and renders it a few times to find out what it expects of the messages.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`], `chat_template: ...` with the line, when it is not a Jinja template.
    pub fn parse(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Error::invalid(format!("{NAME}: {} bytes, the most is {MAX_SOURCE}", source.len())));
        }
        on_own_stack(|| {
            let mut env = environment();
            env.add_template_owned(NAME, without_generation(source)).map_err(|error| failure(&error))?;
            env.set_fuel(Some(PROBE_FUEL));
            let mut template = ChatTemplate { env, shape: Shape::default() };
            template.shape = template.probe(source.contains("developer"));
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
        let messages =
            input.messages.iter().enumerate().map(|(i, it)| self.shape.message(i, it)).collect::<Result<Vec<_>>>()?;
        let tools = input.tools.filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        // As in transformers, what the request does not have is there, and null.
        let mut variables = Map::from_iter([
            ("tools".to_owned(), tools.cloned().unwrap_or_default()),
            ("documents".to_owned(), Json::Null),
            ("bos_token".to_owned(), input.bos_token.into()),
            ("eos_token".to_owned(), input.eos_token.into()),
        ]);
        variables.extend(input.kwargs.clone());
        variables.insert("messages".to_owned(), Json::Array(messages));
        variables.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
        on_own_stack(|| self.run(&Json::Object(variables)))
    }

    fn run(&self, variables: &Json) -> Result<String> {
        let mut output = Bounded::default();
        let template = self.env.get_template(NAME).map_err(|error| failure(&error))?;
        match template.render_captured_to(Value::from_serialize(variables), &mut output) {
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
            let variables = json!({"messages": messages, "tools": null, "documents": null, "bos_token": "",
                "eos_token": "", "add_generation_prompt": true});
            self.run(&variables).unwrap_or_default()
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
                return Shape { content, arguments_object: Some(object), null_content, developer };
            }
        }
        Shape { content, arguments_object: None, null_content: false, developer }
    }
}

impl Shape {
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
            Json::Null if self.null_content && message.contains_key("tool_calls") => Json::Null,
            Json::Null => Json::from(""),
            Json::Array(parts) if self.content == Content::Text => Json::from(joined(i, parts)?),
            other => other.clone(),
        };
        let content = match content {
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
                            Error::invalid(format!("messages[{i}].tool_calls[{j}].function.arguments: not JSON: {error}"))
                        })?;
                    }
                    Json::Object(_) if !object => {
                        let mut text = String::new();
                        write_json(&mut text, &Value::from_serialize(&*arguments), &JsonStyle::default(), 0)
                            .map_err(|error| failure(&error))?;
                        *arguments = text.into();
                    }
                    _ => {}
                }
            }
        }
        Ok(Json::Object(message))
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

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_keep_trailing_newline(false);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_recursion_limit(MAX_NESTING);
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", tojson);
    env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", |format: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        strftime(format, now.as_secs())
    });
    env
}

/// Runs `work` on a thread with a stack of [`STACK`] bytes; a panic in it is an error.
fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let internal = |what: &str| Error::new(Code::Internal, format!("{NAME}: {what}"));
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(NAME.to_owned()).stack_size(STACK).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| internal(&format!("no thread: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(internal("the template engine failed")))
    })
}

fn failure(error: &minijinja::Error) -> Error {
    let kind = error.kind().to_string();
    let mut message = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => format!("takes more than {FUEL} steps"),
        (ErrorKind::SyntaxError, Some(detail)) => format!("{kind}: {detail}"),
        (_, detail) => detail.map_or(kind, str::to_owned),
    };
    if let Some(line) = error.line() {
        let _ = write!(message, " (line {line})");
    }
    Error::invalid(format!("{NAME}: {message}"))
}

/// Replaces the tags `{% generation %}` and `{% endgeneration %}`, with which training code marks the assistant's
/// text, by tags which do nothing but open the same scope.
fn without_generation(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        result.push_str(before);
        result.push_str("{%");
        rest = tag;
        let Some((inside, _)) = tag.split_once("%}") else { continue };
        let name = inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_ascii_whitespace());
        let new = match name {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        result.push_str(&inside.replacen(name, new, 1));
        rest = tag.get(inside.len()..).unwrap_or_default();
    }
    result + rest
}

/// Python's methods of strings, dictionaries and lists.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, minijinja::Error> {
    match (value.as_str(), name, args) {
        (Some(text), "removeprefix" | "removesuffix", [affix]) => {
            let affix = affix.as_str().unwrap_or_default();
            let shorter = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            Ok(Value::from(shorter.unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// How JSON is written; the default is that of Python's `json.dumps`.
struct JsonStyle {
    indent: Option<usize>,
    ensure_ascii: bool,
    sort_keys: bool,
    item: String,
    key: String,
}

impl Default for JsonStyle {
    fn default() -> Self {
        JsonStyle { indent: None, ensure_ascii: false, sort_keys: false, item: ", ".to_owned(), key: ": ".to_owned() }
    }
}

/// The filter `tojson`, which in transformers is Python's `json.dumps` and escapes nothing for HTML.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, minijinja::Error> {
    let flag = |name| kwargs.get::<Option<Value>>(name).map(|flag| flag.is_some_and(|flag| flag.is_true()));
    let mut style =
        JsonStyle { ensure_ascii: flag("ensure_ascii")?, sort_keys: flag("sort_keys")?, ..JsonStyle::default() };
    // Some templates give the indentation by position, as jinja2's own filter takes it.
    let indent = kwargs.get::<Option<Value>>("indent")?.or_else(|| args.first().cloned());
    style.indent = indent.filter(Value::is_integer).and_then(|indent| indent.as_usize()).map(|indent| indent.min(64));
    if style.indent.is_some() {
        style.item = ",".to_owned();
    }
    if let Some(separators) = kwargs.get::<Option<Vec<String>>>("separators")?
        && let [item, key] = separators.as_slice()
    {
        (style.item, style.key) = (item.clone(), key.clone());
    }
    kwargs.assert_all_used()?;
    let mut text = String::new();
    write_json(&mut text, value, &style, 0)?;
    Ok(text)
}

fn write_json(out: &mut String, value: &Value, style: &JsonStyle, depth: usize) -> Result<(), minijinja::Error> {
    let fail = |what: String| Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}")));
    if depth > MAX_JSON_DEPTH || out.len() > MAX_OUTPUT {
        return fail(format!("the value exceeds {MAX_JSON_DEPTH} levels or {MAX_OUTPUT} bytes"));
    }
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent {
            let _ = write!(out, "\n{:width$}", "", width = indent * depth);
        }
    };
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => {
            let _ = write!(out, "{value}");
        }
        ValueKind::String => write_json_text(out, value.as_str().unwrap_or_default(), style.ensure_ascii),
        ValueKind::Map => {
            let mut keys = value.try_iter()?.collect::<Vec<_>>();
            if style.sort_keys {
                keys.sort();
            }
            out.push('{');
            for (i, key) in keys.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { &style.item });
                line(out, depth + 1);
                match key.as_str() {
                    Some(text) => write_json_text(out, text, style.ensure_ascii),
                    None => write_json_text(out, &key.to_string(), style.ensure_ascii),
                }
                out.push_str(&style.key);
                write_json(out, &value.get_item(key)?, style, depth + 1)?;
            }
            if !keys.is_empty() {
                line(out, depth);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut empty = true;
            for item in value.try_iter()? {
                out.push_str(if empty { "" } else { &style.item });
                empty = false;
                line(out, depth + 1);
                write_json(out, &item, style, depth + 1)?;
            }
            if !empty {
                line(out, depth);
            }
            out.push(']');
        }
        other => return fail(format!("{other} has no JSON form")),
    }
    Ok(())
}

fn write_json_text(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        let _ = match c {
            '"' => write!(out, "\\\""),
            '\\' => write!(out, "\\\\"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\u{8}' => write!(out, "\\b"),
            '\u{c}' => write!(out, "\\f"),
            c if c < ' ' => write!(out, "\\u{:04x}", u32::from(c)),
            c if ensure_ascii && !(' '..='~').contains(&c) => {
                c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
            }
            c => write!(out, "{c}"),
        };
    }
    out.push('"');
}

/// C's `strftime` of a Unix time in UTC; a conversion it does not know stays as it is.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Years begin in March, so that the day that leap years add is the last one.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let (from_march, day) = ((5 * of_year + 2) / 153, of_year - (153 * ((5 * of_year + 2) / 153) + 2) / 5 + 1);
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let month_name = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let day_name = DAYS.get((days % 7) as usize).copied().unwrap_or_default();
    let short = |name: &str| name.chars().take(3).collect::<String>();
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut conversion = rest.next();
        let padded = conversion != Some('-');
        if !padded {
            conversion = rest.next();
        }
        let number = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        out += &match conversion {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('d') => number(day),
            Some('e') => format!("{day:2}"),
            Some('H') => number(hour),
            Some('I') => number((hour + 11) % 12 + 1),
            Some('M') => number(minute),
            Some('S') => number(second % 60),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => short(month_name),
            Some('A') => day_name.to_owned(),
            Some('a') => short(day_name),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => other.map_or("%".to_owned(), |c| format!("%{c}")),
        };
    }
    out
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
