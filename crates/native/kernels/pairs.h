// Pairs of tokens, for I8MM.
//
// An instruction of AArch64's I8MM multiplies two rows with two tokens, eight numbers of each. So there the tokens 2p and 2p + 1 of a tile are a
// pair, and a last one without another is alone. In a pair
//
//   numbers  of each 16, the first token's upper eight and the second one's lower eight change places: a register has eight of both
//   words    of each two, a register has rows 0 and 1, the next one rows 2 and 3 (`arrange`)
//   sums     the first token's have rows 0 and 1 with both tokens, the second one's rows 2 and 3 (`join`, `separate`)
//
// At all other levels every token is alone, and these functions do nothing.
#pragma once

#include "formats.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

inline float float_at(const void * at) {
    float x;
    memcpy(&x, at, sizeof x);
    return x;
}
inline int32_t int_at(const void * at) {
    int32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

#if defined(FOREDRAFT_I8MM)

constexpr bool HAS_PAIRS = true;

inline I32xN interleave_low(I32xN a, I32xN b) { return vzip1q_s32(a, b); }
inline I32xN interleave_high(I32xN a, I32xN b) { return vzip2q_s32(a, b); }
inline F32xN interleave_low(F32xN a, F32xN b) { return vzip1q_f32(a, b); }
inline F32xN interleave_high(F32xN a, F32xN b) { return vzip2q_f32(a, b); }
inline I32xN even_lanes(I32xN a, I32xN b) { return vuzp1q_s32(a, b); }
inline I32xN odd_lanes(I32xN a, I32xN b) { return vuzp2q_s32(a, b); }
inline F32xN even_lanes(F32xN a, F32xN b) { return vuzp1q_f32(a, b); }
inline F32xN odd_lanes(F32xN a, F32xN b) { return vuzp2q_f32(a, b); }

// Adds the products of two rows with two tokens: of row 0 with both, then of row 1.
inline I32xN dot_of_pair(I32xN sum, I32xN rows, I32xN tokens) { return vmmlaq_s32(sum, signed_bytes(rows), signed_bytes(tokens)); }
// Eight bytes, twice.
inline I32xN twice(const uint8_t * at) { return ints(vcombine_u8(vld1_u8(at), vld1_u8(at))); }

// Adds `WORDS` arranged words of weights times T tokens' numbers to `sums`.
template <int WORDS, int SIZE, int T>
inline __attribute__((always_inline)) void add_pairs(const I32xN * words, const uint8_t * numbers, I32xN * sums) {
    // A token that is alone is multiplied as a pair with itself.
    I32xN upper = broadcast(0), lower = broadcast(0);
#pragma GCC unroll 4
    for (int word = 0; word < WORDS; word += 2) {
#pragma GCC unroll 2
        for (int t = 0; t + 1 < T; t += 2) {
            const I32xN tokens = load(numbers + (t + word / 2 % 2) * SIZE + word / 4 * 16);
            sums[t] = dot_of_pair(sums[t], words[word], tokens);
            sums[t + 1] = dot_of_pair(sums[t + 1], words[word + 1], tokens);
        }
        if constexpr (T % 2 == 1) {
            const I32xN tokens = twice(numbers + (T - 1) * SIZE + 4 * word);
            upper = dot_of_pair(upper, words[word], tokens);
            lower = dot_of_pair(lower, words[word + 1], tokens);
        }
    }
    if constexpr (T % 2 == 1) {
        sums[T - 1] = add_32(sums[T - 1], even_lanes(upper, lower));
    }
}

#else

constexpr bool HAS_PAIRS = false;

#endif

// Whether a token of a tile of N tokens is in a pair.
template <int N> constexpr bool in_pair(int token) { return HAS_PAIRS && (token | 1) < N; }

// A number of each row, in the lanes in which the sums of a token have the rows.
template <int N, typename Vector> inline __attribute__((always_inline)) Vector of_rows(Vector rows, [[maybe_unused]] int token) {
#if defined(FOREDRAFT_I8MM)
    if (in_pair<N>(token)) {
        return token % 2 == 0 ? interleave_low(rows, rows) : interleave_high(rows, rows);
    }
#endif
    return rows;
}

// The number of a token, or of both tokens of its pair, in each lane.
template <int N> inline __attribute__((always_inline)) I32xN of_token(const int32_t * numbers, int token) {
#if defined(FOREDRAFT_I8MM)
    if (in_pair<N>(token)) {
        return twice(reinterpret_cast<const uint8_t *>(numbers + token / 2 * 2));
    }
#endif
    return broadcast(int_at(numbers + token));
}
template <int N> inline __attribute__((always_inline)) F32xN of_token(const float * numbers, int token) {
#if defined(FOREDRAFT_I8MM)
    if (in_pair<N>(token)) {
        return as_floats(twice(reinterpret_cast<const uint8_t *>(numbers + token / 2 * 2)));
    }
#endif
    return broadcast_f32(float_at(numbers + token));
}

template <int N, typename Vector> inline __attribute__((always_inline)) void join([[maybe_unused]] Vector * sums) {
#if defined(FOREDRAFT_I8MM)
#pragma GCC unroll 8
    for (int token = 0; token + 1 < N; token += 2) {
        const Vector first = sums[token], second = sums[token + 1];
        sums[token] = interleave_low(first, second);
        sums[token + 1] = interleave_high(first, second);
    }
#endif
}

template <int N, typename Vector> inline __attribute__((always_inline)) void separate([[maybe_unused]] Vector * sums) {
#if defined(FOREDRAFT_I8MM)
#pragma GCC unroll 8
    for (int token = 0; token + 1 < N; token += 2) {
        const Vector first = sums[token], second = sums[token + 1];
        sums[token] = even_lanes(first, second);
        sums[token + 1] = odd_lanes(first, second);
    }
#endif
}

template <int WORDS> inline __attribute__((always_inline)) void arrange(const I32xN * words, I32xN * arranged) {
#if defined(FOREDRAFT_I8MM)
#pragma GCC unroll 4
    for (int word = 0; word < WORDS; word += 2) {
        const I32xN first = words[word], second = words[word + 1];
        arranged[word] = interleave_low(first, second);
        arranged[word + 1] = interleave_high(first, second);
    }
#else
    for (int word = 0; word < WORDS; ++word) {
        arranged[word] = words[word];
    }
#endif
}

// Puts `size` numbers of a token to where a tile has them, if the token is in a pair.
inline void put_in_pair(const int8_t * numbers, int size, int token, uint8_t * tile) {
    for (int at = 0; at < size; at += 8) {
        memcpy(tile + (token / 2 * 2 + at / 8 % 2) * size + at / 16 * 16 + token % 2 * 8, numbers + at, 8);
    }
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
