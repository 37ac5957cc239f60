//! Where only CPUs compute: attention without ggml's flash kernel, and no token evaluated alone.
//!
//! On CPUs that kernel takes one query after the other, if it has fewer than 64, and multiplying matrices instead checks a draft
//! up to twice as fast. It also sums up a single query in another order (from 512 cells on, with several threads), and 64 queries in
//! yet another. But a product with one column (`ggml_vec_dot_*`) is summed up in another order than one with several
//! (`llamafile_sgemm`, which takes two and more), with or without that kernel: the last bits of a token's logits, and so now and
//! then a text, would depend on whether it was evaluated alone or behind a draft.
//!
//! So a token that would be alone gets company: one more behind it, whose cell is removed at once. An evaluation of two costs hardly
//! more than one of one, which has to read all weights as well, and little enough to be ahead of the flash kernel. Contexts where
//! that is not possible are as llama.cpp makes them.

use super::{Batch, CacheType, ContextParams, FlashAttn, Model, SeqId, backend};

/// Most bytes that the products of queries and keys may take, for which the flash kernel needs no memory.
const MAX_PRODUCTS: u64 = 256 << 20;

/// Whether a context with `n_ctx` tokens in one buffer is made like this.
pub(super) fn suits(params: &ContextParams, model: &Model, n_ctx: u32) -> bool {
    let n_ubatch = params.n_ubatch.min(params.n_batch);
    let products = [n_ubatch, model.n_head(), 4]
        .into_iter()
        .fold(u64::from(n_ctx), |product, factor| product.saturating_mul(u64::from(factor)));
    params.flash_attn == FlashAttn::Auto
        && !backend::supports_offload()
        && products <= MAX_PRODUCTS
        && matches!(params.type_v, CacheType::F32 | CacheType::F16)
        // Sequences with buffers of their own are multiplied one by one.
        && (params.kv_unified || params.n_seq_max <= 1)
        && n_ubatch > 1
        // The company must leave no trace.
        && model.can_roll_back()
        && (model.n_swa() == 0 || params.swa_full)
        && model.n_mtp_layers() == 0
        && !params.embeddings
}

/// Sees to it that no token of a context is evaluated alone.
#[derive(Debug)]
pub(super) struct Company {
    /// Most tokens that llama.cpp takes.
    n_batch: usize,
    n_ubatch: usize,
    /// A batch with company.
    batch: Batch,
}

/// A token that keeps another company.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Guest {
    pub(super) sequence: SeqId,
    pub(super) position: usize,
}

impl Company {
    pub(super) fn new(n_batch: usize, n_ubatch: usize) -> Company {
        Company { n_batch, n_ubatch: n_ubatch.max(2), batch: Batch::new() }
    }

    /// The batch to evaluate, after [`Company::join`].
    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Makes the batch to evaluate in place of `batch`. Tokens keep their places.
    pub(super) fn join(&mut self, batch: &Batch) -> Option<Guest> {
        self.batch.assign(batch);
        // In the last layers only tokens whose logits are read are left.
        let mut outputs = (0..).zip(&batch.outputs).filter(|(_, output)| **output != 0).map(|(index, _)| index);
        if let (Some(only), None) = (outputs.next(), outputs.next()) {
            let neighbour: usize = if only % self.n_ubatch == 0 { only + 1 } else { only - 1 };
            if let Some(output) = self.batch.outputs.get_mut(neighbour) {
                *output = 1;
            }
        }
        // Physical batches are filled one after the other.
        let is_alone = batch.len() % self.n_ubatch == 1 && batch.len() < self.n_batch;
        let (token, position) = (*batch.tokens.last()?, *batch.positions.last()?);
        let of_last = usize::try_from(*batch.n_sequences.last()?).ok()?;
        let sequence = *batch.sequences.get(batch.sequences.len().checked_sub(of_last)?)?;
        let position = usize::try_from(position).ok()? + 1;
        let output = batch.outputs.last() == Some(&1);
        is_alone.then(|| {
            self.batch.push(token, position, sequence, output);
            Guest { sequence, position }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs of the batch to evaluate, and the guest in it.
    fn joined(n_batch: usize, n_ubatch: usize, outputs: &[bool]) -> (Vec<i8>, Option<Guest>) {
        let mut batch = Batch::new();
        for (position, output) in outputs.iter().enumerate() {
            batch.push_shared(7, position, &[3, 4], *output);
        }
        let mut company = Company::new(n_batch, n_ubatch);
        let guest = company.join(&batch);
        let extended = company.batch();
        assert_eq!(extended.len(), outputs.len() + usize::from(guest.is_some()));
        assert_eq!(extended.tokens.get(..batch.len()), Some(&*batch.tokens));
        assert_eq!(extended.sequences.len(), 2 * outputs.len() + usize::from(guest.is_some()));
        (extended.outputs.clone(), guest)
    }

    #[test]
    fn who_would_be_alone_gets_company() {
        let guest = |position| Some(Guest { sequence: 3, position });
        assert_eq!(joined(8, 4, &[true]), (vec![1, 1], guest(1)));
        assert_eq!(joined(8, 4, &[false]), (vec![0, 0], guest(1)));
        assert_eq!(joined(8, 4, &[true, true]), (vec![1, 1], None));
        assert_eq!(joined(8, 4, &[false, false, true]), (vec![0, 1, 1], None), "logits of two");
        assert_eq!(joined(8, 4, &[true, false, false]), (vec![1, 1, 0], None));
        assert_eq!(joined(8, 4, &[false, false, false, false, true]), (vec![0, 0, 0, 0, 1, 1], guest(5)));
        assert_eq!(joined(8, 4, &[true, false, true]), (vec![1, 0, 1], None));
        assert_eq!(joined(5, 4, &[true; 5]), (vec![1; 5], None), "no room");
    }
}
