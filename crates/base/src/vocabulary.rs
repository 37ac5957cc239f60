//! The properties of tokens that a vocabulary tells.

use std::fmt::Debug;

use crate::error::Result;
use crate::token::Token;
use crate::token_tree::TokenTree;

/// A vocabulary as grammars and samplers need it: a model's, or a fake in a test.
pub trait Vocabulary: Debug + Send + Sync {
    /// The number of tokens. Ids are `0..n_tokens()`.
    fn n_tokens(&self) -> usize;

    /// Whether tokens have text. A model without a vocabulary has only ids.
    fn has_text(&self) -> bool {
        true
    }

    /// The bytes of `token` (for special tokens their text). Empty for an id outside the vocabulary.
    fn piece(&self, token: Token) -> &[u8];

    /// The bytes that `token` adds to a completion: none for control tokens.
    fn text(&self, token: Token) -> &[u8] {
        self.piece(token)
    }

    /// Whether `token` ends a completion.
    fn is_eog(&self, token: Token) -> bool;

    /// The tree of its tokens, which is made when it is first needed. `None`: each token is looked at by itself.
    fn token_tree(&self) -> Option<&TokenTree> {
        None
    }

    /// Makes the tree of its tokens.
    fn make_token_tree(&self) -> TokenTree {
        let (mut with_text, mut others) = (Vec::new(), Vec::new());
        for token in 0..Token::try_from(self.n_tokens()).unwrap_or(Token::MAX) {
            // A token without a piece, or with one that begins with NUL, matches nothing.
            let has_piece = self.piece(token).first().is_some_and(|byte| *byte != 0);
            if self.is_eog(token) || has_piece && self.text(token).is_empty() {
                others.push(token);
            } else if has_piece {
                with_text.push(token);
            }
        }
        TokenTree::new(with_text, others, |token| self.text(token))
    }

    /// The newline token.
    fn newline(&self) -> Option<Token>;

    /// Tokenizes text that does not begin a sequence: no BOS. `parse_special`: control tokens that the text spells are parsed.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<Token>>;
}
