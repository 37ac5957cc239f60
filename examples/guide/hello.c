/* The smallest streaming chat in C. From the root of the repository, after `make build`:
 *   cc -Iinclude examples/guide/hello.c -Ltarget/release -lforedraft -Wl,-rpath,target/release -o target/hello && target/hello */
/* ANCHOR: hello */
#include "foredraft.h"
#include "../json_mini.h" /* any JSON library will do */

int main(void) {
    foredraft_engine *engine = foredraft_engine_new();
    if (foredraft_load(engine, "{\"model\": \"models/stories-target.gguf\","
                               " \"model_draft\": \"models/stories-draft.gguf\"}") != FOREDRAFT_OK) {
        char *status = foredraft_status(engine); /* "error" says why */
        fprintf(stderr, "%s\n", status);
        foredraft_string_free(status);
        foredraft_engine_free(engine);
        return 1;
    }
    char *reply = foredraft_submit(engine, "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a fox.\"}],"
                                           " \"n_predict\": 60, \"seed\": 7}");
    char poll[64];
    double id = json_number(json_member(reply, "id"));
    snprintf(poll, sizeof poll, "{\"id\": %.0f, \"timeout_ms\": 1000}", id);
    foredraft_string_free(reply);
    for (int finished = 0; !finished;) {
        reply = foredraft_poll(engine, poll); /* waits for news, for at most a second */
        const char *update = json_first(json_member(reply, "completion_updates"));
        for (; update; update = json_next(update)) {
            char *text = json_text(json_member(update, "content"));
            fputs(text, stdout);
            fflush(stdout);
            free(text);
        }
        finished = !json_true(json_member(reply, "success")) || json_true(json_member(reply, "finished"));
        foredraft_string_free(reply);
    }
    foredraft_engine_free(engine);
    return 0;
}
/* ANCHOR_END: hello */
