//! Chat templates, and chats that exceed the context. Jinja templates are rendered by `foredraft_jinja`, those with a name by llama.cpp.
//!
//! The settings are those of `apply_chat_template` in Hugging Face's transformers, for which the templates are written. The messages
//! are first adapted to the template, as llama.cpp's `common/chat.cpp` does. A template comes from a model file or from a request,
//! and can be hostile. So a rendering has a limit on its steps and on its memory, which grow with the messages, and it can be
//! interrupted.

mod named;
mod overflow;
mod probe;
mod shape;
mod taint;
mod tool_shape;
mod values;
mod vanished;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use foredraft_jinja::{
    FaultKind, MAX_DEPTH, PARSE_STACK, RenderLimits, Run, StopSignal, Template, TemplateResult, strftime,
};
use serde_json::{Map, Value as Json};

pub(in crate::api) use self::overflow::{FittedChat, drop_turns, without_dropped};
use self::shape::MessageShape;
pub(in crate::api) use self::shape::add_to_system;
use self::taint::Marker;
pub use self::taint::Rendered;
use self::values::{failure, json_text, limits, value};
use crate::api::wire::template_name::{NAME, is_name};
use crate::error::{Error, Result};
use crate::llama::{SpecialTokens, large_stack};

/// The maximum size of a template in bytes. The longest one that llama.cpp knows has 17 KB.
const MAX_SOURCE: usize = 64 << 10;

/// The tools as text: firefunction's template prints it, with tools and without, and has no `tools`.
const FUNCTIONS: &str = "functions";

/// A parsed chat template. Immutable, so several threads can render it at the same time.
#[derive(Debug)]
pub struct ChatTemplate {
    template: TemplateSource,
    /// The string literals in its source, sorted, without duplicates.
    literals: Vec<String>,
    shape: MessageShape,
}

/// The renderer of a template.
#[derive(Debug)]
enum TemplateSource {
    Jinja(Arc<Template>),
    /// llama.cpp's template with this name.
    Named(String),
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
    pub interrupt: Option<&'a StopSignal>,
}

impl ChatTemplate {
    /// Parses a template, or the template with this name, and renders probe messages to find the form of messages that it expects.
    ///
    /// # Errors
    /// `Code::InvalidRequest`, `chat_template: ...` with the line: it is not a Jinja template, or it exceeds a limit with a few short
    /// messages. `Code::Cancelled`: it was interrupted.
    pub fn parse(source: &str, interrupt: Option<&StopSignal>) -> Result<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Error::invalid(format!("{NAME}: expected at most {MAX_SOURCE} bytes, got {}", source.len())));
        }
        if is_name(source)? {
            let template = TemplateSource::Named(source.to_owned());
            return Ok(ChatTemplate { template, literals: Vec::new(), shape: MessageShape::default() });
        }
        let source = source.to_owned();
        let parse = move || Template::parse(&source).map_err(|fault| failure(&fault));
        let template = Arc::new(large_stack::with(PARSE_STACK, NAME, parse)?);
        let mut literals: Vec<String> = template.literals().map(str::to_owned).collect();
        literals.sort_unstable();
        literals.dedup();
        let template = TemplateSource::Jinja(template);
        let mut template = ChatTemplate { template, literals, shape: MessageShape::default() };
        template.probe(interrupt)?;
        Ok(template)
    }

    /// The texts of the template, without comments.
    pub(super) fn texts(&self) -> Vec<&str> {
        match &self.template {
            TemplateSource::Jinja(template) => template.texts().collect(),
            TemplateSource::Named(_) => Vec::new(),
        }
    }

    /// Whether the template asks for a variable of that name.
    pub(in crate::api) fn uses(&self, variable: &str) -> bool {
        matches!(&self.template, TemplateSource::Jinja(template) if template.uses(variable))
    }

    /// Renders the prompt.
    ///
    /// # Errors
    /// `Code::InvalidRequest`: `messages[2].role: ...` if a message is invalid; `chat_template: ...` with the line if the template
    /// fails, calls `raise_exception`, or exceeds a limit. `Code::Cancelled`: it was interrupted.
    pub fn render(&self, input: &RenderInput) -> Result<String> {
        let (variables, seconds) = self.variables(input)?;
        self.rendered(&variables, seconds, input, None)
    }

    /// Renders the prompt, and marks the parts that come from messages, as far as guarded tokens are concerned (see `taint.rs`).
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_tainted(&self, input: &RenderInput, specials: &SpecialTokens) -> Result<Rendered> {
        let (variables, seconds) = self.variables(input)?;
        let tokens =
            variables.iter().filter(|(name, _)| name.ends_with("_token")).filter_map(|(_, text)| text.as_str());
        let own = self.texts().into_iter().chain(tokens);
        let marker = Marker::new(&self.literals, &variables, specials.guarded(own))?;
        let variables = marker.mark_variables(variables);
        let rendered = self.rendered(&variables, seconds, input, Some(marker.seen_through()))?;
        Ok(marker.remove_marks(rendered))
    }

    fn rendered(
        &self,
        variables: &Map<String, Json>,
        seconds: u64,
        input: &RenderInput,
        mark: Option<char>,
    ) -> Result<String> {
        let limits = RenderLimits { mark, ..limits(variables, input.messages.len(), input.interrupt) };
        self.run(variables, seconds, &limits)?.map_err(|fault| failure(&fault))
    }

    /// The template's variables, and the current time in seconds since 1970.
    fn variables(&self, input: &RenderInput) -> Result<(Map<String, Json>, u64)> {
        let messages = self.shape.messages(input.messages)?;
        let tools = input.tools.filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let seconds = input.now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut variables = defaults(input.bos_token, input.eos_token, seconds);
        if let Some(tools) = tools.map(|tools| self.shape.tools.completed(tools)) {
            if self.uses(FUNCTIONS) {
                variables.insert(FUNCTIONS.to_owned(), json_text(&tools)?.into());
            }
            variables.insert("tools".to_owned(), tools);
        }
        variables.extend(input.kwargs.clone());
        variables.insert("messages".to_owned(), Json::Array(messages));
        variables.insert("add_generation_prompt".to_owned(), input.add_generation_prompt.into());
        Ok((variables, seconds))
    }

    /// Renders the template with these variables. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// There is no memory for a stack on which the template can nest as deeply as it does; or llama.cpp refuses a role.
    fn run(&self, variables: &Map<String, Json>, now: u64, limits: &RenderLimits) -> Result<TemplateResult<String>> {
        let template = match &self.template {
            TemplateSource::Jinja(template) => template,
            TemplateSource::Named(name) => return named::render(name, variables).map(Ok),
        };
        let depth = foredraft_jinja::depth(large_stack::left());
        if depth > 0 {
            match rendered(template, variables, now, RenderLimits { depth, ..limits.clone() }) {
                Err(fault) if fault.kind == FaultKind::Depth && depth < MAX_DEPTH => {}
                result => return Ok(result),
            }
        }
        let (template, variables, limits) = (Arc::clone(template), variables.clone(), limits.clone());
        let render = move || Ok(rendered(&template, &variables, now, RenderLimits { depth: MAX_DEPTH, ..limits }));
        large_stack::with(foredraft_jinja::stack(MAX_DEPTH), NAME, render)
    }
}

/// The variables that every template has, as in llama-server. Other absent ones stay undefined, because templates fail when they iterate over
/// null.
fn defaults(bos_token: &str, eos_token: &str, seconds: u64) -> Map<String, Json> {
    Map::from_iter([
        ("bos_token".to_owned(), bos_token.into()),
        ("eos_token".to_owned(), eos_token.into()),
        ("enable_thinking".to_owned(), true.into()),
        ("date_string".to_owned(), strftime("%d %b %Y", seconds).into()),
        ("datetime".to_owned(), strftime("%b %d %Y", seconds).into()),
        (FUNCTIONS.to_owned(), "".into()),
    ])
}

fn rendered(
    template: &Template,
    variables: &Map<String, Json>,
    now: u64,
    limits: RenderLimits,
) -> TemplateResult<String> {
    let run = Run::new(limits);
    let mut values = Vec::with_capacity(variables.len());
    for (name, json) in variables {
        values.push((name.as_str(), value(&run, json)?));
    }
    template.render(&run, values, now)
}

#[cfg(test)]
mod tests;
