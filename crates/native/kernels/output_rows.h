// Which rows of a model's output weights a decode computes. A draft needs the logits of likely tokens only (context/token_subset.rs).
#pragma once

#include "pause.h"

#ifdef __cplusplus
extern "C" {
#endif

// The restriction of the graph that a pool computes. NULL: there is none. Valid until the graph is computed.
const struct foredraft_output_rows * foredraft_output_rows_of(const struct ggml_threadpool * pool);

#ifdef __cplusplus
}
#endif
