//! The interface to grammars. Tests implement it without a grammar.

use foredraft_base::error::Result;
use foredraft_base::{Token, TokenData};
use foredraft_grammar::OutputConstraint;

/// A constraint on the next token: an [`OutputConstraint`], or a fake in a test.
///
/// A clone has accepted the same tokens.
pub trait Constraint: Clone {
    /// Whether any token may come next now.
    fn is_idle(&self) -> bool {
        false
    }

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

impl Constraint for OutputConstraint {
    fn is_idle(&self) -> bool {
        OutputConstraint::is_idle(self)
    }

    fn allows(&mut self, token: Token) -> Result<bool> {
        OutputConstraint::allows(self, token)
    }

    fn filter(&mut self, candidates: &mut [TokenData]) -> Result<()> {
        OutputConstraint::filter(self, candidates)
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        OutputConstraint::accept(self, token)
    }
}
