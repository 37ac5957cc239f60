// Products of quantized weights with many tokens by AMX: one instruction multiplies 64 weights of 16 rows with 16 tokens.
//
// Each part of a K-quant's block has a scale for each row, which would have to multiply the part's sums. Instead the scales are folded into the
// weights: a weight times its part's scale is written with two digits that are bytes, so a block has two sums (with Q2_K one), and
//
//   the block's product = the sum of the low digits + 2^SHIFT times the sum of the high ones
//
// Where that is not possible (weights of eight bits, scales that are floats), an instruction multiplies the 32 weights of a part, or the 16 that
// share a scale. Integers are exact, so all these are the same bits as those of quantized.h.
#pragma once

#include "quantized.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// How AMX computes products of a format.
struct AmxFormat {
    // Fewer tokens take less time without AMX.
    int least_tokens;
    // Whether AMX multiplies all tiles, with weights of its own. Otherwise it multiplies whole ones alone, which read what `Format` unpacks.
    bool has_own_weights;
    // Weights of a row that an instruction multiplies.
    int width;
    void (*unpack[2])(const Rows &, int64_t, int, void *);
    // As a `Multiply`, for a tile of `n_tokens`.
    void (*multiply)(const void * unpacked, int, const uint8_t * numbers, int n_tokens, F32xN * sums);
};

#if defined(FOREDRAFT_AVX512_VNNI) && defined(FOREDRAFT_AMX)

// A tile of fewer tokens is multiplied like a whole one, with what lies behind its numbers.
constexpr int64_t READ_BEHIND_TOKENS = TILE * 256;

// The most weights of a row in a register.
constexpr int AMX_WIDTH = 64;

// The registers, two of each: those of two digits, or of two parts that do not wait for each other.
enum AmxRegister { SUM = 0, TOKENS_OF_TILE = 2, WEIGHTS = 4 };

// Prepares the calling thread's registers. No destructor ends their use, because the tables that it needs for exceptions would be the program's.
inline void begin_amx(int width) {
    // Palette 1; a register has 16 rows of 64 bytes, or of a narrower part as much as it needs.
    alignas(64) uint8_t settings[64] = { 1 };
    for (int index = SUM; index <= WEIGHTS + 1; ++index) {
        settings[16 + 2 * index] = index == TOKENS_OF_TILE || index == TOKENS_OF_TILE + 1 ? width : 64;
        settings[48 + index] = index >= WEIGHTS ? width / 4 : 16;
    }
    asm volatile("ldtilecfg %0" : : "m"(settings));
}
inline void end_amx() { asm volatile("tilerelease"); }

// Not the compiler's intrinsics, because GCC 12 does not know that they read and write memory.
template <int REGISTER> inline void set_to_zero() { asm volatile("tilezero %%tmm%c0" : : "i"(REGISTER)); }
template <int REGISTER> inline void load_rows(const void * from, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(REGISTER), "r"(from), "r"(stride) : "memory");
}
template <int REGISTER> inline void store_rows(void * to, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(REGISTER), "r"(to), "r"(stride) : "memory");
}
template <bool IS_SIGNED, int TO, int TOKENS_OF, int WEIGHTS_OF> inline void add_products() {
    if constexpr (IS_SIGNED) {
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(TO), "i"(TOKENS_OF), "i"(WEIGHTS_OF));
    } else {
        asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(TO), "i"(TOKENS_OF), "i"(WEIGHTS_OF));
    }
}

// --- Folding --------------------------------------------------------------------------------------------------------------------------------

template <int PARTS, int DIGITS> struct FoldedBlock {
    I32xN words[DIGITS][64];
    LongScalesOfParts<PARTS> scales;
};

// How a format's weights, times their scales, are written:
//
//   unsigned  formats with minima: scales of at most 6 bits have two digits of 3 bits. A number of at most 5 bits times a digit is an unsigned
//             byte. Q2_K's numbers times their scales of 4 bits are bytes.
//   signed    the others: a product of at most 14 bits has 7 low bits and the others, which are signed bytes.
template <typename Format> struct Folding {
    static constexpr bool IS_SIGNED = !Format::MINIMA;
    static constexpr int DIGITS = Format::TYPE == GGML_TYPE_Q2_K ? 1 : 2, SHIFT = IS_SIGNED ? 7 : 3;
    using Block = FoldedBlock<Format::PARTS, DIGITS>;
};

inline I32xN mul_16(I32xN a, I32xN b) { return _mm512_mullo_epi16(a, b); }
inline I32xN sub_16(I32xN a, I32xN b) { return _mm512_sub_epi16(a, b); }
// The low half of each lane in both halves.
inline I32xN in_both_halves(I32xN a) { return bit_or(bit_and(a, broadcast(0xffff)), left_32<16>(a)); }
// The lower bytes of `low`, the upper ones of `high`.
inline I32xN lower_and_upper(I32xN low, I32xN high) { return _mm512_ternarylogic_epi32(broadcast(0x00ff00ff), low, high, 0xca); }

template <typename Format, typename Layout> void fold(const Rows & rows, int64_t at, int, void * to) {
    constexpr int PARTS = Format::PARTS, WORDS = 64 / PARTS, DIGITS = Folding<Format>::DIGITS;
    auto & folded = *static_cast<typename Folding<Format>::Block *>(to);
    const auto block = Layout::template block<Format>(rows, at);
    Fetch<Format, PARTS, Layout, TILE> fetch(rows, at);
    scales_of<Format>(block, folded.scales);
    Format::unpack(
        block, [&](int part, const I32xN * words) __attribute__((always_inline)) {
            fetch.part(part);
            const I32xN scale = folded.scales.of_part[part];
            I32xN * const low = folded.words[0] + part * WORDS;
            I32xN * const high = folded.words[DIGITS - 1] + part * WORDS;
            if constexpr (Folding<Format>::IS_SIGNED) {
                const I32xN by = in_both_halves(scale), offset = mul_16(by, broadcast(Format::OFFSET * 0x00010001));
#pragma GCC unroll 8
                for (int word = 0; word < WORDS; ++word) {
                    const I32xN even = sub_16(mul_16(bit_and(words[word], broadcast(0x00ff00ff)), by), offset);
                    const I32xN odd = sub_16(mul_16(right_16<8>(words[word]), by), offset);
                    low[word] = bit_and(lower_and_upper(even, left_16<8>(odd)), broadcast_8(0x7f));
                    high[word] = lower_and_upper(right_16<7>(even), left_16<1>(odd));
                }
            } else {
                const I32xN digits[2] = { in_both_halves(DIGITS == 1 ? scale : bit_and(scale, broadcast(7))), in_both_halves(right_32<3>(scale)) };
#pragma GCC unroll 8
                for (int word = 0; word < WORDS; ++word) {
                    // A 16-bit product has those of two bytes, because both are less than 256.
                    low[word] = mul_16(words[word], digits[0]);
                    if constexpr (DIGITS == 2) {
                        high[word] = mul_16(words[word], digits[1]);
                    }
                }
            }
        });
}

// --- Multiplying ----------------------------------------------------------------------------------------------------------------------------

// Multiplies a tile of tokens with the digits of a block.
template <bool IS_SIGNED, int DIGITS>
inline __attribute__((always_inline)) void sum_digits(const I32xN (&words)[DIGITS][64], const uint8_t * numbers, I32xN (&sums)[DIGITS][TILE]) {
    set_to_zero<SUM>();
    set_to_zero<SUM + 1>();
#pragma GCC unroll 4
    for (int group = 0; group < 4; ++group) {
        load_rows<TOKENS_OF_TILE>(numbers + group * AMX_WIDTH, 256);
        load_rows<WEIGHTS>(words[0] + group * AMX_WIDTH / 4, sizeof(I32xN));
        add_products<IS_SIGNED, SUM, TOKENS_OF_TILE, WEIGHTS>();
        if constexpr (DIGITS == 2) {
            load_rows<WEIGHTS + 1>(words[1] + group * AMX_WIDTH / 4, sizeof(I32xN));
            add_products<IS_SIGNED, SUM + 1, TOKENS_OF_TILE, WEIGHTS + 1>();
        }
    }
    store_rows<SUM>(sums[0], sizeof(I32xN));
    if constexpr (DIGITS == 2) {
        store_rows<SUM + 1>(sums[1], sizeof(I32xN));
    }
}

template <typename Format> void multiply_folded(const void * folded, int, const uint8_t * numbers, int n, F32xN * to) {
    constexpr int DIGITS = Folding<Format>::DIGITS;
    const auto & block = *static_cast<const typename Folding<Format>::Block *>(folded);
    I32xN sums[DIGITS][TILE];
    sum_digits<Folding<Format>::IS_SIGNED>(block.words, numbers, sums);
    // Copied, because the compiler cannot know that `to` is elsewhere.
    const LongScalesOfParts<Format::PARTS> scales = block.scales;
    for (int token = 0; token < n; ++token) {
        I32xN product = sums[0][token];
        if constexpr (DIGITS == 2) {
            product = add_32(product, left_32<Folding<Format>::SHIFT>(sums[1][token]));
        }
        const float scale = float_at(numbers + n * 256 + token * 4);
        F32xN sum = to[token];
        if constexpr (Format::MINIMA) {
            const LongScalesOfParts<Format::PARTS> * const of_block = &scales;
            add_block<Format::PARTS, true>(&product, &of_block, 0, scale, numbers + n * 260 + token * 32, &sum);
        } else {
            sum = fma(to_floats(product), mul(scales.scale, broadcast_f32(scale)), sum);
        }
        to[token] = sum;
    }
}

// The products of a part's words with the numbers of a tile.
template <bool IS_SIGNED, int SECOND>
inline __attribute__((always_inline)) void multiply_part(const I32xN * words, const uint8_t * numbers, I32xN (&products)[TILE]) {
    set_to_zero<SUM + SECOND>();
    load_rows<TOKENS_OF_TILE + SECOND>(numbers, 32);
    load_rows<WEIGHTS + SECOND>(words, sizeof(I32xN));
    add_products<IS_SIGNED, SUM + SECOND, TOKENS_OF_TILE + SECOND, WEIGHTS + SECOND>();
    store_rows<SUM + SECOND>(products, sizeof(I32xN));
}

// As `multiply_short`, for a whole tile.
template <bool MINIMA> void multiply_parts(const void * unpacked, int n_parts, const uint8_t * numbers, int, F32xN * to) {
    const auto * parts = static_cast<const ShortPart *>(unpacked);
    I32xN products[STRETCH][TILE];
    for (int part = 0; part < n_parts; ++part) {
        multiply_part<false, 0>(parts[part].words, numbers + part * TILE * SHORT_SIZE, products[part]);
    }
    F32xN sums[TILE];
#pragma GCC unroll 16
    for (int token = 0; token < TILE; ++token) {
        sums[token] = to[token];
    }
    for (int part = 0; part < n_parts; ++part) {
        const ShortScales scales = parts[part].scales;
        const uint8_t *scale_of = numbers + part * TILE * SHORT_SIZE + TILE * 32, *correction_of = scale_of + TILE * 4;
#pragma GCC unroll 16
        for (int token = 0; token < TILE; ++token) {
            I32xN product = products[part][token];
            if constexpr (!MINIMA) {
                product = add_32(product, broadcast(int_at(correction_of + 4 * token)));
            }
            sums[token] = fma(to_floats(product), mul(scales.scale, broadcast_f32(float_at(scale_of + 4 * token))), sums[token]);
            if constexpr (MINIMA) {
                sums[token] = fma(scales.least, broadcast_f32(float_at(correction_of + 4 * token)), sums[token]);
            }
        }
    }
#pragma GCC unroll 16
    for (int token = 0; token < TILE; ++token) {
        to[token] = sums[token];
    }
}

// As `multiply_short` for parts whose halves have scales of their own, for signed weights.
inline void multiply_halves(const void * unpacked, int n_parts, const uint8_t * numbers, int n, F32xN * to) {
    const auto * parts = static_cast<const ShortPart *>(unpacked);
    I32xN products[STRETCH][2][TILE];
    for (int part = 0; part < n_parts; ++part) {
        multiply_part<true, 0>(parts[part].words, numbers + part * n * SHORT_SIZE, products[part][0]);
        multiply_part<true, 1>(parts[part].words + 4, numbers + part * n * SHORT_SIZE + 16, products[part][1]);
    }
    for (int token = 0; token < n; ++token) {
        F32xN sum = to[token];
        for (int part = 0; part < n_parts; ++part) {
            const F32xN of_token = broadcast_f32(float_at(numbers + part * n * SHORT_SIZE + n * 32 + 4 * token));
            sum = fma(to_floats(products[part][0][token]), mul(parts[part].scales.scale, of_token), sum);
            sum = fma(to_floats(products[part][1][token]), mul(parts[part].scales.last, of_token), sum);
        }
        to[token] = sum;
    }
}

template <typename Format> constexpr AmxFormat AMX = { 5, true, AMX_WIDTH, { fold<Format, OfFile>, fold<Format, OfPanel> }, multiply_folded<Format> };
template <typename Format> constexpr AmxFormat AMX_OF_PARTS
    = { TILE, false, 32, { unpack<Format, OfFile>, unpack<Format, OfPanel> }, multiply_parts<Format::MINIMA> };
constexpr AmxFormat AMX_OF_HALVES = { TILE, true, 16, { unpack<NVFP4With<0>, OfFile>, unpack<NVFP4With<0>, OfPanel> }, multiply_halves };

constexpr size_t FOLDED_SIZE = sizeof(FoldedBlock<16, 2>);

// NULL: AMX does not compute this format.
inline const AmxFormat * amx_format_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K: return &AMX<Q2_K>;
        case GGML_TYPE_Q3_K: return &AMX<Q3_K>;
        case GGML_TYPE_Q4_K: return &AMX<Q4_K>;
        case GGML_TYPE_Q5_K: return &AMX<Q5_K>;
        case GGML_TYPE_Q6_K: return &AMX<Q6_K>;
        case GGML_TYPE_IQ4_XS: return &AMX<IQ4_XS>;
        case GGML_TYPE_IQ1_S: return &AMX<IQ1_S>;
        case GGML_TYPE_IQ1_M: return &AMX<IQ1_M>;
        case GGML_TYPE_IQ2_XXS: return &AMX<IQ2_XXS>;
        case GGML_TYPE_IQ2_XS: return &AMX<IQ2_XS>;
        case GGML_TYPE_IQ2_S: return &AMX<IQ2_S>;
        case GGML_TYPE_IQ3_XXS: return &AMX<IQ3_XXS>;
        case GGML_TYPE_IQ3_S: return &AMX<IQ3_S>;
        case GGML_TYPE_Q8_0: return &AMX_OF_PARTS<Q8_0>;
        case GGML_TYPE_Q4_0: return &AMX_OF_PARTS<Q4_0>;
        case GGML_TYPE_Q4_1: return &AMX_OF_PARTS<Q4_1>;
        case GGML_TYPE_Q5_0: return &AMX_OF_PARTS<Q5_0>;
        case GGML_TYPE_Q5_1: return &AMX_OF_PARTS<Q5_1>;
        case GGML_TYPE_IQ4_NL: return &AMX_OF_PARTS<IQ4_NL>;
        case GGML_TYPE_MXFP4: return &AMX_OF_PARTS<MXFP4>;
        case GGML_TYPE_NVFP4: return &AMX_OF_HALVES;
        default: return nullptr;
    }
}

#else

constexpr int64_t READ_BEHIND_TOKENS = 0;
inline void begin_amx(int) {}
inline void end_amx() {}
constexpr size_t FOLDED_SIZE = 0;
inline const AmxFormat * amx_format_of(ggml_type) { return nullptr; }

#endif

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
