//! Whether our attention is used, and the time of ggml's, where it is not.

use std::time::Duration;

use llama_cpp_sys_2 as sys;

use crate::backend::devices;
use crate::guard::{AttentionShape, ErrorBuffer};
use crate::kernels::are_used;
use crate::params::ContextParams;
use crate::{Model, ThreadPool};
use foredraft_native::foredraft_attention_cost;

/// Whether a context with these parameters should use this library's flash attention. It does if [`calls`](crate::kernels::calls) increases during a decode: the
/// model may have another kind of attention.
pub(crate) fn may_use_flash_attention(params: &ContextParams) -> bool {
    are_used() && params.uses_flash_attn() != Some(false) && !devices::supports_offload()
}

/// Measures the time of the attention of all layers, for a batch of `n_tokens` at a depth of `n_cells`, with an F16 cache. `None`:
/// unknown, for example if layers have different numbers of heads.
#[must_use]
pub fn attention_cost(
    model: &Model,
    threads: &ThreadPool,
    n_threads: i32,
    n_cells: usize,
    n_tokens: usize,
    flash: bool,
) -> Option<Duration> {
    let [n_key, n_value] = model.head_sizes()?;
    // SAFETY: the model is alive.
    let (n_head, n_head_kv) =
        unsafe { (sys::llama_model_n_head(model.as_ptr()), sys::llama_model_n_head_kv(model.as_ptr())) };
    let sizes = [n_key, n_value, n_cells, n_tokens].map(|size| i32::try_from(size).ok().filter(|size| *size > 0));
    let [Some(n_key), Some(n_value), Some(n_cells), Some(n_tokens)] = sizes else { return None };
    if n_head_kv < 1 || n_head < n_head_kv || n_head % n_head_kv != 0 {
        return None;
    }
    let shape = AttentionShape { n_head, n_head_kv, n_key, n_value, n_cells, n_tokens, flash };
    let mut why = ErrorBuffer::new();
    let pool = threads.of(n_threads);
    // SAFETY: the pool is alive, and runs no decode meanwhile, because its owner is the calling thread. The guard catches exceptions.
    let micros = unsafe { foredraft_attention_cost(shape, n_threads, pool, why.ptr(), why.size()) };
    (micros >= 0.0).then(|| Duration::from_secs_f64(micros * 1e-6 * model.n_layer() as f64))
}
