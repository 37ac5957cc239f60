// The vectors of a level, under one set of names.
//
// Two kinds of vectors have lanes. `I32xN` and `F32xN` have as many as a register has, and each lane is a row of weights. `F32x16` has 16 lanes
// at every level, so that sums over lanes have one order at every level: four registers with NEON, two with AVX2, one with AVX-512.
#pragma once

#include "level.h"
#if defined(FOREDRAFT_NEON)
#include "vectors_neon.h"
#endif

// This is a macro, because GCC drops calls of a function that only prefetches: it has no effect that GCC knows of.
#define PREFETCH(at, level) __builtin_prefetch(at, 0, level)

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

#if defined(FOREDRAFT_AVX512_VNNI)

using I32xN = __m512i;
using F32xN = __m512;
// Rows of weights that are computed together.
constexpr int LANES = 16;
// Tokens that are computed together, at most.
constexpr int TILE = 16;

inline I32xN load(const void * at) { return _mm512_loadu_si512(at); }
inline void store(uint8_t * to, I32xN a) { _mm512_storeu_si512(to, a); }
inline I32xN broadcast(int32_t x) { return _mm512_set1_epi32(x); }
inline I32xN broadcast_8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline I32xN repeat_16(const void * at) { return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i *>(at))); }
inline I32xN bit_and(I32xN a, I32xN b) { return _mm512_and_si512(a, b); }
inline I32xN bit_or(I32xN a, I32xN b) { return _mm512_or_si512(a, b); }
inline I32xN bit_xor(I32xN a, I32xN b) { return _mm512_xor_si512(a, b); }
inline I32xN add_32(I32xN a, I32xN b) { return _mm512_add_epi32(a, b); }
inline I32xN sub_32(I32xN a, I32xN b) { return _mm512_sub_epi32(a, b); }
inline I32xN mul_32(I32xN a, I32xN b) { return _mm512_mullo_epi32(a, b); }
inline I32xN add_8(I32xN a, I32xN b) { return _mm512_add_epi8(a, b); }
inline I32xN sub_8(I32xN a, I32xN b) { return _mm512_sub_epi8(a, b); }
// For signed bytes: 2 for those greater than `limit`, 0 for those less than -limit, 1 for the others.
inline I32xN compare_8(I32xN a, int limit) {
    const I32xN one = broadcast_8(1), greater = _mm512_mask_add_epi8(one, _mm512_cmpgt_epi8_mask(a, broadcast_8(limit)), one, one);
    return _mm512_mask_sub_epi8(greater, _mm512_cmplt_epi8_mask(a, broadcast_8(-limit)), greater, one);
}
template <int N> inline I32xN right_16(I32xN a) { return _mm512_srli_epi16(a, N); }
template <int N> inline I32xN left_16(I32xN a) { return _mm512_slli_epi16(a, N); }
template <int N> inline I32xN signed_right_16(I32xN a) { return _mm512_srai_epi16(a, N); }
template <int N> inline I32xN right_32(I32xN a) { return _mm512_srli_epi32(a, N); }
template <int N> inline I32xN left_32(I32xN a) { return _mm512_slli_epi32(a, N); }
template <int N> inline I32xN signed_right_32(I32xN a) { return _mm512_srai_epi32(a, N); }
inline I32xN shuffle(I32xN a, I32xN by) { return _mm512_shuffle_epi8(a, by); }
// The words of a table at these indices.
inline I32xN gather(const uint32_t * table, I32xN indices) { return _mm512_i32gather_epi32(indices, table, 4); }
// `value` in the bytes in which `a` and `bits` share a bit.
inline I32xN where_bits(I32xN a, I32xN bits, I32xN value) { return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(a, bits), value); }
inline I32xN select_less(I32xN a, I32xN than, I32xN yes, I32xN no) { return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(a, than), no, yes); }
inline I32xN dot_16(I32xN sum, I32xN a, I32xN b) { return _mm512_dpwssd_epi32(sum, a, b); }
inline I32xN dot_8(I32xN sum, I32xN unsigned_bytes, I32xN signed_bytes) { return _mm512_dpbusd_epi32(sum, unsigned_bytes, signed_bytes); }

inline F32xN zero() { return _mm512_setzero_ps(); }
inline F32xN broadcast_f32(float x) { return _mm512_set1_ps(x); }
inline F32xN to_floats(I32xN a) { return _mm512_cvtepi32_ps(a); }
inline F32xN as_floats(I32xN a) { return _mm512_castsi512_ps(a); }
inline F32xN mul(F32xN a, F32xN b) { return _mm512_mul_ps(a, b); }
inline F32xN fma(F32xN a, F32xN b, F32xN c) { return _mm512_fmadd_ps(a, b, c); }
// c - a b
inline F32xN fnma(F32xN a, F32xN b, F32xN c) { return _mm512_fnmadd_ps(a, b, c); }
inline void store(float * to, F32xN a) { _mm512_storeu_ps(to, a); }
// The F16 numbers in the low halves of 32-bit lanes.
inline F32xN low_halves(I32xN a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
inline F32xN high_halves(I32xN a) { return low_halves(right_32<16>(a)); }
// F16 numbers, and unsigned bytes, that lie together.
inline F32xN floats_of_halves(const uint8_t * at) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at))); }
inline I32xN ints_of_bytes(const uint8_t * at) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at))); }

inline __m128i load_16(const uint8_t * at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at)); }
inline __m256i load_32(const uint8_t * at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)); }

// Four registers with four words of each of four rows: word w of all of them in `word[w]`.
inline void transpose(const I32xN (&rows)[4], I32xN * word) {
    const I32xN a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const I32xN c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    word[0] = _mm512_unpacklo_epi64(a, c);
    word[1] = _mm512_unpackhi_epi64(a, c);
    word[2] = _mm512_unpacklo_epi64(b, d);
    word[3] = _mm512_unpackhi_epi64(b, d);
}

// The first 8 bytes of each row: their two words.
inline void load_2_words(const uint8_t * at, size_t stride, I32xN * word) {
    __m128i quarters[2][4];
    for (int pair = 0; pair < 2; ++pair) {
        for (int quarter = 0; quarter < 4; ++quarter) {
            const uint8_t * first = at + (4 * quarter + 2 * pair) * stride;
            int64_t next;
            memcpy(&next, first + stride, sizeof next);
            quarters[pair][quarter] = _mm_insert_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(first)), next, 1);
        }
    }
    F32xN joined[2];
    for (int pair = 0; pair < 2; ++pair) {
        I32xN all_four = _mm512_castsi128_si512(quarters[pair][0]);
        all_four = _mm512_inserti32x4(all_four, quarters[pair][1], 1);
        all_four = _mm512_inserti32x4(all_four, quarters[pair][2], 2);
        joined[pair] = _mm512_castsi512_ps(_mm512_inserti32x4(all_four, quarters[pair][3], 3));
    }
    word[0] = _mm512_castps_si512(_mm512_shuffle_ps(joined[0], joined[1], 0x88));
    word[1] = _mm512_castps_si512(_mm512_shuffle_ps(joined[0], joined[1], 0xdd));
}

// The first 16 bytes of each row: their four words.
inline void load_4_words(const uint8_t * at, size_t stride, I32xN * word) {
    I32xN rows[4];
    for (int row = 0; row < 4; ++row) {
        const uint8_t * first = at + row * stride;
        I32xN joined = _mm512_castsi128_si512(load_16(first));
        joined = _mm512_inserti32x4(joined, load_16(first + 4 * stride), 1);
        joined = _mm512_inserti32x4(joined, load_16(first + 8 * stride), 2);
        rows[row] = _mm512_inserti32x4(joined, load_16(first + 12 * stride), 3);
    }
    transpose(rows, word);
}

// The first 32 bytes of each row: their eight words.
inline void load_8_words(const uint8_t * at, size_t stride, I32xN * word) {
    I32xN half[2][4];
    for (int part = 0; part < 2; ++part) {
        I32xN rows[4];
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

using F32x16 = __m512;
// 16 whole numbers of 32 bits.
struct I32x16 {
    I32xN part[1];
};
// Registers of sums that a loop keeps.
constexpr int SUMS = 16;

// Keeps the compiler from loading it again for each use.
inline F32x16 in_register(F32x16 a) {
    asm("" : "+v"(a));
    return a;
}
inline F32x16 broadcast_x16(float x) { return _mm512_set1_ps(x); }
inline F32x16 load_floats(const float * at) { return _mm512_loadu_ps(at); }
inline F32x16 load_halves(const uint16_t * at) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at))); }
inline F32x16 load_bf16(const uint16_t * at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(at))), 16));
}
// The first 16 bytes.
inline F32x16 floats_of_bytes(I32xN a) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_castsi512_si128(a))); }
inline F32x16 load_bytes(const int8_t * at) { return floats_of_bytes(_mm512_castsi128_si512(load_16(reinterpret_cast<const uint8_t *>(at)))); }
inline void store_x16(float * to, F32x16 a) { _mm512_storeu_ps(to, a); }
inline F32x16 fma_x16(F32x16 a, F32x16 b, F32x16 c) { return _mm512_fmadd_ps(a, b, c); }
inline F32x16 add_x16(F32x16 a, F32x16 b) { return _mm512_add_ps(a, b); }
inline F32x16 mul_x16(F32x16 a, F32x16 b) { return _mm512_mul_ps(a, b); }
inline F32x16 max_x16(F32x16 a, F32x16 b) { return _mm512_max_ps(a, b); }
inline F32x16 abs_x16(F32x16 a) { return _mm512_abs_ps(a); }
inline bool has_nan(F32x16 a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
inline F32x16 round_x16(F32x16 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n p, and 0 where x is below -87.
inline F32x16 scale_by_power(F32x16 x, F32x16 n, F32x16 p) {
    const __m512i scaled = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23));
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ), _mm512_castsi512_ps(scaled));
}
// Rounds to bytes.
inline void store_bytes(int8_t * to, F32x16 a) { _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a))); }
// x + mask where the mask is not minus infinity; minus infinity elsewhere, whatever x is.
inline F32x16 add_mask(F32x16 x, F32x16 mask) {
    return _mm512_mask_add_ps(mask, _mm512_cmp_ps_mask(mask, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ), x, mask);
}
inline I32x16 to_i32_x16(F32x16 a) { return { { _mm512_cvtps_epi32(a) } }; }
inline F32x16 to_f32_x16(const I32x16 & a) { return _mm512_cvtepi32_ps(a.part[0]); }
// A bit for each lane that is not 0.
inline unsigned not_zero(const I32x16 & a) { return _mm512_test_epi32_mask(a.part[0], a.part[0]); }
inline void store_i32_x16(int32_t * to, const I32x16 & a) { _mm512_storeu_si512(to, a.part[0]); }

// The totals of 16 vectors, each in the order of `reduce_add`. Each step halves the number of vectors: one part of two vectors stays where it is, and
// the other part of both moves there.
inline F32x16 reduce_16(const F32x16 * of) {
    // Lanes i and i + 8: the eight sums of both.
    const auto eights = [](F32x16 a, F32x16 b) { return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e)); };
    // Lanes i and i + 2 of each four.
    const auto pairs = [](F32x16 a, F32x16 b) { return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_shuffle_ps(a, b, 0x4e)); };
    const auto fours = [](F32x16 a, F32x16 b) { return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)); };
    F32x16 half[2];
    for (int i = 0; i < 2; ++i) {
        const F32x16 * at = of + 8 * i;
        half[i] = fours(pairs(eights(at[0], at[4]), eights(at[1], at[5])), pairs(eights(at[2], at[6]), eights(at[3], at[7])));
    }
    return _mm512_add_ps(_mm512_shuffle_f32x4(half[0], half[1], 0x88), _mm512_shuffle_f32x4(half[0], half[1], 0xdd));
}
inline __m256 lower(F32x16 a) { return _mm512_castps512_ps256(a); }
inline __m256 upper(F32x16 a) { return _mm512_extractf32x8_ps(a, 1); }

#elif !defined(FOREDRAFT_NEON)

using I32xN = __m256i;
using F32xN = __m256;
constexpr int LANES = 8;
constexpr int TILE = 8;

inline I32xN load(const void * at) { return _mm256_loadu_si256(static_cast<const __m256i *>(at)); }
inline void store(uint8_t * to, I32xN a) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), a); }
inline I32xN broadcast(int32_t x) { return _mm256_set1_epi32(x); }
inline I32xN broadcast_8(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
inline I32xN repeat_16(const void * at) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i *>(at))); }
inline I32xN bit_and(I32xN a, I32xN b) { return _mm256_and_si256(a, b); }
inline I32xN bit_or(I32xN a, I32xN b) { return _mm256_or_si256(a, b); }
inline I32xN bit_xor(I32xN a, I32xN b) { return _mm256_xor_si256(a, b); }
inline I32xN add_32(I32xN a, I32xN b) { return _mm256_add_epi32(a, b); }
inline I32xN sub_32(I32xN a, I32xN b) { return _mm256_sub_epi32(a, b); }
inline I32xN mul_32(I32xN a, I32xN b) { return _mm256_mullo_epi32(a, b); }
inline I32xN add_8(I32xN a, I32xN b) { return _mm256_add_epi8(a, b); }
inline I32xN sub_8(I32xN a, I32xN b) { return _mm256_sub_epi8(a, b); }
inline I32xN compare_8(I32xN a, int limit) {
    return add_8(sub_8(broadcast_8(1), _mm256_cmpgt_epi8(a, broadcast_8(limit))), _mm256_cmpgt_epi8(broadcast_8(-limit), a));
}
template <int N> inline I32xN right_16(I32xN a) { return _mm256_srli_epi16(a, N); }
template <int N> inline I32xN left_16(I32xN a) { return _mm256_slli_epi16(a, N); }
template <int N> inline I32xN signed_right_16(I32xN a) { return _mm256_srai_epi16(a, N); }
template <int N> inline I32xN right_32(I32xN a) { return _mm256_srli_epi32(a, N); }
template <int N> inline I32xN left_32(I32xN a) { return _mm256_slli_epi32(a, N); }
template <int N> inline I32xN signed_right_32(I32xN a) { return _mm256_srai_epi32(a, N); }
inline I32xN shuffle(I32xN a, I32xN by) { return _mm256_shuffle_epi8(a, by); }
inline I32xN gather(const uint32_t * table, I32xN indices) { return _mm256_i32gather_epi32(reinterpret_cast<const int *>(table), indices, 4); }
inline I32xN where_bits(I32xN a, I32xN bits, I32xN value) { return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(a, bits), bits), value); }
inline I32xN select_less(I32xN a, I32xN than, I32xN yes, I32xN no) { return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(than, a)); }
#if defined(FOREDRAFT_AVX_VNNI)
inline I32xN dot_16(I32xN sum, I32xN a, I32xN b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
inline I32xN dot_8(I32xN sum, I32xN unsigned_bytes, I32xN signed_bytes) { return _mm256_dpbusd_avx_epi32(sum, unsigned_bytes, signed_bytes); }
#else
// Sums of two products of bytes, as 16-bit numbers.
inline I32xN pairs_8(I32xN unsigned_bytes, I32xN signed_bytes) { return _mm256_maddubs_epi16(unsigned_bytes, signed_bytes); }
// Additions that stay where they stand: GCC adds in another order, for which it computes all products first, and stores them.
inline __attribute__((always_inline)) I32xN add_16_in_order(I32xN a, I32xN b) {
    I32xN sum;
    asm("vpaddw %2, %1, %0" : "=x"(sum) : "x"(a), "x"(b));
    return sum;
}
inline __attribute__((always_inline)) I32xN add_32_in_order(I32xN a, I32xN b) {
    I32xN sum;
    asm("vpaddd %2, %1, %0" : "=x"(sum) : "x"(a), "xm"(b));
    return sum;
}
inline I32xN pairs_16(I32xN a, I32xN b) { return _mm256_madd_epi16(a, b); }
inline I32xN dot_16(I32xN sum, I32xN a, I32xN b) { return add_32_in_order(pairs_16(a, b), sum); }
// The same with numbers that no register holds.
inline __attribute__((always_inline)) I32xN pairs_16_stored(I32xN a, const I32xN * b) {
    I32xN pairs;
    asm("vpmaddwd %2, %1, %0" : "=x"(pairs) : "x"(a), "m"(*b));
    return pairs;
}
inline I32xN abs_8(I32xN a) { return _mm256_abs_epi8(a); }
inline I32xN sign_8(I32xN a, I32xN by) { return _mm256_sign_epi8(a, by); }
#endif

inline F32xN zero() { return _mm256_setzero_ps(); }
inline F32xN broadcast_f32(float x) { return _mm256_set1_ps(x); }
inline F32xN to_floats(I32xN a) { return _mm256_cvtepi32_ps(a); }
inline F32xN as_floats(I32xN a) { return _mm256_castsi256_ps(a); }
inline F32xN mul(F32xN a, F32xN b) { return _mm256_mul_ps(a, b); }
inline F32xN fma(F32xN a, F32xN b, F32xN c) { return _mm256_fmadd_ps(a, b, c); }
inline F32xN fnma(F32xN a, F32xN b, F32xN c) { return _mm256_fnmadd_ps(a, b, c); }
inline void store(float * to, F32xN a) { _mm256_storeu_ps(to, a); }
inline F32xN low_halves(I32xN a) {
    const I32xN low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline F32xN high_halves(I32xN a) { return low_halves(right_32<16>(a)); }
inline F32xN floats_of_halves(const uint8_t * at) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at))); }
inline I32xN ints_of_bytes(const uint8_t * at) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at))); }

inline __m128i load_16(const uint8_t * at) { return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at)); }

inline void transpose(const I32xN (&rows)[4], I32xN * word) {
    const I32xN a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
    const I32xN c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
    word[0] = _mm256_unpacklo_epi64(a, c);
    word[1] = _mm256_unpackhi_epi64(a, c);
    word[2] = _mm256_unpacklo_epi64(b, d);
    word[3] = _mm256_unpackhi_epi64(b, d);
}

inline void load_2_words(const uint8_t * at, size_t stride, I32xN * word) {
    F32xN joined[2];
    for (int pair = 0; pair < 2; ++pair) {
        __m128i halves[2];
        for (int half = 0; half < 2; ++half) {
            const uint8_t * first = at + (4 * half + 2 * pair) * stride;
            int64_t next;
            memcpy(&next, first + stride, sizeof next);
            halves[half] = _mm_insert_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(first)), next, 1);
        }
        joined[pair] = _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(halves[0]), halves[1], 1));
    }
    word[0] = _mm256_castps_si256(_mm256_shuffle_ps(joined[0], joined[1], 0x88));
    word[1] = _mm256_castps_si256(_mm256_shuffle_ps(joined[0], joined[1], 0xdd));
}

inline void load_4_words(const uint8_t * at, size_t stride, I32xN * word) {
    I32xN rows[4];
    for (int row = 0; row < 4; ++row) {
        const uint8_t * first = at + row * stride;
        rows[row] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(first)), load_16(first + 4 * stride), 1);
    }
    transpose(rows, word);
}

inline void load_8_words(const uint8_t * at, size_t stride, I32xN * word) {
    load_4_words(at, stride, word);
    load_4_words(at + 16, stride, word + 4);
}

struct F32x16 {
    __m256 low, high;
};
struct I32x16 {
    I32xN part[2];
};
constexpr int SUMS = 4;

inline F32x16 in_register(F32x16 a) { return a; }
template <typename F> inline F32x16 both(F f) { return { f(0), f(1) }; }
inline F32x16 broadcast_x16(float x) { return { _mm256_set1_ps(x), _mm256_set1_ps(x) }; }
inline F32x16 load_floats(const float * at) { return { _mm256_loadu_ps(at), _mm256_loadu_ps(at + 8) }; }
inline F32x16 load_halves(const uint16_t * at) {
    return both([=](int half) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at + 8 * half))); });
}
inline F32x16 load_bf16(const uint16_t * at) {
    return both([=](int half) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at + 8 * half))), 16));
    });
}
inline F32x16 floats_of_bytes(I32xN a) {
    const __m128i low = _mm256_castsi256_si128(a), high = _mm_unpackhi_epi64(low, low);
    return { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)) };
}
inline F32x16 load_bytes(const int8_t * at) {
    return both(
        [=](int half) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at + 8 * half)))); });
}
inline void store_x16(float * to, F32x16 a) {
    _mm256_storeu_ps(to, a.low);
    _mm256_storeu_ps(to + 8, a.high);
}
inline F32x16 fma_x16(F32x16 a, F32x16 b, F32x16 c) { return { _mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high) }; }
inline F32x16 add_x16(F32x16 a, F32x16 b) { return { _mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high) }; }
inline F32x16 mul_x16(F32x16 a, F32x16 b) { return { _mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high) }; }
inline F32x16 max_x16(F32x16 a, F32x16 b) { return { _mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high) }; }
inline F32x16 abs_x16(F32x16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return { _mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high) };
}
inline bool has_nan(F32x16 a) {
    return (_mm256_movemask_ps(_mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q)) | _mm256_movemask_ps(_mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q))) != 0;
}
inline F32x16 round_x16(F32x16 x) {
    constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return { _mm256_round_ps(x.low, NEAREST), _mm256_round_ps(x.high, NEAREST) };
}
inline __m256 scale_half(__m256 x, __m256 n, __m256 p) {
    const __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
    return _mm256_and_ps(_mm256_castsi256_ps(scaled), _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_NLT_UQ));
}
inline F32x16 scale_by_power(F32x16 x, F32x16 n, F32x16 p) { return { scale_half(x.low, n.low, p.low), scale_half(x.high, n.high, p.high) }; }
inline void store_bytes(int8_t * to, F32x16 a) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
inline __m256 add_mask_half(__m256 x, __m256 mask) {
    return _mm256_blendv_ps(_mm256_add_ps(x, mask), mask, _mm256_cmp_ps(mask, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ));
}
inline F32x16 add_mask(F32x16 x, F32x16 mask) { return { add_mask_half(x.low, mask.low), add_mask_half(x.high, mask.high) }; }
inline I32x16 to_i32_x16(F32x16 a) { return { { _mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high) } }; }
inline F32x16 to_f32_x16(const I32x16 & a) { return { _mm256_cvtepi32_ps(a.part[0]), _mm256_cvtepi32_ps(a.part[1]) }; }
inline unsigned not_zero(const I32x16 & a) {
    const auto zeros = [](I32xN x) { return unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x, _mm256_setzero_si256())))); };
    return (zeros(a.part[0]) | zeros(a.part[1]) << 8) ^ 0xffff;
}
inline void store_i32_x16(int32_t * to, const I32x16 & a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), a.part[0]);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + 8), a.part[1]);
}
inline __m256 lower(F32x16 a) { return a.low; }
inline __m256 upper(F32x16 a) { return a.high; }

#endif

#if !defined(FOREDRAFT_NEON)

// The sum of 16 lanes, in one order at every level: lanes i and i + 8, then lanes i and i + 2 of each four, then the two pairs, then the two
// fours.
inline float reduce_add(F32x16 a) {
    const __m256 eight = _mm256_add_ps(lower(a), upper(a));
    const __m256 pairs = _mm256_add_ps(eight, _mm256_permute_ps(eight, 0x0e));
    const __m256 fours = _mm256_add_ps(pairs, _mm256_permute_ps(pairs, 0x01));
    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}

// The totals of four vectors, in the same order.
inline void store_reduced(float * to, F32x16 a, F32x16 b, F32x16 c, F32x16 d) {
    const __m256 a8 = _mm256_add_ps(lower(a), upper(a)), b8 = _mm256_add_ps(lower(b), upper(b));
    const __m256 c8 = _mm256_add_ps(lower(c), upper(c)), d8 = _mm256_add_ps(lower(d), upper(d));
    // Lanes of four: a0+a2, b0+b2, a1+a3, b1+b3.
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a8, b8), _mm256_unpackhi_ps(a8, b8));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c8, d8), _mm256_unpackhi_ps(c8, d8));
    const __m256 fours = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}

// The largest of 16 lanes.
inline float reduce_max(F32x16 a) {
    __m256 x = _mm256_max_ps(lower(a), upper(a));
    x = _mm256_max_ps(x, _mm256_permute_ps(x, 0x0e));
    x = _mm256_max_ps(x, _mm256_permute_ps(x, 0x01));
    return _mm_cvtss_f32(_mm_max_ss(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

inline float first_of(F32x16 a) { return _mm256_cvtss_f32(lower(a)); }
inline float float_of_half(uint16_t x) { return _cvtsh_ss(x); }
inline int reduce_add_16(const int8_t * at) {
    const __m128i ones = _mm_set1_epi8(1), x = _mm_loadu_si128(reinterpret_cast<const __m128i *>(at));
    __m128i sum = _mm_madd_epi16(_mm_maddubs_epi16(ones, x), _mm_set1_epi16(1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

#endif

// e^x = e^r * 2^n: the whole number n, and e^r, where |r| <= ln 2 / 2.
constexpr float LOG2_E = 1.44269504f;
inline F32x16 powers_of(F32x16 x) { return round_x16(mul_x16(x, broadcast_x16(LOG2_E))); }
inline F32x16 exp_beside(F32x16 x, F32x16 n) {
    // ln 2 in two parts, the first exact in its products with small integers; then the series.
    const F32x16 r = fma_x16(n, broadcast_x16(-1.42860677e-6f), fma_x16(n, broadcast_x16(-0.693145752f), x));
    F32x16 p = broadcast_x16(1.3888889e-3f);
    p = fma_x16(p, r, broadcast_x16(8.3333333e-3f));
    p = fma_x16(p, r, broadcast_x16(4.1666667e-2f));
    p = fma_x16(p, r, broadcast_x16(1.6666667e-1f));
    p = fma_x16(p, r, broadcast_x16(0.5f));
    p = fma_x16(p, r, broadcast_x16(1.0f));
    return fma_x16(p, r, broadcast_x16(1.0f));
}

// e^x for x <= 0; 0 below -87.
inline float exp_of(float x) {
    const F32x16 n = powers_of(broadcast_x16(x));
    return first_of(scale_by_power(broadcast_x16(x), n, exp_beside(broadcast_x16(x), n)));
}

// e^x / 2^power, where `power` is not less than that of x; 0 below 2^-87. Another power changes the exponent of the result alone.
inline F32x16 exp_relative_to(F32x16 x, float power) {
    const F32x16 n = powers_of(x), by = add_x16(n, broadcast_x16(-power));
    return scale_by_power(by, by, exp_beside(x, n));
}

inline float power_of_two(int n) {
    const int32_t bits = (n + 127) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Adds the lower and the upper 16 bits of whole numbers that are not negative.
inline void add_halves(const I32x16 & a, I32x16 & low, I32x16 & high) {
    for (int i = 0; i < 16 / LANES; ++i) {
        low.part[i] = add_32(low.part[i], bit_and(a.part[i], broadcast(0xffff)));
        high.part[i] = add_32(high.part[i], right_32<16>(a.part[i]));
    }
}
inline int64_t reduce_add_i64(const I32x16 & a) {
    int32_t lanes[16];
    store_i32_x16(lanes, a);
    int64_t sum = 0;
    for (const int32_t lane : lanes) {
        sum += lane;
    }
    return sum;
}

inline int min_of(int a, int b) { return a < b ? a : b; }
inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
