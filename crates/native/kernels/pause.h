// Where kernels stop while the host has paused the engine whose graph they compute (`foredraft_pause`). For C and C++.
//
// A graph's plan has the engine's `Interrupt` beside llama.cpp's abort callback. Other graphs, for example those that measure, have none, so they
// do not stop.
#pragma once

#include "ggml-cpu.h"
#include "native.h"

#ifdef __cplusplus
extern "C" {
#endif

// The number of pauses of the engine whose graph a pool computes. Never NULL, and valid until the graph is computed.
const uint32_t * foredraft_pauses_of(const struct ggml_threadpool * pool);

// Sleeps while that engine is paused.
void foredraft_wait_while_paused(const struct ggml_threadpool * pool);

// Whether the plan of the graph that a pool computes asks for ggml's reference kernels.
bool foredraft_plan_is_reference(const struct ggml_threadpool * pool);

// The interrupt of the model's load that runs on the calling thread. NULL: none.
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
