// Everything that this library takes over from ggml, declared by ggml's own headers, so that a changed signature does not compile.
//
//   ggml_cpu_extra_compute_forward   ggml calls it first for each operation, for tensors in special buffers. Ours computes matrix products and
//                                    attention, and passes on everything else.
//   ggml_cpu_extra_work_size         its work buffer.
//   ggml_compute_forward_mul_mat_tiled, ggml_compute_forward_mul_mat_id_tiled
//                                    products with 8 tokens or more of formats that ours does not multiply. They add in another order than ggml's
//                                    other loops, so ours refuse.
//   llama_kv_cache_context::set_input_kq_mask
//                                    llama.cpp fills an attention mask. order.cpp also puts the order of positions beside it.
//   ggml_vec_soft_max_f32, ggml_vec_cvar_f32, ggml_vec_silu_f32, ggml_vec_swiglu_f32, quantize_row_q8_0
//                                    on AArch64, where ggml's round in another order than on x86-64 (rounding.cpp, rope.cpp).
//   sinf, cosf, sincosf, tanhf, erff, expf, exp2f, expm1f, logf, log2f, powf
//                                    of the C library: they give other bits in others (elementary.cpp, which includes nothing of ggml).
//   ggml_barrier                     where a graph's threads wait for each other (barrier.c).
//
// ggml's list of extra types of buffers (ggml_backend_cpu_get_extra_buffer_types) gets ours in the place of ggml's (panels.cpp).
//
// The linker replaces the barrier with `--defsym`, the others with `--wrap`: see build.rs.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "tiled/tiled.h"
#include "traits.h"
#if defined(__aarch64__)
#include "quants.h"
#include "vec.h"
#endif

extern "C" {

decltype(ggml_cpu_extra_compute_forward) __wrap_ggml_cpu_extra_compute_forward;
decltype(ggml_cpu_extra_work_size) __wrap_ggml_cpu_extra_work_size;
decltype(ggml_compute_forward_mul_mat_tiled) __wrap_ggml_compute_forward_mul_mat_tiled;
decltype(ggml_compute_forward_mul_mat_id_tiled) __wrap_ggml_compute_forward_mul_mat_id_tiled;
// ggml's own, under the names that the linker gives them. A program without `--wrap` gets those of unwrapped.cpp.
decltype(ggml_cpu_extra_compute_forward) __real_ggml_cpu_extra_compute_forward;
decltype(ggml_cpu_extra_work_size) __real_ggml_cpu_extra_work_size;

decltype(ggml_barrier) foredraft_barrier;

bool foredraft_elementary_is_linked(void);

#if defined(__aarch64__)
decltype(ggml_vec_soft_max_f32) __wrap_ggml_vec_soft_max_f32;
decltype(ggml_vec_cvar_f32) __wrap_ggml_vec_cvar_f32;
decltype(ggml_vec_silu_f32) __wrap_ggml_vec_silu_f32;
decltype(ggml_vec_swiglu_f32) __wrap_ggml_vec_swiglu_f32;
decltype(quantize_row_q8_0) __wrap_quantize_row_q8_0;
__attribute__((weak)) decltype(ggml_vec_silu_f32) __real_ggml_vec_silu_f32;
__attribute__((weak)) decltype(ggml_vec_swiglu_f32) __real_ggml_vec_swiglu_f32;

bool foredraft_order_is_linked(void);
bool foredraft_rounding_is_linked(void);
bool foredraft_rope(const ggml_compute_params * params, ggml_tensor * dst);
#endif
}
