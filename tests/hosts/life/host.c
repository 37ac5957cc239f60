/* Functions that all modes of the host use: loads, calls, streams, and the memory of the process. */
#include "host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

const char *folder, *target, *draft;
int quiet;
int n_exhausted;

char *format(const char *text, ...) {
    va_list arguments;
    char *made = NULL;
    va_start(arguments, text);
    if (vasprintf(&made, text, arguments) < 0) {
        abort();
    }
    va_end(arguments);
    return made;
}

int succeeded(const char *answer) {
    return strncmp(answer, "{\"success\":true", 15) == 0;
}

int step(const char *name, foredraft_engine *engine, function call, char *request) {
    char *answer = call(engine, request);
    const int success = succeeded(answer);
    if (!quiet) {
        printf("%s %d%s\n", name, success, !success && strstr(answer, "\"error\":\"") == NULL ? " without an error" : "");
    }
    n_exhausted += strstr(answer, EXHAUSTED) != NULL;
    foredraft_string_free(answer);
    free(request);
    return success;
}

int load(foredraft_engine *engine, const char *more) {
    char *config = format("{\"model\": \"%s\", \"model_draft\": \"%s\", \"n_threads\": 1, \"n_threads_batch\": 1, \"n_ctx\": 256, \"n_parallel\": 2, "
                          "\"log_level\": \"none\"%s}", target, draft, more);
    const int code = foredraft_load(engine, config);
    free(config);
    return code;
}

unsigned long long number(const char *answer, const char *key) {
    const char *at = strstr(answer, key);
    return at == NULL ? 0 : strtoull(at + strlen(key), NULL, 10);
}

int streamed(foredraft_engine *engine, const char *request, char *text, size_t size, int cancels) {
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

long memory(void) {
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

long needed(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    return memory();
}
