// The graph that a pool of threads computes. For C and C++.
#pragma once

#include "ggml-impl.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_threadpool;

// Valid until it is computed. `run` gets a number that the pool's next graph does not have.
const struct ggml_cgraph * foredraft_graph_of(struct ggml_threadpool * pool, int * run);

#ifdef __cplusplus
}
#endif
