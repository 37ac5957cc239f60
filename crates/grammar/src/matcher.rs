//! Whether a whole text is one of a tree's.

use std::sync::Arc;

use foredraft_base::work::Work;

use super::automaton::Automaton;
use super::tree::{NodeId, Tree};

/// The bytes between two counts of steps.
const CHUNK: usize = 64;

/// The automaton of a tree, for whole texts.
#[derive(Debug)]
pub struct TextMatcher(Automaton);

impl TextMatcher {
    /// A matcher of the texts of the node `root`. `None`: the tree is too large, or `work` ended.
    #[must_use]
    pub fn new(tree: Tree, root: NodeId, work: &Work) -> Option<TextMatcher> {
        tree.check(root, work).ok()?;
        Some(TextMatcher(Automaton::new(Arc::new(tree), root)))
    }

    /// Whether the whole text matches. `None`: the tree is too ambiguous, or `work` ended.
    pub fn matches(&mut self, text: &[u8], work: &Work) -> Option<bool> {
        self.0.begin_work();
        let (mut state, mut done) = (self.0.start().ok()?, 0);
        for chunk in text.chunks(CHUNK) {
            state = self.0.follow_text(state, chunk).ok()?;
            work.step(chunk.len() + self.0.work() - done).ok()?;
            done = self.0.work();
            if let Some((rebuilt, same)) = self.0.rebuilt(state).ok()? {
                (self.0, state) = (rebuilt, same);
            }
        }
        Some(self.0.may_end(state))
    }
}
