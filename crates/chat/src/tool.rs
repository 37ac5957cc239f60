//! Tools as grammars and parsers need them.

use serde_json::Value;

use foredraft_base::error::Result;
use foredraft_base::work::Work;
use foredraft_schema::{ArgumentKind, Parameters, Schema};

/// A tool that can be called.
#[derive(Debug, Clone)]
pub struct Tool {
    /// The name.
    pub name: String,
    pub(crate) schema: Schema,
    /// The schema as it was given.
    pub(crate) raw: Value,
    pub(crate) parameters: Parameters,
    /// How the text of each parameter is read, in the order of the parameters.
    kinds: Vec<ArgumentKind>,
    additional: ArgumentKind,
}

/// A parameter that a tagged argument names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownParameter<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) kind: ArgumentKind,
}

impl Tool {
    /// A tool with the JSON schema of its parameters. `work` counts the steps of reading and compiling it.
    ///
    /// # Errors
    /// `invalid_request`, with the location in the schema: it is not a schema, or nothing satisfies it. `cancelled`: `work` was interrupted.
    pub fn new(name: &str, raw: &Value, work: &Work) -> Result<Tool> {
        let schema = Schema::new(raw, work)?;
        let parameters = schema.parameters()?;
        let kinds =
            parameters.properties.iter().map(|property| property.schema.argument_kind()).collect::<Result<_>>()?;
        let additional = parameters.additional.as_ref().map_or(Ok(ArgumentKind::Either), Schema::argument_kind)?;
        Ok(Tool { name: name.to_owned(), schema, raw: raw.clone(), parameters, kinds, additional })
    }

    /// The parameter with this name, or what the schema says about arguments with other names.
    pub(crate) fn parameter(&self, name: &str) -> Option<KnownParameter<'_>> {
        let mut known = self.parameters.properties.iter().zip(&self.kinds);
        match known.find(|(property, _)| property.name == name) {
            Some((property, kind)) => Some(KnownParameter { schema: &property.schema, kind: *kind }),
            None => {
                let schema = self.parameters.additional.as_ref()?;
                Some(KnownParameter { schema, kind: self.additional })
            }
        }
    }
}
