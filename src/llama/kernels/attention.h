// Flash attention, for caches in F16, BF16 and Q8_0 and any head size.
//
// ggml's kernel processes one query of one head at a time, converts keys and values again for each, and sums values in F16. From 512
// cells on it divides the keys of a single query among the threads, and from 64 queries on it uses other tiles. So the last bits of a
// token's result depend on its batch. This kernel converts a key and a value once for up to four rows (several queries, and the heads
// that share them), and sums in F32. It is batch-invariant: the operations of a row and their order do not depend on other rows, on
// the number of threads or on the level. Nor do they depend on which cells of the cache a row's keys and values are in:
//
//   weights   e^score = e^r * 2^n, where |r| <= ln 2 / 2, so that a weight relative to any power of two has the same digits. It is rounded
//             to whole 2^-30 of the largest n of all cells.
//   their sum is exact, in integers.
//   values    are added one after the other by fma, in the order of positions (`CellOrder`). A cell whose weight is 0 is left out.
#pragma once

#include "matmul.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

constexpr int CHUNK = 64;
// Cells whose weights a thread computes at once, where cells are divided among threads.
constexpr int SEGMENT = 256;
// The number of rows that are computed together.
constexpr int ROWS = 4;
// The maximum head size of keys and values.
constexpr int MAX_HEAD = 576;

// The numbers of a key or value from number `at` on: all 16, or the first `n` and zeros.
struct OfF16 {
    static F32x16 load(const char * row, int64_t at) { return load_halves(reinterpret_cast<const uint16_t *>(row) + at); }
    static F32x16 load_first(const char * row, int64_t at, int64_t n) { return load_part<F16>(reinterpret_cast<const uint16_t *>(row) + at, n); }
};
struct OfBF16 {
    static F32x16 load(const char * row, int64_t at) { return load_bf16(reinterpret_cast<const uint16_t *>(row) + at); }
    static F32x16 load_first(const char * row, int64_t at, int64_t n) { return load_part<BF16>(reinterpret_cast<const uint16_t *>(row) + at, n); }
};
struct OfQ8_0 {
    // 16 numbers are always in one block.
    static F32x16 load(const char * row, int64_t at) {
        const auto & block = reinterpret_cast<const block_q8_0 *>(row)[at / QK8_0];
        return mul_x16(load_bytes(block.qs + at % QK8_0), broadcast_x16(float_of_half(block.d)));
    }
    static F32x16 load_first(const char * row, int64_t at, int64_t) { return load(row, at); }
};

// Rows that share keys and values.
struct Block {
    int n_rows;
    const float * queries[ROWS];
    // NULL: nothing is masked.
    const uint16_t * masks[ROWS];
    float slopes[ROWS];
    float sinks[ROWS];
    // For each row, by `weigh_chunk`: the weights of all cells, and for each chunk the power of two that they are relative to.
    float * weights[ROWS];
    float * powers[ROWS];
};

// The parameters of all rows.
struct Attention {
    explicit Attention(const ggml_threadpool * pool) : pause(pool) {}

    PausePoint pause;
    int64_t n_key, n_value;
    // `n_value`, rounded up to a multiple of 16.
    int64_t n_value_padded;
    int64_t n_cells;
    ggml_type key_type, value_type;
    float scale, softcap;
    bool has_sinks;
};

// The keys and values of a head, in the order in which they are summed.
struct Cells {
    const char *keys, *values;
    size_t key_stride, value_stride;
    // NULL: the order of cells.
    const int32_t * order;

    int64_t cell(int64_t at) const { return order == nullptr ? at : order[at]; }
    const char * key(int64_t at) const { return keys + cell(at) * key_stride; }
    const char * value(int64_t at) const { return values + cell(at) * value_stride; }
};

// Computes the scores of keys `from`..`to` (both multiples of 16) for R rows, as many keys at a time as there are sums.
template <int R, typename Keys>
void score(const Attention & of, const Block & block, const char * const * keys, int from, int to, float (*scores)[CHUNK]) {
    constexpr int KEYS = SUMS / (R == 3 ? 4 : R);
    for (int at = from; at < to; at += KEYS) {
        F32x16 sum[R][KEYS];
        for (int r = 0; r < R; ++r) {
            for (int t = 0; t < KEYS; ++t) {
                sum[r][t] = broadcast_x16(0.0f);
            }
        }
        int64_t d = 0;
        for (; d + 16 <= of.n_key; d += 16) {
            F32x16 q[R];
            for (int r = 0; r < R; ++r) {
                q[r] = load_floats(block.queries[r] + d);
            }
            for (int t = 0; t < KEYS; ++t) {
                const F32x16 k = Keys::load(keys[at + t], d);
                for (int r = 0; r < R; ++r) {
                    sum[r][t] = fma_x16(k, q[r], sum[r][t]);
                }
            }
        }
        if (d < of.n_key) {
            for (int t = 0; t < KEYS; ++t) {
                const F32x16 k = Keys::load_first(keys[at + t], d, of.n_key - d);
                for (int r = 0; r < R; ++r) {
                    sum[r][t] = fma_x16(k, load_part<F32>(block.queries[r] + d, of.n_key - d), sum[r][t]);
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            if constexpr (KEYS % 4 == 0) {
                for (int t = 0; t < KEYS; t += 4) {
                    store_reduced(scores[r] + at + t, sum[r][t], sum[r][t + 1], sum[r][t + 2], sum[r][t + 3]);
                }
            } else {
                for (int t = 0; t < KEYS; ++t) {
                    scores[r][at + t] = reduce_add(sum[r][t]);
                }
            }
        }
    }
}

// softcap * tanh(x / softcap), where `scale` has divided by it already.
inline F32x16 capped(F32x16 x, float softcap) {
    float lanes[16];
    store_x16(lanes, x);
    for (float & lane : lanes) {
        // Exact enough: the error is that of e^x, relative to softcap.
        const float size = lane < 0.0f ? -lane : lane, e = exp_of(-2.0f * size), t = (1.0f - e) / (1.0f + e);
        lane = softcap * (lane < 0.0f ? -t : t);
    }
    return load_floats(lanes);
}

// Whether 16 numbers of a mask are all minus infinity.
inline bool hides_all(const uint16_t * mask) {
    uint64_t words[4];
    memcpy(words, mask, sizeof words);
    constexpr uint64_t HIDDEN = 0xfc00fc00fc00fc00;
    return ((words[0] ^ HIDDEN) | (words[1] ^ HIDDEN) | (words[2] ^ HIDDEN) | (words[3] ^ HIDDEN)) == 0;
}

// Weights are whole multiples of 2^-30 of the largest power of two.
constexpr int ONE_POWER = 30;
// Weights relative to a smaller power of two round to 0.
constexpr float LEAST_POWER = -64.0f;
// Chunks whose weights' halves fit into sums of 32 bits.
constexpr int64_t MAX_CHUNKS = 4096;

inline float power_of(float x) { return first_of(powers_of(broadcast_x16(x))); }

// Computes the weights of the chunk that begins at cell `from` and has `n_cells` cells. Those after it, up to a multiple of 16, are 0.
template <int R> void weigh_chunk(const Attention & of, const Block & block, const Cells & cells, int64_t from, int n_cells) {
    constexpr uint16_t HIDDEN = 0xfc00;
    const int n = int(padded(n_cells, 16));
    uint16_t ordered[R][CHUNK];
    const uint16_t * masks[R];
    // The sixteens that a row sees.
    bool is_seen[CHUNK / 16] = {};
    for (int r = 0; r < R; ++r) {
        masks[r] = block.masks[r] == nullptr ? nullptr : block.masks[r] + from;
        if (n > n_cells || (masks[r] != nullptr && cells.order != nullptr)) {
            for (int j = 0; j < n_cells; ++j) {
                ordered[r][j] = block.masks[r] == nullptr ? 0 : block.masks[r][cells.cell(from + j)];
            }
            for (int j = n_cells; j < n; ++j) {
                ordered[r][j] = HIDDEN;
            }
            masks[r] = ordered[r];
        }
        for (int j = 0; j < n; j += 16) {
            is_seen[j / 16] = is_seen[j / 16] || masks[r] == nullptr || !hides_all(masks[r] + j);
        }
    }
    const char * keys[CHUNK];
    for (int j = 0; j < n; ++j) {
        keys[j] = cells.key(from + min_of(j, n_cells - 1));
    }
    float scores[R][CHUNK];
    for (int begin = 0; begin < n;) {
        int end = begin;
        while (end < n && is_seen[end / 16]) {
            end += 16;
        }
        switch (of.key_type) {
            case GGML_TYPE_F16: score<R, OfF16>(of, block, keys, begin, end, scores); break;
            case GGML_TYPE_BF16: score<R, OfBF16>(of, block, keys, begin, end, scores); break;
            default: score<R, OfQ8_0>(of, block, keys, begin, end, scores); break;
        }
        begin = end + 16;
    }
    for (int r = 0; r < R; ++r) {
        float * weights = block.weights[r] + from;
        F32x16 most = broadcast_x16(-INFINITY), sum = broadcast_x16(0.0f);
        for (int j = 0; j < n; j += 16) {
            F32x16 s = broadcast_x16(-INFINITY);
            if (is_seen[j / 16]) {
                s = mul_x16(load_floats(scores[r] + j), broadcast_x16(of.scale));
                if (of.softcap != 0.0f) {
                    s = capped(s, of.softcap);
                }
                if (masks[r] != nullptr) {
                    s = add_mask(s, mul_x16(load_halves(masks[r] + j), broadcast_x16(block.slopes[r])));
                }
            }
            store_x16(weights + j, s);
            most = max_x16(most, s);
            sum = add_x16(sum, s);
        }
        const float power = power_of(reduce_max(most));
        const bool is_finite = !has_nan(sum) && power < INFINITY;
        block.powers[r][from / CHUNK] = is_finite ? power : NAN;
        for (int j = 0; is_finite && power != -INFINITY && j < n; j += 16) {
            store_x16(weights + j, exp_relative_to(load_floats(weights + j), power));
        }
    }
}

inline void weigh(const Attention & of, const Block & block, const Cells & cells, int64_t from, int64_t to) {
    for (int64_t at = from; at < to; at += CHUNK) {
        of.pause.pass();
        const int n = int(min_of(int64_t(CHUNK), to - at));
        const auto weigh_n = block.n_rows == 1   ? weigh_chunk<1>
                             : block.n_rows == 2 ? weigh_chunk<2>
                             : block.n_rows == 3 ? weigh_chunk<3>
                                                 : weigh_chunk<4>;
        weigh_n(of, block, cells, at, n);
    }
}

// The cells of a chunk that have a weight in one of R rows: their values, and each row's weight, a whole number.
template <int R> struct Weighted {
    int n;
    const char * values[CHUNK];
    float weights[R][CHUNK];
};

// Adds the weighted values to N vectors of each row's sum, from number `at` on, of which the last has `n_last` numbers.
template <int R, int N, typename Values> void add_slice(const Weighted<R> & from, float * const * sums, int64_t at, int64_t n_last) {
    F32x16 acc[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            acc[r][n] = load_floats(sums[r] + at + n * 16);
        }
    }
    for (int j = 0; j < from.n; ++j) {
        F32x16 v[N];
        for (int n = 0; n < N; ++n) {
            v[n] = N == 1 && n_last < 16 ? Values::load_first(from.values[j], at, n_last) : Values::load(from.values[j], at + n * 16);
        }
        for (int r = 0; r < R; ++r) {
            const F32x16 w = broadcast_x16(from.weights[r][j]);
            for (int n = 0; n < N; ++n) {
                acc[r][n] = fma_x16(w, v[n], acc[r][n]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            store_x16(sums[r] + at + n * 16, acc[r][n]);
        }
    }
}

template <int R, typename Values> void add_values(const Attention & of, const Weighted<R> & from, float * const * sums, int64_t at, int64_t end) {
    // As many registers of sums as there are.
    constexpr int SLICE = SUMS / (R <= 2 ? 2 : ROWS);
    const int64_t whole = min_of(end, of.n_value);
    for (; at + SLICE * 16 <= whole; at += SLICE * 16) {
        add_slice<R, SLICE, Values>(from, sums, at, 16);
    }
    if constexpr (SLICE > 2) {
        for (; at + SLICE / 2 * 16 <= whole; at += SLICE / 2 * 16) {
            add_slice<R, SLICE / 2, Values>(from, sums, at, 16);
        }
    }
    for (; at < whole; at += 16) {
        add_slice<R, 1, Values>(from, sums, at, min_of(of.n_value - at, int64_t(16)));
    }
}

// Computes the numbers `at` to `end` (multiples of 16) of R rows, from row `first` of the block on. `sums` has the rows' numbers from 0 on.
template <int R>
void add_cells(const Attention & of, const Block & block, int first, const Cells & cells, int64_t at, int64_t end, float * const * sums) {
    const int64_t n_chunks = (of.n_cells + CHUNK - 1) / CHUNK;
    float powers[R];
    int64_t total[R];
    I32x16 low[R] = {}, high[R] = {};
    for (int r = 0; r < R; ++r) {
        const float * of_chunks = block.powers[first + r];
        float power = of.has_sinks ? power_of(block.sinks[first + r]) : -INFINITY;
        for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
            // A power that is NaN stays.
            power = of_chunks[chunk] <= power || power != power ? power : of_chunks[chunk];
        }
        powers[r] = power;
        total[r] = 0;
        if (of.has_sinks && power == power) {
            const F32x16 weight = exp_relative_to(broadcast_x16(block.sinks[first + r]), power);
            total[r] = int64_t(first_of(to_f32_x16(to_i32_x16(mul_x16(weight, broadcast_x16(power_of_two(ONE_POWER)))))));
        }
        memset(sums[r] + at, 0, size_t(end - at) * sizeof(float));
    }
    const auto add_totals = [&] {
        for (int r = 0; r < R; ++r) {
            total[r] += reduce_add_i64(low[r]) + reduce_add_i64(high[r]) * 65536;
            low[r] = high[r] = {};
        }
    };
    for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
        of.pause.pass();
        const int64_t from = chunk * CHUNK;
        const int n = int(min_of(int64_t(CHUNK), of.n_cells - from));
        if (chunk % MAX_CHUNKS == MAX_CHUNKS - 1) {
            add_totals();
        }
        Weighted<R> weighted;
        uint64_t used = 0;
        for (int r = 0; r < R; ++r) {
            const float power = block.powers[first + r][chunk] - powers[r];
            const bool is_least = !(power >= LEAST_POWER);
            const F32x16 factor = broadcast_x16(is_least ? 0.0f : power_of_two(int(power) + ONE_POWER));
            const float * weights = block.weights[first + r] + from;
            for (int j = 0; j < n; j += 16) {
                const I32x16 w = is_least ? I32x16 {} : to_i32_x16(mul_x16(load_floats(weights + j), factor));
                add_halves(w, low[r], high[r]);
                store_x16(weighted.weights[r] + j, to_f32_x16(w));
                used |= uint64_t(not_zero(w)) << j;
            }
        }
        // The weights of used cells move together.
        weighted.n = 0;
        const bool is_dense = used == ~uint64_t(0);
        for (; used != 0; used &= used - 1) {
            const int j = is_dense ? weighted.n : __builtin_ctzll(used);
            weighted.values[weighted.n] = cells.value(from + j);
            if (j != weighted.n) {
                for (int r = 0; r < R; ++r) {
                    weighted.weights[r][weighted.n] = weighted.weights[r][j];
                }
            }
            ++weighted.n;
        }
        if (weighted.n == 0) {
            continue;
        }
        switch (of.value_type) {
            case GGML_TYPE_F16: add_values<R, OfF16>(of, weighted, sums, at, end); break;
            case GGML_TYPE_BF16: add_values<R, OfBF16>(of, weighted, sums, at, end); break;
            default: add_values<R, OfQ8_0>(of, weighted, sums, at, end); break;
        }
    }
    add_totals();
    bool is_nan = false;
    for (int r = 0; r < R; ++r) {
        const float inverse = powers[r] != powers[r] ? NAN : total[r] == 0 ? 0.0f : float(1.0 / double(total[r]));
        for (int64_t i = at; i < end; i += 16) {
            const F32x16 value = mul_x16(load_floats(sums[r] + i), broadcast_x16(inverse));
            is_nan = is_nan || has_nan(value);
            store_x16(sums[r] + i, value);
        }
    }
    // A value that is NaN makes NaN of all rows, also of those in which its weight is 0, so each row is computed alone.
    if constexpr (R > 1) {
        for (int r = 0; is_nan && r < R; ++r) {
            add_cells<1>(of, block, first + r, cells, at, end, sums + r);
        }
    }
}

inline void add_all_cells(const Attention & of, const Block & block, const Cells & cells, int64_t at, int64_t end, float * const * sums) {
    const auto add = block.n_rows == 1 ? add_cells<1> : block.n_rows == 2 ? add_cells<2> : block.n_rows == 3 ? add_cells<3> : add_cells<4>;
    add(of, block, 0, cells, at, end, sums);
}

bool can_attend(const ggml_tensor * dst) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3];
    const auto has_type = [](const ggml_tensor * of) {
        return (of->type == GGML_TYPE_F16 || of->type == GGML_TYPE_BF16 || of->type == GGML_TYPE_Q8_0) && of->nb[0] == ggml_type_size(of->type);
    };
    const bool has_types = q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && has_type(k) && has_type(v) && dst->type == GGML_TYPE_F32
                           && (mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t)));
    const bool has_heads = k->ne[0] <= MAX_HEAD && v->ne[0] <= MAX_HEAD && q->ne[0] == k->ne[0];
    const bool shares
        = k->ne[2] > 0 && k->ne[2] == v->ne[2] && k->ne[3] > 0 && k->ne[3] == v->ne[3] && q->ne[2] % k->ne[2] == 0 && q->ne[3] % k->ne[3] == 0;
    return has_types && has_heads && shares && k->ne[1] > 0 && k->ne[1] == v->ne[1];
}

// The numbers that a row's weights take, and with its powers of two.
inline int64_t weights_size(int64_t n_cells) { return padded(n_cells, 16); }
inline int64_t row_size(int64_t n_cells) { return padded(weights_size(n_cells) + (n_cells + CHUNK - 1) / CHUNK, 16); }

// Rows that are divided among threads take no more memory than this.
constexpr size_t MAX_DIVIDED = size_t(64) << 20;

// Whether a block's cells, then its values, are divided among threads, because there are few blocks.
inline bool divides(int64_t n_blocks, int64_t n_cells, int n_threads) {
    return n_threads > 1 && n_cells > SEGMENT && n_blocks < int64_t(8) * n_threads
           && size_t(n_blocks * ROWS * row_size(n_cells)) * sizeof(float) <= MAX_DIVIDED;
}

// The number of blocks of rows of all heads and streams.
inline int64_t count_blocks(const ggml_tensor * q, const ggml_tensor * k) {
    const int64_t n_rows = q->ne[2] / k->ne[2] * q->ne[1];
    return (n_rows + ROWS - 1) / ROWS * k->ne[2] * q->ne[3];
}

// The memory for weights: of all rows if they are divided among threads, else of a block of each thread.
size_t attention_size(const ggml_tensor * dst, int n_threads) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1];
    // A graph may be computed by fewer threads than planned; those divide no more than all.
    const int64_t of_all = divides(count_blocks(q, k), k->ne[1], n_threads) ? count_blocks(q, k) : 0;
    const int64_t n_blocks = of_all > n_threads ? of_all : n_threads;
    return size_t(n_blocks) * ROWS * size_t(row_size(k->ne[1])) * sizeof(float) + 64;
}

bool attend(const ggml_compute_params * params, const ggml_tensor * dst) {
    if (!can_attend(dst) || params->wsize < attention_size(dst, params->nth)) {
        return false;
    }
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3], *sinks = dst->src[4];
    float max_bias;
    Attention of(params->threadpool);
    of.n_key = k->ne[0];
    of.n_value = v->ne[0];
    of.n_value_padded = padded(of.n_value, 16);
    of.n_cells = k->ne[1];
    of.key_type = k->type;
    of.value_type = v->type;
    of.has_sinks = sinks != nullptr;
    memcpy(&of.scale, dst->op_params, sizeof(float));
    memcpy(&max_bias, dst->op_params + 1, sizeof(float));
    memcpy(&of.softcap, dst->op_params + 2, sizeof(float));
    if (of.softcap != 0.0f) {
        of.scale /= of.softcap;
    }
    int64_t n_log2 = 1;
    while (2 * n_log2 <= q->ne[2]) {
        n_log2 *= 2;
    }
    const auto slope = [&](int64_t head) {
        if (max_bias <= 0.0f) {
            return 1.0f;
        }
        const float m0 = powf(2.0f, -max_bias / float(n_log2)), m1 = powf(2.0f, -max_bias / 2.0f / float(n_log2));
        return head < n_log2 ? powf(m0, float(head + 1)) : powf(m1, float(2 * (head - n_log2) + 1));
    };
    const CellOrder * order = mask == nullptr ? nullptr : static_cast<const CellOrder *>(mask->extra);
    const bool has_order = order != nullptr && order->n_cells == of.n_cells && order->n_streams == mask->ne[3];

    // The rows that share a head of keys: its query heads, token by token.
    const int64_t n_shared = q->ne[2] / k->ne[2];
    const int64_t n_rows = n_shared * q->ne[1];
    const int64_t blocks_of_head = (n_rows + ROWS - 1) / ROWS;
    const int64_t n_blocks = count_blocks(q, k);
    const bool is_divided = divides(n_blocks, of.n_cells, params->nth);
    float * const memory = reinterpret_cast<float *>(padded(reinterpret_cast<int64_t>(params->wdata), 64));

    int64_t tokens[ROWS], heads[ROWS], stream;
    Block block;
    Cells cells;
    const auto describe_block = [&](int64_t index) {
        const int64_t first_row = index % blocks_of_head * ROWS, key_head = index / blocks_of_head % k->ne[2];
        stream = index / blocks_of_head / k->ne[2];
        const int64_t key_stream = stream / (q->ne[3] / k->ne[3]);
        block.n_rows = int(min_of(int64_t(ROWS), n_rows - first_row));
        float * weights = memory + (is_divided ? index : params->ith) * ROWS * row_size(of.n_cells);
        for (int r = 0; r < block.n_rows; ++r) {
            tokens[r] = (first_row + r) / n_shared;
            heads[r] = key_head * n_shared + (first_row + r) % n_shared;
            block.queries[r] = reinterpret_cast<const float *>(
                static_cast<const char *>(q->data) + tokens[r] * q->nb[1] + heads[r] * q->nb[2] + stream * q->nb[3]);
            block.masks[r] = mask == nullptr
                                 ? nullptr
                                 : reinterpret_cast<const uint16_t *>(static_cast<const char *>(mask->data) + tokens[r] * mask->nb[1]
                                                                      + heads[r] % mask->ne[2] * mask->nb[2] + stream % mask->ne[3] * mask->nb[3]);
            block.slopes[r] = slope(heads[r]);
            block.sinks[r] = sinks == nullptr ? 0.0f : static_cast<const float *>(sinks->data)[heads[r]];
            block.weights[r] = weights + r * row_size(of.n_cells);
            block.powers[r] = block.weights[r] + weights_size(of.n_cells);
        }
        cells.keys = static_cast<const char *>(k->data) + key_head * k->nb[2] + key_stream * k->nb[3];
        cells.values = static_cast<const char *>(v->data) + key_head * v->nb[2] + key_stream * v->nb[3];
        cells.key_stride = k->nb[1];
        cells.value_stride = v->nb[1];
        cells.order = has_order ? order->cells + stream % mask->ne[3] * of.n_cells : nullptr;
    };
    alignas(64) float results[ROWS][MAX_HEAD];
    float * sums[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        sums[r] = results[r];
    }
    // Computes the numbers `at` to `end` of the described block's rows from their weights.
    const auto compute = [&](int64_t at, int64_t end) {
        add_all_cells(of, block, cells, at, end, sums);
        for (int r = 0; r < block.n_rows; ++r) {
            const int64_t row = stream * dst->ne[2] * dst->ne[1] + heads[r] + tokens[r] * dst->ne[1];
            float * out = reinterpret_cast<float *>(static_cast<char *>(dst->data) + row * dst->nb[1]);
            memcpy(out + at, sums[r] + at, (min_of(end, of.n_value) - at) * sizeof(float));
        }
    };
    // Calls `use` with items that the threads take as they come, after `before` items of an earlier loop.
    const auto for_items = [&](int64_t n_items, int64_t before, auto use) {
        for (int64_t item = params->ith; item < n_items; item = ggml_threadpool_chunk_add(params->threadpool, 1) - before) {
            use(item);
        }
    };
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    if (!is_divided) {
        for_items(n_blocks, 0, [&](int64_t item) {
            describe_block(item);
            weigh(of, block, cells, 0, of.n_cells);
            compute(0, of.n_value_padded);
        });
        return true;
    }
    const int64_t n_segments = (of.n_cells + SEGMENT - 1) / SEGMENT, n_items = n_blocks * n_segments;
    for_items(n_items, 0, [&](int64_t item) {
        describe_block(item / n_segments);
        const int64_t from = item % n_segments * SEGMENT;
        weigh(of, block, cells, from, min_of(from + SEGMENT, of.n_cells));
    });
    // Each item was followed by one call of chunk_add, so the next item is known without counting anew.
    ggml_barrier(params->threadpool);
    // Slices of 64 numbers; the last ones, which cannot be shared out evenly, in halves.
    constexpr int64_t SLICE = 64;
    const int64_t n_slices = (of.n_value_padded + SLICE - 1) / SLICE, all = n_blocks * n_slices, n_whole = all - all % params->nth;
    for_items(n_whole + 2 * (all - n_whole), n_items, [&](int64_t item) {
        const bool is_whole = item < n_whole;
        const int64_t slice = is_whole ? item : n_whole + (item - n_whole) / 2;
        const int64_t at = slice % n_slices * SLICE + (is_whole ? 0 : (item - n_whole) % 2 * (SLICE / 2));
        const int64_t end = min_of(at + (is_whole ? SLICE : SLICE / 2), of.n_value_padded);
        if (at < end) {
            describe_block(slice / n_slices);
            compute(at, end);
        }
    });
    return true;
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
