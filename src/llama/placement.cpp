// Where llama.cpp has put the layers of a model and the buffers of its contexts. Uses llama.cpp's own headers, because the installed ones have
// nothing of this.
#include "guard.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <cstdint>
#include <stdexcept>

namespace {

// Memory that the CPU addresses counts as the CPU's, also if a GPU's driver has pinned it.
ggml_backend_dev_t device_of(ggml_backend_buffer_type_t type) {
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    const bool is_host = ggml_backend_buft_is_host(type) || device == nullptr;
    return is_host ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) : device;
}

}  // namespace

extern "C" {

// `foredraft_buffers` in guard.rs: bytes of one type of buffers.
struct foredraft_buffers {
    ggml_backend_dev_t device;
    uint64_t weights, kv_cache, compute;
};

// The device of a layer, or of the output if `layer` is the number of layers. NULL: there is no such layer.
ggml_backend_dev_t foredraft_layer_device(const llama_model * model, int32_t layer) {
    char ignored[64];
    return guard::guarded<ggml_backend_dev_t>(nullptr, ignored, sizeof ignored, [&] {
        return layer == llama_model_n_layer(model) ? model->dev_output() : model->dev_layer(layer);
    });
}

// The buffers of a model's weights if `ctx` is NULL, else those of a context with the weights. Writes at most `most`, and returns their number;
// 0 if it threw.
size_t foredraft_buffers_of(const llama_model * model, const llama_context * ctx, foredraft_buffers * to, size_t most, char * why, size_t why_size) {
    return guard::guarded<size_t>(0, why, why_size, [&] {
        llama_memory_breakdown all;
        if (ctx != nullptr) {
            all = llama_get_memory_breakdown(ctx);
        } else {
            for (const auto & [type, size] : model->memory_breakdown()) {
                all[type].model = size;
            }
        }
        // A mapped file counts as a whole there, with weights that have been copied to elsewhere.
        for (auto & [type, of] : all) {
            of.model = ggml_backend_buft_is_host(type) ? 0 : of.model;
        }
        for (const auto & [name, tensor] : model->tensors_by_name) {
            if (tensor->buffer != nullptr && ggml_backend_buffer_is_host(tensor->buffer)) {
                all[ggml_backend_buffer_get_type(tensor->buffer)].model += ggml_nbytes(tensor);
            }
        }
        size_t n = 0;
        for (const auto & [type, of] : all) {
            if (n < most) {
                to[n++] = { device_of(type), of.model, of.context, of.compute };
            }
        }
        return n;
    });
}

}
