//! Batch invariance of single tokens on CPUs: a token that would be decoded alone is padded with another token or, with flash
//! attention, decoded by other kernels.
//!
//! **Without flash attention**, verification of drafts is faster on CPUs, because ggml's flash kernel processes queries one by one if
//! there are fewer than 64. But a matrix product with one column (`ggml_vec_dot_*`) sums in another order than a product with several
//! columns (`llamafile_sgemm`). So a token's logits would depend in their last bits on whether it was decoded alone or together with
//! a draft. 18 of 120 outputs of 120 tokens changed.
//!
//! Therefore a single token is padded: another token is added after it, and its cell is removed at once. This costs as much as
//! decoding two tokens. It is the default if the flash kernel has no vector instructions for the model's head size (see [`is_slow`]).
//! In that case two tokens without flash attention take less time than one token with it, beyond about 200 cells (750 M parameters;
//! fewer cells with smaller models). With AMX, two tokens take up to twice the time of one, so decoding without drafts is slower in
//! short contexts; verification is still faster.
//!
//! **With flash attention**, ggml divides the keys of a single query among the threads from 512 cells on (`use_split_kv_path` in
//! `ops.cpp`), and sums in another order than for several queries. All 24 outputs of 900 tokens changed. ggml's reference kernels
//! (`use_ref`) do not divide the keys, are otherwise the same for one token, and are as fast. So contexts of that size decode a batch
//! of one token with them. (Padding instead made decoding without drafts a third slower: 750 M parameters, AVX2.) In batches of several
//! sequences, single tokens are padded as above. If `flash_attn` is `"on"`, neither is done.
//!
//! If the engine knows a token that may follow, it should add it as a free draft token (see [`Context::pads_single_tokens`]).
//!
//! [`Context::pads_single_tokens`]: crate::Context::pads_single_tokens

use crate::backend::devices;
use crate::{Batch, CacheType, ContextParams, FlashAttn, Model, SeqId, backend};

/// The meaning of `auto`: the faster kernel if it was measured, else an estimate.
pub(crate) fn attention(params: &ContextParams, model: &Model) -> FlashAttn {
    match params.flash_attn {
        FlashAttn::Auto if can_do_without(params, model) => {
            let is_fast = || super::attention::may_use_flash_attention(params) || !is_slow(model);
            if params.measured_flash_attn.unwrap_or_else(is_fast) { FlashAttn::Auto } else { FlashAttn::Off }
        }
        given => given,
    }
}

/// Whether `auto` can turn flash attention off: other cache types have other kernels, a quantized V cache requires flash attention, and
/// without flash attention single tokens have to be padded.
pub(crate) fn can_do_without(params: &ContextParams, model: &Model) -> bool {
    params.type_k == CacheType::F16 && params.type_v == CacheType::F16 && is_possible(params, model)
}

/// Whether tokens that would be decoded alone are padded.
pub(crate) fn is_required(params: &ContextParams, model: &Model) -> bool {
    let wanted = match params.flash_attn {
        FlashAttn::Off => true,
        FlashAttn::Auto => wants_reference(params, model),
        FlashAttn::On => false,
    };
    wanted && is_possible(params, model)
}

/// Whether a batch of one token is decoded by ggml's reference kernels, which do not divide a query's keys, instead of being padded.
pub(crate) fn wants_reference(params: &ContextParams, model: &Model) -> bool {
    params.flash_attn == FlashAttn::Auto
        && is_divided(params, model)
        && !params.drafts
        && !params.embeddings
        && !devices::supports_offload()
}

/// Whether ggml's flash kernel divides the keys of a single query among threads.
fn is_divided(params: &ContextParams, model: &Model) -> bool {
    // llama.cpp uses cells in blocks of 256. Keys of other types are never divided.
    const UNDIVIDED: u32 = 256;
    // F32 is converted to F16 first.
    let is_float = |kind: CacheType| matches!(kind, CacheType::F16 | CacheType::F32);
    params.n_threads > 1
        && is_float(params.type_k)
        && is_float(params.type_v)
        && crate::context::raw_params::n_ctx(params, model) > UNDIVIDED
}

/// The maximum number of tokens in a batch, so that their padding fits. With `n_buffers` KV buffers, each sequence's tokens are
/// multiplied separately, and a batch larger than a physical batch could be split so that one of them is alone. `None`: there is no
/// space for padding.
pub(crate) fn n_batch(n_batch: u32, n_ubatch: u32, n_buffers: u32) -> Option<u32> {
    let n_ubatch = n_ubatch.min(n_batch);
    let max = if n_buffers == 1 { n_batch } else { n_ubatch.checked_sub(n_buffers)? };
    (n_ubatch > 1 && max >= n_buffers).then_some(max)
}

fn is_possible(params: &ContextParams, model: &Model) -> bool {
    !devices::supports_offload()
        && n_batch(params.n_batch, params.n_ubatch, params.n_buffers()).is_some()
        // The padding token must be removable.
        && !model.has_recurrent_states()
        && (model.n_swa() == 0 || params.swa_full)
        && model.n_mtp_layers() == 0
        && !params.embeddings
}

/// Whether ggml's flash kernel for CPUs multiplies part of a query and key without vector instructions: with AVX-512 it processes 64
/// numbers at a time (`GGML_F16_STEP` in `simd-mappings.h`), and the remainder one by one.
fn is_slow(model: &Model) -> bool {
    const STEP: usize = 64;
    cfg!(target_arch = "x86_64")
        && backend::system_info().contains("AVX512 = 1")
        && model.head_sizes().is_some_and(|sizes| sizes.iter().any(|size| size % STEP != 0))
}

/// Pads batches so that no token is decoded alone.
#[derive(Debug)]
pub(crate) struct Padding {
    /// llama.cpp's maximum number of tokens in a batch.
    n_batch: usize,
    n_ubatch: usize,
    /// All sequences share one KV buffer. If not, each is multiplied separately.
    unified: bool,
    /// A token of another sequence in the batch is enough, so that a token does not count as alone.
    other_sequences_count: bool,
    /// The batch with its padding.
    batch: Batch,
    pads: Vec<Pad>,
    counts: Vec<SequenceCount>,
}

/// The number of tokens of a sequence in a batch.
#[derive(Debug, Clone, Copy)]
struct SequenceCount {
    sequence: SeqId,
    is_odd: bool,
    last: usize,
}

/// A padding token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pad {
    pub(crate) sequence: SeqId,
    pub(crate) position: usize,
}

impl Padding {
    pub(crate) fn new(n_batch: usize, n_ubatch: usize, unified: bool) -> Padding {
        let (batch, pads, counts) = (Batch::new(), Vec::new(), Vec::new());
        Padding { n_batch, n_ubatch: n_ubatch.max(2), unified, other_sequences_count: false, batch, pads, counts }
    }

    /// The same for contexts with flash attention, which divides keys only if there is a single query of all sequences.
    pub(crate) fn of_flash(self, other_sequences_count: bool) -> Padding {
        Padding { other_sequences_count, ..self }
    }

    /// The same for another size of physical batches.
    #[cfg(any(test, feature = "fake"))]
    pub(crate) fn with_n_ubatch(self, n_ubatch: usize) -> Padding {
        Padding { n_ubatch, ..self }
    }

    /// Whether a batch of one token of each of several sequences is not padded.
    pub(crate) fn leaves_one_of_each(&self) -> bool {
        self.other_sequences_count
    }

    /// The padded batch, after [`Padding::add_to`].
    pub(crate) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The padding tokens in it, whose cells have to be removed.
    pub(crate) fn pads(&self) -> &[Pad] {
        &self.pads
    }

    /// Builds the padded batch. The tokens of `batch` keep their indices.
    pub(crate) fn add_to(&mut self, batch: &Batch) {
        self.batch.assign(batch);
        self.pads.clear();
        // The last layers process only tokens with logits, so at least two need them.
        let mut outputs = (0..).zip(&batch.outputs).filter(|(_, output)| **output != 0).map(|(index, _)| index);
        if let (Some(only), None) = (outputs.next(), outputs.next()) {
            let neighbour: usize = if only % self.n_ubatch == 0 { only + 1 } else { only - 1 };
            if let Some(output) = self.batch.outputs.get_mut(neighbour) {
                *output = 1;
            }
        }
        if self.unified {
            // Physical batches are filled one after the other. If the token belongs to several sequences, the first one is used.
            let sequence =
                batch.sequences.len().checked_sub(batch.n_sequences.last().map_or(1, |n| n.unsigned_abs() as usize));
            let last = batch.len().checked_sub(1).filter(|last| last % self.n_ubatch == 0);
            if let (Some(last), Some(sequence)) = (last, sequence) {
                self.add_after(batch, last, sequence);
            }
            return;
        }
        // A physical batch has the same number of tokens of each of its sequences. With even numbers that fit into one physical batch
        // together, this number is never one.
        self.counts.clear();
        for (last, sequence) in batch.sequences.iter().enumerate() {
            match self.counts.iter_mut().find(|count| count.sequence == *sequence) {
                Some(count) => (count.is_odd, count.last) = (!count.is_odd, last),
                None => self.counts.push(SequenceCount { sequence: *sequence, is_odd: true, last }),
            }
        }
        let one_of_each = self.counts.len() == batch.len() && (2..=self.n_ubatch).contains(&batch.len());
        if self.other_sequences_count && one_of_each {
            return;
        }
        for index in 0..self.counts.len() {
            // Each token has one sequence, so the index of the token is also the index of its sequence.
            if let Some(SequenceCount { last, .. }) = self.counts.get(index).copied().filter(|count| count.is_odd) {
                self.add_after(batch, last, last);
            }
        }
    }

    /// Adds a token after the one at `index`. `sequence` is the index of its sequence in `batch.sequences`.
    fn add_after(&mut self, batch: &Batch, index: usize, sequence: usize) {
        let before = batch.tokens.get(index).zip(batch.positions.get(index)).zip(batch.sequences.get(sequence));
        let Some(((token, position), sequence)) = before.filter(|_| self.batch.len() < self.n_batch) else { return };
        let pad = Pad { sequence: *sequence, position: usize::try_from(*position).unwrap_or(0) + 1 };
        self.batch.push(*token, pad.position, pad.sequence, batch.outputs.get(index) == Some(&1));
        self.pads.push(pad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelParams;

    /// The outputs of the padded batch, and its padding token.
    fn padded(n_batch: usize, n_ubatch: usize, outputs: &[bool]) -> (Vec<i8>, Option<Pad>) {
        let mut batch = Batch::new();
        for (position, output) in outputs.iter().enumerate() {
            batch.push_shared(7, position, &[3, 4], *output);
        }
        let mut padding = Padding::new(n_batch, n_ubatch, true);
        padding.add_to(&batch);
        let (pad, extended) = (padding.pads().first().copied(), padding.batch());
        assert_eq!(extended.len(), outputs.len() + usize::from(pad.is_some()));
        assert_eq!(extended.tokens.get(..batch.len()), Some(&*batch.tokens));
        assert_eq!(extended.sequences.len(), 2 * outputs.len() + usize::from(pad.is_some()));
        (extended.outputs.clone(), pad)
    }

    #[test]
    fn auto_turns_slow_flash_attention_off_if_possible() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/stories-draft.gguf");
        let model = Model::load(&ModelParams::new(path), |_| true).unwrap();
        assert_eq!(model.head_sizes(), Some([32, 32]));
        let slow = cfg!(target_arch = "x86_64") && backend::system_info().contains("AVX512 = 1");
        let here = if slow && !devices::supports_offload() { FlashAttn::Off } else { FlashAttn::Auto };
        let params = ContextParams::default();
        for (expected, params) in [
            (here, params.clone()),
            (here, ContextParams { n_seq_max: 4, ..params.clone() }),
            (FlashAttn::On, ContextParams { flash_attn: FlashAttn::On, ..params.clone() }),
            (FlashAttn::Off, ContextParams { flash_attn: FlashAttn::Off, ..params.clone() }),
            (FlashAttn::Auto, ContextParams { type_v: CacheType::Q8_0, ..params.clone() }),
            (FlashAttn::Auto, ContextParams { embeddings: true, ..params.clone() }),
            (FlashAttn::Auto, ContextParams { n_ubatch: 1, ..params.clone() }),
            (FlashAttn::Auto, ContextParams { n_ubatch: 4, n_seq_max: 3, ..params.clone() }),
        ] {
            assert_eq!(attention(&params, &model), expected, "{params:?}");
        }
    }

    #[test]
    fn a_single_token_is_padded() {
        let pad = |position| Some(Pad { sequence: 3, position });
        assert_eq!(padded(8, 4, &[true]), (vec![1, 1], pad(1)));
        assert_eq!(padded(8, 4, &[false]), (vec![0, 0], pad(1)));
        assert_eq!(padded(8, 4, &[true, true]), (vec![1, 1], None));
        assert_eq!(padded(8, 4, &[false, false, true]), (vec![0, 1, 1], None), "logits of two");
        assert_eq!(padded(8, 4, &[true, false, false]), (vec![1, 1, 0], None));
        assert_eq!(padded(8, 4, &[false, false, false, false, true]), (vec![0, 0, 0, 0, 1, 1], pad(5)));
        assert_eq!(padded(8, 4, &[true, false, true]), (vec![1, 0, 1], None));
        assert_eq!(padded(5, 4, &[true; 5]), (vec![1; 5], None), "no space");
    }

    #[test]
    fn each_sequence_is_padded_to_an_even_number_of_tokens() {
        let mut padding = Padding::new(64, 8, false);
        for counts in [[1, 1, 1], [2, 1, 0], [3, 2, 4], [5, 0, 7], [4, 2, 2]] {
            let mut batch = Batch::new();
            for (sequence, count) in (0..).zip(counts) {
                (0..count).for_each(|n| _ = batch.push(9, 10 + n, sequence, n + 1 == count));
            }
            padding.add_to(&batch);
            for (sequence, count) in (0..).zip(counts) {
                let pad = Pad { sequence, position: 10 + count };
                assert_eq!(padding.pads().contains(&pad), count % 2 == 1, "{counts:?}");
                let all = padding.batch().sequences.iter().filter(|other| **other == sequence).count();
                assert_eq!(all, count.next_multiple_of(2), "{counts:?}");
            }
            assert_eq!(padding.batch().outputs.get(..batch.len()), Some(&*batch.outputs));
        }
    }

    #[test]
    fn with_flash_attention_a_token_of_another_sequence_replaces_padding() {
        let one_of_each = |sequences: &[SeqId]| {
            let mut batch = Batch::new();
            sequences.iter().for_each(|sequence| _ = batch.push(7, 10, *sequence, true));
            let mut padding = Padding::new(64, 8, false).of_flash(true);
            padding.add_to(&batch);
            padding.pads().len()
        };
        assert_eq!((one_of_each(&[0]), one_of_each(&[0, 1]), one_of_each(&[0, 1, 2])), (1, 0, 0));
        assert_eq!(one_of_each(&[0, 0, 1]), 1, "the second token of the first sequence would be alone");
        assert_eq!(one_of_each(&[0, 1, 2, 3, 4, 5, 6, 7, 8]), 9, "more than a physical batch");
    }
}
