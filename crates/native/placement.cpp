// Where llama.cpp has put the layers of a model and the buffers of its contexts, and a model's metadata. Uses llama.cpp's own headers, because the
// installed ones have nothing of this.
#include "guard.h"
#include "llama-ext.h"
#include "llama-model.h"
#include "native.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

namespace {

// Memory that the CPU addresses counts as the CPU's, also if a GPU's driver has pinned it.
ggml_backend_dev_t device_of(ggml_backend_buffer_type_t type) {
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    const bool is_host = ggml_backend_buft_is_host(type) || device == nullptr;
    return is_host ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) : device;
}

}  // namespace

extern "C" {

size_t foredraft_n_scores(const llama_model * model) {
    const ggml_tensor * last = model->cls_out != nullptr ? model->cls_out : model->cls;
    const size_t n_labels = llama_model_n_cls_out(model);
    return last != nullptr && size_t(last->ne[1]) == n_labels ? n_labels : 0;
}

const ggml_tensor * foredraft_output_weights(const llama_model * model, uint64_t * size) {
    const ggml_tensor * weights = model->output;
    const bool fits = weights != nullptr && ggml_is_matrix(weights) && weights->ne[1] == llama_vocab_n_tokens(llama_model_get_vocab(model));
    *size = fits ? ggml_nbytes(weights) : 0;
    return fits ? weights : nullptr;
}

// llama.cpp lets a layer of the assistant with a sliding window read the cache of the target's last layer but one, and the others that of its
// last layer, and does not ask whether these are like it.
bool foredraft_reads_cache(const llama_model * assistant, const llama_model * target, char * why, size_t why_size) {
    return guard::guarded<bool>(false, why, why_size, [&] {
        const llama_hparams & own = assistant->hparams, & others = target->hparams;
        const int32_t n_layer = llama_model_n_layer(target);
        for (uint32_t layer = 0; layer < own.n_layer_all; ++layer) {
            const bool has_window = own.is_swa(layer);
            const int32_t read = n_layer - (has_window ? 2 : 1);
            if (read < 0 || others.is_swa(read) != has_window) {
                std::snprintf(why, why_size, "its layer %u has %s sliding window, which is not so for the target's layer %d, whose KV cache it reads", layer,
                              has_window ? "a" : "no", read);
                return false;
            }
            const uint32_t size = own.n_embd_head_k(layer), n_heads = own.n_head_kv(layer);
            const uint32_t size_read = others.n_embd_head_k(read), n_heads_read = others.n_head_kv(read);
            if (size != size_read || n_heads != n_heads_read) {
                std::snprintf(why, why_size, "its layer %u reads a KV cache of %u heads of %u numbers, and the target's layer %d has %u of %u", layer,
                              n_heads, size, read, n_heads_read, size_read);
                return false;
            }
        }
        return true;
    });
}

ggml_backend_dev_t foredraft_layer_device(const llama_model * model, int32_t layer) {
    char ignored[64];
    return guard::guarded<ggml_backend_dev_t>(nullptr, ignored, sizeof ignored, [&] {
        return layer == llama_model_n_layer(model) ? model->dev_output() : model->dev_layer(layer);
    });
}

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

// llama_model_meta_key_by_index walks through all keys before the one.
void foredraft_metadata(const llama_model * model, void (*visit)(void *, const char *, const char *), void * to) {
    for (const auto & [key, value] : model->gguf_kv) {
        visit(to, key.c_str(), value.c_str());
    }
}

size_t foredraft_adapter_buffers(const llama_model * model, const char * path, void * stream, foredraft_buffers * to, size_t most, char * why,
                                 size_t why_size) {
    return guard::guarded<size_t>(0, why, why_size, [&] {
        const guard::Head file = guard::read_head(path, stream, 0);
        const int64_t n_tensors = file ? gguf_get_n_tensors(file.get()) : 0;
        std::map<ggml_backend_dev_t, uint64_t> bytes;
        for (int64_t i = 0; i < n_tensors; ++i) {
            const std::string name = gguf_get_tensor_name(file.get(), i);
            const size_t end = name.rfind(".lora_");
            const ggml_tensor * weights = end == std::string::npos ? nullptr : model->get_tensor(name.substr(0, end).c_str());
            if (weights != nullptr && weights->buffer != nullptr) {
                bytes[device_of(ggml_backend_buffer_get_type(weights->buffer))] += gguf_get_tensor_size(file.get(), i);
            }
        }
        size_t n = 0;
        for (const auto & [device, size] : bytes) {
            if (n < most) {
                to[n++] = { device, size, 0, 0 };
            }
        }
        return n;
    });
}

}
