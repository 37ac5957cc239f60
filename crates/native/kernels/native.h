// The functions of the kernels that Rust calls, as ../native.h. It includes nothing, because the headers of all levels include it.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// -- seam.cpp, and with `is_linked` the files that the linker puts in the place of others' functions

// Chooses the kernels of a level, by its index in `LEVELS`; a negative number: ggml's. No graph may be computed meanwhile.
void foredraft_kernels_choose(int32_t level);
// Whether the chosen kernels multiply weights of a ggml_type.
bool foredraft_kernels_multiply(int32_t type);
// The calls in graphs that the calling thread started.
uint64_t foredraft_attentions(void);
uint64_t foredraft_products(void);
uint64_t foredraft_panel_products(void);
uint64_t foredraft_delta_nets(void);
uint64_t foredraft_copies(void);
uint64_t foredraft_states_in_place(void);
// The attention masks that this process has filled by order.cpp.
uint64_t foredraft_masks(void);
// Whether the linker has put order.cpp in the place of llama.cpp's function.
bool foredraft_order_is_linked(void);
// Whether the library replaces the functions that round in another way elsewhere.
bool foredraft_math_is_linked(void);

// -- layout_cost.cpp

// Whether weights of a ggml_type can be in panels.
bool foredraft_has_panels(int32_t type);
// Microseconds of a product of weights with one token, in panels with and without prefetches, and as in a file.
struct foredraft_layout_costs {
    double prefetched, foreseen, file;
};
// Measures weights of a ggml_type on the calling thread. False: they cannot be measured.
bool foredraft_layout_cost(int32_t type, struct foredraft_layout_costs * costs, char * why, size_t why_size);

// -- making.cpp

// Weights of which panels are still to be made.
struct foredraft_pending_panels;

// Begins a load of a model on the calling thread. `formats`: the types that are put into panels, as bits. `foreseen`: those whose panels are
// read for one token without prefetches. `smaller`: those that become Q4_0 in panels that are made later. `embeddings`: those of token embeddings
// that are the output weights, too, in the same tensor. `is_mapped`: it reads a mapped file. `later`: weights may stay in the mapped file until the
// load has ended.
void foredraft_load_begin(uint64_t formats, uint64_t foreseen, uint64_t smaller, uint64_t embeddings, bool is_mapped, bool later);
// Ends the load. Returns the weights of which panels are still to be made. NULL: none.
struct foredraft_pending_panels * foredraft_load_end(void);
// Makes the panels, on other threads for `patience_ms`, which leave the cores to those that compute, then on the calling thread and others, until it is
// stopped. Begins when there are panels of all `others`, or after `patience_ms`. `others`: NULL: begins now. Called once.
void foredraft_panels_make(struct foredraft_pending_panels * pending, const struct foredraft_pending_panels * others, uint32_t patience_ms);
// Stops the making within milliseconds.
void foredraft_panels_stop(struct foredraft_pending_panels * pending);
// Gives back the pages of the file that drafts have read until all panels were made.
void foredraft_panels_give_back(const struct foredraft_pending_panels * pending);
// The bytes of weights of which panels are still to be made.
uint64_t foredraft_panels_left(const struct foredraft_pending_panels * pending);
// Whether weights are still read from a file at this address.
bool foredraft_panels_read(const struct foredraft_pending_panels * pending, size_t address);
// The same sum over all models.
uint64_t foredraft_panels_left_of_all(void);
// Frees the weights. Called after the model was freed.
void foredraft_panels_free(struct foredraft_pending_panels * pending);

// -- barrier.c

// The number of barriers of several threads.
uint64_t foredraft_barriers(void);
// The number of waits with a sleep.
uint64_t foredraft_barrier_sleeps(void);
bool foredraft_barrier_is_linked(void);

// Rows of output weights that are computed or left out together. No panel has more, and panels begin at multiples of their rows.
#define FOREDRAFT_GROUP_ROWS 16

struct ggml_tensor;

// The rows of a model's output weights that a decode computes.
struct foredraft_output_rows {
    // The weights in the graph.
    const struct ggml_tensor * weights;
    // A bit for each group of rows: 1: it is computed.
    const uint64_t * groups;
};

// The beginning of Rust's `Interrupt`.
struct foredraft_interrupt {
    // The number of pauses.
    const uint32_t * n_pauses;
    // Sleeps until the pauses have ended or the decode must stop.
    void (*wait)(const struct foredraft_interrupt * interrupt);
    // Whether the decode must stop.
    bool (*stops)(const struct foredraft_interrupt * interrupt);
    // The rows of the output weights that the running decode computes. NULL: all.
    const struct foredraft_output_rows * output_rows;
    // Whether the running decode reads panels of another type than the weights', all of which are made: a draft need not be exact.
    bool reads_smaller;
};

// llama.cpp's abort callback; `interrupt` is a `foredraft_interrupt`.
bool foredraft_interrupted(void * interrupt);
// The interrupt of the model's load that runs on the calling thread. NULL: none.
void foredraft_set_load_interrupt(const struct foredraft_interrupt * interrupt);

#ifdef __cplusplus
}
#endif
