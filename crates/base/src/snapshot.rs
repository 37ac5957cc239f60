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
    /// The sequence state as serialized by llama.cpp.
    pub state: Vec<u8>,
    /// Earlier states of a memory that cannot be rolled back, each with its number of tokens, in ascending order.
    pub checkpoints: Vec<(usize, Arc<Vec<u8>>)>,
}
