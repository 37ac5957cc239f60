//! JSON Schema to grammars in llama.cpp's notation (GBNF).
//!
//! A completion must always be valid under its schema. So the grammar may be narrower than the schema (additional properties only if the
//! schema asks for them, integers of at most 15 digits), but it is never wider. Keywords that no grammar can enforce are an error, or
//! are dropped and reported ([`CompileOptions::drop_unenforceable`]). References are resolved only inside the schema; nothing is fetched.
//! Time, memory and stack are bounded for any schema.
//!
//! - `references`, `uri`: where each `$ref` leads. `document`: the limits of the work, and the dropped keywords.
//! - `reader` (a file each for objects, arrays, texts and numbers, lists of values, alternatives), with `merge`, `dependents`, `unevaluated`, `negation`, `names`, `disjoint`, `keywords`: from a schema to a `tree` of the values that a grammar can allow.
//! - `writer`, with `sequence`, `numbers`, `formats`, `spelling`, `pattern`, `delimiters`: from the tree to `rules`.
//! - `schema`: the interface. `arguments`: values between tags. `validate`: whether a value is valid.

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
mod negation;
mod numbers;
mod options;
mod pattern;
mod reader;
mod references;
mod rules;
mod schema;
mod sequence;
mod spelling;
#[cfg(test)]
mod tests;
mod tree;
mod unevaluated;
mod uri;
mod validate;
mod writer;

use self::sequence::ItemSequence;
use self::spelling::Spelling;

pub use self::arguments::{ArgumentKind, CompiledArgument, Parameters, Property};
pub use self::options::{CompileOptions, CompiledSchema, Unenforced};
pub use self::rules::{Rules, literal};
pub use self::schema::{Schema, compile};

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
/// Up to five items come in any order. More come in the order of `items`, or the required ones first: any order would need a rule for
/// each subset.
pub fn each_once(items: &[(String, bool)], separator: &str, rules: &mut Rules) -> String {
    let sequence = ItemSequence { items, separator, further: None, least: 0, most: None, any_order: true };
    sequence.add(rules, "items").unwrap_or_else(|| rules.add("items", "\"\""))
}
