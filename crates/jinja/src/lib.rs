//! Jinja templates with hard limits: the language of chat templates, as Jinja2 renders it with the settings of Hugging Face's
//! transformers.
//!
//! A chat template comes with a model file or with a request, so it can be hostile. `minijinja`, which was used before, counts
//! instructions but not what one instruction makes: `x ~ x` in a loop, `[1]|batch(1000000000, 'x')` and a namespace
//! that contains itself took all memory or the stack. llama.cpp's own engine has no limits at all. Here each operation asks the
//! `meter` before it works:
//!
//! - **steps** bound the time: one for each node and each item, one for each 32 bytes that are read or written;
//! - **memory** is what all values, arguments and variables that exist take together, and is counted before they are made;
//! - **nesting** of expressions, blocks, macro calls and values is bounded, and values are dropped without recursion;
//! - an **interrupt** is asked every few thousand steps.
//!
//! Errors are plain [`Fault`]s. Nothing panics, aborts or recurses without bound. Values are those of Python: lists and dictionaries
//! are shared and can be modified, undefined values can be asked for attributes.
//!
//! - `lexer`, `parser`, `ast`: source to tree. `interpreter`, `eval`: statements and expressions. `scope`: variables.
//! - `value`, `compare`, `operators`, `print`: Python's values, operators and text.
//! - `filters`, `predicates` (Jinja2's tests), `methods`, `functions`: what templates call.

mod arguments;
mod ast;
mod compare;
mod error;
mod eval;
mod filters;
mod functions;
mod interpreter;
mod lexer;
mod meter;
mod methods;
mod operators;
mod parser;
mod predicates;
mod print;
mod scope;
mod search;
mod text;
mod value;

use std::rc::Rc;

use self::ast::{Ast, Constant};
pub use self::error::{Fault, FaultKind, TemplateResult};
pub use self::functions::strftime;
use self::interpreter::Interpreter;
use self::meter::Meter;
pub use self::meter::{MAX_DEPTH, RenderLimits, stop_after};
use self::text::TextBuilder;
pub use self::value::Value;
pub use foredraft_base::work::StopSignal;

/// The stack in bytes that parsing needs: three times what the deepest template was seen to use.
pub const PARSE_STACK: usize = 3 << 20;
/// The stack in bytes that a level of evaluation needs: three times what the costliest one was seen to use.
const LEVEL_STACK: usize = 4 << 10;
/// The stack in bytes that rendering needs for everything that does not nest, and for values, whose nesting has a limit of its own.
const VALUE_STACK: usize = 384 << 10;

/// The stack in bytes that rendering needs for that nesting of evaluation.
pub const fn stack(depth: usize) -> usize {
    VALUE_STACK + depth * LEVEL_STACK
}

/// The nesting of evaluation that a stack of this many bytes allows.
pub const fn depth(stack: usize) -> usize {
    let depth = stack.saturating_sub(VALUE_STACK) / LEVEL_STACK;
    if depth < MAX_DEPTH { depth } else { MAX_DEPTH }
}

/// A parsed template. Immutable, so several threads can render it at the same time.
#[derive(Debug)]
pub struct Template {
    ast: Ast,
}

impl Template {
    /// Parses a template. Needs [`PARSE_STACK`] bytes of stack.
    ///
    /// # Errors
    /// [`FaultKind::Syntax`] with the line.
    pub fn parse(source: &str) -> TemplateResult<Template> {
        Ok(Template { ast: parser::parse(source)? })
    }

    /// The string literals of the template.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.ast.constants.iter().filter_map(|constant| match constant {
            Constant::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// All texts of the template: its string literals, and those outside of tags. No comments.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.literals().chain(self.ast.raw.iter().map(|text| &**text))
    }

    /// Whether the template asks for a variable of that name.
    pub fn uses(&self, variable: &str) -> bool {
        self.ast.symbols.iter().any(|name| **name == *variable)
    }

    /// Renders the template. `now` is the time of `strftime_now`, in seconds since 1970. Needs as much stack as [`stack`]
    /// says for the limit on the depth.
    ///
    /// # Errors
    /// The template fails, calls `raise_exception`, exceeds a limit, or is interrupted.
    pub fn render(&self, run: &Run, variables: Vec<(&str, Value)>, now: u64) -> TemplateResult<String> {
        let interpreter = Interpreter::new(&self.ast, &run.meter, now)?;
        for (name, value) in variables {
            if let Some(symbol) = self.ast.symbols.iter().position(|known| **known == *name) {
                interpreter.globals.set(symbol as ast::VariableName, value)?;
            }
        }
        interpreter.run()
    }
}

/// The limits of one rendering, and what makes the values for it.
pub struct Run {
    meter: Rc<Meter>,
}

impl Run {
    /// A rendering with these limits.
    pub fn new(limits: RenderLimits) -> Run {
        Run { meter: Meter::new(limits) }
    }

    /// The steps until now.
    pub fn steps(&self) -> u64 {
        self.meter.steps()
    }

    /// The memory of all values that exist, in bytes.
    pub fn memory(&self) -> usize {
        self.meter.memory()
    }

    /// A text.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn text(&self, text: &str) -> TemplateResult<Value> {
        value::text(&self.meter, text)
    }

    /// A list.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn list(&self, items: Vec<Value>) -> TemplateResult<Value> {
        value::list(&self.meter, items)
    }

    /// A dictionary. The names are different.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn dict(&self, pairs: impl IntoIterator<Item = (Value, Value)>) -> TemplateResult<Value> {
        let dict = value::dict(&self.meter, false)?;
        pairs.into_iter().try_for_each(|(name, value)| dict.push(name, value))?;
        Ok(Value::Dict(dict))
    }

    /// JSON text of a value, as Python's `json.dumps` writes it without `ensure_ascii`.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn json(&self, value: &Value) -> TemplateResult<String> {
        let mut out = TextBuilder::new(&self.meter)?;
        print::json(&mut out, value, &print::JsonStyle::default(), 0)?;
        Ok(out.into_string())
    }
}

#[cfg(test)]
mod tests;
