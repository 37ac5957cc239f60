//! The formats of weights that this library's matrix multiplication (`matmul.cpp`) supports.

use llama_cpp_sys_2 as sys;

#[cfg(own_matmul)]
unsafe extern "C" {
    fn foredraft_matmul_formats() -> u64;
}

/// Whether this library's matrix multiplication is linked and supports all these formats of weights. Then the weights should keep the
/// file's layout. (`formats` has a bit for each `ggml_type`, from [`foredraft_can_multiply`](crate::llama::guard).)
pub(in crate::llama) fn multiplies_all(formats: u64) -> bool {
    const FLOATS: u64 = 1 << sys::GGML_TYPE_F32 | 1 << sys::GGML_TYPE_F16 | 1 << sys::GGML_TYPE_BF16;
    #[cfg(own_matmul)]
    // SAFETY: returns a number.
    let ours = unsafe { foredraft_matmul_formats() };
    #[cfg(not(own_matmul))]
    let ours = 0;
    formats & ours != 0 && formats & !(ours | FLOATS) == 0
}
