//! Embeddings, on a context of their own.

use std::sync::atomic::Ordering;

use super::Shared;
use super::request::{EmbeddedText, Embedding};
use crate::error::{Code, Error, Result};
use crate::llama::{Batch, Context, DecodeError};

pub(super) struct Embedder {
    context: Context,
    batch: Batch,
}

impl Embedder {
    pub(super) fn new(context: Context) -> Embedder {
        Embedder { context, batch: Batch::new() }
    }

    /// The pooled embedding of these tokens, not normalised. `None`: the decode was interrupted because another request has to end.
    ///
    /// # Errors
    /// There are too many tokens and they may not be truncated, the decode fails, or the engine stops.
    pub(super) fn embed(&mut self, text: &EmbeddedText, shared: &Shared) -> Result<Option<Embedding>> {
        let most = self.context.n_ubatch().min(self.context.n_ctx());
        let tokens = if text.truncate { text.tokens.get(..most).unwrap_or(&text.tokens) } else { &text.tokens };
        if tokens.len() > most {
            let message = format!("{} tokens, where an embedding is made of at most {most}", tokens.len());
            return Err(Error::context_full(message, tokens.len(), most));
        }
        self.context.truncate(0, 0);
        self.batch.clear();
        for (position, token) in tokens.iter().enumerate() {
            self.batch.push(*token, position, 0, true);
        }
        match self.context.decode(&self.batch) {
            Ok(()) => {}
            Err(DecodeError::Aborted) if !shared.stopping.load(Ordering::Acquire) => return Ok(None),
            Err(DecodeError::Aborted) => return Err(Error::new(Code::Cancelled, "the engine was stopped")),
            Err(DecodeError::Full) => return Err(Error::model("the KV cache is full")),
            Err(DecodeError::Failed(why)) => return Err(Error::model(why)),
        }
        let values = self.context.embedding(0).map(<[f32]>::to_vec);
        let values = values.ok_or_else(|| Error::model("the model gave no embedding"))?;
        Ok(Some(Embedding { values, n_tokens: tokens.len() }))
    }
}
