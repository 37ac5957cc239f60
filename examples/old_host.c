/* A host of the old JSON-RPC server, written as such hosts were: against rpcserver.h, polling with NULL, looking for words
 * in the JSON and freeing with free(). It works unchanged. From the root of the repository:
 *   cc -std=c99 -Iinclude examples/old_host.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/old_host
 *   target/old_host ["a prompt" [model.gguf]]            the prompt goes into JSON as it is: no quotes in it */
#define _POSIX_C_SOURCE 200809L
#include "rpcserver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv) {
    const char *prompt = argc > 1 ? argv[1] : "Once upon a time";
    const char *model = argc > 2 ? argv[2] : "models/stories-target.gguf";
    const struct timespec nap = {0, 10 * 1000 * 1000};
    char json[4096];

    snprintf(json, sizeof json, "{\"model\": \"%s\", \"n_ctx\": 512}", model);
    if (init(json) != 0) {
        fprintf(stderr, "old_host: cannot load %s\n", model);
        return 1;
    }
    const char *status = poll_system_status();
    fprintf(stderr, "%s\n", status);
    free((void *)status);

    snprintf(json, sizeof json, "{\"prompt\": \"%s\", \"n_predict\": 64, \"temperature\": 0.0}", prompt);
    const char *begun = async_completion_init(json);
    int going = strstr(begun, "\"success\":true") != NULL;
    if (!going) fprintf(stderr, "%s\n", begun);
    free((void *)begun);

    int failed = !going;
    while (going) {
        const char *updates = async_completion_poll(NULL);
        going = strstr(updates, "\"finished\":true") == NULL;
        puts(updates);
        free((void *)updates);
        nanosleep(&nap, NULL);
    }
    deinit();
    return failed;
}
