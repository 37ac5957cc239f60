/* A host that uses most of the library. Sanitizers, fault injection, the soak and the chaos run it.
 *   life FOLDER TARGET DRAFT once              everything, once, and again after the shim (fault_shim.c) let calls fail
 *   life FOLDER TARGET DRAFT save KIND         saves two states to FOLDER/file in turn, forever
 *   life FOLDER TARGET DRAFT soak N_REQUESTS N_LOADS
 *   life FOLDER TARGET DRAFT chaos SECONDS     random calls on several threads
 *   life FOLDER TARGET DRAFT scarce WHAT       saves and loads without descriptors, space on the disk, or permission; and again with them
 *   life FOLDER TARGET DRAFT address MB        loads with so much more address space, and again without the limit
 *   life FOLDER TARGET DRAFT forks N           forks N times while other threads are in calls; the children call functions, too
 *   life FOLDER TARGET DRAFT bug               a use after free inside the library: the address sanitizer and Valgrind must see it
 *   life FOLDER TARGET DRAFT race              two threads write and read a request: the thread sanitizer must see it
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

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

/* Something that the system lacks, from its beginning to its end. Returns 0 if this system does not allow that. */
static int lack(const char *what, int begins) {
    const int is_disk = strcmp(what, "disk") == 0, is_folder = strcmp(what, "read-only") == 0;
    if (is_disk || is_folder) {
        static FILE *filler;
        char *path = format("%s/filler", folder);
        int works = 1;
        if (is_folder) {
            works = mount("", folder, "", MS_REMOUNT | (begins ? MS_RDONLY : 0), "") == 0;
        } else if (begins) {
            filler = fopen(path, "wb");
            setvbuf(filler, NULL, _IONBF, 0);
            while (fputc('x', filler) != EOF) { }
            works = errno == ENOSPC;
        } else {
            fclose(filler);
            works = remove(path) == 0;
        }
        free(path);
        return works;
    } else {
        const int is_size = strcmp(what, "file-size") == 0, resource = is_size ? RLIMIT_FSIZE : RLIMIT_NOFILE;
        static struct rlimit before;
        struct rlimit limit;
        if (!begins) {
            return setrlimit(resource, &before) == 0;
        }
        getrlimit(resource, &before);
        limit = before;
        limit.rlim_cur = 10;
        if (!is_size) {
            const int lowest = dup(0);
            close(lowest);
            limit.rlim_cur = (rlim_t) lowest;
        }
        signal(SIGXFSZ, SIG_IGN);
        return setrlimit(resource, &limit) == 0;
    }
}

/* Everything that writes files. Returns how many calls succeeded. */
static int n_saved(foredraft_engine *engine) {
    char *request, *answer;
    int n = step("", engine, foredraft_session_save, format("{\"id_slot\": 0, \"filename\": \"%s/session\"}", folder));
    n += step("", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s/cache\"}", folder));
    n += step("", engine, foredraft_lookup_create, format("{\"text\": \"Once upon a time\", \"output\": \"%s/created\"}", folder));
    n += step("", engine, foredraft_lookup_merge, format("{\"inputs\": [\"%s/created\", \"%s/created\"], \"output\": \"%s/merged\"}", folder, folder, folder));
    /* The completion is returned all the same, with the error of its file. */
    request = format("{\"prompt\": \"Once\", \"n_predict\": 2, \"id_slot\": 1, \"session_save\": \"%s/session2\"}", folder);
    answer = foredraft_complete(engine, request);
    n += succeeded(answer) && strstr(answer, "\"session_save\":{\"success\":false") == NULL;
    foredraft_string_free(answer);
    free(request);
    return n;
}

static char *content(const char *name, long *size) {
    char *path = format("%s/%s", folder, name), *bytes;
    FILE *file = fopen(path, "rb");
    *size = 0;
    free(path);
    if (file == NULL) {
        return NULL;
    }
    bytes = malloc(1 << 24);
    *size = (long) fread(bytes, 1, 1 << 24, file);
    fclose(file);
    return bytes;
}

static int scarce(const char *what) {
    static const char *const FILES[] = { "session", "cache", "created", "merged", "session2" };
    foredraft_engine *engine = foredraft_engine_new(), *other = foredraft_engine_new();
    const int has_disk = strcmp(what, "disk") == 0 || strcmp(what, "read-only") == 0;
    const int mounted = has_disk && mount("tmpfs", folder, "tmpfs", 0, "size=4m") == 0;
    char *before[5];
    long sizes[5], size;
    int i, n, is_right;
    quiet = 1;
    if (has_disk && !mounted) {
        printf("skipped: %s: %s\n", what, strerror(errno));
        return 0;
    }
    is_right = load(engine, "") == 0;
    is_right = is_right && step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon\", \"n_predict\": 3, \"id_slot\": 0}"));
    n = n_saved(engine);
    is_right = is_right && n == 5;
    for (i = 0; i < 5; ++i) {
        before[i] = content(FILES[i], &sizes[i]);
    }
    if (!lack(what, 1)) {
        printf("skipped: %s: %s\n", what, strerror(errno));
        return 0;
    }
    n = n_saved(engine);
    printf("%d of 5 saves without %s\n", n, what);
    is_right = is_right && n == 0;
    /* What needs nothing of it works. */
    is_right = is_right && step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon\", \"n_predict\": 3, \"id_slot\": 0}"));
    if (strcmp(what, "descriptors") == 0) {
        load(other, ""); /* Not refused if it shares the open model. */
        is_right = is_right && !step("", engine, foredraft_session_load, format("{\"id_slot\": 1, \"filename\": \"%s/session\"}", folder));
        is_right = is_right && !step("", engine, foredraft_lookup_cache, format("{\"action\": \"load\", \"cache\": \"dynamic\", \"filename\": \"%s/created\"}", folder));
    }
    is_right = lack(what, 0) && is_right;
    for (i = 0; i < 5; ++i) {
        char *after = content(FILES[i], &size);
        is_right = is_right && after != NULL && size == sizes[i] && memcmp(after, before[i], (size_t) size) == 0;
        free(after);
        free(before[i]);
    }
    n = n_saved(engine);
    is_right = is_right && n == 5 && load(other, "") == 0;
    is_right = is_right && step("", other, foredraft_session_load, format("{\"id_slot\": 1, \"filename\": \"%s/session\"}", folder));
    foredraft_engine_free(engine);
    foredraft_engine_free(other);
    if (mounted) {
        char *command = format("test -z \"$(find %s -name '*.part')\"", folder);
        is_right = system(command) == 0 && is_right;
        free(command);
        umount(folder);
    }
    printf("%s\n", is_right ? "nothing lost, all works again" : "failed");
    return !is_right;
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

/* Loads with little more address space than the process has. */
static int address_space(long mb) {
    foredraft_engine *engine = foredraft_engine_new();
    struct rlimit before, limit;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    int code, again;
    quiet = 1;
    if (fscanf(file, "%ld", &pages) != 1) {
        return 3;
    }
    fclose(file);
    getrlimit(RLIMIT_AS, &before);
    limit = before;
    limit.rlim_cur = (rlim_t) pages * (rlim_t) sysconf(_SC_PAGESIZE) + ((rlim_t) mb << 20);
    setrlimit(RLIMIT_AS, &limit);
    code = load(engine, "");
    if (code == 0) {
        step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon\", \"n_predict\": 3}"));
    }
    setrlimit(RLIMIT_AS, &before);
    again = load(engine, "");
    again = again == 0 && step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once upon\", \"n_predict\": 3}"));
    printf("load %d\nagain %d\n", code, again);
    foredraft_engine_free(engine);
    return !again;
}

/* The memory after the allocator has returned its free pages, in KiB. */
static long needed(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    return memory();
}

/* A row of the soak's table: the memory, and the memory after the allocator has returned its free pages. */
static void print_memory(long n, const char *what) {
    const long before = memory();
    printf("| %ld %s | %ld KiB | %ld KiB |\n", n, what, before, needed());
    fflush(stdout);
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
            print_memory(i, "requests");
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
            print_memory(i, "loads");
        }
    }
    foredraft_engine_free(engine);
    return 0;
}

/* Forks. */
static atomic_int is_forking;

/* Calls that take the library's locks for a moment. */
static void *busy(void *argument) {
    foredraft_engine *engine = argument;
    while (atomic_load(&is_forking)) {
        foredraft_engine *other = foredraft_engine_new();
        foredraft_string_free(foredraft_status(other));
        foredraft_string_free(foredraft_status(engine));
        foredraft_string_free(foredraft_tokenize(engine, "{\"text\": \"Once upon\"}"));
        foredraft_string_free(foredraft_submit(engine, "{\"prompt\": \"Once\", \"n_predict\": 1}"));
        foredraft_string_free(foredraft_submit(engine, "{\"prompt\": 7}"));
        foredraft_set_log_callback(NULL, NULL);
        foredraft_engine_free(other);
    }
    return NULL;
}

/* A child that nothing is missing in: everything works. */
static int whole_child(void) {
    foredraft_engine *engine = foredraft_engine_new();
    int is_right = load(engine, "") == 0;
    is_right = is_right && step("", engine, foredraft_complete, strdup("{\"prompt\": \"Once\", \"n_predict\": 4}"));
    foredraft_engine_free(engine);
    return is_right;
}

/* A child whose parent had threads and calls: each function answers. Returns whether each answer says why. */
static int cut_off_child(foredraft_engine *engine) {
    static const function FUNCTIONS[] = { foredraft_complete, foredraft_submit, foredraft_poll, foredraft_cancel, foredraft_tokenize,
        foredraft_apply_template, foredraft_session_save, foredraft_lookup_cache, foredraft_lookup_create };
    foredraft_engine *other = foredraft_engine_new();
    foredraft_engine *const both[] = { engine, other };
    int n_right = 0;
    size_t i, k;
    for (i = 0; i < 2; ++i) {
        char *status = foredraft_status(both[i]);
        n_right += strstr(status, "\"state\":\"failed\"") != NULL && strstr(status, "forked") != NULL;
        foredraft_string_free(status);
        for (k = 0; k < sizeof FUNCTIONS / sizeof *FUNCTIONS; ++k) {
            char *answer = FUNCTIONS[k](both[i], "{}");
            n_right += strstr(answer, "\"code\":\"not_initialized\"") != NULL && strstr(answer, "forked") != NULL;
            foredraft_string_free(answer);
        }
        n_right += load(both[i], "") == FOREDRAFT_NOT_INITIALIZED;
        foredraft_load_async(both[i], "{}");
        foredraft_unload(both[i]);
        foredraft_set_update_callback(both[i], NULL, NULL);
        foredraft_set_log_callback(NULL, NULL);
    }
    foredraft_engine_free(other);
    return n_right == 2 * (int) (2 + sizeof FUNCTIONS / sizeof *FUNCTIONS);
}

/* Runs a child, which its alarm ends if it waits forever. 0: it was right, 1: not, 2: it did not end by itself. */
static int child_result(foredraft_engine *engine) {
    int status;
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(60);
        if (engine == NULL ? whole_child() : cut_off_child(engine)) {
            exit(0); /* With the library's exit handlers. */
        }
        _exit(1);
    }
    waitpid(child, &status, 0);
    return !WIFEXITED(status) ? 2 : WEXITSTATUS(status) != 0;
}

/* `loaded`: with a model. Otherwise a child has the whole library if no thread was inside a call at that moment. */
static int forks_between_calls(long n, int loaded, long results[3]) {
    foredraft_engine *engine = foredraft_engine_new();
    pthread_t threads[4];
    size_t i;
    if (loaded && load(engine, "") != 0) {
        return 0;
    }
    atomic_store(&is_forking, 1);
    for (i = 0; i < 4; ++i) {
        pthread_create(&threads[i], NULL, busy, engine);
    }
    for (; n > 0; --n) {
        const int result = child_result(engine);
        results[result == 1 && !loaded ? 0 : result] += 1;
    }
    atomic_store(&is_forking, 0);
    for (i = 0; i < 4; ++i) {
        pthread_join(threads[i], NULL);
    }
    foredraft_engine_free(engine);
    return 1;
}

static int forks(long n) {
    long results[3] = { 0, 0, 0 };
    int before, after;
    quiet = 1;
    before = child_result(NULL);
    if (!forks_between_calls(n / 2, 1, results) || !forks_between_calls(n - n / 2, 0, results)) {
        return 3;
    }
    after = child_result(NULL);
    printf("| forks while four threads call | %ld children | %ld answered each call, %ld wrongly, %ld waited forever |\n", n, results[0], results[1],
           results[2]);
    printf("| forks while nothing is loaded | 2 children | %s |\n", before == 0 && after == 0 ? "both loaded and completed" : "failed");
    return before != 0 || after != 0 || results[1] + results[2] > 0;
}

/* Numbers of a GGUF file, for machines that store the lowest byte first. */
static void put(FILE *file, unsigned long long number, int n_bytes) {
    for (; n_bytes > 0; --n_bytes, number >>= 8) {
        fputc((int) (number & 255), file);
    }
}

static void put_text(FILE *file, const char *text) {
    put(file, strlen(text), 8);
    fputs(text, file);
}

/* Writes FOLDER/lora: an adapter of rank 2 on the attention outputs of the target's 6 layers, with pseudo-random weights. */
static void write_adapter(void) {
    static const char *const KEYS[] = { "general.type", "adapter", "general.architecture", "llama", "adapter.type", "lora" };
    char *path = format("%s/lora", folder);
    FILE *file = fopen(path, "wb");
    const float alpha = 2;
    unsigned state = 1;
    int i;
    fputs("GGUF", file);
    put(file, 3, 4);
    put(file, 12, 8);
    put(file, 4, 8);
    for (i = 0; i < 6; i += 2) {
        put_text(file, KEYS[i]);
        put(file, 8, 4);
        put_text(file, KEYS[i + 1]);
    }
    put_text(file, "adapter.lora.alpha");
    put(file, 6, 4);
    fwrite(&alpha, sizeof alpha, 1, file);
    for (i = 0; i < 12; ++i) {
        char *name = format("blk.%d.attn_output.weight.lora_%c", i / 2, "ab"[i % 2]);
        put_text(file, name);
        free(name);
        put(file, 2, 4);
        put(file, i % 2 == 0 ? 256 : 2, 8);
        put(file, i % 2 == 0 ? 2 : 256, 8);
        put(file, 0, 4);
        put(file, 2048ULL * (unsigned) i, 8);
    }
    while (ftell(file) % 32 != 0) {
        fputc(0, file);
    }
    for (i = 0; i < 12 * 512; ++i) {
        const float weight = ((float) ((state = state * 1664525 + 1013904223) >> 8) / (1 << 23) - 1) * 0.15f;
        fwrite(&weight, sizeof weight, 1, file);
    }
    fclose(file);
    free(path);
}

/* Chaos. Each engine is loaded and unloaded by one thread, and used by all. */
#define N_ENGINES 2
#define N_PROMPTS 8
static foredraft_engine *engines[N_ENGINES];
static char *solo[N_PROMPTS];
static time_t end_of_chaos;
static atomic_long n_right, n_calls, n_forks, n_loaded, n_freed;
static char *with_adapter;
static atomic_int n_wrong;

static char *chaos_request(int index) {
    /* Prompts differ in their adapter's scale. */
    return format("{\"prompt\": \"Once upon a time %d\", \"n_predict\": 24, \"seed\": %d, \"lora\": [{\"id\": 0, \"scale\": %s}]%s}", index, index,
                  index % 4 == 3 ? "1" : index % 4 == 2 ? "-0.5" : "0",
                  index % 3 == 1 ? ", \"speculative\": {\"type\": \"auto\"}" : index % 3 == 2 ? ", \"speculative\": {\"type\": \"suffix\"}" : "");
}

/* Completes a prompt, and compares the text with its solo run. */
static void compared(foredraft_engine *engine, int index, char *text, int cancels) {
    char *request = chaos_request(index);
    if (streamed(engine, request, text, 1 << 16, cancels) && !cancels) {
        atomic_fetch_add(&n_right, 1);
        if (strcmp(text, solo[index]) != 0) {
            printf("another completion of %d: %s\n", index, text);
            atomic_fetch_add(&n_wrong, 1);
        }
    }
    free(request);
}

/* One random call. `own`: the engine that this thread loads and unloads, or -1. */
static void chaotic_call(int own, unsigned *seed, char *text) {
    foredraft_engine *engine = engines[own >= 0 ? own : rand_r(seed) % N_ENGINES];
    const int index = rand_r(seed) % N_PROMPTS, what = rand_r(seed) % 20;
    atomic_fetch_add(&n_calls, 1);
    if (own >= 0 && what < 2) {
        const struct timespec pause = { 0, (rand_r(seed) % 200) * 1000000L };
        nanosleep(&pause, NULL);
        if (what == 0) {
            foredraft_unload(engine);
        }
        n_loaded += load(engine, with_adapter) == 0;
    } else if (what < 12) {
        compared(engine, index, text, what == 11);
    } else if (what < 13) {
        step("", engine, foredraft_session_load, format("{\"id_slot\": %d, \"filename\": \"%s/chaos\", \"timeout_ms\": 1000}", index % 2, folder));
    } else if (what < 14) {
        step("", engine, foredraft_session_save, format("{\"id_slot\": %d, \"filename\": \"%s/chaos\", \"timeout_ms\": 1000}", index % 2, folder));
    } else if (what < 15) {
        step("", engine, foredraft_lookup_cache, format("{\"action\": \"save\", \"cache\": \"dynamic\", \"filename\": \"%s/cache\"}", folder));
    } else if (what < 16) {
        atomic_fetch_add(&n_forks, 1);
        if (child_result(engine) == 2) {
            printf("a forked child waited forever\n");
            atomic_fetch_add(&n_wrong, 1);
        }
    } else if (what < 17) {
        foredraft_engine *other = foredraft_engine_new();
        step("", other, foredraft_lookup_create, format("{\"tokens\": [1, 2, 3], \"output\": \"%s/x%d\"}", folder, index));
        if (rand_r(seed) % 8 == 0 && load(other, with_adapter) == 0) {
            atomic_fetch_add(&n_freed, 1);
            compared(other, index, text, 0);
        }
        foredraft_engine_free(other);
    } else {
        foredraft_string_free(foredraft_status(engine));
    }
}

/* Held for reading by each call of chaos, and for writing while the memory is measured. */
static pthread_rwlock_t measuring;

static void *chaotic(void *argument) {
    unsigned seed = (unsigned) (size_t) argument;
    const int own = (int) seed < N_ENGINES ? (int) seed : -1;
    char *text = malloc(1 << 16);
    while (time(NULL) < end_of_chaos) {
        pthread_rwlock_rdlock(&measuring);
        chaotic_call(own, &seed, text);
        pthread_rwlock_unlock(&measuring);
    }
    free(text);
    return NULL;
}

/* The memory while no call runs: bytes that are allocated, and memory after the allocator returned its free pages, in KiB. */
struct sample {
    long allocated, needed;
};

static long allocated(void) {
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 info = mallinfo2();
    return (long) ((info.uordblks + info.hblkhd) >> 10);
#endif
#endif
    return 0;
}

/* Measures with the engines as they are, and when nothing is loaded; then loads both again. */
static struct sample sampled(long seconds) {
    struct sample sample;
    long loaded;
    size_t i;
    pthread_rwlock_wrlock(&measuring);
    loaded = needed();
    for (i = 0; i < N_ENGINES; ++i) {
        foredraft_unload(engines[i]);
    }
    sample.needed = needed();
    sample.allocated = allocated();
    for (i = 0; i < N_ENGINES; ++i) {
        load(engines[i], with_adapter);
    }
    printf("| %ld s, %ld calls, %ld loads | %ld KiB | nothing loaded: %ld KiB, of which %ld KiB are allocated |\n", seconds, (long) n_calls, (long) n_loaded, loaded,
           sample.needed, sample.allocated);
    fflush(stdout);
    pthread_rwlock_unlock(&measuring);
    return sample;
}

static int by_size(const void *left, const void *right) {
    const long a = *(const long *) left, b = *(const long *) right;
    return (a > b) - (a < b);
}

/* The median of a field (its offset) of some samples. */
static long median(const struct sample *samples, size_t n, size_t field) {
    long *values = malloc(n * sizeof *values), middle;
    size_t i;
    for (i = 0; i < n; ++i) {
        memcpy(&values[i], (const char *) &samples[i] + field, sizeof *values);
    }
    qsort(values, n, sizeof *values, by_size);
    middle = values[n / 2];
    free(values);
    return middle;
}

/* Prints the medians of the third and the fourth quarter of the samples. Returns whether the memory grew between them. */
static int grew(const struct sample *samples, size_t n) {
    const struct sample *third = samples + n / 2, *fourth = samples + n - n / 4;
    const long needed_before = median(third, n / 4, offsetof(struct sample, needed)), needed_after = median(fourth, n / 4, offsetof(struct sample, needed));
    const long before = median(third, n / 4, offsetof(struct sample, allocated)), after = median(fourth, n / 4, offsetof(struct sample, allocated));
    const int grows = after > before + before / 50 + 64 || needed_after > needed_before + needed_before / 20 + 1024;
    printf("| nothing loaded, medians of the third and the fourth quarter | %ld and %ld KiB, of which %ld and %ld KiB are allocated | %s |\n", needed_before,
           needed_after, before, after, grows ? "it grows" : "flat");
    return grows;
}

/* The seconds between measurements of the memory. */
enum { SAMPLED_EVERY = 60, MOST_SAMPLES = 10000 };

static int chaos(long seconds) {
    static char text[1 << 16];
    static struct sample samples[MOST_SAMPLES];
    pthread_rwlockattr_t attributes;
    pthread_t threads[8];
    size_t i, n_samples = 0;
    long before, after;
    int grows = 0;
    quiet = 1;
    write_adapter();
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    /* Otherwise the calls never leave a gap. */
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&measuring, &attributes);
    with_adapter = format(", \"lora\": [{\"path\": \"%s/lora\", \"scale\": 0}]", folder);
    for (i = 0; i < N_ENGINES; ++i) {
        engines[i] = foredraft_engine_new();
    }
    if (load(engines[0], with_adapter) != 0) {
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
    while (n_samples < MOST_SAMPLES && ((long) n_samples + 1) * SAMPLED_EVERY < seconds) {
        const time_t begun = end_of_chaos - seconds, next = begun + ((long) n_samples + 1) * SAMPLED_EVERY;
        while (time(NULL) < next) {
            sleep(1);
        }
        samples[n_samples] = sampled(time(NULL) - begun);
        ++n_samples;
    }
    for (i = 0; i < 8; ++i) {
        pthread_join(threads[i], NULL);
    }
    for (i = 0; i < N_ENGINES; ++i) {
        foredraft_engine_free(engines[i]);
    }
    after = memory();
    if (n_samples >= 8) {
        grows = grew(samples, n_samples);
    }
    printf("| %ld s of chaos | %ld calls, %ld loads, %ld more engines loaded and freed, %ld forks, %ld completions compared, %d different | "
           "%ld KiB before, %ld KiB after, of which the allocator needs %ld KiB |\n", seconds, (long) n_calls, (long) n_loaded, (long) n_freed, (long) n_forks,
           (long) n_right, (int) n_wrong, before, after, needed());
    return n_wrong > 0 || grows;
}

static char raced[] = "{\"text\": \"Once\"}";

static void *writes(void *unused) {
    int i;
    for (i = 0; i < 100000; ++i) {
        raced[10] = (char) ('a' + i % 26);
    }
    return unused;
}

/* The library reads what another thread writes. */
static int race(void) {
    pthread_t thread;
    int i;
    pthread_create(&thread, NULL, writes, NULL);
    for (i = 0; i < 1000; ++i) {
        foredraft_string_free(foredraft_tokenize(NULL, raced));
    }
    pthread_join(thread, NULL);
    return 0;
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
    if (strcmp(mode, "scarce") == 0 && argc > 5) {
        return scarce(argv[5]);
    }
    if (strcmp(mode, "address") == 0 && argc > 5) {
        return address_space(atol(argv[5]));
    }
    if (strcmp(mode, "forks") == 0 && argc > 5) {
        return forks(atol(argv[5]));
    }
    if (strcmp(mode, "race") == 0) {
        return race();
    }
    if (strcmp(mode, "bug") == 0) {
        /* Inside the library: it writes to a buffer of its caller's that is gone. */
        char *answer = foredraft_status(NULL);
        foredraft_string_free(answer);
        return foredraft_tokenize(NULL, answer) == NULL;
    }
    return 2;
}
