//! A schema as a tree of the values that its grammar allows.

use std::sync::Arc;

use serde_json::Value;

use crate::document::{Document, SchemaResult, VISIT, empty_at, error_at};
use crate::numbers::NumberRange;
use crate::pattern::{PatternNode, TextSet};

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
    /// The values of all of them. Without any: no value, which only a tree that was not checked has.
    Union(Vec<SchemaNode>),
    /// These values. Not empty.
    Values(Vec<Value>),
    Object(Box<ObjectNode>),
    Array(Box<ArrayNode>),
    Text(TextNode),
    Number(NumberRange),
    /// The numbers whose digits are in the set.
    Multiples(Arc<TextSet>),
    Boolean,
    Null,
}

/// Objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectNode {
    /// The listed properties, in the order of the schema.
    pub(crate) properties: Vec<PropertyNode>,
    /// The others, by their names.
    pub(crate) additional: Vec<AdditionalNode>,
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

/// Properties that are not listed.
#[derive(Debug, Clone)]
pub(crate) struct AdditionalNode {
    /// The names that they have. None is a listed one.
    pub(crate) names: TextNode,
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
    /// No value of `rest`, a list of values, occurs twice. There are no first items.
    pub(crate) is_unique: bool,
}

/// Strings.
#[derive(Debug, Clone)]
pub(crate) enum TextNode {
    /// Those that the pattern matches as a whole.
    Pattern(PatternNode),
    /// Those of a set.
    Set(Arc<TextSet>),
}

impl SchemaNode {
    /// Any array.
    pub(crate) fn any_array() -> SchemaNode {
        let rest = Some(SchemaNode::Any);
        SchemaNode::Array(Box::new(ArrayNode { first: Vec::new(), rest, least: 0, most: None, is_unique: false }))
    }

    /// Any string.
    pub(crate) fn any_string() -> SchemaNode {
        SchemaNode::Text(TextNode::Pattern(PatternNode::any_text()))
    }

    /// Any object.
    pub(crate) fn any_object() -> SchemaNode {
        let names = TextNode::Pattern(PatternNode::any_text());
        let additional = vec![AdditionalNode { names, value: SchemaNode::Any }];
        SchemaNode::Object(Box::new(ObjectNode { additional, ..ObjectNode::default() }))
    }
}

impl SchemaTree {
    /// The tree without the parts that have no value, such as optional properties that nothing satisfies. No schema is only itself.
    pub(crate) fn checked(mut self, document: &Document<'_>, at: &str) -> SchemaResult<SchemaTree> {
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
            return empty_at(at, "refers to itself, so that no value is valid");
        }
        prune(&mut self.root, &finite);
        self.definitions.iter_mut().for_each(|node| prune(node, &finite));
        self.check_beginnings(at)?;
        Ok(self)
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
            let (mut n_possible, mut has_required) = (0, true);
            for one in &object.properties {
                let is_possible = is_finite(&one.value, finite);
                n_possible += usize::from(is_possible);
                has_required &= is_possible || !one.is_required;
            }
            if object.additional.iter().any(|one| is_finite(&one.value, finite)) {
                // The names of several additional properties can be the same, so they count as one, unless that cannot reach `least`.
                n_possible = if object.least > object.properties.len() + 1 { usize::MAX } else { n_possible + 1 };
            }
            has_required && n_possible >= object.least
        }
        SchemaNode::Array(array) => {
            let least = usize::try_from(array.least).unwrap_or(usize::MAX);
            let rest = array.rest.iter().filter(|_| least > array.first.len());
            let n_values = match &array.rest {
                Some(SchemaNode::Values(values)) if array.is_unique => values.len(),
                Some(SchemaNode::Boolean) if array.is_unique => 2,
                Some(SchemaNode::Null) if array.is_unique => 1,
                _ => usize::MAX,
            };
            n_values >= least && array.first.iter().take(least).chain(rest).all(|node| is_finite(node, finite))
        }
        _ => true,
    }
}

/// Removes the parts of a node that have no value.
fn prune(node: &mut SchemaNode, finite: &[bool]) {
    match node {
        SchemaNode::Union(nodes) => {
            nodes.retain(|node| is_finite(node, finite));
            nodes.iter_mut().for_each(|node| prune(node, finite));
        }
        SchemaNode::Object(object) => {
            object.properties.retain(|one| one.is_required || is_finite(&one.value, finite));
            object.additional.retain(|one| is_finite(&one.value, finite));
            object.properties.iter_mut().for_each(|one| prune(&mut one.value, finite));
            object.additional.iter_mut().for_each(|one| prune(&mut one.value, finite));
        }
        SchemaNode::Array(array) => {
            let n_possible = array.first.iter().take_while(|node| is_finite(node, finite)).count();
            let is_cut = n_possible < array.first.len();
            array.first.truncate(n_possible);
            array.rest = array.rest.take().filter(|rest| !is_cut && is_finite(rest, finite));
            if array.rest.is_none() {
                array.most = Some(array.most.unwrap_or(u64::MAX).min(n_possible as u64));
            }
            array.first.iter_mut().chain(&mut array.rest).for_each(|node| prune(node, finite));
        }
        _ => {}
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
