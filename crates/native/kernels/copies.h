// Copies of floats, in place of ggml's for shapes that recurrent states and short convolutions have. ggml moves these floats one by one, or with
// one thread. Nothing is computed, so the bits are ggml's.
#pragma once

#include "ggml.h"
#include "ggml-cpu-impl.h"

namespace foredraft {

// Computes GET_ROWS, CPY, CONT, DUP or CONCAT with all threads of a graph: each thread calls it. Returns false, in all threads, if it does not
// support the operation.
bool copy_floats(const ggml_compute_params * params, ggml_tensor * op);

}  // namespace foredraft
