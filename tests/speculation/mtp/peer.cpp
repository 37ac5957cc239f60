// Generates greedily with llama.cpp's `draft-mtp`, as llama-server does, for tests/speculation/mtp/against_llama.rs. Arguments: a model with MTP
// layers, the longest draft, and the number of tokens. Each line of stdin is a prompt's tokens; its line of stdout has the tokens of the
// completion, and behind a bar the drafted and the accepted tokens of all steps.
#include "common.h"
#include "log.h"
#include "speculative.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

using Tokens = std::vector<llama_token>;

static void require(bool holds, const char * what) {
    if (holds) return;
    fprintf(stderr, "llama.cpp: %s failed\n", what);
    std::exit(1);
}

static void silent(ggml_log_level, const char *, void *) {}

struct Peer {
    llama_context *target, *layers;
    int n_max, n_vocab;
    common_params_speculative params;
    common_speculative * speculative;
    common_batch batch;

    Peer(llama_model * model, int n_max) : n_max(n_max) {
        const auto context = [&](llama_context_type type) {
            auto params = llama_context_default_params();
            params.ctx_type = type;
            params.n_ctx = 1024;
            params.n_batch = 512;
            params.n_threads = params.n_threads_batch = 1;
            params.swa_full = true;
            auto * made = llama_init_from_model(model, params);
            require(made != nullptr, "llama_init_from_model");
            return made;
        };
        target = context(LLAMA_CONTEXT_TYPE_DEFAULT);
        layers = context(LLAMA_CONTEXT_TYPE_MTP);
        n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        params.types = { COMMON_SPECULATIVE_TYPE_DRAFT_MTP };
        params.draft.ctx_tgt = target;
        params.draft.ctx_dft = layers;
        params.draft.n_max = n_max;
        params.draft.n_min = 0;
        params.draft.p_min = 0;
        batch = common_batch(target);
        speculative = common_speculative_init(params, 1);
        require(speculative != nullptr, "common_speculative_init");
    }

    // Decodes tokens in both contexts at a position. Returns the target's greedy token after each one that has logits: for the prompt the last
    // one, else all.
    Tokens decode(const Tokens & tokens, llama_pos from, bool is_prompt) {
        for (auto * context : { target, layers }) {
            require(llama_memory_seq_rm(llama_get_memory(context), 0, from, -1), "llama_memory_seq_rm");
        }
        auto plain = llama_batch_init(int32_t(tokens.size()), 0, 1);
        batch.clear();
        plain.n_tokens = int32_t(tokens.size());
        for (size_t at = 0; at < tokens.size(); ++at) {
            const bool output = !is_prompt || at + 1 == tokens.size();
            plain.token[at] = tokens[at];
            plain.pos[at] = from + llama_pos(at);
            plain.n_seq_id[at] = 1;
            plain.seq_id[at][0] = 0;
            plain.logits[at] = output;
            batch.add(tokens[at], from + llama_pos(at), 0, output);
        }
        require(llama_decode(target, plain) == 0, "llama_decode");
        require(common_speculative_process(speculative, batch), "common_speculative_process");
        Tokens sampled;
        for (size_t at = 0; at < tokens.size(); ++at) {
            if (!plain.logits[at]) continue;
            const float * row = llama_get_logits_ith(target, int32_t(at));
            sampled.push_back(llama_token(std::max_element(row, row + n_vocab) - row));
        }
        llama_batch_free(plain);
        return sampled;
    }

    Tokens draft(const Tokens & context) {
        const Tokens before(context.begin(), context.end() - 1);
        // As in llama-server, rejected tokens are removed.
        require(llama_memory_seq_rm(llama_get_memory(layers), 0, llama_pos(before.size()), -1), "llama_memory_seq_rm");
        Tokens drafted;
        common_speculative_get_draft_params(speculative, 0) = { true, n_max, llama_pos(before.size()), context.back(), &before, &drafted };
        common_speculative_draft(speculative);
        return drafted;
    }

    void write(const Tokens & prompt, size_t n_predict) {
        Tokens context = prompt;
        common_speculative_begin(speculative, 0, prompt);
        context.push_back(decode(prompt, 0, true).back());
        size_t n_drafted = 0, n_accepted = 0;
        while (context.size() < prompt.size() + n_predict) {
            Tokens drafted = draft(context);
            drafted.resize(std::min(drafted.size(), prompt.size() + n_predict - context.size() - 1));
            Tokens step(1, context.back());
            step.insert(step.end(), drafted.begin(), drafted.end());
            const Tokens sampled = decode(step, llama_pos(context.size() - 1), false);
            size_t accepted = 0;
            while (accepted < drafted.size() && sampled[accepted] == drafted[accepted]) ++accepted;
            if (!drafted.empty()) common_speculative_accept(speculative, 0, uint16_t(accepted));
            context.insert(context.end(), sampled.begin(), sampled.begin() + long(accepted) + 1);
            n_drafted += drafted.size();
            n_accepted += accepted;
        }
        for (size_t at = prompt.size(); at < context.size(); ++at) printf("%d ", context[at]);
        printf("| %zu %zu\n", n_drafted, n_accepted);
    }
};

int main(int, char ** arguments) {
    llama_log_set(silent, nullptr);
    common_log_pause(common_log_main());
    llama_backend_init();
    auto params = llama_model_default_params();
    params.load_mtp = true;
    auto * model = llama_model_load_from_file(arguments[1], params);
    require(model != nullptr, "llama_model_load_from_file");
    Peer peer(model, std::atoi(arguments[2]));
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        Tokens prompt;
        for (llama_token token; words >> token;) prompt.push_back(token);
        peer.write(prompt, size_t(std::atoi(arguments[3])));
    }
    std::fflush(stdout);
    std::_Exit(0);
}
