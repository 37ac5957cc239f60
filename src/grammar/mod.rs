//! Grammars in llama.cpp's notation (GBNF): which tokens may follow.
//!
//! llama.cpp's own grammar code is not used: it prints its errors to stderr, throws and asserts, cannot be stopped, has no
//! limit on time or memory, and copies every rule for each draft. This one takes the same grammars and allows the same
//! tokens, which `tests/against_llama/grammar.rs` checks, with errors that say where, bounded work for each token, and copies that
//! cost nothing.
//!
//! - `scanner` and `parse`: text to `rules`; `automaton`: a text's way through them; `utf8`: characters cut in two.

mod automaton;
mod parse;
mod rules;
mod scanner;
mod utf8;

use std::sync::Arc;

use parking_lot::Mutex;

use self::automaton::{Automaton, State};
use crate::error::{Error, Result};
use crate::llama::{Model, Token, TokenData, VocabKind};

/// The longest grammar in bytes.
pub const MAX_GRAMMAR: usize = 1 << 20;

/// A grammar and how far a text has come in it.
///
/// Not shared between threads; may be moved to another. Copies share what they learn about the grammar.
#[derive(Debug, Clone)]
pub struct Grammar {
    model: Arc<Model>,
    automaton: Arc<Mutex<Automaton>>,
    state: State,
}

impl Grammar {
    /// Compiles `gbnf`, whose start is the rule `root`.
    ///
    /// # Errors
    /// `invalid_request` with line and column and what was expected there; a grammar that is too large or too ambiguous.
    pub fn new(model: &Arc<Model>, gbnf: &str) -> Result<Grammar> {
        let refuse = |why: &str| Error::invalid(format!("grammar: {why}"));
        let vocab = model.vocab();
        if vocab.kind() == VocabKind::None {
            return Err(refuse("the model has no vocabulary"));
        }
        if gbnf.len() > MAX_GRAMMAR {
            return Err(refuse(&format!("{} bytes are more than the {MAX_GRAMMAR} allowed", gbnf.len())));
        }
        let find_token = |text: &str| match vocab.tokenize(text.as_bytes(), false, true).ok()?.as_slice() {
            [token] => u32::try_from(*token).ok(),
            _ => None,
        };
        let rules = parse::parse(gbnf, &find_token).map_err(|why| refuse(&why))?;
        let mut automaton = Automaton::new(Arc::new(rules));
        let state = automaton.start().map_err(|why| refuse(&why.to_string()))?;
        Ok(Grammar { model: Arc::clone(model), automaton: Arc::new(Mutex::new(automaton)), state })
    }

    /// Whether `token` may come next.
    ///
    /// # Errors
    /// As [`Grammar::filter`].
    pub fn allows(&mut self, token: Token) -> Result<bool> {
        let mut candidate = [TokenData { id: token, logit: 0.0, p: 0.0 }];
        self.filter(&mut candidate)?;
        Ok(candidate.iter().all(|candidate| candidate.logit == 0.0))
    }

    /// Sets the logits of the candidates that may not come next to -inf.
    ///
    /// # Errors
    /// `invalid_request`: an earlier token left the grammar, or the grammar is too ambiguous.
    pub fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        if self.state.is_nowhere() {
            return Err(Error::invalid("grammar: the text has left it"));
        }
        self.automaton.lock().begin_work();
        for candidate in candidates {
            if self.next(candidate.id)?.is_nowhere() {
                candidate.logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Moves past `token`.
    ///
    /// # Errors
    /// `invalid_request`: the grammar does not allow it here (nothing may follow then), or is too ambiguous.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        self.automaton.lock().begin_work();
        self.state = self.next(token)?;
        if self.state.is_nowhere() {
            return Err(Error::invalid(format!("grammar: does not allow the token {token} here")));
        }
        Ok(())
    }

    /// The state after `token`; a token that ends the text leaves it as it is.
    fn next(&mut self, token: Token) -> Result<State> {
        let refused = |why| Error::invalid(format!("grammar: {why}"));
        let renewed = self.automaton.lock().renewed(self.state).map_err(refused)?;
        if let Some((automaton, state)) = renewed {
            (self.automaton, self.state) = (Arc::new(Mutex::new(automaton)), state);
        }
        let mut automaton = self.automaton.lock();
        let vocab = self.model.vocab();
        if vocab.is_eog(token) {
            return Ok(if automaton.may_end(self.state) { self.state } else { State::NOWHERE });
        }
        let followed = automaton.follow(self.state, token, vocab.piece(token), vocab.text(token));
        followed.map_err(refused)
    }
}

#[cfg(test)]
#[path = "grammar_tests.rs"]
mod tests;
