//! Errors of templates.

use std::fmt;

/// The maximum length of a message, in characters. A template can name things by long texts.
const MAX_MESSAGE: usize = 4000;

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The source is not a template.
    Syntax,
    /// The template called `raise_exception`.
    Raised,
    /// An operation is not possible.
    Operation,
    /// A limit is exceeded: steps, memory, output, nesting of values.
    Limit,
    /// Expressions, blocks and macro calls nest deeper than [`RenderLimits::depth`](crate::RenderLimits::depth).
    Depth,
    /// The interrupt asked to stop.
    Interrupted,
}

/// An error of a template, with the line where it occurred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of the error.
    pub kind: FaultKind,
    /// The error in plain words.
    pub message: String,
    /// The line in the source, from 1. None if no line is known.
    pub line: Option<u32>,
}

/// A result of this crate. The error is boxed, because each evaluated node returns a result.
pub type TemplateResult<T> = std::result::Result<T, Box<Fault>>;

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Box<Fault> {
        let mut message = message.into();
        if let Some((at, _)) = message.char_indices().nth(MAX_MESSAGE) {
            message.truncate(at);
            message += "...";
        }
        Box::new(Fault { kind, message, line: None })
    }

    pub(crate) fn at(mut self: Box<Fault>, line: u32) -> Box<Fault> {
        self.line.get_or_insert(line);
        self
    }
}

/// An operation that is not possible.
pub(crate) fn refused<T>(message: impl Into<String>) -> TemplateResult<T> {
    Err(Fault::new(FaultKind::Operation, message))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.line.map_or(Ok(()), |line| write!(f, " (line {line})"))
    }
}

impl std::error::Error for Fault {}
