// Prints llama.cpp's logits for the token after each prompt: benches/measure/divergence.py compiles it with a build of llama.cpp.
//
//     logits MODEL FLASH < PROMPTS > LOGITS       (a line of tokens for each prompt; 32-bit floats; FLASH: 0 or 1)
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

int main(int, char ** args) {
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model * const model = llama_model_load_from_file(args[1], llama_model_default_params());
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 2;
    params.flash_attn_type = atoi(args[2]) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context * const context = model ? llama_init_from_model(model, params) : nullptr;
    if (!context) {
        return 1;
    }
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream numbers(line);
        std::vector<llama_token> tokens;
        for (llama_token token; numbers >> token;) {
            tokens.push_back(token);
        }
        llama_memory_clear(llama_get_memory(context), true);
        if (llama_decode(context, llama_batch_get_one(tokens.data(), int(tokens.size())))) {
            return 1;
        }
        fwrite(llama_get_logits_ith(context, -1), sizeof(float), n_vocab, stdout);
    }
}
