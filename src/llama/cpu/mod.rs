//! What takes the place of ggml's own functions on CPUs: a flash attention and a matrix multiplication that are batch-invariant and fast
//! for a few tokens, and a barrier that lets threads sleep. The linker replaces them in the shared library and in this package's tests on Linux (see `build.rs`). The `portable`
//! feature, other systems, and Rust programs that link this crate keep ggml's.

use std::time::Duration;

use llama_cpp_sys_2 as sys;

use super::guard::{AttentionShape, Why, foredraft_attention_cost};
use super::params::{CacheType, ContextParams};
use super::{Model, ThreadPool, backend};

#[cfg(own_flash_attention)]
unsafe extern "C" {
    fn foredraft_flash_attention_calls() -> u64;
}
#[cfg(own_matmul)]
unsafe extern "C" {
    fn foredraft_matmul_formats() -> u64;
}
#[cfg(own_barrier)]
unsafe extern "C" {
    fn foredraft_barrier_sleeps() -> u64;
}

/// Whether the linker has put our matrix multiplication in place, and it multiplies weights of all these formats (a bit for each
/// `ggml_type`, as [`foredraft_can_multiply`](super::guard) counts them): then they are better left as they are in the file.
pub(super) fn multiplies_all(formats: u64) -> bool {
    const FLOATS: u64 = 1 << sys::GGML_TYPE_F32 | 1 << sys::GGML_TYPE_F16 | 1 << sys::GGML_TYPE_BF16;
    #[cfg(own_matmul)]
    // SAFETY: returns a number.
    let ours = unsafe { foredraft_matmul_formats() };
    #[cfg(not(own_matmul))]
    let ours = 0;
    formats & ours != 0 && formats & !(ours | FLOATS) == 0
}

/// How often our flash attention computed in graphs that this thread started.
pub(super) fn flash_attention_calls() -> u64 {
    #[cfg(own_flash_attention)]
    // SAFETY: reads a counter of the calling thread.
    let calls = unsafe { foredraft_flash_attention_calls() };
    #[cfg(not(own_flash_attention))]
    let calls = 0;
    calls
}

/// How often a thread has waited for another one for so long that it slept, in this process.
#[must_use]
pub fn barrier_sleeps() -> u64 {
    #[cfg(own_barrier)]
    // SAFETY: reads an atomic counter.
    let sleeps = unsafe { foredraft_barrier_sleeps() };
    #[cfg(not(own_barrier))]
    let sleeps = 0;
    sleeps
}

/// Whether a context with these parameters may use our flash attention. It does if [`flash_attention_calls`] grows when it decodes: the
/// linker may not have put it in place, and the model may have attention of another kind.
pub(super) fn may_use_flash_attention(params: &ContextParams, model: &Model) -> bool {
    cfg!(own_flash_attention)
        && params.uses_flash_attn() != Some(false)
        // llama.cpp makes F16 of an F32 cache before flash attention.
        && [params.type_k, params.type_v].iter().all(|kind| matches!(kind, CacheType::F16 | CacheType::F32))
        && !params.embeddings
        && !backend::supports_offload()
        && model.head_sizes().is_some_and(|sizes| sizes.iter().all(|size| size % 16 == 0))
}

/// How long the attention of all layers of a model takes for a batch of `n_tokens` at a depth of `n_cells`, with an F16 cache.
/// `None`: not known, as where layers have different numbers of heads.
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
    let mut why = Why::new();
    let pool = threads.of(n_threads);
    // SAFETY: the pool is alive, and decodes nothing meanwhile: its owner is the calling thread. Exceptions end in the guard.
    let micros = unsafe { foredraft_attention_cost(shape, n_threads, pool, why.ptr(), why.size()) };
    (micros >= 0.0).then(|| Duration::from_secs_f64(micros * 1e-6 * model.n_layer() as f64))
}
