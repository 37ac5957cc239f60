/* A host that uses most of the library. Sanitizers, fault injection, the soak and the chaos run it.
 *   life FOLDER TARGET DRAFT once              everything, once, and again after the shim (fault_shim.c) let calls fail
 *   life FOLDER TARGET DRAFT save KIND         saves two states to FOLDER/file in turn, forever
 *   life FOLDER TARGET DRAFT soak N_REQUESTS N_LOADS
 *   life FOLDER TARGET DRAFT chaos SECONDS     random calls on several threads
 *   life FOLDER TARGET DRAFT bug               a use after free: a sanitizer must see it
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "foredraft.h"

typedef char *(*function)(foredraft_engine *, const char *);

static const char *folder, *target, *draft;
static int quiet;

static char *format(const char *text, ...) {
    va_list arguments;
    char *made = NULL;
    va_start(arguments, text);
    if (vasprintf(&made, text, arguments) < 0) {
        abort();
    }
    va_end(arguments);
    return made;
}

static int succeeded(const char *answer) {
    return strncmp(answer, "{\"success\":true", 15) == 0;
}

/* Calls and prints the name and whether it succeeded. Frees the request. */
static int step(const char *name, foredraft_engine *engine, function call, char *request) {
    char *answer = call(engine, request);
    const int success = succeeded(answer);
    if (!quiet) {
        printf("%s %d%s\n", name, success, !success && strstr(answer, "\"error\":\"") == NULL ? " without an error" : "");
    }
    foredraft_string_free(answer);
    free(request);
    return success;
}

static int load(foredraft_engine *engine, const char *more) {
    char *config = format("{\"model\": \"%s\", \"model_draft\": \"%s\", \"n_threads\": 1, \"n_threads_batch\": 1, \"n_ctx\": 256, \"n_parallel\": 2, "
                          "\"log_level\": \"none\"%s}", target, draft, more);
    const int code = foredraft_load(engine, config);
    free(config);
    return code;
}

/* The number after `key` in an answer. */
static unsigned long long number(const char *answer, const char *key) {
    const char *at = strstr(answer, key);
    return at == NULL ? 0 : strtoull(at + strlen(key), NULL, 10);
}

/* Submits, polls to the end, and appends the text to `text` as it stands in the JSON. Returns whether it ended normally. */
static int streamed(foredraft_engine *engine, const char *request, char *text, size_t size, int cancels) {
    char *answer = foredraft_submit(engine, request), *command;
    int finished = 0, is_right = succeeded(answer);
    const unsigned long long id = number(answer, "\"id\":");
    foredraft_string_free(answer);
    if (!is_right) {
        return 0;
    }
    command = format("{\"id\": %llu, \"timeout_ms\": 20000}", id);
    if (cancels) {
        foredraft_string_free(foredraft_cancel(engine, command));
    }
    text[0] = 0;
    while (!finished) {
        const char *at;
        answer = foredraft_poll(engine, command);
        if (!succeeded(answer)) {
            is_right = 0;
        }
        finished = !succeeded(answer) || strstr(answer, "\"finished\":true") != NULL;
        is_right = is_right && strstr(answer, "\"stop_type\":\"error\"") == NULL && strstr(answer, "\"stop_type\":\"cancelled\"") == NULL;
        for (at = answer; (at = strstr(at, "{\"content\":\"")) != NULL;) {
            const char *end = at += 12;
            while (*end != '"') {
                end += *end == '\\' ? 2 : 1;
            }
            if (strlen(text) + (size_t) (end - at) < size) {
                strncat(text, at, (size_t) (end - at));
            }
        }
        foredraft_string_free(answer);
    }
    free(command);
    return is_right;
}

/* Everything once. Returns the number of steps that failed. */
static int whole_life(void) {
    foredraft_engine *engine = foredraft_engine_new();
    static char text[1 << 16];
    int n_failed = 0, code;
    char *request;
    n_failed += !step("create", engine, foredraft_lookup_create, format("{\"tokens\": [1, 2, 3, 1, 2, 3, 1, 2, 4], \"output\": \"%s/a\"}", folder));
    code = load(engine, "");
    if (!quiet) {
        printf("load %d\n", code);
    }
    if (code != 0) {
        foredraft_engine_free(engine);
        return n_failed + 1;
    }
    n_failed += !step("create", engine, foredraft_lookup_create, format("{\"text\": \"Once upon a time, a time upon once\", \"output\": \"%s/b\"}", folder));
    n_failed += !step("merge", engine, foredraft_lookup_merge, format("{\"inputs\": [\"%s/b\", \"%s/b\"], \"output\": \"%s/c\"}", folder, folder, folder));
    n_failed += !step("stats", engine, foredraft_lookup_stats, format("{\"text\": \"Once upon a time, a time\", \"lookup_cache_static\": \"%s/c\"}", folder));
    n_failed += !step("cache load", engine, foredraft_lookup_cache, format("{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"%s/c\"}", folder));
    n_failed += !step("complete", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon a time\", \"n_predict\": 12, \"id_slot\": 0, \"speculative\": {\"type\": \"draft\"}}"));
    n_failed += !step("complete", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon a time\", \"n_predict\": 12, \"speculative\": {\"type\": \"ngram-cache\"}, \"n_probs\": 2, \"grammar\": \"root ::= [a-zA-Z ,.]*\"}"));
    n_failed += !step("session save", engine, foredraft_session_save, format("{\"id_slot\": 0, \"filename\": \"%s/s\"}", folder));
    n_failed += !step("session load", engine, foredraft_session_load, format("{\"id_slot\": 1, \"filename\": \"%s/s\"}", folder));
    n_failed += !step("cache save", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s/d\"}", folder));
    n_failed += !step("tokenize", engine, foredraft_tokenize, strdup("{\"text\": \"Once upon\"}"));
    n_failed += !step("template", engine, foredraft_apply_template, strdup("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"chat_template\": \"chatml\"}"));
    n_failed += !step("chat", engine, foredraft_complete, strdup("{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"chat_template\": \"chatml\", \"n_predict\": 8, "
        "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}}}}"));
    request = strdup("{\"prompt\": \"Once\", \"n_predict\": 20, \"seed\": 3}");
    n_failed += !streamed(engine, request, text, sizeof text, 0);
    streamed(engine, request, text, sizeof text, 1);
    free(request);
    /* Errors. */
    n_failed += step("no JSON", engine, foredraft_complete, strdup("{"));
    n_failed += step("no prompt", engine, foredraft_complete, strdup("{\"prompt\": 7}"));
    n_failed += step("no file", engine, foredraft_session_load, strdup("{\"id_slot\": 0, \"filename\": \"/nowhere/s\"}"));
    n_failed += step("no id", engine, foredraft_poll, strdup("{\"id\": 12345}"));
    foredraft_string_free(foredraft_status(engine));
    foredraft_unload(engine);
    n_failed += step("unloaded", engine, foredraft_tokenize, strdup("{\"text\": \"Once upon\"}"));
    foredraft_engine_free(engine);
    return n_failed;
}

static int once(void) {
    void (*const arm)(int) = (void (*)(int)) dlsym(RTLD_DEFAULT, "fault_arm");
    int (*const count)(void) = (int (*)(void)) dlsym(RTLD_DEFAULT, "fault_count");
    int n_failed;
    if (arm != NULL) {
        arm(1);
        n_failed = whole_life();
        printf("calls %d\n", count());
        arm(0);
        printf("failed %d\n", n_failed);
    }
    quiet = arm != NULL;
    n_failed = whole_life();
    printf("again %d\n", n_failed);
    return 0;
}

static const char *const SAVED[] = { "1, 2, 3, 1, 2, 3, 1", "5, 6, 7, 8, 9, 5, 6, 7, 10, 11" };

/* Saves two states in turn. FOLDER/0 and FOLDER/1 are what the file must be. */
static int save(const char *kind) {
    foredraft_engine *engine = foredraft_engine_new();
    int turn, round, is_session = strcmp(kind, "session") == 0, is_cache = strcmp(kind, "cache") == 0;
    quiet = 1;
    if ((is_session || is_cache) && load(engine, "") != 0) {
        return 3;
    }
    for (turn = 0; turn < 2; ++turn) {
        step("", engine, foredraft_lookup_create, format("{\"tokens\": [%s], \"output\": \"%s/n%d\"}", SAVED[turn], folder, turn));
        if (is_session) {
            step("", engine, foredraft_complete, format("{\"prompt\": \"%s\", \"n_predict\": 4, \"id_slot\": %d}", turn ? "Once upon a time" : "A dog", turn));
        }
    }
    for (round = -2;; ++round) {
        char *file = round < 0 ? format("%s/%d", folder, round + 2) : format("%s/file", folder);
        turn = round & 1;
        if (is_session) {
            step("", engine, foredraft_session_save, format("{\"id_slot\": %d, \"filename\": \"%s\"}", turn, file));
        } else if (is_cache) {
            step("", engine, foredraft_lookup_cache, format("{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"%s/n%d\"}", folder, turn));
            step("", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s\"}", file));
        } else if (strcmp(kind, "create") == 0) {
            step("", engine, foredraft_lookup_create, format("{\"tokens\": [%s], \"output\": \"%s\"}", SAVED[turn], file));
        } else {
            step("", engine, foredraft_lookup_merge, format("{\"inputs\": [\"%s/n%d\"], \"output\": \"%s\"}", folder, turn, file));
        }
        free(file);
        if (round == 1) {
            puts("ready");
            fflush(stdout);
        }
    }
}

/* The memory of this process that is not a file's, in KiB. */
static long memory(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = 0;
    while (fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "RssAnon:", 8) == 0) {
            kib = strtol(line + 8, NULL, 10);
        }
    }
    fclose(status);
    return kib;
}

static int soak(long n_requests, long n_loads) {
    static char text[1 << 16];
    foredraft_engine *engine = foredraft_engine_new();
    long i;
    quiet = 1;
    if (load(engine, "") != 0) {
        return 3;
    }
    for (i = 0; i <= n_requests; ++i) {
        char *request = format("{\"prompt\": \"Once %ld\", \"n_predict\": %ld, \"seed\": %ld%s}", i % 37, 1 + i % 3, i,
                               i % 4 == 0 ? ", \"speculative\": {\"type\": \"auto\"}" : i % 7 == 0 ? ", \"grammar\": \"root ::= [a-z ]*\"" : "");
        const int success = i % 5 == 0 ? step("", engine, foredraft_complete, strdup(request)) : streamed(engine, request, text, sizeof text, 0);
        free(request);
        if (!success) {
            printf("request %ld failed\n", i);
            return 1;
        }
        if (i > 0 && (i * 10) % n_requests == 0) {
            printf("| %ld requests | %ld KiB |\n", i, memory());
            fflush(stdout);
        }
    }
    foredraft_unload(engine);
    for (i = 1; i <= n_loads; ++i) {
        if (load(engine, "") != 0 || !step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once\", \"n_predict\": 1}"))) {
            printf("load %ld failed\n", i);
            return 1;
        }
        foredraft_unload(engine);
        if ((i * 10) % n_loads == 0) {
            printf("| %ld loads | %ld KiB |\n", i, memory());
            fflush(stdout);
        }
    }
    foredraft_engine_free(engine);
    return 0;
}

/* Chaos. Each engine is loaded and unloaded by one thread, and used by all. */
#define N_ENGINES 2
#define N_PROMPTS 6
static foredraft_engine *engines[N_ENGINES];
static char *solo[N_PROMPTS];
static time_t end_of_chaos;
static atomic_long n_right, n_calls, n_forks, n_loaded;
static atomic_int n_wrong;

static char *chaos_request(int index) {
    return format("{\"prompt\": \"Once upon a time %d\", \"n_predict\": 24, \"seed\": %d%s}", index, index,
                  index % 3 == 1 ? ", \"speculative\": {\"type\": \"auto\"}" : index % 3 == 2 ? ", \"speculative\": {\"type\": \"suffix\"}" : "");
}

static void *chaotic(void *argument) {
    unsigned seed = (unsigned) (size_t) argument;
    const int own = (int) seed < N_ENGINES ? (int) seed : -1;
    char *text = malloc(1 << 16);
    while (time(NULL) < end_of_chaos) {
        foredraft_engine *engine = engines[own >= 0 ? own : rand_r(&seed) % N_ENGINES];
        const int index = rand_r(&seed) % N_PROMPTS, what = rand_r(&seed) % 20;
        atomic_fetch_add(&n_calls, 1);
        if (own >= 0 && what < 2) {
            const struct timespec pause = { 0, (rand_r(&seed) % 200) * 1000000L };
            nanosleep(&pause, NULL);
            if (what == 0) {
                foredraft_unload(engine);
            }
            n_loaded += load(engine, "") == 0;
        } else if (what < 12) {
            char *request = chaos_request(index);
            const int cancels = what == 11;
            if (streamed(engine, request, text, 1 << 16, cancels) && !cancels) {
                atomic_fetch_add(&n_right, 1);
                if (strcmp(text, solo[index]) != 0) {
                    printf("another completion of %d: %s\n", index, text);
                    atomic_fetch_add(&n_wrong, 1);
                }
            }
            free(request);
        } else if (what < 14) {
            step("", engine, foredraft_session_save, format("{\"id_slot\": %d, \"filename\": \"%s/chaos\", \"timeout_ms\": 1000}", index % 2, folder));
        } else if (what < 15) {
            step("", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s/cache\"}", folder));
        } else if (what < 16) {
            /* The child may call nothing of the library, because other threads are inside calls: docs/limits.md. */
            const pid_t child = fork();
            if (child == 0) {
                _exit(0);
            }
            waitpid(child, NULL, 0);
            atomic_fetch_add(&n_forks, 1);
        } else if (what < 17) {
            foredraft_engine *other = foredraft_engine_new();
            step("", other, foredraft_lookup_create, format("{\"tokens\": [1, 2, 3], \"output\": \"%s/x%d\"}", folder, index));
            foredraft_engine_free(other);
        } else {
            foredraft_string_free(foredraft_status(engine));
        }
    }
    free(text);
    return NULL;
}

static int chaos(long seconds) {
    static char text[1 << 16];
    pthread_t threads[8];
    size_t i;
    long before;
    quiet = 1;
    for (i = 0; i < N_ENGINES; ++i) {
        engines[i] = foredraft_engine_new();
    }
    if (load(engines[0], "") != 0) {
        return 3;
    }
    for (i = 0; i < N_PROMPTS; ++i) {
        char *request = chaos_request((int) i);
        streamed(engines[0], request, text, sizeof text, 0);
        solo[i] = strdup(text);
        free(request);
    }
    before = memory();
    end_of_chaos = time(NULL) + seconds;
    for (i = 0; i < 8; ++i) {
        pthread_create(&threads[i], NULL, chaotic, (void *) i);
    }
    for (i = 0; i < 8; ++i) {
        pthread_join(threads[i], NULL);
    }
    for (i = 0; i < N_ENGINES; ++i) {
        foredraft_engine_free(engines[i]);
    }
    printf("| %ld s of chaos | %ld calls, %ld loads, %ld forks, %ld completions compared, %d different | %ld KiB before, %ld KiB after |\n", seconds,
           (long) n_calls, (long) n_loaded, (long) n_forks, (long) n_right, (int) n_wrong, before, memory());
    return n_wrong > 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 4 ? argv[4] : "";
    if (argc < 5) {
        return 2;
    }
    folder = argv[1];
    target = argv[2];
    draft = argv[3];
    if (strcmp(mode, "once") == 0) {
        return once();
    }
    if (strcmp(mode, "save") == 0 && argc > 5) {
        return save(argv[5]);
    }
    if (strcmp(mode, "soak") == 0 && argc > 6) {
        return soak(atol(argv[5]), atol(argv[6]));
    }
    if (strcmp(mode, "chaos") == 0 && argc > 5) {
        return chaos(atol(argv[5]));
    }
    if (strcmp(mode, "bug") == 0) {
        /* Inside the library: it writes to a buffer of its caller's that is gone. */
        char *answer = foredraft_status(NULL);
        foredraft_string_free(answer);
        return foredraft_tokenize(NULL, answer) == NULL;
    }
    return 2;
}
