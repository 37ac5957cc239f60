// Times products of a matrix of weights with tokens on one core, by ggml's kernels and by ours at each level, with weights as in a file and in
// panels, with prefetches and (for one token) without: scripts/bench-products.sh builds it.
//
//     products ROWS WIDTH N_TOKENS REPEATS LEVEL...       (a level: 0, 1, ...; 3: AMX; -1: ggml)
//
// Prints milliseconds of CPU time for each format of weights, the least of REPEATS interleaved measurements.
#include "../../crates/native/kernels/table.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

extern "C" void foredraft_kernels_choose(int32_t level);
namespace foredraft {
ggml_backend_buffer_type_t panels();
}
// Replaced in the library; here there is one thread.
extern "C" void foredraft_barrier(void *) {}
extern "C" bool foredraft_plan_is_reference(const ggml_threadpool *) { return false; }
// Nothing is paused.
extern "C" const uint32_t * foredraft_pauses_of(const ggml_threadpool *) {
    static const uint32_t never = 0;
    return &never;
}
extern "C" const struct foredraft_output_rows * foredraft_output_rows_of(const ggml_threadpool *) { return nullptr; }
extern "C" bool foredraft_reads_smaller(const ggml_threadpool *) { return false; }
extern "C" const ggml_cgraph * foredraft_graph_of(const ggml_threadpool *) { return nullptr; }
extern "C" void foredraft_wait_while_paused(const ggml_threadpool *) {}
extern "C" const struct foredraft_interrupt * foredraft_load_interrupt() { return nullptr; }

static double now() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) * 1e3 + double(t.tv_nsec) * 1e-6;
}

struct Way {
    int level;
    ggml_backend_buffer_type_t layout;
    bool is_foreseen = false;
    ggml_context * ctx = nullptr;
    ggml_cgraph * graph = nullptr;
    ggml_backend_buffer_t weights = nullptr, tokens = nullptr;
    double least = 1e9;
};

int main(int n_args, char ** args) {
    if (n_args < 6) {
        return 2;
    }
    // Linux lets a process use AMX's tiles if it asks: ARCH_REQ_XCOMP_PERM, XTILEDATA. Without AMX this fails, and no such level is named.
    syscall(SYS_arch_prctl, 0x1023, 18);
    const int rows = atoi(args[1]), width = atoi(args[2]), n_tokens = atoi(args[3]), repeats = atoi(args[4]);
    const ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    for (const ggml_type type : { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
             GGML_TYPE_IQ4_XS, GGML_TYPE_MXFP4, GGML_TYPE_NVFP4, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q1_0, GGML_TYPE_Q2_0, GGML_TYPE_TQ1_0,
             GGML_TYPE_TQ2_0, GGML_TYPE_IQ1_S, GGML_TYPE_IQ1_M, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ2_S, GGML_TYPE_IQ3_XXS,
             GGML_TYPE_IQ3_S, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32 }) {
        const bool has_panels = ggml_is_quantized(type);
        uint32_t state = 1;
        const auto noise = [&] {
            state = state * 1664525 + 1013904223;
            return float(state >> 8) / float(1 << 23) - 1.0f;
        };
        // The same rows again and again: only their number matters.
        const int n_made = std::min(rows, 64);
        std::vector<float> made(size_t(n_made) * width), numbers(size_t(width) * n_tokens);
        std::generate(made.begin(), made.end(), noise);
        std::generate(numbers.begin(), numbers.end(), noise);
        const size_t of_row = ggml_row_size(type, width);
        const std::vector<float> importance(width, 1.0f);
        std::vector<char> quantized(of_row * rows);
        ggml_quantize_chunk(type, made.data(), quantized.data(), 0, n_made, width, importance.data());
        for (int row = n_made; row < rows; row += n_made) {
            memcpy(quantized.data() + row * of_row, quantized.data(), std::min(n_made, rows - row) * of_row);
        }
        std::vector<Way> ways;
        for (int at = 5; at < n_args; ++at) {
            const int level = atoi(args[at]);
            ways.push_back({ level, ggml_backend_cpu_buffer_type() });
            if (level >= 0 && has_panels) {
                ways.push_back({ level, foredraft::panels() });
                ways.push_back({ level, foredraft::panels(), true });
            }
        }
        for (Way & way : ways) {
            foredraft_kernels_choose(way.level);
            way.ctx = ggml_init({ size_t(64) << 20, nullptr, true });
            ggml_tensor * const weights = ggml_new_tensor_2d(way.ctx, type, width, rows);
            way.weights = ggml_backend_alloc_ctx_tensors_from_buft(way.ctx, way.layout);
            if (way.layout == foredraft::panels()) {
                static_cast<foredraft::PanelState *>(weights->extra)->is_foreseen = way.is_foreseen;
            }
            ggml_tensor * const tokens = ggml_new_tensor_2d(way.ctx, GGML_TYPE_F32, width, n_tokens);
            way.graph = ggml_new_graph(way.ctx);
            ggml_build_forward_expand(way.graph, ggml_mul_mat(way.ctx, weights, tokens));
            way.tokens = ggml_backend_alloc_ctx_tensors(way.ctx, cpu);
            ggml_backend_tensor_set(weights, quantized.data(), 0, quantized.size());
            ggml_backend_tensor_set(tokens, numbers.data(), 0, numbers.size() * sizeof(float));
        }
        const int n_runs = std::max(1, int(1.6e7 / (double(rows) * width * n_tokens)));
        for (int repeat = 0; repeat < repeats; ++repeat) {
            for (Way & way : ways) {
                foredraft_kernels_choose(way.level);
                ggml_backend_graph_compute(cpu, way.graph);
                const double start = now();
                for (int run = 0; run < n_runs; ++run) {
                    ggml_backend_graph_compute(cpu, way.graph);
                }
                way.least = std::min(way.least, (now() - start) / n_runs);
            }
        }
        printf("| %s |", ggml_type_name(type));
        for (const Way & way : ways) {
            printf(" %.3f |", way.least);
            if (way.level >= 0 && !has_panels) {
                printf(" | |");
            }
            ggml_backend_buffer_free(way.weights);
            ggml_backend_buffer_free(way.tokens);
            ggml_free(way.ctx);
        }
        puts("");
        fflush(stdout);
    }
    ggml_backend_free(cpu);
}
