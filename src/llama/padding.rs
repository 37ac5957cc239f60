//! What keeps a token's last bits from depending on whether it is evaluated alone, on CPUs: it is padded with another one, or, with
//! flash attention, evaluated by other kernels.
//!
//! On CPUs ggml's flash kernel takes one query after the other, if it has fewer than 64. Multiplying matrices instead
//! (`flash_attn: "off"`) checks drafts faster. But a product with one column (`ggml_vec_dot_*`) is summed up in
//! another order than one with several (`llamafile_sgemm`, which takes two and more): the last bits of a token's logits, and so
//! now and then a text, would depend on whether it was evaluated alone or behind a draft. Of 120 texts of 120 tokens 18 did.
//!
//! So a token that would be alone is padded: one more is put behind it, whose cell is removed at once. That costs as much as two
//! tokens cost together. It is the default where the flash kernel multiplies heads of the model's size without vector
//! instructions (see [`is_slow`]): there two tokens without it take less time than one with it, beyond some 200 cells
//! (750 M; fewer with smaller models). With AMX two tokens take up to twice the time of one, and plain text is slower for it in short
//! contexts; drafts are checked faster there as well.
//!
//! With flash attention the keys of a single query are divided among the threads from 512 cells on (`use_split_kv_path` in ggml's
//! `ops.cpp`), and summed up in another order than those of several queries: of 24 texts of 900 tokens all were others. ggml's reference
//! kernels (`use_ref`) do not divide them, and for one token are the same otherwise, and as fast: so in contexts that have so many
//! cells a batch of one token is evaluated by them. (Padding it instead made plain text a third slower: 750 M, AVX2.) Batches of several
//! sequences that leave one token alone are padded as above. Whoever asks for flash attention by name gets it as it comes.
//!
//! Who knows a token that may follow should give it as padding (see [`Context::pads_single_tokens`]): then it is for nothing.
//!
//! [`Context::pads_single_tokens`]: super::Context::pads_single_tokens

use super::{Batch, CacheType, ContextParams, FlashAttn, Model, SeqId, backend};

/// The attention that `auto` stands for: what was measured, or else a guess.
pub(super) fn attention(params: &ContextParams, model: &Model) -> FlashAttn {
    match params.flash_attn {
        FlashAttn::Auto
            if can_do_without(params, model) && !params.measured_flash_attn.unwrap_or_else(|| !is_slow(model)) =>
        {
            FlashAttn::Off
        }
        given => given,
    }
}

/// Whether `auto` has a choice: other types have other kernels, a quantized V cache exists with flash attention only, and without
/// flash attention single tokens have to be padded.
pub(super) fn can_do_without(params: &ContextParams, model: &Model) -> bool {
    params.type_k == CacheType::F16 && params.type_v == CacheType::F16 && is_possible(params, model)
}

/// Whether tokens of a context with this attention are padded where they would be evaluated alone.
pub(super) fn suits(params: &ContextParams, model: &Model) -> bool {
    let wanted = match params.flash_attn {
        FlashAttn::Off => true,
        FlashAttn::Auto => wants_reference(params, model),
        FlashAttn::On => false,
    };
    wanted && is_possible(params, model)
}

/// Whether a batch of one token is evaluated by ggml's reference kernels, which do not divide a query's keys, instead of being padded.
pub(super) fn wants_reference(params: &ContextParams, model: &Model) -> bool {
    params.flash_attn == FlashAttn::Auto
        && is_divided(params, model)
        && !params.drafts
        && !params.embeddings
        && !backend::supports_offload()
}

/// Whether ggml's flash kernel may divide the keys of a single query among threads.
fn is_divided(params: &ContextParams, model: &Model) -> bool {
    // llama.cpp uses cells in blocks of 256, and other types than these are never divided.
    const UNDIVIDED: u32 = 256;
    // Those of F32 are made F16 before.
    let is_float = |kind: CacheType| matches!(kind, CacheType::F16 | CacheType::F32);
    params.n_threads > 1
        && is_float(params.type_k)
        && is_float(params.type_v)
        && super::raw_params::n_ctx(params, model) > UNDIVIDED
}

/// Most tokens in a batch, so that their padding fits. With `n_buffers`, each sequence's tokens are multiplied by themselves, and a
/// batch larger than a physical one could be divided so that one of them is left alone. `None`: there is no room for padding.
pub(super) fn n_batch(n_batch: u32, n_ubatch: u32, n_buffers: u32) -> Option<u32> {
    let n_ubatch = n_ubatch.min(n_batch);
    let most = if n_buffers == 1 { n_batch } else { n_ubatch.checked_sub(n_buffers)? };
    (n_ubatch > 1 && most >= n_buffers).then_some(most)
}

fn is_possible(params: &ContextParams, model: &Model) -> bool {
    !backend::supports_offload()
        && n_batch(params.n_batch, params.n_ubatch, params.n_buffers()).is_some()
        // The padding must leave no trace.
        && model.can_roll_back()
        && (model.n_swa() == 0 || params.swa_full)
        && model.n_mtp_layers() == 0
        && !params.embeddings
}

/// Whether ggml's flash kernel for CPUs multiplies a query with a key one number after the other: with AVX-512 it takes 64 at a
/// time (`GGML_F16_STEP` in `simd-mappings.h`), and what is left over alone.
fn is_slow(model: &Model) -> bool {
    const STEP: usize = 64;
    cfg!(target_arch = "x86_64")
        && backend::system_info().contains("AVX512 = 1")
        && model.head_sizes().is_some_and(|sizes| sizes.iter().any(|size| size % STEP != 0))
}

/// Sees to it that no token in a context's batches is alone.
#[derive(Debug)]
pub(super) struct Padding {
    /// Most tokens that llama.cpp takes.
    n_batch: usize,
    n_ubatch: usize,
    /// Whether all sequences share one buffer; else each is multiplied by itself.
    unified: bool,
    /// Whether a token is evaluated as behind others where there is one of another sequence beside it.
    beside_is_behind: bool,
    /// The batch with its padding.
    batch: Batch,
    pads: Vec<Pad>,
    counts: Vec<Count>,
}

/// The tokens of a sequence in a batch.
#[derive(Debug, Clone, Copy)]
struct Count {
    sequence: SeqId,
    is_odd: bool,
    last: usize,
}

/// A token that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pad {
    pub(super) sequence: SeqId,
    pub(super) position: usize,
}

impl Padding {
    pub(super) fn new(n_batch: usize, n_ubatch: usize, unified: bool) -> Padding {
        let (batch, pads, counts) = (Batch::new(), Vec::new(), Vec::new());
        Padding { n_batch, n_ubatch: n_ubatch.max(2), unified, beside_is_behind: false, batch, pads, counts }
    }

    /// The same for contexts with flash attention, which divides the keys of a query that is the only one of all sequences.
    pub(super) fn of_flash(self, beside_is_behind: bool) -> Padding {
        Padding { beside_is_behind, ..self }
    }

    /// The same for other physical batches.
    #[cfg(test)]
    pub(super) fn with_n_ubatch(self, n_ubatch: usize) -> Padding {
        Padding { n_ubatch, ..self }
    }

    /// Whether one token of each of several sequences is left as it is.
    pub(super) fn leaves_one_of_each(&self) -> bool {
        self.beside_is_behind
    }

    /// The batch to evaluate, after [`Padding::add_to`].
    pub(super) fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The tokens that were added to it, whose cells are to be removed.
    pub(super) fn pads(&self) -> &[Pad] {
        &self.pads
    }

    /// Makes the batch to evaluate in place of `batch`. Tokens keep their places.
    pub(super) fn add_to(&mut self, batch: &Batch) {
        self.batch.assign(batch);
        self.pads.clear();
        // In the last layers only tokens whose logits are read are left.
        let mut outputs = (0..).zip(&batch.outputs).filter(|(_, output)| **output != 0).map(|(index, _)| index);
        if let (Some(only), None) = (outputs.next(), outputs.next()) {
            let neighbour: usize = if only % self.n_ubatch == 0 { only + 1 } else { only - 1 };
            if let Some(output) = self.batch.outputs.get_mut(neighbour) {
                *output = 1;
            }
        }
        if self.unified {
            // Physical batches are filled one after the other. A token may be of several sequences: the first will do.
            let place =
                batch.sequences.len().checked_sub(batch.n_sequences.last().map_or(1, |n| n.unsigned_abs() as usize));
            let last = batch.len().checked_sub(1).filter(|last| last % self.n_ubatch == 0);
            if let (Some(last), Some(place)) = (last, place) {
                self.add_behind(batch, last, place);
            }
            return;
        }
        // A physical batch has as many tokens of each of its sequences, the others come in the next ones: with even numbers that
        // fit into one together it is never one.
        self.counts.clear();
        for (last, sequence) in batch.sequences.iter().enumerate() {
            match self.counts.iter_mut().find(|count| count.sequence == *sequence) {
                Some(count) => (count.is_odd, count.last) = (!count.is_odd, last),
                None => self.counts.push(Count { sequence: *sequence, is_odd: true, last }),
            }
        }
        let one_of_each = self.counts.len() == batch.len() && (2..=self.n_ubatch).contains(&batch.len());
        if self.beside_is_behind && one_of_each {
            return;
        }
        for index in 0..self.counts.len() {
            // Each token is of one sequence: their places are the same.
            if let Some(Count { last, .. }) = self.counts.get(index).copied().filter(|count| count.is_odd) {
                self.add_behind(batch, last, last);
            }
        }
    }

    /// Adds a token behind the one at `index`, in the sequence at `place`.
    fn add_behind(&mut self, batch: &Batch, index: usize, place: usize) {
        let before = batch.tokens.get(index).zip(batch.positions.get(index)).zip(batch.sequences.get(place));
        let Some(((token, position), sequence)) = before.filter(|_| self.batch.len() < self.n_batch) else { return };
        let pad = Pad { sequence: *sequence, position: usize::try_from(*position).unwrap_or(0) + 1 };
        self.batch.push(*token, pad.position, pad.sequence, batch.outputs.get(index) == Some(&1));
        self.pads.push(pad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama::ModelParams;

    /// Outputs of the batch to evaluate, and the pad in it.
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
    fn flash_attention_is_left_out_where_it_is_slow_and_that_is_possible() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories-draft.gguf");
        let model = Model::load(&ModelParams::new(path), |_| true).unwrap();
        assert_eq!(model.head_sizes(), Some([32, 32]));
        let slow = cfg!(target_arch = "x86_64") && backend::system_info().contains("AVX512 = 1");
        let here = if slow && !backend::supports_offload() { FlashAttn::Off } else { FlashAttn::Auto };
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
    fn who_would_be_alone_gets_padding() {
        let pad = |position| Some(Pad { sequence: 3, position });
        assert_eq!(padded(8, 4, &[true]), (vec![1, 1], pad(1)));
        assert_eq!(padded(8, 4, &[false]), (vec![0, 0], pad(1)));
        assert_eq!(padded(8, 4, &[true, true]), (vec![1, 1], None));
        assert_eq!(padded(8, 4, &[false, false, true]), (vec![0, 1, 1], None), "logits of two");
        assert_eq!(padded(8, 4, &[true, false, false]), (vec![1, 1, 0], None));
        assert_eq!(padded(8, 4, &[false, false, false, false, true]), (vec![0, 0, 0, 0, 1, 1], pad(5)));
        assert_eq!(padded(8, 4, &[true, false, true]), (vec![1, 0, 1], None));
        assert_eq!(padded(5, 4, &[true; 5]), (vec![1; 5], None), "no room");
    }

    #[test]
    fn sequences_with_buffers_of_their_own_have_even_numbers_of_tokens() {
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
    fn with_flash_attention_another_sequence_is_enough() {
        let one_of_each = |sequences: &[SeqId]| {
            let mut batch = Batch::new();
            sequences.iter().for_each(|sequence| _ = batch.push(7, 10, *sequence, true));
            let mut padding = Padding::new(64, 8, false).of_flash(true);
            padding.add_to(&batch);
            padding.pads().len()
        };
        assert_eq!((one_of_each(&[0]), one_of_each(&[0, 1]), one_of_each(&[0, 1, 2])), (1, 0, 0));
        assert_eq!(one_of_each(&[0, 0, 1]), 1, "the second one of the first sequence would be alone");
        assert_eq!(one_of_each(&[0, 1, 2, 3, 4, 5, 6, 7, 8]), 9, "more than are evaluated at once");
    }
}
