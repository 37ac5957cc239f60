//! `json_schema`: converts a JSON schema to a grammar, with llama.cpp's converter.
//!
//! The converter ignores keywords that it does not know, handles some others incorrectly, and has no limits. A completion must
//! always be valid under the schema. So the schema is first rewritten to a form that the converter handles correctly, and
//! keywords that no grammar can enforce are errors. The rewritten schema can be narrower (additional properties only if the
//! schema asks for them, integers of at most 15 digits), but never wider. References are resolved only inside the schema; nothing
//! is fetched.

mod converter_fixes;
mod counts;
mod disjoint;
mod document;
mod keywords;
mod merge;
mod names;
mod pattern;
mod reader;
mod references;
#[cfg(test)]
mod tests;
mod uri;

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
    let simplified = stack::with(STACK, "json_schema", || reader::simplify(schema, false).map_err(Error::invalid))?;
    Ok(fix_grammar(&schema_to_grammar(&simplified)?))
}

/// Corrects the rules of a grammar that llama.cpp's converter has written.
pub(super) fn fix_grammar(grammar: &str) -> String {
    grammar.lines().map(converter_fixes::fix_rule).collect()
}

/// The form of a schema that llama.cpp's converter handles correctly, for a grammar with several schemas. `prefix` makes the names of its
/// definitions unique among them. The root is no reference, because llama.cpp's chat formats read the properties there.
///
/// # Errors
/// As [`to_grammar`].
pub(super) fn simplified(schema: &Value, prefix: &str) -> Result<Value> {
    let text = stack::with(STACK, "json_schema", || reader::simplify(schema, true).map_err(Error::invalid))?;
    // It can nest deeper than serde_json's limit only by a bug.
    let mut document = serde_json::from_str(&text).map_err(|error| Error::invalid(format!("json_schema: {error}")))?;
    stack::with(STACK, "json_schema", || {
        rename_definitions(&mut document, prefix);
        Ok(())
    })?;
    let (Some(root), Some(Value::Object(definitions))) = (document.get("$ref"), document.get("$defs")) else {
        return Ok(document);
    };
    let name = root.as_str().and_then(|reference| reference.strip_prefix("#/$defs/")).unwrap_or_default();
    let mut inlined = definitions.get(name).cloned().unwrap_or_default();
    if let Value::Object(inlined) = &mut inlined {
        inlined.insert("$defs".to_owned(), Value::Object(definitions.clone()));
    }
    Ok(inlined)
}

/// Adds a prefix to the names of definitions.
fn rename_definitions(value: &mut Value, prefix: &str) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Object(definitions)) = map.get_mut("$defs") {
                *definitions = std::mem::take(definitions)
                    .into_iter()
                    .map(|(name, schema)| (format!("{prefix}{name}"), schema))
                    .collect();
            }
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(name) = reference.strip_prefix("#/$defs/")
            {
                *reference = format!("#/$defs/{prefix}{name}");
            }
            map.iter_mut()
                .filter(|(key, _)| !["enum", "const"].contains(&key.as_str()))
                .for_each(|(_, value)| rename_definitions(value, prefix));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename_definitions(item, prefix)),
        _ => {}
    }
}
