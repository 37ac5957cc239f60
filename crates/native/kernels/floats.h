// Products of weights that are floats with tokens.
#pragma once

#include "layout.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

struct F32 {
    using Number = float;
    static F32x16 load(const float * at) { return load_floats(at); }
};
struct F16 {
    using Number = uint16_t;
    static F32x16 load(const uint16_t * at) { return load_halves(at); }
};
struct BF16 {
    using Number = uint16_t;
    static F32x16 load(const uint16_t * at) { return load_bf16(at); }
};

// The last numbers of a row, filled up with zeros.
template <typename Of> inline F32x16 load_part(const typename Of::Number * at, int64_t n) {
    typename Of::Number part[16] = {};
    memcpy(part, at, n * sizeof part[0]);
    return Of::load(part);
}

// Bytes of a group of rows that are few: those of the next group are prefetched. Such short rows end before a processor foresees them. A row that is
// read alone continues in the next one.
constexpr size_t FEW_OF_ROWS = 12 << 10;

// R rows times T tokens.
template <typename Of, int R, int T>
void multiply_floats(const uint8_t * weights, size_t stride, int64_t width, const float * const * tokens, float * const * to, int64_t row) {
    F32x16 sums[R][T];
    const typename Of::Number * rows[R];
    for (int r = 0; r < R; ++r) {
        rows[r] = reinterpret_cast<const typename Of::Number *>(weights + (row + r) * stride);
        for (int t = 0; t < T; ++t) {
            sums[r][t] = broadcast_x16(0.0f);
        }
    }
    const size_t ahead = R > 1 && R * stride <= FEW_OF_ROWS ? R * stride : 0;
    int64_t at = 0;
    for (; at + 16 <= width; at += 16) {
        F32x16 of_rows[R];
        for (int r = 0; r < R; ++r) {
            of_rows[r] = Of::load(rows[r] + at);
            // Once for each line.
            if (ahead != 0 && at % int64_t(64 / sizeof(typename Of::Number)) == 0) {
                PREFETCH(reinterpret_cast<const uint8_t *>(rows[r] + at) + ahead, 3);
            }
        }
        for (int t = 0; t < T; ++t) {
            const F32x16 x = load_floats(tokens[t] + at);
            for (int r = 0; r < R; ++r) {
                sums[r][t] = fma_x16(of_rows[r], x, sums[r][t]);
            }
        }
    }
    if (at < width) {
        for (int t = 0; t < T; ++t) {
            const F32x16 x = load_part<F32>(tokens[t] + at, width - at);
            for (int r = 0; r < R; ++r) {
                sums[r][t] = fma_x16(load_part<Of>(rows[r] + at, width - at), x, sums[r][t]);
            }
        }
    }
    for (int t = 0; t < T; ++t) {
        if constexpr (R == 4) {
            store_reduced(to[t] + row, sums[0][t], sums[1][t], sums[2][t], sums[3][t]);
        } else {
            for (int r = 0; r < R; ++r) {
                to[t][row + r] = reduce_add(sums[r][t]);
            }
        }
    }
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
