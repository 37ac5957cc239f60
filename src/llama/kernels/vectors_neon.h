// The vectors of AArch64's levels: one register. vectors.h explains the names.
#pragma once

#include "level.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

using Ints = int32x4_t;
using Floats = float32x4_t;
constexpr int LANES = 4;
constexpr int TILE = 8;

inline uint8x16_t bytes(Ints a) { return vreinterpretq_u8_s32(a); }
inline int8x16_t signed_bytes(Ints a) { return vreinterpretq_s8_s32(a); }
inline uint16x8_t halves(Ints a) { return vreinterpretq_u16_s32(a); }
inline int16x8_t signed_halves(Ints a) { return vreinterpretq_s16_s32(a); }
inline uint32x4_t words(Ints a) { return vreinterpretq_u32_s32(a); }
inline Ints ints(uint8x16_t a) { return vreinterpretq_s32_u8(a); }
inline Ints ints(uint16x8_t a) { return vreinterpretq_s32_u16(a); }
inline Ints ints(int16x8_t a) { return vreinterpretq_s32_s16(a); }
inline Ints ints(uint32x4_t a) { return vreinterpretq_s32_u32(a); }

inline Ints load(const void * at) { return ints(vld1q_u8(static_cast<const uint8_t *>(at))); }
inline void store(uint8_t * to, Ints a) { vst1q_u8(to, bytes(a)); }
inline Ints all(int32_t x) { return vdupq_n_s32(x); }
inline Ints all_bytes(int x) { return ints(vdupq_n_u8(static_cast<uint8_t>(x))); }
inline Ints repeat_16(const void * at) { return load(at); }
inline Ints both_bits(Ints a, Ints b) { return vandq_s32(a, b); }
inline Ints any_bits(Ints a, Ints b) { return vorrq_s32(a, b); }
inline Ints flip_bits(Ints a, Ints b) { return veorq_s32(a, b); }
inline Ints add_32(Ints a, Ints b) { return vaddq_s32(a, b); }
inline Ints sub_32(Ints a, Ints b) { return vsubq_s32(a, b); }
inline Ints mul_32(Ints a, Ints b) { return vmulq_s32(a, b); }
inline Ints sub_8(Ints a, Ints b) { return ints(vsubq_u8(bytes(a), bytes(b))); }
template <int N> inline Ints right_16(Ints a) { return ints(vshrq_n_u16(halves(a), N)); }
template <int N> inline Ints left_16(Ints a) { return ints(vshlq_n_u16(halves(a), N)); }
template <int N> inline Ints signed_right_16(Ints a) { return ints(vshrq_n_s16(signed_halves(a), N)); }
template <int N> inline Ints right_32(Ints a) { return ints(vshrq_n_u32(words(a), N)); }
template <int N> inline Ints left_32(Ints a) { return vshlq_n_s32(a, N); }
template <int N> inline Ints signed_right_32(Ints a) { return vshrq_n_s32(a, N); }
inline Ints shuffle(Ints a, Ints by) { return ints(vqtbl1q_u8(bytes(a), bytes(by))); }
inline Ints gather(const uint32_t * table, Ints indices) {
    const uint32_t words[4] = { table[vgetq_lane_s32(indices, 0)], table[vgetq_lane_s32(indices, 1)], table[vgetq_lane_s32(indices, 2)],
        table[vgetq_lane_s32(indices, 3)] };
    return ints(vld1q_u32(words));
}
inline Ints where_bits(Ints a, Ints bits, Ints value) { return vandq_s32(ints(vtstq_u8(bytes(a), bytes(bits))), value); }
inline Ints select_less(Ints a, Ints than, Ints yes, Ints no) { return vbslq_s32(vcltq_s32(a, than), yes, no); }
inline Ints dot_16(Ints sum, Ints a, Ints b) {
    const int32x4_t low = vmull_s16(vget_low_s16(signed_halves(a)), vget_low_s16(signed_halves(b)));
    return vaddq_s32(sum, vpaddq_s32(low, vmull_high_s16(signed_halves(a), signed_halves(b))));
}
// Adds the products of four signed bytes of each lane with the four of word `WORD` of `four`.
template <int WORD> inline Ints dot_8(Ints sum, Ints weights, Ints four) {
#if defined(FOREDRAFT_DOTPROD)
    return vdotq_laneq_s32(sum, signed_bytes(weights), signed_bytes(four), WORD);
#else
    const int8x16_t a = signed_bytes(weights), b = signed_bytes(vdupq_laneq_s32(four, WORD));
    return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}

inline Floats zero() { return vdupq_n_f32(0.0f); }
inline Floats all_floats(float x) { return vdupq_n_f32(x); }
inline Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }
inline Floats as_floats(Ints a) { return vreinterpretq_f32_s32(a); }
inline Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Floats fnma(Floats a, Floats b, Floats c) { return vfmsq_f32(c, a, b); }
inline void store(float * to, Floats a) { vst1q_f32(to, a); }
inline Floats low_halves(Ints a) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(words(a)))); }
inline Floats high_halves(Ints a) { return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(words(a), 16))); }
inline Floats floats_of_halves(const uint8_t * at) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at))); }
inline Ints ints_of_bytes(const uint8_t * at) {
    uint32_t four;
    memcpy(&four, at, sizeof four);
    return ints(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}

// Four registers with four words of a row each: word w of all rows in `word[w]`.
inline void transpose(const Ints (&rows)[4], Ints * word) {
    const Ints a = vzip1q_s32(rows[0], rows[2]), b = vzip2q_s32(rows[0], rows[2]);
    const Ints c = vzip1q_s32(rows[1], rows[3]), d = vzip2q_s32(rows[1], rows[3]);
    word[0] = vzip1q_s32(a, c);
    word[1] = vzip2q_s32(a, c);
    word[2] = vzip1q_s32(b, d);
    word[3] = vzip2q_s32(b, d);
}
inline Ints load_two_rows(const uint8_t * at, size_t stride) { return ints(vcombine_u8(vld1_u8(at), vld1_u8(at + stride))); }
inline void load_2_words(const uint8_t * at, size_t stride, Ints * word) {
    const Ints first = load_two_rows(at, stride), next = load_two_rows(at + 2 * stride, stride);
    word[0] = vuzp1q_s32(first, next);
    word[1] = vuzp2q_s32(first, next);
}
inline void load_4_words(const uint8_t * at, size_t stride, Ints * word) {
    const Ints rows[4] = { load(at), load(at + stride), load(at + 2 * stride), load(at + 3 * stride) };
    transpose(rows, word);
}
inline void load_8_words(const uint8_t * at, size_t stride, Ints * word) {
    load_4_words(at, stride, word);
    load_4_words(at + 16, stride, word + 4);
}

struct Sixteen {
    float32x4_t fours[4];
};
constexpr int SUMS = 4;

template <typename F> inline __attribute__((always_inline)) Sixteen of_fours(F f) { return { { f(0), f(1), f(2), f(3) } }; }
inline Sixteen sixteen(float x) {
    return of_fours([=](int) { return vdupq_n_f32(x); });
}
inline Sixteen load_floats(const float * at) {
    return of_fours([=](int four) { return vld1q_f32(at + 4 * four); });
}
inline Sixteen load_halves(const uint16_t * at) {
    return of_fours([=](int four) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(at + 4 * four))); });
}
inline Sixteen load_bf16(const uint16_t * at) {
    return of_fours([=](int four) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(at + 4 * four), 16)); });
}
inline Sixteen load_bytes(const int8_t * at) {
    const int8x16_t all_16 = vld1q_s8(at);
    const int16x8_t low = vmovl_s8(vget_low_s8(all_16)), high = vmovl_high_s8(all_16);
    return { { vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)), vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_high_s16(high)) } };
}
inline void store_16(float * to, const Sixteen & a) {
    for (int four = 0; four < 4; ++four) {
        vst1q_f32(to + 4 * four, a.fours[four]);
    }
}
inline Sixteen fma_16(const Sixteen & a, const Sixteen & b, const Sixteen & c) {
    return of_fours([&](int four) { return vfmaq_f32(c.fours[four], a.fours[four], b.fours[four]); });
}
inline Sixteen add_16(const Sixteen & a, const Sixteen & b) {
    return of_fours([&](int four) { return vaddq_f32(a.fours[four], b.fours[four]); });
}
inline Sixteen mul_16(const Sixteen & a, const Sixteen & b) {
    return of_fours([&](int four) { return vmulq_f32(a.fours[four], b.fours[four]); });
}
// As on x86-64, the second number unless the first one is larger: it makes a difference for NaN.
inline float32x4_t max_4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Sixteen max_16(const Sixteen & a, const Sixteen & b) {
    return of_fours([&](int four) { return max_4(a.fours[four], b.fours[four]); });
}
inline Sixteen abs_16(const Sixteen & a) {
    return of_fours([&](int four) { return vabsq_f32(a.fours[four]); });
}
inline bool has_nan(const Sixteen & a) {
    uint32x4_t numbers = vceqq_f32(a.fours[0], a.fours[0]);
    for (int four = 1; four < 4; ++four) {
        numbers = vandq_u32(numbers, vceqq_f32(a.fours[four], a.fours[four]));
    }
    return vminvq_u32(numbers) == 0;
}
inline Sixteen round_16(const Sixteen & a) {
    return of_fours([&](int four) { return vrndnq_f32(a.fours[four]); });
}
inline Sixteen scale_by_power(const Sixteen & x, const Sixteen & n, const Sixteen & p) {
    return of_fours([&](int four) {
        const Ints scaled = vaddq_s32(vreinterpretq_s32_f32(p.fours[four]), vshlq_n_s32(vcvtnq_s32_f32(n.fours[four]), 23));
        return as_floats(ints(vbicq_u32(words(scaled), vcltq_f32(x.fours[four], vdupq_n_f32(-87.0f)))));
    });
}
// 16 whole numbers of 32 bits.
struct Wholes {
    Ints part[4];
};
inline Sixteen add_mask(const Sixteen & x, const Sixteen & mask) {
    return of_fours([&](int four) {
        const float32x4_t m = mask.fours[four];
        return vbslq_f32(vceqq_f32(m, vdupq_n_f32(-INFINITY)), m, vaddq_f32(x.fours[four], m));
    });
}
// As on x86-64, what is no number becomes the least one.
inline Ints rounded(float32x4_t x) { return vbslq_s32(vceqq_f32(x, x), vcvtnq_s32_f32(x), vdupq_n_s32(INT32_MIN)); }
inline Wholes to_wholes(const Sixteen & a) { return { { rounded(a.fours[0]), rounded(a.fours[1]), rounded(a.fours[2]), rounded(a.fours[3]) } }; }
inline Sixteen of_wholes(const Wholes & a) {
    return of_fours([&](int four) { return vcvtq_f32_s32(a.part[four]); });
}
inline unsigned not_zero(const Wholes & a) {
    alignas(16) static const uint8_t BITS[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    const auto halves_of = [&](int at) { return vmovn_u32(vtstq_s32(a.part[at], a.part[at])); };
    const uint8x8_t low = vmovn_u16(vcombine_u16(halves_of(0), halves_of(1))), high = vmovn_u16(vcombine_u16(halves_of(2), halves_of(3)));
    return unsigned(vaddv_u8(vand_u8(low, vld1_u8(BITS)))) | unsigned(vaddv_u8(vand_u8(high, vld1_u8(BITS)))) << 8;
}
inline void store_wholes(int32_t * to, const Wholes & a) {
    for (int four = 0; four < 4; ++four) {
        vst1q_s32(to + 4 * four, a.part[four]);
    }
}
// Rounds to bytes. As on x86-64, what is no number becomes -128.
inline void store_bytes(int8_t * to, const Sixteen & a) {
    const auto narrow = [&](int four) { return vqmovn_s32(rounded(a.fours[four])); };
    const int16x8_t low = vcombine_s16(narrow(0), narrow(1)), high = vcombine_s16(narrow(2), narrow(3));
    vst1q_s8(to, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}

// Lanes i and i + 8, then lanes i and i + 2 of each four, then the two pairs, then the two fours.
inline float total(const Sixteen & a) {
    const float32x4_t first = vaddq_f32(a.fours[0], a.fours[2]), second = vaddq_f32(a.fours[1], a.fours[3]);
    const float32x2_t of_first = vadd_f32(vget_low_f32(first), vget_high_f32(first));
    const float32x2_t of_second = vadd_f32(vget_low_f32(second), vget_high_f32(second));
    return vpadds_f32(of_first) + vpadds_f32(of_second);
}
inline void store_totals(float * to, const Sixteen & a, const Sixteen & b, const Sixteen & c, const Sixteen & d) {
    to[0] = total(a);
    to[1] = total(b);
    to[2] = total(c);
    to[3] = total(d);
}
inline float largest(const Sixteen & a) {
    const float32x4_t x = max_4(max_4(a.fours[0], a.fours[2]), max_4(a.fours[1], a.fours[3]));
    float lanes[4];
    vst1q_f32(lanes, x);
    const float even = lanes[0] > lanes[2] ? lanes[0] : lanes[2], odd = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
    return even > odd ? even : odd;
}
inline float first_of(const Sixteen & a) { return vgetq_lane_f32(a.fours[0], 0); }
inline float float_of_half(uint16_t x) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0); }
inline int sum_of_16(const int8_t * at) { return vaddlvq_s8(vld1q_s8(at)); }

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
