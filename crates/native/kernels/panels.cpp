// Weights in panels: a layout that the kernels read faster than the file's (layout.h). ggml calls such a thing an extra type of buffers: llama.cpp
// puts a tensor of weights into one if it supports the operation that the tensor is for, and writes it there from the file. Everything else stays
// where it was, so rows of embeddings are still read from the mapped file, unless llama.cpp's graph also multiplies them (BitNet).
//
// Panels are made for the level that is chosen when a model is loaded. It cannot be changed while models are loaded.
#include "making.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace foredraft {

namespace {

struct Free {
    void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
};

// The context of a buffer.
struct Buffer {
    // ggml's buffer that has the memory.
    std::unique_ptr<ggml_backend_buffer, Free> memory;
    // The states of its tensors.
    std::deque<PanelState> states;
};

Buffer & context_of(ggml_backend_buffer_t buffer) { return *static_cast<Buffer *>(buffer->context); }

size_t row_size(const ggml_tensor * tensor) { return ggml_row_size(tensor->type, tensor->ne[0]); }

const char * name(ggml_backend_buffer_type_t) { return "CPU_PANELS"; }

size_t alignment(ggml_backend_buffer_type_t) { return 64; }

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    return row_size(tensor) * rows_in_panels(tensor) * tensor->ne[2] * tensor->ne[3];
}

// `n` blocks of one of the rows of all matrices, from the block `first` on, as in the file.
void read_blocks(const ggml_tensor * weights, int64_t row, int64_t first, int64_t n, uint8_t * to) {
    const PanelState & state = *panel_state(weights);
    const uint8_t * in_file = state.kept != nullptr ? state.kept : rows_in_file(state);
    if (in_file != nullptr) {
        const size_t of_block = ggml_type_size(weights->type);
        memcpy(to, in_file + row * row_size(weights) + first * of_block, n * of_block);
    } else {
        const int64_t in_panels = row / weights->ne[1] * rows_in_panels(weights) + row % weights->ne[1];
        kernels()->blocks_of_panels(weights->type, static_cast<const uint8_t *>(weights->data), in_panels, weights->ne[0], first, n, to);
    }
}

void free_buffer(ggml_backend_buffer_t buffer) { delete &context_of(buffer); }

void * get_base(ggml_backend_buffer_t buffer) { return ggml_backend_buffer_get_base(context_of(buffer).memory.get()); }

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    tensor->extra = tensor->view_src != nullptr
                        ? tensor->view_src->extra
                        : &context_of(buffer).states.emplace_back(PanelState { nullptr, is_foreseen(tensor->type), tensor->type, nullptr });
    return GGML_STATUS_SUCCESS;
}

// llama.cpp writes whole tensors.
void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    make_now_or_later(tensor, *static_cast<PanelState *>(tensor->extra), static_cast<const uint8_t *>(data));
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset % row_size(tensor) == 0 && size % row_size(tensor) == 0);
    const int64_t first = offset / row_size(tensor), n_blocks = tensor->ne[0] / ggml_blck_size(tensor->type);
    for (size_t row = 0; row < size / row_size(tensor); ++row) {
        read_blocks(tensor, first + row, 0, n_blocks, static_cast<uint8_t *>(data) + row * row_size(tensor));
    }
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) { ggml_backend_buffer_clear(context_of(buffer).memory.get(), value); }

constexpr ggml_backend_buffer_i FUNCTIONS
    = { free_buffer, get_base, init_tensor, nullptr, set_tensor, get_tensor, nullptr, nullptr, nullptr, clear, nullptr };

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    std::unique_ptr<Buffer> buffer(new Buffer);
    buffer->memory.reset(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size));
    if (!buffer->memory) {
        return nullptr;
    }
#if defined(__linux__)
    // Processors foresee reads inside a page only, so large pages read up to a half faster. They are a wish: nothing fails without them.
    constexpr uintptr_t PAGE = 2 << 20;
    const auto base = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer->memory.get()));
    const uintptr_t first = (base + PAGE - 1) / PAGE * PAGE, last = (base + size) / PAGE * PAGE;
    if (first < last) {
        madvise(reinterpret_cast<void *>(first), last - first, MADV_HUGEPAGE);
    }
#endif
    return ggml_backend_buffer_init(type, FUNCTIONS, buffer.release(), size);
}

struct Panels : ggml::cpu::extra_buffer_type {
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        const ggml_tensor * weights = op->src[0];
        if (kernels() == nullptr || weights->buffer == nullptr || weights->buffer->buft != panels() || !kernels()->has_panels(weights->type)) {
            return false;
        }
        // Rows are only read from weights that are in panels for another reason: those that are for nothing else stay in the file.
        const bool is_load = weights->data == nullptr;
        if (op->op == GGML_OP_GET_ROWS) {
            return !is_load || is_wanted_for_rows(weights);
        }
        if (is_load && !is_wanted(weights->type)) {
            return false;
        }
        // A product without tokens is not computed.
        const bool is_product = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID;
        return weights->view_src == nullptr && is_product && (ggml_is_empty(op) || kernels()->can_multiply(op));
    }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor *) override { return seam_traits(); }
};

}  // namespace

ggml_backend_buffer_type_t panels() {
    static Panels supported;
    static ggml_backend_buffer_type type = { { name, alloc_buffer, nullptr, alignment, nullptr, alloc_size, nullptr, nullptr },
        ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), &supported };
    return &type;
}

int64_t rows_in_panels(const ggml_tensor * weights) {
    const int64_t lanes = kernels()->lanes;
    return (weights->ne[1] + lanes - 1) / lanes * lanes;
}

const PanelState * panel_state(const ggml_tensor * weights) {
    const bool is_ours = weights->buffer != nullptr && weights->buffer->buft == panels();
    return is_ours ? static_cast<const PanelState *>(weights->extra) : nullptr;
}

void offer_panels() { ggml_backend_cpu_get_extra_buffer_types() = { panels() }; }

void get_rows(const ggml_compute_params * params, const ggml_tensor * dst) {
    const ggml_tensor *weights = dst->src[0], *ids = dst->src[1];
    const auto to_float = ggml_get_type_traits(weights->type)->to_float;
    // A few blocks at once, because a thread of ggml must not fail to allocate.
    constexpr int64_t AT_ONCE = 8, LARGEST = 256;
    alignas(8) uint8_t blocks[AT_ONCE * LARGEST];
    const int64_t n_blocks = weights->ne[0] / ggml_blck_size(weights->type);
    GGML_ASSERT(ggml_type_size(weights->type) <= LARGEST);
    for (int64_t at = params->ith; at < ggml_nelements(ids); at += params->nth) {
        const int64_t i0 = at % ids->ne[0], i1 = at / ids->ne[0] % ids->ne[1], i2 = at / ids->ne[0] / ids->ne[1];
        int32_t id;
        memcpy(&id, static_cast<const char *>(ids->data) + i0 * ids->nb[0] + i1 * ids->nb[1] + i2 * ids->nb[2], sizeof id);
        GGML_ASSERT(id >= 0 && id < weights->ne[1]);
        const int64_t row = (i2 * weights->ne[2] + i1) * weights->ne[1] + id;
        auto * to = reinterpret_cast<float *>(static_cast<char *>(dst->data) + i0 * dst->nb[1] + i1 * dst->nb[2] + i2 * dst->nb[3]);
        for (int64_t first = 0; first < n_blocks; first += AT_ONCE) {
            const int64_t n = std::min(AT_ONCE, n_blocks - first), n_floats = n * ggml_blck_size(weights->type);
            read_blocks(weights, row, first, n, blocks);
            to_float(blocks, to, n_floats);
            to += n_floats;
        }
    }
}

}  // namespace foredraft
