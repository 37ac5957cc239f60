// Flash attention on x86-64 CPUs with an F16 cache. Replaces ggml's kernel (with the linker's `--wrap`: see build.rs).
//
// ggml's kernel processes one query of one head at a time, converts keys and values again for each, and sums values in F16. From 512
// cells on it divides the keys of a single query among the threads, and from 64 queries on it uses other tiles. So the last bits of a
// token's result depend on its batch. This kernel converts a key and a value once for up to four rows (several queries, and the heads
// that share them), and sums in F32. It is batch-invariant: the operations of a row and their order do not depend on other rows or on
// the number of threads.
//
// The order of operations of a row: cells are processed in chunks of CHUNK; fully masked chunks are skipped. The chunks of a segment
// of SEGMENT cells are merged one after the other, then the segments. Chunks and segments begin at multiples of their length.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ggml-cpu-impl.h"

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__) && defined(__F16C__))
#define FOREDRAFT_FLASH_ATTENTION 1
#include <immintrin.h>
#endif

extern "C" {

// ggml's kernel, for unsupported cases. The linker provides this name. Weak, so that a program without the linker option also links,
// and uses ggml's kernel.
__attribute__((weak)) void __real_ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);
void __wrap_ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);
void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);

}

namespace {

// Counts calls in graphs that this thread started; the starting thread is the first thread of a graph.
thread_local uint64_t n_calls = 0;

}  // namespace

// Whether this kernel is compiled for the processor and the linker has replaced ggml's function. The compiler must not know that two functions
// may be one.
extern "C" bool foredraft_flash_attention_is_linked(void) {
#ifdef FOREDRAFT_FLASH_ATTENTION
    const volatile auto called = &ggml_compute_forward_flash_attn_ext;
    const volatile auto ours = &__wrap_ggml_compute_forward_flash_attn_ext;
    return called == ours;
#else
    return false;
#endif
}

// The number of calls of this kernel in graphs that the calling thread started.
extern "C" uint64_t foredraft_flash_attention_calls(void) { return n_calls; }

#ifdef FOREDRAFT_FLASH_ATTENTION

namespace {

constexpr int CHUNK = 64;
constexpr int SEGMENT = 256;
// The number of rows that are computed together.
constexpr int ROWS = 4;
// The maximum head size of keys and values.
constexpr int MAX_HEAD = 576;

#ifdef __AVX512F__
using Vec = __m512;
constexpr int W = 16;
// The number of vectors of values that are summed at once: with ROWS rows, 16 of 32 registers.
constexpr int SLICE = 4;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float * p) { return _mm512_loadu_ps(p); }
inline void store(float * p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec load_f16(const ggml_fp16_t * p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline float largest(Vec x) { return _mm512_reduce_max_ps(x); }

// 2^n p, and 0 where x is far below 0.
inline Vec scale_by_power(Vec x, Vec n, Vec p) {
    const __mmask16 is_normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
    return _mm512_maskz_scalef_ps(is_normal, p, n);
}
inline Vec round_nearest(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// The sums of 16 vectors.
inline Vec sums(const Vec * a) {
    Vec b[8], c[4], d[2];
    for (int i = 0; i < 8; ++i) {
        b[i] = add(_mm512_unpacklo_ps(a[2*i], a[2*i + 1]), _mm512_unpackhi_ps(a[2*i], a[2*i + 1]));
    }
    for (int i = 0; i < 4; ++i) {
        const __m512d lo = _mm512_castps_pd(b[2*i]), hi = _mm512_castps_pd(b[2*i + 1]);
        c[i] = add(_mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)), _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi)));
    }
    for (int i = 0; i < 2; ++i) {
        d[i] = add(_mm512_shuffle_f32x4(c[2*i], c[2*i + 1], 0x44), _mm512_shuffle_f32x4(c[2*i], c[2*i + 1], 0xEE));
    }
    return add(_mm512_shuffle_f32x4(d[0], d[1], 0x88), _mm512_shuffle_f32x4(d[0], d[1], 0xDD));
}
#else
using Vec = __m256;
constexpr int W = 8;
constexpr int SLICE = 2;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec set1(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float * p) { return _mm256_loadu_ps(p); }
inline void store(float * p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec load_f16(const ggml_fp16_t * p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline float largest(Vec x) {
    float lanes[W];
    store(lanes, x);
    return *std::max_element(lanes, lanes + W);
}
inline Vec scale_by_power(Vec x, Vec n, Vec p) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const Vec scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_and_ps(scaled, _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_GE_OQ));
}
inline Vec round_nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// The sums of 8 vectors.
inline Vec sums(const Vec * a) {
    Vec b[4], c[2];
    for (int i = 0; i < 4; ++i) {
        b[i] = add(_mm256_unpacklo_ps(a[2*i], a[2*i + 1]), _mm256_unpackhi_ps(a[2*i], a[2*i + 1]));
    }
    for (int i = 0; i < 2; ++i) {
        const __m256d lo = _mm256_castps_pd(b[2*i]), hi = _mm256_castps_pd(b[2*i + 1]);
        c[i] = add(_mm256_castpd_ps(_mm256_unpacklo_pd(lo, hi)), _mm256_castpd_ps(_mm256_unpackhi_pd(lo, hi)));
    }
    return add(_mm256_permute2f128_ps(c[0], c[1], 0x20), _mm256_permute2f128_ps(c[0], c[1], 0x31));
}
#endif

// e^x for x <= 0; 0 below -87.
inline Vec exp_of(Vec x) {
    // ln 2 in two parts, the first exact in its products with small integers; then the series of e^r for |r| <= ln 2 / 2.
    const Vec n = round_nearest(mul(x, set1(1.44269504f)));
    const Vec r = fma(n, set1(-1.42860677e-6f), fma(n, set1(-0.693145752f), x));
    Vec p = set1(1.3888889e-3f);
    p = fma(p, r, set1(8.3333333e-3f));
    p = fma(p, r, set1(4.1666667e-2f));
    p = fma(p, r, set1(1.6666667e-1f));
    p = fma(p, r, set1(0.5f));
    p = fma(p, r, set1(1.0f));
    p = fma(p, r, set1(1.0f));
    return scale_by_power(x, n, p);
}

// The running sums of one row: the largest score, the sum of e^(score - largest), and the sum of values with these weights.
struct Sum {
    float largest;
    float weight;
    float * values;
};

void clear(Sum & sum, int n_values) {
    sum.largest = -INFINITY;
    sum.weight = 0.0f;
    std::memset(sum.values, 0, n_values * sizeof(float));
}

// Scales a sum to a larger maximum.
void raise(Sum & sum, float largest, int n_values) {
    if (largest <= sum.largest) {
        return;
    }
    // All sums are 0 while there is no maximum.
    const float scale = sum.largest == -INFINITY ? 0.0f : std::exp(sum.largest - largest);
    sum.largest = largest;
    sum.weight *= scale;
    for (int i = 0; i < n_values; i += W) {
        store(sum.values + i, mul(load(sum.values + i), set1(scale)));
    }
}

// Adds `from` to `sum`.
void merge(Sum & sum, const Sum & from, int n_values) {
    if (from.largest == -INFINITY) {
        return;
    }
    raise(sum, from.largest, n_values);
    const float scale = std::exp(from.largest - sum.largest);
    sum.weight += from.weight * scale;
    for (int i = 0; i < n_values; i += W) {
        store(sum.values + i, fma(load(from.values + i), set1(scale), load(sum.values + i)));
    }
}

// Rows that share keys and values.
struct Block {
    int n_rows;
    const float * queries[ROWS];
    // NULL: nothing is masked.
    const ggml_fp16_t * masks[ROWS];
    float slopes[ROWS];
};

// The parameters of all rows.
struct Attention {
    int64_t n_key, n_value;
    int64_t n_cells;
    float scale, softcap;
};

// Computes the scores of keys `from`..`to` (relative to `keys`) for R rows, KT keys at a time: R rows of KT sums fill a vector.
template <int R>
void score(const Attention & of, const Block & block, const char * keys, size_t stride, int from, int to, float (*scores)[CHUNK]) {
    constexpr int KT = W / (R == 3 ? 4 : R);
    for (int at = from; at < to; at += KT) {
        Vec sum[W];
        for (int i = 0; i < W; ++i) {
            sum[i] = zero();
        }
        for (int64_t d = 0; d < of.n_key; d += W) {
            Vec q[R];
            for (int r = 0; r < R; ++r) {
                q[r] = load(block.queries[r] + d);
            }
            for (int t = 0; t < KT; ++t) {
                const Vec k = load_f16(reinterpret_cast<const ggml_fp16_t *>(keys + (at + t) * stride) + d);
                for (int r = 0; r < R; ++r) {
                    sum[r * KT + t] = fma(k, q[r], sum[r * KT + t]);
                }
            }
        }
        float all[W];
        store(all, sums(sum));
        for (int r = 0; r < R; ++r) {
            std::memcpy(scores[r] + at, all + r * KT, KT * sizeof(float));
        }
    }
}

// Adds the weighted values `from`..`to`, N vectors of each.
template <int R, int N>
void add_slice(const char * values, size_t stride, int from, int to, const float (*weights)[CHUNK], Sum * sum, int64_t at) {
    Vec acc[R][N];
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            acc[r][n] = load(sum[r].values + at + n * W);
        }
    }
    for (int j = from; j < to; ++j) {
        const ggml_fp16_t * value = reinterpret_cast<const ggml_fp16_t *>(values + j * stride) + at;
        Vec v[N];
        for (int n = 0; n < N; ++n) {
            v[n] = load_f16(value + n * W);
        }
        for (int r = 0; r < R; ++r) {
            const Vec w = set1(weights[r][j]);
            for (int n = 0; n < N; ++n) {
                acc[r][n] = fma(w, v[n], acc[r][n]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int n = 0; n < N; ++n) {
            store(sum[r].values + at + n * W, acc[r][n]);
        }
    }
}

// Adds the cells from..from + n (at most CHUNK) to the rows' sums.
template <int R>
void add_chunk(const Attention & of, const Block & block, const char * keys, size_t key_stride, const char * values,
               size_t value_stride, int64_t from, int n, Sum * sum) {
    // Reading a multiple of W stays inside the cache, because its cells come in blocks of 256 (see `is_supported`).
    float masks[R][CHUNK];
    int first = n, last = 0;
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < n; j += W) {
            if (block.masks[r] == nullptr) {
                store(masks[r] + j, zero());
            } else {
                store(masks[r] + j, mul(load_f16(block.masks[r] + from + j), set1(block.slopes[r])));
            }
        }
        int begin = 0, end = n;
        while (begin < end && masks[r][begin] == -INFINITY) { ++begin; }
        while (end > begin && masks[r][end - 1] == -INFINITY) { --end; }
        if (begin < end) {
            first = std::min(first, begin);
            last = std::max(last, end);
        }
    }
    if (first >= last) {
        return;
    }
    first = first / W * W;
    last = (last + W - 1) / W * W;

    float scores[R][CHUNK];
    score<R>(of, block, keys + from * key_stride, key_stride, first, last, scores);
    for (int r = 0; r < R; ++r) {
        Vec most = set1(-INFINITY);
        for (int j = first; j < last; j += W) {
            Vec s = mul(load(scores[r] + j), set1(of.scale));
            if (of.softcap != 0.0f) {
                float lanes[W];
                store(lanes, s);
                for (float & lane : lanes) {
                    lane = of.softcap * std::tanh(lane);
                }
                s = load(lanes);
            }
            s = add(s, load(masks[r] + j));
            store(scores[r] + j, s);
            most = max(most, s);
        }
        const float largest_here = largest(most);
        if (largest_here == -INFINITY) {
            std::memset(scores[r], 0, sizeof scores[r]);
            continue;
        }
        raise(sum[r], largest_here, of.n_value);
        // Over the whole chunk, so that the lanes do not depend on the masks of other rows.
        Vec weight = zero();
        for (int j = first; j < last; j += W) {
            const Vec p = exp_of(add(load(scores[r] + j), set1(-sum[r].largest)));
            store(scores[r] + j, p);
            weight = add(weight, p);
        }
        float lanes[W];
        store(lanes, weight);
        float total = 0.0f;
        for (float lane : lanes) {
            total += lane;
        }
        sum[r].weight += total;
    }
    int64_t at = 0;
    for (; at + SLICE * W <= of.n_value; at += SLICE * W) {
        add_slice<R, SLICE>(values + from * value_stride, value_stride, first, last, scores, sum, at);
    }
    for (; at < of.n_value; at += W) {
        add_slice<R, 1>(values + from * value_stride, value_stride, first, last, scores, sum, at);
    }
}

void add_cells(const Attention & of, const Block & block, const char * keys, size_t key_stride, const char * values,
               size_t value_stride, int64_t from, int64_t to, Sum * sum) {
    for (int64_t at = from; at < to; at += CHUNK) {
        const int n = int(std::min<int64_t>(CHUNK, to - at));
        switch (block.n_rows) {
            case 1: add_chunk<1>(of, block, keys, key_stride, values, value_stride, at, n, sum); break;
            case 2: add_chunk<2>(of, block, keys, key_stride, values, value_stride, at, n, sum); break;
            case 3: add_chunk<3>(of, block, keys, key_stride, values, value_stride, at, n, sum); break;
            default: add_chunk<4>(of, block, keys, key_stride, values, value_stride, at, n, sum); break;
        }
    }
}

// Whether this kernel supports the operation.
bool is_supported(const ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * mask = dst->src[3];
    const bool has_types = q->type == GGML_TYPE_F32 && k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 && dst->type == GGML_TYPE_F32 &&
                           (mask == nullptr || mask->type == GGML_TYPE_F16);
    const bool has_rows = q->nb[0] == sizeof(float) && k->nb[0] == sizeof(ggml_fp16_t) && v->nb[0] == sizeof(ggml_fp16_t) &&
                          (mask == nullptr || mask->nb[0] == sizeof(ggml_fp16_t));
    const bool has_heads = k->ne[0] % W == 0 && v->ne[0] % W == 0 && k->ne[0] <= MAX_HEAD && v->ne[0] <= MAX_HEAD && q->ne[0] == k->ne[0];
    const bool shares = k->ne[2] > 0 && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && q->ne[2] % k->ne[2] == 0 && q->ne[3] % k->ne[3] == 0;
    return has_types && has_rows && has_heads && shares && k->ne[1] % W == 0 && k->ne[1] == v->ne[1];
}

void compute(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * mask = dst->src[3], * sinks = dst->src[4];
    float max_bias;
    Attention of;
    of.n_key = k->ne[0];
    of.n_value = v->ne[0];
    of.n_cells = k->ne[1];
    std::memcpy(&of.scale, dst->op_params, sizeof(float));
    std::memcpy(&max_bias, dst->op_params + 1, sizeof(float));
    std::memcpy(&of.softcap, dst->op_params + 2, sizeof(float));
    if (of.softcap != 0.0f) {
        of.scale /= of.softcap;
    }
    const int n_log2 = 1 << int(std::floor(std::log2(double(q->ne[2]))));
    const auto slope = [&](int64_t head) {
        if (max_bias <= 0.0f) {
            return 1.0f;
        }
        const float m0 = std::pow(2.0f, -max_bias / n_log2), m1 = std::pow(2.0f, -max_bias / 2.0f / n_log2);
        return head < n_log2 ? std::pow(m0, float(head + 1)) : std::pow(m1, float(2*(head - n_log2) + 1));
    };

    // The rows that share a head of keys: its query heads, token by token.
    const int64_t n_shared = q->ne[2] / k->ne[2];
    const int64_t n_rows = n_shared * q->ne[1];
    const int64_t n_blocks = (n_rows + ROWS - 1) / ROWS;
    const int64_t n_heads = k->ne[2] * q->ne[3];
    const int64_t n_segments = (of.n_cells + SEGMENT - 1) / SEGMENT;
    const int64_t size = 2 + of.n_value;

    // If there are few blocks, their segments are divided among threads, provided that there is memory for their sums.
    const int64_t all_rows = q->ne[1] * q->ne[2] * q->ne[3];
    const bool divides = params->nth > 1 && n_segments > 1 && n_heads * n_blocks < 8 * params->nth &&
                         size_t(all_rows * n_segments * size) * sizeof(float) <= params->wsize;
    float * const sums_of_segments = static_cast<float *>(params->wdata);
    const int64_t n_parts = divides ? n_segments : 1;
    const int64_t n_items = n_heads * n_blocks * n_parts;

    const auto finish = [&](Sum & total, int64_t stream, int64_t token, int64_t head) {
        if (sinks != nullptr) {
            const float sink = static_cast<const float *>(sinks->data)[head];
            raise(total, sink, of.n_value);
            total.weight += std::exp(sink - total.largest);
        }
        const float inverse = total.weight == 0.0f ? 0.0f : 1.0f / total.weight;
        float * out = reinterpret_cast<float *>(static_cast<char *>(dst->data) +
                                                (stream * dst->ne[2] * dst->ne[1] + head + token * dst->ne[1]) * dst->nb[1]);
        for (int64_t i = 0; i < of.n_value; i += W) {
            store(out + i, mul(load(total.values + i), set1(inverse)));
        }
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
        block.n_rows = int(std::min<int64_t>(ROWS, n_rows - first_row));
        int64_t tokens[ROWS], heads[ROWS];
        for (int r = 0; r < block.n_rows; ++r) {
            tokens[r] = (first_row + r) / n_shared;
            heads[r] = key_head * n_shared + (first_row + r) % n_shared;
            block.queries[r] = reinterpret_cast<const float *>(static_cast<const char *>(q->data) + tokens[r] * q->nb[1] +
                                                               heads[r] * q->nb[2] + stream * q->nb[3]);
            block.masks[r] = mask == nullptr ? nullptr : reinterpret_cast<const ggml_fp16_t *>(
                static_cast<const char *>(mask->data) + tokens[r] * mask->nb[1] + heads[r] % mask->ne[2] * mask->nb[2] +
                stream % mask->ne[3] * mask->nb[3]);
            block.slopes[r] = slope(heads[r]);
        }
        const char * keys = static_cast<const char *>(k->data) + key_head * k->nb[2] + key_stream * k->nb[3];
        const char * values = static_cast<const char *>(v->data) + key_head * v->nb[2] + key_stream * v->nb[3];

        alignas(64) float memory[2][ROWS][MAX_HEAD];
        Sum segment[ROWS], total[ROWS];
        for (int r = 0; r < block.n_rows; ++r) {
            segment[r].values = memory[0][r];
            total[r].values = memory[1][r];
            clear(total[r], of.n_value);
        }
        for (int64_t at = divides ? part : 0; at < (divides ? part + 1 : n_segments); ++at) {
            for (int r = 0; r < block.n_rows; ++r) {
                clear(segment[r], of.n_value);
            }
            add_cells(of, block, keys, k->nb[1], values, v->nb[1], at * SEGMENT, std::min((at + 1) * SEGMENT, of.n_cells), segment);
            for (int r = 0; r < block.n_rows; ++r) {
                if (divides) {
                    const int64_t row = (stream * q->ne[1] + tokens[r]) * q->ne[2] + heads[r];
                    float * to = sums_of_segments + (row * n_segments + at) * size;
                    to[0] = segment[r].largest;
                    to[1] = segment[r].weight;
                    std::memcpy(to + 2, segment[r].values, of.n_value * sizeof(float));
                } else {
                    merge(total[r], segment[r], of.n_value);
                }
            }
        }
        for (int r = 0; !divides && r < block.n_rows; ++r) {
            finish(total[r], stream, tokens[r], heads[r]);
        }
    }
    if (!divides) {
        return;
    }
    ggml_barrier(params->threadpool);
    for (int64_t row = params->ith; row < all_rows; row += params->nth) {
        alignas(64) float memory[MAX_HEAD];
        Sum total = { 0.0f, 0.0f, memory };
        clear(total, of.n_value);
        for (int64_t at = 0; at < n_segments; ++at) {
            float * from = sums_of_segments + (row * n_segments + at) * size;
            merge(total, Sum { from[0], from[1], from + 2 }, of.n_value);
        }
        finish(total, row / q->ne[2] / q->ne[1], row / q->ne[2] % q->ne[1], row % q->ne[2]);
    }
}

}  // namespace

// Also used when ggml's reference kernels are selected, so that single tokens are computed like several.
void __wrap_ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    if (!is_supported(dst)) {
        __real_ggml_compute_forward_flash_attn_ext(params, dst);
        return;
    }
    if (params->ith == 0) {
        ++n_calls;
    }
    compute(params, dst);
}

#else

void __wrap_ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) { __real_ggml_compute_forward_flash_attn_ext(params, dst); }

#endif
