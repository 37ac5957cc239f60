//! A sequence of a KV cache as plain data.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::token::Token;

/// A saved sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Properties that a context must share to restore it: names and values.
    pub identity: Vec<(String, String)>,
    /// The tokens.
    pub tokens: Vec<Token>,
    /// Number of blocks that self-extend has grouped.
    pub blocks: usize,
    /// The rows of pictures that have fewer positions than cells, in their order.
    pub spans: Arc<Vec<RowSpan>>,
    /// The sequence state as serialized by llama.cpp.
    pub state: Vec<u8>,
    /// Earlier states of a memory that cannot be rolled back, each with its number of tokens, in ascending order.
    pub checkpoints: Vec<(usize, Arc<Vec<u8>>)>,
}

/// Rows of a picture that have fewer positions than cells: all have the position of the first one, and what follows them goes on after the
/// longer side of the picture (M-RoPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowSpan {
    /// The index of the first row among the tokens.
    pub start: usize,
    /// The number of rows.
    pub rows: usize,
    /// The number of positions.
    pub positions: usize,
}

/// A picture or a sound whose rows are in a saved list of tokens, as negative numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedMedia {
    /// The number of its first row. That of each further one is smaller by one.
    pub first: Token,
    /// The number of its rows.
    pub rows: Token,
    /// The SHA-256 of what its rows depend on: the pixels or samples, the projector and its settings.
    pub hash: [u8; 32],
}

impl SavedMedia {
    /// The most rows of one in a file.
    const MAX_ROWS: Token = 1 << 20;

    /// Whether a file can have it.
    pub fn is_possible(&self) -> bool {
        (1..=SavedMedia::MAX_ROWS).contains(&self.rows) && (Token::MIN + self.rows..-1).contains(&self.first)
    }

    /// Whether a token is one of its rows.
    pub fn has(&self, token: Token) -> bool {
        token <= self.first && self.first - token < self.rows
    }
}
