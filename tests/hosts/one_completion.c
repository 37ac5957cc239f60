/* Loads, completes and unloads while the shim lets calls fail, then once more without faults. Prints what came of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foredraft.h"

static int completes(foredraft_engine *engine) {
    char *answer = foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 8}");
    const int success = answer != NULL && strstr(answer, "\"success\":true") != NULL;
    foredraft_string_free(answer);
    return success;
}

int main(int argc, char **argv) {
    void (*const arm)(int) = (void (*)(int)) dlsym(RTLD_DEFAULT, "fault_arm");
    foredraft_engine *engine = foredraft_engine_new();
    const char *fault = getenv("FAULT");
    char config[4096];
    int n_threads, code, success = 0;
    if (argc < 2 || arm == NULL) {
        return 2;
    }
    /* Lack of memory on a thread of the pool ends the process: nothing there could catch it. */
    n_threads = fault != NULL && strcmp(fault, "memory") == 0 ? 1 : 2;
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"n_threads\": %d, \"n_threads_batch\": %d, \"n_ctx\": 256, \"log_level\": \"none\"}",
             argv[1], n_threads, n_threads);
    arm(1);
    code = foredraft_load(engine, config);
    if (code == 0) {
        success = completes(engine);
    }
    arm(0);
    /* A decode that failed leaves the engine usable. */
    printf("load %d\ncompletion %d\nlater %d\n", code, success, code == 0 ? completes(engine) : 1);
    foredraft_unload(engine);
    code = foredraft_load(engine, config);
    success = code == 0 ? completes(engine) : 0;
    foredraft_engine_free(engine);
    printf("again %d %d\n", code, success);
    return 0;
}
