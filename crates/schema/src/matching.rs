//! Whether a text matches a pattern.

use foredraft_base::work::Work;
use foredraft_grammar::TextMatcher;
use foredraft_grammar::tree::{NodeId, Tree};

use crate::pattern::{PatternNode, STEPS_PER_NODE};

/// The automaton of a pattern.
pub(crate) struct Matcher(TextMatcher);

impl Matcher {
    /// `None`: the pattern is too large, or `work` ended.
    pub(crate) fn new(pattern: &PatternNode, work: &Work) -> Option<Matcher> {
        let mut tree = Tree::new();
        let root = node(pattern, work, &mut tree)?;
        TextMatcher::new(tree, root, work).map(Matcher)
    }

    /// Whether the whole text matches. `None`: that takes more than the steps that are left.
    pub(crate) fn matches(&mut self, text: &str, work: &Work) -> Option<bool> {
        self.0.matches(text.as_bytes(), work)
    }
}

fn node(pattern: &PatternNode, work: &Work, tree: &mut Tree) -> Option<NodeId> {
    work.step(STEPS_PER_NODE).ok()?;
    let all = |nodes: &[PatternNode], tree: &mut Tree| -> Option<Vec<NodeId>> {
        nodes.iter().map(|pattern| node(pattern, work, tree)).collect()
    };
    Some(match pattern {
        PatternNode::Class(set) => tree.class(set.ranges()),
        PatternNode::Seq(nodes) => {
            let parts = all(nodes, tree)?;
            tree.seq(&parts)
        }
        PatternNode::Alt(nodes) => {
            let parts = all(nodes, tree)?;
            tree.alt(&parts)
        }
        PatternNode::Repeat(item, least, most) => {
            let item = node(item, work, tree)?;
            tree.repeat(item, *least, *most)
        }
    })
}
