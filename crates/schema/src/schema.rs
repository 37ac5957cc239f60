//! A schema and its grammar in JSON.

use std::sync::Arc;

use serde_json::Value;

use foredraft_base::error::{Error, Result};
use foredraft_base::work::Work;

use crate::document::{Document, MAX_NESTING, SchemaError, n_values};
use crate::options::{CompileOptions, Unenforced};
use crate::tree::SchemaTree;
use crate::validate::Validator;
use crate::{reader, references};

/// A schema, or a part of one. Copies share the document.
#[derive(Debug, Clone)]
pub struct Schema {
    /// The whole document, with references as pointers from its root.
    pub(crate) root: Arc<Value>,
    /// The part that is meant. Its references lead into `root`.
    pub(crate) part: Arc<Value>,
    /// Where the part is.
    pub(crate) at: String,
    /// Counts the steps of reading and compiling.
    pub(crate) work: Work,
}

impl Schema {
    /// Reads a schema and finds its references. `work` counts the steps of this and of all compilations.
    ///
    /// # Errors
    /// `invalid_request`, with the location: it is nested too deeply, or too large. `cancelled`: `work` was interrupted.
    pub fn new(schema: &Value, work: &Work) -> Result<Schema> {
        if nesting(schema) > MAX_NESTING {
            return Err(Error::invalid(format!("#: nested deeper than {MAX_NESTING} arrays and objects")));
        }
        let document = Document::new(schema, &CompileOptions::default(), work);
        let counted = document.count_steps(n_values(schema), "#");
        let located = counted.and_then(|()| references::locate(&document, schema));
        let root = Arc::new(located.map_err(SchemaError::into_error)?);
        Ok(Schema { part: Arc::clone(&root), root, at: "#".to_owned(), work: work.clone() })
    }

    /// A schema of its own that is a part of this one's text, and so of its work.
    ///
    /// # Errors
    /// As [`Schema::new`].
    pub fn own_part(&self, part: &Value) -> Result<Schema> {
        Schema::new(part, &self.work)
    }

    /// The schema at another place of the same document. Its text can differ from what is there.
    pub(crate) fn part(&self, part: Value, at: String) -> Schema {
        Schema { root: Arc::clone(&self.root), part: Arc::new(part), at, work: self.work.clone() }
    }

    /// The tree of its values, and the keywords that were dropped.
    pub(crate) fn read(&self, options: &CompileOptions) -> Result<(SchemaTree, Vec<Unenforced>)> {
        let document = Document::new(&self.root, options, &self.work);
        let tree = reader::read(&document, &self.part, &self.at).map_err(SchemaError::into_error)?;
        Ok((tree, document.into_unenforced()))
    }

    /// Counts steps that are about to be taken.
    ///
    /// # Errors
    /// They may not be taken.
    pub(crate) fn count_steps(&self, n: usize) -> Result<()> {
        self.work.step(n).map_err(|end| Error::new(end.code(), format!("{}: {end}", self.at)))
    }

    /// Whether a value is valid, as far as the keywords are known: `unevaluatedProperties`, `unevaluatedItems`, `$dynamicRef` and
    /// patterns with lookarounds or references to groups restrict nothing here, and a schema or value that takes too many steps is valid.
    #[must_use]
    pub fn is_valid(&self, value: &Value) -> bool {
        let document = Document::for_validation(&self.root);
        Validator::new(&document).is_valid(&self.part, value)
    }
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
