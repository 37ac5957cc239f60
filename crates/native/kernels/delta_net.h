// GATED_DELTA_NET: the recurrence of Qwen3.5, Kimi Linear and others.
//
// Each head has a square state, which ggml keeps transposed: row j has the numbers that give the output j. For each token the rows decay, then
//
//   d_j = (v_j - row_j . k) beta,   row_j += d_j k,   output_j = row_j . q / sqrt(width)
//
// ggml goes four times through a state, which the first cache does not hold. Here a few rows go through up to 32 tokens, then the next rows. A row's
// operations are ggml's with AVX2, in ggml's order, so the bits are ggml's, at every level: dot products have 32 running sums, which are added
// i and i + 16, then i and i + 8, i and i + 4, then neighbours.
#pragma once

#include "vectors.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// Rows that are computed together, 2 or 4: as many as registers can hold the sums of.
#if defined(FOREDRAFT_AVX512_VNNI)
constexpr int STATE_ROWS = 4;
#else
constexpr int STATE_ROWS = 2;
#endif
// Tokens of which the factors are computed together.
constexpr int STATE_TOKENS = 32;
constexpr int64_t MAX_STATE_WIDTH = 256;
// The parts of a head that threads take.
constexpr int64_t HEAD_PARTS = 4;

// The running sums of one row.
struct RowSums {
    F32x16 low, high;
};

// The totals of all rows. With two rows each of them comes twice.
inline void store_totals(float (&to)[4], const RowSums (&sums)[STATE_ROWS]) {
#if defined(FOREDRAFT_NEON)
    float32x4_t of_row[4];
    for (int r = 0; r < 4; ++r) {
        const F32x16 all = add_x16(sums[r % STATE_ROWS].low, sums[r % STATE_ROWS].high);
        of_row[r] = vaddq_f32(vaddq_f32(all.fours[0], all.fours[2]), vaddq_f32(all.fours[1], all.fours[3]));
    }
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(of_row[0], of_row[1]), vpaddq_f32(of_row[2], of_row[3])));
#else
    __m128 of_row[4];
    for (int r = 0; r < 4; ++r) {
        const F32x16 all = add_x16(sums[r % STATE_ROWS].low, sums[r % STATE_ROWS].high);
        const __m256 eight = _mm256_add_ps(lower(all), upper(all));
        of_row[r] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    _mm_storeu_ps(to, _mm_hadd_ps(_mm_hadd_ps(of_row[0], of_row[1]), _mm_hadd_ps(of_row[2], of_row[3])));
#endif
}

// The inputs of a token for rows of a state.
struct StateToken {
    const float * q;
    const float * k;
    const float * v;
    // A factor for each column, or the same for all.
    const float * decays;
    float decay, beta;
};

template <bool HAS_DECAYS> inline F32x16 decayed(const float * state, const StateToken & token, F32x16 decay, int64_t at) {
    return mul_x16(load_floats(state + at), HAS_DECAYS ? load_floats(token.decays + at) : decay);
}

// Computes a token with `STATE_ROWS` rows of a state: from `in` to `out`, which may be the same. The outputs are those of these rows.
template <bool HAS_DECAYS>
inline void advance_rows(const float * in, float * out, int64_t width, const StateToken & token, int64_t row, float scale, float * outputs) {
    const F32x16 decay = broadcast_x16(token.decay);
    RowSums sums[STATE_ROWS];
    for (int r = 0; r < STATE_ROWS; ++r) {
        sums[r] = { broadcast_x16(0.0f), broadcast_x16(0.0f) };
    }
    for (int64_t at = 0; at < width; at += 32) {
        const F32x16 low = load_floats(token.k + at), high = load_floats(token.k + at + 16);
        for (int r = 0; r < STATE_ROWS; ++r) {
            sums[r].low = fma_x16(decayed<HAS_DECAYS>(in + r * width, token, decay, at), low, sums[r].low);
            sums[r].high = fma_x16(decayed<HAS_DECAYS>(in + r * width, token, decay, at + 16), high, sums[r].high);
        }
    }
    float totals[4];
    store_totals(totals, sums);
    F32x16 deltas[STATE_ROWS];
    for (int r = 0; r < STATE_ROWS; ++r) {
        deltas[r] = broadcast_x16((token.v[row + r] - totals[r]) * token.beta);
        sums[r] = { broadcast_x16(0.0f), broadcast_x16(0.0f) };
    }
    for (int64_t at = 0; at < width; at += 32) {
        const F32x16 k_low = load_floats(token.k + at), k_high = load_floats(token.k + at + 16);
        const F32x16 q_low = load_floats(token.q + at), q_high = load_floats(token.q + at + 16);
        for (int r = 0; r < STATE_ROWS; ++r) {
            const F32x16 low = fma_x16(k_low, deltas[r], decayed<HAS_DECAYS>(in + r * width, token, decay, at));
            const F32x16 high = fma_x16(k_high, deltas[r], decayed<HAS_DECAYS>(in + r * width, token, decay, at + 16));
            store_x16(out + r * width + at, low);
            store_x16(out + r * width + at + 16, high);
            sums[r].low = fma_x16(low, q_low, sums[r].low);
            sums[r].high = fma_x16(high, q_high, sums[r].high);
        }
    }
    store_totals(totals, sums);
    for (int r = 0; r < STATE_ROWS; ++r) {
        outputs[row + r] = totals[r] * scale;
    }
}

bool can_delta_net(const ggml_tensor * dst) {
    const ggml_tensor * const * src = dst->src;
    for (int i = 0; i < 6; ++i) {
        if (src[i]->type != GGML_TYPE_F32 || src[i]->nb[0] != sizeof(float)) {
            return false;
        }
    }
    const int64_t width = src[2]->ne[0];
    return width % 32 == 0 && width <= MAX_STATE_WIDTH && ggml_is_contiguous(src[3]) && ggml_is_contiguous(src[4]) && ggml_is_contiguous(src[5])
           && ggml_is_contiguous(dst);
}

bool delta_net(const ggml_compute_params * params, const ggml_tensor * dst, const StatePlaces * given) {
    if (!can_delta_net(dst)) {
        return false;
    }
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];
    const ggml_tensor * v = dst->src[2];
    const ggml_tensor * gate = dst->src[3];
    const ggml_tensor * beta = dst->src[4];
    const ggml_tensor * state = dst->src[5];
    const int64_t width = v->ne[0], n_heads = v->ne[1], n_tokens = v->ne[2], n_seqs = v->ne[3];
    const int64_t n_states = ggml_get_op_params_i32(dst, 0), state_size = width * width;
    const bool has_decays = gate->ne[0] == width;
    const int64_t n_decays = has_decays ? width : 1;
    const float scale = 1.0f / sqrtf(static_cast<float>(width));
    float * outputs = static_cast<float *>(dst->data);
    // The states behind the outputs: of each of the last tokens those of all sequences, the last token's first.
    const int64_t of_sequence = n_heads * state_size;
    const StatePlaces in_tensors = { nullptr, outputs + width * n_heads * n_tokens * n_seqs, of_sequence, n_seqs * of_sequence };
    const StatePlaces & places = given != nullptr ? *given : in_tensors;
    const auto row_of = [](const ggml_tensor * of, int64_t head, int64_t token, int64_t sequence) {
        return reinterpret_cast<const float *>(static_cast<const char *>(of->data) + sequence * of->nb[3] + token * of->nb[2] + head * of->nb[1]);
    };
    const int64_t n_items = n_heads * n_seqs * HEAD_PARTS, part_rows = width / HEAD_PARTS;
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);
    const PausePoint pause(params->threadpool);
    for (int64_t item = params->ith; item < n_items; item = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int64_t head = item / HEAD_PARTS % n_heads, sequence = item / HEAD_PARTS / n_heads;
        const int64_t first_row = item % HEAD_PARTS * part_rows;
        const auto state_after = [&](int64_t token) {
            const int64_t back = n_tokens - 1 - token;
            return places.after + (back < n_states ? back : 0) * places.by_token + sequence * places.by_sequence + head * state_size;
        };
        const float * of_all = places.before != nullptr ? places.before[sequence] : static_cast<const float *>(state->data) + sequence * of_sequence;
        const float * before = of_all + head * state_size;
        for (int64_t first = 0; first < n_tokens; first += STATE_TOKENS) {
            const int64_t end = first + STATE_TOKENS < n_tokens ? first + STATE_TOKENS : n_tokens;
            alignas(64) float decays[STATE_TOKENS * MAX_STATE_WIDTH];
            StateToken tokens[STATE_TOKENS];
            for (int64_t t = first; t < end; ++t) {
                const float * gates = row_of(gate, head, t, sequence);
                float * of_token = decays + (t - first) * n_decays;
                for (int64_t i = 0; i < n_decays; ++i) {
                    of_token[i] = expf(gates[i]);
                }
                tokens[t - first]
                    = { row_of(q, head % q->ne[1], t, sequence / (n_seqs / q->ne[3])), row_of(k, head % k->ne[1], t, sequence / (n_seqs / k->ne[3])),
                          row_of(v, head, t, sequence), of_token, of_token[0], *row_of(beta, head, t, sequence) };
            }
            for (int64_t row = first_row; row < first_row + part_rows; row += STATE_ROWS) {
                const float * in = (first == 0 ? before : state_after(first - 1)) + row * width;
                for (int64_t t = first; t < end; ++t) {
                    float * out = state_after(t) + row * width;
                    float * of_token = outputs + ((sequence * n_tokens + t) * n_heads + head) * width;
                    (has_decays ? advance_rows<true> : advance_rows<false>) (in, out, width, tokens[t - first], row, scale, of_token);
                    in = out;
                }
            }
            pause.pass();
        }
    }
    return true;
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
