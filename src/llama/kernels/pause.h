// Where kernels stop while the host has paused the engine whose graph they compute (`foredraft_pause`). For C and C++.
//
// A graph's plan has the engine's `Interrupt` beside llama.cpp's abort callback. Other graphs, for example those that measure, have none, so they
// do not stop.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ggml-cpu.h"

#ifdef __cplusplus
extern "C" {
#endif

// The beginning of Rust's `Interrupt`.
struct foredraft_interrupt {
    // The number of pauses.
    const uint32_t * n_pauses;
    // Sleeps until the pauses have ended or the decode must stop.
    void (*wait)(const struct foredraft_interrupt * interrupt);
    // Whether the decode must stop.
    bool (*stops)(const struct foredraft_interrupt * interrupt);
};

// llama.cpp's abort callback; `interrupt` is a `foredraft_interrupt`.
bool foredraft_interrupted(void * interrupt);

// The number of pauses of the engine whose graph a pool computes. Never NULL, and valid until the graph is computed.
const uint32_t * foredraft_pauses_of(const struct ggml_threadpool * pool);

// Sleeps while that engine is paused.
void foredraft_wait_while_paused(const struct ggml_threadpool * pool);

// The interrupt of the model's load that runs on the calling thread. NULL: none.
void foredraft_set_load_interrupt(const struct foredraft_interrupt * interrupt);
const struct foredraft_interrupt * foredraft_load_interrupt(void);

#ifdef __cplusplus
}

namespace {

// A place where a thread that computes a graph may stop. Passing it takes one load.
class PausePoint {
public:
    explicit PausePoint(const ggml_threadpool * pool) : pool(pool), n_pauses(foredraft_pauses_of(pool)) {}
    void pass() const {
        if (__builtin_expect(__atomic_load_n(n_pauses, __ATOMIC_RELAXED) != 0, 0)) {
            foredraft_wait_while_paused(pool);
        }
    }

private:
    const ggml_threadpool * pool;
    const uint32_t * n_pauses;
};

// A place where the threads of the calling thread's load may stop.
class LoadPausePoint {
public:
    LoadPausePoint() : interrupt(foredraft_load_interrupt()) {}
    void pass() const {
        if (interrupt != nullptr && __atomic_load_n(interrupt->n_pauses, __ATOMIC_RELAXED) != 0) {
            interrupt->wait(interrupt);
        }
    }

private:
    const foredraft_interrupt * interrupt;
};

}  // namespace
#endif
