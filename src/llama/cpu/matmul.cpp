// Products of quantized weights with few tokens on x86-64 CPUs with AVX-512 VNNI, in place of llamafile's (the linker's `--wrap` puts it
// there: see build.rs). ggml asks llamafile first and multiplies by itself what llamafile leaves to it.
//
// Speculation lives on forward passes of a few tokens that cost hardly more than one. ggml's loops compute one row of weights for one token
// at a time, so that from the second token on they are bound by arithmetic. This kernel unpacks a block of 16 rows once for up to 16 tokens: a
// register holds four weights of each of the 16 rows, and one instruction multiplies them with four numbers of a token.
//
// It is batch-invariant: each result is the sum of the same operations in the same order, whatever other rows and tokens are computed
// with it and however many threads there are.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-cpu-impl.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#define FOREDRAFT_MATMUL 1
#include <immintrin.h>
#endif

extern "C" {

// llamafile's own, for what this one does not know. Weak, so that a program whose linker was not told to replace it links, too.
__attribute__((weak)) bool __real_llamafile_sgemm(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type, int c_type);
bool __wrap_llamafile_sgemm(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type, int c_type);

// ggml's kernel for blocks of 256 weights and 8 tokens or more. It adds up in another order, so it gets none of ours.
__attribute__((weak)) bool __real_ggml_compute_forward_mul_mat_tiled(const ggml_compute_params * params, ggml_tensor * dst);
bool __wrap_ggml_compute_forward_mul_mat_tiled(const ggml_compute_params * params, ggml_tensor * dst);
bool llamafile_sgemm(
    const ggml_compute_params * params, int64_t m, int64_t n, int64_t k, const void * a, int64_t lda, const void * b, int64_t ldb,
    void * c, int64_t ldc, int a_type, int b_type, int c_type);

}

namespace {

std::atomic<bool> is_enabled { true };

}  // namespace

// For benchmarks: false leaves everything to ggml.
extern "C" void foredraft_matmul_enable(bool enabled) { is_enabled.store(enabled, std::memory_order_relaxed); }

#ifdef FOREDRAFT_MATMUL

namespace {

// Rows of weights that are computed together: a lane of a register each.
constexpr int ROWS = 16;
// Most tokens that are computed together: with 8 registers of weights, their sums have 16 of 32.
constexpr int TOKENS = 16;
// Tokens whose numbers are prepared at once, so that they stay in a core's cache while the weights go by.
constexpr int PREPARED = 128;
constexpr int LINE = 64;

using Ints = __m512i;
using Floats = __m512;

inline uint16_t half_at(const uint8_t * at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return half;
}

inline float number(const uint8_t * at) { return _cvtsh_ss(half_at(at)); }

// The F16 number at the same place of each row. Put together in general registers: the vector units have enough to do.
inline Floats numbers(const uint8_t * at, size_t stride) {
    uint64_t four[4];
    for (int group = 0; group < 4; ++group) {
        const uint8_t * first = at + 4 * group * stride;
        four[group] = uint64_t(half_at(first)) | uint64_t(half_at(first + stride)) << 16 | uint64_t(half_at(first + 2 * stride)) << 32
            | uint64_t(half_at(first + 3 * stride)) << 48;
    }
    return _mm512_cvtph_ps(_mm256_set_epi64x(four[3], four[2], four[1], four[0]));
}

// Four registers with four 32-bit words of each of four rows: word w of all of them in `word[w]`.
inline void transpose(const Ints (&rows)[4], Ints * word) {
    const Ints a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const Ints c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    word[0] = _mm512_unpacklo_epi64(a, c);
    word[1] = _mm512_unpackhi_epi64(a, c);
    word[2] = _mm512_unpacklo_epi64(b, d);
    word[3] = _mm512_unpackhi_epi64(b, d);
}

inline __m128i load_16(const uint8_t * at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at)); }
inline __m256i load_32(const uint8_t * at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)); }

// 16 bytes of each row: their four words.
inline void load_words_4(const uint8_t * at, size_t stride, Ints * word) {
    Ints rows[4];
    for (int row = 0; row < 4; ++row) {
        const uint8_t * first = at + row * stride;
        Ints joined = _mm512_castsi128_si512(load_16(first));
        joined = _mm512_inserti32x4(joined, load_16(first + 4 * stride), 1);
        joined = _mm512_inserti32x4(joined, load_16(first + 8 * stride), 2);
        rows[row] = _mm512_inserti32x4(joined, load_16(first + 12 * stride), 3);
    }
    transpose(rows, word);
}

// 32 bytes of each row: their eight words.
inline void load_words_8(const uint8_t * at, size_t stride, Ints * word) {
    Ints half[2][4];
    for (int part = 0; part < 2; ++part) {
        Ints rows[4];
        for (int row = 0; row < 4; ++row) {
            const uint8_t * first = at + (8 * part + row) * stride;
            rows[row] = _mm512_inserti64x4(_mm512_castsi256_si512(load_32(first)), load_32(first + 4 * stride), 1);
        }
        transpose(rows, half[part]);
    }
    for (int at_word = 0; at_word < 4; ++at_word) {
        word[at_word] = _mm512_shuffle_i64x2(half[0][at_word], half[1][at_word], 0x88);
        word[at_word + 4] = _mm512_shuffle_i64x2(half[0][at_word], half[1][at_word], 0xdd);
    }
}

// Four numbers of a token, for all rows.
inline Ints broadcast(const int8_t * at) {
    int32_t four;
    memcpy(&four, at, sizeof four);
    return _mm512_set1_epi32(four);
}

// sum + weights * numbers, `N` words of them.
template <int N> inline Ints dot(Ints sum, const Ints * weights, const int8_t * numbers) {
    for (int word = 0; word < N; ++word) {
        sum = _mm512_dpbusd_epi32(sum, weights[word], broadcast(numbers + 4 * word));
    }
    return sum;
}

inline int sum_of_32(const int8_t * at) {
    const __m256i four = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

// Each format of weights says how long its blocks are, prepares the numbers of a token that are multiplied with such a block (`Numbers`), and
// adds the product of a block of all rows and each token's to the sums.

// Blocks of 32 weights that have one scale: weight = scale * (unsigned weight - OFFSET).
template <int OFFSET> struct Scaled {
    template <int N> struct Numbers {
        int8_t numbers[N][32];
        float scale[N];
        // What the offset adds to the sum of products.
        int32_t correction[N];
    };

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) {
        const auto * from = reinterpret_cast<const block_q8_0 *>(block);
        memcpy(to.numbers[token], from->qs, 32);
        to.scale[token] = number(block + offsetof(block_q8_0, d));
        to.correction[token] = -OFFSET * sum_of_32(from->qs);
    }

    template <int N> static void multiply(const Ints (&weights)[8], Floats scale, const Numbers<N> & of, Floats (&sums)[N]) {
#pragma GCC unroll 16
        for (int token = 0; token < N; ++token) {
            const Ints sum = dot<8>(_mm512_set1_epi32(of.correction[token]), weights, of.numbers[token]);
            sums[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(of.scale[token])), sums[token]);
        }
    }
};

struct Q8_0 : Scaled<128> {
    using Block = block_q8_0;
    using Token = block_q8_0;

    template <int N> static void add(const uint8_t * at, size_t stride, const Numbers<N> & of, Floats (&sums)[N]) {
        Ints weights[8];
        load_words_8(at + offsetof(Block, qs), stride, weights);
        for (Ints & word : weights) {
            word = _mm512_xor_si512(word, _mm512_set1_epi8(char(0x80)));
        }
        multiply(weights, numbers(at + offsetof(Block, d), stride), of, sums);
    }
};

// Words of packed 4-bit weights: the low ones are weights 0 to 15, the high ones 16 to 31.
inline void unpack_4_bits(const uint8_t * at, size_t stride, Ints * weights) {
    Ints packed[4];
    load_words_4(at, stride, packed);
    const Ints mask = _mm512_set1_epi8(0x0f);
    for (int word = 0; word < 4; ++word) {
        weights[word] = _mm512_and_si512(packed[word], mask);
        weights[word + 4] = _mm512_and_si512(_mm512_srli_epi16(packed[word], 4), mask);
    }
}

struct Q4_0 : Scaled<8> {
    using Block = block_q4_0;
    using Token = block_q8_0;

    template <int N> static void add(const uint8_t * at, size_t stride, const Numbers<N> & of, Floats (&sums)[N]) {
        Ints weights[8];
        unpack_4_bits(at + offsetof(Block, qs), stride, weights);
        multiply(weights, numbers(at + offsetof(Block, d), stride), of, sums);
    }
};

// weight = scale * unsigned weight + least.
struct Q4_1 {
    using Block = block_q4_1;
    using Token = block_q8_1;

    template <int N> struct Numbers {
        int8_t numbers[N][32];
        float scale[N];
        // The sum of the token's numbers.
        float sum[N];
    };

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) {
        memcpy(to.numbers[token], reinterpret_cast<const Token *>(block)->qs, 32);
        to.scale[token] = number(block);
        to.sum[token] = number(block + sizeof(uint16_t));
    }

    template <int N> static void add(const uint8_t * at, size_t stride, const Numbers<N> & of, Floats (&sums)[N]) {
        Ints weights[8];
        unpack_4_bits(at + offsetof(Block, qs), stride, weights);
        const Floats scale = numbers(at, stride), least = numbers(at + sizeof(uint16_t), stride);
#pragma GCC unroll 16
        for (int token = 0; token < N; ++token) {
            const Ints sum = dot<8>(_mm512_setzero_si512(), weights, of.numbers[token]);
            sums[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(of.scale[token])), sums[token]);
            sums[token] = _mm512_fmadd_ps(least, _mm512_set1_ps(of.sum[token]), sums[token]);
        }
    }
};

// Numbers of a token for blocks of 256 weights.
template <int N> struct LongNumbers {
    int8_t numbers[N][QK_K];
    float scale[N];
    // The sums of 16 numbers each.
    int32_t sums[N][QK_K / 16];
};

template <int N> inline void prepare_long(const uint8_t * block, int token, LongNumbers<N> & to) {
    const auto * from = reinterpret_cast<const block_q8_K *>(block);
    memcpy(to.numbers[token], from->qs, QK_K);
    to.scale[token] = from->d;
    for (int part = 0; part < QK_K / 16; ++part) {
        to.sums[token][part] = from->bsums[part];
    }
}

// The 6-bit scales and minima of 8 parts of a block (Q4_K, Q5_K), as bytes.
inline void unpack_scales(const uint8_t * packed, uint8_t * bytes) {
    uint32_t words[3], unpacked[4];
    memcpy(words, packed, sizeof words);
    unpacked[0] = words[0] & 0x3f3f3f3f;
    unpacked[1] = (words[2] & 0x0f0f0f0f) | ((words[0] >> 6 & 0x03030303) << 4);
    unpacked[2] = words[1] & 0x3f3f3f3f;
    unpacked[3] = (words[2] >> 4 & 0x0f0f0f0f) | ((words[1] >> 6 & 0x03030303) << 4);
    memcpy(bytes, unpacked, sizeof unpacked);
}

inline Floats byte_of(Ints words, int byte) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(words, 8 * byte), _mm512_set1_epi32(0xff)));
}

// Q4_K, and Q5_K with a fifth bit: blocks of 256 weights, each 32 of which have a scale and a minimum of their own.
template <typename OfBlock, bool FIFTH_BIT> struct WithMinima {
    using Block = OfBlock;
    using Token = block_q8_K;
    template <int N> using Numbers = LongNumbers<N>;

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) { prepare_long(block, token, to); }

    template <int N> static void add(const uint8_t * at, size_t stride, const Numbers<N> & of, Floats (&sums)[N]) {
        alignas(64) uint8_t bytes[ROWS][16];
        for (int row = 0; row < ROWS; ++row) {
            unpack_scales(at + row * stride + offsetof(Block, scales), bytes[row]);
        }
        // Words 0 and 1: scales, 2 and 3: minima.
        Ints parts[4];
        load_words_4(bytes[0], 16, parts);
        const Floats scale = numbers(at, stride), least = numbers(at + sizeof(uint16_t), stride);
        Ints fifth[8];
        if constexpr (FIFTH_BIT) {
            load_words_8(at + offsetof(block_q5_K, qh), stride, fifth);
        }
        for (int pair = 0; pair < 4; ++pair) {
            Ints packed[8], weights[2][8];
            load_words_8(at + offsetof(Block, qs) + 32 * pair, stride, packed);
            const Ints mask = _mm512_set1_epi8(0x0f);
            for (int word = 0; word < 8; ++word) {
                weights[0][word] = _mm512_and_si512(packed[word], mask);
                weights[1][word] = _mm512_and_si512(_mm512_srli_epi16(packed[word], 4), mask);
                if constexpr (FIFTH_BIT) {
                    const Ints bit = _mm512_set1_epi8(0x10);
                    const Ints low = _mm512_slli_epi16(fifth[word], 4), high = _mm512_slli_epi16(fifth[word], 3);
                    weights[0][word] = _mm512_or_si512(weights[0][word], _mm512_and_si512(low, bit));
                    weights[1][word] = _mm512_or_si512(weights[1][word], _mm512_and_si512(high, bit));
                    fifth[word] = _mm512_srli_epi16(fifth[word], 2);
                }
            }
            for (int half = 0; half < 2; ++half) {
                const int part = 2 * pair + half;
                const Floats of_part = _mm512_mul_ps(scale, byte_of(parts[part / 4], part % 4));
                const Floats least_of_part = _mm512_mul_ps(least, byte_of(parts[2 + part / 4], part % 4));
#pragma GCC unroll 16
                for (int token = 0; token < N; ++token) {
                    const Ints sum = dot<8>(_mm512_setzero_si512(), weights[half], of.numbers[token] + 32 * part);
                    const Floats of_token = _mm512_set1_ps(of.scale[token]);
                    const float total = of.scale[token] * float(of.sums[token][2 * part] + of.sums[token][2 * part + 1]);
                    sums[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(of_part, of_token), sums[token]);
                    sums[token] = _mm512_fnmadd_ps(least_of_part, _mm512_set1_ps(total), sums[token]);
                }
            }
        }
    }
};

using Q4_K = WithMinima<block_q4_K, false>;
using Q5_K = WithMinima<block_q5_K, true>;

// Blocks of 256 weights of 6 bits, each 16 of which have a scale of their own.
struct Q6_K {
    using Block = block_q6_K;
    using Token = block_q8_K;
    template <int N> using Numbers = LongNumbers<N>;

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) { prepare_long(block, token, to); }

    template <int N> static void add(const uint8_t * at, size_t stride, const Numbers<N> & of, Floats (&sums)[N]) {
        Ints parts[4];
        load_words_4(at + offsetof(Block, scales), stride, parts);
        const Floats scale = numbers(at + offsetof(Block, d), stride);
        const Ints four_bits = _mm512_set1_epi8(0x0f), two_bits = _mm512_set1_epi8(0x30);
        for (int half = 0; half < 2; ++half) {
            Ints high[8];
            load_words_8(at + offsetof(Block, qh) + 32 * half, stride, high);
            for (int pair = 0; pair < 2; ++pair) {
                // A byte has the low bits of two weights, 64 apart.
                Ints packed[8], weights[2][8];
                load_words_8(at + offsetof(Block, ql) + 64 * half + 32 * pair, stride, packed);
                for (int word = 0; word < 8; ++word) {
                    const Ints low_high = pair == 0 ? _mm512_slli_epi16(high[word], 4) : _mm512_slli_epi16(high[word], 2);
                    const Ints high_high = pair == 0 ? high[word] : _mm512_srli_epi16(high[word], 2);
                    const Ints low = _mm512_and_si512(packed[word], four_bits);
                    const Ints upper = _mm512_and_si512(_mm512_srli_epi16(packed[word], 4), four_bits);
                    weights[0][word] = _mm512_or_si512(low, _mm512_and_si512(low_high, two_bits));
                    weights[1][word] = _mm512_or_si512(upper, _mm512_and_si512(high_high, two_bits));
                }
                for (int sixteen = 0; sixteen < 4; ++sixteen) {
                    const int part = 8 * half + 4 * (sixteen / 2) + 2 * pair + sixteen % 2;
                    const Ints byte = _mm512_slli_epi32(parts[part / 4], 24 - 8 * (part % 4));
                    const Floats of_part = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_srai_epi32(byte, 24)));
#pragma GCC unroll 16
                    for (int token = 0; token < N; ++token) {
                        const Ints correction = _mm512_set1_epi32(-32 * of.sums[token][part]);
                        const Ints sum = dot<4>(correction, weights[sixteen / 2] + 4 * (sixteen % 2), of.numbers[token] + 16 * part);
                        const Floats of_token = _mm512_set1_ps(of.scale[token]);
                        sums[token] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(of_part, of_token), sums[token]);
                    }
                }
            }
        }
    }
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

// 16 rows for N tokens, of which `n_rows` are stored. What is 16 rows ahead is fetched meanwhile: it comes next.
template <typename Format, int N>
void multiply_rows(const Product & product, const uint8_t * weights, size_t stride, const void * prepared, float * to, int n_rows, bool fetches) {
    const auto * numbers = static_cast<const typename Format::template Numbers<N> *>(prepared);
    const uint8_t * ahead = weights + ROWS * stride;
    Floats sums[N];
    for (Floats & sum : sums) {
        sum = _mm512_setzero_ps();
    }
    for (int64_t block = 0; block < product.n_blocks; ++block) {
        if (fetches) {
            for (size_t line = 0; line < ROWS * sizeof(typename Format::Block); line += LINE) {
                _mm_prefetch(reinterpret_cast<const char *>(ahead + line), _MM_HINT_T1);
            }
            ahead += ROWS * sizeof(typename Format::Block);
        }
        Format::add(weights + block * sizeof(typename Format::Block), stride, numbers[block], sums);
    }
    const __mmask16 stored = __mmask16((1u << n_rows) - 1);
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

// What depends on the number of tokens that are computed together.
struct Kernel {
    size_t numbers_size;
    void (*prepare)(const Product &, int64_t, void *);
    void (*multiply_rows)(const Product &, const uint8_t *, size_t, const void *, float *, int, bool);
};

template <typename Format, size_t... N> const Kernel & kernel(int n_tokens, std::index_sequence<N...>) {
    static const Kernel kernels[] = {
        { sizeof(typename Format::template Numbers<N + 1>), prepare<Format, N + 1>, multiply_rows<Format, N + 1> }...
    };
    return kernels[n_tokens - 1];
}

// The calling thread's part of a product.
template <typename Format> void multiply(const Product & product, int thread, int n_threads) {
    // Kept by each thread: a product needs no memory once it was as large.
    thread_local std::vector<uint8_t> scratch;
    const auto part = [&](int64_t index) { return (product.n_rows + ROWS - 1) / ROWS * index / n_threads; };
    const int64_t begin = part(thread), end = part(thread + 1);
    const size_t row_size = product.n_blocks * sizeof(typename Format::Block);
    for (int64_t first = 0; first < product.n_tokens; first += PREPARED) {
        const int64_t last = std::min<int64_t>(first + PREPARED, product.n_tokens);
        const auto tile = [&](int64_t token) -> const Kernel & {
            return kernel<Format>(int(std::min<int64_t>(TOKENS, last - token)), std::make_index_sequence<TOKENS>());
        };
        const size_t tile_size = kernel<Format>(TOKENS, std::make_index_sequence<TOKENS>()).numbers_size * product.n_blocks;
        const size_t needed = tile_size * ((last - first + TOKENS - 1) / TOKENS) + ROWS * row_size + 2 * LINE;
        if (scratch.size() < needed) {
            scratch.resize(needed);
        }
        auto * prepared = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(scratch.data()) + LINE - 1) & ~uintptr_t(LINE - 1));
        uint8_t * rest = prepared + tile_size * ((last - first + TOKENS - 1) / TOKENS);
        for (int64_t token = first; token < last; token += TOKENS) {
            tile(token).prepare(product, token, prepared + tile_size * ((token - first) / TOKENS));
        }
        for (int64_t panel = begin; panel < end; ++panel) {
            const int64_t row = panel * ROWS;
            const int n_rows = int(std::min<int64_t>(ROWS, product.n_rows - row));
            const uint8_t * weights = product.weights + row * product.weights_stride;
            size_t stride = product.weights_stride;
            if (n_rows < ROWS) {
                // The rows behind the last one are not ours to read.
                for (int at = 0; at < ROWS; ++at) {
                    memcpy(rest + at * row_size, weights + std::min(at, n_rows - 1) * stride, row_size);
                }
                weights = rest;
                stride = row_size;
            }
            for (int64_t token = first; token < last; token += TOKENS) {
                const uint8_t * numbers = prepared + tile_size * ((token - first) / TOKENS);
                float * to = product.to + token * product.to_stride + row;
                tile(token).multiply_rows(product, weights, stride, numbers, to, n_rows, token == first && n_rows == ROWS);
            }
        }
    }
}

// Multiplies the calling thread's part, if it is this format.
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
    if (c_type == GGML_TYPE_F32 && is_enabled.load(std::memory_order_relaxed)
        && try_multiply(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type)) {
        return true;
    }
#endif
    return __real_llamafile_sgemm != nullptr
        && __real_llamafile_sgemm(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type, c_type);
}

extern "C" bool __wrap_ggml_compute_forward_mul_mat_tiled(const ggml_compute_params * params, ggml_tensor * dst) {
#ifdef FOREDRAFT_MATMUL
    if (is_enabled.load(std::memory_order_relaxed) && (FORMATS >> dst->src[0]->type & 1) != 0 && ggml_is_contiguous(dst->src[1])) {
        return false;
    }
#endif
    return __real_ggml_compute_forward_mul_mat_tiled != nullptr && __real_ggml_compute_forward_mul_mat_tiled(params, dst);
}

// The formats of weights that are better left as they are in the file for this kernel, a bit for each ggml_type: ggml would pack them for
// kernels of its own. With AMX those are faster.
extern "C" uint64_t foredraft_matmul_formats(void) {
#if defined(FOREDRAFT_MATMUL) && !defined(__AMX_INT8__)
    // The linker may not have put it in place; the compiler is not to know that two functions may be one.
    const volatile auto called = &llamafile_sgemm;
    const volatile auto ours = &__wrap_llamafile_sgemm;
    return called == ours ? FORMATS : 0;
#else
    return 0;
#endif
}
