// A host that keeps n-gram caches with llama.cpp's own functions (common/ngram-cache.h), and gives the same tokens to the engine's caches by
// lookup_cache. Both must draft the same and save the same. Prints how much was compared. Arguments: a model, and a folder for files.
#include "ngram-cache.cpp"

#include "foredraft.h"
#include "json_mini.h"

#include <cstdarg>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

// Stubs of the functions of ggml and of llama.cpp's log that ngram-cache.cpp calls.
extern "C" int64_t ggml_time_ms(void) { return 0; }
extern "C" void ggml_abort(const char *, int, const char *, ...) { std::abort(); }
int common_log_get_verbosity_thold(void) { return -1; }
struct common_log *common_log_main() { return nullptr; }
void common_log_add(struct common_log *, enum ggml_log_level, const char *, ...) {}

using Tokens = std::vector<llama_token>;

static std::string folder;

static std::string list(const Tokens &tokens) {
    std::string text = "[";
    for (const llama_token token : tokens) text += (text.size() > 1 ? "," : "") + std::to_string(token);
    return text + "]";
}

// Calls lookup_cache, which must succeed.
static std::string call(const std::string &request) {
    char *answer = foredraft_lookup_cache(nullptr, request.c_str());
    const std::string copy(answer);
    foredraft_string_free(answer);
    if (copy.find("\"success\":true") == std::string::npos) {
        fprintf(stderr, "%s: %s\n", request.c_str(), copy.c_str());
        std::exit(1);
    }
    return copy;
}

static Tokens drafted(const Tokens &history, int n_draft) {
    const std::string answer =
        call("{\"action\": \"draft\", \"tokens\": " + list(history) + ", \"n_draft\": " + std::to_string(n_draft) + "}");
    Tokens tokens;
    for (const char *item = json_first(json_member(answer.c_str(), "draft")); item; item = json_next(item))
        tokens.push_back(static_cast<llama_token>(json_number(item)));
    return tokens;
}

// The same counts in another order, because llama.cpp's choice between equals depends on it.
static common_ngram_cache reordered(const common_ngram_cache &cache) {
    common_ngram_cache other;
    for (const auto &item : cache) {
        common_ngram_cache_part part;
        part.rehash(101);
        std::map<llama_token, int32_t> sorted(item.second.begin(), item.second.end());
        for (auto pair = sorted.rbegin(); pair != sorted.rend(); ++pair) part.emplace(pair->first, pair->second);
        other.emplace(item.first, part);
    }
    return other;
}

static Tokens peer_draft(Tokens history, int n_draft, common_ngram_cache context, common_ngram_cache dynamic,
                         common_ngram_cache fixed) {
    Tokens draft{history.empty() ? 0 : history.back()};
    common_ngram_cache_draft(history, draft, n_draft, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, context, dynamic, fixed);
    draft.erase(draft.begin());
    return draft;
}

static std::map<std::vector<llama_token>, std::map<llama_token, int32_t>> plain(const common_ngram_cache &cache) {
    std::map<std::vector<llama_token>, std::map<llama_token, int32_t>> all;
    for (const auto &item : cache)
        all[Tokens(item.first.tokens, item.first.tokens + LLAMA_NGRAM_MAX)].insert(item.second.begin(), item.second.end());
    return all;
}

static void check_saved(const char *name, const common_ngram_cache &expected) {
    const std::string path = folder + "/" + name;
    call(std::string("{\"action\": \"save\", \"cache\": \"") + name + "\", \"filename\": \"" + path + "\"}");
    if (plain(common_ngram_cache_load(path)) != plain(expected)) {
        fprintf(stderr, "the %s cache has other counts\n", name);
        std::exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    folder = argv[2];
    const std::string config = std::string("{\"model\": \"") + argv[1] + "\", \"n_ctx\": 256, \"n_threads\": 1, \"warmup\": false}";
    if (foredraft_load(nullptr, config.c_str()) != FOREDRAFT_OK) return 1;
    std::mt19937 random(7);
    int n_compared = 0, n_tokens = 0, n_ambiguous = 0, n_empty = 0;
    for (int round = 0; round < 60; ++round) {
        call("{\"action\": \"clear\", \"cache\": \"static\"}");
        call("{\"action\": \"clear\", \"cache\": \"dynamic\"}");
        const int kinds = 2 + round % 7;
        // A host's sequence: a pattern with mistakes.
        const auto sequence = [&](size_t length) {
            Tokens tokens;
            while (tokens.size() < length)
                tokens.push_back(random() % 5 == 0 ? 300 + random() % kinds : 300 + (tokens.size() * tokens.size()) % kinds);
            return tokens;
        };
        common_ngram_cache fixed, dynamic;
        Tokens corpus = sequence(200);
        common_ngram_cache_update(fixed, LLAMA_NGRAM_STATIC, LLAMA_NGRAM_STATIC, corpus, corpus.size(), false);
        call("{\"action\": \"update\", \"cache\": \"static\", \"tokens\": " + list(corpus) + "}");
        // Incrementally, some tokens at a time.
        Tokens earlier;
        for (const llama_token token : sequence(120)) {
            earlier.push_back(token);
            const size_t n_new = earlier.size() % 3 == 0 ? 3 : 0;
            if (n_new == 0) continue;
            common_ngram_cache_update(dynamic, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, earlier, n_new, false);
            call("{\"action\": \"update\", \"cache\": \"dynamic\", \"tokens\": " + list(earlier) + ", \"n_new\": " + std::to_string(n_new) + "}");
        }
        check_saved("static", fixed);
        check_saved("dynamic", dynamic);
        for (int length : {0, 1, 2, 3, 4, 5, 9, 30, 80}) {
            Tokens history = sequence(length);
            common_ngram_cache context;
            common_ngram_cache_update(context, LLAMA_NGRAM_MIN, LLAMA_NGRAM_MAX, history, history.size(), false);
            // llama.cpp reads before the beginning of a shorter history.
            if (length > 0 && length < LLAMA_NGRAM_MAX) continue;
            const int n_draft = 1 + round % 12;
            const Tokens one = peer_draft(history, n_draft, context, dynamic, fixed);
            const Tokens two = peer_draft(history, n_draft, reordered(context), reordered(dynamic), reordered(fixed));
            const Tokens ours = drafted(history, n_draft);
            if (one != two) {
                ++n_ambiguous;
                continue;
            }
            if (ours != one) {
                fprintf(stderr, "after %s: ours %s, llama.cpp's %s\n", list(history).c_str(), list(ours).c_str(), list(one).c_str());
                return 1;
            }
            ++n_compared;
            n_tokens += static_cast<int>(ours.size());
            n_empty += ours.empty();
        }
    }
    foredraft_unload(nullptr);
    printf("%d drafts of %d tokens, %d of them empty; %d depend on the order of a map\n", n_compared, n_tokens, n_empty, n_ambiguous);
    return n_compared > 150 && n_tokens > 300 ? 0 : 1;
}
