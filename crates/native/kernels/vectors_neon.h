// The vectors of AArch64's levels: one register. vectors.h explains the names.
#pragma once

#include "level.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

using I32xN = int32x4_t;
using F32xN = float32x4_t;
constexpr int LANES = 4;
constexpr int TILE = 8;

inline uint8x16_t bytes(I32xN a) { return vreinterpretq_u8_s32(a); }
inline int8x16_t signed_bytes(I32xN a) { return vreinterpretq_s8_s32(a); }
inline uint16x8_t halves(I32xN a) { return vreinterpretq_u16_s32(a); }
inline int16x8_t signed_halves(I32xN a) { return vreinterpretq_s16_s32(a); }
inline uint32x4_t words(I32xN a) { return vreinterpretq_u32_s32(a); }
inline I32xN ints(uint8x16_t a) { return vreinterpretq_s32_u8(a); }
inline I32xN ints(uint16x8_t a) { return vreinterpretq_s32_u16(a); }
inline I32xN ints(int16x8_t a) { return vreinterpretq_s32_s16(a); }
inline I32xN ints(uint32x4_t a) { return vreinterpretq_s32_u32(a); }

inline I32xN load(const void * at) { return ints(vld1q_u8(static_cast<const uint8_t *>(at))); }
inline void store(uint8_t * to, I32xN a) { vst1q_u8(to, bytes(a)); }
inline I32xN broadcast(int32_t x) { return vdupq_n_s32(x); }
inline I32xN broadcast_8(int x) { return ints(vdupq_n_u8(static_cast<uint8_t>(x))); }
inline I32xN repeat_16(const void * at) { return load(at); }
inline I32xN bit_and(I32xN a, I32xN b) { return vandq_s32(a, b); }
inline I32xN bit_or(I32xN a, I32xN b) { return vorrq_s32(a, b); }
inline I32xN bit_xor(I32xN a, I32xN b) { return veorq_s32(a, b); }
inline I32xN add_32(I32xN a, I32xN b) { return vaddq_s32(a, b); }
inline I32xN sub_32(I32xN a, I32xN b) { return vsubq_s32(a, b); }
inline I32xN mul_32(I32xN a, I32xN b) { return vmulq_s32(a, b); }
inline I32xN add_8(I32xN a, I32xN b) { return ints(vaddq_u8(bytes(a), bytes(b))); }
inline I32xN sub_8(I32xN a, I32xN b) { return ints(vsubq_u8(bytes(a), bytes(b))); }
inline I32xN compare_8(I32xN a, int limit) {
    const I32xN greater = ints(vcgtq_s8(signed_bytes(a), signed_bytes(broadcast_8(limit))));
    return add_8(sub_8(broadcast_8(1), greater), ints(vcltq_s8(signed_bytes(a), signed_bytes(broadcast_8(-limit)))));
}
template <int N> inline I32xN right_16(I32xN a) { return ints(vshrq_n_u16(halves(a), N)); }
template <int N> inline I32xN left_16(I32xN a) { return ints(vshlq_n_u16(halves(a), N)); }
template <int N> inline I32xN signed_right_16(I32xN a) { return ints(vshrq_n_s16(signed_halves(a), N)); }
template <int N> inline I32xN right_32(I32xN a) { return ints(vshrq_n_u32(words(a), N)); }
template <int N> inline I32xN left_32(I32xN a) { return vshlq_n_s32(a, N); }
template <int N> inline I32xN signed_right_32(I32xN a) { return vshrq_n_s32(a, N); }
inline I32xN shuffle(I32xN a, I32xN by) { return ints(vqtbl1q_u8(bytes(a), bytes(by))); }
inline I32xN gather(const uint32_t * table, I32xN indices) {
    const uint32_t words[4] = { table[vgetq_lane_s32(indices, 0)], table[vgetq_lane_s32(indices, 1)], table[vgetq_lane_s32(indices, 2)],
        table[vgetq_lane_s32(indices, 3)] };
    return ints(vld1q_u32(words));
}
inline I32xN where_bits(I32xN a, I32xN bits, I32xN value) { return vandq_s32(ints(vtstq_u8(bytes(a), bytes(bits))), value); }
inline I32xN select_less(I32xN a, I32xN than, I32xN yes, I32xN no) { return vbslq_s32(vcltq_s32(a, than), yes, no); }
inline I32xN dot_16(I32xN sum, I32xN a, I32xN b) {
    const int32x4_t low = vmull_s16(vget_low_s16(signed_halves(a)), vget_low_s16(signed_halves(b)));
    return vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(signed_halves(a), signed_halves(b))));
}
// Adds the products of four signed bytes of each lane with the four of word `WORD` of `four`.
template <int WORD> inline I32xN dot_8(I32xN sum, I32xN weights, I32xN four) {
#if defined(FOREDRAFT_DOTPROD)
    return vdotq_laneq_s32(sum, signed_bytes(weights), signed_bytes(four), WORD);
#else
    const int8x16_t a = signed_bytes(weights), b = signed_bytes(vdupq_laneq_s32(four, WORD));
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}

inline F32xN zero() { return vdupq_n_f32(0.0f); }
inline F32xN broadcast_f32(float x) { return vdupq_n_f32(x); }
inline F32xN to_floats(I32xN a) { return vcvtq_f32_s32(a); }
inline F32xN as_floats(I32xN a) { return vreinterpretq_f32_s32(a); }
inline F32xN mul(F32xN a, F32xN b) { return vmulq_f32(a, b); }
inline F32xN fma(F32xN a, F32xN b, F32xN c) { return vfmaq_f32(c, a, b); }
inline F32xN fnma(F32xN a, F32xN b, F32xN c) { return vfmsq_f32(c, a, b); }
inline void store(float * to, F32xN a) { vst1q_f32(to, a); }
inline F32xN low_halves(I32xN a) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(words(a)))); }
inline F32xN high_halves(I32xN a) { return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(words(a), 16))); }
inline F32xN floats_of_halves(const uint8_t * at) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))); }
inline I32xN ints_of_bytes(const uint8_t * at) {
    uint32_t four;
    memcpy(&four, at, sizeof four);
    return ints(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}

// Four registers with four words of a row each: word w of all rows in `word[w]`.
inline void transpose(const I32xN (&rows)[4], I32xN * word) {
    const I32xN a = vzip1q_s32(rows[0], rows[2]), b = vzip2q_s32(rows[0], rows[2]);
    const I32xN c = vzip1q_s32(rows[1], rows[3]), d = vzip2q_s32(rows[1], rows[3]);
    word[0] = vzip1q_s32(a, c);
    word[1] = vzip2q_s32(a, c);
    word[2] = vzip1q_s32(b, d);
    word[3] = vzip2q_s32(b, d);
}
inline I32xN load_two_rows(const uint8_t * at, size_t stride) { return ints(vcombine_u8(vld1_u8(at), vld1_u8(at + stride))); }
inline void load_2_words(const uint8_t * at, size_t stride, I32xN * word) {
    const I32xN first = load_two_rows(at, stride), next = load_two_rows(at + 2 * stride, stride);
    word[0] = vuzp1q_s32(first, next);
    word[1] = vuzp2q_s32(first, next);
}
inline void load_4_words(const uint8_t * at, size_t stride, I32xN * word) {
    const I32xN rows[4] = { load(at), load(at + stride), load(at + 2 * stride), load(at + 3 * stride) };
    transpose(rows, word);
}
inline void load_8_words(const uint8_t * at, size_t stride, I32xN * word) {
    load_4_words(at, stride, word);
    load_4_words(at + 16, stride, word + 4);
}

struct F32x16 {
    float32x4_t fours[4];
};
constexpr int SUMS = 4;

template <typename F> inline __attribute__((always_inline)) F32x16 of_fours(F f) { return { { f(0), f(1), f(2), f(3) } }; }
inline F32x16 in_register(const F32x16 & a) { return a; }
inline F32x16 broadcast_x16(float x) {
    return of_fours([=](int) { return vdupq_n_f32(x); });
}
inline F32x16 load_floats(const float * at) {
    return of_fours([=](int four) { return vld1q_f32(at + 4 * four); });
}
inline F32x16 load_halves(const uint16_t * at) {
    return of_fours([=](int four) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at + 4 * four))); });
}
inline F32x16 load_bf16(const uint16_t * at) {
    return of_fours([=](int four) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(at + 4 * four), 16)); });
}
inline F32x16 floats_of_bytes(I32xN a) {
    const int8x16_t all_16 = signed_bytes(a);
    const int16x8_t low = vmovl_s8(vget_low_s8(all_16)), high = vmovl_high_s8(all_16);
    return { { vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)), vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_high_s16(high)) } };
}
inline F32x16 load_bytes(const int8_t * at) { return floats_of_bytes(load(at)); }
inline void store_x16(float * to, const F32x16 & a) {
    for (int four = 0; four < 4; ++four) {
        vst1q_f32(to + 4 * four, a.fours[four]);
    }
}
inline F32x16 fma_x16(const F32x16 & a, const F32x16 & b, const F32x16 & c) {
    return of_fours([&](int four) { return vfmaq_f32(c.fours[four], a.fours[four], b.fours[four]); });
}
inline F32x16 add_x16(const F32x16 & a, const F32x16 & b) {
    return of_fours([&](int four) { return vaddq_f32(a.fours[four], b.fours[four]); });
}
inline F32x16 mul_x16(const F32x16 & a, const F32x16 & b) {
    return of_fours([&](int four) { return vmulq_f32(a.fours[four], b.fours[four]); });
}
// As on x86-64, the second number unless the first one is larger: it makes a difference for NaN.
inline float32x4_t max_4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline F32x16 max_x16(const F32x16 & a, const F32x16 & b) {
    return of_fours([&](int four) { return max_4(a.fours[four], b.fours[four]); });
}
inline F32x16 abs_x16(const F32x16 & a) {
    return of_fours([&](int four) { return vabsq_f32(a.fours[four]); });
}
inline bool has_nan(const F32x16 & a) {
    uint32x4_t numbers = vceqq_f32(a.fours[0], a.fours[0]);
    for (int four = 1; four < 4; ++four) {
        numbers = vandq_u32(numbers, vceqq_f32(a.fours[four], a.fours[four]));
    }
    return vminvq_u32(numbers) == 0;
}
inline F32x16 round_x16(const F32x16 & a) {
    return of_fours([&](int four) { return vrndnq_f32(a.fours[four]); });
}
inline F32x16 scale_by_power(const F32x16 & x, const F32x16 & n, const F32x16 & p) {
    return of_fours([&](int four) {
        const I32xN scaled = vaddq_s32(vreinterpretq_s32_f32(p.fours[four]), vshlq_n_s32(vcvtnq_s32_f32(n.fours[four]), 23));
        return as_floats(ints(vbicq_u32(words(scaled), vcltq_f32(x.fours[four], vdupq_n_f32(-87.0f)))));
    });
}
// 16 whole numbers of 32 bits.
struct I32x16 {
    I32xN part[4];
};
inline F32x16 add_mask(const F32x16 & x, const F32x16 & mask) {
    return of_fours([&](int four) {
        const float32x4_t m = mask.fours[four];
        return vbslq_f32(vceqq_f32(m, vdupq_n_f32(-INFINITY)), m, vaddq_f32(x.fours[four], m));
    });
}
// As on x86-64, what is no number becomes the least one.
inline I32xN rounded(float32x4_t x) { return vbslq_s32(vceqq_f32(x, x), vcvtnq_s32_f32(x), vdupq_n_s32(INT32_MIN)); }
inline I32x16 to_i32_x16(const F32x16 & a) { return { { rounded(a.fours[0]), rounded(a.fours[1]), rounded(a.fours[2]), rounded(a.fours[3]) } }; }
inline F32x16 to_f32_x16(const I32x16 & a) {
    return of_fours([&](int four) { return vcvtq_f32_s32(a.part[four]); });
}
inline unsigned not_zero(const I32x16 & a) {
    alignas(16) static const uint8_t BITS[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    const auto halves_of = [&](int at) { return vmovn_u32(vtstq_s32(a.part[at], a.part[at])); };
    const uint8x8_t low = vmovn_u16(vcombine_u16(halves_of(0), halves_of(1))), high = vmovn_u16(vcombine_u16(halves_of(2), halves_of(3)));
    return unsigned(vaddv_u8(vand_u8(low, vld1_u8(BITS)))) | unsigned(vaddv_u8(vand_u8(high, vld1_u8(BITS)))) << 8;
}
inline void store_i32_x16(int32_t * to, const I32x16 & a) {
    for (int four = 0; four < 4; ++four) {
        vst1q_s32(to + 4 * four, a.part[four]);
    }
}
// Rounds to bytes. As on x86-64, what is no number becomes -128.
inline void store_bytes(int8_t * to, const F32x16 & a) {
    const auto narrow = [&](int four) { return vqmovn_s32(rounded(a.fours[four])); };
    const int16x8_t low = vcombine_s16(narrow(0), narrow(1)), high = vcombine_s16(narrow(2), narrow(3));
    vst1q_s8(to, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}

// Lanes i and i + 8, then lanes i and i + 2 of each four, then the two pairs, then the two fours.
inline float reduce_add(const F32x16 & a) {
    const float32x4_t first = vaddq_f32(a.fours[0], a.fours[2]), second = vaddq_f32(a.fours[1], a.fours[3]);
    const float32x2_t of_first = vadd_f32(vget_low_f32(first), vget_high_f32(first));
    const float32x2_t of_second = vadd_f32(vget_low_f32(second), vget_high_f32(second));
    return vpadds_f32(of_first) + vpadds_f32(of_second);
}
inline void store_reduced(float * to, const F32x16 & a, const F32x16 & b, const F32x16 & c, const F32x16 & d) {
    to[0] = reduce_add(a);
    to[1] = reduce_add(b);
    to[2] = reduce_add(c);
    to[3] = reduce_add(d);
}
inline float reduce_max(const F32x16 & a) {
    const float32x4_t x = max_4(max_4(a.fours[0], a.fours[2]), max_4(a.fours[1], a.fours[3]));
    float lanes[4];
    vst1q_f32(lanes, x);
    const float even = lanes[0] > lanes[2] ? lanes[0] : lanes[2], odd = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
    return even > odd ? even : odd;
}
inline float first_of(const F32x16 & a) { return vgetq_lane_f32(a.fours[0], 0); }
inline float float_of_half(uint16_t x) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0); }
inline int reduce_add_16(const int8_t * at) { return vaddlvq_s8(vld1q_s8(at)); }

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
