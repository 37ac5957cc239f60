//! Makes contexts, tests what they can do, and makes them anew after a failure.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use llama_cpp_sys_2 as sys;

use crate::backend::devices;
use crate::context::hidden::Hidden;
use crate::context::padding::{self, Padding};
use crate::context::raw_params::{layout, n_ctx, raw_params, text_pooling};
use crate::context::rollback::{RemovableTokens, Rollback};
use crate::context::{Context, RawContext, attention, without_memory};
use crate::guard::ErrorBuffer;
use crate::params::{CacheType, ContextParams, FlashAttn, TextPooling};
use crate::platform::memory_limit;
use crate::{Batch, DecodeError, Interrupt, Model, SeqId, ThreadPool, kernels, log};
use foredraft_base::error::{Error, Result};
use foredraft_native::{foredraft_context_new, foredraft_set_reference};

/// The next context's `id`.
static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

/// Refuses a KV cache that is larger than all memory that the process can get, which llama.cpp would first fill with zeros.
fn check_cache_size(model: &Model, params: &ContextParams) -> Result<()> {
    // Elsewhere the cache can be on a GPU, or is smaller than this.
    let is_plain = !model.has_recurrent_states() && model.n_swa() == 0 && !devices::supports_offload();
    let sizes = model.head_sizes().filter(|_| is_plain && model.metadata_of_kind("attention.key_length_mla").is_none());
    let (Some([n_key, n_value]), Some(memory)) = (sizes, memory_limit()) else { return Ok(()) };
    // SAFETY: the model is alive, and the types are ggml's.
    let (heads, bytes) = unsafe {
        let row = |kind: CacheType, n: usize| {
            sys::ggml_row_size(kind as sys::ggml_type, i64::try_from(n).unwrap_or(0)) as u64
        };
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
    pub(super) fn decode_first_token(&mut self, position: usize) -> std::result::Result<(), String> {
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
