//! `json_schema`: the grammar of a JSON schema.

use serde_json::Value;

use super::fields::unexpected;
use crate::error::{Error, Result};
use foredraft_base::work::Work;
use foredraft_grammar::tree::{NodeId, Tree};
use foredraft_schema::{CompileOptions, Schema};

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

/// Converts a schema to a grammar: a node of a tree. A completion is always valid under the schema.
///
/// # Errors
/// `invalid_request`, with the location in the schema: it is not a schema, nothing satisfies it, a grammar cannot enforce it, or it
/// is too large. `cancelled`: `work` was interrupted.
pub fn to_grammar(schema: &Value, work: &Work) -> Result<(Tree, NodeId)> {
    let mut tree = Tree::new();
    let read = Schema::new(schema, work);
    let compiled = read.and_then(|schema| schema.compile(&CompileOptions::default(), &mut tree));
    Ok((tree, compiled.map_err(|error| of_field(&error))?.node))
}

/// An error as the field `json_schema` has it.
pub fn of_field(error: &Error) -> Error {
    Error::new(error.code(), format!("json_schema: {}", error.message()))
}

#[cfg(test)]
mod tests;
