// Makes panels of weights, during a load or after it: see making.cpp.
#pragma once

#include "panels.h"

namespace foredraft {

// Whether the load on the calling thread puts weights of a type into panels.
bool is_wanted(ggml_type type);
// The same of a tensor from which rows are read: only if it multiplies, too.
bool is_wanted_for_rows(const ggml_tensor * weights);
// Whether panels of a type are read for one token without prefetches.
bool is_foreseen(ggml_type type);

// Makes panels of a tensor's rows, which are as in the file at `rows`, or lets the load make them later. `state`: of the tensor.
void make_now_or_later(ggml_tensor * tensor, PanelState & state, const uint8_t * rows);

}  // namespace foredraft
