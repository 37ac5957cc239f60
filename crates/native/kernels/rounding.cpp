// ggml's functions whose NEON code rounds or adds in another order than its AVX2 code, in the order of the AVX2 code, so that AArch64 computes
// the bits that x86-64 computes. Compiled for AArch64 only.
//
//   ggml_vec_soft_max_f32, ggml_vec_cvar_f32   sums of groups of eight, not of four (attention without our kernel, routers of experts, norms)
//   ggml_vec_silu_f32, ggml_vec_swiglu_f32     `expf` for what remains after groups of eight
//   quantize_row_q8_0                          numbers times 127 / largest, not divided by a rounded scale (Q8_0 caches)
#include "linked.h"
#include "seam.h"
#include "vec.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <arm_neon.h>
#include <math.h>

namespace {

// Lanes i and i + 4, then the sums 2 apart, then the two.
float sum_of_8(float32x4_t low, float32x4_t high) {
    const float32x4_t fours = vaddq_f32(high, low);
    const float32x2_t pairs = vadd_f32(vget_low_f32(fours), vget_high_f32(fours));
    return vget_lane_f32(pairs, 0) + vget_lane_f32(pairs, 1);
}

}  // namespace

extern "C" {

ggml_float __wrap_ggml_vec_soft_max_f32(const int n, float * y, const float * x, float max) {
    ggml_float sum = 0;
    int i = 0;
    for (; i + 7 < n; i += 8) {
        const float32x4_t low = ggml_v_expf(vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(max)));
        const float32x4_t high = ggml_v_expf(vsubq_f32(vld1q_f32(x + i + 4), vdupq_n_f32(max)));
        vst1q_f32(y + i, low);
        vst1q_f32(y + i + 4, high);
        sum += ggml_float(sum_of_8(low, high));
    }
    for (; i < n; ++i) {
        y[i] = expf(x[i] - max);
        sum += ggml_float(y[i]);
    }
    return sum;
}

ggml_float __wrap_ggml_vec_cvar_f32(const int n, float * y, const float * x, const float mean) {
    ggml_float sum = 0;
    int i = 0;
    for (; i + 7 < n; i += 8) {
        const float32x4_t low = vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(mean)), high = vsubq_f32(vld1q_f32(x + i + 4), vdupq_n_f32(mean));
        vst1q_f32(y + i, low);
        vst1q_f32(y + i + 4, high);
        sum += ggml_float(sum_of_8(vmulq_f32(low, low), vmulq_f32(high, high)));
    }
    for (; i < n; ++i) {
        const float distance = x[i] - mean;
        y[i] = distance;
        sum += ggml_float(distance * distance);
    }
    return sum / n;
}

void __wrap_ggml_vec_silu_f32(const int n, float * y, const float * x) {
    const int eights = n / 8 * 8;
    __real_ggml_vec_silu_f32(eights, y, x);
    for (int i = eights; i < n; ++i) {
        y[i] = ggml_silu_f32(x[i]);
    }
}

void __wrap_ggml_vec_swiglu_f32(const int n, float * y, const float * x, const float * g) {
    const int eights = n / 8 * 8;
    __real_ggml_vec_swiglu_f32(eights, y, x, g);
    for (int i = eights; i < n; ++i) {
        y[i] = ggml_silu_f32(x[i]) * g[i];
    }
}

void __wrap_quantize_row_q8_0(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k) {
    auto * block = static_cast<block_q8_0 *>(y);
    for (const float * end = x + k; x < end; x += QK8_0, ++block) {
        float32x4_t most = vabsq_f32(vld1q_f32(x));
        for (int i = 4; i < QK8_0; i += 4) {
            most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + i)));
        }
        const float largest = vmaxvq_f32(most);
        block->d = GGML_CPU_FP32_TO_FP16(largest / 127.0f);
        const float inverse = largest != 0.0f ? 127.0f / largest : 0.0f;
        for (int i = 0; i < QK8_0; i += 8) {
            const int16x4_t low = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse)));
            const int16x4_t high = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inverse)));
            vst1_s8(block->qs + i, vqmovn_s16(vcombine_s16(low, high)));
        }
    }
}
}

namespace {
[[maybe_unused]] const bool is_linked = foredraft::linked.rounding = true;
}
