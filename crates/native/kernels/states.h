// States of gated delta nets in their place: see states.cpp.
#pragma once

#include "table.h"

namespace foredraft {

// Called by each thread of a graph before GET_ROWS. Whether the rows need not be copied, because a gated delta net of the same graph reads them
// where they are.
bool leaves_rows(const ggml_compute_params * params, const ggml_tensor * rows);
// Called by each thread before GATED_DELTA_NET: where its states are. NULL: in its tensors.
const StatePlaces * state_places(const ggml_compute_params * params, const ggml_tensor * net);
// Called by each thread before CPY. Whether a gated delta net has written what it would copy.
bool is_written(const ggml_compute_params * params, const ggml_tensor * copy);

}  // namespace foredraft
