//! Embeddings and scores of texts, on a context of their own.

use std::sync::atomic::Ordering;

use super::Shared;
use super::request::{EmbeddingLimits, EmbeddingValues};
use foredraft_base::error::{Code, Error, Result};
use foredraft_llama::{Batch, Context, ContextParams, DecodeError, Model, SeqId, TextPooling, Token, text_pooling};

/// The most texts in a batch.
const MAX_TEXTS: u32 = 64;
/// Texts are added to a batch up to this number of tokens. llama.cpp keeps a row of logits for each, and larger batches are hardly faster.
const BATCH_TOKENS: usize = 512;

pub(super) struct Embedder {
    context: Context,
    batch: Batch,
}

/// The parameters of the context for embeddings, where those for text are `context`. Each text of a batch is a sequence.
pub(super) fn context_params(context: &ContextParams, model: &Model) -> ContextParams {
    let embeds = ContextParams { embeddings: true, kv_unified: true, n_ubatch: context.n_batch, ..context.clone() };
    // Every sequence has a recurrent state. A mean that llama.cpp computes depends on where in the batch a text is.
    let is_alone = model.has_recurrent_states()
        || (text_pooling(&embeds, model) == Some(TextPooling::Rank) && model.classifies_mean());
    // llama.cpp asserts that a token of each fits into a batch, which is no larger than the context.
    let n_batch = context.n_batch.min(context.n_ctx.filter(|n_ctx| *n_ctx > 0).unwrap_or(u32::MAX)).max(1);
    ContextParams { n_seq_max: if is_alone { 1 } else { MAX_TEXTS.min(n_batch) }, ..embeds }
}

impl Embedder {
    pub(super) fn new(context: Context) -> Embedder {
        Embedder { context, batch: Batch::new() }
    }

    /// The limits of its texts.
    pub(super) fn limits(&self) -> EmbeddingLimits {
        EmbeddingLimits {
            n_tokens: self.context.n_ubatch().min(self.context.n_batch()).min(self.context.n_ctx()),
            pooling: self.context.pooling().unwrap_or(TextPooling::Last),
        }
    }

    /// The embeddings of the first texts, or those of their tokens, as many as one decode computes and at least one, not normalised; or their scores. A text has 1 to
    /// [`EmbeddingLimits::n_tokens`] tokens. `None`: the decode was interrupted because another request has to end.
    ///
    /// # Errors
    /// The decode fails, or the engine stops.
    pub(super) fn embed(
        &mut self,
        texts: &[Vec<Token>],
        of_tokens: bool,
        shared: &Shared,
    ) -> Result<Option<Vec<EmbeddingValues>>> {
        let texts = self.first_batch(texts);
        self.batch.clear();
        for (sequence, tokens) in (0..).zip(texts) {
            self.context.truncate(sequence, 0);
            for (position, token) in tokens.iter().enumerate() {
                self.batch.push(*token, position, sequence, true);
            }
        }
        match self.context.decode(&self.batch) {
            Ok(()) => {}
            Err(DecodeError::Aborted) if !shared.stopping.load(Ordering::Acquire) => return Ok(None),
            Err(DecodeError::Aborted) => return Err(Error::new(Code::Cancelled, "the engine was stopped")),
            Err(DecodeError::Full) => return Err(Error::model("the KV cache is full")),
            Err(DecodeError::Failed(error)) => return Err(error),
        }
        let mut row = 0;
        let values = (0..).zip(texts).map(|(sequence, tokens): (SeqId, _)| {
            let rows = row..row + tokens.len();
            row = rows.end;
            let values = match of_tokens {
                true => self.context.token_embeddings(rows),
                false => self.context.embedding(rows, sequence),
            };
            values.ok_or_else(|| Error::model("the model gave no embedding"))
        });
        let values: Result<Vec<EmbeddingValues>> = values.collect();
        // The cells are free for texts of any number.
        (0..).zip(texts).for_each(|(sequence, _)| _ = self.context.truncate(sequence, 0));
        values.map(Some)
    }

    /// The first texts that go into one batch.
    fn first_batch<'a>(&self, texts: &'a [Vec<Token>]) -> &'a [Vec<Token>] {
        let most = BATCH_TOKENS.min(self.limits().n_tokens);
        let n = n_fitting(texts.iter().map(Vec::len), most).min(self.context.n_sequences());
        texts.get(..n).unwrap_or(texts)
    }
}

/// How many of the first texts have `most` tokens together, and at least one.
fn n_fitting(lengths: impl Iterator<Item = usize>, most: usize) -> usize {
    let mut n_tokens = 0;
    let fits = |length: &usize| {
        n_tokens += length;
        n_tokens <= most
    };
    lengths.take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_share_a_batch() {
        let n_in_batch = |lengths: &[usize]| n_fitting(lengths.iter().copied(), BATCH_TOKENS);
        assert_eq!(n_in_batch(&[12; 40]), 40);
        assert_eq!(n_in_batch(&[300, 200, 12, 1]), 3);
        assert_eq!(n_in_batch(&[2000, 3]), 1, "a long text is alone");
        assert_eq!(n_in_batch(&[3, 2000]), 1);
    }
}
