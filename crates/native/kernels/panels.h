// The type of buffers whose weights are in panels: see panels.cpp.
#pragma once

#include "seam.h"
#include "table.h"

namespace foredraft {

// The kernels of the chosen level. NULL: ggml computes everything.
const Kernels * kernels();

ggml_backend_buffer_type_t panels();

// The rows of each of a tensor's matrices in panels: whole panels, so that each matrix begins with one.
int64_t rows_in_panels(const ggml_tensor * weights);

// Makes panels the only extra type of buffers that ggml offers to llama.cpp, which asks once.
void offer_panels();

// Compute the operations of the chosen kernels (seam.cpp).
ggml::cpu::tensor_traits * seam_traits();

// ggml's GET_ROWS, of weights in panels.
void get_rows(const ggml_compute_params * params, const ggml_tensor * dst);

}  // namespace foredraft
