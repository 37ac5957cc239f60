// Flash attention, for caches of all types that llama.cpp offers and any head size.
//
// ggml's kernel processes one query of one head at a time, converts keys and values again for each, and sums values in F16. From 512
// cells on it divides the keys of a single query among the threads, and from 64 queries on it uses other tiles. So the last bits of a
// token's result depend on its batch. This kernel converts a key and a value once for a few rows (several queries, and the heads
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
// The number of rows that are computed together, at most.
constexpr int ROWS = SUMS == 16 ? 8 : 4;
// The least power of two that is not less.
constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }
// Cells whose keys and values are fetched ahead. Processors foresee few of them: a head's part of a cell is a few lines of a longer row.
constexpr int AHEAD = 16;
// The maximum head size of keys and values.
constexpr int MAX_HEAD = 576;

// How the numbers of keys and values are read: 16 at a time, from `SIZE` bytes that hold PIECES times 16. A row of floats may end with fewer.
template <typename Of> struct OfFloats {
    static constexpr int PIECES = 1, SIZE = 16 * sizeof(typename Of::Number);
    static F32x16 load(const char * at, int) { return Of::load(reinterpret_cast<const typename Of::Number *>(at)); }
    static F32x16 load_first(const char * at, int64_t n) { return load_part<Of>(reinterpret_cast<const typename Of::Number *>(at), n); }
};
// Blocks of 32 numbers in a short format: a scale, perhaps a minimum, perhaps fifth bits, then the numbers.
template <typename Format> struct OfBlocks {
    static constexpr int PIECES = 2, SIZE = Format::SIZE;
    static inline __attribute__((always_inline)) F32x16 load(const char * at, int piece) {
        const auto * block = reinterpret_cast<const uint8_t *>(at);
        uint16_t halves[2];
        memcpy(halves, block, sizeof halves);
        const F32x16 scale = broadcast_x16(float_of_half(halves[0])), numbers = numbers_of(block, piece);
        return Format::MINIMA ? fma_x16(numbers, scale, broadcast_x16(float_of_half(halves[1]))) : mul_x16(numbers, scale);
    }

private:
    static inline __attribute__((always_inline)) F32x16 numbers_of(const uint8_t * block, int piece) {
        if constexpr (Format::TYPE == GGML_TYPE_Q8_0) {
            return load_bytes(reinterpret_cast<const int8_t *>(block + offsetof(block_q8_0, qs)) + 16 * piece);
        } else {
            const uint8_t * at = block + SIZE - 16;
            const I32xN packed = repeat_16(at), numbers = piece == 0 ? low_4_bits(packed) : high_4_bits(packed);
            if constexpr (Format::TYPE == GGML_TYPE_IQ4_NL) {
                return floats_of_bytes(shuffle(repeat_16(kvalues_iq4nl), numbers));
            }
            const I32xN whole = Format::BITS == 5 ? bit_or(numbers, fifth_bits(at - 4 + 2 * piece)) : numbers;
            return floats_of_bytes(Format::OFFSET == 0 ? whole : sub_8(whole, broadcast_8(Format::OFFSET)));
        }
    }
    static inline I32xN fifth_bits(const uint8_t * at) {
        alignas(16) static const uint8_t BYTES[16] = { 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1 };
        alignas(16) static const uint8_t BITS[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
        uint16_t bits;
        memcpy(&bits, at, sizeof bits);
        return where_bits(shuffle(broadcast(bits), repeat_16(BYTES)), repeat_16(BITS), broadcast_8(0x10));
    }
};

// Calls `use` with how numbers of this type are read. Returns whether they are.
template <typename Use> bool with_numbers(ggml_type type, Use use) {
    switch (type) {
        case GGML_TYPE_F16: use(OfFloats<F16>()); return true;
        case GGML_TYPE_BF16: use(OfFloats<BF16>()); return true;
        case GGML_TYPE_Q8_0: use(OfBlocks<Q8_0>()); return true;
        case GGML_TYPE_Q4_0: use(OfBlocks<Q4_0>()); return true;
        case GGML_TYPE_Q4_1: use(OfBlocks<Q4_1>()); return true;
        case GGML_TYPE_Q5_0: use(OfBlocks<Q5_0>()); return true;
        case GGML_TYPE_Q5_1: use(OfBlocks<Q5_1>()); return true;
        case GGML_TYPE_IQ4_NL: use(OfBlocks<IQ4_NL>()); return true;
        default: return false;
    }
}

// A number of rows that is known when the kernel is compiled.
template <int R> struct RowCount { static constexpr int N = R; };

// Calls `use` with the number of rows. Five rows are computed as six and seven as eight, the last one twice.
template <typename Use> void with_rows(int n, Use use) {
    if constexpr (ROWS > 4) {
        if (n > 4) {
            return n > 6 ? use(RowCount<8>()) : use(RowCount<6>());
        }
    }
    switch (n) {
        case 1: return use(RowCount<1>());
        case 2: return use(RowCount<2>());
        case 3: return use(RowCount<3>());
        default: return use(RowCount<4>());
    }
}

// Rows that share keys and values.
struct Block {
    int n_rows;
    // Whether a block before it has read the same keys and values, so that a cache has them.
    bool is_near;
    const float * queries[ROWS];
    // NULL: nothing is masked.
    const uint16_t * masks[ROWS];
    float slopes[ROWS];
    float sinks[ROWS];
    // For each row, by `weigh_chunk`: the weights of all cells, and for each chunk the power of two that they are relative to.
    float * weights[ROWS];
    float * powers[ROWS];
    // The rows' results.
    float * to[ROWS];
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

// Fetches a row that is used soon.
inline void fetch(const char * row, size_t size) {
    for (size_t line = 0; line < size; line += 64) {
        PREFETCH(row + line, 3);
    }
}

// Computes the scores of keys `from`..`to` (both multiples of 16) for R rows, as many keys at a time as there are sums. Behind the keys are those
// that are needed next.
template <int R, typename Keys>
void score(const Attention & of, const Block & block, const char * const * keys, int from, int to, float (*scores)[CHUNK]) {
    constexpr int KEYS = SUMS / power_of_two_from(R), WIDTH = 16 * Keys::PIECES;
    for (int at = from; at < to; at += KEYS) {
        for (int t = 0; t < KEYS && !block.is_near; ++t) {
            fetch(keys[at + t + AHEAD], size_t(of.n_key / WIDTH * Keys::SIZE));
        }
        F32x16 sum[R][KEYS];
        for (int r = 0; r < R; ++r) {
            for (int t = 0; t < KEYS; ++t) {
                sum[r][t] = broadcast_x16(0.0f);
            }
        }
        int64_t d = 0;
        size_t from_start = 0;
        for (; d + WIDTH <= of.n_key; d += WIDTH, from_start += Keys::SIZE) {
#pragma GCC unroll 2
            for (int piece = 0; piece < Keys::PIECES; ++piece) {
                F32x16 q[R];
                for (int r = 0; r < R; ++r) {
                    q[r] = in_register(load_floats(block.queries[r] + d + 16 * piece));
                }
                for (int t = 0; t < KEYS; ++t) {
                    const F32x16 k = in_register(Keys::load(keys[at + t] + from_start, piece));
                    for (int r = 0; r < R; ++r) {
                        sum[r][t] = fma_x16(k, q[r], sum[r][t]);
                    }
                }
            }
        }
        if constexpr (Keys::PIECES == 1) {
            if (d < of.n_key) {
#pragma GCC unroll 16
                for (int t = 0; t < KEYS; ++t) {
                    const F32x16 k = Keys::load_first(keys[at + t] + from_start, of.n_key - d);
#pragma GCC unroll 16
                    for (int r = 0; r < R; ++r) {
                        sum[r][t] = fma_x16(k, load_part<F32>(block.queries[r] + d, of.n_key - d), sum[r][t]);
                    }
                }
            }
        }
        constexpr int N = R * KEYS;
        float totals[(N + 3) / 4 * 4];
        const F32x16 * all = &sum[0][0];
        if constexpr (N == 16) {
            store_x16(totals, reduce_16(&sum[0][0]));
        } else {
            for (int i = 0; i < N; i += 4) {
                store_reduced(totals + i, all[i], all[min_of(i + 1, N - 1)], all[min_of(i + 2, N - 1)], all[min_of(i + 3, N - 1)]);
            }
        }
        for (int r = 0; r < R; ++r) {
            memcpy(scores[r] + at, totals + r * KEYS, KEYS * sizeof(float));
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

// For the sums of a block's rows: the largest power of two of their chunks, and the sum of their weights relative to it.
struct Totals {
    float powers[ROWS];
    int64_t weights[ROWS];
};

// Weights are whole multiples of 2^-30 of the largest power of two.
constexpr int ONE_POWER = 30;
// Weights relative to a smaller power of two round to 0.
constexpr float LEAST_POWER = -64.0f;

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
    const char * keys[CHUNK + AHEAD];
    for (int j = 0; j < n + AHEAD; ++j) {
        keys[j] = cells.key(min_of(from + j, of.n_cells - 1));
    }
    float scores[R][CHUNK];
    for (int begin = 0; begin < n;) {
        int end = begin;
        while (end < n && is_seen[end / 16]) {
            end += 16;
        }
        with_numbers(of.key_type, [&](auto numbers) { score<R, decltype(numbers)>(of, block, keys, begin, end, scores); });
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
        with_rows(block.n_rows, [&](auto rows) { weigh_chunk<rows.N>(of, block, cells, at, n); });
    }
}

// The cells of a chunk that have a weight in one of R rows: their values, and each row's weight, a whole number.
template <int R> struct Weighted {
    int64_t n;
    bool is_near;
    // Then those that are needed next.
    const char * values[CHUNK + AHEAD];
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
    // Only a slice of one piece may begin within a block.
    constexpr int PIECES = Values::PIECES;
    const int first = N == 1 ? int(at / 16 % PIECES) : 0;
    const size_t from_start = size_t(at / (16 * PIECES) * Values::SIZE);
    // The first slice of a line fetches it.
    constexpr size_t SIZE = N * Values::SIZE / PIECES;
    const size_t ahead = !from.is_near && size_t(at / 16 * Values::SIZE / PIECES) % 64 < SIZE ? SIZE : 0;
#pragma GCC unroll 2
    for (int64_t j = 0; j < from.n; ++j) {
        fetch(from.values[j + AHEAD] + from_start, ahead);
        F32x16 v[N];
        for (int n = 0; n < N; ++n) {
            if constexpr (N == 1 && PIECES == 1) {
                v[n] = n_last < 16 ? Values::load_first(from.values[j] + from_start, n_last) : Values::load(from.values[j] + from_start, 0);
            } else {
                v[n] = Values::load(from.values[j] + from_start + n / PIECES * Values::SIZE, (first + n) % PIECES);
            }
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
    constexpr int SLICE = SUMS / power_of_two_from(R <= 2 ? 2 : R);
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

// Computes sums of values for R rows, from row `first` of the block on. `sums` has the rows' numbers from 0 on, and those from `at` to `end`
// (multiples of 16) are computed. `begin`, then `add` for all cells in their order, then `end`.
template <int R> class Adder {
public:
    Adder(const Attention & of, const Block & block, int first, Totals & totals) : of(of), block(block), first(first), totals(totals) {}

    void begin() const {
        const int64_t n_chunks = (of.n_cells + CHUNK - 1) / CHUNK;
        for (int r = 0; r < R; ++r) {
            const float * of_chunks = block.powers[first + r];
            float power = of.has_sinks ? power_of(block.sinks[first + r]) : -INFINITY;
            for (int64_t chunk = 0; chunk < n_chunks; ++chunk) {
                // A power that is NaN stays.
                power = of_chunks[chunk] <= power || power != power ? power : of_chunks[chunk];
            }
            totals.powers[r] = power;
            totals.weights[r] = 0;
            if (of.has_sinks && power == power) {
                const F32x16 weight = exp_relative_to(broadcast_x16(block.sinks[first + r]), power);
                totals.weights[r] = int64_t(first_of(to_f32_x16(to_i32_x16(mul_x16(weight, broadcast_x16(power_of_two(ONE_POWER)))))));
            }
        }
    }

    // `from` is a multiple of CHUNK. Sums of 32 bits hold the halves of the weights of 4096 chunks.
    void add(const Cells & cells, int64_t from, int64_t to, int64_t at, int64_t end, float * const * sums) const {
        I32x16 low[R] = {}, high[R] = {};
        for (; from < to; from += CHUNK) {
            of.pause.pass();
            add_chunk(cells, from, int(min_of(int64_t(CHUNK), to - from)), at, end, sums, low, high);
        }
        for (int r = 0; r < R; ++r) {
            totals.weights[r] += reduce_add_i64(low[r]) + reduce_add_i64(high[r]) * 65536;
        }
    }

    // Divides by the sums of weights. Returns whether a number is NaN.
    bool end(int64_t at, int64_t end, float * const * sums) const {
        bool is_nan = false;
        for (int r = 0; r < R; ++r) {
            const float power = totals.powers[r];
            const int64_t weights = totals.weights[r];
            const float inverse = power != power ? NAN : weights == 0 ? 0.0f : float(1.0 / double(weights));
            for (int64_t i = at; i < end; i += 16) {
                const F32x16 value = mul_x16(load_floats(sums[r] + i), broadcast_x16(inverse));
                is_nan = is_nan || has_nan(value);
                store_x16(sums[r] + i, value);
            }
        }
        return is_nan;
    }

private:
    void add_chunk(const Cells & cells, int64_t from, int n, int64_t at, int64_t end, float * const * sums, I32x16 * low, I32x16 * high) const {
        Weighted<R> weighted;
        uint64_t used = 0;
        for (int r = 0; r < R; ++r) {
            const float power = block.powers[first + r][from / CHUNK] - totals.powers[r];
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
        weighted.is_near = block.is_near;
        const bool is_dense = used == ~uint64_t(0);
        for (; used != 0; used &= used - 1) {
            const int64_t j = is_dense ? weighted.n : __builtin_ctzll(used);
            weighted.values[weighted.n] = cells.value(from + j);
            if (j != weighted.n) {
                for (int r = 0; r < R; ++r) {
                    weighted.weights[r][weighted.n] = weighted.weights[r][j];
                }
            }
            ++weighted.n;
        }
        if (weighted.n == 0) {
            return;
        }
        for (int j = 0; j < AHEAD; ++j) {
            weighted.values[weighted.n + j] = cells.value(min_of(from + CHUNK + j, of.n_cells - 1));
        }
        with_numbers(of.value_type, [&](auto numbers) { add_values<R, decltype(numbers)>(of, weighted, sums, at, end); });
    }

    const Attention & of;
    const Block & block;
    const int first;
    Totals & totals;
};

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
