/* A host of the old server that speculates: the loop of async_completion_*, with the functions that were added in the same style. */
#define _POSIX_C_SOURCE 200809L
#define FOREDRAFT_RPCSERVER_ALL
#include "rpcserver.h"
#include "../json_mini.h"

#include <time.h>

static void draw(void) {
    struct timespec frame = {0, 5000000};
    nanosleep(&frame, NULL);
}

int main(void) {
    /* ANCHOR: loop */
    if (init("{\"model\": \"models/stories-target.gguf\", \"model_draft\": \"models/stories-draft.gguf\", \"n_ctx\": 512}") != 0) return 1;
    free((char *)speculative_completion_init(
        "{\"prompt\": \"Once upon a time\", \"n_predict\": 24, \"temperature\": 0,"
        " \"speculative\": {\"type\": \"draft\", \"verify\": \"match\", \"adaptive\": \"heuristic\"}}"));
    for (int finished = 0; !finished; draw()) {
        const char *reply = speculative_completion_poll(NULL); /* the newest request */
        const char *update = json_first(json_member(reply, "completion_updates"));
        for (; update; update = json_next(update)) {
            char *text = json_text(json_member(update, "content"));
            fputs(text, stdout);
            free(text);
            if (json_member(update, "error")) fprintf(stderr, "%s\n", update); /* also of a request that was refused */
        }
        finished = json_true(json_member(reply, "finished"));
        free((char *)reply);
    }
    deinit();
    /* ANCHOR_END: loop */
    return 0;
}
