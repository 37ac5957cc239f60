// Products of quantized weights with tokens that are rounded to whole numbers: their arithmetic, and the functions of each format.
#pragma once

#include "pairs.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// The results of `pack` for a block of a token, in tiles of N tokens, so that addresses in the inner loop are constants:
//   short: N x 32 numbers, N scales, N corrections (what OFFSET takes away; with HALVES, 16 bits for each half) or sums (scaled, for `least`)
//   long:  N x 256 numbers, N scales, N x 16 sums of parts, of 16 or 32 numbers; for weights of 2 bits, N x 32 bytes that begin with `correction_of`
// pairs.h says how the numbers of two tokens lie with I8MM.
constexpr int SHORT_SIZE = 32 + 4 + 4, LONG_SIZE = 256 + 4 + 32;
// Parts of short blocks that are unpacked together.
constexpr int STRETCH = 8;

struct ShortPart {
    I32xN words[8];
    ShortScales scales;
};

// `of_part`: a part's scale in each lane; with AVX2, in both halves of a lane. `pairs`: the minima of parts 2p and 2p + 1 if there are any,
// else their scales, as 16-bit numbers.
template <int PARTS> struct LongScalesOfParts {
    I32xN of_part[PARTS], pairs[PARTS / 2];
    F32xN scale, least;
};

template <int PARTS> struct LongBlock {
    I32xN words[64];
    LongScalesOfParts<PARTS> scales;
};

// --- Sums of products of a part ------------------------------------------------------------------------------------------------------------

// Whether the products of a part are summed apart and then added to what was before. Otherwise so few sums would wait for each other.
template <int BITS, int T> constexpr bool SUMS_APART = BITS == 2 && T < 4;

#ifdef FOREDRAFT_DOT

// Panels that are unpacked, and then multiplied together.
constexpr int PANELS = 1;

inline I32xN pairs_16(I32xN a, I32xN b) { return dot_16(broadcast(0), a, b); }

// Adds `WORDS` words of weights times T tokens' numbers, times the part's scale, to `sums`. Token t's numbers are at `numbers + t * SIZE`.
// `ARRANGED`: the words are (pairs.h). With 2 bits, no part has a scale.
template <int BITS, int WORDS, int SIZE, bool IS_LONG, int T, bool ARRANGED>
inline __attribute__((always_inline)) void add_products(const I32xN * words, const uint8_t * numbers, I32xN scale, I32xN * sums) {
    constexpr bool IS_SCALED = IS_LONG && BITS != 2;
    I32xN of_part[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        of_part[t] = IS_SCALED || SUMS_APART<BITS, T> ? broadcast(0) : sums[t];
    }
#ifdef FOREDRAFT_NEON
#if defined(FOREDRAFT_I8MM)
    if constexpr (ARRANGED) {
        add_pairs<WORDS, SIZE, T>(words, numbers, of_part);
    } else
#endif
    {
#pragma GCC unroll 2
        for (int word = 0; word < WORDS; word += 4) {
#pragma GCC unroll 8
            for (int t = 0; t < T; ++t) {
                const I32xN four = load(numbers + t * SIZE + 4 * word);
                of_part[t] = dot_8<0>(of_part[t], words[word], four);
                of_part[t] = dot_8<1>(of_part[t], words[word + 1], four);
                of_part[t] = dot_8<2>(of_part[t], words[word + 2], four);
                of_part[t] = dot_8<3>(of_part[t], words[word + 3], four);
            }
        }
    }
#else
#pragma GCC unroll 8
    for (int word = 0; word < WORDS; ++word) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            of_part[t] = dot_8(of_part[t], words[word], broadcast(int_at(numbers + t * SIZE + 4 * word)));
        }
    }
#endif
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        sums[t] = IS_SCALED             ? add_32(sums[t], mul_32(of_part[t], of_rows<T>(scale, t)))
                  : SUMS_APART<BITS, T> ? add_32(sums[t], of_part[t])
                                        : of_part[t];
    }
}

// Tokens whose sums are kept in registers together. Each sum waits for its last product, so more of them wait less.
#ifdef FOREDRAFT_AVX512_VNNI
constexpr int AT_ONCE = 8;
#else
constexpr int AT_ONCE = 4;
#endif

// The same for N tokens.
template <int BITS, int WORDS, int SIZE, bool IS_LONG, int N, bool ARRANGED>
inline __attribute__((always_inline)) void add_all_products(const I32xN * words, const uint8_t * numbers, I32xN scale, I32xN * sums) {
    if constexpr (in_pair<N>(0) && !ARRANGED) {
        I32xN arranged[WORDS];
        arrange<WORDS>(words, arranged);
        add_all_products<BITS, WORDS, SIZE, IS_LONG, N, true>(arranged, numbers, scale, sums);
        return;
    }
#pragma GCC unroll 4
    for (int token = 0; token + AT_ONCE <= N; token += AT_ONCE) {
        add_products<BITS, WORDS, SIZE, IS_LONG, AT_ONCE, ARRANGED>(words, numbers + token * SIZE, scale, sums + token);
    }
    constexpr int DONE = N / AT_ONCE * AT_ONCE;
    if constexpr (N % AT_ONCE != 0) {
        add_products<BITS, WORDS, SIZE, IS_LONG, N % AT_ONCE, ARRANGED>(words, numbers + DONE * SIZE, scale, sums + DONE);
    }
}

#else

// Two panels share what is loaded of the tokens. More sums are not held by 16 registers.
constexpr int PANELS = 2, AT_ONCE = 4;

// Adds `WORDS` words of weights of P panels times T tokens' numbers, times each panel's `by`, to `sums[t * P + p]`, or sets it (short formats). Token t's
// numbers are at `numbers + t * SIZE`.
template <int BITS, int WORDS, int SIZE, bool IS_LONG, int T, int P, typename Word>
inline __attribute__((always_inline)) void add_products(const Word * const * words, const uint8_t * numbers, const I32xN * const * by, I32xN * sums) {
    // As many words as fit into 16-bit sums: 4 bits: 8 * 2 * 15 * 127, 5 bits: 4 * 2 * 31 * 127, 6 bits: 2 * 2 * 63 * 127, 8 bits: 2 * 128 * 127.
    // With 2 bits, no part has a scale, and a sum is two 16-bit numbers.
    constexpr int OF_GROUP = BITS == 2 ? WORDS : BITS == 4 ? (WORDS < 8 ? WORDS : 8) : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
#pragma GCC unroll 8
    for (int group = 0; group < WORDS; group += OF_GROUP) {
        I32xN pairs[T * P];
        const auto multiply = [&](int word, int t) __attribute__((always_inline)) {
            const I32xN four = broadcast(int_at(numbers + t * SIZE + 4 * word));
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
                const I32xN weights = words[p][word];
                const I32xN product = BITS == 8 ? pairs_8(abs_8(weights), sign_8(four, weights)) : pairs_8(weights, four);
                const bool begins = word == group && (BITS != 2 || SUMS_APART<BITS, T * P>);
                pairs[t * P + p] = begins ? product : add_16_in_order(word == group ? sums[t * P + p] : pairs[t * P + p], product);
            }
        };
        const auto widen = [&](int t) __attribute__((always_inline)) {
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
                I32xN & sum = sums[t * P + p];
                if constexpr (BITS == 2) {
                    sum = SUMS_APART<BITS, T * P> ? add_16_in_order(sum, pairs[t * P + p]) : pairs[t * P + p];
                    continue;
                }
                const I32xN widened = IS_LONG && P > 1 ? pairs_16_stored(pairs[t * P + p], by[p]) : pairs_16(pairs[t * P + p], *by[p]);
                sum = IS_LONG || group > 0 ? add_32_in_order(widened, sum) : widened;
            }
        };
        // The registers hold the words of a group and one sum of 16-bit numbers for each panel, or with two panels one word and all sums.
        if constexpr (P > 1 && OF_GROUP > 2) {
#pragma GCC unroll 8
            for (int word = group; word < group + OF_GROUP; ++word) {
#pragma GCC unroll 4
                for (int t = 0; t < T; ++t) {
                    multiply(word, t);
                }
            }
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                widen(t);
            }
        } else {
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
#pragma GCC unroll 8
                for (int word = group; word < group + OF_GROUP; ++word) {
                    multiply(word, t);
                }
                widen(t);
            }
        }
    }
}

#endif

// Whether numbers have an offset: signed ones have none at AVX2.
#ifdef FOREDRAFT_DOT
template <int BITS> constexpr bool HAS_OFFSET = true;
#else
template <int BITS> constexpr bool HAS_OFFSET = BITS != 8;
#endif

// --- Short formats --------------------------------------------------------------------------------------------------------------------------

// Adds a part of a block of rows of P panels times the tokens from FIRST on of a tile of N to the sums, in which pairs are joined:
// `sums[token * P + panel]`. Weights that share a scale are added with one fma.
template <int BITS, bool MINIMA, bool HALVES, int N, bool ARRANGED, int P = 1, int FIRST = 0, typename Word>
inline __attribute__((always_inline)) void add_short(
    const Word * const * words, const ShortScales * const * scales, const uint8_t * numbers, F32xN * sums) {
    static_assert(!(MINIMA && HALVES), "a token's sum is that of 32 numbers");
    if constexpr (in_pair<N>(0) && !ARRANGED) {
        I32xN arranged[8];
        arrange<8>(words[0], arranged);
        const I32xN * const all = arranged;
        add_short<BITS, MINIMA, HALVES, N, true>(&all, scales, numbers, sums);
        return;
    }
    const auto * scales_of = reinterpret_cast<const float *>(numbers + N * 32);
    const uint8_t * corrections = numbers + N * 36;
    constexpr int N_SCALES = HALVES ? 2 : 1, WORDS = 8 / N_SCALES;
#ifdef FOREDRAFT_DOT
    constexpr int T = N;
#else
    constexpr int T = N - FIRST < AT_ONCE ? N - FIRST : AT_ONCE;
#endif
#pragma GCC unroll 2
    for (int half = 0; half < N_SCALES; ++half) {
        const auto correction = [&](int token) __attribute__((always_inline)) {
            const I32xN of_halves = of_token<N>(reinterpret_cast<const int32_t *>(corrections), token);
            return !HALVES ? of_halves : signed_right_32<16>(half == 0 ? left_32<16>(of_halves) : of_halves);
        };
        I32xN products[T * P];
#ifdef FOREDRAFT_DOT
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
            products[t] = MINIMA ? broadcast(0) : correction(t);
        }
        add_all_products<BITS, WORDS, 32, false, T, ARRANGED>(words[0] + WORDS * half, numbers + 4 * WORDS * half, broadcast(0), products);
#else
        const Word * of_half[P];
        const I32xN ones = broadcast(0x00010001);
        const I32xN * by[P];
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
            of_half[p] = words[p] + WORDS * half;
            by[p] = &ones;
        }
        add_products<BITS, WORDS, 32, false, T, P>(of_half, numbers + FIRST * 32 + 4 * WORDS * half, by, products);
#endif
#pragma GCC unroll 16
        for (int t = 0; t < T; ++t) {
            const int token = FIRST + t;
            // Loaded once: the compiler cannot know that the sums are elsewhere.
            const F32xN scale_of_token = of_token<N>(scales_of, token), of_block = of_token<N>(reinterpret_cast<const float *>(corrections), token);
            [[maybe_unused]] const I32xN corrected_by = correction(token);
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
                I32xN product = products[t * P + p];
#ifndef FOREDRAFT_DOT
                if constexpr (!MINIMA && HAS_OFFSET<BITS>) {
                    product = add_32(product, corrected_by);
                }
#endif
                F32xN sum = sums[token * P + p];
                const F32xN of_weights = half == 0 ? scales[p]->scale : scales[p]->last;
                sum = fma(to_floats(product), mul(of_rows<N>(of_weights, token), scale_of_token), sum);
                if constexpr (MINIMA) {
                    sum = fma(of_rows<N>(scales[p]->least, token), of_block, sum);
                }
                sums[token * P + p] = sum;
            }
        }
    }
    if constexpr (FIRST + T < N) {
        add_short<BITS, MINIMA, HALVES, N, ARRANGED, P, FIRST + T>(words, scales, numbers, sums);
    }
}

// The bytes of what is unpacked of a panel.
constexpr size_t UNPACKED_SIZE = sizeof(LongBlock<16>) > STRETCH * sizeof(ShortPart) ? sizeof(LongBlock<16>) : STRETCH * sizeof(ShortPart);

// The unpacked part of panel `p`.
template <typename Unpacked> inline const Unpacked * of_panel(const void * unpacked, int p) {
    return reinterpret_cast<const Unpacked *>(static_cast<const uint8_t *>(unpacked) + p * UNPACKED_SIZE);
}

template <int BITS, bool MINIMA, bool HALVES, int N> void multiply_short(const void * unpacked, int n_blocks, const uint8_t * numbers, F32xN * to) {
#ifdef FOREDRAFT_DOT
    F32xN sums[N];
    for (int token = 0; token < N; ++token) {
        sums[token] = to[token];
    }
    join<N>(sums);
#else
    // More than registers hold.
    F32xN * const sums = to;
#endif
    for (int block = 0; block < n_blocks; ++block) {
        const I32xN * words[PANELS];
        const ShortScales * scales[PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; ++p) {
            const ShortPart & part = of_panel<ShortPart>(unpacked, p)[block];
            words[p] = part.words;
            scales[p] = &part.scales;
        }
        add_short<BITS, MINIMA, HALVES, N, true, PANELS>(words, scales, numbers + block * N * SHORT_SIZE, sums);
    }
#ifdef FOREDRAFT_DOT
    separate<N>(sums);
    for (int token = 0; token < N; ++token) {
        to[token] = sums[token];
    }
#endif
}

// --- Long formats ---------------------------------------------------------------------------------------------------------------------------

template <int PARTS, bool MINIMA, bool SIGNED>
inline __attribute__((always_inline)) void expand(const LongScales & from, LongScalesOfParts<PARTS> & to) {
    alignas(16) static const uint8_t PAIR[2][16] = {
        { 0, 255, 1, 255, 4, 255, 5, 255, 8, 255, 9, 255, 12, 255, 13, 255 },
        { 2, 255, 3, 255, 6, 255, 7, 255, 10, 255, 11, 255, 14, 255, 15, 255 },
    };
    alignas(16) static const uint8_t SIGNED_PAIR[2][16] = {
        { 255, 0, 255, 1, 255, 4, 255, 5, 255, 8, 255, 9, 255, 12, 255, 13 },
        { 255, 2, 255, 3, 255, 6, 255, 7, 255, 10, 255, 11, 255, 14, 255, 15 },
    };
    to.scale = from.scale;
    if constexpr (MINIMA) {
        to.least = from.least;
    }
    const auto expand_4 = [&](I32xN words, I32xN * scales) __attribute__((always_inline)) {
#ifdef FOREDRAFT_DOT
        scales[0] = SIGNED ? signed_right_32<24>(left_32<24>(words)) : bit_and(words, broadcast(0xff));
        scales[1] = SIGNED ? signed_right_32<24>(left_32<16>(words)) : bit_and(right_32<8>(words), broadcast(0xff));
        scales[2] = SIGNED ? signed_right_32<24>(left_32<8>(words)) : bit_and(right_32<16>(words), broadcast(0xff));
        scales[3] = SIGNED ? signed_right_32<24>(words) : right_32<24>(words);
#else
        alignas(16) static const uint8_t BOTH[4][16] = {
            { 0, 255, 0, 255, 4, 255, 4, 255, 8, 255, 8, 255, 12, 255, 12, 255 },
            { 1, 255, 1, 255, 5, 255, 5, 255, 9, 255, 9, 255, 13, 255, 13, 255 },
            { 2, 255, 2, 255, 6, 255, 6, 255, 10, 255, 10, 255, 14, 255, 14, 255 },
            { 3, 255, 3, 255, 7, 255, 7, 255, 11, 255, 11, 255, 15, 255, 15, 255 },
        };
        alignas(16) static const uint8_t SIGNED_BOTH[4][16] = {
            { 255, 0, 255, 0, 255, 4, 255, 4, 255, 8, 255, 8, 255, 12, 255, 12 },
            { 255, 1, 255, 1, 255, 5, 255, 5, 255, 9, 255, 9, 255, 13, 255, 13 },
            { 255, 2, 255, 2, 255, 6, 255, 6, 255, 10, 255, 10, 255, 14, 255, 14 },
            { 255, 3, 255, 3, 255, 7, 255, 7, 255, 11, 255, 11, 255, 15, 255, 15 },
        };
#pragma GCC unroll 4
        for (int byte = 0; byte < 4; ++byte) {
            const I32xN spread = shuffle(words, repeat_16(SIGNED ? SIGNED_BOTH[byte] : BOTH[byte]));
            scales[byte] = SIGNED ? signed_right_16<8>(spread) : spread;
        }
#endif
    };
#pragma GCC unroll 4
    for (int word = 0; word < PARTS / 4; ++word) {
        expand_4(from.scales[word], to.of_part + 4 * word);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            // Minima are never signed.
            constexpr bool IS_SIGNED = SIGNED && !MINIMA;
            const I32xN pair = shuffle(MINIMA ? from.minima[word] : from.scales[word], repeat_16(IS_SIGNED ? SIGNED_PAIR[half] : PAIR[half]));
            to.pairs[2 * word + half] = IS_SIGNED ? signed_right_16<8>(pair) : pair;
        }
    }
}

// Reads and expands a block's scales.
template <typename Format, typename Block>
inline __attribute__((always_inline)) void scales_of(const Block & block, LongScalesOfParts<Format::PARTS> & to) {
    if constexpr (Format::BITS == 2) {
        to.scale = block.odd_halves();
    } else {
        LongScales scales;
        Format::scales(block, scales);
        expand<Format::PARTS, Format::MINIMA, Format::SIGNED_SCALES>(scales, to);
    }
}

// `correction_of`: what OFFSET takes away from the product of a block of 2 bits with these numbers. `corrected`: the product, of the sums without it.
#ifdef FOREDRAFT_DOT
inline int32_t correction_of(const int8_t * numbers) {
    int32_t correction = 0;
    for (int at = 0; at < 256; at += 16) {
        correction -= reduce_add_16(numbers + at);
    }
    return correction;
}
inline I32xN corrected(I32xN sums, int32_t correction) { return add_32(sums, broadcast(correction)); }
#else
// Two 16-bit numbers, of 128 products each. A sum may overflow before it is corrected: then it is at most 128 * 2 * 127.
inline int32_t correction_of(const int8_t * numbers) {
    I32xN sums = broadcast(0);
    for (int at = 0; at < 256; at += 4 * LANES) {
        sums = add_16_in_order(sums, pairs_8(broadcast_8(1), load(numbers + at)));
    }
    int16_t lanes[2 * LANES], of_pair[2] = {};
    memcpy(lanes, &sums, sizeof lanes);
    for (int lane = 0; lane < 2 * LANES; ++lane) {
        of_pair[lane % 2] = int16_t(of_pair[lane % 2] - lanes[lane]);
    }
    return int_at(of_pair);
}
inline I32xN corrected(I32xN sums, int32_t correction) { return pairs_16(add_16_in_order(sums, broadcast(correction)), broadcast(0x00010001)); }
#endif

// Adds the integer products of a block of P panels with a token to the token's sums. `part_sums`: the sums of the token's parts.
template <int PARTS, bool MINIMA, bool OFFSET = true, int P = 1> inline __attribute__((always_inline)) void add_block(const I32xN * products,
    const LongScalesOfParts<PARTS> * const * scales, int offset, float scale_of_token, const uint8_t * part_sums, F32xN * sums) {
    I32xN of_pairs[P];
#pragma GCC unroll 8
    for (int pair = 0; pair < PARTS / 2; ++pair) {
        const I32xN of_token = broadcast(int_at(part_sums + 4 * pair));
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
            const I32xN scale = scales[p]->pairs[pair];
            of_pairs[p] = pair == 0 ? pairs_16(scale, of_token) : dot_16(of_pairs[p], scale, of_token);
        }
    }
    const F32xN of_token = broadcast_f32(scale_of_token);
#pragma GCC unroll 2
    for (int p = 0; p < P; ++p) {
        const I32xN product = MINIMA || !OFFSET ? products[p] : sub_32(products[p], mul_32(of_pairs[p], broadcast(offset)));
        F32xN sum = fma(to_floats(product), mul(scales[p]->scale, of_token), sums[p]);
        if constexpr (MINIMA) {
            sum = fnma(to_floats(of_pairs[p]), mul(scales[p]->least, of_token), sum);
        }
        sums[p] = sum;
    }
}

// Adds to `sums` what a block's parts have added to `products`, of the tokens from FIRST to END of a tile of N.
template <int BITS, int PARTS, bool MINIMA, int N, int P = 1, int FIRST = 0, int END = N> inline __attribute__((always_inline)) void add_long(
    I32xN * products, const LongScalesOfParts<PARTS> * const * scales, int offset, const uint8_t * numbers, F32xN * sums) {
    separate<N>(products);
#pragma GCC unroll 16
    for (int token = FIRST; token < END; ++token) {
        const float scale = float_at(numbers + N * 256 + 4 * token);
        const uint8_t * part_sums = numbers + N * 260 + token * 32;
        if constexpr (BITS == 2) {
            const F32xN scale_of_token = broadcast_f32(scale);
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
                const I32xN product = corrected(products[(token - FIRST) * P + p], int_at(part_sums));
                sums[token * P + p] = fma(to_floats(product), mul(scales[p]->scale, scale_of_token), sums[token * P + p]);
            }
        } else {
            add_block<PARTS, MINIMA, HAS_OFFSET<BITS>, P>(products + (token - FIRST) * P, scales, offset, scale, part_sums, sums + token * P);
        }
    }
}

#ifdef FOREDRAFT_DOT

template <int BITS, int PARTS, bool MINIMA, int N> void multiply_long(const void * unpacked, int offset, const uint8_t * numbers, F32xN * to) {
    const auto & block = *static_cast<const LongBlock<PARTS> *>(unpacked);
    constexpr int WORDS = 64 / PARTS;
    I32xN products[N];
    for (int token = 0; token < N; ++token) {
        products[token] = broadcast(0);
    }
    for (int part = 0; part < PARTS; ++part) {
        add_all_products<BITS, WORDS, 256, true, N, true>(
            block.words + part * WORDS, numbers + part * 4 * WORDS, block.scales.of_part[part], products);
    }
    const LongScalesOfParts<PARTS> * const scales = &block.scales;
    add_long<BITS, PARTS, MINIMA, N>(products, &scales, offset, numbers, to);
}

#else

template <int BITS, int PARTS, bool MINIMA, int N, int FIRST = 0>
void multiply_long(const void * unpacked, int offset, const uint8_t * numbers, F32xN * to) {
    constexpr int WORDS = 64 / PARTS, T = N - FIRST < AT_ONCE ? N - FIRST : AT_ONCE;
    const LongScalesOfParts<PARTS> * scales[PANELS];
    I32xN products[T * PANELS];
#pragma GCC unroll 8
    for (I32xN & product : products) {
        product = broadcast(0);
    }
    for (int part = 0; part < PARTS; ++part) {
        const I32xN * words[PANELS];
        const I32xN * by[PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < PANELS; ++p) {
            const auto & block = *of_panel<LongBlock<PARTS>>(unpacked, p);
            words[p] = block.words + part * WORDS;
            by[p] = &block.scales.of_part[part];
        }
        add_products<BITS, WORDS, 256, true, T, PANELS>(words, numbers + FIRST * 256 + part * 4 * WORDS, by, products);
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; ++p) {
        scales[p] = &of_panel<LongBlock<PARTS>>(unpacked, p)->scales;
    }
    add_long<BITS, PARTS, MINIMA, N, PANELS, FIRST, FIRST + T>(products, scales, offset, numbers, to);
    if constexpr (FIRST + T < N) {
        multiply_long<BITS, PARTS, MINIMA, N, FIRST + T>(unpacked, offset, numbers, to);
    }
}

#endif

// --- A format's functions -------------------------------------------------------------------------------------------------------------------

// A panel's rows of weights. `stride` is of the file's layout: in a panel, a row's bytes are not together.
struct Rows {
    const uint8_t * weights;
    size_t stride;
    int64_t n_blocks;
    // The rows that will be read next, or these: prefetched while these are computed.
    const uint8_t * next;
    // Whether these rows and the next ones fit into the first level of caches.
    bool are_few;
    // Whether panels are read for one token without prefetches.
    bool is_foreseen;
};

// Bytes of rows that are few. The first level has 32 KiB at least, and holds the tokens' numbers too.
constexpr size_t FEW = 12 << 10;

// Where a format's blocks are, in each layout.
struct OfFile {
    template <typename Format> static InFile<Format::TYPE, Format::SIZE> block(const Rows & rows, int64_t at) {
        return { rows.weights + at * Format::SIZE, rows.stride };
    }
};
struct OfPanel {
    template <typename Format> static InPanel<Format::TYPE, Format::SIZE> block(const Rows & rows, int64_t at) {
        const PanelBlock block = block_of_panel(Format::SIZE, rows.n_blocks, at);
        return { rows.weights + block.odd, rows.weights + block.words };
    }
};

// Prefetches while a block of all rows is computed with `TOKENS_AT_ONCE` tokens. A processor waits for few lines at a time, so each part asks for
// some. For rows as in the file:
//
//   far   as many bytes of the next rows as the block has, into the second level of caches; into the first one if the rows are few and
//         computing takes longer than reading (with Q8_0 it does not).
//   near  with long formats, the next block of each row, into the first level: rows lie apart, so the processor does not foresee them.
template <typename Format, int PARTS, typename Layout, int TOKENS_AT_ONCE> struct Fetch {
    static constexpr int LINES = (LANES * Format::SIZE + 63) / 64, OF_PART = LINES / PARTS;
    static constexpr int ROWS_OF_PART = LANES > PARTS ? LANES / PARTS : 1, PARTS_OF_ROW = LANES > PARTS ? 1 : PARTS / LANES;
    static constexpr bool OFTEN_FEW = Format::BITS < 8 && (!Format::IS_LONG || Format::SIZE <= 96), NEAR = Format::IS_LONG && !OFTEN_FEW;
    const uint8_t *line, *row;
    size_t stride;
    bool into_first;
    int n_parts = 0;

    inline __attribute__((always_inline)) Fetch(const Rows & rows, int64_t block)
        : line(rows.next + block * LANES * Format::SIZE), row(rows.weights + (block + 1) * Format::SIZE), stride(rows.stride),
          into_first(OFTEN_FEW && rows.are_few) {
        fetch<LINES - PARTS * OF_PART>();
    }
    inline __attribute__((always_inline)) void part(int64_t) {
        fetch<OF_PART>();
        if constexpr (NEAR) {
            if (n_parts % PARTS_OF_ROW == 0) {
#pragma GCC unroll 4
                for (int n = 0; n < ROWS_OF_PART; ++n) {
#pragma GCC unroll 4
                    for (int at = 0; at < Format::SIZE; at += 64) {
                        PREFETCH(row + at, 3);
                    }
                    row += stride;
                }
            }
            ++n_parts;
        }
    }

private:
    template <int N> inline __attribute__((always_inline)) void fetch() {
        if (into_first) {
            for (int i = 0; i < N; ++i) {
                PREFETCH(line + 64 * i, 3);
            }
        } else {
            for (int i = 0; i < N; ++i) {
                PREFETCH(line + 64 * i, 2);
            }
        }
        line += 64 * N;
    }
};
// Panels are read from one end to the other. For one token, some processors foresee that and some do not, also two virtual machines on processors of
// the same model: without prefetches a product took 2.2 times as long on one, and with them 1.3 to 1.5 times as long on another. So it is measured.
// Two tokens take about as long with as without on the latter, and eight half as long again without.
template <typename Format, int PARTS, int TOKENS_AT_ONCE> struct Fetch<Format, PARTS, OfPanel, TOKENS_AT_ONCE> {
    static constexpr int AHEAD = 8 << 10, LINES_OF_PART = (LANES * Format::SIZE + 63) / 64 / PARTS + 1;
    const uint8_t * line;
    bool is_needed;

    Fetch(const Rows & rows, int64_t block)
        : line(rows.weights + block * LANES * Format::SIZE + AHEAD), is_needed(TOKENS_AT_ONCE > 1 || !rows.is_foreseen) {}
    inline __attribute__((always_inline)) void part(int64_t index) const {
        if (TOKENS_AT_ONCE == 1 && !is_needed) {
            return;
        }
        const uint8_t * at = line + 64 * LINES_OF_PART * index;
#pragma GCC unroll 16
        for (int i = 0; i < LINES_OF_PART; ++i) {
            PREFETCH(at + 64 * i, 2);
        }
    }
};

// Unpacks `n` blocks from block `first` on: short ones with at most STRETCH parts, one long one.
template <typename Format, typename Layout> void unpack(const Rows & rows, int64_t first, int n, void * to) {
    auto block = Layout::template block<Format>(rows, first);
    for (int at = 0; at < n; block.next(first + ++at, rows.n_blocks)) {
        if constexpr (Format::IS_LONG) {
            constexpr int WORDS = Format::WORDS;
            auto & unpacked = *static_cast<LongBlock<Format::PARTS> *>(to);
            Fetch<Format, 64 / WORDS, Layout, TILE> fetch(rows, first + at);
            scales_of<Format>(block, unpacked.scales);
            Format::unpack(
                block, [&](int64_t step, const I32xN * words) __attribute__((always_inline)) {
                    fetch.part(step);
                    arrange<WORDS>(words, unpacked.words + step * WORDS);
                });
        } else {
            ShortPart * unpacked = static_cast<ShortPart *>(to) + at * Format::PARTS;
            Fetch<Format, 1, Layout, TILE>(rows, first + at).part(0);
            ShortScales scales[Format::HALVES ? Format::PARTS : 1];
            Format::scales(block, scales);
            Format::unpack(
                block, [&](int64_t part, const auto * words) __attribute__((always_inline)) {
                    unpacked[part].scales = scales[Format::HALVES ? part : 0];
                    arrange<8>(words, unpacked[part].words);
                });
        }
    }
}

// Multiplies rows with a tile of N tokens, without storing what is unpacked.
template <typename Format, typename Layout, int N> void multiply_few(const Rows & rows, const uint8_t * numbers, F32xN * to) {
    F32xN sums[N];
#pragma GCC unroll 8
    for (int token = 0; token < N; ++token) {
        sums[token] = zero();
    }
    const int64_t n_blocks = rows.n_blocks;
    auto block = Layout::template block<Format>(rows, 0);
    for (int64_t at = 0; at < n_blocks; block.next(++at, n_blocks)) {
        if constexpr (Format::IS_LONG) {
            constexpr int WORDS = Format::WORDS, STEPS = 64 / WORDS;
            const uint8_t * of_tile = numbers + at * N * LONG_SIZE;
            Fetch<Format, STEPS, Layout, N> fetch(rows, at);
            LongScalesOfParts<Format::PARTS> scales;
            scales_of<Format>(block, scales);
            // A single token has two sums, because each waits for its last product.
            constexpr int CHAINS = N == 1 && Format::BITS != 2 ? 2 : 1;
            I32xN products[CHAINS][N];
#pragma GCC unroll 2
            for (int chain = 0; chain < CHAINS; ++chain) {
#pragma GCC unroll 8
                for (int token = 0; token < N; ++token) {
                    products[chain][token] = broadcast(0);
                }
            }
            Format::unpack(
                block, [&](int64_t step, const I32xN * words) __attribute__((always_inline)) {
                    fetch.part(step);
                    const I32xN * const scale = &scales.of_part[step * Format::PARTS / STEPS];
                    const uint8_t * of_step = of_tile + step * 4 * WORDS;
#ifdef FOREDRAFT_DOT
                    add_all_products<Format::BITS, WORDS, 256, true, N, false>(words, of_step, *scale, products[step % CHAINS]);
#else
                    add_products<Format::BITS, WORDS, 256, true, N, 1>(&words, of_step, &scale, products[step % CHAINS]);
#endif
                });
            if constexpr (CHAINS == 2) {
                products[0][0] = add_32(products[0][0], products[1][0]);
            }
            const LongScalesOfParts<Format::PARTS> * const of_block = &scales;
            add_long<Format::BITS, Format::PARTS, Format::MINIMA, N>(products[0], &of_block, Format::OFFSET, of_tile, sums);
        } else {
            ShortScales scales[Format::HALVES ? Format::PARTS : 1];
            Fetch<Format, 1, Layout, N>(rows, at).part(0);
            Format::scales(block, scales);
            Format::unpack(
                block, [&](int64_t part, const auto * words) __attribute__((always_inline)) {
                    const uint8_t * of_tile = numbers + (at * Format::PARTS + part) * N * SHORT_SIZE;
                    const ShortScales * const of_part = &scales[Format::HALVES ? part : 0];
                    add_short<Format::BITS, Format::MINIMA, Format::HALVES, N, false>(&words, &of_part, of_tile, sums);
                });
        }
    }
    if constexpr (!Format::IS_LONG) {
        separate<N>(sums);
    }
#pragma GCC unroll 8
    for (int token = 0; token < N; ++token) {
        to[token] = sums[token];
    }
}

// Tokens whose products are computed without storing what is unpacked. At AVX2, more take fewer instructions with two panels.
constexpr int FEW_TOKENS = PANELS == 1 ? 8 : 4;

// The sums of token t are at `sums + t * PANELS`, one of each panel.
using Multiply = void (*)(const void * unpacked, int, const uint8_t * numbers, F32xN * sums);

struct Format {
    ggml_type type;
    int size, bits, offset, n_parts, order;
    bool is_long, minima, halves;
    // For weights as in the file, and in panels.
    void (*unpack[2])(const Rows &, int64_t, int, void *);
    // For 1 to FEW_TOKENS tokens, or NULL.
    void (*multiply_few[2][FEW_TOKENS])(const Rows &, const uint8_t *, F32xN *);
    // For 1 to TILE tokens.
    const Multiply * multiply;
};

template <typename F, int N> constexpr Multiply multiply_of() {
#ifdef FOREDRAFT_DOT
    // The instruction is the same for all sizes of numbers, so the formats share their functions.
    constexpr int BITS = F::BITS == 2 ? 2 : 8;
#else
    constexpr int BITS = F::BITS;
#endif
    if constexpr (F::IS_LONG) {
        return multiply_long<BITS, F::PARTS, F::MINIMA, N>;
    } else {
        return multiply_short<BITS, F::MINIMA, F::HALVES, N>;
    }
}

template <typename F> constexpr bool has_halves() {
    if constexpr (F::IS_LONG) {
        return false;
    } else {
        return F::HALVES;
    }
}

template <typename F> struct Functions {
    static constexpr Multiply MULTIPLY[] = {
        multiply_of<F, 1>(),
        multiply_of<F, 2>(),
        multiply_of<F, 3>(),
        multiply_of<F, 4>(),
        multiply_of<F, 5>(),
        multiply_of<F, 6>(),
        multiply_of<F, 7>(),
        multiply_of<F, 8>(),
#if defined(FOREDRAFT_AVX512_VNNI)
        multiply_of<F, 9>(),
        multiply_of<F, 10>(),
        multiply_of<F, 11>(),
        multiply_of<F, 12>(),
        multiply_of<F, 13>(),
        multiply_of<F, 14>(),
        multiply_of<F, 15>(),
        multiply_of<F, 16>(),
#endif
    };
    static_assert(sizeof MULTIPLY / sizeof MULTIPLY[0] == TILE, "a function for each number of tokens");

    static constexpr Format make() {
        return { F::TYPE, F::SIZE, F::BITS, F::OFFSET, F::PARTS, F::ORDER, F::IS_LONG, F::MINIMA, has_halves<F>(),
            { unpack<F, OfFile>, unpack<F, OfPanel> },
            { { multiply_few<F, OfFile, 1> },
                { multiply_few<F, OfPanel, 1>, multiply_few<F, OfPanel, 2>, multiply_few<F, OfPanel, 3>, multiply_few<F, OfPanel, 4>,
#ifdef FOREDRAFT_DOT
                    multiply_few<F, OfPanel, 5>, multiply_few<F, OfPanel, 6>, multiply_few<F, OfPanel, 7>, multiply_few<F, OfPanel, 8>
#endif
                } },
            MULTIPLY };
    }
};

// Blocks of a token's numbers that a block of weights is multiplied with, and their width and size.
inline int token_blocks(const Format & format) { return format.is_long ? 1 : format.n_parts; }
inline int token_width(const Format & format) { return format.is_long ? 256 : 32; }
inline int token_size(const Format & format) { return format.is_long ? LONG_SIZE : SHORT_SIZE; }

const Format FORMATS[] = {
    Functions<Q8_0>::make(),
    Functions<Q4_0>::make(),
    Functions<Q4_1>::make(),
    Functions<Q5_0>::make(),
    Functions<Q5_1>::make(),
    Functions<IQ4_NL>::make(),
    Functions<MXFP4>::make(),
    Functions<NVFP4>::make(),
    Functions<Q2_K>::make(),
    Functions<Q3_K>::make(),
    Functions<Q4_K>::make(),
    Functions<Q5_K>::make(),
    Functions<Q6_K>::make(),
    Functions<IQ4_XS>::make(),
    Functions<Q1_0>::make(),
    Functions<Q2_0>::make(),
    Functions<TQ1_0>::make(),
    Functions<TQ2_0>::make(),
    Functions<IQ1_S>::make(),
    Functions<IQ1_M>::make(),
    Functions<IQ2_XXS>::make(),
    Functions<IQ2_XS>::make(),
    Functions<IQ2_S>::make(),
    Functions<IQ3_XXS>::make(),
    Functions<IQ3_S>::make(),
};

// NULL: another type.
inline const Format * format_of(ggml_type type) {
    for (const Format & format : FORMATS) {
        if (format.type == type) {
            return &format;
        }
    }
    return nullptr;
}

// --- Rounding tokens to whole numbers -------------------------------------------------------------------------------------------------------

// Rounds `n` numbers (a multiple of 16) to whole numbers with one scale, which is returned. A number that is not finite makes the scale NaN: an
// infinite one would make some results infinite, which can be mistaken for a choice.
inline float round_to_bytes(const float * from, int n, int8_t * to) {
    F32x16 most = broadcast_x16(0.0f);
    bool is_nan = false;
    for (int i = 0; i < n; i += 16) {
        const F32x16 x = load_floats(from + i);
        is_nan = is_nan || has_nan(x);
        most = max_x16(most, abs_x16(x));
    }
    const float amount = reduce_max(most);
    // Too small to divide by.
    const bool is_zero = amount < 1e-35f;
    const float inverse = is_zero ? 0.0f : 127.0f / amount;
    for (int i = 0; i < n; i += 16) {
        store_bytes(to + i, mul_x16(load_floats(from + i), broadcast_x16(inverse)));
    }
    return is_nan || amount == INFINITY ? NAN : is_zero ? 0.0f : amount / 127.0f;
}

// Puts 32 numbers into a format's order of weights.
inline void put_in_order(int order, int8_t * numbers) {
    if (order == 1) {
        return;
    }
    int8_t as_they_come[32];
    memcpy(as_they_come, numbers, 32);
    for (int at = 0; at < 32; ++at) {
        const int in_group = at % (4 * order), word = in_group / 4, byte = in_group % 4;
        numbers[at] = as_they_come[at - in_group + byte * order + word];
    }
}

// Prepares a block of token `token` of a tile of `n` tokens. `to` is the tile's block.
inline void pack(const Format & format, const float * from, int token, int n, uint8_t * to) {
    const bool in_pair = HAS_PAIRS && (token | 1) < n;
    int8_t together[256];
    if (!format.is_long) {
        int8_t * numbers = in_pair ? together : reinterpret_cast<int8_t *>(to) + token * 32;
        const float scale = round_to_bytes(from, 32, numbers);
        put_in_order(format.order, numbers);
        if (in_pair) {
            put_in_pair(numbers, 32, token, to);
        }
        memcpy(to + n * 32 + token * 4, &scale, sizeof scale);
        const int first = reduce_add_16(numbers), last = reduce_add_16(numbers + 16);
        const float scaled = scale * float(first + last);
        const int32_t correction = -format.offset * (first + last);
        const int16_t of_halves[2] = { int16_t(-format.offset * first), int16_t(-format.offset * last) };
        const void * third = format.halves ? of_halves : format.minima ? static_cast<const void *>(&scaled) : &correction;
        memcpy(to + n * 36 + token * 4, third, 4);
        return;
    }
    int8_t * numbers = in_pair ? together : reinterpret_cast<int8_t *>(to) + token * 256;
    const float scale = round_to_bytes(from, 256, numbers);
    if (in_pair) {
        put_in_pair(numbers, 256, token, to);
    }
    memcpy(to + n * 256 + token * 4, &scale, sizeof scale);
    if (format.bits == 2) {
        const int32_t correction = correction_of(numbers);
        memcpy(to + n * 260 + token * 32, &correction, sizeof correction);
        return;
    }
    int16_t sums[16] = {};
    for (int sixteen_of = 0; sixteen_of < 16; ++sixteen_of) {
        sums[sixteen_of * format.n_parts / 16] = int16_t(sums[sixteen_of * format.n_parts / 16] + reduce_add_16(numbers + 16 * sixteen_of));
    }
    memcpy(to + n * 260 + token * 32, sums, sizeof sums);
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
