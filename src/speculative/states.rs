//! Hidden states of a context's tokens, kept from the target's evaluations until they are used.

use crate::llama::Token;
use crate::session::common_prefix;

/// The hidden states of consecutive tokens of one context, and of what was drafted behind it.
#[derive(Debug, Default)]
pub(super) struct States {
    /// Number of the first of them in the context.
    from: usize,
    /// What they are the states of.
    tokens: Vec<Token>,
    /// One behind the other.
    rows: Vec<f32>,
    /// That of nothing; as long as each.
    empty: Vec<f32>,
}

impl States {
    pub(super) fn new(n_embd: usize) -> States {
        States { empty: vec![0.0; n_embd], ..States::default() }
    }

    /// Number in the context of the first token that has one.
    pub(super) fn from(&self) -> usize {
        self.from
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// How many of the first of `context` there are states up to: those behind belong to rejected tokens, or to another
    /// context.
    pub(super) fn reach(&self, context: &[Token]) -> usize {
        self.from + context.get(self.from..).map_or(0, |context| common_prefix(&self.tokens, context))
    }

    /// The state of the token before the token number `index`, or of nothing where it is not known.
    pub(super) fn before(&self, index: usize) -> &[f32] {
        let n_embd = self.empty.len();
        let start = index.checked_sub(self.from + 1).and_then(|row| row.checked_mul(n_embd));
        start.and_then(|start| self.rows.get(start..start + n_embd)).unwrap_or(&self.empty)
    }

    /// States from the token number `at` of `context` on come: those that are there from it on go, and all of them where
    /// the new ones do not follow or they belong to another context.
    pub(super) fn begin(&mut self, context: &[Token], at: usize) {
        let kept = at.checked_sub(self.from).filter(|_| self.reach(context) >= at);
        self.tokens.truncate(kept.unwrap_or(0));
        self.rows.truncate(kept.unwrap_or(0) * self.empty.len());
        if kept.is_none() {
            self.from = at;
        }
    }

    /// Adds the state of the next token. False, and nothing changed, when it is of another size.
    pub(super) fn push(&mut self, token: Token, state: &[f32]) -> bool {
        let fits = state.len() == self.empty.len();
        if fits {
            self.tokens.push(token);
            self.rows.extend_from_slice(state);
        }
        fits
    }

    /// Forgets those before the token number `index`.
    pub(super) fn forget_before(&mut self, index: usize) {
        let gone = index.saturating_sub(self.from).min(self.len());
        self.tokens.drain(..gone);
        self.rows.drain(..gone * self.empty.len());
        self.from += gone;
    }

    /// The tokens `dropped` from number `keep` on are gone from the context.
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
#[path = "states_tests.rs"]
mod tests;
