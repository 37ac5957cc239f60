/* Counts the threads that the library starts while a host submits, polls, asks for the status and cancels. The host's calls come from its
   first thread and from one with a stack of 192 KiB, for which templates and long words are too deep. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foredraft.h"

static foredraft_engine *engine;
static atomic_int n_started, is_counting;
static int failed;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*work)(void *), void *argument) {
    int (*start)(pthread_t *, const pthread_attr_t *, void *(*) (void *), void *);
    *(void **) &start = dlsym(RTLD_NEXT, "pthread_create");
    atomic_fetch_add(&n_started, atomic_load(&is_counting));
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

static void *use(void *unused) {
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
    static char long_word[length];
    int i;
    for (i = 0; i < n_requests; i++) {
        follow(requests[i], 0);
        follow(requests[i], 1);
    }
    /* The model's tokenizer recurses for each character of a line. */
    memset(long_word, 'a', sizeof long_word);
    memcpy(long_word, prefix, sizeof prefix - 1);
    strcpy(long_word + sizeof long_word - 3, "\"}");
    follow(long_word, 0);
    return unused;
}

int main(int argc, char **argv) {
    char config[4096];
    pthread_t thread;
    pthread_attr_t small;
    if (argc < 2) {
        return 2;
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": 2, \"n_ctx\": 512, \"chat_template\": \"chatml\", \"log_level\": \"none\"}", argv[1]);
    engine = foredraft_engine_new();
    if (foredraft_load(engine, config) != FOREDRAFT_OK) {
        return 3;
    }
    atomic_store(&is_counting, 1);
    use(NULL);
    printf("%d from the first thread, ", atomic_exchange(&n_started, 0));
    atomic_store(&is_counting, 0);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 192 << 10);
    if (pthread_create(&thread, &small, use, NULL) != 0) {
        return 4;
    }
    atomic_store(&is_counting, 1);
    pthread_join(thread, NULL);
    printf("%d from a small one\n", atomic_load(&n_started));
    foredraft_engine_free(engine);
    return failed;
}
