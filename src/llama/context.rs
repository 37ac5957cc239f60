//! A context: the KV cache of a model and its evaluations.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use llama_cpp_sys_2 as sys;

use super::guard::{Why, foredraft_context_new, foredraft_set_reference};
use super::mtp::Hidden;
use super::padding::{self, Padding};
use super::params::{ContextParams, FlashAttn};
use super::raw_params::{layout, n_ctx, raw_params};
use super::{Batch, DecodeError, FrameBudget, Interrupt, Model, SeqId, ThreadPool, cpu, log, memory};
use crate::error::{Error, Result};

/// A context of a model. Only one thread uses it at a time; it may move between threads.
///
/// Everything that llama.cpp would answer with an assertion (which ends the process) is checked here first.
#[derive(Debug)]
pub struct Context {
    pub(super) ptr: NonNull<sys::llama_context>,
    pub(super) memory: sys::llama_memory_t,
    /// Scratch of `decode`: llama.cpp wants lists of sequences by pointer.
    pub(super) seq_lists: Vec<*mut SeqId>,
    /// Which tokens of the last batch have logits.
    pub(super) has_logits: Vec<bool>,
    pub(super) n_vocab: usize,
    pub(super) n_embd: usize,
    pub(super) n_ctx: usize,
    pub(super) n_batch: usize,
    pub(super) n_seq_max: SeqId,
    /// For tokens that would be evaluated alone.
    pub(super) padding: Option<Padding>,
    /// Whether a batch of one token is evaluated by ggml's reference kernels: see [`padding`].
    pub(super) by_reference: bool,
    /// Threads for one token, and for several.
    pub(super) n_threads: (i32, i32),
    /// The settings of these threads, by their numbers in the pool.
    pub(super) thread_settings: (usize, usize),
    /// Threads and settings that llama.cpp was told last; 0: nothing yet.
    threads_set: (i32, usize),
    /// Whether fewer threads leave the results as they are, and are worth a try: ggml's flash attention divides keys by the number of threads.
    pub(super) may_use_fewer: bool,
    /// What tells its decodes from other contexts': see [`ThreadPool::saw`].
    pub(super) id: usize,
    /// Whether all sequences share one buffer.
    pub(super) unified: bool,
    /// See [`Context::is_batch_invariant`].
    independent: bool,
    /// Whether attention is computed by our own kernel, which is batch-invariant: see [`cpu`](super::cpu).
    own_attention: bool,
    flash_attention: bool,
    pub(super) pooled: bool,
    pub(super) hidden: Hidden,
    /// Positions were moved or sequences copied, and the next evaluation moves the keys after them.
    pub(super) moved: bool,
    /// Whether every position stays in the memory until it is removed, and can be removed alone.
    pub(super) cuts_anywhere: bool,
    /// Whether keys can be turned for other positions.
    pub(super) turns_keys: bool,
    layout: Vec<(&'static str, String)>,
    /// The adapters' scales in force.
    pub(super) lora_scales: Vec<f32>,
    // After `ptr`, which uses them and is freed first (see `drop`).
    pub(super) model: Arc<Model>,
    pub(super) threads: Arc<ThreadPool>,
    pub(super) interrupt: Arc<Interrupt>,
    /// What answers in llama.cpp's place.
    #[cfg(test)]
    pub(super) fake: Option<super::fake::FakeBackend>,
}

/// Numbers contexts.
static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

/// Where a script has taken llama.cpp's place (in tests: see `script`), ends a method of [`Context`] with its answer.
macro_rules! faked {
    ($fake:ident = $of:expr => $answer:expr) => {
        #[cfg(test)]
        if let Some($fake) = $of {
            return $answer;
        }
    };
}
pub(super) use faked;

/// That a model has no KV cache.
pub(super) fn without_memory() -> Error {
    Error::model("the model has no KV cache: it cannot generate text")
}

// SAFETY: a context has no thread affinity; `&mut self` keeps it to one thread at a time, and the methods that
// take `&self` only read what evaluations do not change.
unsafe impl Send for Context {}

impl Context {
    /// A context of `model`, whose evaluations run on `threads` and stop at `interrupt`.
    ///
    /// # Errors
    /// llama.cpp refuses the parameters, there is no memory for it, the model has no KV cache, or cannot be evaluated.
    pub fn new(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Context> {
        Context::make(model, params, threads, interrupt, Hidden::default())?.ok_or_else(without_memory)
    }

    /// The same; `None`: the model has no KV cache and so generates no text, as many that are made for embeddings alone.
    ///
    /// # Errors
    /// As [`Context::new`], but for that.
    pub fn for_text(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Option<Context>> {
        Context::make(model, params, threads, interrupt, Hidden::default())
    }

    pub(super) fn make(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
        hidden: Hidden,
    ) -> Result<Option<Context>> {
        if model.vocab_only() {
            return Err(Error::model("the model was loaded with vocab_only: it cannot be evaluated"));
        }
        if !hidden.is_input() && cpu::may_use_flash_attention(params, model) {
            let context = Context::make_with(model, params, threads, interrupt, hidden.clone(), true)?;
            if context.as_ref().is_none_or(|context| context.own_attention) {
                return Ok(context);
            }
        }
        Context::make_with(model, params, threads, interrupt, hidden, false)
    }

    /// As [`Context::make`]. `own_attention`: as if attention were computed by our own kernel; [`Context::own_attention`] then says
    /// whether it is.
    fn make_with(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
        hidden: Hidden,
        own_attention: bool,
    ) -> Result<Option<Context>> {
        let params = &match hidden.is_input() || own_attention {
            true => params.clone(),
            false => ContextParams { flash_attn: padding::attention(params, model), ..params.clone() },
        };
        let is_padded = !hidden.is_input() && !own_attention && padding::suits(params, model);
        let n_batch = padding::n_batch(params.n_batch, params.n_ubatch, params.n_buffers())
            .filter(|_| is_padded)
            .unwrap_or(params.n_batch);
        let mut raw = raw_params(params, model, interrupt);
        if is_padded {
            let n_buffers = params.n_buffers();
            raw.n_batch += n_buffers;
            // Where the size of the context changes what is computed, a full one is evaluated without padding.
            raw.n_ctx += if rope_depends_on_size(model) { 0 } else { n_buffers };
        }
        if hidden.is_input() {
            raw.ctx_type = sys::LLAMA_CONTEXT_TYPE_MTP;
        }
        let mut why = Why::new();
        // SAFETY: the model is alive, `raw` is plain data whose one pointer, the interrupt, is kept by the context's
        // owner below, and exceptions end in the guard.
        let (ptr, errors) =
            log::collecting(|| unsafe { foredraft_context_new(model.as_ptr(), raw, why.ptr(), why.size()) });
        let ptr = NonNull::new(ptr).ok_or_else(|| {
            Error::model(format!(
                "n_ctx: a context of {} tokens cannot be made: {} {}",
                raw.n_ctx,
                errors.join("; "),
                why.message()
            ))
        })?;
        // SAFETY: the context is alive.
        let by_reference = !hidden.is_input()
            && !own_attention
            && padding::wants_reference(params, model)
            && unsafe { foredraft_set_reference(ptr.as_ptr(), false) };
        // SAFETY: the context is alive.
        let mut context = unsafe {
            Context {
                ptr,
                memory: sys::llama_get_memory(ptr.as_ptr()),
                seq_lists: Vec::new(),
                has_logits: Vec::new(),
                n_vocab: model.vocab().n_tokens(),
                n_embd: model.n_embd(),
                // llama.cpp rounds up; what was asked for counts.
                n_ctx: (sys::llama_n_ctx_seq(ptr.as_ptr()) as usize).min(n_ctx(params, model) as usize),
                n_batch: (sys::llama_n_batch(ptr.as_ptr()) as usize).min(n_batch.max(1) as usize),
                padding: is_padded.then(|| {
                    let size = (sys::llama_n_batch(ptr.as_ptr()), sys::llama_n_ubatch(ptr.as_ptr()));
                    Padding::new(size.0 as usize, size.1 as usize, params.n_buffers() == 1).of_flash(by_reference)
                }),
                by_reference,
                n_threads: (raw.n_threads, raw.n_threads_batch),
                thread_settings: (
                    threads.number_of(&params.thread_settings),
                    threads.number_of(&params.thread_settings_batch),
                ),
                threads_set: (0, 0),
                may_use_fewer: (own_attention || params.flash_attn != FlashAttn::On || params.drafts)
                    && !super::backend::supports_offload(),
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                n_seq_max: SeqId::try_from(sys::llama_n_seq_max(ptr.as_ptr())).unwrap_or(1),
                unified: params.kv_unified || params.n_seq_max <= 1,
                own_attention: false,
                flash_attention: params.flash_attn != FlashAttn::Off,
                independent: !params.kv_unified && params.n_seq_max > 1 && !super::backend::supports_offload(),
                // What ranks gives numbers of another count.
                pooled: params.embeddings
                    && matches!(
                        sys::llama_pooling_type(ptr.as_ptr()),
                        sys::LLAMA_POOLING_TYPE_MEAN | sys::LLAMA_POOLING_TYPE_CLS | sys::LLAMA_POOLING_TYPE_LAST
                    ),
                hidden,
                moved: false,
                turns_keys: memory::turns_keys(params.type_k, model),
                cuts_anywhere: model.can_roll_back() && (model.n_swa() == 0 || params.swa_full),
                layout: layout(params, model, sys::llama_n_rs_seq(ptr.as_ptr())),
                lora_scales: Vec::new(),
                model: Arc::clone(model),
                threads: Arc::clone(threads),
                interrupt: Arc::clone(interrupt),
                #[cfg(test)]
                fake: None,
            }
        };
        if params.embeddings && !context.pooled {
            return Err(Error::model("pooling: the model ranks texts, it has no embeddings of them"));
        }
        if context.memory.is_null() && !params.embeddings {
            return Ok(None);
        }
        // All of them: a request may have those that are left out at first.
        context.set_adapters(&vec![1.0; model.adapters().len()]);
        context.begin_hidden();
        let calls = cpu::flash_attention_calls();
        context.prove()?;
        context.own_attention = own_attention && cpu::flash_attention_calls() > calls;
        context.set_adapters(&model.lora_scales());
        context.set_threads(raw.n_threads, raw.n_threads_batch);
        Ok(Some(context))
    }

    /// Evaluates a token on this thread alone, where a failed assertion becomes an error: a damaged or unusual model file
    /// may load and yet have tensors that llama.cpp refuses to compute with, and on a pool's thread that ends the process.
    pub(super) fn prove(&mut self) -> Result<()> {
        self.set_threads(1, 1);
        self.prove_at(0).map_err(|why| Error::model(format!("model: cannot be evaluated: {why}")))?;
        // Some models have a table of the positions that they were trained on.
        let (trained, n_ctx) = (self.model.n_ctx_train(), self.n_ctx);
        if n_ctx <= usize::try_from(trained).unwrap_or(0) || n_ctx < 2 {
            return Ok(());
        }
        let refused = |why| format!("n_ctx: {n_ctx} where the model was trained on {trained} and knows no more: {why}");
        self.prove_at(n_ctx - 1).map_err(|why| Error::model(refused(why)))
    }

    /// Evaluates a token at a position.
    fn prove_at(&mut self, position: usize) -> std::result::Result<(), String> {
        let mut batch = Batch::new();
        let vocab = self.model.vocab();
        batch.push(vocab.bos().or(vocab.eos()).unwrap_or(0), position, 0, true);
        self.pad_hidden(&mut batch);
        match self.decode(&batch) {
            Err(DecodeError::Failed(why)) => Err(why),
            // Aborted: a deinit came between; whoever uses the context next learns of it.
            _ => {
                self.truncate(0, 0);
                Ok(())
            }
        }
    }

    /// Its model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What a sequence's state must agree in beside the model, to be of use in another context: name and value of each.
    pub fn layout(&self) -> &[(&'static str, String)] {
        &self.layout
    }

    /// Tokens that one sequence may hold.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Most tokens in one batch.
    pub fn n_batch(&self) -> usize {
        self.n_batch
    }

    /// Sequences that share one buffer, in which one may take over what another holds; 0 where each has its own, or
    /// where what was evaluated cannot be taken back.
    pub fn n_shared(&self) -> usize {
        if self.unified && self.cuts_anywhere { usize::try_from(self.n_seq_max).unwrap_or(0) } else { 0 }
    }

    /// Whether a token that would be evaluated alone is padded, so that one more behind it costs nothing: where sequences
    /// have buffers of their own each by itself, else the only one. See `padding`.
    pub fn pads_single_tokens(&self) -> bool {
        self.padding.is_some() && !self.by_reference
    }

    /// Whether llama.cpp decodes batches in rectangles, the same number of tokens of each of several sequences: where each has a KV buffer
    /// of its own.
    pub fn decodes_rectangles(&self) -> bool {
        !self.unified && self.n_seq_max > 1
    }

    /// Whether an odd number of tokens of a sequence gets one more as padding: see `padding`. The second: unless the batch has one
    /// token of each of several sequences.
    pub fn pads_sequences(&self) -> Option<bool> {
        self.padding.as_ref().map(Padding::leaves_one_of_each)
    }

    /// Whether attention is computed by this library's own kernel, which is batch-invariant.
    pub fn has_own_attention(&self) -> bool {
        self.own_attention
    }

    /// Whether there is flash attention; where llama.cpp chose by the devices, it is taken to be there.
    pub fn has_flash_attention(&self) -> bool {
        self.flash_attention
    }

    /// Whether a context with these parameters could do without flash attention as well as with it, so that what is faster may be chosen.
    pub fn has_choice_of_attention(params: &ContextParams, model: &Model) -> bool {
        params.flash_attn == FlashAttn::Auto && padding::can_do_without(params, model)
    }

    /// Whether the last bits of a sequence's logits need not depend on the others in a batch: on CPUs, where each has a buffer of its
    /// own. They do not if no batch has more of its tokens than [`Context::max_invariant_tokens`], or nothing else.
    pub fn is_batch_invariant(&self) -> bool {
        self.independent
    }

    /// Most tokens of a sequence in a batch with which each is evaluated as it would be behind any other number of them. From 64 on
    /// ggml's flash attention on CPUs sums up in another order (`GGML_FA_TILE_Q`); an odd number may get one more as padding. Our own
    /// kernel has no such limit.
    pub fn max_invariant_tokens(&self) -> usize {
        const TILE: usize = 64;
        faked!(fake = &self.fake => fake.max_invariant_tokens);
        if self.own_attention { usize::MAX } else { TILE - 2 }
    }

    /// Most tokens that are evaluated at once; larger batches are split into such.
    pub fn n_ubatch(&self) -> usize {
        faked!(fake = &self.fake => fake.n_ubatch);
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ubatch(self.ptr.as_ptr()) as usize }
    }

    /// Sets the threads of the decodes that follow: for one token, and for several. While other programs need the cores, they have
    /// fewer: see [`ThreadPool::n_threads_now`].
    pub fn set_threads(&mut self, n_threads: i32, n_threads_batch: i32) {
        self.n_threads = (n_threads.max(1), n_threads_batch.max(1));
    }

    /// The host's frame budget, with which decodes wait for their time.
    pub fn frame_budget(&self) -> Option<FrameBudget> {
        self.threads.frame_budget()
    }

    /// Sets the threads of the next decode, and the number of their settings.
    pub(super) fn use_threads(&mut self, n_threads: i32, settings: usize) {
        if self.threads_set == (n_threads, settings) {
            return;
        }
        self.threads_set = (n_threads, settings);
        let pool = self.threads.of_settings(n_threads, settings);
        // SAFETY: context and pool are alive, and the context keeps the pool; ggml takes no more threads than the pool has. The CPU
        // backend lets the threads of the pool that it had before sleep.
        unsafe {
            sys::llama_set_n_threads(self.ptr.as_ptr(), n_threads, n_threads);
            sys::llama_attach_threadpool(self.ptr.as_ptr(), pool, pool);
        }
    }

    /// Sets the scale of each LoRA adapter of the model, by its number, for the evaluations that follow. Costs nothing when
    /// none changes.
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
        // SAFETY: the context is alive, the adapters belong to its model, and both lists have the length given.
        unsafe {
            sys::llama_set_adapters_lora(self.ptr.as_ptr(), adapters.as_mut_ptr(), adapters.len(), scales.as_mut_ptr());
        }
    }

    pub(super) fn has_sequence(&self, sequence: SeqId) -> bool {
        (0..self.n_seq_max).contains(&sequence)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the only owner; model, threads and interrupt are fields and live a moment longer.
        unsafe { sys::llama_free(self.ptr.as_ptr()) }
    }
}

/// Whether the model has two sets of factors for its rotation, for short contexts and for long ones.
fn rope_depends_on_size(model: &Model) -> bool {
    model.metadata_of_kind("rope.scaling.original_context_length").is_some()
}
