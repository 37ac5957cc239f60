// llama.cpp's n-gram caches, and the numbers of llama-lookup-stats. Every function of the C interface returns 0, or 1 after an exception, whose
// message peer_error() returns. Times are taken in C++, so that they do not include calls from Rust: CPU time, and elapsed time for files.
#include "ngram-cache.cpp" // with it, nothing of llama.cpp's folder `common` needs to be compiled

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <exception>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

// Stubs of the functions of llama.cpp's log that ngram-cache.cpp calls.
int common_log_get_verbosity_thold(void) { return -1; }
struct common_log * common_log_main() { return nullptr; }
void common_log_add(struct common_log *, enum ggml_log_level, const char *, ...) {}

struct peer_cache {
    common_ngram_cache map;
};

namespace {

// The message of this thread's last exception.
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

// The CPU time of this thread if available. Other load does not increase it.
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

// The thresholds of the drafting rule by n-gram size, from common/ngram-cache.cpp: sample size and percent.
struct Thresholds {
    int sample[LLAMA_NGRAM_MAX];
    int percent[LLAMA_NGRAM_MAX];
};
const Thresholds lax{{2, 2, 1, 1}, {66, 50, 50, 50}};
const Thresholds strict{{4, 3, 2, 2}, {75, 66, 66, 66}};

// The tokens that the rule can draft next, for any order of the hash map's entries.
struct Admissible {
    std::set<llama_token> tokens; // LLAMA_TOKEN_NULL: nothing
    bool overflow = false;        // llama.cpp's product of two counts does not fit an int here
};

const common_ngram_cache_part * find(const common_ngram_cache & cache, const llama_token * end, int size) {
    const auto found = cache.find(common_ngram(end - size, size));
    return found == cache.end() ? nullptr : &found->second;
}

// Adds the best tokens after one n-gram. Returns whether, for some order of the entries, none passes the thresholds.
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

const char * peer_error() { return last_error.c_str(); }

// The size of malloc's allocations in this process, including Rust's, in bytes. 0: unknown.
uint64_t peer_heap() {
#if defined(__GLIBC__)
    const auto info = mallinfo2();
    return info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

// The CPU time of this thread in seconds.
double peer_work() { return Work::total(); }

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
        const Clock clock; // includes disk I/O
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

// Counts the n-grams of the tokens, `step` tokens at a time as during generation, or all at once (0).
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

// Drafts at most `n_draft` tokens after each of the positions `from..n` of the text. `drafts` has space for n_draft tokens for each, and is
// padded with -1. With `learn`, the context cache adds each token after the draft at its position, as during generation.
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

// The numbers of llama-lookup-stats: for windows of n_ctx tokens, the drafts that a generation of this text would have made. Every window is
// added to the dynamic cache.
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
