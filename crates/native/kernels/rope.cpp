// Rotary positions of neighbouring pairs (GGML_ROPE_TYPE_NORMAL), with the multiplications fused that ggml's AVX2 code fuses. GCC fuses others for
// NEON. (In the last of an odd number of pairs it fuses nothing; no model has that.) Compiled for AArch64 only, without fusing any itself.
#include "seam.h"

#include <math.h>
#include <string.h>

namespace {

struct Rope {
    int n_dims, n_offset;
    float frequency_scale, extension, magnitude, theta_scale, corrected[2];
    const float * factors;
};

// The cosine and the sine of each pair at a position, as ggml computes them.
void angles(const Rope & rope, int32_t position, float * to) {
    float theta = float(position), magnitude = rope.magnitude;
    if (rope.extension != 0.0f) {
        magnitude *= fmaf(0.1f, logf(1.0f / rope.frequency_scale), 1.0f);
    }
    for (int i = 0; i < rope.n_dims; i += 2) {
        const float outside = rope.factors != nullptr ? theta / rope.factors[i / 2] : theta;
        float angle = rope.frequency_scale * outside;
        if (rope.extension != 0.0f) {
            const float width = rope.corrected[1] - rope.corrected[0];
            const float y = (float(i / 2) - rope.corrected[0]) / (width > 0.001f ? width : 0.001f);
            const float mix = (1.0f - (y < 0.0f ? 0.0f : y > 1.0f ? 1.0f : y)) * rope.extension;
            angle = fmaf(angle, 1.0f - mix, outside * mix);
        }
        to[i] = cosf(angle) * magnitude;
        to[i + 1] = sinf(angle) * magnitude;
        theta *= rope.theta_scale;
    }
}

}  // namespace

extern "C" bool foredraft_rope(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor *from = dst->src[0], *positions = dst->src[1], *factors = dst->src[2];
    if (ggml_get_op_params_i32(dst, 2) != GGML_ROPE_TYPE_NORMAL || from->type != GGML_TYPE_F32) {
        return false;
    }
    Rope rope;
    rope.n_dims = ggml_get_op_params_i32(dst, 1);
    rope.n_offset = ggml_get_op_params_i32(dst, 15);
    const int n_original = ggml_get_op_params_i32(dst, 4);
    const float base = ggml_get_op_params_f32(dst, 5);
    rope.frequency_scale = ggml_get_op_params_f32(dst, 6);
    rope.extension = ggml_get_op_params_f32(dst, 7);
    rope.magnitude = ggml_get_op_params_f32(dst, 8);
    rope.theta_scale = powf(base, -2.0f / float(rope.n_dims));
    rope.factors = factors != nullptr ? static_cast<const float *>(factors->data) : nullptr;
    ggml_rope_yarn_corr_dims(rope.n_dims, n_original, base, ggml_get_op_params_f32(dst, 9), ggml_get_op_params_f32(dst, 10), rope.corrected);

    // The thread's part of ggml's work buffer for this operation.
    float * cache = static_cast<float *>(params->wdata) + (from->ne[0] + 16) * params->ith;
    const int64_t n_rows = ggml_nrows(dst), of_thread = (n_rows + params->nth - 1) / params->nth;
    const int64_t begin = of_thread * params->ith, end = begin + of_thread < n_rows ? begin + of_thread : n_rows;
    int64_t token = -1;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t i1 = row % from->ne[1], i2 = row / from->ne[1] % from->ne[2], i3 = row / from->ne[1] / from->ne[2];
        if (i2 != token) {
            angles(rope, static_cast<const int32_t *>(positions->data)[i2], cache);
            token = i2;
        }
        const auto * x
            = reinterpret_cast<const float *>(static_cast<const char *>(from->data) + i1 * from->nb[1] + i2 * from->nb[2] + i3 * from->nb[3]);
        auto * to = reinterpret_cast<float *>(static_cast<char *>(dst->data) + i1 * dst->nb[1] + i2 * dst->nb[2] + i3 * dst->nb[3]);
        if (x != to) {
            memmove(to, x, from->ne[0] * sizeof(float));
        }
        to += rope.n_offset;
        for (int i = 0; i < rope.n_dims; i += 2) {
            const float first = to[i], second = to[i + 1], cosine = cache[i], sine = cache[i + 1];
            to[i] = fmaf(first, cosine, -(second * sine));
            to[i + 1] = fmaf(first, sine, second * cosine);
        }
    }
    return true;
}
