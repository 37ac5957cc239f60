// Products of quantized weights with few tokens on x86-64 CPUs with AVX-512 VNNI, which replaces llamafile's
// function (with the linker's `--wrap`, see build.rs). ggml calls it first, and multiplies itself if it returns false.
//
// Speculation needs forward passes of a few tokens that take little longer than one token's. ggml's loops compute one row of weights for one
// token at a time, so from two tokens on, arithmetic is their bottleneck. This kernel unpacks a block of 16 rows once for up to 16 tokens. A
// register holds four weights of each of the 16 rows, and one instruction multiplies them with four numbers of a token.
//
// It is batch-invariant: the operations of each result and their order do not depend on the other rows and tokens of the call, nor on the
// number of threads.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "ggml-cpu-impl.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define FOREDRAFT_MATMUL 1
#include "quantized_formats.h"
#endif

extern "C" {

// llamafile's function, for other formats. Weak, so that programs without `--wrap` link, too.
__attribute__((weak)) bool __real_llamafile_sgemm(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type, int c_type);
bool __wrap_llamafile_sgemm(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type, int c_type);

// ggml's kernel for blocks of 256 weights and 8 tokens or more. It adds in another order, so it is not used for this kernel's formats.
__attribute__((weak)) bool __real_ggml_compute_forward_mul_mat_tiled(const ggml_compute_params * params, ggml_tensor * dst);
bool __wrap_ggml_compute_forward_mul_mat_tiled(const ggml_compute_params * params, ggml_tensor * dst);
bool llamafile_sgemm(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type, int c_type);

}

#ifdef FOREDRAFT_MATMUL

namespace {

// The maximum number of tokens that are computed together. Their sums use 16 of 32 registers, the weights 8.
constexpr int TOKENS = 16;
// The number of tokens whose numbers are prepared together, small enough for a core's cache.
constexpr int PREPARED = 128;

// A part of 16 rows after it was unpacked.
template <typename Format> struct Unpacked {
    Ints weights[Format::WORDS];
    Floats scale, least;
    int part;
};

// A product of weights and tokens: row r of token t is at `to[t * to_stride + r]`.
struct Product {
    int64_t n_rows, n_tokens, n_blocks;
    const uint8_t * weights;
    size_t weights_stride;
    const uint8_t * tokens;
    size_t tokens_stride;
    float * to;
    int64_t to_stride;
};

// 16 rows of weights, of which the first `n` belong to the product.
struct Rows {
    const uint8_t * weights;
    size_t stride;
    int n;
    // Whether the rows behind them come next.
    bool fetches;
};

// Prefetches a block of 16 rows.
template <typename Format> inline void fetch(const uint8_t * ahead) {
    for (size_t line = 0; line < ROWS * sizeof(typename Format::Block); line += LINE) {
        _mm_prefetch(reinterpret_cast<const char *>(ahead + line), _MM_HINT_T1);
    }
}

template <typename Format> void unpack_rows(const Product & product, const Rows & rows, Unpacked<Format> * to) {
    for (int64_t block = 0; block < product.n_blocks; ++block) {
        if (rows.fetches) {
            fetch<Format>(rows.weights + ROWS * (rows.stride + block * sizeof(typename Format::Block)));
        }
        const auto store = [&](int part, const Ints * weights, Floats scale, Floats least) __attribute__((always_inline)) {
            std::copy(weights, weights + Format::WORDS, to->weights);
            to->scale = scale;
            to->least = least;
            to->part = part;
            ++to;
        };
        Format::unpack(rows.weights + block * sizeof(typename Format::Block), rows.stride, store);
    }
}

// Computes 16 rows for N tokens. `unpacked`: the rows, unpacked; NULL: no other tokens need them, so they are unpacked on the fly.
template <typename Format, int N>
void multiply_rows(const Product & product, const Rows & rows, const void * unpacked, const void * prepared, float * to) {
    const auto * numbers = static_cast<const typename Format::template Numbers<N> *>(prepared);
    const auto * part_of = static_cast<const Unpacked<Format> *>(unpacked);
    Floats sums[N];
    for (Floats & sum : sums) {
        sum = _mm512_setzero_ps();
    }
    for (int64_t block = 0; block < product.n_blocks; ++block) {
        if (part_of != nullptr) {
            for (int index = 0; index < Format::PARTS; ++index, ++part_of) {
                Format::add(part_of->part, part_of->weights, part_of->scale, part_of->least, numbers[block], sums);
            }
            continue;
        }
        if (rows.fetches) {
            fetch<Format>(rows.weights + ROWS * (rows.stride + block * sizeof(typename Format::Block)));
        }
        const auto add = [&](int part, const Ints * weights, Floats scale, Floats least) __attribute__((always_inline)) {
            Format::add(part, weights, scale, least, numbers[block], sums);
        };
        Format::unpack(rows.weights + block * sizeof(typename Format::Block), rows.stride, add);
    }
    const __mmask16 stored = __mmask16((1u << rows.n) - 1);
    for (int token = 0; token < N; ++token) {
        _mm512_mask_storeu_ps(to + token * product.to_stride, stored, sums[token]);
    }
}

template <typename Format, int N> void prepare(const Product & product, int64_t first, void * prepared) {
    auto * numbers = static_cast<typename Format::template Numbers<N> *>(prepared);
    for (int token = 0; token < N; ++token) {
        const uint8_t * from = product.tokens + (first + token) * product.tokens_stride;
        for (int64_t block = 0; block < product.n_blocks; ++block) {
            Format::template prepare<N>(from + block * sizeof(typename Format::Token), token, numbers[block]);
        }
    }
}

// The functions for a number of tokens that are computed together.
struct Kernel {
    size_t numbers_size;
    void (*prepare)(const Product &, int64_t, void *);
    void (*multiply_rows)(const Product &, const Rows &, const void *, const void *, float *);
};

template <typename Format, size_t... N> const Kernel & kernel(int n_tokens, std::index_sequence<N...>) {
    static const Kernel kernels[] = {
        { sizeof(typename Format::template Numbers<N + 1>), prepare<Format, N + 1>, multiply_rows<Format, N + 1> }...
    };
    return kernels[n_tokens - 1];
}

inline uint8_t * aligned(uint8_t * at) {
    return reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(at) + LINE - 1) & ~uintptr_t(LINE - 1));
}

// The calling thread's part of a product.
template <typename Format> void multiply(const Product & product, int thread, int n_threads) {
    // Each thread keeps its buffer, so only larger products allocate.
    thread_local std::vector<uint8_t> scratch;
    const auto kernel_of = [](int n_tokens) -> const Kernel & {
        return kernel<Format>(n_tokens, std::make_index_sequence<TOKENS>());
    };
    const auto part = [&](int64_t index) { return (product.n_rows + ROWS - 1) / ROWS * index / n_threads; };
    const int64_t begin = part(thread), end = part(thread + 1);
    const size_t row_size = product.n_blocks * sizeof(typename Format::Block);
    for (int64_t first = 0; first < product.n_tokens; first += PREPARED) {
        const int n_tokens = int(std::min<int64_t>(PREPARED, product.n_tokens - first));
        const int n_tiles = (n_tokens + TOKENS - 1) / TOKENS;
        const size_t tile_size = kernel_of(TOKENS).numbers_size * product.n_blocks;
        const size_t unpacked_size = n_tiles > 1 ? sizeof(Unpacked<Format>) * Format::PARTS * product.n_blocks : 0;
        const size_t needed = tile_size * n_tiles + unpacked_size + ROWS * row_size + 3 * LINE;
        if (scratch.size() < needed) {
            scratch.resize(needed);
        }
        uint8_t * prepared = aligned(scratch.data());
        uint8_t * unpacked = aligned(prepared + tile_size * n_tiles);
        uint8_t * copied = unpacked + unpacked_size;
        const auto tokens_of = [&](int tile) { return std::min(TOKENS, n_tokens - tile * TOKENS); };
        for (int tile = 0; tile < n_tiles; ++tile) {
            kernel_of(tokens_of(tile)).prepare(product, first + tile * TOKENS, prepared + tile * tile_size);
        }
        for (int64_t panel = begin; panel < end; ++panel) {
            const int64_t row = panel * ROWS;
            Rows rows { product.weights + row * product.weights_stride, product.weights_stride, ROWS, panel + 1 < end };
            if (row + ROWS > product.n_rows) {
                // The rows behind the last one are not ours to read.
                rows.n = int(product.n_rows - row);
                for (int at = 0; at < ROWS; ++at) {
                    memcpy(copied + at * row_size, rows.weights + std::min(at, rows.n - 1) * rows.stride, row_size);
                }
                rows.weights = copied;
                rows.stride = row_size;
            }
            if (n_tiles > 1) {
                unpack_rows<Format>(product, rows, reinterpret_cast<Unpacked<Format> *>(unpacked));
            }
            for (int tile = 0; tile < n_tiles; ++tile) {
                float * to = product.to + (first + tile * TOKENS) * product.to_stride + row;
                const void * of_rows = n_tiles > 1 ? unpacked : nullptr;
                kernel_of(tokens_of(tile)).multiply_rows(product, rows, of_rows, prepared + tile * tile_size, to);
            }
        }
    }
}

// Multiplies the calling thread's part if the token's format matches.
template <typename Format> bool try_multiply(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, ggml_type numbers, int b_type) {
    if (b_type != numbers) {
        return false;
    }
    const Product product {
        m, n, k,
        static_cast<const uint8_t *>(a), lda * sizeof(typename Format::Block),
        static_cast<const uint8_t *>(b), ldb * sizeof(typename Format::Token),
        static_cast<float *>(c), ldc,
    };
    multiply<Format>(product, params->ith, params->nth);
    return true;
}

bool try_multiply(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type) {
    const auto as = [&](auto format, ggml_type numbers) {
        return try_multiply<decltype(format)>(params, m, n, k, a, lda, b, ldb, c, ldc, numbers, b_type);
    };
    switch (a_type) {
        case GGML_TYPE_Q8_0: return as(Q8_0(), GGML_TYPE_Q8_0);
        case GGML_TYPE_Q4_0: return as(Q4_0(), GGML_TYPE_Q8_0);
        case GGML_TYPE_Q4_1: return as(Q4_1(), GGML_TYPE_Q8_1);
        case GGML_TYPE_Q4_K: return as(Q4_K(), GGML_TYPE_Q8_K);
        case GGML_TYPE_Q5_K: return as(Q5_K(), GGML_TYPE_Q8_K);
        case GGML_TYPE_Q6_K: return as(Q6_K(), GGML_TYPE_Q8_K);
        default: return false;
    }
}

// A bit for each ggml_type.
constexpr uint64_t FORMATS = uint64_t(1) << GGML_TYPE_Q8_0 | uint64_t(1) << GGML_TYPE_Q4_0 | uint64_t(1) << GGML_TYPE_Q4_1
    | uint64_t(1) << GGML_TYPE_Q4_K | uint64_t(1) << GGML_TYPE_Q5_K | uint64_t(1) << GGML_TYPE_Q6_K;

}  // namespace

#endif

extern "C" bool __wrap_llamafile_sgemm(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type, int c_type) {
#ifdef FOREDRAFT_MATMUL
    if (c_type == GGML_TYPE_F32 && try_multiply(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type)) {
        return true;
    }
#endif
    return __real_llamafile_sgemm != nullptr
        && __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type, c_type);
}

extern "C" bool __wrap_ggml_compute_forward_mul_mat_tiled(const ggml_compute_params * params, ggml_tensor * dst) {
#ifdef FOREDRAFT_MATMUL
    if ((FORMATS >> dst->src[0]->type & 1) != 0 && ggml_is_contiguous(dst->src[1])) {
        return false;
    }
#endif
    return __real_ggml_compute_forward_mul_mat_tiled != nullptr && __real_ggml_compute_forward_mul_mat_tiled(params, dst);
}

// The formats of weights that should keep the file's layout for this kernel, a bit for each ggml_type. ggml would repack them for its own
// kernels, which are faster with AMX.
extern "C" uint64_t foredraft_matmul_formats(void) {
#if defined(FOREDRAFT_MATMUL) && !defined(__AMX_INT8__)
    // Without `--wrap`, the functions differ. volatile, because the compiler assumes that they always do.
    const volatile auto called = &llamafile_sgemm;
    const volatile auto ours = &__wrap_llamafile_sgemm;
    return called == ours ? FORMATS : 0;
#else
    return 0;
#endif
}
