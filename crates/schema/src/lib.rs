//! JSON Schema to grammars in llama.cpp's notation (GBNF).
//!
//! A completion must always be valid under its schema. So the grammar may be narrower than the schema (additional properties only if the
//! schema asks for them, integers of at most 15 digits), but it is never wider. Keywords that no grammar can enforce are an error, or
//! are dropped and reported ([`CompileOptions::drop_unenforceable`]). References are resolved only inside the schema; nothing is fetched.
//! Time, memory and stack are bounded for any schema.

//!
//! - `references`, `uri`: where each `$ref` leads. `document`: the limits of the work, and the dropped keywords.
//! - `reader`, with `merge`, `dependents`, `names`, `disjoint`, `keywords`: from a schema to a `tree` of the values that a grammar can allow.
//! - `writer`, with `sequence`, `numbers`, `formats`, `spelling`, `pattern`, `delimiters`: from the tree to `rules`.
//! - `arguments`: values between tags. `validate`: whether a value is valid.

mod arguments;
mod classes;
mod delimiters;
mod dependents;
mod disjoint;
mod document;
mod formats;
mod keywords;
mod merge;
mod names;
mod numbers;
mod pattern;
mod reader;
mod references;
mod rules;
mod sequence;
mod spelling;
#[cfg(test)]
mod tests;
mod tree;
mod uri;
mod validate;
mod writer;

use std::sync::Arc;

use serde_json::Value;

use foredraft_base::error::{Error, Result};

use self::document::{Document, error_at};
use self::sequence::Sequence;
use self::spelling::Spelling;
use self::tree::SchemaTree;
use self::validate::Validator;
use self::writer::WriterOptions;

pub use self::rules::{Rules, literal};

/// The maximum nesting of arrays and objects in a schema. It bounds the stack's depth.
const MAX_NESTING: usize = 128;

/// How a schema is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompileOptions {
    /// A keyword that no grammar can enforce is dropped and reported in [`CompiledSchema::unenforced`]. Otherwise it is an error.
    pub drop_unenforceable: bool,
    /// The properties of small objects may come in any order. Otherwise, and in larger objects, they come in the order of the schema, or
    /// the required ones first.
    pub any_order: bool,
}

/// A keyword that the grammar does not enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unenforced {
    /// The schema that has the keyword, as a JSON pointer in a fragment: `#/properties/tags`.
    pub location: String,
    /// The keyword, such as `uniqueItems`.
    pub keyword: String,
    /// Why it is not enforced: a phrase such as `uniqueItems cannot be enforced by a grammar`.
    pub reason: String,
}

/// The rule of a schema in a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledSchema {
    /// The rule that matches the JSON text of a valid value, without space around it.
    pub rule: String,
    /// The keywords that were dropped.
    pub unenforced: Vec<Unenforced>,
}

/// A schema, or a part of one. Copies share the document.
#[derive(Debug, Clone)]
pub struct Schema {
    /// The whole document, with references as pointers from its root.
    root: Arc<Value>,
    /// The part that is meant. Its references lead into `root`.
    part: Arc<Value>,
    /// Where the part is.
    at: String,
}

/// The parameters of a tool, for formats that write each argument between tags.
#[derive(Debug, Clone)]
pub struct Parameters {
    /// The parameters in the order of the schema.
    pub properties: Vec<Property>,
    /// The schema of arguments with other names; `None`: there are none.
    pub additional: Option<Schema>,
    /// The keywords about the whole object that a sequence of arguments does not enforce, such as `anyOf` or `minProperties`.
    pub unenforced: Vec<Unenforced>,
}

/// A parameter.
#[derive(Debug, Clone)]
pub struct Property {
    /// The name.
    pub name: String,
    /// Every call has it.
    pub is_required: bool,
    /// The schema of its values.
    pub schema: Schema,
}

/// How the text of an argument between tags is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// Only strings are valid: the text is the string itself, without quotes and escapes. The text `null` is a string.
    Text,
    /// No string is valid: the text is JSON. Space around it is ignored.
    Json,
    /// Strings and other values are valid, or the schema has no type. The text is JSON if it has no space around it and is the JSON text
    /// of a value that is not a string and that is valid under the schema. Any other text is the string itself. So `12` is a number
    /// where the schema allows this number, `null` is null where it allows null, and `"a"` is a string of three characters.
    Either,
}

/// The rule of an argument between tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The rule that matches the text between the tags. The text contains none of the delimiters, and is followed by the first
    /// occurrence of one.
    pub rule: String,
    /// How the text is read.
    pub kind: ArgumentKind,
    /// The keywords that were dropped.
    pub unenforced: Vec<Unenforced>,
}

impl Schema {
    /// Reads a schema and finds its references.
    ///
    /// # Errors
    /// `invalid_request`, with the location: it is nested too deeply, or too large.
    pub fn new(schema: &Value) -> Result<Schema> {
        if nesting(schema) > MAX_NESTING {
            return Err(Error::invalid(format!("#: nested deeper than {MAX_NESTING} arrays and objects")));
        }
        let root = Arc::new(references::locate(schema).map_err(Error::invalid)?);
        Ok(Schema { part: Arc::clone(&root), root, at: "#".to_owned() })
    }

    /// The tree of its values, and the keywords that were dropped.
    fn read(&self, drops: bool) -> Result<(SchemaTree, Vec<Unenforced>)> {
        let document = Document::new(&self.root, drops);
        let tree = reader::read(&document, &self.part, &self.at).map_err(Error::invalid)?;
        Ok((tree, document.into_unenforced()))
    }

    /// The error, or the dropped keywords, of writing the schema.
    fn located(&self, dropped: Vec<(&'static str, String)>) -> impl Iterator<Item = Unenforced> {
        dropped.into_iter().map(|(keyword, reason)| Unenforced {
            location: self.at.clone(),
            keyword: keyword.to_owned(),
            reason,
        })
    }

    /// Adds the rules for the JSON text of valid values.
    ///
    /// # Errors
    /// `invalid_request`, with the location: it is not a schema, nothing satisfies it, or it is too large; without
    /// [`CompileOptions::drop_unenforceable`]: a grammar cannot enforce it.
    pub fn compile(&self, options: &CompileOptions, rules: &mut Rules) -> Result<CompiledSchema> {
        let (tree, mut unenforced) = self.read(options.drop_unenforceable)?;
        let writer_options = WriterOptions {
            spelling: &Spelling::Json(None),
            any_order: options.any_order,
            drops: options.drop_unenforceable,
        };
        let mut dropped = Vec::new();
        let rule = writer::write(&tree, &tree.root, &writer_options, rules, &mut dropped)
            .or_else(|why| error_at(&self.at, why))
            .map_err(Error::invalid)?;
        unenforced.extend(self.located(dropped));
        Ok(CompiledSchema { rule, unenforced })
    }

    /// The parameters of a tool. If the schema is not one object (`anyOf` of several, for instance), the parameters are those of all
    /// alternatives, and `unenforced` says so.
    ///
    /// # Errors
    /// As [`Schema::compile`]: no object is valid.
    pub fn parameters(&self) -> Result<Parameters> {
        arguments::parameters(self)
    }

    /// Adds the rules for the text of a value between tags; see [`ArgumentKind`] for how it is read. `delimiters`: the texts that end the
    /// value. Strings obey `enum`, `const`, `pattern`, `format` and lengths as they do in JSON. JSON avoids the delimiters inside of its
    /// strings by escapes, so a delimiter must have a character that JSON has only in strings.
    /// [`CompileOptions::drop_unenforceable`] is always set here.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn compile_argument(
        &self,
        delimiters: &[&str],
        options: &CompileOptions,
        rules: &mut Rules,
    ) -> Result<Argument> {
        arguments::compile(self, delimiters, options, rules)
    }

    /// The value that the text of an argument means; see [`ArgumentKind`]. `None`: it must be JSON, and is not. The value can be invalid
    /// under the schema, if the text does not come from the grammar.
    #[must_use]
    pub fn read_argument(&self, kind: ArgumentKind, text: &str) -> Option<Value> {
        arguments::read(self, kind, text)
    }

    /// Whether a value is valid, as far as the keywords are known: `unevaluatedProperties`, `unevaluatedItems`, `$dynamicRef` and
    /// patterns with lookarounds or references to groups restrict nothing here, and a schema or value that takes too many steps is valid.
    #[must_use]
    pub fn is_valid(&self, value: &Value) -> bool {
        let document = Document::new(&self.root, true);
        Validator::new(&document).is_valid(&self.part, value)
    }
}

/// Reads and compiles a schema: [`Schema::new`] and [`Schema::compile`].
///
/// # Errors
/// As these.
pub fn compile(schema: &Value, options: &CompileOptions, rules: &mut Rules) -> Result<CompiledSchema> {
    Schema::new(schema)?.compile(options, rules)
}

/// Adds the rules for any text, also the empty one, in which no delimiter occurs, and after which the first delimiter that occurs is the
/// one that follows: that which ends first, and of several that end there the longest. Returns the name of the rule. A delimiter inside
/// of which another one ends never ends a text. Without delimiters: any text.
pub fn text_until(delimiters: &[&str], rules: &mut Rules) -> String {
    let body = Spelling::raw(delimiters).any_text(rules, false);
    rules.add("text", body)
}

/// Adds the rules for a sequence of items, each at most once and each required one exactly once, with `separator` (GBNF, may be empty)
/// between them, and returns the name of the rule. Each item is the name of its rule, and whether it is required.
///
/// Up to five items come in any order. Of more, the order is that of `items`, or the required ones first: any order would need a rule
/// for each subset.
pub fn each_once(items: &[(String, bool)], separator: &str, rules: &mut Rules) -> String {
    let sequence = Sequence { items, separator, further: None, least: 0, most: None, any_order: true };
    sequence.add(rules, "items").unwrap_or_else(|| rules.add("items", "\"\""))
}

/// The nesting of arrays and objects in a value, found without recursion.
fn nesting(value: &Value) -> usize {
    let (mut deepest, mut open) = (0, vec![(value, 1)]);
    while let Some((value, depth)) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|item| (item, depth + 1))),
            _ => continue,
        }
        deepest = deepest.max(depth);
    }
    deepest
}
