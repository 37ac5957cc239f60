//! A schema as a tree of the values that its grammar allows.

use serde_json::Value;

use crate::document::{Document, SchemaResult, VISIT, error_at};
use crate::numbers::{IntegerRange, NumberRange};
use crate::pattern::PatternNode;

/// A schema whose references are resolved.
#[derive(Debug)]
pub(crate) struct SchemaTree {
    pub(crate) root: SchemaNode,
    /// The schemas that [`SchemaNode::Definition`] names by index.
    pub(crate) definitions: Vec<SchemaNode>,
}

/// A set of JSON values.
#[derive(Debug, Clone)]
pub(crate) enum SchemaNode {
    /// Any value.
    Any,
    /// The values of a definition.
    Definition(usize),
    /// The values of all of them. Not empty.
    Union(Vec<SchemaNode>),
    /// These values. Not empty.
    Values(Vec<Value>),
    Object(Box<ObjectNode>),
    Array(Box<ArrayNode>),
    Text(TextNode),
    Integer(IntegerRange),
    Number(NumberRange),
    Boolean,
    Null,
}

/// Objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectNode {
    /// The listed properties, in the order of the schema.
    pub(crate) properties: Vec<PropertyNode>,
    pub(crate) additional: Option<AdditionalNode>,
    /// The fewest properties.
    pub(crate) least: usize,
    /// The most properties.
    pub(crate) most: Option<usize>,
}

/// A listed property.
#[derive(Debug, Clone)]
pub(crate) struct PropertyNode {
    pub(crate) name: String,
    pub(crate) is_required: bool,
    pub(crate) value: SchemaNode,
}

/// The properties that are not listed.
#[derive(Debug, Clone)]
pub(crate) struct AdditionalNode {
    /// Names that they do not have, beside those of the listed properties.
    pub(crate) excluded: Vec<String>,
    /// The names that they have; `None`: any others. Only without listed properties.
    pub(crate) names: Option<TextNode>,
    pub(crate) value: SchemaNode,
}

/// Arrays.
#[derive(Debug, Clone)]
pub(crate) struct ArrayNode {
    /// The first items.
    pub(crate) first: Vec<SchemaNode>,
    /// All further items; `None`: there are none.
    pub(crate) rest: Option<SchemaNode>,
    pub(crate) least: u64,
    pub(crate) most: Option<u64>,
}

/// Strings.
#[derive(Debug, Clone)]
pub(crate) enum TextNode {
    /// Those that the pattern matches as a whole.
    Pattern(PatternNode),
    /// Those of a format of [`crate::keywords::FORMATS`].
    Format(&'static str),
    /// All but these.
    Except(Vec<String>),
}

impl SchemaNode {
    /// Any object.
    pub(crate) fn any_object() -> SchemaNode {
        let additional = Some(AdditionalNode { excluded: Vec::new(), names: None, value: SchemaNode::Any });
        SchemaNode::Object(Box::new(ObjectNode { additional, ..ObjectNode::default() }))
    }
}

impl SchemaTree {
    /// Checks that every reference leads to a value: no schema is only itself, and not all values are infinite.
    pub(crate) fn check(&self, document: &Document<'_>, at: &str) -> SchemaResult<()> {
        let mut finite = vec![false; self.definitions.len()];
        // Each round finds a definition, or is the last one.
        loop {
            document.count_steps(VISIT * self.definitions.len(), at)?;
            let mut grows = false;
            for (id, node) in self.definitions.iter().enumerate() {
                if let Some(known) = finite.get(id).copied().filter(|known| !known)
                    && known != is_finite(node, &finite)
                {
                    grows = true;
                    if let Some(known) = finite.get_mut(id) {
                        *known = true;
                    }
                }
            }
            if !grows {
                break;
            }
        }
        if !is_finite(&self.root, &finite) {
            return error_at(at, "refers to itself, so that no value is valid");
        }
        self.check_beginnings(at)
    }

    /// Checks that no schema is an alternative of itself: its rule would begin with itself.
    fn check_beginnings(&self, at: &str) -> SchemaResult<()> {
        // 0: new, 1: its alternatives are being visited, 2: done.
        let mut marks = vec![0_u8; self.definitions.len()];
        for start in 0..self.definitions.len() {
            let mut open: Vec<(usize, Vec<usize>)> = Vec::new();
            let mut next = Some(start);
            loop {
                if let Some(id) = next
                    && let (Some(mark), Some(node)) = (marks.get_mut(id), self.definitions.get(id))
                {
                    match mark {
                        0 => {
                            *mark = 1;
                            let mut targets = Vec::new();
                            add_alternatives(node, &mut targets);
                            open.push((id, targets));
                        }
                        1 => return error_at(at, "a schema refers to itself as an alternative"),
                        _ => {}
                    }
                }
                let Some((id, targets)) = open.last_mut() else { break };
                next = targets.pop();
                if next.is_none() {
                    if let Some(mark) = marks.get_mut(*id) {
                        *mark = 2;
                    }
                    open.pop();
                }
            }
        }
        Ok(())
    }
}

/// Whether a node has a value of finite size, as far as `finite` says so for the definitions.
fn is_finite(node: &SchemaNode, finite: &[bool]) -> bool {
    match node {
        SchemaNode::Definition(id) => finite.get(*id).copied().unwrap_or(false),
        SchemaNode::Union(nodes) => nodes.iter().any(|node| is_finite(node, finite)),
        SchemaNode::Object(object) => {
            object.properties.iter().filter(|one| one.is_required).all(|one| is_finite(&one.value, finite))
        }
        SchemaNode::Array(array) => {
            let least = usize::try_from(array.least).unwrap_or(usize::MAX);
            let rest = array.rest.iter().filter(|_| least > array.first.len());
            array.first.iter().take(least).chain(rest).all(|node| is_finite(node, finite))
        }
        _ => true,
    }
}

/// Adds the definitions that are alternatives of a node.
fn add_alternatives(node: &SchemaNode, targets: &mut Vec<usize>) {
    match node {
        SchemaNode::Definition(id) => targets.push(*id),
        SchemaNode::Union(nodes) => nodes.iter().for_each(|node| add_alternatives(node, targets)),
        _ => {}
    }
}
