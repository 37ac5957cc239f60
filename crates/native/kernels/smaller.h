// Rounds weights to blocks of Q4_0, of which the smaller panels of a draft model are made (making.cpp).
#pragma once

#include "layout.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// The weight that is furthest from 0 in a block becomes one of these, before it is rounded: the one that gives the least squared error. ggml takes -8 for
// all, with which the error of the rows of a 0.5 B model is .103 to .117 of the weights; with these it is .086 to .098. Slightly less than 8.5, so that it
// rounds to 8.
constexpr int CHOICES = 4;
constexpr float FURTHEST[CHOICES] = { -8.49f, -8.0f, -7.5f, -7.0f };

// The numbers of 16 weights, from -8 to 7, with the other sign: so the one bound that they can exceed is a least number. `inverse`: -1 / scale.
inline F32x16 negative_numbers(F32x16 weights, float inverse) {
    return max_x16(round_x16(mul_x16(weights, broadcast_x16(inverse))), broadcast_x16(-7.0f));
}

// Makes blocks of `n` weights.
void make_blocks(const float * from, int64_t n, uint8_t * to) {
    for (const float * const end = from + n; from < end; from += QK4_0, to += sizeof(block_q4_0)) {
        const F32x16 weights[] = { load_floats(from), load_floats(from + 16) }, minus = broadcast_x16(-1.0f);
        const float high = reduce_max(max_x16(weights[0], weights[1]));
        const float low = -reduce_max(max_x16(mul_x16(weights[0], minus), mul_x16(weights[1], minus)));
        ggml_fp16_t scales[CHOICES];
        float inverses[CHOICES], errors[CHOICES];
        F32x16 squares[CHOICES];
        for (int choice = 0; choice < CHOICES; ++choice) {
            scales[choice] = ggml_fp32_to_fp16((-low > high ? low : high) * (1 / FURTHEST[choice]));
            const float scale = float_of_half(scales[choice]);
            inverses[choice] = scale != 0 ? -1 / scale : 0;
            squares[choice] = broadcast_x16(0.0f);
            for (const F32x16 & of : weights) {
                const F32x16 error = fma_x16(negative_numbers(of, inverses[choice]), broadcast_x16(scale), of);
                squares[choice] = fma_x16(error, error, squares[choice]);
            }
        }
        store_reduced(errors, squares[0], squares[1], squares[2], squares[3]);
        int best = 0;
        for (int choice = 1; choice < CHOICES; ++choice) {
            best = errors[choice] < errors[best] ? choice : best;
        }
        memcpy(to, scales + best, sizeof scales[best]);
        int8_t numbers[QK4_0];
        for (int half = 0; half < 2; ++half) {
            const F32x16 of_half = negative_numbers(weights[half], inverses[best]);
            store_bytes(numbers + 16 * half, fma_x16(of_half, minus, broadcast_x16(8.0f)));
        }
        for (int i = 0; i < 16; ++i) {
            to[sizeof scales[best] + i] = uint8_t(numbers[i] | numbers[i + 16] << 4);
        }
    }
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
