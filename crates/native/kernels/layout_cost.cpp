// Times products of weights as in a file and in panels, with prefetches and without, for layouts.rs. Compiled for any processor.
//
// The weights are evicted from all caches before each product, so that a few MiB tell what a model of gigabytes does. Their values do not matter.
#include "../guard.h"
#include "native.h"
#include "panels.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <memory>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

constexpr int64_t WIDTH = 4096;
constexpr size_t BYTES = 4 << 20;
// After one to warm up. The fastest one counts.
constexpr int RUNS = 5;
// Any byte that makes no scale of a format infinite or denormal.
constexpr int FILLED = 0x22;

struct Free {
    void operator()(ggml_context * context) const { ggml_free(context); }
    void operator()(ggml_backend * backend) const { ggml_backend_free(backend); }
    void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
};

// Removes memory from all caches.
void evict(const void * memory, size_t size) {
    const auto * at = static_cast<const char *>(memory);
#if defined(__x86_64__)
    // CLFLUSHOPT, where the processor has it (since 2015), does not wait for each line: 1 ms instead of 10.
    unsigned a, b, c, d;
    const bool has_optimized = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 23 & 1) != 0;
    for (size_t line = 0; line < size; line += 64) {
        if (has_optimized) {
            asm volatile(".byte 0x66; clflush %0" : : "m"(at[line]) : "memory");
        } else {
            _mm_clflush(at + line);
        }
    }
    _mm_mfence();
#elif defined(__aarch64__)
    for (size_t line = 0; line < size; line += 64) {
        asm volatile("dc civac, %0" : : "r"(at + line) : "memory");
    }
    asm volatile("dsb sy" : : : "memory");
#endif
}

// A product of weights in one layout with one token.
struct Layout {
    std::unique_ptr<ggml_context, Free> context;
    std::unique_ptr<ggml_backend_buffer, Free> weights_buffer, token_buffer;
    ggml_tensor * weights = nullptr;
    ggml_cgraph * graph = nullptr;

    bool make(ggml_backend_buffer_type_t type, ggml_backend_t backend, ggml_type format, int64_t n_rows) {
        context.reset(ggml_init({ ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true }));
        if (!context) {
            return false;
        }
        weights = ggml_new_tensor_2d(context.get(), format, WIDTH, n_rows);
        weights_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), type));
        ggml_tensor * token = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, WIDTH);
        graph = ggml_new_graph(context.get());
        ggml_build_forward_expand(graph, ggml_mul_mat(context.get(), weights, token));
        token_buffer.reset(ggml_backend_alloc_ctx_tensors(context.get(), backend));
        if (!weights_buffer || !token_buffer) {
            return false;
        }
        ggml_backend_buffer_clear(token_buffer.get(), 0);
        return true;
    }
};

}  // namespace

extern "C" {

bool foredraft_has_panels(int32_t type) {
    const foredraft::Kernels * ours = foredraft::kernels();
    return ours != nullptr && ours->has_panels(static_cast<ggml_type>(type));
}

bool foredraft_layout_cost(int32_t type, foredraft_layout_costs * costs, char * why, size_t why_size) {
    return guard::guarded<bool>(false, why, why_size, [&] {
        const auto format = static_cast<ggml_type>(type);
        const std::unique_ptr<ggml_backend, Free> backend(ggml_backend_cpu_init());
        if (!backend || foredraft::kernels() == nullptr) {
            return false;
        }
        ggml_backend_cpu_set_n_threads(backend.get(), 1);
        const int64_t lanes = foredraft::kernels()->lanes, n_rows = int64_t(BYTES / ggml_row_size(format, WIDTH)) / lanes * lanes;
        Layout in_file, in_panels;
        if (!in_file.make(ggml_backend_cpu_buffer_type(), backend.get(), format, n_rows)
            || !in_panels.make(foredraft::panels(), backend.get(), format, n_rows)) {
            return false;
        }
        const size_t size = ggml_nbytes(in_file.weights);
#if defined(__linux__)
        // Files are mapped in small pages.
        constexpr uintptr_t PAGE = 4096;
        const uintptr_t first = (reinterpret_cast<uintptr_t>(in_file.weights->data) + PAGE - 1) / PAGE * PAGE;
        madvise(reinterpret_cast<void *>(first), size - PAGE, MADV_NOHUGEPAGE);
#endif
        memset(in_file.weights->data, FILLED, size);
        ggml_backend_tensor_set(in_panels.weights, in_file.weights->data, 0, size);
        auto & panels = *static_cast<foredraft::PanelState *>(in_panels.weights->extra);
        const struct {
            const Layout & layout;
            bool is_foreseen;
            double & micros;
        } ways[] = { { in_file, false, costs->file }, { in_panels, false, costs->prefetched }, { in_panels, true, costs->foreseen } };
        for (int run = 0; run <= RUNS; ++run) {
            for (const auto & [layout, is_foreseen, least] : ways) {
                panels.is_foreseen = is_foreseen;
                evict(layout.weights->data, size);
                const auto start = std::chrono::steady_clock::now();
                if (ggml_backend_graph_compute(backend.get(), layout.graph) != GGML_STATUS_SUCCESS) {
                    return false;
                }
                const double micros = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
                least = run <= 1 ? micros : std::min(least, micros);
            }
        }
        return true;
    });
}
}
