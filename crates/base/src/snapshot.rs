//! A sequence of a KV cache as plain data.

use std::sync::Arc;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSpan {
    /// The index of the first row among the tokens.
    pub start: usize,
    /// The number of rows.
    pub rows: usize,
    /// The number of positions.
    pub positions: usize,
}
