//! A small number for each of a few tokens: what the penalties count, without a hash map.

use crate::llama::Token;

/// A dense table over the vocabulary that is all zeros between uses, and the list of the entries that are not.
///
/// Reading and writing are one access each, and emptying it costs only what was written.
#[derive(Debug, Default)]
pub(super) struct Tally {
    values: Vec<u32>,
    touched: Vec<Token>,
}

impl Tally {
    /// A table for `n_vocab` tokens.
    pub(super) fn new(n_vocab: usize) -> Self {
        Tally { values: vec![0; n_vocab], touched: Vec::with_capacity(n_vocab) }
    }

    /// Changes the value of `token`, which is 0 unless it was changed before; ids outside the vocabulary are passed
    /// over. `change` must not give 0.
    pub(super) fn update(&mut self, token: Token, change: impl FnOnce(u32) -> u32) {
        let Some(value) = usize::try_from(token).ok().and_then(|index| self.values.get_mut(index)) else { return };
        if *value == 0 {
            self.touched.push(token);
        }
        *value = change(*value);
    }

    /// The value of `token`; 0 when there is none.
    pub(super) fn get(&self, token: Token) -> u32 {
        usize::try_from(token).ok().and_then(|index| self.values.get(index)).copied().unwrap_or(0)
    }

    /// The tokens with a value, in the order of their first change.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.touched
    }

    /// Makes it empty again.
    pub(super) fn clear(&mut self) {
        for token in self.touched.drain(..) {
            if let Some(value) = usize::try_from(token).ok().and_then(|index| self.values.get_mut(index)) {
                *value = 0;
            }
        }
    }
}
