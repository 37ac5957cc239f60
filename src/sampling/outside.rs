//! What the room asks of the outside, so that its tests need neither a model nor llama.cpp.

use crate::error::Result;
use crate::grammar::Grammar;
use crate::llama::{Token, TokenData, Vocab};

/// What a sampler asks of a grammar: [`Grammar`], or a toy in a test.
///
/// A clone is at the same place of the text.
pub trait Constraint: Clone {
    /// Whether `token` may come next.
    ///
    /// # Errors
    /// It cannot be told: the grammar is too ambiguous.
    fn allows(&mut self, token: Token) -> Result<bool>;

    /// Sets the logits of the candidates that may not come next to -inf.
    ///
    /// # Errors
    /// As [`Constraint::allows`].
    fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()>;

    /// Moves past `token`.
    ///
    /// # Errors
    /// It may not come next; or as [`Constraint::allows`].
    fn accept(&mut self, token: Token) -> Result<()>;
}

impl Constraint for Grammar {
    fn allows(&mut self, token: Token) -> Result<bool> {
        Grammar::allows(self, token)
    }

    fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        Grammar::filter(self, candidates)
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        Grammar::accept(self, token)
    }
}

/// What compiling a chain asks of a vocabulary: [`Vocab`], or a toy in a test.
pub(super) trait Words {
    fn n_tokens(&self) -> usize;
    fn piece(&self, token: Token) -> &[u8];
    fn newline(&self) -> Option<Token>;
    /// The tokens of plain text in the middle of a text.
    fn tokenize(&self, text: &[u8]) -> Result<Vec<Token>>;
}

impl Words for Vocab {
    fn n_tokens(&self) -> usize {
        Vocab::n_tokens(self)
    }

    fn piece(&self, token: Token) -> &[u8] {
        Vocab::piece(self, token)
    }

    fn newline(&self) -> Option<Token> {
        Vocab::newline(self)
    }

    fn tokenize(&self, text: &[u8]) -> Result<Vec<Token>> {
        Vocab::tokenize(self, text, false, false)
    }
}
