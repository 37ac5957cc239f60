//! The interfaces to grammars and vocabularies. Tests implement them without a model or llama.cpp.

use crate::error::Result;
use crate::grammar::Grammar;
use crate::llama::{Token, TokenData, Vocab};

/// A constraint on the next token: a [`Grammar`], or a fake in a test.
///
/// A clone has accepted the same tokens.
pub trait Constraint: Clone {
    /// Whether `token` may come next.
    ///
    /// # Errors
    /// The grammar is too ambiguous to decide.
    fn allows(&mut self, token: Token) -> Result<bool>;

    /// Sets the logits of candidates that may not come next to -inf.
    ///
    /// # Errors
    /// As [`Constraint::allows`].
    fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()>;

    /// Advances past `token`.
    ///
    /// # Errors
    /// `token` may not come next; or as [`Constraint::allows`].
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

/// The vocabulary as compiling a chain needs it: [`Vocab`], or a fake in a test.
pub(super) trait VocabularyView {
    fn n_tokens(&self) -> usize;
    fn piece(&self, token: Token) -> &[u8];
    fn newline(&self) -> Option<Token>;
    /// Tokenizes plain text that does not begin a sequence: no BOS, no special tokens.
    fn tokenize(&self, text: &[u8]) -> Result<Vec<Token>>;
}

impl VocabularyView for Vocab {
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
