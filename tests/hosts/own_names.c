/* A host with its own functions under the old server's names. scripts/test-features.sh links it with a library that was built without the
 * cargo feature `rpcserver`: own_names MODEL DRAFT. Prints the completion. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foredraft.h"

/* Would collide with the old names, or be called in their place. */
int init(const char *text) { return text == NULL ? 7 : 8; }
const char *version(void) { return "the host's version"; }
const char *tokenize(const char *text) { return text; }
void deinit(void) { abort(); }

static char *found(const char *json, const char *text, const char *function) {
    char *place = strstr(json, text);
    if (place == NULL) {
        fprintf(stderr, "%s: no %s in %s\n", function, text, json);
        exit(1);
    }
    return place;
}

int main(int argc, char **argv) {
    char config[4096];
    foredraft_engine *engine = foredraft_engine_new();
    char *answer;
    if (argc < 3 || init(NULL) != 7 || strcmp(version(), "the host's version") != 0 || strcmp(tokenize("a"), "a") != 0) {
        return 2;
    }
    snprintf(config, sizeof config, "{\"model\": \"%s\", \"model_draft\": \"%s\", \"n_ctx\": 512}", argv[1], argv[2]);
    if (foredraft_load(engine, config) != FOREDRAFT_OK) {
        answer = foredraft_status(engine);
        fprintf(stderr, "foredraft_load: %s\n", answer);
        return 1;
    }
    answer = foredraft_tokenize(engine, "{\"text\": \"Once upon a time\"}");
    found(answer, "\"ids\":", "foredraft_tokenize");
    foredraft_string_free(answer);

    answer = foredraft_complete(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 8, \"temperature\": 0}");
    found(answer, "\"success\":true", "foredraft_complete");
    found(answer, "\"tokens_predicted\":8", "foredraft_complete");
    printf("%.40s\n", found(answer, "\"content\":", "foredraft_complete"));
    foredraft_string_free(answer);

    answer = foredraft_submit(engine, "{\"prompt\": \"Once upon a time\", \"n_predict\": 4}");
    sprintf(config, "{\"id\": %lu, \"timeout_ms\": 60000}", strtoul(found(answer, "\"id\":", "foredraft_submit") + 5, NULL, 10));
    foredraft_string_free(answer);
    for (;;) {
        int finished;
        answer = foredraft_poll(engine, config);
        found(answer, "\"success\":true", "foredraft_poll");
        finished = strstr(answer, "\"finished\":true") != NULL;
        foredraft_string_free(answer);
        if (finished) {
            break;
        }
    }
    foredraft_engine_free(engine);
    return 0;
}
