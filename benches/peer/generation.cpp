// llama.cpp's loops: plain decoding, and speculative-simple with each of its drafters.
#include "peer.h"

#include "sampling.h"
#include "speculative.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

struct peer_settings {
    int32_t n_ctx, n_threads, n_threads_draft, poll;
    bool flash_attn;
};

struct peer_request {
    const int32_t * prompt;
    uint64_t n_prompt;
    const char * type;          // one of llama.cpp's names; "none": no speculation
    const char * lookup_static; // for ngram-cache, a file or NULL
    int32_t n_predict;
    int32_t n_max;         // 0: llama.cpp's own
    float temperature;     // 0: greedy
    float p_min;
    uint32_t seed;
    int32_t probabilistic; // draft-simple: rejection sampling instead of comparing
    int32_t ignore_eos;
    const int32_t * text; // n_predict tokens that replace the sampled ones, or NULL
};

struct peer_outcome {
    uint64_t n_tokens, n_steps, n_drafted, n_accepted;
    double seconds; // without the prompt
};

// Target and draft with their contexts, created with the functions that speculative-simple uses.
struct peer_models {
    common_params params;
    common_init_result_ptr target;
    common_speculative_init_result_ptr draft;

    llama_context * context() const { return target->context(); }
    llama_context * draft_context() const { return draft ? draft->context() : nullptr; }
};

namespace {

void decode_or_throw(llama_context * context, common_batch & batch) {
    require(llama_process(context, LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0, "llama_process failed");
}

void forget(llama_context * context, llama_pos from) {
    if (context) llama_memory_seq_rm(llama_get_memory(context), 0, from, -1);
}

std::vector<llama_logit_bias> never_end(const llama_vocab * vocab) {
    std::vector<llama_logit_bias> biases;
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
        if (llama_vocab_is_eog(vocab, token)) biases.push_back({token, -INFINITY});
    }
    return biases;
}

common_sampler_ptr make_sampler(const llama_model * model, const peer_request & request) {
    common_params_sampling params;
    params.seed = request.seed;
    params.temp = request.temperature;
    // Only the necessary stages, because llama.cpp is fastest with few stages.
    params.top_k = 1;
    params.samplers = {request.temperature > 0 ? COMMON_SAMPLER_TYPE_TEMPERATURE : COMMON_SAMPLER_TYPE_TOP_K};
    if (request.ignore_eos) params.logit_bias = never_end(llama_model_get_vocab(model));
    common_sampler_ptr sampler(common_sampler_init(model, params));
    require(sampler != nullptr, "no sampler can be made");
    return sampler;
}

// Samples a token from a row of the last decode. Returns it, or the token of the given text at this position.
llama_token choose(common_sampler * sampler, llama_context * context, int row, const peer_request & request, uint64_t place) {
    llama_token token = common_sampler_sample(sampler, context, row);
    if (request.text) {
        require(place < uint64_t(request.n_predict), "the given text has ended");
        token = request.text[place];
    }
    common_sampler_accept(sampler, token, true);
    return token;
}

// common_sampler_sample_and_accept_n for a given text.
llama_tokens choose_n(common_sampler * sampler, llama_context * context, const llama_tokens & draft, const peer_request & request,
                      uint64_t place) {
    llama_tokens chosen;
    do {
        const size_t at = chosen.size();
        chosen.push_back(choose(sampler, context, int(at), request, place + at));
    } while (chosen.size() <= draft.size() && chosen.back() == draft[chosen.size() - 1]);
    return chosen;
}

common_speculative_ptr make_speculation(const peer_models & models, const peer_request & request) {
    const auto type = common_speculative_type_from_name(request.type);
    require(type != COMMON_SPECULATIVE_TYPE_COUNT, "llama.cpp does not know this type");
    common_params_speculative params = models.params.speculative;
    params.types = {type};
    params.draft.ctx_tgt = models.context();
    params.draft.ctx_dft = models.draft_context();
    params.draft.p_min = request.p_min;
    params.draft.probabilistic = request.probabilistic != 0;
    if (request.lookup_static) params.ngram_cache.lookup_cache_static = request.lookup_static;
    if (request.n_max > 0) {
        params.draft.n_max = request.n_max;
        for (auto * map : {&params.ngram_simple, &params.ngram_map_k, &params.ngram_map_k4v}) map->size_m = uint16_t(request.n_max);
        params.ngram_mod.n_max = request.n_max;
        params.ngram_mod.n_min = std::min(params.ngram_mod.n_min, request.n_max);
    }
    return common_speculative_ptr(common_speculative_init(params, 1));
}

// Decodes the prompt except for its last token, in both contexts.
void prefill(const peer_models & models, common_speculative * speculation, const llama_tokens & prompt, common_batch & batch) {
    for (llama_context * context : {models.context(), models.draft_context()}) {
        if (context) llama_memory_clear(llama_get_memory(context), true);
    }
    batch.clear();
    for (size_t i = 0; i < prompt.size(); ++i) batch.add(prompt[i], llama_pos(i), 0, i + 1 == prompt.size());
    if (batch.size() > 0) {
        decode_or_throw(models.context(), batch);
        require(common_speculative_process(speculation, batch), "the draft model cannot take the prompt");
    }
}

// Only llama_process and the choice of a token.
void generate_plain(const peer_models & models, const peer_request & request, llama_tokens prompt, int32_t * tokens,
                    peer_outcome & outcome) {
    llama_context * context = models.context();
    const llama_model * model = llama_get_model(context);
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    const auto sampler = make_sampler(model, request);
    llama_token last = prompt.back();
    prompt.pop_back();
    common_batch batch(context);
    prefill(models, nullptr, prompt, batch);
    llama_pos past = llama_pos(prompt.size());
    const Clock clock;
    while (int32_t(outcome.n_tokens) < request.n_predict) {
        batch.clear();
        batch.add(last, past++, 0, true);
        decode_or_throw(context, batch);
        ++outcome.n_steps;
        if (request.temperature > 0 || request.ignore_eos) {
            last = choose(sampler.get(), context, 0, request, outcome.n_tokens);
        } else {
            const float * logits = llama_get_logits_ith(context, -1);
            last = llama_token(std::max_element(logits, logits + n_vocab) - logits);
        }
        tokens[outcome.n_tokens++] = last;
        if (llama_vocab_is_eog(vocab, last)) break;
    }
    outcome.seconds = clock.seconds();
}

// The loop of speculative-simple.
void generate_speculatively(const peer_models & models, const peer_request & request, llama_tokens prompt, int32_t * tokens,
                            peer_outcome & outcome) {
    llama_context * context = models.context();
    const llama_model * model = llama_get_model(context);
    const llama_vocab * vocab = llama_model_get_vocab(model);
    const auto sampler = make_sampler(model, request);
    // Created for each text, because llama.cpp's begin() does not clear the previous text's state.
    const auto owner = make_speculation(models, request);
    common_speculative * speculation = owner.get();
    require(speculation != nullptr, "llama.cpp offers no speculation of this type for these models");

    llama_token last = prompt.back();
    prompt.pop_back();
    prompt.reserve(llama_n_ctx(context));
    common_batch batch(context);
    prefill(models, speculation, prompt, batch);
    common_speculative_begin(speculation, 0, prompt);
    llama_pos past = llama_pos(prompt.size());
    llama_tokens draft;
    std::vector<std::vector<llama_token_data>> draft_q;
    bool ended = false;
    const Clock clock;
    while (!ended && int32_t(outcome.n_tokens) < request.n_predict) {
        draft.clear();
        draft_q.clear();
        const int32_t n_left = std::min<int32_t>(int32_t(llama_n_ctx(context)) - past - 2, request.n_predict - int32_t(outcome.n_tokens) - 1);
        if (n_left > 0) {
            auto & ask = common_speculative_get_draft_params(speculation, 0);
            ask = common_speculative_draft_params();
            ask.drafting = true;
            ask.n_max = n_left;
            ask.pos0 = past;
            ask.id_last = last;
            ask.prompt = &prompt;
            ask.result = &draft;
            ask.result_q = request.probabilistic ? &draft_q : nullptr;
            ask.temp = request.temperature;
            ask.seed = request.seed;
            common_speculative_draft(speculation);
            forget(models.draft_context(), past);
        }
        batch.clear();
        batch.add(last, past++, 0, true);
        for (size_t i = 0; i < draft.size(); ++i) batch.add(draft[i], past + llama_pos(i), 0, true);
        decode_or_throw(context, batch);
        require(common_speculative_process(speculation, batch), "the draft model cannot take the batch");

        llama_tokens chosen;
        if (request.text) {
            chosen = choose_n(sampler.get(), context, draft, request, outcome.n_tokens);
        } else if (draft_q.empty()) {
            chosen = common_sampler_sample_and_accept_n(sampler.get(), context, draft);
        } else {
            std::vector<int> rows(draft.size() + 1);
            for (size_t i = 0; i < rows.size(); ++i) rows[i] = int(i);
            chosen = common_sampler_sample_and_accept_n_rejection(sampler.get(), context, rows, draft, draft_q);
        }
        const size_t accepted = chosen.size() - 1;
        if (!draft.empty()) common_speculative_accept(speculation, 0, uint16_t(accepted));
        past += llama_pos(accepted);
        ++outcome.n_steps;
        outcome.n_drafted += draft.size();
        outcome.n_accepted += accepted;
        for (const llama_token token : chosen) {
            prompt.push_back(last);
            last = token;
            tokens[outcome.n_tokens++] = token;
            if (llama_vocab_is_eog(vocab, token)) {
                ended = true;
                break;
            }
        }
        forget(context, past);
        forget(models.draft_context(), past);
    }
    outcome.seconds = clock.seconds();
}

} // namespace

extern "C" {

void peer_models_free(peer_models * models) { delete models; }

// Loads a target and, unless NULL, its draft.
int32_t peer_models_load(const char * target, const char * draft, const peer_settings * settings, peer_models ** result) {
    return guarded([&] {
        be_silent();
        llama_backend_init();
        auto models = std::make_unique<peer_models>();
        common_params & params = models->params;
        params.model.path = target;
        params.n_ctx = settings->n_ctx;
        if (!settings->flash_attn) params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
        params.n_parallel = 1;
        params.fit_params = false;
        params.cpuparams.n_threads = settings->n_threads;
        params.cpuparams.poll = uint32_t(settings->poll);
        params.cpuparams_batch = params.cpuparams;
        if (draft) {
            params.speculative.types = {COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE};
            params.speculative.draft.mparams.path = draft;
            params.speculative.draft.cpuparams = params.cpuparams;
            params.speculative.draft.cpuparams.n_threads = settings->n_threads_draft;
            params.speculative.draft.cpuparams_batch = params.speculative.draft.cpuparams;
        }
        models->target = common_init_from_params(params);
        require(models->target && models->target->context(), "the target cannot be loaded");
        if (draft) {
            common_params params_draft = common_base_params_to_speculative(params);
            models->draft = common_speculative_init_from_params(params_draft, models->target->model(), models->context());
            require(models->draft_context() != nullptr, "the draft cannot be loaded");
        }
        *result = models.release();
    });
}

// Continues a prompt. `tokens` has space for n_predict tokens.
int32_t peer_generate(const peer_models * models, const peer_request * request, int32_t * tokens, peer_outcome * outcome) {
    return guarded([&] {
        require(request->n_prompt > 0, "the prompt is empty");
        require(int64_t(request->n_prompt) + request->n_predict < int64_t(llama_n_ctx(models->context())), "the context is too small");
        llama_tokens prompt(request->prompt, request->prompt + request->n_prompt);
        *outcome = {0, 0, 0, 0, 0.0};
        const bool plain = std::string(request->type) == "none";
        (plain ? generate_plain : generate_speculatively)(*models, *request, std::move(prompt), tokens, *outcome);
    });
}

// The median time of decoding `n` tokens at once after `past` others, by the target or the draft.
int32_t peer_batch_seconds(const peer_models * models, int32_t draft, int32_t n, int32_t past, int32_t repetitions, double * seconds) {
    return guarded([&] {
        llama_context * context = draft ? models->draft_context() : models->context();
        require(context != nullptr, "there is no draft");
        require(n > 0 && past > 0 && repetitions > 0, "n, past and repetitions are at least 1");
        const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
        llama_memory_clear(llama_get_memory(context), true);
        common_batch batch(context);
        // The target outputs all logits, as for verification; a draft model's context has space for one row.
        const auto fill = [&](llama_pos from, int32_t count) {
            batch.clear();
            for (int32_t i = 0; i < count; ++i) batch.add((from + i) * 7 % n_vocab, from + i, 0, !draft || i + 1 == count);
        };
        fill(0, past);
        decode_or_throw(context, batch);
        std::vector<double> times;
        for (int32_t i = 0; i <= repetitions; ++i) {
            forget(context, past);
            fill(past, n);
            const Clock clock;
            decode_or_throw(context, batch);
            if (i > 0) times.push_back(clock.seconds()); // the first run is a warm-up
        }
        std::sort(times.begin(), times.end());
        *seconds = times[times.size() / 2];
    });
}

} // extern "C"
