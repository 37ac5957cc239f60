// Times products of a matrix of weights with tokens on one core, by ggml's kernels and by ours at each level: scripts/bench-products.sh builds it.
//
//     products ROWS WIDTH N_TOKENS REPEATS LEVEL...       (a level: 0, 1, ...; -1: ggml)
//
// Prints milliseconds of CPU time for each format of weights, the least of REPEATS interleaved measurements.
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

extern "C" void foredraft_kernels_choose(int32_t level);
// Replaced in the library; here there is one thread.
extern "C" void foredraft_barrier(void *) { }

static double now() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) * 1e3 + double(t.tv_nsec) * 1e-6;
}

int main(int n_args, char ** args) {
    if (n_args < 6) {
        return 2;
    }
    const int rows = atoi(args[1]), width = atoi(args[2]), n_tokens = atoi(args[3]), repeats = atoi(args[4]);
    const std::vector<char *> levels(args + 5, args + n_args);
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    for (const ggml_type type : { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
             GGML_TYPE_IQ4_XS, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K }) {
        ggml_context * const ctx = ggml_init({ size_t(64) << 20, nullptr, true });
        ggml_tensor * const weights = ggml_new_tensor_2d(ctx, type, width, rows);
        ggml_tensor * const tokens = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, width, n_tokens);
        ggml_cgraph * const graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, ggml_mul_mat(ctx, weights, tokens));
        const ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, cpu);
        uint32_t state = 1;
        const auto noise = [&] {
            state = state * 1664525 + 1013904223;
            return float(state >> 8) / float(1 << 23) - 1.0f;
        };
        // The same rows again and again: only their number matters.
        const int n_made = std::min(rows, 64);
        std::vector<float> made(size_t(n_made) * width);
        std::generate(made.begin(), made.end(), noise);
        std::generate_n(static_cast<float *>(tokens->data), size_t(width) * n_tokens, noise);
        ggml_quantize_chunk(type, made.data(), weights->data, 0, n_made, width, nullptr);
        for (int row = n_made; row < rows; row += n_made) {
            memcpy(static_cast<char *>(weights->data) + row * weights->nb[1], weights->data, std::min(n_made, rows - row) * weights->nb[1]);
        }
        const int n_runs = std::max(1, int(1.6e7 / (double(rows) * width * n_tokens)));
        std::vector<double> least(levels.size(), 1e9);
        for (int repeat = 0; repeat < repeats; ++repeat) {
            for (size_t at = 0; at < levels.size(); ++at) {
                foredraft_kernels_choose(atoi(levels[at]));
                ggml_backend_graph_compute(cpu, graph);
                const double start = now();
                for (int run = 0; run < n_runs; ++run) {
                    ggml_backend_graph_compute(cpu, graph);
                }
                least[at] = std::min(least[at], (now() - start) / n_runs);
            }
        }
        printf("| %s |", ggml_type_name(type));
        for (const double ms : least) {
            printf(" %.3f |", ms);
        }
        puts("");
        fflush(stdout);
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
    ggml_backend_free(cpu);
}
