//! Replacements of ggml's functions on CPUs: a flash attention and a matrix multiplication that are batch-invariant and fast for a few
//! tokens, and a barrier in which threads sleep. The linker replaces them in the shared library and in this package's tests on Linux (see
//! `build.rs`). With the `portable` feature, on other systems, and in Rust programs that link this crate, ggml's functions are used.

pub(super) mod matmul;

use std::time::Duration;

use llama_cpp_sys_2 as sys;

use super::guard::{AttentionShape, ErrorBuffer, foredraft_attention_cost};
use super::params::{CacheType, ContextParams};
use super::{Model, ThreadPool};
use crate::llama::backend::devices;

#[cfg(own_flash_attention)]
unsafe extern "C" {
    fn foredraft_flash_attention_calls() -> u64;
    fn foredraft_flash_attention_is_linked() -> bool;
}
#[cfg(own_barrier)]
unsafe extern "C" {
    fn foredraft_barrier_sleeps() -> u64;
}

/// The number of calls of this library's flash attention in graphs that this thread started.
pub(super) fn flash_attention_calls() -> u64 {
    #[cfg(own_flash_attention)]
    // SAFETY: reads a counter of the calling thread.
    let calls = unsafe { foredraft_flash_attention_calls() };
    #[cfg(not(own_flash_attention))]
    let calls = 0;
    calls
}

/// The number of waits in which a thread of this process slept in the barrier.
#[must_use]
pub fn barrier_sleeps() -> u64 {
    #[cfg(own_barrier)]
    // SAFETY: reads an atomic counter.
    let sleeps = unsafe { foredraft_barrier_sleeps() };
    #[cfg(not(own_barrier))]
    let sleeps = 0;
    sleeps
}

/// Whether a context with these parameters should use this library's flash attention. It does if [`flash_attention_calls`] increases
/// during a decode: the model may have another kind of attention.
pub(super) fn may_use_flash_attention(params: &ContextParams, model: &Model) -> bool {
    #[cfg(own_flash_attention)]
    // SAFETY: compares the addresses of functions.
    let is_linked = unsafe { foredraft_flash_attention_is_linked() };
    #[cfg(not(own_flash_attention))]
    let is_linked = false;
    is_linked
        && params.uses_flash_attn() != Some(false)
        // llama.cpp converts an F32 cache to F16 for flash attention.
        && [params.type_k, params.type_v].iter().all(|kind| matches!(kind, CacheType::F16 | CacheType::F32))
        && !params.embeddings
        && !devices::supports_offload()
        && model.head_sizes().is_some_and(|sizes| sizes.iter().all(|size| size % 16 == 0))
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
