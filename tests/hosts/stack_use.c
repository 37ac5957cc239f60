/* The stack that each function needs.
 *   stack_use MODEL measure           calls each function on a thread whose memory is filled with a pattern: prints the bytes that it used
 *   stack_use MODEL signals SECONDS   calls them on threads that get a signal every 500 us
 * Each thread has a stack of 128 KiB. The bytes are all that it took, the variables of threads included, which are there, too.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "foredraft.h"

enum { GUARD = 64 << 10, LARGE = 1 << 20, SMALL = 128 << 10, PATTERN = 0xa5 };

static foredraft_engine *engine;
static char config[4096], session[512], cache[512], merged[512];
static unsigned long long newest;

/* A function, and its argument; for a poll and a cancel, the newest request is added. */
typedef struct {
    const char *name, *argument;
    char *(*function)(foredraft_engine *, const char *);
    const char *filename;
} call;

static char *load(foredraft_engine *loaded, const char *argument) {
    return foredraft_load(loaded, argument) == FOREDRAFT_OK ? strdup("{\"success\":true}") : foredraft_status(loaded);
}

static char *status(foredraft_engine *loaded, const char *argument) {
    (void) argument;
    return foredraft_status(loaded);
}

static char *unload(foredraft_engine *loaded, const char *argument) {
    (void) argument;
    foredraft_unload(loaded);
    return strdup("{\"success\":true}");
}

#define MESSAGES "\"messages\": [{\"role\": \"user\", \"content\": \"Repeat after me: Mia has a kite.\"}]"
#define TOOLS                                                                                                                            \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\","  \
    "\"properties\": {\"a\": {\"type\": \"array\", \"items\": {\"enum\": [1, \"b\", null]}}}, \"required\": [\"a\"]}}}]"

static const call CALLS[] = {
    { "load", config, load, NULL },
    { "tokenize", "{\"content\": \"Mia has a kite. Mia has a kite. Mia has a kite. Mia has a kite.\"}", foredraft_tokenize, NULL },
    { "detokenize", "{\"tokens\": [300, 301, 302]}", foredraft_detokenize, NULL },
    { "apply_template", "{" MESSAGES "," TOOLS "}", foredraft_apply_template, NULL },
    { "embed", "{\"content\": \"Mia has a kite.\"}", foredraft_embed, NULL },
    { "complete", "{" MESSAGES ", \"n_predict\": 8, \"n_probs\": 2}", foredraft_complete, NULL },
    { "complete, tools", "{" MESSAGES "," TOOLS ", \"tool_choice\": \"required\", \"n_predict\": 24}", foredraft_complete, NULL },
    { "complete, grammar", "{\"prompt\": \"Tom\", \"n_predict\": 8, \"grammar\": \"root ::= ([a-z]+ \\\" \\\")+ (\\\"x\\\" | \\\"y\\\"){0,9}\"}",
      foredraft_complete, NULL },
    { "complete, beams", "{\"prompt\": \"Tom\", \"n_predict\": 8, \"n_beams\": 3}", foredraft_complete, NULL },
    { "complete, choices", "{\"prompt\": \"Tom\", \"choices\": [\"yes\", \"no\"]}", foredraft_complete, NULL },
    { "submit", "{" MESSAGES "," TOOLS ", \"n_predict\": 24, \"id_slot\": 0}", foredraft_submit, NULL },
    { "poll", "\"timeout_ms\": 10000}", foredraft_poll, NULL },
    { "status", "", status, NULL },
    { "cancel", "\"timeout_ms\": 0}", foredraft_cancel, NULL },
    { "session_save", "{\"id_slot\": 0, \"filename\": \"", foredraft_session_save, session },
    { "session_load", "{\"id_slot\": 0, \"filename\": \"", foredraft_session_load, session },
    { "lookup_create", "{\"text\": \"Mia has a kite. Mia has a kite. Mia has a kite.\", \"output\": \"", foredraft_lookup_create, cache },
    { "lookup_merge", "{\"output\": \"", foredraft_lookup_merge, merged },
    { "lookup_stats", "{\"text\": \"Mia has a kite. Mia has a kite. Mia has a kite.\", \"lookup_cache_static\": \"", foredraft_lookup_stats, merged },
    { "lookup_cache", "{\"action\": \"load\", \"cache\": \"static\", \"filename\": \"", foredraft_lookup_cache, cache },
    { "unload", "", unload, NULL },
    { "load that fails", "-m no/such.gguf -c 512", load, NULL },
};
enum { N_CALLS = sizeof CALLS / sizeof *CALLS };

static void *use(void *which) {
    const call *called = which;
    char argument[8192], *answer;
    const char *id;
    if (called->function == foredraft_poll || called->function == foredraft_cancel) {
        snprintf(argument, sizeof argument, "{\"id\": %llu, %s", newest, called->argument);
    } else if (called->function == foredraft_lookup_merge) {
        snprintf(argument, sizeof argument, "%s%s\", \"inputs\": [\"%s\", \"%s\"]}", called->argument, merged, cache, cache);
    } else {
        snprintf(argument, sizeof argument, "%s%s%s", called->argument, called->filename ? called->filename : "", called->filename ? "\"}" : "");
    }
    answer = called->function(engine, argument);
    id = strstr(answer, "\"id\":");
    if (called->function == foredraft_submit && id != NULL) {
        newest = strtoull(id + 5, NULL, 10);
    }
    if (strstr(answer, "\"success\":true") == NULL && called->function != status && strcmp(called->name, "load that fails") != 0) {
        fprintf(stderr, "%s: %s\n", called->name, answer);
        exit(1);
    }
    foredraft_string_free(answer);
    return NULL;
}

/* Starts a thread on that stack, with a guard below it. */
static pthread_t start(unsigned char *stack, size_t size, void *(*work)(void *), void *argument) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, size);
    if (pthread_create(&thread, &attributes, work, argument) != 0) {
        exit(3);
    }
    return thread;
}

static unsigned char *new_stack(size_t size) {
    unsigned char *memory = mmap(NULL, GUARD + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + GUARD, size, PROT_READ | PROT_WRITE) != 0) {
        exit(3);
    }
    return memory + GUARD;
}

static void measure(void) {
    unsigned char *stack = new_stack(LARGE);
    int i;
    for (i = 0; i < N_CALLS; ++i) {
        size_t unused = 0;
        memset(stack, PATTERN, LARGE);
        /* Below the stack that the thread knows of is more memory, so that a need beyond it is counted, too. */
        pthread_join(start(stack + LARGE - SMALL, SMALL, use, (void *) &CALLS[i]), NULL);
        while (unused < LARGE && stack[unused] == PATTERN) {
            ++unused;
        }
        printf("%zu %s\n", (size_t) LARGE - unused, CALLS[i].name);
        fflush(stdout);
    }
}

static atomic_int has_ended, n_signals;

static void count(int signal) {
    (void) signal;
    atomic_fetch_add(&n_signals, 1);
}

static void *use_and_say(void *which) {
    use(which);
    atomic_store(&has_ended, 1);
    return NULL;
}

static void under_signals(int seconds) {
    unsigned char *stack = new_stack(SMALL);
    struct sigaction action;
    time_t end = time(NULL) + seconds;
    int n_calls = 0;
    memset(&action, 0, sizeof action);
    action.sa_handler = count;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    while (time(NULL) < end) {
        int i;
        for (i = 0; i < N_CALLS; ++i, ++n_calls) {
            pthread_t thread;
            atomic_store(&has_ended, 0);
            thread = start(stack, SMALL, use_and_say, (void *) &CALLS[i]);
            while (!atomic_load(&has_ended)) {
                pthread_kill(thread, SIGUSR1);
                usleep(500);
            }
            pthread_join(thread, NULL);
        }
    }
    printf("%d calls, %d signals\n", n_calls, atomic_load(&n_signals));
}

int main(int argc, char **argv) {
    const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    if (argc < 3) {
        return 2;
    }
    snprintf(config, sizeof config,
             "{\"model\": \"%s\", \"n_threads\": 2, \"n_threads_batch\": 2, \"n_ctx\": 512, \"chat_template\": \"chatml\","
             " \"embedding\": true, \"log_level\": \"none\"}",
             argv[1]);
    snprintf(session, sizeof session, "%s/stack_use-%d-session", folder, (int) getpid());
    snprintf(cache, sizeof cache, "%s/stack_use-%d-cache", folder, (int) getpid());
    snprintf(merged, sizeof merged, "%s/stack_use-%d-merged", folder, (int) getpid());
    engine = foredraft_engine_new();
    if (strcmp(argv[2], "measure") == 0) {
        measure();
    } else {
        under_signals(argc > 3 ? atoi(argv[3]) : 1);
    }
    foredraft_engine_free(engine);
    remove(session), remove(cache), remove(merged);
    return 0;
}
