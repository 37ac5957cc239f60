//! Converts a context's parameters to llama.cpp's.

use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::params::{ContextParams, TextPooling};
use crate::{Interrupt, Model};

/// The context length for `n_ctx: None`, unless the training context is shorter.
pub const DEFAULT_N_CTX: u32 = 4096;

/// llama.cpp's parameters of a context.
pub(crate) fn raw_params(
    params: &ContextParams,
    model: &Model,
    interrupt: &Arc<Interrupt>,
) -> sys::llama_context_params {
    // SAFETY: returns plain data.
    let mut raw = unsafe { sys::llama_context_default_params() };
    raw.n_ctx = n_ctx(params, model).saturating_mul(params.n_buffers());
    raw.n_batch = params.n_batch.max(1);
    raw.n_ubatch = params.n_ubatch.clamp(1, raw.n_batch);
    raw.n_seq_max = params.n_seq_max.max(1);
    raw.n_rs_seq = params.n_rollback.min(most_rollback(raw.n_ubatch));
    raw.n_threads = params.n_threads.max(1);
    raw.n_threads_batch = params.n_threads_batch.max(1);
    raw.flash_attn_type = params.flash_attn as sys::llama_flash_attn_type;
    raw.type_k = params.type_k as sys::ggml_type;
    raw.type_v = params.type_v as sys::ggml_type;
    raw.offload_kqv = params.offload_kqv;
    raw.swa_full = params.swa_full;
    raw.kv_unified = params.kv_unified;
    raw.rope_freq_base = params.rope_freq_base;
    raw.rope_freq_scale = params.rope_freq_scale;
    raw.rope_scaling_type = params.rope_scaling as sys::llama_rope_scaling_type;
    raw.yarn_ext_factor = params.yarn_ext_factor;
    raw.yarn_attn_factor = params.yarn_attn_factor;
    raw.yarn_beta_fast = params.yarn_beta_fast;
    raw.yarn_beta_slow = params.yarn_beta_slow;
    raw.yarn_orig_ctx = params.yarn_orig_ctx;
    raw.embeddings = params.embeddings;
    raw.pooling_type = match text_pooling(params, model) {
        None => sys::LLAMA_POOLING_TYPE_UNSPECIFIED,
        Some(TextPooling::Rank) => sys::LLAMA_POOLING_TYPE_RANK,
        // `Context::embedding` pools. The bits of llama.cpp's mean depend on where in the batch a text is.
        Some(_) => sys::LLAMA_POOLING_TYPE_NONE,
    };
    raw.no_perf = true;
    raw.abort_callback = Interrupt::callback();
    raw.abort_callback_data = interrupt.as_callback_data();
    raw
}

/// The most tokens for which earlier states can be kept. llama.cpp keeps the last tokens of a sequence in one physical batch, which it asserts to be
/// larger.
pub fn most_rollback(n_ubatch: u32) -> u32 {
    n_ubatch.saturating_sub(2)
}

/// The context length of one sequence, or of all sequences with a shared buffer.
pub fn n_ctx(params: &ContextParams, model: &Model) -> u32 {
    let trained = match model.n_ctx_train() {
        0 => DEFAULT_N_CTX,
        trained => trained,
    };
    match params.n_ctx {
        None => trained.min(DEFAULT_N_CTX),
        Some(0) => trained,
        Some(n_ctx) => n_ctx,
    }
}

/// The pooling of a context's texts. `None`: it has no embeddings.
pub fn text_pooling(params: &ContextParams, model: &Model) -> Option<TextPooling> {
    let of_model = || match model.metadata_of_kind("pooling_type").as_deref() {
        Some("1") => TextPooling::Mean,
        Some("2") => TextPooling::First,
        Some("4") => TextPooling::Rank,
        _ => TextPooling::Last,
    };
    params.embeddings.then(|| params.pooling.unwrap_or_else(of_model))
}

/// See [`Context::layout`]. Includes all parameters that the rotation of keys and the format of the state depend on.
pub(crate) fn layout(params: &ContextParams, model: &Model) -> Vec<(&'static str, String)> {
    let n_buffers = params.n_buffers();
    let rope = (params.rope_freq_base, params.rope_freq_scale, params.rope_scaling, params.yarn_orig_ctx);
    let yarn = (params.yarn_ext_factor, params.yarn_attn_factor, params.yarn_beta_fast, params.yarn_beta_slow);
    vec![
        ("cache_type_k", format!("{:?}", params.type_k)),
        ("cache_type_v", format!("{:?}", params.type_v)),
        ("flash_attn", format!("{:?}", params.flash_attn)),
        ("swa_full", params.swa_full.to_string()),
        ("KV buffers (n_parallel without kv_unified)", n_buffers.to_string()),
        // A saved state has only the newest recurrent state, however many a context keeps.
        ("recurrent snapshots", "0".to_owned()),
        ("rope_*", format!("{rope:?}")),
        ("yarn_*", format!("{yarn:?}")),
        // Some models rotate keys differently then.
        ("n_ctx beyond the training context", (n_ctx(params, model) > model.n_ctx_train()).to_string()),
    ]
}
