//! How a schema is compiled, and the result.

/// How a schema is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompileOptions {
    /// A keyword that no grammar can enforce is dropped and reported in [`CompiledSchema::unenforced`]. Otherwise it is an error.
    pub drop_unenforceable: bool,
    /// The properties of small objects may come in any order. Otherwise, and in larger objects, they come in the order of the schema, or
    /// the required ones first.
    pub any_order: bool,
    /// Values can also be literals of Python: strings in single quotes, `True`, `False` and `None`.
    pub python: bool,
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

/// The rule of a schema in a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledSchema {
    /// The rule that matches the JSON text of a valid value, without space around it.
    pub rule: String,
    /// The keywords that were dropped.
    pub unenforced: Vec<Unenforced>,
}
