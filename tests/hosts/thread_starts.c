/* Counts the threads that calls start when a host submits, polls, asks for the status and cancels. The host's calls come from its first
   thread, from one with a stack of 192 KiB, for which templates and long words are too deep, and from eight such threads at once. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foredraft.h"

static foredraft_engine *engine;
static atomic_int n_started, failed;
/* The thread is inside a call of the host. */
static _Thread_local int is_counting;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument) {
    int (*start)(pthread_t *, const pthread_attr_t *, void *(*) (void *), void *);
    *(void **) &start = dlsym(RTLD_NEXT, "pthread_create");
    atomic_fetch_add(&n_started, is_counting);
    return start(thread, attributes, work, argument);
}

/* Submits, and polls to the end, or cancels after the first poll. */
static void follow(const char *request, int cancels) {
    char command[64], *answer = foredraft_submit(engine, request);
    const char *id = strstr(answer, "\"id\":");
    int finished = 0;
    if (id == NULL) {
        fprintf(stderr, "%s\n", answer);
        failed = 1;
        foredraft_string_free(answer);
        return;
    }
    snprintf(command, sizeof command, "{\"id\": %ld}", strtol(id + 5, NULL, 10));
    foredraft_string_free(answer);
    while (!finished) {
        answer = foredraft_poll(engine, command);
        finished = strstr(answer, "\"finished\":true") != NULL;
        foredraft_string_free(answer);
        foredraft_string_free(foredraft_status(engine));
        if (cancels) {
            foredraft_string_free(foredraft_cancel(engine, command));
        }
    }
}

#define USER "\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}]"
#define TOOLS                                                                                                                            \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": {\"type\": \"object\","  \
    "\"properties\": {\"a\": {\"type\": \"string\"}}}}}]"

static void *use(void *n_rounds) {
    static const char *const requests[] = {
        "{\"prompt\": \"Once upon a time\", \"n_predict\": 8}",
        "{" USER ", \"n_predict\": 8}",
        "{" USER "," TOOLS ", \"tool_choice\": \"required\", \"n_predict\": 24}",
        "{" USER ", \"response_format\": {\"type\": \"json_object\"}, \"n_predict\": 8}",
        "{" USER ", \"chat_template\": \"{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(600) }}Once\","
        " \"n_predict\": 4}",
    };
    enum { n_requests = sizeof requests / sizeof *requests, length = 20000 };
    static const char prefix[] = "{\"n_predict\": 2, \"prompt\": \"";
    char *long_word = malloc(length);
    int i, round;
    /* The model's tokenizer recurses for each character of a line. */
    memset(long_word, 'a', length);
    memcpy(long_word, prefix, sizeof prefix - 1);
    strcpy(long_word + length - 3, "\"}");
    is_counting = 1;
    for (round = 0; round < *(const int *) n_rounds; round++) {
        for (i = 0; i < n_requests; i++) {
            follow(requests[i], 0);
            follow(requests[i], 1);
        }
        follow(long_word, 0);
    }
    is_counting = 0;
    free(long_word);
    return NULL;
}

/* The threads that calls start on `n` threads with small stacks. */
static int started_by_small(int n, int n_rounds) {
    pthread_t threads[8];
    pthread_attr_t small;
    int i;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 192 << 10);
    for (i = 0; i < n; i++) {
        if (pthread_create(&threads[i], &small, use, &n_rounds) != 0) {
            exit(4);
        }
    }
    for (i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
    return atomic_exchange(&n_started, 0);
}

int main(int argc, char **argv) {
    char config[4096];
    int once = 1;
    if (argc < 2) {
        return 2;
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 2, \"n_ctx\": 512, \"n_parallel\": 4, \"chat_template\": \"chatml\", \"log_level\": \"none\"}", argv[1]);
    engine = foredraft_engine_new();
    if (foredraft_load(engine, config) != FOREDRAFT_OK) {
        return 3;
    }
    use(&once);
    printf("%d from the first thread, ", atomic_exchange(&n_started, 0));
    printf("%d from a small one, ", started_by_small(1, 1));
    printf("%d from eight at once\n", started_by_small(8, 3));
    foredraft_engine_free(engine);
    return failed;
}
