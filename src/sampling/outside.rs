//! What the room asks of the outside, so that its tests need neither a model nor llama.cpp.

use crate::error::Result;
use crate::grammar::Grammar;
use crate::llama::{Token, TokenData, Vocab};

/// What a sampler asks of a grammar: [`Grammar`], or a toy in a test.
pub trait Constraint: Sized {
    /// Whether `token` may come next.
    fn allows(&mut self, token: Token) -> Result<bool>;
    /// Sets the logits of the candidates that may not come next to -inf.
    fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()>;
    /// Moves past `token`; an error when it may not come next.
    fn accept(&mut self, token: Token) -> Result<()>;
    /// Brings this one to the place of `other`, a copy of the same grammar.
    fn copy_from(&mut self, other: &Self) -> Result<()>;
    /// A copy at the same place.
    fn try_clone(&self) -> Result<Self>;
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

    fn copy_from(&mut self, other: &Self) -> Result<()> {
        self.clone_from(other);
        Ok(())
    }

    fn try_clone(&self) -> Result<Self> {
        Ok(self.clone())
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
