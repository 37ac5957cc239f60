//! A subset of the vocabulary, to which a context can restrict the logits that it computes.
//!
//! The output weights of a small model with a large vocabulary are a third of its bytes. A draft needs the logits of likely tokens only
//! (FR-Spec, arXiv 2502.14856), because the target verifies it. So the product with these weights leaves out the rows of other tokens:
//! kernels find the subset by the engine's [`Interrupt`](crate::threads::interrupt::Interrupt) (`kernels/output_rows.h`).

use llama_cpp_sys_2::ggml_tensor;

use crate::Token;
use foredraft_native::{FOREDRAFT_GROUP_ROWS, foredraft_output_rows};

/// The tokens of a group. A panel's rows are in one group, at every level of kernels.
const GROUP: usize = FOREDRAFT_GROUP_ROWS as usize;

/// Tokens of a vocabulary, in groups of 16 consecutive ids: a group is in the subset with all its tokens or with none.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TokenSubset {
    /// A bit for each group.
    groups: Vec<u64>,
    n_vocab: usize,
}

impl Clone for TokenSubset {
    fn clone(&self) -> Self {
        TokenSubset { groups: self.groups.clone(), n_vocab: self.n_vocab }
    }

    /// Keeps the memory.
    fn clone_from(&mut self, other: &Self) {
        self.groups.clone_from(&other.groups);
        self.n_vocab = other.n_vocab;
    }
}

impl TokenSubset {
    /// The subset without tokens.
    #[must_use]
    pub fn empty(n_vocab: usize) -> TokenSubset {
        TokenSubset { groups: vec![0; n_vocab.div_ceil(GROUP).div_ceil(64)], n_vocab }
    }

    /// The groups of the tokens with the ids 0 to `n`.
    #[must_use]
    pub fn first(n: usize, n_vocab: usize) -> TokenSubset {
        let mut subset = TokenSubset::empty(n_vocab);
        (0..n.min(n_vocab)).step_by(GROUP).for_each(|token| subset.insert_group(token / GROUP));
        subset
    }

    /// Adds the group of a token.
    pub fn insert(&mut self, token: Token) {
        if let Some(token) = usize::try_from(token).ok().filter(|token| *token < self.n_vocab) {
            self.insert_group(token / GROUP);
        }
    }

    /// Adds all tokens of another subset of the same vocabulary.
    pub fn insert_all(&mut self, other: &TokenSubset) {
        self.groups.iter_mut().zip(&other.groups).for_each(|(own, other)| *own |= other);
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.groups.fill(0);
    }

    /// Whether a token is in it.
    #[must_use]
    pub fn contains(&self, token: Token) -> bool {
        usize::try_from(token).is_ok_and(|token| token < self.n_vocab && self.has_group(token / GROUP))
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        let groups: usize = self.groups.iter().map(|word| word.count_ones() as usize).sum();
        let last = self.n_vocab.saturating_sub(1) / GROUP;
        // The last group can have fewer tokens.
        let missing = if self.has_group(last) { (last + 1) * GROUP - self.n_vocab } else { 0 };
        (groups * GROUP).saturating_sub(missing)
    }

    /// Whether it has no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|word| *word == 0)
    }

    /// Sets the logits of all other tokens to -inf, so that a softmax of the row is the distribution of the subset's tokens.
    pub fn mask(&self, logits: &mut [f32]) {
        for (group, logits) in logits.chunks_mut(GROUP).enumerate() {
            if !self.has_group(group) {
                logits.fill(f32::NEG_INFINITY);
            }
        }
    }

    /// The rows of the output weights that a decode computes. Valid as long as the subset is not changed. `weights`: the tensor, with a row
    /// for each token of the vocabulary.
    pub(super) fn output_rows(&self, weights: *const ggml_tensor) -> foredraft_output_rows {
        foredraft_output_rows { weights, groups: self.groups.as_ptr() }
    }

    fn insert_group(&mut self, group: usize) {
        if let Some(word) = self.groups.get_mut(group / 64) {
            *word |= 1 << (group % 64);
        }
    }

    fn has_group(&self, group: usize) -> bool {
        self.groups.get(group / 64).is_some_and(|word| word >> (group % 64) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_has_whole_groups() {
        let mut subset = TokenSubset::first(17, 40);
        assert_eq!((subset.len(), subset.contains(31), subset.contains(32)), (32, true, false));
        subset.insert(39);
        assert_eq!(subset.len(), 40, "the last group has 8 tokens");
        for token in [-1, 40, i32::MAX] {
            subset.insert(token);
            assert!(!subset.contains(token), "{token}");
        }
        let mut other = TokenSubset::empty(40);
        assert!(other.is_empty());
        other.insert(20);
        assert_eq!(other.len(), 16);
        other.insert_all(&subset);
        assert_eq!(other, subset);
        other.clear();
        assert_eq!(other, TokenSubset::empty(40));
        assert_eq!(TokenSubset::first(1 << 20, 1000).len(), 1000);
    }

    #[test]
    fn other_tokens_have_no_probability() {
        let subset = TokenSubset::first(1, 40);
        let mut logits = [0.5_f32; 40];
        subset.mask(&mut logits);
        assert!(logits.iter().take(16).all(|logit| *logit == 0.5));
        assert!(logits.iter().skip(16).all(|logit| *logit == f32::NEG_INFINITY));
    }
}
