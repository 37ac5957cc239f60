// llama.cpp's own speculation and n-gram caches behind a C interface, to measure ours against. Compiled for benchmarks only
// (feature `peer`); benches/peer/mod.rs is its other half. Every function returns 0, or 1 after an exception, whose text
// peer_error() has. Times are taken here, so that calls from Rust cost nothing in them: of generation by the wall clock, of
// n-gram caches, which use one thread, the processor's.

#include "common.h"
#include "log.h"
#include "ngram-cache.h"
#include "sampling.h"
#include "speculative.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

thread_local std::string last_error;

template <class F> int32_t guarded(F body) {
    try {
        body();
        return 0;
    } catch (const std::exception & error) {
        last_error = error.what();
    } catch (...) {
        last_error = "an exception of unknown type";
    }
    return 1;
}

void require(bool holds, const char * message) {
    if (!holds) throw std::runtime_error(message);
}

class Clock {
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  public:
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); }
};

// The processor time of this thread where the system tells: a busy machine does not lengthen it.
class Work {
    static double now() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
        timespec time{};
        if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0) return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
#endif
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    }
    double start = now();

  public:
    double seconds() const { return now() - start; }
    static double total() { return now(); }
};

void silent(ggml_log_level, const char *, void *) {}

void be_silent() {
    common_log_pause(common_log_main());
    llama_log_set(silent, nullptr);
}

} // namespace

extern "C" {

const char * peer_error() { return last_error.c_str(); }

// Bytes that malloc has given out in this process (the Rust side's too); 0 where the C library does not tell.
uint64_t peer_heap() {
#if defined(__GLIBC__)
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

// Seconds of work by this thread since some moment.
double peer_work() { return Work::total(); }

} // extern "C"

// ---- n-gram caches ----

struct peer_cache {
    common_ngram_cache map;
};

namespace {

// The drafting rule's thresholds by n-gram size, as common/ngram-cache.cpp has them: sample size and percent.
struct Thresholds {
    int sample[LLAMA_NGRAM_MAX];
    int percent[LLAMA_NGRAM_MAX];
};
const Thresholds lax{{2, 2, 1, 1}, {66, 50, 50, 50}};
const Thresholds strict{{4, 3, 2, 2}, {75, 66, 66, 66}};

// What the rule may draft next, whatever the order in which a hash map yields its entries.
struct Admissible {
    std::set<llama_token> tokens; // LLAMA_TOKEN_NULL: nothing
    bool overflow = false;        // llama.cpp's product of two counts does not fit an int here
};

const common_ngram_cache_part * find(const common_ngram_cache & cache, const llama_token * end, int size) {
    const auto found = cache.find(common_ngram(end - size, size));
    return found == cache.end() ? nullptr : &found->second;
}

// Adds the winners at one n-gram; returns whether some order of entries lets none of them pass.
bool winners(const common_ngram_cache_part & part, const common_ngram_cache_part * weights, int min_sample,
             int min_percent, Admissible & result) {
    int64_t best = 0, sum = 0;
    std::vector<std::pair<llama_token, int32_t>> tied;
    for (const auto & [token, count] : part) {
        int64_t weight = 1;
        if (weights) {
            const auto found = weights->find(token);
            if (found != weights->end()) weight = 100 * int64_t(found->second);
        }
        const int64_t score = count * weight;
        if (score > INT32_MAX) result.overflow = true;
        if (score > best) tied.clear();
        if (score >= best) {
            best = score;
            tied.emplace_back(token, count);
        }
        sum += count;
    }
    if (sum < min_sample) return true;
    bool fails = false;
    for (const auto & [token, count] : tied) {
        if (100 * int64_t(count) < min_percent * sum) {
            fails = true;
        } else {
            result.tokens.insert(token);
        }
    }
    return fails;
}

// After the tokens that end at `end`.
Admissible admissible(const common_ngram_cache & context, const common_ngram_cache & dynamic,
                      const common_ngram_cache & fixed, const llama_token * begin, const llama_token * end) {
    Admissible result;
    const auto * weights = find(fixed, end, LLAMA_NGRAM_STATIC);
    for (const auto & [cache, least] : {std::pair{&context, &lax}, std::pair{&dynamic, &strict}}) {
        for (int size = LLAMA_NGRAM_MAX; size >= LLAMA_NGRAM_MIN; --size) {
            if (end - begin < size) continue;
            const auto * part = find(*cache, end, size);
            if (part && !winners(*part, weights, least->sample[size - 1], least->percent[size - 1], result)) return result;
        }
    }
    const int last = LLAMA_NGRAM_STATIC - 1;
    if (!weights || winners(*weights, nullptr, lax.sample[last], lax.percent[last], result)) {
        result.tokens.insert(LLAMA_TOKEN_NULL);
    }
    return result;
}

} // namespace

extern "C" {

peer_cache * peer_cache_new() { return new (std::nothrow) peer_cache; }

void peer_cache_free(peer_cache * cache) { delete cache; }

uint64_t peer_cache_size(const peer_cache * cache) { return cache->map.size(); }

int32_t peer_cache_load(peer_cache * cache, const char * path, double * seconds) {
    return guarded([&] {
        const Work work;
        cache->map = common_ngram_cache_load(path);
        *seconds = work.seconds();
    });
}

int32_t peer_cache_save(peer_cache * cache, const char * path, double * seconds) {
    return guarded([&] {
        const Clock clock; // a disk may take part in it
        common_ngram_cache_save(cache->map, path);
        *seconds = clock.seconds();
    });
}

int32_t peer_cache_merge(peer_cache * cache, peer_cache * other, double * seconds) {
    return guarded([&] {
        const Work work;
        common_ngram_cache_merge(cache->map, other->map);
        *seconds = work.seconds();
    });
}

// Counts the n-grams of the tokens: `step` tokens at a time as while serving, or all at once (0).
int32_t peer_cache_update(peer_cache * cache, const int32_t * tokens, uint64_t n, int32_t ngram_min, int32_t ngram_max,
                          uint64_t step, double * seconds) {
    return guarded([&] {
        std::vector<llama_token> input;
        input.reserve(n);
        const Work work;
        for (uint64_t at = 0; at < n;) {
            const uint64_t more = step == 0 ? n : std::min(step, n - at);
            input.insert(input.end(), tokens + at, tokens + at + more);
            common_ngram_cache_update(cache->map, ngram_min, ngram_max, input, int(more), false);
            at += more;
        }
        *seconds = work.seconds();
    });
}

// A draft of at most `n_draft` tokens after each of the positions `from..n` of the text; `drafts` has n_draft places for each
// and is filled up with -1. With `learn`, the context cache learns each token after the draft at it, as while serving.
int32_t peer_cache_drafts(peer_cache * context, peer_cache * dynamic, peer_cache * fixed, const int32_t * tokens, uint64_t n,
                          uint64_t from, int32_t n_draft, int32_t learn, int32_t * drafts, double * seconds) {
    return guarded([&] {
        require(from >= LLAMA_NGRAM_MAX && from <= n, "drafts begin behind the first n-gram");
        std::vector<llama_token> input(tokens, tokens + from), draft;
        input.reserve(n);
        std::fill(drafts, drafts + (n - from) * n_draft, LLAMA_TOKEN_NULL);
        const Work work;
        for (uint64_t at = from; at < n; ++at) {
            draft.assign(1, input.back());
            common_ngram_cache_draft(input, draft, n_draft, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, context->map, dynamic->map,
                                     fixed->map);
            std::copy(draft.begin() + 1, draft.end(), drafts + (at - from) * n_draft);
            input.push_back(tokens[at]);
            if (learn) common_ngram_cache_update(context->map, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, input, 1, false);
        }
        *seconds = work.seconds();
    });
}

// Whether the rule may draft `token` (-1: nothing) after the text: 1 if some order of equal counts gives it, 2 if
// llama.cpp's arithmetic overflows there, 0 if neither; -1 after an exception.
int32_t peer_cache_may_draft(const peer_cache * context, const peer_cache * dynamic, const peer_cache * fixed,
                             const int32_t * tokens, uint64_t n, int32_t token) {
    int32_t answer = -1;
    guarded([&] {
        require(n >= LLAMA_NGRAM_STATIC, "the text is shorter than an n-gram");
        const auto may = admissible(context->map, dynamic->map, fixed->map, tokens, tokens + n);
        answer = may.tokens.count(token) ? 1 : may.overflow ? 2 : 0;
    });
    return answer;
}

struct peer_lookup_stats {
    uint64_t n_predict, n_drafted, n_accept;
    double draft_seconds;
};

// What llama-lookup-stats counts: the text in windows of n_ctx tokens, in each the drafts that a generation of just this
// text would have made; the dynamic cache learns every window.
int32_t peer_cache_stats(peer_cache * dynamic, peer_cache * fixed, const int32_t * tokens, uint64_t n, uint64_t n_ctx,
                         int32_t n_draft, peer_lookup_stats * stats) {
    return guarded([&] {
        require(n_ctx > 0, "n_ctx is 0");
        *stats = {n - n % n_ctx, 0, 0, 0.0};
        common_ngram_cache context;
        std::vector<llama_token> output, draft;
        for (uint64_t start = 0; start + n_ctx < n; start += n_ctx) {
            const llama_token * truth = tokens + start;
            output.assign(1, truth[0]);
            const auto next = [&] {
                output.push_back(truth[output.size()]);
                common_ngram_cache_update(context, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, output, 1, false);
            };
            while (output.size() < n_ctx) {
                draft.assign(1, output.back());
                const Clock clock;
                common_ngram_cache_draft(output, draft, n_draft, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, context, dynamic->map,
                                         fixed->map);
                stats->draft_seconds += clock.seconds();
                stats->n_drafted += draft.size() - 1;
                for (size_t j = 1; j < draft.size() && output.size() < n_ctx && draft[j] == truth[output.size()]; ++j) {
                    ++stats->n_accept;
                    next();
                }
                if (output.size() < n_ctx) next(); // the token that the target samples itself
            }
            common_ngram_cache_merge(dynamic->map, context);
            context.clear();
        }
    });
}

} // extern "C"

// ---- generation ----

struct peer_settings {
    int32_t n_ctx, n_threads, n_threads_draft, poll;
    bool flash_attn;
};

struct peer_request {
    const int32_t * prompt;
    uint64_t n_prompt;
    const char * type;          // one of llama.cpp's names; "none": plain
    const char * lookup_static; // for ngram-cache, a file or NULL
    int32_t n_predict;
    int32_t n_max;         // 0: llama.cpp's own
    float temperature;     // 0: greedy
    float p_min;
    uint32_t seed;
    int32_t probabilistic; // draft-simple: rejection sampling instead of comparing
    int32_t ignore_eos;
    const int32_t * text; // n_predict tokens that take the place of the sampled ones, or NULL
};

struct peer_outcome {
    uint64_t n_tokens, n_steps, n_drafted, n_accepted;
    double seconds; // without the prompt
};

// Target and draft with their contexts, made by the functions that speculative-simple makes them with.
struct peer_models {
    common_params params;
    common_init_result_ptr target;
    common_speculative_init_result_ptr draft;

    llama_context * context() const { return target->context(); }
    llama_context * draft_context() const { return draft ? draft->context() : nullptr; }
};

namespace {

void evaluate(llama_context * context, common_batch & batch) {
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
    // No more than the request needs: the fewest stages are llama.cpp's best speed.
    params.top_k = 1;
    params.samplers = {request.temperature > 0 ? COMMON_SAMPLER_TYPE_TEMPERATURE : COMMON_SAMPLER_TYPE_TOP_K};
    if (request.ignore_eos) params.logit_bias = never_end(llama_model_get_vocab(model));
    common_sampler_ptr sampler(common_sampler_init(model, params));
    require(sampler != nullptr, "no sampler can be made");
    return sampler;
}

// Samples the token at a row of the last evaluation, and takes it or that of a given text at this place.
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

// Puts all of the prompt but its last token into both memories.
void prefill(const peer_models & models, common_speculative * speculation, const llama_tokens & prompt, common_batch & batch) {
    for (llama_context * context : {models.context(), models.draft_context()}) {
        if (context) llama_memory_clear(llama_get_memory(context), true);
    }
    batch.clear();
    for (size_t i = 0; i < prompt.size(); ++i) batch.add(prompt[i], llama_pos(i), 0, i + 1 == prompt.size());
    if (batch.size() > 0) {
        evaluate(models.context(), batch);
        require(common_speculative_process(speculation, batch), "the draft model cannot take the prompt");
    }
}

// llama_process and the choice of a token, nothing else.
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
        evaluate(context, batch);
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
    // New for each text: llama.cpp's begin() does not forget what the last one left.
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
        const int32_t room = std::min<int32_t>(int32_t(llama_n_ctx(context)) - past - 2, request.n_predict - int32_t(outcome.n_tokens) - 1);
        if (room > 0) {
            auto & ask = common_speculative_get_draft_params(speculation, 0);
            ask = common_speculative_draft_params();
            ask.drafting = true;
            ask.n_max = room;
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
        evaluate(context, batch);
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

// Continues a prompt; `tokens` has n_predict places, and all that is written there counts.
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

// The median time of evaluating `n` tokens at once behind `past` others, by the target or the draft.
int32_t peer_batch_seconds(const peer_models * models, int32_t draft, int32_t n, int32_t past, int32_t repetitions, double * seconds) {
    return guarded([&] {
        llama_context * context = draft ? models->draft_context() : models->context();
        require(context != nullptr, "there is no draft");
        require(n > 0 && past > 0 && repetitions > 0, "n, past and repetitions are at least 1");
        const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
        llama_memory_clear(llama_get_memory(context), true);
        common_batch batch(context);
        // A target gives the logits of all, as to verify them; a draft has room for one row.
        const auto fill = [&](llama_pos from, int32_t count) {
            batch.clear();
            for (int32_t i = 0; i < count; ++i) batch.add((from + i) * 7 % n_vocab, from + i, 0, !draft || i + 1 == count);
        };
        fill(0, past);
        evaluate(context, batch);
        std::vector<double> times;
        for (int32_t i = 0; i <= repetitions; ++i) {
            forget(context, past);
            fill(past, n);
            const Clock clock;
            evaluate(context, batch);
            if (i > 0) times.push_back(clock.seconds()); // the first one warms up
        }
        std::sort(times.begin(), times.end());
        *seconds = times[times.size() / 2];
    });
}

} // extern "C"
