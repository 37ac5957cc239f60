// Tells attention the order of positions of a cache's cells.
//
// llama.cpp puts a token into any free cell. So the cells of a sequence are out of order after branches or beams were removed, where sequences
// share a cache, and in caches for sliding windows. A sum of floats depends on its order, so the last bits of a token's logits would depend on
// what was in the cache before. llama.cpp fills an attention mask before each forward pass; its graph has nothing else of the cells. So this
// file, called in its place, puts the order beside the mask.
#include "linked.h"
#include "table.h"

#include "llama-kv-cache.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <vector>

namespace {

using foredraft::CellOrder;

// An explicit instantiation may name a private member: this is the one way to the cache of a context.
template <auto MEMBER> struct Opened {
    friend llama_kv_cache * cache_of(const llama_kv_cache_context & context) { return context.*MEMBER; }
};
llama_kv_cache * cache_of(const llama_kv_cache_context & context);
template struct Opened<&llama_kv_cache_context::kv>;

// Whether a row of a picture comes before another one of the same position (M-RoPE): rows from the top, each from the left.
bool is_before(const llama_kv_cells & cells, int32_t a, int32_t b) {
    const llama_kv_cell_ext &of_a = cells.ext_get(a), &of_b = cells.ext_get(b);
    return of_b.is_2d_gt(of_a.x, of_a.y);
}

struct Order {
    CellOrder order;
    std::vector<int32_t> cells;
    // The place of each position's next cell.
    std::vector<int32_t> next;

    // Orders the cells of a stream by position, those without a token last. Cells with the same position keep their order, but for `has_places`,
    // where that of the rows of a picture counts.
    void add(const llama_kv_cells & of, int32_t n_cells, bool has_places) {
        const size_t begin = cells.size();
        add_by_position(of, n_cells);
        for (auto run = cells.begin() + begin; has_places && run != cells.end() && !of.is_empty(*run);) {
            const auto end = std::find_if(run, cells.end(), [&](int32_t cell) { return of.is_empty(cell) || of.pos_get(cell) != of.pos_get(*run); });
            std::stable_sort(run, end, [&](int32_t a, int32_t b) { return is_before(of, a, b); });
            run = end;
        }
    }

    void add_by_position(const llama_kv_cells & of, int32_t n_cells) {
        llama_pos least = INT32_MAX, most = -1;
        for (int32_t cell = 0; cell < n_cells; ++cell) {
            if (!of.is_empty(cell)) {
                least = std::min(least, of.pos_get(cell));
                most = std::max(most, of.pos_get(cell));
            }
        }
        const size_t begin = cells.size();
        const auto position = [&](int32_t cell) { return of.is_empty(cell) ? most + 1 : of.pos_get(cell); };
        if (most < least || int64_t(most) - least > 8 * int64_t(n_cells)) {
            for (int32_t cell = 0; cell < n_cells; ++cell) {
                cells.push_back(cell);
            }
            std::stable_sort(cells.begin() + begin, cells.end(), [&](int32_t a, int32_t b) { return position(a) < position(b); });
            return;
        }
        next.assign(size_t(most - least) + 3, 0);
        for (int32_t cell = 0; cell < n_cells; ++cell) {
            ++next[position(cell) - least + 1];
        }
        for (size_t at = 1; at < next.size(); ++at) {
            next[at] += next[at - 1];
        }
        cells.resize(begin + n_cells);
        for (int32_t cell = 0; cell < n_cells; ++cell) {
            cells[begin + next[position(cell) - least]++] = cell;
        }
    }
};

bool is_in_order(const llama_kv_cells & cells, int32_t n_cells, bool has_places) {
    int32_t last = -1;
    for (int32_t cell = 0; cell < n_cells; ++cell) {
        if (!cells.is_empty(cell)) {
            if (last >= 0 && (cells.pos_get(cell) < cells.pos_get(last) ||
                              (has_places && cells.pos_get(cell) == cells.pos_get(last) && is_before(cells, cell, last)))) {
                return false;
            }
            last = cell;
        }
    }
    return true;
}

// More than the masks of a graph. A graph is computed by the thread that has filled its masks, before it fills others.
constexpr size_t N_ORDERS = 8;
thread_local std::array<Order, N_ORDERS> orders_of_thread;

// The calling thread's. The C library ends the process if it has no memory to register their destructor, so that is asked for first.
std::array<Order, N_ORDERS> & thread_orders() {
    constexpr size_t NEEDED = 4 << 10;
    static thread_local bool is_registered = false;
    if (!is_registered) {
        void * volatile block = std::malloc(NEEDED);
        if (block == nullptr) {
            throw std::bad_alloc();
        }
        std::free(block);
        is_registered = true;
    }
    return orders_of_thread;
}
thread_local size_t n_filled = 0;

[[maybe_unused]] const bool is_linked = foredraft::linked.order = true;

}  // namespace

// llama_kv_cache_context::set_input_kq_mask, under the names that the linker gives it. FOREDRAFT_SET_MASK (build/kernels.rs) is its mangled name, which
// follows from this type.
static_assert(std::is_same_v<decltype(&llama_kv_cache_context::set_input_kq_mask),
                  void (llama_kv_cache_context::*)(ggml_tensor *, const llama_ubatch *, bool) const>,
    "SET_MASK in build/kernels.rs");

#define NAME_OF(prefix, function) prefix##function
#define NAME(prefix, function) NAME_OF(prefix, function)

extern "C" {
using SetMask = void(const llama_kv_cache_context *, ggml_tensor *, const llama_ubatch *, bool);
SetMask NAME(__wrap_, FOREDRAFT_SET_MASK);
SetMask NAME(__real_, FOREDRAFT_SET_MASK);
}

void NAME(__wrap_, FOREDRAFT_SET_MASK)(const llama_kv_cache_context * context, ggml_tensor * mask, const llama_ubatch * batch, bool is_causal) {
    NAME(__real_, FOREDRAFT_SET_MASK)(context, mask, batch, is_causal);
    foredraft::n_masks.fetch_add(1, std::memory_order_relaxed);
    mask->extra = nullptr;
    const int64_t n_cells = mask->ne[0], n_streams = mask->ne[3];
    const llama_kv_cache * cache = cache_of(*context);
    const auto cells_of = [&](int64_t stream) -> const llama_kv_cells & {
        // The tokens of a stream are together.
        return cache->get_cells(batch->seq_id[stream * (batch->n_tokens / n_streams)][0]);
    };
    bool is_ordered = true;
    for (int64_t stream = 0; stream < n_streams && is_ordered; ++stream) {
        is_ordered = is_in_order(cells_of(stream), int32_t(n_cells), batch->is_pos_2d());
    }
    if (is_ordered) {
        return;
    }
    Order & order = thread_orders()[n_filled++ % N_ORDERS];
    order.cells.clear();
    for (int64_t stream = 0; stream < n_streams; ++stream) {
        order.add(cells_of(stream), int32_t(n_cells), batch->is_pos_2d());
    }
    order.order = { n_cells, n_streams, order.cells.data() };
    mask->extra = &order.order;
}
