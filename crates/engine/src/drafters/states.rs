//! Hidden states of a context's tokens, stored from the target's decodes until they are used.

use foredraft_base::prompt_fit::common_prefix;
use foredraft_llama::Token;

/// The hidden states of consecutive tokens of a context, and of its draft.
#[derive(Debug, Default, Clone)]
pub(super) struct States {
    /// The index in the context of the first of them.
    from: usize,
    /// The tokens of the states.
    tokens: Vec<Token>,
    /// The states, concatenated.
    rows: Vec<f32>,
    /// The zero state.
    empty: Vec<f32>,
}

impl States {
    pub(super) fn new(n_embd: usize) -> States {
        States { empty: vec![0.0; n_embd], ..States::default() }
    }

    /// The index in the context of the first token with a state.
    pub(super) fn from(&self) -> usize {
        self.from
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The number of tokens of `context` up to the last one with a state. Later states belong to rejected tokens or to another context.
    pub(super) fn reach(&self, context: &[Token]) -> usize {
        self.from + context.get(self.from..).map_or(0, |context| common_prefix(&self.tokens, context))
    }

    /// The state of the token before index `index`. Zero if unknown.
    pub(super) fn before(&self, index: usize) -> &[f32] {
        let n_embd = self.empty.len();
        let start = index.checked_sub(self.from + 1).and_then(|row| row.checked_mul(n_embd));
        start.and_then(|start| self.rows.get(start..start + n_embd)).unwrap_or(&self.empty)
    }

    /// Prepares for states from index `at` of `context` on. Removes existing states from there on, or all of them if the new ones do not
    /// follow them or belong to another context.
    pub(super) fn begin(&mut self, context: &[Token], at: usize) {
        let kept = at.checked_sub(self.from).filter(|_| self.reach(context) >= at);
        self.tokens.truncate(kept.unwrap_or(0));
        self.rows.truncate(kept.unwrap_or(0) * self.empty.len());
        if kept.is_none() {
            self.from = at;
        }
    }

    /// Adds the state of the next token. Returns false and changes nothing if the size is wrong.
    pub(super) fn push(&mut self, token: Token, state: &[f32]) -> bool {
        let fits = state.len() == self.empty.len();
        if fits {
            self.tokens.push(token);
            self.rows.extend_from_slice(state);
        }
        fits
    }

    /// Removes the states before index `index`.
    pub(super) fn forget_before(&mut self, index: usize) {
        let gone = index.saturating_sub(self.from).min(self.len());
        self.tokens.drain(..gone);
        self.rows.drain(..gone * self.empty.len());
        self.from += gone;
    }

    /// Removes the `dropped` tokens from index `keep` on.
    pub(super) fn shift(&mut self, keep: usize, dropped: usize) {
        if self.from >= keep + dropped {
            self.from -= dropped;
        } else if self.from + self.len() > keep {
            self.forget_before(keep + dropped);
            if self.from == keep + dropped { self.from = keep } else { self.clear() }
        }
    }

    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.rows.clear();
    }
}

#[cfg(test)]
mod tests;
