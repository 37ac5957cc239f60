//! Tokens to evaluate together, with their positions and sequences.

use super::{SeqId, Token};

/// One batch. Its buffers are reused: `clear` and refill it instead of making another.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) tokens: Vec<Token>,
    pub(super) positions: Vec<i32>,
    /// Of all tokens, one behind the other; each token has as many as `n_sequences` says.
    pub(super) sequences: Vec<SeqId>,
    pub(super) n_sequences: Vec<i32>,
    pub(super) outputs: Vec<i8>,
    /// Hidden states, one behind the other: of every token, or none.
    pub(super) hidden: Vec<f32>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Adds `token` at `position` of `sequence` and returns its index; `output`: whether its logits will be read.
    pub fn push(&mut self, token: Token, position: usize, sequence: SeqId, output: bool) -> usize {
        self.push_shared(token, position, &[sequence], output)
    }

    /// As [`Batch::push`], for a token that several sequences have in common. They must share their buffer.
    pub fn push_shared(&mut self, token: Token, position: usize, sequences: &[SeqId], output: bool) -> usize {
        self.tokens.push(token);
        self.positions.push(i32::try_from(position).unwrap_or(i32::MAX));
        self.sequences.extend_from_slice(sequences);
        self.n_sequences.push(i32::try_from(sequences.len()).unwrap_or(i32::MAX));
        self.outputs.push(i8::from(output));
        self.tokens.len() - 1
    }

    /// Adds the hidden state that belongs to the token added last: see [`Context::mtp`](super::Context::mtp).
    pub fn push_hidden(&mut self, state: &[f32]) {
        self.hidden.extend_from_slice(state);
    }

    /// Becomes like `other`.
    pub(super) fn assign(&mut self, other: &Batch) {
        self.tokens.clone_from(&other.tokens);
        self.positions.clone_from(&other.positions);
        self.sequences.clone_from(&other.sequences);
        self.n_sequences.clone_from(&other.n_sequences);
        self.outputs.clone_from(&other.outputs);
        self.hidden.clone_from(&other.hidden);
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.n_sequences.clear();
        self.outputs.clear();
        self.hidden.clear();
    }

    /// How many tokens it holds.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}
