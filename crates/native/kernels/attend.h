// ggml's FLASH_ATTN_EXT: describes the rows of an operation, and divides them among threads.
#pragma once

#include "attention.h"

namespace foredraft::FOREDRAFT_LEVEL {
namespace {

// Cells whose weights are computed for several blocks of rows, one after the other: their keys stay in a cache.
constexpr int SEGMENT = 256;
// Blocks that share a head and are computed together, at most, and the memory that their weights may take.
constexpr int GROUP = 4;
constexpr int64_t MAX_GROUP = int64_t(2) << 20;

bool can_attend(const ggml_tensor * dst) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3];
    const auto has_type = [](const ggml_tensor * of) { return with_numbers(of->type, [](auto) {}) && of->nb[0] == ggml_type_size(of->type); };
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
inline int64_t block_size(int64_t n_cells) { return ROWS * row_size(n_cells); }

// Blocks that are divided among threads take no more memory than this.
constexpr size_t MAX_DIVIDED = size_t(64) << 20;

// How the rows of an operation are divided: those that share a head of keys, token by token, into blocks.
struct Division {
    int64_t n_cells, n_rows, n_shared, blocks_of_head, n_heads, n_blocks;

    explicit Division(const ggml_tensor * dst) {
        const ggml_tensor *q = dst->src[0], *k = dst->src[1];
        n_cells = k->ne[1];
        n_shared = q->ne[2] / k->ne[2];
        n_rows = n_shared * q->ne[1];
        blocks_of_head = (n_rows + ROWS - 1) / ROWS;
        n_heads = k->ne[2] * q->ne[3];
        n_blocks = blocks_of_head * n_heads;
    }
    // Whether a block's cells, then its values, are divided among threads, because there are few blocks.
    bool divides_cells(int n_threads) const {
        return n_threads > 1 && n_cells > SEGMENT && n_blocks < int64_t(8) * n_threads
               && size_t(n_blocks * block_size(n_cells)) * sizeof(float) <= MAX_DIVIDED;
    }
    // The number of blocks of a head that a thread computes together, if it has that much memory, and if every thread gets `least` such groups.
    int64_t most_together() const {
        const int64_t by_memory = MAX_GROUP / (block_size(n_cells) * int64_t(sizeof(float)));
        return min_of(min_of(int64_t(GROUP), blocks_of_head), by_memory < 1 ? 1 : by_memory);
    }
    int64_t together(int64_t n_items_of_block, int64_t least) const {
        const int64_t by_threads = n_blocks * n_items_of_block / least;
        return min_of(most_together(), by_threads < 1 ? 1 : by_threads);
    }
};

// The memory for weights: of all blocks if their cells are divided among threads, else of each thread's group.
size_t attention_size(const ggml_tensor * dst, int n_threads) {
    const Division division(dst);
    // A graph may be computed by fewer threads than planned; those divide no more than all.
    const int64_t of_all = division.divides_cells(n_threads) ? division.n_blocks : 0, of_threads = n_threads * division.most_together();
    return size_t(of_all > of_threads ? of_all : of_threads) * size_t(block_size(division.n_cells)) * sizeof(float) + 64;
}

// An operation's rows.
class Operation {
public:
    const Division division;
    Attention of;

    Operation(const ggml_compute_params * params, const ggml_tensor * dst)
        : division(dst), of(params->threadpool), dst(dst), q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), mask(dst->src[3]), sinks(dst->src[4]) {
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
        while (2 * n_log2 <= q->ne[2]) {
            n_log2 *= 2;
        }
        order = mask == nullptr ? nullptr : static_cast<const CellOrder *>(mask->extra);
        if (order != nullptr && (order->n_cells != of.n_cells || order->n_streams != mask->ne[3])) {
            order = nullptr;
        }
    }

    // The cells of a head, one of all streams'.
    Cells cells(int64_t head) const {
        const int64_t stream = head / k->ne[2], of_keys = stream / (q->ne[3] / k->ne[3]);
        Cells cells;
        cells.keys = static_cast<const char *>(k->data) + head % k->ne[2] * k->nb[2] + of_keys * k->nb[3];
        cells.values = static_cast<const char *>(v->data) + head % k->ne[2] * v->nb[2] + of_keys * v->nb[3];
        cells.key_stride = k->nb[1];
        cells.value_stride = v->nb[1];
        cells.order = order == nullptr ? nullptr : order->cells + stream % mask->ne[3] * of.n_cells;
        return cells;
    }

    // A block of a head, with memory for its weights.
    Block block(int64_t head, int64_t index, float * weights) const {
        const int64_t first_row = index * ROWS, stream = head / k->ne[2];
        Block block;
        block.n_rows = int(min_of(int64_t(ROWS), division.n_rows - first_row));
        for (int r = 0; r < ROWS; ++r) {
            // `with_rows` may compute the last row twice.
            const int64_t row = first_row + min_of(r, block.n_rows - 1);
            const int64_t token = row / division.n_shared, of_token = head % k->ne[2] * division.n_shared + row % division.n_shared;
            block.queries[r]
                = reinterpret_cast<const float *>(static_cast<const char *>(q->data) + token * q->nb[1] + of_token * q->nb[2] + stream * q->nb[3]);
            block.masks[r] = mask == nullptr
                                 ? nullptr
                                 : reinterpret_cast<const uint16_t *>(static_cast<const char *>(mask->data) + token * mask->nb[1]
                                                                      + of_token % mask->ne[2] * mask->nb[2] + stream % mask->ne[3] * mask->nb[3]);
            block.slopes[r] = slope(of_token);
            block.sinks[r] = sinks == nullptr ? 0.0f : static_cast<const float *>(sinks->data)[of_token];
            block.weights[r] = weights + (row - first_row) * row_size(of.n_cells);
            block.powers[r] = block.weights[r] + weights_size(of.n_cells);
            block.to[r] = reinterpret_cast<float *>(
                static_cast<char *>(dst->data) + (stream * dst->ne[2] * dst->ne[1] + of_token + token * dst->ne[1]) * dst->nb[1]);
        }
        return block;
    }

private:
    float slope(int64_t head) const {
        if (max_bias <= 0.0f) {
            return 1.0f;
        }
        const float m0 = powf(2.0f, -max_bias / float(n_log2)), m1 = powf(2.0f, -max_bias / 2.0f / float(n_log2));
        return head < n_log2 ? powf(m0, float(head + 1)) : powf(m1, float(2 * (head - n_log2) + 1));
    }

    const ggml_tensor *dst, *q, *k, *v, *mask, *sinks;
    // NULL: the order of cells.
    const CellOrder * order;
    float max_bias;
    int64_t n_log2 = 1;
};

// Blocks of a head that a thread computes together.
struct Group {
    Cells cells;
    int n_blocks;
    Block blocks[GROUP];

    // `memory` has the weights of the group's first block, then of the others.
    Group(const Operation & operation, int64_t head, int64_t first, int64_t n, float * memory)
        : cells(operation.cells(head)), n_blocks(int(min_of(n, operation.division.blocks_of_head - first))) {
        for (int b = 0; b < n_blocks; ++b) {
            blocks[b] = operation.block(head, first + b, memory + b * block_size(operation.of.n_cells));
            blocks[b].is_near = b > 0;
        }
    }

    void weigh_cells(const Attention & of, int64_t from, int64_t to) const {
        for (int b = 0; b < n_blocks; ++b) {
            weigh(of, blocks[b], cells, from, to);
        }
    }

    // Computes the numbers `at` to `end` (multiples of 16) of the rows from the weights of all cells.
    void compute(const Attention & of, int64_t at, int64_t end) const {
        alignas(64) float results[GROUP][ROWS][MAX_HEAD];
        float * sums[GROUP][ROWS];
        Totals totals[GROUP];
        for (int b = 0; b < n_blocks; ++b) {
            for (int r = 0; r < ROWS; ++r) {
                sums[b][r] = results[b][r];
                memset(sums[b][r] + at, 0, size_t(end - at) * sizeof(float));
            }
            with_rows(blocks[b].n_rows, [&](auto rows) { Adder<rows.N>(of, blocks[b], 0, totals[b]).begin(); });
        }
        for (int64_t from = 0; from < of.n_cells; from += SEGMENT) {
            const int64_t to = min_of(from + SEGMENT, of.n_cells);
            for (int b = 0; b < n_blocks; ++b) {
                with_rows(blocks[b].n_rows, [&](auto rows) { Adder<rows.N>(of, blocks[b], 0, totals[b]).add(cells, from, to, at, end, sums[b]); });
            }
        }
        for (int b = 0; b < n_blocks; ++b) {
            bool is_nan = false;
            with_rows(blocks[b].n_rows, [&](auto rows) { is_nan = Adder<rows.N>(of, blocks[b], 0, totals[b]).end(at, end, sums[b]); });
            for (int r = 0; r < blocks[b].n_rows; ++r) {
                // A value that is NaN makes NaN of all rows, also of those in which its weight is 0, so each row is computed alone.
                if (is_nan) {
                    compute_row(of, blocks[b], r, at, end, sums[b] + r);
                }
                memcpy(blocks[b].to[r] + at, sums[b][r] + at, size_t(min_of(end, of.n_value) - at) * sizeof(float));
            }
        }
    }

private:
    void compute_row(const Attention & of, const Block & block, int row, int64_t at, int64_t end, float * const * sum) const {
        Totals totals;
        const Adder<1> adder(of, block, row, totals);
        memset(*sum + at, 0, size_t(end - at) * sizeof(float));
        adder.begin();
        for (int64_t from = 0; from < of.n_cells; from += SEGMENT) {
            adder.add(cells, from, min_of(from + SEGMENT, of.n_cells), at, end, sum);
        }
        adder.end(at, end, sum);
    }
};

bool attend(const ggml_compute_params * params, const ggml_tensor * dst) {
    if (!can_attend(dst) || params->wsize < attention_size(dst, params->nth)) {
        return false;
    }
    const Operation operation(params, dst);
    const Attention & of = operation.of;
    const Division & division = operation.division;
    float * const memory = reinterpret_cast<float *>(padded(reinterpret_cast<int64_t>(params->wdata), 64));
    const auto groups_of_head = [&](int64_t together) { return (division.blocks_of_head + together - 1) / together; };
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
    const int64_t n_segments = (of.n_cells + SEGMENT - 1) / SEGMENT;
    if (!division.divides_cells(params->nth)) {
        const int64_t together = division.together(1, int64_t(4) * params->nth), n_groups = groups_of_head(together);
        float * const of_thread = memory + params->ith * division.most_together() * block_size(of.n_cells);
        for_items(n_groups * division.n_heads, 0, [&](int64_t item) {
            const Group group(operation, item / n_groups, item % n_groups * together, together, of_thread);
            for (int64_t segment = 0; segment < n_segments; ++segment) {
                group.weigh_cells(of, segment * SEGMENT, min_of((segment + 1) * SEGMENT, of.n_cells));
            }
            group.compute(of, 0, of.n_value_padded);
        });
        return true;
    }
    const auto memory_of = [&](int64_t head, int64_t block) { return memory + (head * division.blocks_of_head + block) * block_size(of.n_cells); };
    // Threads that compute neighboring items use the same keys.
    const int64_t n_items = division.n_blocks * n_segments;
    for_items(n_items, 0, [&](int64_t item) {
        const int64_t block = item % division.blocks_of_head, segment = item / division.blocks_of_head % n_segments;
        const int64_t head = item / division.blocks_of_head / n_segments;
        const Group group(operation, head, block, 1, memory_of(head, block));
        group.weigh_cells(of, segment * SEGMENT, min_of((segment + 1) * SEGMENT, of.n_cells));
    });
    // Each item was followed by one call of chunk_add, so the next item is known without counting anew.
    ggml_barrier(params->threadpool);
    // Slices of 64 numbers; the last ones, which cannot be shared out evenly, in halves.
    constexpr int64_t SLICE = 64;
    const int64_t n_slices = (of.n_value_padded + SLICE - 1) / SLICE;
    const int64_t together = division.together(n_slices, int64_t(2) * params->nth), n_groups = groups_of_head(together);
    const int64_t all = n_groups * division.n_heads * n_slices, n_whole = all - all % params->nth;
    for_items(n_whole + 2 * (all - n_whole), n_items, [&](int64_t item) {
        const bool is_whole = item < n_whole;
        const int64_t slice = is_whole ? item : n_whole + (item - n_whole) / 2;
        const int64_t at = slice % n_slices * SLICE + (is_whole ? 0 : (item - n_whole) % 2 * (SLICE / 2));
        const int64_t end = min_of(at + (is_whole ? SLICE : SLICE / 2), of.n_value_padded);
        if (at < end) {
            const int64_t head = slice / n_slices / n_groups, first = slice / n_slices % n_groups * together;
            Group(operation, head, first, together, memory_of(head, first)).compute(of, at, end);
        }
    });
    return true;
}

}  // namespace
}  // namespace foredraft::FOREDRAFT_LEVEL
