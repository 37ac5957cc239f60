//! A context: the KV cache of a model, and its decodes.

pub(super) mod attention;
pub(super) mod batch;
pub(super) mod decode;
pub(super) mod heads;
pub(super) mod hidden;
mod making;
pub(super) mod memory;
pub(super) mod mtp;
pub(super) mod padding;
mod placement;
pub(super) mod raw_params;
pub(super) mod rollback;
pub(super) mod token_subset;

use std::ptr::NonNull;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use self::hidden::Hidden;
use self::padding::Padding;
use self::rollback::{RemovableTokens, Rollback};
use crate::params::{ContextParams, FlashAttn, TextPooling};
use crate::{FrameBudget, Interrupt, Model, SeqId, ThreadPool, TokenSubset, kernels};
use foredraft_base::error::Error;

/// A context of a model. One thread uses it at a time; it can move between threads.
///
/// All methods validate in advance what llama.cpp would assert, because a failed assertion ends the process.
#[derive(Debug)]
pub struct Context {
    /// The pointer in `raw`.
    pub(super) ptr: NonNull<sys::llama_context>,
    raw: Arc<RawContext>,
    pub(super) memory: sys::llama_memory_t,
    /// A buffer of `decode`: pointers to the sequences of each token.
    pub(super) seq_lists: Vec<*mut SeqId>,
    /// For each token of the last batch: whether it has logits.
    pub(super) has_logits: Vec<bool>,
    pub(super) n_vocab: usize,
    pub(super) n_embd: usize,
    pub(super) n_ctx: usize,
    pub(super) n_batch: usize,
    pub(super) n_seq_max: SeqId,
    /// Padding for tokens that would be decoded alone.
    pub(super) padding: Option<Padding>,
    /// Batches of one token use ggml's reference kernels: see [`padding`].
    pub(super) by_reference: bool,
    /// The number of threads for one token, and for several.
    pub(super) n_threads: (i32, i32),
    /// The settings of these threads, as indices in the pool.
    pub(super) thread_settings: (usize, usize),
    /// The number of threads, the settings and the [pool](ThreadPool::n_renewals) that llama.cpp is set to. 0: not set yet.
    threads_set: (i32, usize, usize),
    /// Using fewer threads does not change the results. (ggml's flash attention divides the keys by the number of threads.)
    pub(super) may_use_fewer: bool,
    /// Identifies this context's decodes: see [`ThreadPool::record_decode`].
    pub(super) id: usize,
    /// All sequences share one KV buffer.
    pub(super) unified: bool,
    /// See [`Context::is_batch_invariant`].
    is_batch_invariant: bool,
    /// Attention is computed by this library's kernel, which is batch-invariant: see [`cpu`](crate::cpu).
    own_attention: bool,
    flash_attention: bool,
    /// How texts are pooled. `None`: the context has no embeddings.
    pub(super) pooling: Option<TextPooling>,
    pub(super) hidden: Hidden,
    /// How many numbers a draft head reads of each token of its target.
    n_features: usize,
    /// An exception escaped a decode: no later one is possible.
    pub(super) is_broken: bool,
    /// An exception escaped a decode, so that [`Context::renew`] is needed.
    pub(super) is_stale: bool,
    params: ContextParams,
    /// The exception may have left pointers to freed memory, so the context is leaked.
    pub(super) is_leaked: bool,
    /// Positions were moved or sequences copied. The next decode rotates the keys and copies the cells.
    pub(super) has_pending_moves: bool,
    /// Positions were moved, so that the next decode rotates keys.
    pub(super) has_pending_rotations: bool,
    /// How many tokens can be removed from the end of each sequence.
    pub(super) removable: RemovableTokens,
    /// Any range of positions can be removed, and no position is removed by itself.
    pub(super) cuts_anywhere: bool,
    /// Keys can be rotated to other positions.
    pub(super) rotates_keys: bool,
    layout: Vec<(&'static str, String)>,
    /// The tokens whose logits decodes compute. `None`: all.
    pub(super) scored: Option<TokenSubset>,
    /// The current scales of the adapters.
    pub(super) lora_scales: Vec<f32>,
    pub(super) model: Arc<Model>,
    pub(super) threads: Arc<ThreadPool>,
    pub(super) interrupt: Arc<Interrupt>,
    /// Replaces llama.cpp.
    #[cfg(any(test, feature = "fake"))]
    pub(super) fake: Option<crate::fake::FakeBackend>,
}

/// llama.cpp's context, and what it uses. The contexts of heads share that of their target, because they read the target's model through it.
#[derive(Debug)]
struct RawContext {
    ptr: NonNull<sys::llama_context>,
    // Dropped after `ptr` is freed.
    #[expect(dead_code, reason = "llama.cpp reads it")]
    target: Option<Arc<RawContext>>,
    #[expect(dead_code, reason = "llama.cpp uses it")]
    model: Arc<Model>,
    #[expect(dead_code, reason = "llama.cpp uses them")]
    threads: Arc<ThreadPool>,
    #[expect(dead_code, reason = "llama.cpp reads it")]
    interrupt: Arc<Interrupt>,
}

// SAFETY: an owner only frees it, or reads the pointer; the methods of `Context` say which thread uses what it points to.
unsafe impl Send for RawContext {}
// SAFETY: as above.
unsafe impl Sync for RawContext {}

impl Drop for RawContext {
    fn drop(&mut self) {
        // SAFETY: this is the last owner, and all that the context uses is dropped afterwards.
        unsafe { sys::llama_free(self.ptr.as_ptr()) }
    }
}

/// In tests, returns the fake backend's result from a method of [`Context`], if the context has one (see `fake`).
macro_rules! faked {
    ($fake:ident = $of:expr => $answer:expr) => {
        #[cfg(any(test, feature = "fake"))]
        if let Some($fake) = $of {
            return $answer;
        }
    };
}
pub(super) use faked;

/// The error for a model without KV cache.
pub(super) fn without_memory() -> Error {
    Error::model("the model has no KV cache, so it cannot generate text")
}

// SAFETY: a context has no thread affinity. `&mut self` restricts it to one thread at a time, and methods with `&self` only read
// what decodes do not change.
unsafe impl Send for Context {}

impl Context {
    pub(crate) fn as_ptr(&self) -> *const sys::llama_context {
        self.ptr.as_ptr()
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The properties, with names, that must be equal for a sequence's state to fit into another context of the same model.
    pub fn layout(&self) -> &[(&'static str, String)] {
        &self.layout
    }

    /// The maximum length of a sequence, in tokens.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// The maximum number of tokens in a batch.
    pub fn n_batch(&self) -> usize {
        self.n_batch
    }

    /// The number of sequences.
    pub fn n_sequences(&self) -> usize {
        usize::try_from(self.n_seq_max).unwrap_or(1)
    }

    /// How texts are pooled. `None`: the context has no embeddings.
    pub fn pooling(&self) -> Option<TextPooling> {
        self.pooling
    }

    /// How far its sequences can be rolled back.
    pub fn rollback(&self) -> Rollback {
        self.removable.rollback()
    }

    /// Whether the last tokens of `sequence` can be removed after a decode of `n_tokens` tokens of each sequence, all but the first.
    pub fn rolls_back_after(&self, n_tokens: impl Iterator<Item = usize> + Clone, sequence: usize) -> bool {
        match self.rollback() {
            Rollback::Anywhere => true,
            Rollback::Recent(_) => rollback::keeps_earlier_states(n_tokens, sequence, self.n_ubatch()),
            Rollback::Never => false,
        }
    }

    /// The number of sequences that share one KV buffer, so that one can take over another's cells. 0 if each has its own buffer, or
    /// if decoded tokens cannot be removed.
    pub fn n_shared(&self) -> usize {
        if self.unified && self.cuts_anywhere { usize::try_from(self.n_seq_max).unwrap_or(0) } else { 0 }
    }

    /// Whether a token that would be decoded alone is padded, so that another token after it costs nothing. With a KV buffer for each
    /// sequence this applies to each sequence, else to the whole batch. See `padding`.
    pub fn pads_single_tokens(&self) -> bool {
        self.padding.is_some() && !self.by_reference
    }

    /// Whether llama.cpp decodes physical batches with the same number of tokens of each sequence: if each has its own KV buffer or a recurrent
    /// state.
    pub fn decodes_rectangles(&self) -> bool {
        self.has_buffers() || (self.n_seq_max > 1 && !self.rollback().is_unlimited())
    }

    /// Whether each sequence has its own KV buffer, so that only consecutive sequence ids are decoded together.
    pub fn has_buffers(&self) -> bool {
        !self.unified && self.n_seq_max > 1
    }

    /// Whether an odd number of tokens of a sequence is padded by one: see `padding`. `Some(true)`: except if the batch has one token
    /// of each of several sequences.
    pub fn pads_sequences(&self) -> Option<bool> {
        self.padding.as_ref().map(Padding::leaves_one_of_each)
    }

    /// Whether attention is computed by this library's kernel, which is batch-invariant.
    pub fn has_own_attention(&self) -> bool {
        self.own_attention
    }

    /// Whether attention sums up the cells of a sequence by their positions. Then no logits depend on which cells those are, nor on other
    /// sequences in the same KV buffer: branches, beams, or the slots that share it.
    pub fn sums_by_position(&self) -> bool {
        faked!(fake = &self.fake => fake.max_invariant_tokens == usize::MAX);
        self.own_attention
    }

    /// Whether flash attention is used. True if llama.cpp chose by the devices.
    pub fn has_flash_attention(&self) -> bool {
        self.flash_attention
    }

    /// Whether a context with these parameters works with and without flash attention, so that the faster one can be chosen.
    pub fn has_choice_of_attention(params: &ContextParams, model: &Model) -> bool {
        params.flash_attn == FlashAttn::Auto && padding::can_do_without(params, model)
    }

    /// Whether a sequence's logits can be batch-invariant, bit for bit: on CPUs, if each sequence has its own KV buffer. They are if
    /// each batch has at most [`Context::max_invariant_tokens`] of its tokens, or only its tokens.
    pub fn is_batch_invariant(&self) -> bool {
        self.is_batch_invariant
    }

    /// The maximum number of tokens of a sequence in a batch for which logits do not depend on that number. From 64 tokens on, ggml's
    /// flash attention on CPUs sums in another order (`GGML_FA_TILE_Q`); an odd number can get one padding token. This library's
    /// kernel has no such limit.
    pub fn max_invariant_tokens(&self) -> usize {
        const TILE: usize = 64;
        faked!(fake = &self.fake => fake.max_invariant_tokens);
        if self.own_attention { usize::MAX } else { TILE - 2 }
    }

    /// The maximum number of tokens in a physical batch. llama.cpp splits larger batches.
    pub fn n_ubatch(&self) -> usize {
        faked!(fake = &self.fake => fake.n_ubatch);
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ubatch(self.ptr.as_ptr()) as usize }
    }

    /// Sets the number of threads of later decodes: for one token, and for several. While other programs use the cores, decodes use
    /// fewer: see [`ThreadPool::n_threads_now`].
    pub fn set_threads(&mut self, n_threads: i32, n_threads_batch: i32) {
        self.n_threads = (n_threads.max(1), n_threads_batch.max(1));
    }

    /// The host's frame budget. Decodes are delayed to fit it.
    pub fn frame_budget(&self) -> Option<FrameBudget> {
        self.threads.frame_budget()
    }

    /// Sets the number of threads of the next decode, and the index of their settings.
    pub(super) fn use_threads(&mut self, n_threads: i32, settings: usize) {
        let wanted = (n_threads, settings, self.threads.n_renewals());
        if self.threads_set == wanted {
            return;
        }
        self.threads_set = wanted;
        let pool = self.threads.of_settings(n_threads, settings);
        // SAFETY: context and pool are alive, and the context keeps the pool alive. ggml uses no more threads than the pool has. The CPU
        // backend pauses the threads of the pool that it used before.
        unsafe {
            sys::llama_set_n_threads(self.ptr.as_ptr(), n_threads, n_threads);
            sys::llama_attach_threadpool(self.ptr.as_ptr(), pool, pool);
        }
    }

    /// Sets the scale of each LoRA adapter of the model for later decodes. Does nothing if no scale changes.
    pub fn set_adapters(&mut self, scales: &[f32]) {
        if self.lora_scales == scales {
            return;
        }
        self.lora_scales = scales.to_vec();
        let (mut adapters, mut scales): (Vec<_>, Vec<_>) =
            self.model.adapters().iter().zip(scales).map(|((adapter, _), scale)| (adapter.as_ptr(), *scale)).unzip();
        if adapters.is_empty() {
            return;
        }
        // SAFETY: the context is alive, the adapters belong to its model, and both lists have the given length.
        unsafe {
            sys::llama_set_adapters_lora(self.ptr.as_ptr(), adapters.as_mut_ptr(), adapters.len(), scales.as_mut_ptr());
        }
    }

    /// Restricts later decodes to the logits of these tokens; those of others then have no meaning. `None`: of all tokens. See
    /// [`Context::can_score`].
    pub fn score_only(&mut self, tokens: Option<&TokenSubset>) {
        match (&mut self.scored, tokens) {
            (Some(scored), Some(tokens)) => scored.clone_from(tokens),
            (scored, tokens) => *scored = tokens.cloned(),
        }
    }

    /// Tests whether a decode that is restricted to these tokens leaves out the others, and gives their logits the same bits. It does not
    /// where another device or other kernels compute the output. The context is empty afterwards, and not restricted.
    pub fn can_score(&mut self, tokens: &TokenSubset) -> bool {
        if self.model.output_size() == 0 || !kernels::are_used() {
            return false;
        }
        // Panels of another type may be made between the two decodes, if another engine has the model too. They are for drafts alone.
        let drafts = std::mem::replace(&mut self.params.drafts, false);
        self.score_only(None);
        let all = self.first_logits();
        self.score_only(Some(tokens));
        let some = self.first_logits();
        self.score_only(None);
        self.params.drafts = drafts;
        let (Some(all), Some(some)) = (all, some) else { return false };
        let least = all.iter().copied().fold(f32::INFINITY, f32::min);
        (0..).zip(all.iter().zip(&some)).all(|(token, (all, some))| {
            if tokens.contains(token) { all.to_bits() == some.to_bits() } else { *some < least }
        })
    }

    /// The logits after the first token of a text.
    fn first_logits(&mut self) -> Option<Vec<f32>> {
        let decoded = self.decode_first_token(0);
        let logits = self.logits(0).map(|logits| logits.to_vec());
        self.truncate(0, 0);
        decoded.ok().and(logits)
    }

    pub(super) fn has_sequence(&self, sequence: SeqId) -> bool {
        (0..self.n_seq_max).contains(&sequence)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_leaked {
            // Threads that wait inside the decode use it.
            std::mem::forget(Arc::clone(&self.raw));
        }
    }
}
