// Passes ggml's operations to the kernels of the chosen level. Compiled for any processor.
#include "copies.h"
#include "linked.h"
#include "panels.h"
#include "states.h"

#include <atomic>

namespace {

using foredraft::Kernels;

// The levels that this library has kernels for, in the order of `Level` in levels.rs.
const Kernels * const LEVELS[] = {
#if defined(__x86_64__)
    &foredraft::avx2::KERNELS,
    &foredraft::avx_vnni::KERNELS,
    &foredraft::avx512_vnni::KERNELS,
#if defined(FOREDRAFT_AMX)
    &foredraft::avx512_vnni::KERNELS_WITH_AMX,
#endif
#elif defined(__aarch64__)
    &foredraft::neon::KERNELS,
    &foredraft::neon_dotprod::KERNELS,
    &foredraft::neon_i8mm::KERNELS,
#endif
    nullptr,
};

std::atomic<const Kernels *> chosen { nullptr };

// Calls in graphs that this thread started; the starting thread is the first thread of a graph.
thread_local uint64_t n_attentions = 0, n_products = 0, n_panel_products = 0, n_delta_nets = 0, n_copies = 0, n_states_in_place = 0;

bool is_in_panels(const ggml_tensor * weights) {
    const foredraft::PanelState * state = foredraft::panel_state(weights);
    return state != nullptr && foredraft::rows_in_file(*state) == nullptr;
}

// Whether the weights are in panels or as in the file. ggml's special buffers have other layouts.
bool is_readable(const ggml_tensor * weights) {
    const ggml_backend_buffer_t buffer = weights->view_src != nullptr ? weights->view_src->buffer : weights->buffer;
    return foredraft::panel_state(weights) != nullptr || buffer == nullptr || ggml_backend_buffer_is_host(buffer);
}

bool is_product(const ggml_tensor * op) { return (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && is_readable(op->src[0]); }

// Computes the operations that the chosen kernels compute, and leaves the others to ggml, which asks before it computes each operation.
struct SeamTraits final : ggml::cpu::tensor_traits {
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        const Kernels * ours = foredraft::kernels();
        if (is_product(op)) {
            if (ours != nullptr && ours->multiply(params, op)) {
                n_products += params->ith == 0;
                n_panel_products += params->ith == 0 && is_in_panels(op->src[0]);
                return true;
            }
        }
        // The thread's parameters are those of the operation before.
        params->use_ref = foredraft_plan_is_reference(params->threadpool);
        if (op->op == GGML_OP_GET_ROWS && foredraft::panel_state(op->src[0]) != nullptr) {
            foredraft::get_rows(params, op);
            return true;
        }
        if (ours != nullptr && op->op == GGML_OP_FLASH_ATTN_EXT && ours->attend(params, op)) {
            n_attentions += params->ith == 0;
            return true;
        }
        if (ours != nullptr && op->op == GGML_OP_GATED_DELTA_NET && ours->delta_net(params, op, foredraft::state_places(params, op))) {
            n_delta_nets += params->ith == 0;
            return true;
        }
        if (ours != nullptr && op->op == GGML_OP_GET_ROWS && foredraft::leaves_rows(params, op)) {
            n_states_in_place += params->ith == 0;
            return true;
        }
        if (ours != nullptr && op->op == GGML_OP_CPY && foredraft::is_written(params, op)) {
            return true;
        }
        if (ours != nullptr && foredraft::copy_floats(params, op)) {
            n_copies += params->ith == 0;
            return true;
        }
#if defined(__aarch64__)
        if (ours != nullptr && op->op == GGML_OP_ROPE && foredraft_rope(params, op)) {
            return true;
        }
#endif
        return false;
    }

    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const Kernels * ours = foredraft::kernels();
        if (ours != nullptr && is_product(op) && ours->can_multiply(op)) {
            size = ours->multiply_size(op);
            return true;
        }
        if (ours != nullptr && op->op == GGML_OP_FLASH_ATTN_EXT && ours->can_attend(op)) {
            size = ours->attention_size(op, n_threads);
            return true;
        }
        return false;
    }
};

}  // namespace

const Kernels * foredraft::kernels() { return chosen.load(std::memory_order_relaxed); }

ggml::cpu::tensor_traits * foredraft::seam_traits() {
    static SeamTraits traits;
    return &traits;
}

extern "C" {

bool foredraft_order_is_linked(void) { return foredraft::linked.order; }

bool foredraft_math_is_linked(void) {
#if defined(__aarch64__)
    return foredraft::linked.elementary && foredraft::linked.rounding;
#else
    return foredraft::linked.elementary;
#endif
}

uint64_t foredraft_masks(void) { return foredraft::n_masks.load(std::memory_order_relaxed); }

void foredraft_kernels_choose(int32_t level) {
    chosen.store(level < 0 ? nullptr : LEVELS[level], std::memory_order_relaxed);
    if (level >= 0) {
        foredraft::offer_panels();
    }
}

bool foredraft_kernels_multiply(int32_t type) {
    const Kernels * ours = foredraft::kernels();
    return ours != nullptr && ours->multiplies(static_cast<ggml_type>(type));
}

bool foredraft_barrier_is_linked(void) {
    const volatile auto called = &ggml_barrier;
    const volatile auto ours = &foredraft_barrier;
    return called == ours;
}

uint64_t foredraft_attentions(void) { return n_attentions; }
uint64_t foredraft_products(void) { return n_products; }
uint64_t foredraft_panel_products(void) { return n_panel_products; }
uint64_t foredraft_delta_nets(void) { return n_delta_nets; }
uint64_t foredraft_states_in_place(void) { return n_states_in_place; }
uint64_t foredraft_copies(void) { return n_copies; }
}
