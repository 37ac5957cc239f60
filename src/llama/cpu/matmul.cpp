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

namespace {

std::atomic<bool> is_enabled { true };

}  // namespace

// For benchmarks: with false, ggml multiplies everything.
extern "C" void foredraft_matmul_enable(bool enabled) { is_enabled.store(enabled, std::memory_order_relaxed); }

#ifdef FOREDRAFT_MATMUL

namespace {

// Rows of weights that are computed together: a lane of a register each.
constexpr int ROWS = 16;
// The maximum number of tokens that are computed together. Their sums use 16 of 32 registers, the weights 8.
constexpr int TOKENS = 16;
// The number of tokens whose numbers are prepared together, small enough for a core's cache.
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

// The F16 number at the same offset of each row. They are combined in general registers, because the vector units are busy.
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

// Tokens whose products are computed by turns: an instruction waits for the one before it on the same sum.
constexpr int TURNS = 4;

// Adds the products of a part and each token to the sums: `WORDS` words of weights, of which the first is at number `at` of a token. `first(token)`
// is where its sum of products begins, and `add(token, sum)` takes it.
template <int WORDS, int N, size_t SIZE, typename First, typename Add>
inline void dot(const Ints * weights, const int8_t (&numbers)[N][SIZE], int at, First first, Add add) {
#pragma GCC unroll 4
    for (int begin = 0; begin < N; begin += TURNS) {
        Ints sums[TURNS];
        const int end = begin + TURNS < N ? begin + TURNS : N;
#pragma GCC unroll 4
        for (int token = begin; token < end; ++token) {
            sums[token - begin] = first(token);
        }
#pragma GCC unroll 8
        for (int word = 0; word < WORDS; ++word) {
#pragma GCC unroll 4
            for (int token = begin; token < end; ++token) {
                sums[token - begin] = _mm512_dpbusd_epi32(sums[token - begin], weights[word], broadcast(numbers[token] + at + 4 * word));
            }
        }
#pragma GCC unroll 4
        for (int token = begin; token < end; ++token) {
            add(token, _mm512_cvtepi32_ps(sums[token - begin]));
        }
    }
}

inline int sum_of_32(const int8_t * at) {
    const __m256i four = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(four), _mm256_extracti128_si256(four, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

// Each format of weights defines the types of its blocks. It unpacks a block of 16 rows in parts that have one scale, and perhaps one minimum, for
// each row (`unpack`), prepares the numbers of a token for a block (`prepare`), and adds the products of a part with each token to the sums (`add`).

// Blocks of 32 weights that have one scale: weight = scale * (unsigned weight - OFFSET).
template <int OFFSET> struct Scaled {
    static constexpr int PARTS = 1, WORDS = 8;
    using Token = block_q8_0;

    template <int N> struct Numbers {
        int8_t numbers[N][32];
        float scale[N];
        // What the offset adds to the sum of products.
        int32_t correction[N];
    };

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) {
        const auto * from = reinterpret_cast<const Token *>(block);
        memcpy(to.numbers[token], from->qs, 32);
        to.scale[token] = number(block + offsetof(Token, d));
        to.correction[token] = -OFFSET * sum_of_32(from->qs);
    }

    template <int N> static void add(int, const Ints * weights, Floats scale, Floats, const Numbers<N> & of, Floats (&sums)[N]) {
        const auto first = [&](int token) { return _mm512_set1_epi32(of.correction[token]); };
        dot<WORDS>(weights, of.numbers, 0, first, [&](int token, Floats sum) {
            sums[token] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(of.scale[token])), sums[token]);
        });
    }
};

struct Q8_0 : Scaled<128> {
    using Block = block_q8_0;

    template <typename Use> static void unpack(const uint8_t * at, size_t stride, Use use) {
        Ints weights[8];
        load_words_8(at + offsetof(Block, qs), stride, weights);
        for (Ints & word : weights) {
            word = _mm512_xor_si512(word, _mm512_set1_epi8(char(0x80)));
        }
        use(0, weights, numbers(at + offsetof(Block, d), stride), _mm512_setzero_ps());
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

    template <typename Use> static void unpack(const uint8_t * at, size_t stride, Use use) {
        Ints weights[8];
        unpack_4_bits(at + offsetof(Block, qs), stride, weights);
        use(0, weights, numbers(at + offsetof(Block, d), stride), _mm512_setzero_ps());
    }
};

// weight = scale * unsigned weight + least.
struct Q4_1 {
    static constexpr int PARTS = 1, WORDS = 8;
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

    template <typename Use> static void unpack(const uint8_t * at, size_t stride, Use use) {
        Ints weights[8];
        unpack_4_bits(at + offsetof(Block, qs), stride, weights);
        use(0, weights, numbers(at, stride), numbers(at + sizeof(uint16_t), stride));
    }

    template <int N> static void add(int, const Ints * weights, Floats scale, Floats least, const Numbers<N> & of, Floats (&sums)[N]) {
        const auto first = [](int) { return _mm512_setzero_si512(); };
        dot<WORDS>(weights, of.numbers, 0, first, [&](int token, Floats sum) {
            sums[token] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(of.scale[token])), sums[token]);
            sums[token] = _mm512_fmadd_ps(least, _mm512_set1_ps(of.sum[token]), sums[token]);
        });
    }
};

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
    static constexpr int PARTS = 8, WORDS = 8;
    using Block = OfBlock;
    using Token = block_q8_K;

    template <int N> struct Numbers {
        int8_t numbers[N][QK_K];
        float scale[N];
        // The sums of the token's numbers in each part.
        float sums[PARTS][N];
    };

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) {
        const auto * from = reinterpret_cast<const Token *>(block);
        memcpy(to.numbers[token], from->qs, QK_K);
        to.scale[token] = from->d;
        for (int part = 0; part < PARTS; ++part) {
            to.sums[part][token] = from->d * float(from->bsums[2 * part] + from->bsums[2 * part + 1]);
        }
    }

    template <typename Use> static void unpack(const uint8_t * at, size_t stride, Use use) {
        alignas(LINE) uint8_t bytes[ROWS][16];
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
        for (int pair = 0; pair < PARTS / 2; ++pair) {
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
                use(part, weights[half], _mm512_mul_ps(scale, byte_of(parts[part / 4], part % 4)),
                    _mm512_mul_ps(least, byte_of(parts[2 + part / 4], part % 4)));
            }
        }
    }

    template <int N> static void add(int part, const Ints * weights, Floats scale, Floats least, const Numbers<N> & of, Floats (&sums)[N]) {
        const auto first = [](int) { return _mm512_setzero_si512(); };
        dot<WORDS>(weights, of.numbers, 32 * part, first, [&](int token, Floats sum) {
            sums[token] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(of.scale[token])), sums[token]);
            sums[token] = _mm512_fnmadd_ps(least, _mm512_set1_ps(of.sums[part][token]), sums[token]);
        });
    }
};

using Q4_K = WithMinima<block_q4_K, false>;
using Q5_K = WithMinima<block_q5_K, true>;

// Blocks of 256 weights of 6 bits, each 16 of which have a scale of their own.
struct Q6_K {
    static constexpr int PARTS = 16, WORDS = 4;
    using Block = block_q6_K;
    using Token = block_q8_K;

    template <int N> struct Numbers {
        int8_t numbers[N][QK_K];
        float scale[N];
        // What the offset of the weights adds to the sums of products in each part.
        int32_t corrections[PARTS][N];
    };

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) {
        const auto * from = reinterpret_cast<const Token *>(block);
        memcpy(to.numbers[token], from->qs, QK_K);
        to.scale[token] = from->d;
        for (int part = 0; part < PARTS; ++part) {
            to.corrections[part][token] = -32 * from->bsums[part];
        }
    }

    template <typename Use> static void unpack(const uint8_t * at, size_t stride, Use use) {
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
                    const Ints byte = _mm512_srai_epi32(_mm512_slli_epi32(parts[part / 4], 24 - 8 * (part % 4)), 24);
                    use(part, weights[sixteen / 2] + 4 * (sixteen % 2), _mm512_mul_ps(scale, _mm512_cvtepi32_ps(byte)), _mm512_setzero_ps());
                }
            }
        }
    }

    template <int N> static void add(int part, const Ints * weights, Floats scale, Floats, const Numbers<N> & of, Floats (&sums)[N]) {
        const auto first = [&](int token) { return _mm512_set1_epi32(of.corrections[part][token]); };
        dot<WORDS>(weights, of.numbers, 16 * part, first, [&](int token, Floats sum) {
            sums[token] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(of.scale[token])), sums[token]);
        });
    }
};

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
