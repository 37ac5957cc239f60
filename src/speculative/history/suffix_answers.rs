//! What `suffix` remembers of earlier requests: their answers, of all slots, up to a fixed number of tokens.

use super::suffix_tree::{BETWEEN, ContextTree, MAX_LENGTH};
use crate::llama::Token;

/// Tokens of earlier answers that are remembered at most.
pub(super) const MAX_ANSWERS: usize = 1 << 18;

/// The answers of earlier requests, of all slots.
pub struct Answers {
    pub(super) text: Vec<Token>,
    pub(super) tree: ContextTree,
    /// How often the older half was forgotten: places from before are void.
    pub(super) forgotten: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Answers { text: Vec::new(), tree: ContextTree::new(MAX_LENGTH), forgotten: 0 }
    }
}

impl Answers {
    /// How many tokens are remembered.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.tree.clear();
        self.forgotten += 1;
    }

    /// Remembers an answer, and forgets the older half of all when there is too much.
    pub(super) fn add(&mut self, answer: &[Token]) {
        let answer = answer.get(answer.len().saturating_sub(MAX_ANSWERS / 2)..).unwrap_or(answer);
        if answer.is_empty() {
            return;
        }
        let mut from = self.text.len();
        self.text.extend_from_slice(answer);
        self.text.push(BETWEEN);
        if self.text.len() > MAX_ANSWERS {
            self.text.drain(..self.text.len() - MAX_ANSWERS / 2);
            self.tree.clear();
            self.forgotten += 1;
            from = 0;
        }
        for at in from..self.text.len() {
            if self.text.get(at) != Some(&BETWEEN) {
                self.tree.learn(&self.text, at);
            }
        }
    }
}

#[cfg(test)]
#[path = "suffix_answers_tests.rs"]
mod tests;
