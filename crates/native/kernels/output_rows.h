// Which weights a decode reads. A draft needs the logits of likely tokens only (context/token_subset.rs), so it reads some rows of a model's output
// weights, and it may read weights of fewer bits than the file's.
#pragma once

#include "pause.h"

#ifdef __cplusplus
extern "C" {
#endif

// The restriction of the graph that a pool computes. NULL: there is none. Valid until the graph is computed.
const struct foredraft_output_rows * foredraft_output_rows_of(const struct ggml_threadpool * pool);

// Whether the graph that a pool computes reads panels of another type than the weights'.
bool foredraft_reads_smaller(const struct ggml_threadpool * pool);

#ifdef __cplusplus
}
#endif
