/* Loads with little memory, and the memory after many requests and loads. */
#include "host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Loads with little more address space than the process has. */
int address_space(long mb) {
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

/* A row of the soak's table: the memory, and the memory after the allocator has returned its free pages. */
static void print_memory(long n, const char *what) {
    const long before = memory();
    printf("| %ld %s | %ld KiB | %ld KiB |\n", n, what, before, needed());
    fflush(stdout);
}

int soak(long n_requests, long n_loads) {
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
