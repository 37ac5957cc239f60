/* Forks while other threads are in calls. */
#include "host.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

int child_result(foredraft_engine *engine) {
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

int forks(long n) {
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
