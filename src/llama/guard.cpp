// The calls of llama.cpp that may throw, each behind a catch: an exception must never reach Rust's
// frames or the host's. A failure returns the value given below and leaves its message in `why`.
#include "llama.h"
#include "ggml.h"

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace {

// Guarded calls that this thread is inside of.
thread_local int depth = 0;

// A failed assertion inside a guarded call becomes an exception; elsewhere (a compute thread) it ends the process.
void on_abort(const char * message) {
    if (depth > 0) {
        throw std::runtime_error(message);
    }
    std::fprintf(stderr, "%s\n", message);
}

struct Inside {
    Inside() { static const ggml_abort_callback_t before = ggml_set_abort_callback(on_abort); (void) before; ++depth; }
    ~Inside() { --depth; }
};

template <class R, class F>
R guarded(R failed, char * why, size_t why_size, F call) noexcept {
    try {
        Inside inside;
        return call();
    } catch (const std::exception & e) {
        std::snprintf(why, why_size, "%s", e.what());
    } catch (...) {
        std::snprintf(why, why_size, "an exception that is no std::exception");
    }
    return failed;
}

}  // namespace

extern "C" {

llama_model * foredraft_model_load(const char * path, llama_model_params params, char * why, size_t why_size) {
    return guarded<llama_model *>(nullptr, why, why_size, [&] { return llama_model_load_from_file(path, params); });
}

llama_context * foredraft_context_new(llama_model * model, llama_context_params params, char * why, size_t why_size) {
    return guarded<llama_context *>(nullptr, why, why_size, [&] { return llama_init_from_model(model, params); });
}

// -1000: threw; else as llama_decode.
int32_t foredraft_decode(llama_context * ctx, llama_batch batch, char * why, size_t why_size) {
    return guarded<int32_t>(-1000, why, why_size, [&] { return llama_decode(ctx, batch); });
}

// INT32_MIN: threw (or too many tokens); else as llama_tokenize.
int32_t foredraft_tokenize(const llama_vocab * vocab, const char * text, int32_t text_len, llama_token * tokens,
                           int32_t n_tokens_max, bool add_special, bool parse_special, char * why, size_t why_size) {
    return guarded<int32_t>(INT32_MIN, why, why_size, [&] {
        return llama_tokenize(vocab, text, text_len, tokens, n_tokens_max, add_special, parse_special);
    });
}

// INT32_MIN: threw; else as llama_detokenize.
int32_t foredraft_detokenize(const llama_vocab * vocab, const llama_token * tokens, int32_t n_tokens, char * text,
                             int32_t text_len_max, bool unparse_special, char * why, size_t why_size) {
    return guarded<int32_t>(INT32_MIN, why, why_size, [&] {
        return llama_detokenize(vocab, tokens, n_tokens, text, text_len_max, false, unparse_special);
    });
}

llama_adapter_lora * foredraft_lora_load(llama_model * model, const char * path, char * why, size_t why_size) {
    return guarded<llama_adapter_lora *>(nullptr, why, why_size, [&] { return llama_adapter_lora_init(model, path); });
}

}
