// The functions of a level. Each level is level.cpp compiled with other instructions, in a namespace of its own.
#pragma once

#include "ggml.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "output_rows.h"

// Whether this system permits AMX to a process that asks for it (levels.rs).
#if defined(__x86_64__) && defined(__linux__)
#define FOREDRAFT_AMX
#endif

namespace foredraft {

// The order in which attention sums the cells of a cache: that of their positions. It is in `extra` of a mask (order.cpp).
struct CellOrder {
    int64_t n_cells, n_streams;
    // The cells of each stream, the first to be summed first.
    const int32_t * cells;
};

// The state of weights in a buffer for panels (panels.cpp).
struct PanelState {
    // The rows as in the file, until panels have been made of them; then NULL. It changes once, while other threads compute products.
    const uint8_t * file;
    // Whether the processor foresees how panels are read for one token. Then prefetches only hinder (layout_cost.cpp).
    bool is_foreseen;
    // The type of the weights in panels. Those of a draft model may take fewer bits than in the file, and are for decodes that make drafts.
    ggml_type type;
    // The rows as in the file, also beside panels of another type. NULL: the panels have the tensor's type.
    const uint8_t * kept;
};

// NULL: the weights are in another buffer.
const PanelState * panel_state(const ggml_tensor * weights);

inline const uint8_t * rows_in_file(const PanelState & state) { return __atomic_load_n(&state.file, __ATOMIC_ACQUIRE); }

// The most sequences whose states are read and written in a cache.
constexpr int MAX_STATES = 256;

// The states of a gated delta net in a cache, in floats.
struct StatePlaces {
    // The state of each sequence before the tokens.
    const float * const * before;
    // The state of the first sequence after the last token, and the distances to that of the next sequence and to that of the token before. No
    // sequence's is written where another's is read.
    float * after;
    int64_t by_sequence, by_token;
};

// The functions compute an operation with all threads of a graph, like ggml's: each thread calls them. They return false, in all threads, if
// they do not support the operation.
struct Kernels {
    // Whether weights of a type are supported.
    bool (*multiplies)(ggml_type type);
    bool (*can_multiply)(const ggml_tensor * dst);
    // The size of the work buffer.
    size_t (*multiply_size)(const ggml_tensor * dst);
    bool (*multiply)(const ggml_compute_params * params, const ggml_tensor * dst);
    // Rows of a panel (layout.h).
    int lanes;
    // Whether a type can be in panels.
    bool (*has_panels)(ggml_type type);
    // Makes panels of rows that are as in a file; `to` has room for whole panels.
    void (*make_panels)(ggml_type type, const uint8_t * from, int64_t n_rows, int64_t width, uint8_t * to);
    // Rounds `n` weights, whole blocks, to Q4_0.
    void (*make_blocks)(const float * from, int64_t n, uint8_t * to);
    // `n` blocks of a row of panels, from the block `first` on, as in a file.
    void (*blocks_of_panels)(ggml_type type, const uint8_t * panels, int64_t row, int64_t width, int64_t first, int64_t n, uint8_t * to);
    bool (*can_attend)(const ggml_tensor * dst);
    size_t (*attention_size)(const ggml_tensor * dst, int n_threads);
    bool (*attend)(const ggml_compute_params * params, const ggml_tensor * dst);
    bool (*can_delta_net)(const ggml_tensor * dst);
    // `places`: NULL: the states are in the operation's tensors.
    bool (*delta_net)(const ggml_compute_params * params, const ggml_tensor * dst, const StatePlaces * places);
};

}  // namespace foredraft

namespace foredraft::avx2 {
extern const Kernels KERNELS;
}
namespace foredraft::avx_vnni {
extern const Kernels KERNELS;
}
namespace foredraft::avx512_vnni {
extern const Kernels KERNELS, KERNELS_WITH_AMX;
}
namespace foredraft::neon {
extern const Kernels KERNELS;
}
namespace foredraft::neon_dotprod {
extern const Kernels KERNELS;
}
namespace foredraft::neon_i8mm {
extern const Kernels KERNELS;
}
