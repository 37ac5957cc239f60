// Everything that this library takes over from ggml and llama.cpp at run time, declared by their own headers, so that a changed signature does
// not compile.
//
// By ggml's own hook, in every program: ggml asks each extra type of buffers, before it computes an operation, for "traits" that compute it in
// ggml's place, wherever the operation's tensors are. Ours (seam.cpp) compute matrix products, attention, gated delta nets, copies of floats and,
// on AArch64, rotary embeddings. ggml's list of such types (ggml_backend_cpu_get_extra_buffer_types) gets ours in the place of ggml's
// (panels.cpp).
//
// The hook's parameters also choose ggml's product without tiles (`use_ref`), where ggml multiplies: with 8 tokens and more, tiles add in another
// order than ggml's other loops.
//
// By the linker, in the shared library, the archive and this package's own programs. A Rust program that depends on the crate has none of these,
// because Cargo hands no linker arguments on; `cpu.kernels` in the status says so. build/link.rs of the library has the linker's options. A file that defines a
// `__wrap_` function is part of a program only if these options are.
//
//   llama_kv_cache_context::set_input_kq_mask
//                                    llama.cpp fills an attention mask. order.cpp also puts the order of positions beside it.
//   ggml_vec_soft_max_f32, ggml_vec_cvar_f32, ggml_vec_silu_f32, ggml_vec_swiglu_f32, quantize_row_q8_0
//                                    on AArch64, where ggml's round in another order than on x86-64 (rounding.cpp, rope.cpp).
//   sinf, cosf, sincosf, tanhf, erff, expf, exp2f, expm1f, logf, log2f, powf
//                                    of the C library: they give other bits in others (elementary.cpp, which includes nothing of ggml).
//   ggml_barrier                     where a graph's threads wait for each other (barrier.c).
#pragma once

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "native.h"
#include "traits.h"
#if defined(__aarch64__)
#include "quants.h"
#include "vec.h"
#endif

extern "C" {

decltype(ggml_barrier) foredraft_barrier;

#if defined(__aarch64__)
decltype(ggml_vec_soft_max_f32) __wrap_ggml_vec_soft_max_f32;
decltype(ggml_vec_cvar_f32) __wrap_ggml_vec_cvar_f32;
decltype(ggml_vec_silu_f32) __wrap_ggml_vec_silu_f32;
decltype(ggml_vec_swiglu_f32) __wrap_ggml_vec_swiglu_f32;
decltype(quantize_row_q8_0) __wrap_quantize_row_q8_0;
decltype(ggml_vec_silu_f32) __real_ggml_vec_silu_f32;
decltype(ggml_vec_swiglu_f32) __real_ggml_vec_swiglu_f32;

bool foredraft_rope(const ggml_compute_params * params, ggml_tensor * dst);
#endif
}
