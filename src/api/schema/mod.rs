//! `json_schema`: converts a JSON schema to a grammar, with llama.cpp's converter.
//!
//! The converter ignores keywords that it does not know, handles some others incorrectly, and has no limits. A completion must
//! always be valid under the schema. So the schema is first rewritten to a form that the converter handles correctly, and
//! keywords that no grammar can enforce are errors. The rewritten schema can be narrower (additional properties only if the
//! schema asks for them, integers of at most 15 digits), but never wider. References are resolved only inside the schema; nothing
//! is fetched.

mod converter_fixes;
mod disjoint;
mod document;
mod keywords;
mod merge;
mod names;
mod pattern;
mod reader;
mod references;
#[cfg(test)]
mod references_tests;
#[cfg(test)]
mod suite_tests;
#[cfg(test)]
mod tests;
mod uri;
#[cfg(test)]
mod validator_tests;

use serde_json::Value;

use super::fields::unexpected;
use crate::error::{Error, Result};
use crate::llama::schema_to_grammar;
use foredraft_base::stack;

/// The stack size for reading a schema, in bytes. The limits allow four hundred levels of some kilobytes each.
const STACK: usize = 16 << 20;

/// Reads the field `json_schema`: an object, or a string that contains one.
///
/// # Errors
/// It is neither.
pub(super) fn parse(value: &Value) -> Result<Value> {
    let parsed = value.as_str().map(serde_json::from_str::<Value>);
    match (value, parsed) {
        (_, Some(Ok(schema @ Value::Object(_)))) => Ok(schema),
        (_, Some(Err(error))) => Err(Error::invalid(format!("json_schema: not JSON: {error}"))),
        (Value::Object(_), _) => Ok(value.clone()),
        _ => Err(unexpected("json_schema", "an object, or a string that contains one", value)),
    }
}

/// Converts a schema to a grammar in GBNF.
///
/// # Errors
/// `invalid_request`, with the location in the schema: it is not a schema, nothing satisfies it, a grammar cannot enforce it, or it
/// is too large.
pub(super) fn to_grammar(schema: &Value) -> Result<String> {
    let simplified = stack::with(STACK, "json_schema", || reader::simplify(schema).map_err(Error::invalid))?;
    let grammar = schema_to_grammar(&simplified)?;
    Ok(grammar.lines().map(converter_fixes::fix_rule).collect())
}
