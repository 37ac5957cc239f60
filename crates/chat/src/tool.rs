//! Tools as the trees of turns need them.

use serde_json::Value;

use foredraft_base::error::Result;
use foredraft_base::work::Work;
use foredraft_schema::{Parameters, Schema};

/// A tool that can be called.
#[derive(Debug, Clone)]
pub struct Tool {
    /// The name.
    pub name: String,
    pub(crate) schema: Schema,
    /// The schema as it was given.
    pub(crate) raw: Value,
    pub(crate) parameters: Parameters,
}

impl Tool {
    /// A tool with the JSON schema of its parameters. `work` counts the steps of reading and compiling it.
    ///
    /// # Errors
    /// `invalid_request`, with the location in the schema: it is not a schema, or nothing satisfies it. `cancelled`: `work` was interrupted.
    pub fn new(name: &str, raw: &Value, work: &Work) -> Result<Tool> {
        let schema = Schema::new(raw, work)?;
        let parameters = schema.parameters()?;
        Ok(Tool { name: name.to_owned(), schema, raw: raw.clone(), parameters })
    }
}
