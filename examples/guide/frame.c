/* A program that draws frames asks for news once per frame, and never waits. Here a frame is 2 ms of drawing and 3 ms until the next one. */
#define _POSIX_C_SOURCE 200809L
#include "foredraft.h"
#include "../json_mini.h"

#include <time.h>

static void render(void) {
    struct timespec drawing = {0, 2000000};
    nanosleep(&drawing, NULL);
}

static void wait_for_next_frame(void) {
    struct timespec rest = {0, 3000000};
    nanosleep(&rest, NULL);
}

/* ANCHOR: pause */
static void draw(foredraft_engine *engine) {
    foredraft_pause(engine); /* the frame has all cores, also if the engine is in the middle of a decode or a load */
    render();
    foredraft_resume(engine);
    wait_for_next_frame(); /* the engine goes on meanwhile */
}
/* ANCHOR_END: pause */

static int is(const char *value, const char *word) {
    char *text = json_text(value);
    int same = text && strcmp(text, word) == 0;
    free(text);
    return same;
}

int main(void) {
    foredraft_engine *engine = foredraft_engine_new();
    /* ANCHOR: load */
    foredraft_load_async(engine, "{\"model\": \"models/stories-target.gguf\", \"model_draft\": \"models/stories-draft.gguf\"}");
    for (int loading = 1; loading;) {
        char *status = foredraft_status(engine); /* "progress" goes from 0 to 1 */
        loading = is(json_member(status, "state"), "loading");
        if (is(json_member(status, "state"), "failed")) return fprintf(stderr, "%s\n", status), 1;
        foredraft_string_free(status);
        draw(engine);
    }
    /* ANCHOR_END: load */
    /* ANCHOR: frame */
    char *reply = foredraft_submit(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 60, \"seed\": 7}");
    char poll[64];
    snprintf(poll, sizeof poll, "{\"id\": %.0f}", json_number(json_member(reply, "id")));
    foredraft_string_free(reply);
    for (int finished = 0; !finished; draw(engine)) {
        reply = foredraft_poll(engine, poll); /* without "timeout_ms" it takes about a microsecond */
        const char *update = json_first(json_member(reply, "completion_updates"));
        for (; update; update = json_next(update)) {
            char *text = json_text(json_member(update, "content"));
            fputs(text, stdout);
            free(text);
        }
        finished = !json_true(json_member(reply, "success")) || json_true(json_member(reply, "finished"));
        foredraft_string_free(reply);
    }
    /* ANCHOR_END: frame */
    foredraft_engine_free(engine);
    return 0;
}
