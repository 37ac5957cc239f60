/* Lets an allocation inside a decode fail while two requests run, by the shim: failed_decode MODEL here|isolated THREADS. Prints what came of
 * them and of a later one: `same` as alone, or the code of the error. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foredraft.h"

#define LONG "{\"prompt\": \"Once upon a time\", \"n_predict\": 150, \"ignore_eos\": true, \"temperature\": 0, \"cache_prompt\": false}"
#define OTHER "{\"prompt\": \"The dog and the cat\", \"n_predict\": 20, \"ignore_eos\": true, \"temperature\": 0, \"cache_prompt\": false}"

/* The content of an answer as it stands in the JSON, or "" if it has failed. */
static char *content(char *answer) {
    char *at = strstr(answer, "\"success\":true") ? strstr(answer, "\"content\":\"") : NULL, *end;
    char *text = strdup(at == NULL ? "" : at + 11);
    if ((end = strstr(text, "\",\"")) != NULL) {
        *end = '\0';
    }
    foredraft_string_free(answer);
    return text;
}

static unsigned long long number(const char *answer, const char *key) {
    const char *at = strstr(answer, key);
    return at == NULL ? 0 : strtoull(at + strlen(key), NULL, 10);
}

/* Waits for the end of a request, of which `text` gets the content and `code` the code if it failed. */
static void finish(foredraft_engine *engine, unsigned long long id, char *text, size_t size, char *code) {
    char request[64];
    int is_over = 0;
    snprintf(request, sizeof request, "{\"id\": %llu, \"timeout_ms\": 1000}", id);
    text[0] = code[0] = '\0';
    while (!is_over) {
        char *answer = foredraft_poll(engine, request), *at = answer, *why = strstr(answer, "\"code\":\"");
        while ((at = strstr(at, "{\"content\":\"")) != NULL) {
            const char *begin = at += 12;
            while (*at != '"') {
                at += *at == '\\' ? 2 : 1;
            }
            if (strlen(text) + (size_t) (at - begin) < size) {
                strncat(text, begin, (size_t) (at - begin));
            }
        }
        if (why != NULL) {
            sscanf(why, "\"code\":\"%60[^\"]", code);
        }
        is_over = why != NULL || strstr(answer, "\"finished\":true") != NULL;
        foredraft_string_free(answer);
    }
}

int main(int argc, char **argv) {
    void (*const arm)(int) = (void (*)(int)) dlsym(RTLD_DEFAULT, "fault_arm");
    static char text[1 << 16], code[64], other_code[64], other[1 << 16], config[4096];
    const int is_isolated = argc > 2 && strcmp(argv[2], "isolated") == 0;
    foredraft_engine *engine = foredraft_engine_new();
    char *alone, *other_alone, *answer, *again;
    unsigned long long id, other_id, pid, n_restarts;
    if (argc < 4 || arm == NULL) {
        return 2;
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_ctx\": 512, \"n_parallel\": 2, \"n_threads\": %s, \"n_threads_batch\": %s, \"log_level\": \"none\", \"isolate\": %s}",
             argv[1], argv[3], argv[3], is_isolated ? "true" : "false");
    if (foredraft_load(engine, config) != 0) {
        return 3;
    }
    alone = content(foredraft_complete(engine, LONG));
    other_alone = content(foredraft_complete(engine, OTHER));
    answer = foredraft_status(engine);
    pid = number(answer, "\"pid\":");
    foredraft_string_free(answer);
    answer = foredraft_submit(engine, LONG);
    id = number(answer, "\"id\":");
    foredraft_string_free(answer);
    if (is_isolated) {
        kill((pid_t) pid, SIGUSR2);
    } else {
        arm(1);
    }
    answer = foredraft_submit(engine, OTHER);
    other_id = number(answer, "\"id\":");
    foredraft_string_free(answer);
    finish(engine, other_id, other, sizeof other, other_code);
    finish(engine, id, text, sizeof text, code);
    again = content(foredraft_complete(engine, LONG));
    answer = foredraft_status(engine);
    n_restarts = number(answer, "\"n_restarts\":");
    foredraft_string_free(answer);
    printf("first %s%s\n", code, code[0] != '\0' ? "" : strcmp(text, alone) == 0 ? "same" : "differs");
    printf("second %s%s\n", other_code, other_code[0] != '\0' ? "" : strcmp(other, other_alone) == 0 ? "same" : "differs");
    printf("later %s\n", strcmp(again, alone) == 0 && again[0] != '\0' ? "same" : "differs");
    printf("restarts %llu\n", n_restarts);
    free(alone);
    free(other_alone);
    free(again);
    foredraft_engine_free(engine);
    return 0;
}
