// Stands for llama.cpp's function that order.cpp calls, where the linker does not replace it and so never calls order.cpp's. A weak declaration
// there would do on Linux, but not on Windows, where `--wrap` does not resolve weak names.
#include "seam.h"

extern "C" {

void __real__ZNK22llama_kv_cache_context17set_input_kq_maskEP11ggml_tensorPK12llama_ubatchb(const void *, ggml_tensor *, const void *, bool) {}
}
