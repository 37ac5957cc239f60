//! Tokens, and what a vocabulary says of them.

use std::fmt::Debug;

use crate::error::Result;

/// A token's id in a vocabulary.
pub type Token = i32;

/// A candidate for the next token. Its layout is that of llama.cpp's `llama_token_data`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct TokenData {
    /// The token.
    pub id: Token,
    /// Its logit.
    pub logit: f32,
    /// Its probability, where it is known.
    pub p: f32,
}

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

    /// The newline token.
    fn newline(&self) -> Option<Token>;

    /// Tokenizes text that does not begin a sequence: no BOS. `parse_special`: control tokens that the text spells are parsed.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn tokenize(&self, text: &[u8], parse_special: bool) -> Result<Vec<Token>>;
}
