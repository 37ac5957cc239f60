//! What takes the place of ggml's own functions on CPUs: a flash attention that is batch-invariant, and a barrier that lets
//! threads sleep. The linker replaces them in programs that this package builds for Linux (see `build.rs`); the `portable` feature,
//! other systems, and Rust programs that depend on this crate keep ggml's.

use super::params::{CacheType, ContextParams, FlashAttn};
use super::{Model, backend};

#[cfg(own_flash_attention)]
unsafe extern "C" {
    fn foredraft_flash_attention_calls() -> u64;
}
#[cfg(own_barrier)]
unsafe extern "C" {
    fn foredraft_barrier_sleeps() -> u64;
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
        && params.flash_attn != FlashAttn::Off
        && params.type_k == CacheType::F16
        && params.type_v == CacheType::F16
        && !params.embeddings
        && !backend::supports_offload()
        && model.head_sizes().is_some_and(|sizes| sizes.iter().all(|size| size % 16 == 0))
}
