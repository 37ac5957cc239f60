//! How a schema is compiled, and the result.

use foredraft_grammar::tree::NodeId;

/// How a schema is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompileOptions {
    /// A keyword that no grammar can enforce is dropped and reported in [`CompiledSchema::unenforced`]. Otherwise it is an error.
    pub drop_unenforceable: bool,
    /// An object may have further properties where its schema says nothing about them, as the standard says. Otherwise only where the schema
    /// asks for them, or lists none.
    pub is_open: bool,
    /// Properties may come in any order. Otherwise they come in the order of the schema, or the required ones first.
    pub any_order: bool,
    /// Any values and any space are read, not only the schema's.
    pub is_lenient: bool,
}

/// Drops what cannot be enforced.
pub(crate) const DROPPING: CompileOptions =
    CompileOptions { drop_unenforceable: true, is_open: false, any_order: false, is_lenient: false };

/// How values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notation {
    /// JSON.
    Json,
    /// Literals of Python: strings in single or double quotes, `True`, `False`, `None`. Constants of JSON, too.
    Python,
    /// Gemma's: bare keys, and strings between [`GEMMA_QUOTE`](crate::GEMMA_QUOTE).
    Gemma,
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

/// The node of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledSchema {
    /// The texts of valid values, without space around them.
    pub node: NodeId,
    /// The keywords that were dropped.
    pub unenforced: Vec<Unenforced>,
}
