// The formats of quantized weights that `matmul.cpp` multiplies: how a block of 16 rows is unpacked, and how its products with the numbers of
// tokens are added up. With AVX-512 VNNI only.
#pragma once

#include <cstdint>
#include <cstring>

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <immintrin.h>

namespace {

// Rows of weights that are computed together: a lane of a register each.
constexpr int ROWS = 16;
// Bytes in a line of the cache.
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

// The numbers of N tokens for a block of 256 weights, and a value of each of its parts.
template <int N, int PARTS, typename Value> struct LongNumbers {
    int8_t numbers[N][QK_K];
    float scale[N];
    Value parts[PARTS][N];
};

// Prepares all but the values of the parts. Returns the token's block.
template <int N, int PARTS, typename Value>
inline const block_q8_K & prepare_long(const uint8_t * block, int token, LongNumbers<N, PARTS, Value> & to) {
    const auto & from = *reinterpret_cast<const block_q8_K *>(block);
    memcpy(to.numbers[token], from.qs, QK_K);
    to.scale[token] = from.d;
    return from;
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
    static constexpr int PARTS = 8, WORDS = 8;
    using Block = OfBlock;
    using Token = block_q8_K;

    // Of each part: the sum of the token's numbers, with its scale.
    template <int N> using Numbers = LongNumbers<N, PARTS, float>;

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) {
        const Token & from = prepare_long(block, token, to);
        for (int part = 0; part < PARTS; ++part) {
            to.parts[part][token] = from.d * float(from.bsums[2 * part] + from.bsums[2 * part + 1]);
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
            sums[token] = _mm512_fnmadd_ps(least, _mm512_set1_ps(of.parts[part][token]), sums[token]);
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

    // Of each part: what the offset of the weights adds to the sum of products.
    template <int N> using Numbers = LongNumbers<N, PARTS, int32_t>;

    template <int N> static void prepare(const uint8_t * block, int token, Numbers<N> & to) {
        const Token & from = prepare_long(block, token, to);
        for (int part = 0; part < PARTS; ++part) {
            to.parts[part][token] = -32 * from.bsums[part];
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
        const auto first = [&](int token) { return _mm512_set1_epi32(of.parts[part][token]); };
        dot<WORDS>(weights, of.numbers, 16 * part, first, [&](int token, Floats sum) {
            sums[token] = _mm512_fmadd_ps(sum, _mm512_mul_ps(scale, _mm512_set1_ps(of.scale[token])), sums[token]);
        });
    }
};

}  // namespace
