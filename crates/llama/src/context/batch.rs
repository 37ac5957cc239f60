//! A batch of tokens to decode together, with their positions and sequences.

use crate::Token;
use foredraft_base::error::Error;

/// A sequence's number in a context.
pub type SeqId = i32;

/// The input of a batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum BatchInput {
    /// Tokens.
    #[default]
    Tokens,
    /// Rows of embeddings in place of tokens: those of a picture or a sound. The tokens of the batch only stand for them.
    Rows,
    /// Rows that also attend to the rows after them.
    NonCausalRows,
}

/// The place of a row in its picture or sound: the first three numbers of its position, less those of the first row (M-RoPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowPlace {
    /// In time.
    pub t: i32,
    /// From the top.
    pub y: i32,
    /// From the left.
    pub x: i32,
}

/// A batch. To reuse its buffers, `clear` and refill it instead of creating a new one.
#[derive(Debug, Default)]
pub struct Batch {
    pub(crate) tokens: Vec<Token>,
    /// The position of each token. Rows of a model with M-RoPE have four numbers: the second ones of all rows follow the first ones, then the
    /// third and fourth.
    pub(crate) positions: Vec<i32>,
    /// The sequences of all tokens, concatenated. `n_sequences` has the number for each token.
    pub(crate) sequences: Vec<SeqId>,
    pub(crate) n_sequences: Vec<i32>,
    pub(crate) outputs: Vec<i8>,
    /// The hidden states of all tokens, or the rows, concatenated; or empty.
    pub(crate) hidden: Vec<f32>,
    pub(crate) input: BatchInput,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Adds `token` at `position` of `sequence` and returns its index. `output`: its logits will be read.
    pub fn push(&mut self, token: Token, position: usize, sequence: SeqId, output: bool) -> usize {
        self.push_shared(token, position, &[sequence], output)
    }

    /// As [`Batch::push`], for a token that several sequences share. They must use the same KV buffer.
    pub fn push_shared(&mut self, token: Token, position: usize, sequences: &[SeqId], output: bool) -> usize {
        self.tokens.push(token);
        self.positions.push(i32::try_from(position).unwrap_or(i32::MAX));
        self.sequences.extend_from_slice(sequences);
        self.n_sequences.push(i32::try_from(sequences.len()).unwrap_or(i32::MAX));
        self.outputs.push(i8::from(output));
        self.tokens.len() - 1
    }

    /// Adds the hidden state of the last added token: see [`Context::mtp`](crate::Context::mtp).
    pub fn push_hidden(&mut self, state: &[f32]) {
        self.hidden.extend_from_slice(state);
    }

    /// Adds rows of embeddings, for which `tokens` stand, from `position` of `sequence` on. A batch of rows has nothing else, and no logits.
    /// `places`: where each row is in its picture or sound, whose first row has `position` (M-RoPE); or empty.
    pub fn push_rows(
        &mut self,
        input: BatchInput,
        tokens: &[Token],
        rows: &[f32],
        places: &[RowPlace],
        position: usize,
        sequence: SeqId,
    ) {
        for (at, token) in tokens.iter().enumerate() {
            let after = places.get(at).map_or(at, |place| place.t.unsigned_abs() as usize);
            self.push(*token, position + after, sequence, false);
        }
        if !places.is_empty() {
            let first = i32::try_from(position).unwrap_or(i32::MAX);
            self.positions.extend(places.iter().map(|place| first.saturating_add(place.y)));
            self.positions.extend(places.iter().map(|place| first.saturating_add(place.x)));
            self.positions.extend(places.iter().map(|_| 0));
        }
        self.hidden.extend_from_slice(rows);
        self.input = input;
    }

    /// Copies `other`, reusing the buffers.
    pub(crate) fn assign(&mut self, other: &Batch) {
        self.tokens.clone_from(&other.tokens);
        self.positions.clone_from(&other.positions);
        self.sequences.clone_from(&other.sequences);
        self.n_sequences.clone_from(&other.n_sequences);
        self.outputs.clone_from(&other.outputs);
        self.hidden.clone_from(&other.hidden);
        self.input = other.input;
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.n_sequences.clear();
        self.outputs.clear();
        self.hidden.clear();
        self.input = BatchInput::Tokens;
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// The failure of a decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeError {
    /// The KV cache has no space for the batch. Nothing changed.
    Full,
    /// The [`Interrupt`](crate::Interrupt) stopped it. Part of the batch may be in the cache; the caller must remove it.
    Aborted,
    /// llama.cpp failed, with `resource_exhausted` for lack of memory. Part of the batch may be in the cache; the caller must remove it.
    Failed(Error),
}

impl DecodeError {
    /// The error of what is not the host's fault.
    pub fn failed(why: impl Into<String>) -> DecodeError {
        DecodeError::Failed(Error::model(why))
    }
}
