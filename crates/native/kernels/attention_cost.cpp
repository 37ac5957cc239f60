// Measures the time of attention on CPUs at a given depth, with and without flash attention. Only the attention of a few layers is
// computed, because filling a model's cache would take as long as decoding a prompt of that length.
#include "../guard.h"
#include "../native.h"

#include "ggml-alloc.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

namespace {

// The number of layers, each with its own keys and values.
constexpr int LAYERS = 4;
// The number of measured runs after one warm-up run. The fastest one counts.
constexpr int RUNS = 3;

struct Free {
    void operator()(ggml_context * context) const { ggml_free(context); }
    void operator()(ggml_backend * backend) const { ggml_backend_free(backend); }
    void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
};

// The time of one layer in microseconds. Negative: unknown. May throw.
double micros(const foredraft_attention & of, int32_t n_threads, ggml_threadpool * threads) {
    const ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const std::unique_ptr<ggml_backend, Free> backend(device == nullptr ? nullptr : ggml_backend_dev_init(device, nullptr));
    const std::unique_ptr<ggml_context, Free> context(ggml_init({ ggml_tensor_overhead() * 64 * LAYERS + ggml_graph_overhead(), nullptr, true }));
    if (!backend || !context) {
        return -1.0;
    }
    const ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    const auto set_threads
        = reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"));
    const auto set_pool = reinterpret_cast<void (*)(ggml_backend_t, ggml_threadpool *)>(
        ggml_backend_reg_get_proc_address(registry, "ggml_backend_cpu_set_threadpool"));
    if (set_threads == nullptr || set_pool == nullptr) {
        return -1.0;
    }
    set_threads(backend.get(), n_threads);
    set_pool(backend.get(), threads);

    ggml_context * ctx = context.get();
    ggml_cgraph * graph = ggml_new_graph(ctx);
    const float scale = 1.0f / std::sqrt(float(of.n_key));
    // The same layout as in llama.cpp (build_attn_mha): the heads of a cell are contiguous; without flash attention, V is transposed.
    for (int layer = 0; layer < LAYERS; ++layer) {
        ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, of.n_key, of.n_head, of.n_tokens);
        ggml_tensor * k = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, of.n_key, of.n_head_kv, of.n_cells);
        ggml_tensor * mask = ggml_new_tensor_2d(ctx, of.flash ? GGML_TYPE_F16 : GGML_TYPE_F32, of.n_cells, of.n_tokens);
        q = ggml_permute(ctx, q, 0, 2, 1, 3);
        k = ggml_permute(ctx, k, 0, 2, 1, 3);
        if (of.flash) {
            ggml_tensor * v = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, of.n_value, of.n_head_kv, of.n_cells);
            v = ggml_permute(ctx, v, 0, 2, 1, 3);
            ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, mask, scale, 0.0f, 0.0f);
            ggml_prec_set_acc(out, GGML_PREC_F32);
            ggml_build_forward_expand(graph, out);
        } else {
            ggml_tensor * v = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, of.n_cells, of.n_value, of.n_head_kv);
            ggml_tensor * scores = ggml_soft_max_ext(ctx, ggml_mul_mat(ctx, k, q), mask, scale, 0.0f);
            ggml_tensor * out = ggml_permute(ctx, ggml_mul_mat(ctx, v, scores), 0, 2, 1, 3);
            ggml_build_forward_expand(graph, ggml_cont_2d(ctx, out, int64_t(of.n_value) * of.n_head, of.n_tokens));
        }
    }
    const std::unique_ptr<ggml_backend_buffer, Free> buffer(ggml_backend_alloc_ctx_tensors(ctx, backend.get()));
    if (!buffer) {
        return -1.0;
    }
    ggml_backend_buffer_clear(buffer.get(), 0);

    double best = -1.0;
    for (int run = 0; run <= RUNS; ++run) {
        const auto start = std::chrono::steady_clock::now();
        if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS) {
            return -1.0;
        }
        const double time = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / LAYERS;
        best = run == 0 ? best : best < 0.0 ? time : std::min(best, time);
    }
    return best;
}

}  // namespace

double foredraft_attention_cost(foredraft_attention attention, int32_t n_threads, ggml_threadpool * threads, char * why, size_t why_size) {
    return guard::guarded<double>(-1.0, why, why_size, [&] { return micros(attention, n_threads, threads); });
}
