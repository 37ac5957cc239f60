/* pthread_cancel of a host's thread inside a call of the library: the call runs to its end, the thread ends, the process goes on. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "foredraft.h"

static foredraft_engine *engine;
static char config[4096];

static void *complete(void *unused) {
    for (;;) {
        foredraft_string_free(foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 8}"));
        pthread_testcancel();
    }
    return unused;
}

static void *poll(void *unused) {
    for (;;) {
        foredraft_string_free(foredraft_poll(engine, "{\"ids\": [1, 2, 3], \"timeout_ms\": 2}"));
        foredraft_string_free(foredraft_status(engine));
        pthread_testcancel();
    }
    return unused;
}

static void *load(void *unused) {
    for (;;) {
        foredraft_load(engine, config);
        pthread_testcancel();
    }
    return unused;
}

int main(int argc, char **argv) {
    void *(*const works[])(void *) = {complete, poll, load};
    int round, failed = 0;
    char *answer;
    if (argc < 2) {
        return 2;
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 1, \"n_ctx\": 256, \"log_level\": \"none\"}", argv[1]);
    engine = foredraft_engine_new();
    if (foredraft_load(engine, config) != FOREDRAFT_OK) {
        return 3;
    }
    for (round = 0; round < 30; round++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, NULL, works[round % 3], NULL) != 0) {
            return 4;
        }
        usleep((useconds_t) (rand() % 40000));
        pthread_cancel(thread);
        pthread_join(thread, &result);
        failed += result != PTHREAD_CANCELED;
    }
    if (foredraft_load(engine, config) != FOREDRAFT_OK) {
        return 5;
    }
    answer = foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 8}");
    failed += strstr(answer, "\"success\":true") == NULL;
    foredraft_string_free(answer);
    foredraft_engine_free(engine);
    printf("%d\n", failed);
    return 0;
}
