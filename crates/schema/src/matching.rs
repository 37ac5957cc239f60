//! Whether a text matches a pattern.

use foredraft_base::work::Work;
use foredraft_grammar::TextMatcher;
use foredraft_grammar::tree::{NodeId, Tree};

use crate::pattern::PatternNode;

/// The automaton of a pattern.
pub(crate) struct Matcher(TextMatcher);

impl Matcher {
    /// `None`: the pattern is too large.
    pub(crate) fn new(pattern: &PatternNode) -> Option<Matcher> {
        let mut tree = Tree::new();
        let root = node(pattern, &mut tree);
        TextMatcher::new(tree, root).map(Matcher)
    }

    /// Whether the whole text matches. `None`: that takes more than the steps that are left.
    pub(crate) fn matches(&mut self, text: &str, work: &Work) -> Option<bool> {
        self.0.matches(text.as_bytes(), work)
    }
}

fn node(pattern: &PatternNode, tree: &mut Tree) -> NodeId {
    let all = |nodes: &[PatternNode], tree: &mut Tree| -> Vec<NodeId> {
        nodes.iter().map(|pattern| node(pattern, tree)).collect()
    };
    match pattern {
        PatternNode::Class(set) => tree.class(set.ranges()),
        PatternNode::Seq(nodes) => {
            let parts = all(nodes, tree);
            tree.seq(&parts)
        }
        PatternNode::Alt(nodes) => {
            let parts = all(nodes, tree);
            tree.alt(&parts)
        }
        PatternNode::Repeat(item, least, most) => {
            let item = node(item, tree);
            tree.repeat(item, *least, *most)
        }
    }
}
