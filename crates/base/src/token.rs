//! Tokens.

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
