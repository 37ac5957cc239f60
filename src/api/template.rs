//! A model's own chat template: Jinja, rendered as Python's `transformers` renders it.
//!
//! [`ChatTemplate::parse`] reads a template once; [`ChatTemplate::render`] makes a prompt of messages.
//! The interpreter is our own, in the files below this one, because a template is a program that
//! comes with a model or a request, and nothing a host passes may abort, hang or exhaust it.
//! The crate `minijinja` (3.0.5, fuel and recursion limited) was tried first: a chain of 200,000 `~`, a
//! string doubled in a loop, a namespace put into itself and `''[::-1]` abort the process, a list
//! put twice into itself 40 times hangs it, and it has no `append`, which templates use.
//! Here every operation pays a [meter](meter) first.
//!
//! - `lexer`, `parser`, `expressions` make the tree in `ast` of a source;
//! - `interp` runs statements, `eval` expressions, on the values in `value`;
//! - `ops`, `functions`, `filters`, `sequences`, `predicates`, `methods`, `strings`, `format`, `text` are what
//!   templates can call;
//! - `messages` fits a request's messages to what the template takes.
//!
//! What differs from Jinja: no other templates can be loaded (`include`, `import`, `extends`); lists and
//! dicts may be changed (`append`, `pop`, `update`), as in llama.cpp; escaping is off and `safe` does
//! nothing; integers have 128 bits.

mod ast;
mod containers;
mod eval;
mod expressions;
mod filters;
mod format;
mod functions;
mod interp;
mod lexer;
mod messages;
mod meter;
mod methods;
mod ops;
mod parser;
mod sequences;
mod strings;
mod predicates;
mod text;
mod value;

#[cfg(test)]
#[path = "template_tests.rs"]
mod template_tests;

use std::sync::OnceLock;

use chrono::{Local, NaiveDateTime};
use serde_json::{Map, Value as Json};

use crate::error::{Error, Result};

use self::ast::Ast;
use self::containers::Kind;
use self::interp::Interp;
use self::messages::{Abilities, expected, prepare};
use self::meter::{Fault, Meter};
use self::text::from_json;
use self::value::Value;

/// The longest source that [`ChatTemplate::parse`] takes.
const MAX_SOURCE: usize = 1 << 20;

/// The template for models that bring none: ChatML.
pub const CHATML: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}";

/// A parsed template. Immutable: any number of threads may render it at once.
#[derive(Debug)]
pub struct ChatTemplate {
    ast: Ast,
    /// Whether the template knows the role `developer`.
    developer: bool,
    /// Found out when it is first needed.
    abilities: OnceLock<Abilities>,
}

/// What a template is rendered with.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// Objects with `role` and `content` (a string, null, or an array of `{"type": "text", "text"}`),
    /// and whatever else the template reads: `tool_calls`, `name`, `reasoning_content`, ...
    pub messages: &'a [Json],
    /// Whether the prompt ends with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// The text of the vocabulary's BOS token; empty if it has none. Most templates print it: do not
    /// add it again when tokenizing.
    pub bos_token: &'a str,
    /// The text of the vocabulary's EOS token; empty if it has none.
    pub eos_token: &'a str,
    /// An array of `{"type": "function", "function": {"name", "description", "parameters"}}`. None,
    /// null and an empty array mean no tools.
    pub tools: Option<&'a Json>,
    /// An array of documents, for templates that cite.
    pub documents: Option<&'a Json>,
    /// `chat_template_kwargs`: further variables, `enable_thinking` for one.
    pub kwargs: &'a Map<String, Json>,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// `invalid_request`, with the line, if it is not a template of at most 1 MiB.
    pub fn parse(source: &str) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            let length = source.len();
            return Err(Error::invalid(format!("chat_template: {length} bytes are more than {MAX_SOURCE}")));
        }
        let ast = parser::parse(source).map_err(located)?;
        Ok(ChatTemplate { ast, developer: source.contains("developer"), abilities: OnceLock::new() })
    }

    /// Renders the template. Its variables are the input's fields, `kwargs`, and, as llama.cpp's
    /// server sets them unless `kwargs` does, `enable_thinking` (true), `date_string` and `datetime`.
    ///
    /// Messages are converted where the template needs it: a null content becomes an empty one, parts
    /// are joined by newlines for a template that takes only strings (and a string becomes a part for
    /// one that takes only parts), arguments of tool calls become an object or its JSON, the role
    /// `developer` becomes `system` for a template that does not mention it.
    ///
    /// # Errors
    /// `invalid_request`: a message or the tools have not the form above (names the place); the template
    /// calls `raise_exception` (carries its message and line), fails otherwise, or needs more than its
    /// share: 64 MiB of text, 256 MiB of memory, 50 million steps, 300 levels.
    pub fn render(&self, input: &RenderInput) -> Result<String> {
        self.render_at(input, Local::now().naive_local())
    }

    /// The same at a given time.
    fn render_at(&self, input: &RenderInput, now: NaiveDateTime) -> Result<String> {
        let abilities = self.abilities.get_or_init(|| {
            Abilities::probe(|messages, tools| {
                let input = RenderInput { messages, tools: Some(tools), add_generation_prompt: true, ..*input };
                self.execute(&input, now, Meter::for_probe()).ok()
            })
        });
        let messages = prepare(input.messages, *abilities, self.developer)?;
        let tools = input.tools.filter(|tools| !tools.is_null() && tools.as_array().is_none_or(|tools| !tools.is_empty()));
        for (name, value) in [("tools", tools), ("documents", input.documents)] {
            if let Some(value) = value.filter(|value| !value.is_array() && !value.is_null()) {
                return Err(expected(name, "an array", value));
            }
        }
        self.execute(&RenderInput { messages: &messages, tools, ..*input }, now, Meter::default())
    }

    /// Runs the template on messages as they are.
    fn execute(&self, input: &RenderInput, now: NaiveDateTime, meter: Meter) -> Result<String> {
        let mut interp = Interp::new(&self.ast, now, meter);
        self.set_variables(&mut interp, input, now).map_err(|fault| located((fault, 1)))?;
        interp.run().map_err(located)
    }

    fn set_variables(&self, interp: &mut Interp, input: &RenderInput, now: NaiveDateTime) -> Result<(), Fault> {
        let meter = std::rc::Rc::clone(&interp.meter);
        let text = |text: &str| Value::text(&meter, text);
        let json = |json: Option<&Json>| json.map_or(Ok(Value::None), |json| from_json(&meter, json));
        interp.set_global("bos_token", text(input.bos_token)?);
        interp.set_global("eos_token", text(input.eos_token)?);
        interp.set_global("enable_thinking", Value::Bool(true));
        interp.set_global("date_string", text(&now.format("%d %b %Y").to_string())?);
        interp.set_global("datetime", text(&now.format("%b %d %Y").to_string())?);
        interp.set_global("tools", json(input.tools)?);
        interp.set_global("documents", json(input.documents)?);
        for (name, value) in input.kwargs {
            interp.set_global(name, from_json(&meter, value)?);
        }
        let messages = input.messages.iter().map(|message| from_json(&meter, message)).collect::<Result<_, _>>()?;
        interp.set_global("messages", Value::list(&meter, Kind::List, messages)?);
        interp.set_global("add_generation_prompt", Value::Bool(input.add_generation_prompt));
        Ok(())
    }
}

/// A fault as the crate's error.
fn located((fault, line): (Fault, u32)) -> Error {
    Error::invalid(format!("chat_template: line {line}: {}", fault.0))
}
