//! A context: the KV cache of a model, and its decodes.

pub(super) mod attention;
pub(super) mod batch;
pub(super) mod decode;
pub(super) mod heads;
pub(super) mod hidden;
pub(super) mod memory;
pub(super) mod mtp;
pub(super) mod padding;
mod placement;
pub(super) mod raw_params;
pub(super) mod rollback;
pub(super) mod token_subset;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use llama_cpp_sys_2 as sys;

use self::hidden::Hidden;
use self::padding::Padding;
use self::raw_params::{cache_type, layout, n_ctx, raw_params, text_pooling};
use self::rollback::{RemovableTokens, Rollback};
use crate::backend::devices;
use crate::guard::ErrorBuffer;
use crate::params::{CacheType, ContextParams, FlashAttn, TextPooling};
use crate::platform::memory_limit;
use crate::{Batch, DecodeError, FrameBudget, Interrupt, Model, SeqId, ThreadPool, TokenSubset, kernels, log};
use foredraft_base::error::{Error, Result};
use foredraft_native::{foredraft_context_new, foredraft_set_reference};

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

/// The next context's `id`.
static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

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

/// Refuses a KV cache that is larger than all memory that the process can get, which llama.cpp would first fill with zeros.
fn check_cache_size(model: &Model, params: &ContextParams) -> Result<()> {
    // Elsewhere the cache can be on a GPU, or is smaller than this.
    let is_plain = !model.has_recurrent_states() && model.n_swa() == 0 && !devices::supports_offload();
    let sizes = model.head_sizes().filter(|_| is_plain && model.metadata_of_kind("attention.key_length_mla").is_none());
    let (Some([n_key, n_value]), Some(memory)) = (sizes, memory_limit()) else { return Ok(()) };
    // SAFETY: the model is alive, and the types are ggml's.
    let (heads, bytes) = unsafe {
        let row = |kind, n: usize| sys::ggml_row_size(cache_type(kind), i64::try_from(n).unwrap_or(0)) as u64;
        let heads = u64::try_from(sys::llama_model_n_head_kv(model.as_ptr())).unwrap_or(0);
        (heads, row(params.type_k, n_key).saturating_add(row(params.type_v, n_value)))
    };
    let n_ctx = u64::from(n_ctx(params, model)).saturating_mul(params.n_buffers().into());
    let size = n_ctx.saturating_mul(model.n_layer() as u64).saturating_mul(heads).saturating_mul(bytes);
    if size <= memory {
        return Ok(());
    }
    Err(Error::model(format!(
        "n_ctx: a KV cache of {n_ctx} tokens needs {} MiB of memory, and this process can have {} MiB. Use a smaller n_ctx or n_parallel, \
         or a smaller cache_type_k",
        size >> 20,
        memory >> 20
    )))
}

/// The error for a model without KV cache.
pub(super) fn without_memory() -> Error {
    Error::model("the model has no KV cache, so it cannot generate text")
}

// SAFETY: a context has no thread affinity. `&mut self` restricts it to one thread at a time, and methods with `&self` only read
// what decodes do not change.
unsafe impl Send for Context {}

impl Context {
    /// Creates a context of `model`. Its decodes run on `threads`, and `interrupt` stops them.
    ///
    /// # Errors
    /// llama.cpp refuses the parameters, there is not enough memory, the model has no KV cache, or it cannot be decoded.
    pub fn new(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Context> {
        Context::make(model, params, threads, interrupt, Hidden::default(), None)?.ok_or_else(without_memory)
    }

    /// As [`Context::new`]. `None`: the model has no KV cache, so it cannot generate text, like many embedding models.
    ///
    /// # Errors
    /// Those of [`Context::new`], except for a missing KV cache.
    pub fn for_text(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<Option<Context>> {
        Context::make(model, params, threads, interrupt, Hidden::default(), None)
    }

    pub(super) fn make(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
        hidden: Hidden,
        target: Option<&Context>,
    ) -> Result<Option<Context>> {
        if model.vocab_only() {
            return Err(Error::model("the model was loaded with vocab_only, so it cannot be decoded"));
        }
        check_cache_size(model, params)?;
        if text_pooling(params, model) == Some(TextPooling::Rank) && model.n_scores() == 0 {
            return Err(Error::model("pooling: rank needs a model with a classifier, which this one has not"));
        }
        let is_head = hidden.is_head();
        let make = |own| Context::make_with(model, params, threads, interrupt, hidden.clone(), target, own);
        let own = (!is_head && attention::may_use_flash_attention(params)).then(|| make(true)).transpose()?.flatten();
        let mut context = match own.filter(|context| context.own_attention) {
            None => make(false)?,
            own => own,
        };
        if let Some(context) = context.as_mut().filter(|context| !is_head && model.n_swa() > 0 && context.can_shift()) {
            let few = ContextParams { n_ctx: Some(64), n_batch: 8, n_ubatch: 8, n_seq_max: 1, ..params.clone() };
            let few = Context::make_with(model, &few, threads, interrupt, hidden, None, context.own_attention);
            context.rotates_keys = few.ok().flatten().is_none_or(|mut few| few.test_shift());
        }
        Ok(context)
    }

    /// Makes the context anew after a decode from which an exception escaped: a failed assertion, or a lack of memory. Returns whether that
    /// was necessary; all sequences are then empty. Heads that read this context read the old one, and must not be used any more.
    ///
    /// # Errors
    /// It cannot be made. A later call tries again.
    pub fn renew(&mut self) -> Result<bool> {
        if !self.is_stale && !self.threads.is_broken() {
            return Ok(false);
        }
        self.threads.renew()?;
        if self.is_broken {
            let (params, hidden) = (self.params.clone(), Hidden::default());
            let made = Context::make(&self.model, &params, &self.threads, &self.interrupt, hidden, None)?;
            let mut made = made.ok_or_else(without_memory)?;
            // A rotation that fails once fails again.
            let rotates_keys = made.rotates_keys && !self.has_pending_rotations;
            (made.rotates_keys, made.n_threads, made.scored) = (rotates_keys, self.n_threads, self.scored.take());
            *self = made;
        } else {
            self.rotates_keys &= !self.has_pending_rotations;
            self.reset();
        }
        self.is_stale = false;
        Ok(true)
    }

    /// Moves a position. llama.cpp has a cache for the layers with a sliding window and one for the others, and fails an assertion if there
    /// are no such layers.
    fn test_shift(&mut self) -> bool {
        self.set_threads(1, 1);
        self.decode_first_token(0).is_ok() && self.move_by(0, 0..1, 1) && self.decode_first_token(2).is_ok()
    }

    /// As [`Context::make`]. `own_attention`: assume that attention is computed by this library's kernel. [`Context::own_attention`] is
    /// then true if it really is.
    fn make_with(
        model: &Arc<Model>,
        params: &ContextParams,
        threads: &Arc<ThreadPool>,
        interrupt: &Arc<Interrupt>,
        hidden: Hidden,
        target: Option<&Context>,
        own_attention: bool,
    ) -> Result<Option<Context>> {
        let params = &match hidden.is_head() || own_attention {
            true => params.clone(),
            false => ContextParams { flash_attn: padding::attention(params, model), ..params.clone() },
        };
        let is_padded = !hidden.is_head() && !own_attention && padding::is_required(params, model);
        let n_batch = padding::n_batch(params.n_batch, params.n_ubatch, params.n_buffers())
            .filter(|_| is_padded)
            .unwrap_or(params.n_batch);
        let mut raw = raw_params(params, model, interrupt);
        if is_padded {
            let n_buffers = params.n_buffers();
            raw.n_batch += n_buffers;
            // If the size of the context changes the computation, it is not enlarged, and a full one is decoded without padding.
            raw.n_ctx += if rope_depends_on_size(model) { 0 } else { n_buffers };
        }
        if hidden.head().reads_hidden() {
            raw.ctx_type = sys::LLAMA_CONTEXT_TYPE_MTP;
        }
        if hidden.is_head() {
            raw.n_rs_seq = 0;
        }
        raw.ctx_other = target.map_or(std::ptr::null_mut(), |target| target.ptr.as_ptr());
        let mut why = ErrorBuffer::new();
        // SAFETY: the model is alive. `raw` is plain data; its only pointers are the interrupt and the target's context, which the returned
        // value keeps alive. The guard catches exceptions.
        let (ptr, errors) =
            log::collecting(|| unsafe { foredraft_context_new(model.as_ptr(), raw, why.ptr(), why.size()) });
        let ptr = NonNull::new(ptr).ok_or_else(|| {
            if let Some(loss) = model.servers().loss() {
                return Error::model(loss);
            }
            Error::model(format!(
                "n_ctx: cannot create a context of {} tokens: {}{} {}",
                raw.n_ctx,
                devices::shortage(&errors, &why.message()),
                errors.join("; "),
                why.message()
            ))
        })?;
        let raw_context = Arc::new(RawContext {
            ptr,
            target: target.map(|target| Arc::clone(&target.raw)),
            model: Arc::clone(model),
            threads: Arc::clone(threads),
            interrupt: Arc::clone(interrupt),
        });
        // SAFETY: the context is alive.
        let by_reference = !hidden.is_head()
            && !own_attention
            && padding::wants_reference(params, model)
            && unsafe { foredraft_set_reference(ptr.as_ptr(), false) };
        // SAFETY: the context is alive.
        let n_sequences = SeqId::try_from(unsafe { sys::llama_n_seq_max(ptr.as_ptr()) }).unwrap_or(1);
        // SAFETY: the context is alive. llama.cpp says 0 for architectures that keep no earlier states.
        let n_earlier_states = unsafe { sys::llama_n_rs_seq(ptr.as_ptr()) as usize };
        let rollback = match model.has_recurrent_states() && !hidden.is_head() {
            true => Rollback::of_states(n_earlier_states),
            // Heads have attention only.
            false => Rollback::Anywhere,
        };
        // SAFETY: the context is alive.
        let mut context = unsafe {
            Context {
                ptr,
                raw: raw_context,
                memory: sys::llama_get_memory(ptr.as_ptr()),
                seq_lists: Vec::new(),
                has_logits: Vec::new(),
                n_vocab: model.vocab().n_tokens(),
                n_embd: model.n_embd(),
                // llama.cpp rounds up; the requested size is used.
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
                threads_set: (0, 0, 0),
                may_use_fewer: (own_attention || params.flash_attn != FlashAttn::On || params.drafts)
                    && !devices::supports_offload(),
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                n_seq_max: n_sequences,
                unified: params.kv_unified || params.n_seq_max <= 1,
                own_attention: false,
                flash_attention: params.flash_attn != FlashAttn::Off,
                is_batch_invariant: !params.kv_unified && params.n_seq_max > 1 && !devices::supports_offload(),
                pooling: text_pooling(params, model),
                hidden,
                n_features: 0,
                is_broken: false,
                is_stale: false,
                params: params.clone(),
                is_leaked: false,
                has_pending_moves: false,
                has_pending_rotations: false,
                rotates_keys: rotates_keys(params.type_k, model),
                removable: RemovableTokens::new(rollback, n_sequences),
                cuts_anywhere: rollback.is_unlimited() && (model.n_swa() == 0 || params.swa_full),
                layout: layout(params, model),
                scored: None,
                lora_scales: Vec::new(),
                model: Arc::clone(model),
                threads: Arc::clone(threads),
                interrupt: Arc::clone(interrupt),
                #[cfg(any(test, feature = "fake"))]
                fake: None,
            }
        };
        if context.memory.is_null() && !params.embeddings {
            return Ok(None);
        }
        // With all adapters, because a request can enable any of them.
        context.set_adapters(&vec![1.0; model.adapters().len()]);
        context.begin_hidden();
        let calls = kernels::calls();
        context.test_decode()?;
        context.own_attention = own_attention && kernels::calls().attentions > calls.attentions;
        context.set_adapters(&model.lora_scales());
        context.set_threads(raw.n_threads, raw.n_threads_batch);
        Ok(Some(context))
    }

    /// Decodes a token on this thread only, where a failed assertion becomes an error. A damaged or unusual model file can load and still
    /// have tensors that fail an assertion, which would end the process on a thread of the pool.
    pub(super) fn test_decode(&mut self) -> Result<()> {
        self.set_threads(1, 1);
        self.test_decode_at(0).map_err(|reason| Error::model(format!("model: cannot be decoded: {reason}")))?;
        // Some models have a table of positions that ends at the training context.
        let (trained, n_ctx) = (self.model.n_ctx_train(), self.n_ctx);
        if n_ctx <= usize::try_from(trained).unwrap_or(0) || n_ctx < 2 {
            return Ok(());
        }
        let refused = |reason| {
            format!(
                "n_ctx: {n_ctx} exceeds the training context of {trained}, and the model has no more positions: {reason}"
            )
        };
        self.test_decode_at(n_ctx - 1).map_err(|reason| Error::model(refused(reason)))
    }

    /// Decodes a token at a position.
    fn test_decode_at(&mut self, position: usize) -> std::result::Result<(), String> {
        let result = self.decode_first_token(position);
        self.truncate(0, 0);
        result
    }

    /// As `test_decode_at`, but leaves the token in the memory, so that what the decode kept can be read.
    fn decode_first_token(&mut self, position: usize) -> std::result::Result<(), String> {
        let mut batch = Batch::new();
        let vocab = self.model.vocab();
        batch.push(vocab.bos().or(vocab.eos()).unwrap_or(0), position, 0, true);
        self.pad_hidden(&mut batch);
        match self.decode(&batch) {
            Err(DecodeError::Failed(error)) => Err(error.message().to_owned()),
            // Aborted by an unload: the next user of the context notices it.
            _ => Ok(()),
        }
    }

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
        self.score_only(None);
        let all = self.first_logits();
        self.score_only(Some(tokens));
        let some = self.first_logits();
        self.score_only(None);
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

/// Whether the model has two sets of RoPE factors, for short and for long contexts.
fn rope_depends_on_size(model: &Model) -> bool {
    model.metadata_of_kind("rope.scaling.original_context_length").is_some()
}

/// Whether llama.cpp can rotate keys of this type to new positions. ggml's rotation does not support bf16: it fails an assertion on
/// a thread where that ends the process. Quantized keys are first rotated back by a matrix that exists only for some head sizes, and
/// llama.cpp uses it even if it does not exist.
fn rotates_keys(kind: CacheType, model: &Model) -> bool {
    const SIZE: usize = 64;
    match kind {
        CacheType::F16 | CacheType::F32 => true,
        CacheType::Bf16 => false,
        _ => {
            let matrix = std::env::var_os("LLAMA_ATTN_ROT_DISABLE").is_none();
            matrix && model.head_sizes().is_some_and(|[key, _]| key % SIZE == 0)
        }
    }
}
