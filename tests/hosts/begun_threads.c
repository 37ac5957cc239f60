/* Loads while each thread that is started begins late, and counts the values with destructors that threads register after the load has
   returned: each takes memory, and glibc ends the process if there is none.
     begun_threads MODEL   prints the count for an engine in this process, and for an isolated one */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "foredraft.h"

enum { LATE_MS = 100 };

static atomic_int n_late, n_registered;

struct start {
    void *(*work)(void *);
    void *argument;
};

static void *begin_late(void *argument) {
    const struct start start = *(struct start *) argument;
    free(argument);
    usleep(LATE_MS * 1000);
    atomic_fetch_add(&n_late, 1);
    return start.work(start.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument) {
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*) (void *), void *);
    struct start *start = malloc(sizeof *start);
    *(void **) &create = dlsym(RTLD_NEXT, "pthread_create");
    *start = (struct start) { work, argument };
    return create(thread, attributes, begin_late, start);
}

/* What Rust and C++ call for each value of a thread that has a destructor. */
int __cxa_thread_atexit_impl(void (*destroy)(void *), void *value, void *library) {
    int (*add)(void (*)(void *), void *, void *);
    *(void **) &add = dlsym(RTLD_NEXT, "__cxa_thread_atexit_impl");
    atomic_fetch_add(&n_registered, 1);
    return add(destroy, value, library);
}

int main(int argc, char **argv) {
    static const char *const kinds[] = { "false", "true" };
    char config[4096];
    int i;
    if (argc < 2) {
        return 2;
    }
    for (i = 0; i < 2; ++i) {
        foredraft_engine *engine = foredraft_engine_new();
        int before, after;
        snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 2, \"n_ctx\": 256, \"log_level\": \"none\", \"isolate\": %s}", argv[1], kinds[i]);
        if (foredraft_load(engine, config) != FOREDRAFT_OK) {
            return 3;
        }
        before = atomic_exchange(&n_registered, 0);
        /* Long enough for all that were started to begin. */
        usleep(3 * LATE_MS * 1000);
        after = atomic_exchange(&n_registered, 0);
        printf("isolated %s: %s before the load returned, %d after\n", kinds[i], before > 2 ? "some" : "none", after);
        foredraft_engine_free(engine);
    }
    return atomic_load(&n_late) > 4 ? 0 : 4;
}
