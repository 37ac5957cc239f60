//! `json_schema`: the grammar of a JSON schema.

use serde_json::Value;

use super::fields::{Fields, unexpected};
use crate::error::{Error, Result};
use foredraft_base::work::Work;
use foredraft_grammar::tree::{NodeId, Tree, TreeBuilder};
use foredraft_schema::{CompileOptions, Schema, Unenforced};

/// Reads the field `json_schema`: an object, or a string that contains one.
///
/// # Errors
/// It is neither.
pub fn parse(value: &Value) -> Result<Value> {
    let parsed = value.as_str().map(serde_json::from_str::<Value>);
    match (value, parsed) {
        (_, Some(Ok(schema @ Value::Object(_)))) => Ok(schema),
        (_, Some(Err(error))) => Err(Error::invalid(format!("json_schema: not JSON: {error}"))),
        (Value::Object(_), _) => Ok(value.clone()),
        _ => Err(unexpected("json_schema", "an object, or a string that contains one", value)),
    }
}

/// Reads `property_order` and `additional_properties`.
///
/// # Errors
/// One has another value than those that it may have.
pub fn read_options(fields: &mut Fields) -> Result<CompileOptions> {
    let any_order = fields.word("property_order", &[("schema", false), ("any", true)])?.unwrap_or(false);
    let is_open = fields.flag("additional_properties")?.unwrap_or(false);
    Ok(CompileOptions { drop_unenforceable: true, is_open, any_order, is_lenient: false })
}

/// Converts a schema to a grammar: a node of a tree, and warnings. A completion is valid under the schema, but for what the warnings say.
///
/// # Errors
/// `invalid_request`, with the location in the schema: it is not a schema, nothing satisfies it, or it is too large. `cancelled`: `work`
/// was interrupted.
pub fn to_grammar(schema: &Value, options: &CompileOptions, work: &Work) -> Result<(Tree, NodeId, Vec<String>)> {
    let tree = TreeBuilder::new();
    let read = Schema::new(schema, work);
    let compiled = read.and_then(|schema| schema.compile(options, &tree)).map_err(|error| of_field(&error))?;
    let warning = |one: Unenforced| format!("json_schema: {}: {}", one.location, one.reason);
    Ok((tree.into(), compiled.node, compiled.unenforced.into_iter().map(warning).collect()))
}

/// An error as the field `json_schema` has it.
pub fn of_field(error: &Error) -> Error {
    Error::new(error.code(), format!("json_schema: {}", error.message()))
}

#[cfg(test)]
mod tests;
