//! JSON Schema to grammars.
//!
//! A completion must always be valid under its schema. So the grammar may be narrower than the schema (additional properties only if the
//! schema asks for them, integers of at most 15 digits), but it is never wider. Keywords that no grammar can enforce are an error, or
//! are dropped and reported ([`CompileOptions::drop_unenforceable`]). References are resolved only inside the schema; nothing is fetched.
//! Time, memory and stack are bounded for any schema: all steps are counted by one [`Work`](foredraft_base::work::Work), which ends early
//! when its signal says so.
//!
//! - `references`, `uri`: where each `$ref` leads. `document`: the limits of the work, and the dropped keywords.
//! - `reader` (a file each for objects, arrays, texts and numbers, lists of values, alternatives), with `merge`, `dependents`, `unevaluated`, `negation`, `disjoint`, `keywords`: from a schema to a `tree` of the values that a grammar can allow.
//! - `writer`, with `numbers`, `formats`, `spelling`, `pattern`: from the tree to nodes of a grammar, in a notation.
//! - `schema`: the interface. `arguments`: values between tags. `validate`: whether a value is valid.

mod arguments;
mod dependents;
mod disjoint;
mod document;
mod formats;
mod keywords;
mod merge;
mod negation;
mod numbers;
mod options;
mod pattern;
mod reader;
mod references;
mod schema;
mod spelling;
#[cfg(test)]
mod tests;
mod tree;
mod unevaluated;
mod uri;
mod validate;
mod writer;

pub use self::arguments::{ArgumentKind, CompiledArgument, Parameters, Property};
pub use self::options::{CompileOptions, CompiledSchema, Notation, Unenforced};
pub use self::schema::Schema;
pub use self::writer::{GEMMA_QUOTE, Values, space};
