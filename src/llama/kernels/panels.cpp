// Weights in panels: a layout that the kernels read faster than the file's (layout.h). ggml calls such a thing an extra type of buffers: llama.cpp
// puts a tensor of weights into one if it supports the operation that the tensor is for, and writes it there from the file. Everything else stays
// where it was, so rows of embeddings are still read from the mapped file.
//
// Panels are made for the level that is chosen when a model is loaded. It cannot be changed while models are loaded.
#include "panels.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace foredraft {

const char IN_PANELS = 0;

namespace {

// Threads that make panels, at most. They wait less for memory than for the system, which clears the pages that they write to.
constexpr int64_t MOST_THREADS = 16;
// Bytes of rows that a thread takes at once.
constexpr int64_t PIECE = 1 << 20;
// Bytes of rows that are worth a second thread.
constexpr int64_t WORTH_A_THREAD = 4 * PIECE;

// The calling thread's load of a model: the types that may be in panels, as bits, and whether it reads a mapped file.
struct Load {
    uint64_t formats = UINT64_MAX;
    bool is_mapped = false;
};
thread_local Load load;

// Threads that wait for work during a load.
class Makers {
public:
    // Calls `work` on this thread and the others, until it has returned on all of them.
    void run(const std::function<void()> & work) {
        start();
        {
            const std::lock_guard<std::mutex> lock(mutex);
            current = &work;
            n_running = threads.size();
            ++round;
        }
        begins.notify_all();
        work();
        std::unique_lock<std::mutex> lock(mutex);
        ends.wait(lock, [&] { return n_running == 0; });
    }
    ~Makers() {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            current = nullptr;
            ++round;
        }
        begins.notify_all();
        for (std::thread & thread : threads) {
            thread.join();
        }
    }

private:
    void start() {
        const int64_t most = std::min<int64_t>(MOST_THREADS, std::thread::hardware_concurrency());
        if (has_started) {
            return;
        }
        has_started = true;
        try {
            threads.reserve(size_t(std::max<int64_t>(most, 1)));
            while (int64_t(threads.size()) + 1 < most) {
                threads.emplace_back([this]() noexcept { wait(); });
            }
        } catch (const std::exception &) {
            // Fewer threads do the same.
        }
    }
    void wait() {
        uint64_t seen = 0;
        for (;;) {
            const std::function<void()> * work;
            {
                std::unique_lock<std::mutex> lock(mutex);
                begins.wait(lock, [&] { return round != seen; });
                seen = round;
                work = current;
            }
            if (work == nullptr) {
                return;
            }
            (*work)();
            const std::lock_guard<std::mutex> lock(mutex);
            if (--n_running == 0) {
                ends.notify_one();
            }
        }
    }

    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable begins, ends;
    const std::function<void()> * current = nullptr;
    size_t n_running = 0;
    uint64_t round = 0;
    bool has_started = false;
};
thread_local std::unique_ptr<Makers> makers;

size_t row_size(const ggml_tensor * tensor) { return ggml_row_size(tensor->type, tensor->ne[0]); }
int64_t n_matrices(const ggml_tensor * tensor) { return tensor->ne[2] * tensor->ne[3]; }

const char * name(ggml_backend_buffer_type_t) { return "CPU_PANELS"; }

size_t alignment(ggml_backend_buffer_type_t) { return 64; }

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const int64_t lanes = kernels()->lanes, n_rows = (tensor->ne[1] + lanes - 1) / lanes * lanes;
    return row_size(tensor) * n_rows * n_matrices(tensor);
}

ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor * tensor) {
    tensor->extra = const_cast<char *>(&IN_PANELS);
    return GGML_STATUS_SUCCESS;
}

// Gives the whole pages of a mapped file back that were copied, so that a load never has the weights twice in memory.
void give_back(const uint8_t * from, size_t size) {
#if defined(__linux__)
    const auto page = uintptr_t(sysconf(_SC_PAGESIZE));
    const uintptr_t at = reinterpret_cast<uintptr_t>(from), first = (at + page - 1) / page * page, last = (at + size) / page * page;
    if (first < last) {
        madvise(reinterpret_cast<void *>(first), last - first, MADV_DONTNEED);
    }
#else
    (void) from;
    (void) size;
#endif
}

// llama.cpp writes whole tensors. Rows of several matrices follow each other without a gap, so they are like those of one.
void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset == 0 && size == ggml_nbytes(tensor));
    const int64_t n_rows = ggml_nrows(tensor);
    const size_t of_row = row_size(tensor);
    const bool is_mapped = load.is_mapped;
    const int64_t at_once = (PIECE / int64_t(of_row) / kernels()->lanes + 1) * kernels()->lanes;
    std::atomic<int64_t> next { 0 };
    const LoadPausePoint pause;
    const auto work = [&]() noexcept {
        for (int64_t row; (row = next.fetch_add(at_once)) < n_rows;) {
            pause.pass();
            const auto * from = static_cast<const uint8_t *>(data) + row * of_row;
            const int64_t n = std::min(at_once, n_rows - row);
            kernels()->make_panels(tensor->type, from, n, tensor->ne[0], static_cast<uint8_t *>(tensor->data) + row * of_row);
            if (is_mapped) {
                give_back(from, n * of_row);
            }
        }
    };
    if (int64_t(size) < WORTH_A_THREAD) {
        work();
    } else if (makers) {
        makers->run(work);
    } else {
        Makers().run(work);
    }
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    GGML_ASSERT(offset % row_size(tensor) == 0 && size % row_size(tensor) == 0);
    const int64_t first = offset / row_size(tensor);
    for (size_t row = 0; row < size / row_size(tensor); ++row) {
        kernels()->blocks_of_panels(tensor->type, static_cast<const uint8_t *>(tensor->data), first + row, tensor->ne[0], 0,
            tensor->ne[0] / ggml_blck_size(tensor->type), static_cast<uint8_t *>(data) + row * row_size(tensor));
    }
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    const ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer == nullptr) {
        return nullptr;
    }
    buffer->buft = type;
    buffer->iface.init_tensor = init_tensor;
    buffer->iface.set_tensor = set_tensor;
    buffer->iface.get_tensor = get_tensor;
    buffer->iface.cpy_tensor = nullptr;
#if defined(__linux__)
    // Processors foresee reads inside a page only, so large pages read up to a half faster. They are a wish: nothing fails without them.
    constexpr uintptr_t PAGE = 2 << 20;
    const auto base = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer));
    const uintptr_t first = (base + PAGE - 1) / PAGE * PAGE, last = (base + size) / PAGE * PAGE;
    if (first < last) {
        madvise(reinterpret_cast<void *>(first), last - first, MADV_HUGEPAGE);
    }
#endif
    return buffer;
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
            return !is_load;
        }
        if (is_load && (load.formats >> weights->type & 1) == 0) {
            return false;
        }
        // Several matrices follow each other without a gap. A product without tokens is not computed.
        const bool fits = n_matrices(weights) == 1 || weights->ne[1] % kernels()->lanes == 0;
        const bool is_product = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID;
        return fits && weights->view_src == nullptr && is_product && (ggml_is_empty(op) || kernels()->can_multiply(op));
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
        const auto * matrix = static_cast<const uint8_t *>(weights->data) + i1 * weights->nb[2] + i2 * weights->nb[3];
        auto * to = reinterpret_cast<float *>(static_cast<char *>(dst->data) + i0 * dst->nb[1] + i1 * dst->nb[2] + i2 * dst->nb[3]);
        for (int64_t first = 0; first < n_blocks; first += AT_ONCE) {
            const int64_t n = std::min(AT_ONCE, n_blocks - first), n_floats = n * ggml_blck_size(weights->type);
            kernels()->blocks_of_panels(weights->type, matrix, id, weights->ne[0], first, n, blocks);
            to_float(blocks, to, n_floats);
            to += n_floats;
        }
    }
}

}  // namespace foredraft

extern "C" {

// Begins a load of a model on the calling thread. `formats`: the types that are put into panels, as bits. `is_mapped`: it reads a mapped
// file.
void foredraft_load_begin(uint64_t formats, bool is_mapped) {
    foredraft::load = { formats, is_mapped };
    foredraft::makers.reset(new (std::nothrow) foredraft::Makers);
}

void foredraft_load_end(void) {
    foredraft::makers.reset();
    foredraft::load = {};
}
}
