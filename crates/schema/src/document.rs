//! A schema document: resolves references, limits the work for one schema, and notes what is not enforced.
//!
//! References make a short schema equivalent to a very large one: comparing its parts could take forever, and writing it out could
//! exhaust the memory. So all work that references can repeat is counted, and stops at a limit.

use std::cell::{OnceCell, RefCell};

use foredraft_base::error::{Code, Error};
use foredraft_base::work::{Work, WorkEnd};
use serde_json::Value;

use crate::options::{CompileOptions, DROPPING, Unenforced};
use crate::unevaluated::UNEVALUATED;

/// The result of reading a part of a schema.
pub(crate) type SchemaResult<T> = Result<T, SchemaError>;

/// Why a part of a schema cannot be read.
#[derive(Debug)]
pub(crate) struct SchemaError {
    /// The location and the reason.
    message: String,
    pub(crate) kind: SchemaFault,
    code: Code,
}

/// A fault of a part of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SchemaFault {
    /// It is no schema, or its steps are used up.
    Invalid,
    /// The schema is one, but no value is valid under it.
    Empty,
    /// It is larger than a grammar can be.
    TooLarge,
}

impl SchemaError {
    /// The error that a host gets.
    pub(crate) fn into_error(self) -> Error {
        Error::new(self.code, self.message)
    }
}

/// The error at a location in the schema.
pub(crate) fn error_at<T>(at: &str, what: impl std::fmt::Display) -> SchemaResult<T> {
    let shown: String = at.chars().take(120).collect();
    Err(SchemaError { message: format!("{shown}: {what}"), kind: SchemaFault::Invalid, code: Code::InvalidRequest })
}

/// The error that no value is valid under the schema at a location.
pub(crate) fn empty_at<T>(at: &str, what: impl std::fmt::Display) -> SchemaResult<T> {
    error_at(at, what).map_err(|error: SchemaError| SchemaError { kind: SchemaFault::Empty, ..error })
}

/// The error that a part of the schema is too large for a grammar.
pub(crate) fn too_large_at<T>(at: &str, what: impl std::fmt::Display) -> SchemaResult<T> {
    error_at(at, what).map_err(|error: SchemaError| SchemaError { kind: SchemaFault::TooLarge, ..error })
}

impl SchemaError {
    /// The reason, without the location.
    fn reason(&self) -> &str {
        self.message.split_once(": ").map_or(self.message.as_str(), |(_, reason)| reason)
    }
}

/// The maximum nesting of arrays and objects in a schema. It bounds the stack's depth.
pub(crate) const MAX_NESTING: usize = 128;
/// The maximum number of schemas inside a schema.
pub(crate) const MAX_NODES: usize = 2000;
/// The maximum length of a reference or identifier, in bytes.
pub(crate) const MAX_PATH: usize = 2048;
/// The maximum number of steps of a validation: about a second. Typical values take hundreds.
const MAX_STEPS: u64 = 8_000_000;
/// The steps of reading a keyword, or of copying a value. A comparison is one step.
pub(crate) const VISIT: usize = 8;
/// This many bytes of text count as one value.
const BYTES_PER_VALUE: usize = 16;
/// The longest text in a message, in characters.
const SHOWN: usize = 80;

/// The root of a schema, the work that it may cause, and the keywords that were dropped.
pub(crate) struct Document<'a> {
    root: &'a Value,
    work: Work,
    /// A keyword that no grammar can enforce is noted in `unenforced`. Otherwise it is an error.
    drops: bool,
    /// An object may have further properties where its schema says nothing about them.
    pub(crate) is_open: bool,
    unenforced: RefCell<Vec<Unenforced>>,
    has_unevaluated: OnceCell<bool>,
}

impl<'a> Document<'a> {
    pub(crate) fn new(root: &'a Value, options: &CompileOptions, work: &Work) -> Self {
        let (drops, is_open) = (options.drop_unenforceable, options.is_open);
        Self {
            root,
            work: work.clone(),
            drops,
            is_open,
            unenforced: RefCell::default(),
            has_unevaluated: OnceCell::new(),
        }
    }

    /// The document for the validation of a value, with steps of its own.
    pub(crate) fn for_validation(root: &'a Value) -> Self {
        Document::new(root, &DROPPING, &Work::new(MAX_STEPS, None))
    }

    /// The counter of the steps.
    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    /// Notes that a keyword is not enforced. An error unless such keywords are dropped. `why` is the whole message.
    pub(crate) fn drop_keyword(&self, at: &str, keyword: &str, why: impl std::fmt::Display) -> SchemaResult<()> {
        if !self.drops {
            return error_at(at, why);
        }
        self.note(at, keyword, why);
        Ok(())
    }

    /// Notes that a keyword is not enforced. Not an error.
    pub(crate) fn note(&self, at: &str, keyword: &str, why: impl std::fmt::Display) {
        let dropped = Unenforced { location: at.to_owned(), keyword: keyword.to_owned(), reason: why.to_string() };
        let mut unenforced = self.unenforced.borrow_mut();
        if !unenforced.iter().any(|one| one.location == dropped.location && one.keyword == dropped.keyword) {
            unenforced.push(dropped);
        }
    }

    /// The result of a part that may be too large for a grammar: then `other`, and a note, if keywords may be dropped.
    pub(crate) fn allow_large<T>(
        &self,
        result: SchemaResult<T>,
        at: &str,
        other: impl FnOnce() -> T,
    ) -> SchemaResult<T> {
        match result {
            Err(error) if error.kind == SchemaFault::TooLarge && self.drops => {
                self.drop_keyword(at, "schema", format!("{}, which a grammar cannot enforce", error.reason()))?;
                Ok(other())
            }
            other => other,
        }
    }

    /// Whether a keyword for unevaluated properties or items occurs.
    pub(crate) fn has_unevaluated(&self) -> bool {
        *self.has_unevaluated.get_or_init(|| {
            let mut open = vec![self.root];
            while let Some(value) = open.pop() {
                if self.work.step(1).is_err() {
                    return false;
                }
                match value {
                    Value::Array(items) => open.extend(items),
                    Value::Object(map) if map.keys().any(|key| UNEVALUATED.contains(&key.as_str())) => return true,
                    Value::Object(map) => open.extend(map.values()),
                    _ => {}
                }
            }
            false
        })
    }

    /// The keywords that were dropped.
    pub(crate) fn into_unenforced(self) -> Vec<Unenforced> {
        self.unenforced.into_inner()
    }

    /// Counts steps. `at` is the location for the error.
    pub(crate) fn count_steps(&self, steps: usize, at: &str) -> SchemaResult<()> {
        let located = |end: WorkEnd| error_at::<()>(at, end).map_err(|error| SchemaError { code: end.code(), ..error });
        self.work.step(steps).or_else(located)
    }

    /// Counts the steps of copying `value`.
    pub(crate) fn count_copy(&self, value: &Value, at: &str) -> SchemaResult<()> {
        self.count_steps(VISIT * n_values(value), at)
    }

    /// The schema that a reference points at.
    pub(crate) fn resolve(&self, reference: &str, at: &str) -> SchemaResult<&'a Value> {
        if reference.len() > MAX_PATH {
            return error_at(at, "a $ref that is too long");
        }
        self.count_steps(4 + reference.len() / 2, at)?;
        let Some(pointer) = reference.strip_prefix('#') else {
            return error_at(at, format!("$ref {reference:?}: only references inside the same schema are resolved"));
        };
        self.root.pointer(pointer).map_or_else(|| error_at(at, format!("cannot resolve $ref {reference:?}")), Ok)
    }
}

/// The number of values inside a value, including itself. A long text counts as several.
pub(crate) fn n_values(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len() / BYTES_PER_VALUE,
        Value::Array(items) => 1 + items.iter().map(n_values).sum::<usize>(),
        Value::Object(map) => {
            1 + map.iter().map(|(key, value)| key.len() / BYTES_PER_VALUE + n_values(value)).sum::<usize>()
        }
        _ => 1,
    }
}

/// The location of a part of the schema at `at`: a pointer with one more name.
pub(crate) fn inside(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// A value in a message, shortened.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::String(text) => show_text(text),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}

/// A text in a message, shortened.
pub(crate) fn show_text(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).collect();
    format!("{shown:?}{}", if shown.len() < text.len() { "..." } else { "" })
}
