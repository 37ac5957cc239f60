// What the seam calls where the linker does not replace ggml's functions. The seam is not called there, so neither are these. A weak
// declaration in the seam would do on Linux, but not on Windows, where `--wrap` does not resolve weak names.
#include "seam.h"

extern "C" {

bool __real_ggml_cpu_extra_compute_forward(ggml_compute_params *, ggml_tensor *) { return false; }

bool __real_ggml_cpu_extra_work_size(int, const ggml_tensor *, size_t *) { return false; }

void __real__ZNK22llama_kv_cache_context17set_input_kq_maskEP11ggml_tensorPK12llama_ubatchb(const void *, ggml_tensor *, const void *, bool) {}
}
