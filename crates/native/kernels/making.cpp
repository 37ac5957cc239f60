// Makes panels of weights. A load either makes them while it runs, or leaves weights in the mapped file and hands them to a thread that makes panels
// while the model is already in use. Both layouts give the same bits, so a product uses whichever its weights have.
//
// On machines that clear memory slowly, most of a load's time is spent on the pages of panels: several times what a mapped load takes.
#include "making.h"
#include "native.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#endif

namespace foredraft {

namespace {

// Threads that make panels, at most. They wait less for memory than for the system, which clears the pages that they write to.
constexpr int64_t MOST_THREADS = 16;
// Bytes of rows that a thread takes at once.
constexpr int64_t PIECE = 1 << 20;
// Bytes of rows that are worth a second thread.
constexpr int64_t WORTH_A_THREAD = 4 * PIECE;
// How often a thread looks whether those before it have ended.
constexpr std::chrono::milliseconds LOOK_AGAIN { 5 };
// The nice value of threads that make panels while the model is in use, for some seconds: they get a tenth of a core from a thread that computes.
[[maybe_unused]] constexpr int NICE = 10;

// Threads that wait for work.
class Makers {
public:
    explicit Makers(int64_t most_threads) : most(most_threads) {}
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

    const int64_t most;
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::condition_variable begins, ends;
    const std::function<void()> * current = nullptr;
    size_t n_running = 0;
    uint64_t round = 0;
    bool has_started = false;
};

// Gives the whole pages of a mapped file back that were copied, so that a process never has the weights twice in memory.
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

#if defined(__linux__)
#if !defined(MREMAP_DONTUNMAP)
#define MREMAP_DONTUNMAP 4
#endif

// A second mapping of the pages of a shared one. It gets the entries of the page table, so that nothing has to look up millions of pages again. The
// first one finds those that are still read there. `first` and `size` are of whole pages. NULL: it cannot be had.
void * map_again(uintptr_t first, size_t size) {
    // Entries of large pages move as they are if they are as far from a multiple of their size.
    constexpr uintptr_t LARGE = 2 << 20;
    void * const room = mmap(nullptr, size + LARGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room != MAP_FAILED) {
        const uintptr_t begin = reinterpret_cast<uintptr_t>(room), to = begin + (first - begin) % LARGE, end = begin + size + LARGE;
        const int how = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
        if (mremap(reinterpret_cast<void *>(first), size, size, how, reinterpret_cast<void *>(to)) != MAP_FAILED) {
            if (to > begin) {
                munmap(room, to - begin);
            }
            munmap(reinterpret_cast<void *>(to + size), end - to - size);
            return reinterpret_cast<void *>(to);
        }
        munmap(room, size + LARGE);
    }
    // Linux before 5.13.
    void * const copy = mremap(reinterpret_cast<void *>(first), 0, size, MREMAP_MAYMOVE);
    if (copy == MAP_FAILED) {
        return nullptr;
    }
    madvise(reinterpret_cast<void *>(first), size, MADV_DONTNEED);
    return copy;
}
#endif

// The type of weights that become smaller.
constexpr ggml_type SMALLER = GGML_TYPE_Q4_0;

// Makes panels of `n_rows` rows of a tensor with weights of another type. Returns false without memory.
bool make_smaller(const ggml_tensor * tensor, const uint8_t * rows, int64_t n_rows, uint8_t * to) {
    const int64_t width = tensor->ne[0], at_once = kernels()->lanes;
    const size_t in_file = ggml_row_size(tensor->type, width), of_row = ggml_row_size(SMALLER, width);
    const std::unique_ptr<float[]> floats(new (std::nothrow) float[at_once * width]);
    const std::unique_ptr<uint8_t[]> quantized(new (std::nothrow) uint8_t[at_once * of_row]);
    if (!floats || !quantized) {
        return false;
    }
    for (int64_t row = 0; row < n_rows; row += at_once) {
        const int64_t n = std::min(at_once, n_rows - row);
        ggml_get_type_traits(tensor->type)->to_float(rows + row * in_file, floats.get(), n * width);
        kernels()->make_blocks(floats.get(), n * width, quantized.get());
        kernels()->make_panels(SMALLER, quantized.get(), n, width, to + row * of_row);
    }
    return true;
}

// Makes panels of the rows at `rows`, which are mapped or in memory, on this thread and the makers. Returns false if it was stopped or had no memory.
bool make(const ggml_tensor * tensor, ggml_type type, const uint8_t * rows, bool is_mapped, Makers & makers, const LoadPausePoint & pause,
    const std::atomic<bool> & stops) {
    const int64_t n_rows = tensor->ne[1], n_matrices = tensor->ne[2] * tensor->ne[3];
    const size_t of_row = ggml_row_size(tensor->type, tensor->ne[0]), of_panels = ggml_row_size(type, tensor->ne[0]);
    const int64_t at_once = (PIECE / int64_t(of_row) / kernels()->lanes + 1) * kernels()->lanes;
    const int64_t of_matrix = (n_rows + at_once - 1) / at_once, n_pieces = of_matrix * n_matrices;
    std::atomic<int64_t> next { 0 };
    std::atomic<bool> has_memory { true };
    const auto work = [&]() noexcept {
        for (int64_t piece; !stops.load(std::memory_order_relaxed) && (piece = next.fetch_add(1)) < n_pieces;) {
            pause.pass();
            const int64_t matrix = piece / of_matrix, row = piece % of_matrix * at_once;
            const uint8_t * from = rows + (matrix * n_rows + row) * of_row;
            uint8_t * to = static_cast<uint8_t *>(tensor->data) + (matrix * rows_in_panels(tensor) + row) * of_panels;
            const int64_t n = std::min(at_once, n_rows - row);
            if (type == tensor->type) {
                kernels()->make_panels(type, from, n, tensor->ne[0], to);
            } else if (!make_smaller(tensor, from, n, to)) {
                has_memory.store(false, std::memory_order_relaxed);
            }
            if (is_mapped) {
                give_back(from, n * of_row);
            }
        }
    };
    if (int64_t(ggml_nbytes(tensor)) < WORTH_A_THREAD) {
        work();
    } else {
        makers.run(work);
    }
    return has_memory.load(std::memory_order_relaxed) && next.load(std::memory_order_relaxed) >= n_pieces;
}

// The number of the layer that has a tensor. A decode reads the tensors of the output last.
int layer_of(const ggml_tensor * tensor) {
    int layer;
    return sscanf(ggml_get_name(tensor), "blk.%d.", &layer) == 1 ? layer : INT_MAX;
}

int64_t n_cores() { return std::thread::hardware_concurrency(); }

// The bytes of weights of all models of which panels are still to be made. Their memory is not taken yet.
std::atomic<uint64_t> left_of_all { 0 };

// The calling thread's load of a model: the types that may be in panels, those that are foreseen, those that become smaller in panels that are made
// later, and those of embeddings that multiply, as bits, and whether it reads a mapped file. It has no destructor: the C library ends the process if it
// has no memory to register one.
struct Load {
    uint64_t formats = UINT64_MAX, foreseen = 0, smaller = 0, embeddings = 0;
    bool is_mapped = false;
    // NULL: panels are made now.
    foredraft_pending_panels * pending = nullptr;
    Makers * makers = nullptr;
};
thread_local Load load;

bool becomes_smaller(const ggml_tensor * tensor) {
    const int64_t width = tensor->ne[0];
    return (load.smaller >> tensor->type & 1) != 0 && ggml_nrows(tensor) == tensor->ne[1] && width % ggml_blck_size(SMALLER) == 0
           && ggml_row_size(SMALLER, width) < ggml_row_size(tensor->type, width) && ggml_get_type_traits(tensor->type)->to_float != nullptr;
}

}  // namespace

// Weights that are in the mapped file until panels have been made of them.
class PendingPanels {
public:
    PendingPanels() = default;
    PendingPanels(const PendingPanels &) = delete;
    PendingPanels & operator=(const PendingPanels &) = delete;
    ~PendingPanels() {
        left_of_all.fetch_sub(left(), std::memory_order_relaxed);
#if defined(__linux__)
        for (const Weights & of : weights) {
            munmap(of.mapping, of.mapped);
        }
#endif
    }

    // Returns false if the rows cannot stay in the file.
    bool add(const ggml_tensor * tensor, PanelState & state, const uint8_t * rows) {
#if defined(__linux__)
        // llama.cpp unmaps what it does not use after a load, so the pages get another mapping.
        const auto page = uintptr_t(sysconf(_SC_PAGESIZE));
        const uintptr_t at = reinterpret_cast<uintptr_t>(rows), first = at / page * page;
        const size_t size = (at + ggml_nbytes(tensor) - first + page - 1) / page * page;
        Weights & of = weights.emplace_back();
        void * mapping = map_again(first, size);
        if (mapping == nullptr) {
            weights.pop_back();
            return false;
        }
        state.file = static_cast<const uint8_t *>(mapping) + (at - first);
        if (becomes_smaller(tensor)) {
            state = { state.file, is_foreseen(SMALLER), SMALLER, state.file };
        }
        of = { tensor, &state, state.file, mapping, size };
        bytes_left.fetch_add(ggml_nbytes(tensor), std::memory_order_relaxed);
        left_of_all.fetch_add(ggml_nbytes(tensor), std::memory_order_relaxed);
        return true;
#else
        (void) tensor;
        (void) state;
        (void) rows;
        return false;
#endif
    }

    bool is_empty() const { return weights.empty(); }
    // 0: the calling thread may read all panels.
    uint64_t left() const { return bytes_left.load(std::memory_order_acquire); }
    bool reads(uintptr_t address) const {
        return std::any_of(
            weights.begin(), weights.end(), [=](const Weights & of) { return address - reinterpret_cast<uintptr_t>(of.mapping) < of.mapped; });
    }
    void stop() {
        stops.store(true);
        interrupts.store(true);
    }
    // Gives back what drafts have read of the file after panels of it were made, because they use these once all are made.
    void give_back_kept() const {
        for (const Weights & of : weights) {
            if (of.state->kept != nullptr) {
                give_back(of.rows, ggml_nbytes(of.tensor));
            }
        }
    }
    // The order in which a decode reads them. Called once, before others use the list.
    void sort() {
        const auto is_before = [](const Weights & a, const Weights & b) { return layer_of(a.tensor) < layer_of(b.tensor); };
        std::stable_sort(weights.begin(), weights.end(), is_before);
    }

    // Makes the panels on half of the cores, until it is stopped. Called once, on a thread of its own. Threads with a low priority make them. On a busy
    // machine they may get nearly no time, so threads with the caller's priority make those that are left after `patience`. `others`: what is made
    // first, but for no longer than that. NULL: nothing.
    void make_all(std::chrono::milliseconds patience, const PendingPanels * others) {
        const LoadPausePoint pause;
        const auto end = std::chrono::steady_clock::now() + patience;
        while (others != nullptr && others->left() > 0 && !stops.load() && std::chrono::steady_clock::now() < end) {
            std::this_thread::sleep_for(LOOK_AGAIN);
        }
        std::mutex mutex;
        std::condition_variable ends;
        bool has_ended = false;
        const auto yield = [&]() noexcept {
#if defined(__linux__)
            // The nice value of the calling thread, and so of those that it starts.
            setpriority(PRIO_PROCESS, 0, NICE);
#endif
            make_left(pause);
            const std::lock_guard<std::mutex> lock(mutex);
            has_ended = true;
            ends.notify_one();
        };
        try {
            std::thread yielding(yield);
            {
                std::unique_lock<std::mutex> lock(mutex);
                ends.wait_for(lock, patience, [&] { return has_ended; });
            }
            interrupts.store(true);
            yielding.join();
            interrupts.store(false);
        } catch (const std::system_error &) {
            // Without another thread, this one makes them.
        }
        // A stop before this line has set this first, and one after it interrupts.
        if (!stops.load()) {
            make_left(pause);
        }
    }

private:
    struct Weights {
        const ggml_tensor * tensor;
        PanelState * state;
        const uint8_t * rows;
        void * mapping;
        size_t mapped;
    };

    // Makes the panels of which none are complete yet, until it is interrupted. Those of the tensor that it has begun are made again later.
    void make_left(const LoadPausePoint & pause) noexcept {
        Makers makers(std::min(MOST_THREADS, n_cores() / 2));
        for (; n_made < weights.size(); ++n_made) {
            const Weights & of = weights[n_made];
            if (!make(of.tensor, of.state->type, of.rows, true, makers, pause, interrupts)) {
                return;
            }
            __atomic_store_n(&of.state->file, nullptr, __ATOMIC_RELEASE);
            const size_t size = ggml_nbytes(of.tensor);
            // Products have read some pages again.
            give_back(of.rows, size);
            bytes_left.fetch_sub(size, std::memory_order_release);
            left_of_all.fetch_sub(size, std::memory_order_relaxed);
        }
    }

    std::vector<Weights> weights;
    size_t n_made = 0;
    std::atomic<uint64_t> bytes_left { 0 };
    std::atomic<bool> stops { false }, interrupts { false };
};

}  // namespace foredraft

// Their name in native.h.
struct foredraft_pending_panels : foredraft::PendingPanels {};

namespace foredraft {

bool is_wanted(ggml_type type) { return (load.formats >> type & 1) != 0; }
bool is_wanted_for_rows(const ggml_tensor * weights) {
    return is_wanted(weights->type) && (load.embeddings >> weights->type & 1) != 0 && strcmp(ggml_get_name(weights), "token_embd.weight") == 0;
}
bool is_foreseen(ggml_type type) { return (load.foreseen >> type & 1) != 0; }

void make_now_or_later(ggml_tensor * tensor, PanelState & state, const uint8_t * rows) {
    if (load.pending && load.pending->add(tensor, state, rows)) {
        return;
    }
    // Outside of a load there are none that wait.
    Makers makers(std::min(MOST_THREADS, n_cores()));
    const std::atomic<bool> never { false };
    make(tensor, state.type, rows, load.is_mapped, load.makers ? *load.makers : makers, LoadPausePoint(), never);
}

}  // namespace foredraft

extern "C" {

void foredraft_load_begin(uint64_t formats, uint64_t foreseen, uint64_t smaller, uint64_t embeddings, bool is_mapped, bool later) {
    using namespace foredraft;
    load = { formats, foreseen, smaller, embeddings, is_mapped, nullptr, new (std::nothrow) Makers(std::min(MOST_THREADS, n_cores())) };
    if (is_mapped && later) {
        load.pending = new (std::nothrow) foredraft_pending_panels;
    }
}

foredraft_pending_panels * foredraft_load_end(void) {
    foredraft_pending_panels * pending = foredraft::load.pending;
    delete foredraft::load.makers;
    foredraft::load = {};
    if (pending != nullptr && pending->is_empty()) {
        delete pending;
        return nullptr;
    }
    if (pending != nullptr) {
        pending->sort();
    }
    return pending;
}

void foredraft_panels_make(foredraft_pending_panels * pending, const foredraft_pending_panels * others, uint32_t patience_ms) {
    pending->make_all(std::chrono::milliseconds(patience_ms), others);
}
void foredraft_panels_stop(foredraft_pending_panels * pending) { pending->stop(); }
void foredraft_panels_give_back(const foredraft_pending_panels * pending) { pending->give_back_kept(); }
uint64_t foredraft_panels_left(const foredraft_pending_panels * pending) { return pending->left(); }
bool foredraft_panels_read(const foredraft_pending_panels * pending, size_t address) { return pending->reads(address); }
uint64_t foredraft_panels_left_of_all(void) { return foredraft::left_of_all.load(std::memory_order_relaxed); }
void foredraft_panels_free(foredraft_pending_panels * pending) { delete pending; }
}
