// Flash attention, for caches in F16, BF16 and Q8_0 and any head size. Included by level.cpp only.
//
// ggml's kernel processes one query of one head at a time, converts keys and values again for each, and sums values in F16. From 512
// cells on it divides the keys of a single query among the threads, and from 64 queries on it uses other tiles. So the last bits of a
// token's result depend on its batch. This kernel converts a key and a value once for up to four rows (several queries, and the heads
// that share them), and sums in F32. It is batch-invariant: the operations of a row and their order do not depend on other rows, on
// the number of threads or on the level.
//
// The order of operations of a row: cells are processed in chunks of CHUNK; fully masked chunks are skipped. The chunks of a segment
// of SEGMENT cells are merged one after the other, then the segments. Chunks and segments begin at multiples of their length.

constexpr int CHUNK = 64;
constexpr int SEGMENT = 256;
// The number of rows that are computed together.
constexpr int ROWS = 4;
// The maximum head size of keys and values.
constexpr int MAX_HEAD = 576;

// The numbers of a key or value from number `at` on: all 16, or the first `n` and zeros.
struct OfF16 {
    static Sixteen load(const char * row, int64_t at) { return load_halves(reinterpret_cast<const uint16_t *>(row) + at); }
    static Sixteen load_first(const char * row, int64_t at, int64_t n) { return load_part<F16>(reinterpret_cast<const uint16_t *>(row) + at, n); }
};
struct OfBF16 {
    static Sixteen load(const char * row, int64_t at) { return load_bf16(reinterpret_cast<const uint16_t *>(row) + at); }
    static Sixteen load_first(const char * row, int64_t at, int64_t n) { return load_part<BF16>(reinterpret_cast<const uint16_t *>(row) + at, n); }
};
struct OfQ8_0 {
    // 16 numbers are always in one block.
    static Sixteen load(const char * row, int64_t at) {
        const auto & block = reinterpret_cast<const block_q8_0 *>(row)[at / QK8_0];
        return mul_16(load_bytes(block.qs + at % QK8_0), sixteen(_cvtsh_ss(block.d)));
    }
    static Sixteen load_first(const char * row, int64_t at, int64_t) { return load(row, at); }
};

// The running sums of one row: the largest score, the sum of e^(score - largest), and the sum of values with these weights.
struct Sum {
    float largest;
    float weight;
    float * values;
};

inline void clear(Sum & sum, int64_t n_values) {
    sum.largest = -INFINITY;
    sum.weight = 0.0f;
    memset(sum.values, 0, n_values * sizeof(float));
}

// Scales a sum to a larger maximum. `n_values` is a multiple of 16.
inline void raise(Sum & sum, float largest, int64_t n_values) {
    if (largest <= sum.largest) {
        return;
    }
    // All sums are 0 while there is no maximum.
    const float scale = sum.largest == -INFINITY ? 0.0f : exp_of(sum.largest - largest);
    sum.largest = largest;
    sum.weight *= scale;
    for (int64_t i = 0; i < n_values; i += 16) {
        store_16(sum.values + i, mul_16(load_floats(sum.values + i), sixteen(scale)));
    }
}

// Adds `from` to `sum`.
inline void merge(Sum & sum, const Sum & from, int64_t n_values) {
    if (from.largest == -INFINITY) {
        return;
    }
    raise(sum, from.largest, n_values);
    const float scale = exp_of(from.largest - sum.largest);
    sum.weight = sum.weight + from.weight * scale;
    for (int64_t i = 0; i < n_values; i += 16) {
        store_16(sum.values + i, fma_16(load_floats(from.values + i), sixteen(scale), load_floats(sum.values + i)));
    }
}

// Rows that share keys and values.
struct Block {
    int n_rows;
    const float * queries[ROWS];
    // NULL: nothing is masked.
    const uint16_t * masks[ROWS];
    float slopes[ROWS];
};

// The parameters of all rows.
struct Attention {
    int64_t n_key, n_value;
    // `n_value`, rounded up to a multiple of 16.
    int64_t n_value_padded;
    int64_t n_cells;
    ggml_type key_type, value_type;
    float scale, softcap;
};

// Computes the scores of keys `from`..`to` (relative to `keys`, both multiples of 16) for R rows, as many keys at a time as there are sums.
template <int R, typename Keys>
void score(const Attention & of, const Block & block, const char * keys, size_t stride, int from, int to, float (*scores)[CHUNK]) {
    constexpr int KEYS = SUMS / (R == 3 ? 4 : R);
    for (int at = from; at < to; at += KEYS) {
        Sixteen sum[R][KEYS];
        for (int r = 0; r < R; ++r) {
            for (int t = 0; t < KEYS; ++t) {
                sum[r][t] = sixteen(0.0f);
            }
        }
        int64_t d = 0;
        for (; d + 16 <= of.n_key; d += 16) {
            Sixteen q[R];
            for (int r = 0; r < R; ++r) {
                q[r] = load_floats(block.queries[r] + d);
            }
            for (int t = 0; t < KEYS; ++t) {
                const Sixteen k = Keys::load(keys + (at + t) * stride, d);
                for (int r = 0; r < R; ++r) {
                    sum[r][t] = fma_16(k, q[r], sum[r][t]);
                }
            }
        }
        if (d < of.n_key) {
            for (int t = 0; t < KEYS; ++t) {
                const Sixteen k = Keys::load_first(keys + (at + t) * stride, d, of.n_key - d);
                for (int r = 0; r < R; ++r) {
                    sum[r][t] = fma_16(k, load_part<F32>(block.queries[r] + d, of.n_key - d), sum[r][t]);
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            if constexpr (KEYS % 4 == 0) {
                for (int t = 0; t < KEYS; t += 4) {
                    _mm_storeu_ps(scores[r] + at + t, totals(sum[r][t], sum[r][t + 1], sum[r][t + 2], sum[r][t + 3]));
                }
            } else {
                for (int t = 0; t < KEYS; ++t) {
                    scores[r][at + t] = total(sum[r][t]);
                }
            }
        }
    }
}

// Adds the weighted values `from`..`to`: N vectors of each from number `at` on, of which the last has `n_last` numbers.
template <int R, int N, typename Values>
void add_slice(const char * values, size_t stride, int from, int to, const float (*weights)[CHUNK], Sum * sum, int64_t at, int64_t n_last) {
    Sixteen acc[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            acc[r][n] = load_floats(sum[r].values + at + n * 16);
        }
    }
    for (int j = from; j < to; ++j) {
        Sixteen v[N];
        for (int n = 0; n < N; ++n) {
            v[n] = N == 1 && n_last < 16 ? Values::load_first(values + j * stride, at, n_last) : Values::load(values + j * stride, at + n * 16);
        }
        for (int r = 0; r < R; ++r) {
            const Sixteen w = sixteen(weights[r][j]);
            for (int n = 0; n < N; ++n) {
                acc[r][n] = fma_16(w, v[n], acc[r][n]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            store_16(sum[r].values + at + n * 16, acc[r][n]);
        }
    }
}

template <int R, typename Values>
void add_values(const Attention & of, const char * values, size_t stride, int from, int to, const float (*weights)[CHUNK], Sum * sum) {
    // With ROWS rows, all registers of sums.
    constexpr int SLICE = SUMS / ROWS;
    int64_t at = 0;
    for (; at + SLICE * 16 <= of.n_value; at += SLICE * 16) {
        add_slice<R, SLICE, Values>(values, stride, from, to, weights, sum, at, 16);
    }
    for (; at < of.n_value; at += 16) {
        add_slice<R, 1, Values>(values, stride, from, to, weights, sum, at, min_of(of.n_value - at, int64_t(16)));
    }
}

// softcap * tanh(x / softcap), where `scale` has divided by it already.
inline Sixteen capped(Sixteen x, float softcap) {
    float lanes[16];
    store_16(lanes, x);
    for (float & lane : lanes) {
        // Exact enough: the error is that of e^x, relative to softcap.
        const float size = lane < 0.0f ? -lane : lane, e = exp_of(-2.0f * size), t = (1.0f - e) / (1.0f + e);
        lane = softcap * (lane < 0.0f ? -t : t);
    }
    return load_floats(lanes);
}

// Adds the cells from..from + n (at most CHUNK) to the rows' sums.
template <int R> void add_chunk(const Attention & of, const Block & block, const char * keys, size_t key_stride, const char * values,
    size_t value_stride, int64_t from, int n, Sum * sum) {
    // Reading a multiple of 16 stays inside the cache, because its cells come in blocks of 256 (see `describe`).
    float masks[R][CHUNK];
    int first = n, last = 0;
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < n; j += 16) {
            if (block.masks[r] == nullptr) {
                store_16(masks[r] + j, sixteen(0.0f));
            } else {
                store_16(masks[r] + j, mul_16(load_halves(block.masks[r] + from + j), sixteen(block.slopes[r])));
            }
        }
        int begin = 0, end = n;
        while (begin < end && masks[r][begin] == -INFINITY) {
            ++begin;
        }
        while (end > begin && masks[r][end - 1] == -INFINITY) {
            --end;
        }
        if (begin < end) {
            first = begin < first ? begin : first;
            last = end > last ? end : last;
        }
    }
    if (first >= last) {
        return;
    }
    first = first / 16 * 16;
    last = (last + 15) / 16 * 16;

    float scores[R][CHUNK];
    const char *first_key = keys + from * key_stride, *first_value = values + from * value_stride;
    switch (of.key_type) {
        case GGML_TYPE_F16: score<R, OfF16>(of, block, first_key, key_stride, first, last, scores); break;
        case GGML_TYPE_BF16: score<R, OfBF16>(of, block, first_key, key_stride, first, last, scores); break;
        default: score<R, OfQ8_0>(of, block, first_key, key_stride, first, last, scores); break;
    }
    for (int r = 0; r < R; ++r) {
        Sixteen most = sixteen(-INFINITY);
        for (int j = first; j < last; j += 16) {
            Sixteen s = mul_16(load_floats(scores[r] + j), sixteen(of.scale));
            if (of.softcap != 0.0f) {
                s = capped(s, of.softcap);
            }
            s = add_16(s, load_floats(masks[r] + j));
            store_16(scores[r] + j, s);
            most = max_16(most, s);
        }
        const float largest_here = largest(most);
        if (largest_here == -INFINITY) {
            memset(scores[r], 0, sizeof scores[r]);
            continue;
        }
        raise(sum[r], largest_here, of.n_value_padded);
        // Over the whole chunk, so that the lanes do not depend on the masks of other rows.
        Sixteen weight = sixteen(0.0f);
        for (int j = first; j < last; j += 16) {
            const Sixteen p = exp_16(add_16(load_floats(scores[r] + j), sixteen(-sum[r].largest)));
            store_16(scores[r] + j, p);
            weight = add_16(weight, p);
        }
        sum[r].weight = sum[r].weight + total(weight);
    }
    switch (of.value_type) {
        case GGML_TYPE_F16: add_values<R, OfF16>(of, first_value, value_stride, first, last, scores, sum); break;
        case GGML_TYPE_BF16: add_values<R, OfBF16>(of, first_value, value_stride, first, last, scores, sum); break;
        default: add_values<R, OfQ8_0>(of, first_value, value_stride, first, last, scores, sum); break;
    }
}

inline void add_cells(const Attention & of, const Block & block, const char * keys, size_t key_stride, const char * values, size_t value_stride,
    int64_t from, int64_t to, Sum * sum) {
    for (int64_t at = from; at < to; at += CHUNK) {
        const int n = int(min_of(int64_t(CHUNK), to - at));
        const auto add = block.n_rows == 1 ? add_chunk<1> : block.n_rows == 2 ? add_chunk<2> : block.n_rows == 3 ? add_chunk<3> : add_chunk<4>;
        add(of, block, keys, key_stride, values, value_stride, at, n, sum);
    }
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
    return has_types && has_heads && shares && k->ne[1] % 16 == 0 && k->ne[1] == v->ne[1];
}

// The memory for the sums of segments, if they are divided among threads.
size_t attention_size(const ggml_tensor * dst) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    // Only few rows are divided.
    const int64_t rows = min_of(q->ne[1] * q->ne[2] * q->ne[3], int64_t(4096)), segments = (k->ne[1] + SEGMENT - 1) / SEGMENT;
    return size_t(rows * segments * (2 + padded(v->ne[0], 16))) * sizeof(float);
}

bool attend(const ggml_compute_params * params, const ggml_tensor * dst) {
    if (!can_attend(dst)) {
        return false;
    }
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3], *sinks = dst->src[4];
    float max_bias;
    Attention of;
    of.n_key = k->ne[0];
    of.n_value = v->ne[0];
    of.n_value_padded = padded(of.n_value, 16);
    of.n_cells = k->ne[1];
    of.key_type = k->type;
    of.value_type = v->type;
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

    // The rows that share a head of keys: its query heads, token by token.
    const int64_t n_shared = q->ne[2] / k->ne[2];
    const int64_t n_rows = n_shared * q->ne[1];
    const int64_t n_blocks = (n_rows + ROWS - 1) / ROWS;
    const int64_t n_heads = k->ne[2] * q->ne[3];
    const int64_t n_segments = (of.n_cells + SEGMENT - 1) / SEGMENT;
    const int64_t size = 2 + of.n_value_padded;

    // If there are few blocks, their segments are divided among threads, provided that there is memory for their sums.
    const int64_t all_rows = q->ne[1] * q->ne[2] * q->ne[3];
    const bool divides = params->nth > 1 && n_segments > 1 && n_heads * n_blocks < int64_t(8) * params->nth
                         && size_t(all_rows * n_segments * size) * sizeof(float) <= params->wsize;
    float * const sums_of_segments = static_cast<float *>(params->wdata);
    const int64_t n_parts = divides ? n_segments : 1;
    const int64_t n_items = n_heads * n_blocks * n_parts;

    const auto finish = [&](Sum & sum, int64_t stream, int64_t token, int64_t head) {
        if (sinks != nullptr) {
            const float sink = static_cast<const float *>(sinks->data)[head];
            raise(sum, sink, of.n_value_padded);
            sum.weight += exp_of(sink - sum.largest);
        }
        const float inverse = sum.weight == 0.0f ? 0.0f : 1.0f / sum.weight;
        float * out
            = reinterpret_cast<float *>(static_cast<char *>(dst->data) + (stream * dst->ne[2] * dst->ne[1] + head + token * dst->ne[1]) * dst->nb[1]);
        for (int64_t i = 0; i < of.n_value_padded; i += 16) {
            store_16(sum.values + i, mul_16(load_floats(sum.values + i), sixteen(inverse)));
        }
        memcpy(out, sum.values, of.n_value * sizeof(float));
    };

    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    for (int64_t item = params->ith; item < n_items; item = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t part = item % n_parts, index = item / n_parts;
        const int64_t first_row = index % n_blocks * ROWS, key_head = index / n_blocks % k->ne[2], stream = index / n_blocks / k->ne[2];
        const int64_t key_stream = stream / (q->ne[3] / k->ne[3]);
        Block block;
        block.n_rows = int(min_of(int64_t(ROWS), n_rows - first_row));
        int64_t tokens[ROWS], heads[ROWS];
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
        }
        const char * keys = static_cast<const char *>(k->data) + key_head * k->nb[2] + key_stream * k->nb[3];
        const char * values = static_cast<const char *>(v->data) + key_head * v->nb[2] + key_stream * v->nb[3];

        alignas(64) float memory[2][ROWS][MAX_HEAD];
        Sum segment[ROWS], sum[ROWS];
        for (int r = 0; r < block.n_rows; ++r) {
            segment[r].values = memory[0][r];
            sum[r].values = memory[1][r];
            clear(sum[r], of.n_value_padded);
        }
        for (int64_t at = divides ? part : 0; at < (divides ? part + 1 : n_segments); ++at) {
            for (int r = 0; r < block.n_rows; ++r) {
                clear(segment[r], of.n_value_padded);
            }
            add_cells(of, block, keys, k->nb[1], values, v->nb[1], at * SEGMENT, min_of((at + 1) * SEGMENT, of.n_cells), segment);
            for (int r = 0; r < block.n_rows; ++r) {
                if (divides) {
                    const int64_t row = (stream * q->ne[1] + tokens[r]) * q->ne[2] + heads[r];
                    float * to = sums_of_segments + (row * n_segments + at) * size;
                    to[0] = segment[r].largest;
                    to[1] = segment[r].weight;
                    memcpy(to + 2, segment[r].values, of.n_value_padded * sizeof(float));
                } else {
                    merge(sum[r], segment[r], of.n_value_padded);
                }
            }
        }
        for (int r = 0; !divides && r < block.n_rows; ++r) {
            finish(sum[r], stream, tokens[r], heads[r]);
        }
    }
    if (!divides) {
        return true;
    }
    ggml_barrier(params->threadpool);
    for (int64_t row = params->ith; row < all_rows; row += params->nth) {
        alignas(64) float memory[MAX_HEAD];
        Sum sum = { 0.0f, 0.0f, memory };
        clear(sum, of.n_value_padded);
        for (int64_t at = 0; at < n_segments; ++at) {
            float * from = sums_of_segments + (row * n_segments + at) * size;
            merge(sum, Sum { from[0], from[1], from + 2 }, of.n_value_padded);
        }
        finish(sum, row / q->ne[2] / q->ne[1], row / q->ne[2] % q->ne[1], row % q->ne[2]);
    }
    return true;
}
