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
//   ggml_barrier                     where a graph's threads wait for each other (barrier.c).
//
// The linker replaces the barrier with `--defsym`, the others with `--wrap`: see build.rs.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "tiled/tiled.h"
#include "traits.h"

extern "C" {

decltype(ggml_cpu_extra_compute_forward) __wrap_ggml_cpu_extra_compute_forward;
decltype(ggml_cpu_extra_work_size) __wrap_ggml_cpu_extra_work_size;
decltype(ggml_compute_forward_mul_mat_tiled) __wrap_ggml_compute_forward_mul_mat_tiled;
decltype(ggml_compute_forward_mul_mat_id_tiled) __wrap_ggml_compute_forward_mul_mat_id_tiled;
// ggml's own, under the names that the linker gives them. A program without `--wrap` gets those of unwrapped.cpp.
decltype(ggml_cpu_extra_compute_forward) __real_ggml_cpu_extra_compute_forward;
decltype(ggml_cpu_extra_work_size) __real_ggml_cpu_extra_work_size;

decltype(ggml_barrier) foredraft_barrier;
}
