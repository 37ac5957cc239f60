// Products of weights with tokens: ggml's MUL_MAT and MUL_MAT_ID (mixtures of experts).
//
// Speculation needs forward passes of a few tokens that take little longer than one token's. ggml's loops compute one row of weights for one
// token at a time, so from two tokens on, arithmetic is their bottleneck. Here a block of `LANES` rows is unpacked once for all tokens: a register
// holds four weights of each row, and one instruction multiplies them with four numbers of a token.
//
// A result is defined without any regard to lanes, tiles or threads, so it is the same bits for any batch, any number of threads and any level:
//   quantized weights  a token is rounded to whole numbers, with a scale for each block. The sum of a block's products is exact, in integers.
//                      Blocks are added one after the other, each with one fma (and one more for the minima).
//   floats             16 sums, of the products 16 apart, each by fma; then `reduce_add`.
#pragma once

#include "floats.h"
#include "tiles.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// Tokens whose sums are kept together.
constexpr int TOKENS = 128;

inline int64_t padded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A product: matrices of weights, and the tokens that each of them multiplies (`slots`). With MUL_MAT, a matrix multiplies the tokens of
// all heads that share it; with MUL_MAT_ID, those that have chosen it.
struct Product {
    const ggml_tensor *weights, *tokens, *ids, *to;
    int64_t width, n_rows, n_matrices, n_slots;
    // For MUL_MAT_ID: the first slot of each matrix, and one more; then for each slot the expert's index and the token's.
    int32_t *first_slots, *slots;
    // The state of weights in a buffer for panels. NULL: they are in another one.
    const PanelState * state;
    // NULL: floats.
    const Format * format;
    bool in_panels;
    // Whether panels are read for one token without prefetches.
    bool is_foreseen;
    // Whether AMX may be used.
    bool has_amx;
    // The first row, and the size of one, in the layout that `in_panels` says.
    const uint8_t * first_row;
    size_t row_size;
    int64_t n_blocks, slot_size;
    uint8_t * packed;
    // A bit for each group of rows that is computed; the results of others are -inf. NULL: all rows.
    const uint64_t * groups;

    // Whether the weights have another type in panels than in the file. Then the decode says which of them all threads use.
    bool has_two_types() const { return state != nullptr && state->kept != nullptr; }
    // The size of what is kept in ggml's work buffer: the tables, and the packed tokens.
    int64_t tables_size() const { return ids == nullptr ? 0 : padded((n_matrices + 1 + 2 * n_slots) * 4, 64); }
    int64_t size() const { return tables_size() + n_slots * slot_size + READ_BEHIND_TOKENS + 64; }

    bool computes(int64_t row) const {
        const int64_t group = row / FOREDRAFT_GROUP_ROWS;
        return groups == nullptr || (groups[group / 64] >> group % 64 & 1) != 0;
    }
    int64_t first_of(int64_t matrix) const { return ids == nullptr ? matrix * (n_slots / n_matrices) : first_slots[matrix]; }
    const uint8_t * matrix(int64_t index) const {
        return first_row
               + (in_panels ? index * padded(n_rows, LANES) * row_size
                            : index % weights->ne[2] * weights->nb[2] + index / weights->ne[2] * weights->nb[3]);
    }
    void indices(int64_t matrix, int64_t slot, int64_t & i1, int64_t & i2, int64_t & i3) const {
        if (ids != nullptr) {
            i1 = slots[2 * slot];
            i2 = slots[2 * slot + 1];
            i3 = 0;
            return;
        }
        const int64_t at = slot - first_of(matrix), shared = tokens->ne[2] / weights->ne[2];
        const int64_t head = at / tokens->ne[1];
        i1 = at % tokens->ne[1];
        i2 = matrix % weights->ne[2] * shared + head % shared;
        i3 = matrix / weights->ne[2] * (tokens->ne[3] / weights->ne[3]) + head / shared;
    }
    const float * from(int64_t matrix, int64_t slot) const {
        int64_t i1, i2, i3;
        indices(matrix, slot, i1, i2, i3);
        const int64_t row = ids == nullptr ? i1 : i1 % tokens->ne[1];
        return reinterpret_cast<const float *>(
            static_cast<const char *>(tokens->data) + row * tokens->nb[1] + i2 * tokens->nb[2] + i3 * tokens->nb[3]);
    }
    float * result(int64_t matrix, int64_t slot) const {
        int64_t i1, i2, i3;
        indices(matrix, slot, i1, i2, i3);
        return reinterpret_cast<float *>(static_cast<char *>(to->data) + i1 * to->nb[1] + i2 * to->nb[2] + i3 * to->nb[3]);
    }
};

bool has_panels(ggml_type type) { return format_of(type) != nullptr; }

void make_panels(ggml_type type, const uint8_t * from, int64_t n_rows, int64_t width, uint8_t * to) {
    make_panels(type, int(ggml_type_size(type)), from, n_rows, width / ggml_blck_size(type), to);
}

void blocks_of_panels(ggml_type type, const uint8_t * panels, int64_t row, int64_t width, int64_t first, int64_t n, uint8_t * to) {
    blocks_of_panels(type, int(ggml_type_size(type)), panels, row, width / ggml_blck_size(type), first, n, to);
}

bool multiplies(ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || format_of(type) != nullptr; }

// Uses the rows as in the file at `in_file`. NULL: those in panels, or in another buffer.
inline void use_layout(Product & product, const uint8_t * in_file) {
    const PanelState * state = product.state;
    const ggml_tensor * weights = product.weights;
    product.in_panels = state != nullptr && in_file == nullptr;
    product.is_foreseen = state != nullptr && state->is_foreseen;
    product.first_row = in_file != nullptr ? in_file : static_cast<const uint8_t *>(weights->data);
    const ggml_type type = product.in_panels ? state->type : weights->type;
    product.format = format_of(type);
    product.row_size = type == weights->type ? weights->nb[1] : ggml_row_size(type, product.width);
    product.n_blocks = product.width / ggml_blck_size(type);
    product.slot_size = product.format == nullptr ? 0 : product.n_blocks * token_blocks(*product.format) * token_size(*product.format);
}

// Whether the operation is one that this file computes; then describes it.
inline bool describe(const ggml_tensor * dst, Product & product) {
    const ggml_tensor *weights = dst->src[0], *tokens = dst->src[1];
    const bool chooses = dst->op == GGML_OP_MUL_MAT_ID;
    if (!chooses && ggml_get_op_params_i32(dst, 1) == GGML_HINT_SRC0_IS_HADAMARD) {
        return false;
    }
    const ggml_type type = weights->type;
    if (!multiplies(type) || tokens->type != GGML_TYPE_F32 || dst->type != GGML_TYPE_F32) {
        return false;
    }
    if (weights->nb[0] != ggml_type_size(type) || tokens->nb[0] != sizeof(float) || dst->nb[0] != sizeof(float) || ggml_is_empty(dst)
        || weights->ne[0] == 0) {
        return false;
    }
    product.weights = weights;
    product.tokens = tokens;
    product.to = dst;
    product.ids = chooses ? dst->src[2] : nullptr;
    product.width = weights->ne[0];
    product.n_rows = weights->ne[1];
    product.n_matrices = weights->ne[2] * weights->ne[3];
    product.n_slots = chooses ? product.ids->ne[0] * product.ids->ne[1] : tokens->ne[1] * tokens->ne[2] * tokens->ne[3];
    // Panels may be made meanwhile, so threads of the same graph may find different layouts, which give the same bits if they have one type.
    product.state = panel_state(weights);
    use_layout(product, product.state == nullptr ? nullptr : product.has_two_types() ? product.state->kept : rows_in_file(*product.state));
    return true;
}

// Groups the slots of MUL_MAT_ID by matrix.
inline void group(Product & product) {
    const ggml_tensor * ids = product.ids;
    const auto expert
        = [&](int64_t token, int64_t index) { return int_at(static_cast<const char *>(ids->data) + token * ids->nb[1] + index * ids->nb[0]); };
    const auto for_all = [&](auto use) {
        for (int64_t token = 0; token < ids->ne[1]; ++token) {
            for (int64_t index = 0; index < ids->ne[0]; ++index) {
                const int32_t chosen = expert(token, index);
                if (chosen >= 0 && chosen < product.n_matrices) {
                    use(chosen, index, token);
                }
            }
        }
    };
    int32_t * first = product.first_slots;
    memset(first, 0, (product.n_matrices + 1) * sizeof *first);
    for_all([&](int32_t chosen, int64_t, int64_t) { ++first[chosen + 1]; });
    for (int64_t matrix = 0; matrix < product.n_matrices; ++matrix) {
        first[matrix + 1] += first[matrix];
    }
    // Each matrix's first slot moves on as slots are filled, and ends where the next one's began.
    for_all([&](int32_t chosen, int64_t index, int64_t token) {
        int32_t * slot = product.slots + 2 * first[chosen]++;
        slot[0] = int32_t(index);
        slot[1] = int32_t(token);
    });
    for (int64_t matrix = product.n_matrices; matrix > 0; --matrix) {
        first[matrix] = first[matrix - 1];
    }
    first[0] = 0;
}

// The tile of a slot of a matrix: its first slot, and how many it has.
struct Tile {
    int64_t first;
    int n;
};
inline Tile tile_at(int64_t first_of_matrix, int64_t end_of_matrix, int64_t slot) {
    const int64_t first = first_of_matrix + (slot - first_of_matrix) / TILE * TILE;
    return { first, int(min_of(int64_t(TILE), end_of_matrix - first)) };
}

// Packs the calling thread's part of all tokens.
inline void pack_tokens(const Product & product, int thread, int n_threads, const PausePoint & pause) {
    const Format & format = *product.format;
    const int64_t n_blocks = product.n_blocks * token_blocks(format);
    const int64_t n_slots = product.first_of(product.n_matrices), all_blocks = n_slots * n_blocks;
    const int64_t begin = all_blocks * thread / n_threads, end = all_blocks * (thread + 1) / n_threads;
    const int block_width = token_width(format), block_size = token_size(format);
    int64_t matrix = 0, last_slot = -1;
    Tile tile = {};
    const float * from = nullptr;
    for (int64_t at = begin; at < end; ++at) {
        const int64_t slot = at / n_blocks, block = at % n_blocks;
        if (slot != last_slot) {
            pause.pass();
            while (slot >= product.first_of(matrix + 1)) {
                ++matrix;
            }
            tile = tile_at(product.first_of(matrix), product.first_of(matrix + 1), slot);
            from = product.from(matrix, slot);
            last_slot = slot;
        }
        pack(format, from + block * block_width, int(slot - tile.first), tile.n,
            product.packed + tile.first * product.slot_size + block * tile.n * block_size);
    }
}

// Multiplies `n_panels` panels of rows of a matrix with the slots `first` to `end`.
inline void multiply_panels(
    const Product & product, int64_t matrix, int64_t panel, int64_t n_panels, int64_t first, int64_t end, const PausePoint & pause) {
    const Format & format = *product.format;
    const uint8_t * weights = product.matrix(matrix);
    const size_t row_size = product.row_size;
    const int block_size = token_blocks(format) * token_size(format);
    alignas(64) uint8_t unpacked[PANELS * UNPACKED_SIZE > FOLDED_SIZE ? PANELS * UNPACKED_SIZE : FOLDED_SIZE];
    alignas(64) F32xN sums[TOKENS * PANELS];
    // A stretch of the rows of the last panel: those behind the last row are not ours to read.
    alignas(64) uint8_t copied[LANES * STRETCH * 40];
    static_assert(sizeof copied >= LANES * sizeof(block_q8_0) * STRETCH && sizeof copied >= LANES * sizeof(block_q6_K), "a stretch fits");
    const int64_t of_matrix = product.first_of(matrix), end_of_matrix = product.first_of(matrix + 1);
    // The first tile, and perhaps the only one.
    const Tile only = tile_at(of_matrix, end_of_matrix, first);
    const AmxFormat * amx = product.has_amx ? amx_format_of(format.type) : nullptr;
    if (amx != nullptr && only.n < amx->least_tokens) {
        amx = nullptr;
    }
    if (amx != nullptr) {
        begin_amx(amx->width);
    }
    const auto unpack = amx != nullptr ? amx->unpack : format.unpack;
    struct Panel {
        int64_t row;
        int n_rows;
        // A panel always has all its rows.
        bool is_whole;
        Rows rows;
    };
    const auto panel_at = [&](int64_t index) {
        const int64_t row = (panel + index) * LANES;
        const int n_rows = int(min_of(int64_t(LANES), product.n_rows - row));
        const uint8_t * at = weights + row * row_size;
        const bool continues = index + 1 < n_panels && row + 2 * LANES <= product.n_rows && row_size == size_t(format.size) * product.n_blocks;
        const uint8_t * next = continues ? at + LANES * row_size : at;
        const Rows rows { at, row_size, product.n_blocks, next, LANES * row_size <= FEW, product.is_foreseen };
        return Panel { row, n_rows, product.in_panels || n_rows == LANES, rows };
    };
    float * results[TOKENS];
    for (int64_t slot = first; slot < end; ++slot) {
        results[slot - first] = product.result(matrix, slot);
    }
    // Stores the results of a panel, whose first sum is at `from`, and the next one `stride` later.
    const auto store_results = [&](const Panel & of, const F32xN * from, int stride) {
        for (int64_t slot = 0; slot < end - first; ++slot, from += stride) {
            float * to = results[slot] + of.row;
            if (of.n_rows == LANES) {
                store(to, *from);
            } else {
                float lanes[LANES];
                store(lanes, *from);
                memcpy(to, lanes, of.n_rows * sizeof(float));
            }
        }
    };
    for (int64_t index = 0; index < n_panels;) {
        pause.pass();
        const Panel one = panel_at(index);
        const bool are_few = amx == nullptr && only.n == end - first && only.n <= FEW_TOKENS && one.is_whole;
        const auto multiply_few = are_few ? format.multiply_few[product.in_panels][only.n - 1] : nullptr;
        if (multiply_few != nullptr) {
            multiply_few(one.rows, product.packed + first * product.slot_size, sums);
            store_results(one, sums, 1);
            ++index;
            continue;
        }
        // Behind the last panel, it is computed again.
        Panel panels[PANELS];
        for (int p = 0; p < PANELS; ++p) {
            panels[p] = p == 0 ? one : panel_at(min_of(index + p, n_panels - 1));
        }
        for (int64_t at = 0; at < (end - first) * PANELS; ++at) {
            sums[at] = zero();
        }
        const int at_once = format.is_long ? 1 : STRETCH / format.n_parts;
        for (int64_t block = 0; block < product.n_blocks; block += at_once) {
            const int n = int(min_of(int64_t(at_once), product.n_blocks - block));
            for (int p = 0; p < PANELS; ++p) {
                const Panel & of = panels[p];
                if (of.is_whole) {
                    unpack[product.in_panels](of.rows, block, n, unpacked + p * UNPACKED_SIZE);
                } else {
                    const size_t size = size_t(n) * format.size;
                    for (int lane = 0; lane < LANES; ++lane) {
                        memcpy(copied + lane * size, of.rows.weights + min_of(lane, of.n_rows - 1) * row_size + block * format.size, size);
                    }
                    unpack[0](Rows { copied, size, n, copied, false, false }, 0, n, unpacked + p * UNPACKED_SIZE);
                }
            }
            for (int64_t slot = first; slot < end;) {
                const Tile tile = tile_at(of_matrix, end_of_matrix, slot);
                const uint8_t * numbers = product.packed + tile.first * product.slot_size + block * tile.n * block_size;
                const int offset_or_parts = format.is_long ? format.offset : n * format.n_parts;
                F32xN * of_tile = sums + (slot - first) * PANELS;
                if (amx != nullptr && (amx->has_own_weights || tile.n == TILE)) {
                    amx->multiply(unpacked, offset_or_parts, numbers, tile.n, of_tile);
                } else {
                    format.multiply[tile.n - 1](unpacked, offset_or_parts, numbers, of_tile);
                }
                slot += tile.n;
            }
        }
        for (int p = 0; p < PANELS; ++p) {
            store_results(panels[p], sums + p, PANELS);
        }
        index += PANELS;
    }
    if (amx != nullptr) {
        end_amx();
    }
}

// Rows and tokens of floats that are computed together.
constexpr int FLOAT_ROWS = SUMS == 16 ? 4 : 2, FLOAT_TOKENS = SUMS / FLOAT_ROWS;

// So few tokens multiply one row after the other, while the first level of caches holds their floats beside the weights. A Zen 4 foresees that: it was
// up to 2.5 times as fast as with several rows at once, which otherwise share what is read of the tokens.
constexpr int64_t FEW_SLOTS = 2, FEW_FLOATS = (16 << 10) / sizeof(float);

// Bytes of rows that are multiplied with all tokens before the next ones: so many stay in the second level of caches, and a few tokens in the first.
constexpr int64_t BLOCK_OF_ROWS = 128 << 10;

// Multiplies `n_rows` rows with the slots `first` to `end`, at most TOKENS.
template <typename Of>
void multiply_floats(const Product & product, int64_t matrix, int64_t row, int64_t n_rows, int64_t first, int64_t end, const PausePoint & pause) {
    const uint8_t * weights = product.matrix(matrix);
    const size_t stride = product.weights->nb[1];
    const int64_t n_slots = end - first, of_block = BLOCK_OF_ROWS / int64_t(stride) / FLOAT_ROWS * FLOAT_ROWS;
    const bool one_by_one = n_slots <= FEW_SLOTS && n_slots * product.width <= FEW_FLOATS;
    const float * tokens[TOKENS];
    float * to[TOKENS];
    for (int64_t slot = 0; slot < n_slots; ++slot) {
        tokens[slot] = product.from(matrix, first + slot);
        to[slot] = product.result(matrix, first + slot);
    }
    for (const int64_t end_row = row + n_rows; row < end_row;) {
        pause.pass();
        const int64_t end_block = min_of(row + (of_block < FLOAT_ROWS ? FLOAT_ROWS : of_block), end_row);
        for (int64_t slot = 0; slot < n_slots;) {
            const int64_t left = n_slots - slot;
            const int n = left >= FLOAT_TOKENS ? FLOAT_TOKENS : left >= 2 ? 2 : 1;
            for (int64_t at = row; at < end_block;) {
                const bool whole = !one_by_one && at + FLOAT_ROWS <= end_block;
                const auto multiply = n == FLOAT_TOKENS
                                          ? (whole ? multiply_floats<Of, FLOAT_ROWS, FLOAT_TOKENS> : multiply_floats<Of, 1, FLOAT_TOKENS>)
                                      : n == 2 ? (whole ? multiply_floats<Of, FLOAT_ROWS, 2> : multiply_floats<Of, 1, 2>)
                                               : (whole ? multiply_floats<Of, FLOAT_ROWS, 1> : multiply_floats<Of, 1, 1>);
                multiply(weights, stride, product.width, tokens + slot, to + slot, at);
                at += whole ? FLOAT_ROWS : 1;
            }
            slot += n;
        }
        row = end_block;
    }
}

// Fills the results of `n_rows` rows that are not computed.
inline void leave_out(const Product & product, int64_t matrix, int64_t row, int64_t n_rows, int64_t first, int64_t end) {
    for (int64_t slot = first; slot < end; ++slot) {
        float * to = product.result(matrix, slot) + row;
        for (int64_t at = 0; at < n_rows; ++at) {
            to[at] = -INFINITY;
        }
    }
}

// --- Threads --------------------------------------------------------------------------------------------------------------------------------

inline void multiply_all(const ggml_compute_params * params, Product & product, const PausePoint & pause) {
    const int64_t panel_rows = product.format == nullptr ? 16 : LANES;
    static_assert(FOREDRAFT_GROUP_ROWS % LANES == 0 && FOREDRAFT_GROUP_ROWS % 16 == 0, "a panel is in one group");
    const int64_t n_panels = (product.n_rows + panel_rows - 1) / panel_rows;
    // Items are taken by threads as they come: panels of a matrix, times at most TOKENS slots. A thread that has lost its core takes fewer.
    int64_t chunk = n_panels / (int64_t(params->nth) * 4);
    chunk = chunk < 1 ? 1 : chunk > 64 ? 64 : chunk;
    chunk = (chunk + PANELS - 1) / PANELS * PANELS;
    const int64_t n_chunks = (n_panels + chunk - 1) / chunk;
    // Multiplies `n` panels of a matrix with the slots `slot` to `last`.
    const auto multiply_some = [&](int64_t matrix, int64_t panel, int64_t n, int64_t slot, int64_t last) {
        const int64_t row = panel * panel_rows, n_rows = min_of(n * panel_rows, product.n_rows - row);
        if (!product.computes(row)) {
            leave_out(product, matrix, row, n_rows, slot, last);
        } else if (product.format != nullptr) {
            multiply_panels(product, matrix, panel, n, slot, last, pause);
        } else {
            const ggml_type type = product.weights->type;
            const auto multiply = type == GGML_TYPE_F32 ? multiply_floats<F32> : type == GGML_TYPE_F16 ? multiply_floats<F16> : multiply_floats<BF16>;
            multiply(product, matrix, row, n_rows, slot, last, pause);
        }
    };
    int64_t item = params->ith, before = 0;
    for (int64_t matrix = 0; matrix < product.n_matrices; ++matrix) {
        const int64_t first = product.first_of(matrix), end = product.first_of(matrix + 1);
        const int64_t n_items = (end - first + TOKENS - 1) / TOKENS * n_chunks;
        while (item < before + n_items) {
            const int64_t panel = (item - before) % n_chunks * chunk, n = min_of(chunk, n_panels - panel);
            const int64_t slot = first + (item - before) / n_chunks * TOKENS, last = min_of(slot + TOKENS, end);
            // Panels that follow each other and are all computed, or all left out.
            for (int64_t at = panel, next; at < panel + n; at = next) {
                const bool computes = product.computes(at * panel_rows);
                for (next = at + 1; next < panel + n && product.computes(next * panel_rows) == computes;) {
                    ++next;
                }
                multiply_some(matrix, at, next - at, slot, last);
            }
            item = ggml_threadpool_chunk_add(params->threadpool, 1);
        }
        before += n_items;
    }
}

bool can_multiply(const ggml_tensor * dst) {
    Product product;
    return describe(dst, product);
}

size_t multiply_size(const ggml_tensor * dst) {
    Product product;
    if (!describe(dst, product)) {
        return 0;
    }
    const int64_t in_file = product.size();
    if (!product.has_two_types()) {
        return size_t(in_file);
    }
    use_layout(product, nullptr);
    return size_t(in_file < product.size() ? product.size() : in_file);
}

inline bool multiply(const ggml_compute_params * params, const ggml_tensor * dst, bool has_amx) {
    Product product;
    if (!describe(dst, product)) {
        return false;
    }
    if (product.has_two_types() && foredraft_reads_smaller(params->threadpool)) {
        use_layout(product, nullptr);
    }
    product.has_amx = has_amx;
    const bool needs_memory = product.ids != nullptr || product.format != nullptr;
    if (needs_memory && params->wsize < size_t(product.size())) {
        return false;
    }
    uint8_t * memory = reinterpret_cast<uint8_t *>(padded(reinterpret_cast<int64_t>(params->wdata), 64));
    product.first_slots = reinterpret_cast<int32_t *>(memory);
    product.slots = product.first_slots + product.n_matrices + 1;
    product.packed = memory + product.tables_size();
    const foredraft_output_rows * restricted = foredraft_output_rows_of(params->threadpool);
    product.groups = restricted != nullptr && restricted->weights == product.weights ? restricted->groups : nullptr;
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
        if (product.ids != nullptr) {
            group(product);
        }
    }
    const PausePoint pause(params->threadpool);
    if (product.ids != nullptr) {
        ggml_barrier(params->threadpool);
    }
    if (product.format != nullptr) {
        pack_tokens(product, params->ith, params->nth, pause);
    }
    ggml_barrier(params->threadpool);
    multiply_all(params, product, pause);
    return true;
}

bool multiply_without_amx(const ggml_compute_params * params, const ggml_tensor * dst) { return multiply(params, dst, false); }
[[maybe_unused]] bool multiply_with_amx(const ggml_compute_params * params, const ggml_tensor * dst) { return multiply(params, dst, true); }

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
